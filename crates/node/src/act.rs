//! What people and programs do to tasks without a token: by id, or by filter in bounded steps.
//!
//! Next: `state-machine/src/shard/cancel.rs`, `requeue.rs`, `release.rs`.

use std::time::Instant;

use model::command::OnTask;
use model::{Command, Fence, Rejection, Reply, Settled, ShardId, StateKind, TaskId, limits};

use crate::call::{Acted, Action, Answer, Freshness, TaskFilter};
use crate::error::Error;
use crate::inner::{Inner, Node};
use crate::route::sum_of;
use crate::stats::Operation;

impl Action {
    /// Whether it can do something to a task in this state.
    fn applies_to(self, state: StateKind) -> bool {
        match self {
            Action::Requeue => matches!(state, StateKind::Dead | StateKind::Failed | StateKind::Cancelled),
            Action::Discard => !state.is_ended() || state == StateKind::Dead,
            Action::Cancel => !state.is_ended(),
            Action::PutBack => state == StateKind::Claimed,
        }
    }

    /// The state that is meant when a filter names none.
    fn default_state(self) -> Option<StateKind> {
        match self {
            Action::Requeue => Some(StateKind::Dead),
            Action::PutBack => Some(StateKind::Claimed),
            Action::Discard | Action::Cancel => None,
        }
    }

    fn command(self, task: TaskId, fence: Option<Fence>, reason: &str) -> Command {
        match self {
            Action::Requeue => Command::Requeue(OnTask { task, fence }),
            Action::Discard => Command::Discard(OnTask { task, fence }),
            Action::PutBack => Command::PutBack(OnTask { task, fence }),
            Action::Cancel => Command::Cancel { task, reason: reason.to_owned() },
        }
    }
}

impl Node {
    /// Ends a waiting task; asks the holder of a claimed one to stop.
    pub async fn cancel(&self, task: TaskId, reason: String) -> Result<Answer<Settled>, Error> {
        self.inner.act_on(Action::Cancel, task, &reason).await
    }

    /// Brings an ended task back.
    pub async fn requeue(&self, task: TaskId) -> Result<Answer<Settled>, Error> {
        self.inner.act_on(Action::Requeue, task, "").await
    }

    /// Ends a task, fencing its holder.
    pub async fn discard(&self, task: TaskId) -> Result<Answer<Settled>, Error> {
        self.inner.act_on(Action::Discard, task, "").await
    }

    /// Takes a claim from its holder; the task waits again.
    pub async fn put_back(&self, task: TaskId) -> Result<Answer<Settled>, Error> {
        self.inner.act_on(Action::PutBack, task, "").await.map_err(|error| match error {
            Error::Rejected(Rejection::NotClaimed { id, state }) => Error::NothingToPutBack { id, state },
            error => error,
        })
    }

    /// One step of an action by filter. A dry run counts and changes nothing. Goes on from `cursor`.
    pub async fn act(
        &self,
        action: Action,
        mut filter: TaskFilter,
        dry_run: bool,
        cursor: Option<String>,
    ) -> Result<Acted, Error> {
        let since = Instant::now();
        filter.state = filter.state.or(action.default_state());
        let (cursor, fresh) = (cursor.as_deref(), Freshness::Linearizable);
        let page = self.inner.list(&filter, cursor, limits::LIST_MAX, fresh).await?;
        let views = page.tasks.iter().map(|task| &task.view).filter(|view| action.applies_to(view.state));
        // The fence as it was seen: what was claimed since is not what was asked for.
        let tasks: Vec<(TaskId, Fence)> = views.map(|view| (view.id, view.fence)).collect();
        let matched = tasks.len() as u64;
        let changed = if dry_run { 0 } else { self.inner.act_on_all(action, tasks).await? };
        self.inner.counters.timed(Operation::Act, since, changed as usize, (matched - changed) as usize);
        Ok(Acted { matched, changed, cursor: page.cursor })
    }
}

impl Inner {
    async fn act_on(&self, action: Action, task: TaskId, reason: &str) -> Result<Answer<Settled>, Error> {
        let since = Instant::now();
        self.groups.known(task)?;
        let shard = task.shard();
        let outcome = self.groups.propose_one(shard, action.command(task, None, reason)).await;
        self.counters.timed(Operation::Act, since, 1, usize::from(outcome.is_err()));
        let (index, reply) = outcome?;
        let Reply::Settled(value) = reply else {
            unreachable!("an action is answered by what became of the task")
        };
        Ok(Answer { value, indexes: vec![(shard, index)] })
    }

    /// How many were changed; a task that meanwhile is something else is passed over.
    async fn act_on_all(&self, action: Action, tasks: Vec<(TaskId, Fence)>) -> Result<u64, Error> {
        let mut sheets: Vec<(ShardId, Vec<Command>)> = Vec::new();
        for (task, fence) in tasks {
            let command = action.command(task, Some(fence), "by filter");
            match sheets.iter_mut().find(|(shard, _)| *shard == task.shard()) {
                Some((_, commands)) => commands.push(command),
                None => sheets.push((task.shard(), vec![command])),
            }
        }
        let proposals = sheets.into_iter().map(|(shard, commands)| self.groups.propose(shard, commands));
        let applied = futures::future::join_all(proposals).await.into_iter();
        let changed = applied
            .map(|applied| Ok(applied?.iter().filter(|applied| applied.outcome.is_ok()).count() as u64));
        sum_of(changed.collect())
    }
}
