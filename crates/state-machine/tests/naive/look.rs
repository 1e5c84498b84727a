//! What the naive model shows of itself, in the shapes of `state_machine::view`.

use model::command::OutboxMessage;
use model::{Elapsed, KeyHash, QueueName, SessionId, ShardId, StateKind, TaskId, WallTime, limits};
use state_machine::view::{ClaimView, Depth, Filter, QueueView, ReadyHint, SessionClaim, TaskView};

use super::{Naive, St, Task};

impl Naive {
    pub(crate) fn view(&self, i: usize) -> TaskView {
        let task = &self.tasks[i];
        TaskView {
            id: task.id,
            queue: task.queue.clone(),
            state: task.kind(),
            priority: task.priority,
            attempts: task.attempts,
            attempts_max: self.retry_policy(i).attempts,
            kind_hash: task.kind_hash,
            fence: task.fence,
            enqueued_at: task.enqueued_at,
            due: if task.st == St::Blocked { task.start } else { self.settled(i).due },
            expires_at: task.expires_at,
            ended_at: match task.st {
                St::Ended { at, .. } => Some(at),
                _ => None,
            },
            claim: match &task.st {
                St::Claimed(held) => Some(ClaimView {
                    worker: held.worker.clone(),
                    session: held.session,
                    since: held.since,
                    deadline: self.wall_of(held.deadline),
                    cancel_requested: held.cancel,
                    progress: held.progress.clone(),
                }),
                _ => None,
            },
        }
    }

    /// What there is, a line each, for a test that failed.
    pub(crate) fn summary(&self) -> String {
        let tasks = self.tasks.iter().map(|t| {
            let facts = (t.attempts, t.lost, t.fence.0, t.marked, t.retention);
            let keys = (t.order.is_some(), t.dedup_held, t.dedup_until, t.unique_held, t.expires_at);
            format!("{} {} #{} {:?} {facts:?} {keys:?}", t.id, t.queue, t.seq, t.st)
        });
        let queues = self.queues.iter().map(|q| {
            let p = &q.settings.policy;
            let bounds = (p.retained_max, p.dead_max, p.retention.0, p.dead_retention.0, q.dropped);
            format!("{} {:?} {:?} {:?} {bounds:?}", q.name, p.recovery, p.freed_to, p.on_exhausted)
        });
        let rest = format!("{:?} {:?} {:?} {:?}", self.gone_keys, self.outcomes, self.requests, self.outbox);
        let now = format!("now {:?} {:?}", self.elapsed, self.wall);
        tasks.chain(queues).chain([rest, now]).collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn task(&self, id: TaskId) -> Option<TaskView> {
        self.find(id).map(|i| self.view(i))
    }

    /// When the claim of a task ends.
    pub(crate) fn deadline(&self, id: TaskId) -> Option<Elapsed> {
        match &self.tasks[self.find(id)?].st {
            St::Claimed(held) => Some(held.deadline),
            _ => None,
        }
    }

    pub(crate) fn queue_view(&self, name: &QueueName) -> Option<QueueView> {
        let queue = self.queue(name).filter(|queue| !queue.dropped)?;
        let mut depth = Depth::default();
        let tasks = || self.tasks.iter().filter(|task| task.queue == *name);
        tasks().for_each(|task| depth.0[task.kind() as usize - 1] += 1);
        let claimed = tasks().filter_map(|task| match &task.st {
            St::Claimed(held) => Some(held.since),
            _ => None,
        });
        Some(QueueView {
            name: name.clone(),
            settings: queue.settings.clone(),
            depth,
            oldest_ready: self.firsts(name).into_iter().map(|(_, since)| since).min(),
            oldest_claimed: claimed.min(),
            totals: queue.totals,
        })
    }

    pub(crate) fn ready_hint(&self, name: &QueueName) -> Option<ReadyHint> {
        if self.queue(name)?.settings.paused {
            return None;
        }
        let (priority, since) = self.firsts(name).first().copied()?;
        let ready =
            |task: &&Task| task.queue == *name && task.kind() == StateKind::Ready && task.marked.is_none();
        Some(ReadyHint { priority, since, count: self.tasks.iter().filter(ready).count() as u64 })
    }

    /// The first in line of each priority, and since when it could be claimed.
    fn firsts(&self, name: &QueueName) -> Vec<(u8, WallTime)> {
        let ready = |task: &&Task| task.queue == *name && task.st == St::Ready && task.marked.is_none();
        let of = |priority| self.tasks.iter().filter(ready).filter(move |task| task.priority == priority);
        let first = |priority| Some((priority, of(priority).min_by_key(|task| task.line)?.since));
        (0..=limits::PRIORITY_MAX).filter_map(first).collect()
    }

    pub(crate) fn session_claims(&self, session: SessionId) -> Vec<SessionClaim> {
        let claim = |task: &Task| match &task.st {
            St::Claimed(held) if held.session == Some(session) => {
                Some(SessionClaim { task: task.id, fence: task.fence, cancel_requested: held.cancel })
            }
            _ => None,
        };
        self.tasks.iter().filter_map(claim).collect()
    }

    pub(crate) fn knows_request(&self, key: KeyHash) -> bool {
        self.requests.iter().any(|request| request.key == key)
    }

    pub(crate) fn outbox_to(&self, target: ShardId) -> Vec<OutboxMessage> {
        self.outbox.iter().filter(|(to, _)| *to == target).map(|(_, message)| message.clone()).collect()
    }

    pub(crate) fn list(&self, filter: &Filter) -> Vec<TaskId> {
        let wall = self.wall;
        let fits = |task: &&Task| {
            let claim = match &task.st {
                St::Claimed(held) => Some((&held.worker, wall.since(held.since))),
                _ => None,
            };
            filter.queue.as_ref().is_none_or(|queue| *queue == task.queue)
                && filter.state.is_none_or(|state| state == task.kind())
                && filter.kind_hash.is_none_or(|hash| hash == task.kind_hash)
                && filter.order_key.is_none_or(|key| Some(key) == task.order)
                && filter.worker.as_ref().is_none_or(|worker| claim.is_some_and(|(by, _)| by == worker))
                && filter.claimed_for.is_none_or(|long| claim.is_some_and(|(_, held)| held >= long))
        };
        self.tasks.iter().filter(fits).map(|task| task.id).collect()
    }
}
