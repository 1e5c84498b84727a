//! Sessions: beats outside the log, at whichever node the worker speaks to.
//!
//! No node owns a session. Each keeps all of them (`registry.rs`), tells the others what it hears
//! (`session_news.rs`), and ends those that are lost in the shards that it leads (`freeing.rs`). Here is what a
//! worker asks for: to be taken in, to be heard, to be held (`session_stream.rs`), to leave. A beat is never written
//! to a log.
//!
//! A session that somebody ends is marked as over before its end is proposed. A claim under way checks that mark
//! after its commit, so either the end comes after the claim in the log and frees it, or the claim gives itself
//! back (`waiting.rs`), or a leader finds it soon after. Next: `workers.rs`, what people see and do.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use model::{
    Command, Fence, FreedReason, Millis, Mutant, Reply, SessionId, ShardId, StateKind, TaskId, WorkerName,
    limits, mutant,
};
use state_machine::view::SessionClaim;

use crate::call::{Answer, BeatAnswer, Freshness, WorkerFacts, WorkerState};
use crate::error::Error;
use crate::events::NodeEvent;
use crate::inner::{Inner, Node};
use crate::session::{Session, is_loss};
use crate::session_news::About;
use crate::session_stream::SessionStream;
use crate::taken::{Carried, Return};
use crate::{freeing, session_news};

/// How long a worker waits to hear whether its session is unknown to all shards.
const SURE_WAIT: Duration = Duration::from_millis(500);
/// How long a beat waits to hear whether a claim is lost that the copy here does not have.
const FRESH_WAIT: Duration = Duration::from_millis(250);

impl Node {
    /// Takes a worker in, or goes on with the session that it names. Other sessions of its name end.
    pub async fn register(&self, facts: WorkerFacts) -> Result<(SessionId, WorkerState), Error> {
        self.take_in(facts, Namesake::GivesWay).await
    }

    /// The same, but refuses a worker whose name another process with an open stream has: two processes of one
    /// name would end each other's sessions for ever, and use up the attempts of their tasks.
    pub async fn register_alone(&self, facts: WorkerFacts) -> Result<(SessionId, WorkerState), Error> {
        self.take_in(facts, Namesake::Stays).await
    }

    async fn take_in(
        &self,
        facts: WorkerFacts,
        namesake: Namesake,
    ) -> Result<(SessionId, WorkerState), Error> {
        let inner = &self.inner;
        if let Some(id) = facts.session
            && let Some(session) = inner.find_session(&facts.name, id).await?
        {
            session.heard(inner.now(), inner.clock.wall());
            session.set_facts(facts, inner.node);
            inner.sessions.changed.add(session.id, true);
            return Ok((session.id, session.state()));
        }
        let before = inner.sessions.all_of(&facts.name);
        if namesake == Namesake::Stays {
            let is_other =
                |session: &&Arc<Session>| session.is_at_work(inner.now()) && !session.is_of(&facts);
            if let Some(other) = before.iter().find(is_other) {
                let WorkerFacts { host, pid, .. } = other.facts();
                return Err(Error::NameTaken { worker: facts.name, host, pid });
            }
        }
        let id = SessionId(rand::random());
        let session = inner.add_session(id, facts.name.clone(), limits::SESSIONS_MAX)?;
        session.heard(inner.now(), inner.clock.wall());
        session.set_facts(facts, inner.node);
        inner.sessions.changed.add(id, true);
        for before in before.into_iter().filter(|before| !before.is_over()) {
            // The worker has started anew: its life before is over, and not in order.
            inner.end_session_later(before, FreedReason::Closed);
        }
        Ok((id, WorkerState::Running))
    }

    /// Hears a worker, with all claims that it holds.
    pub async fn beat(
        &self,
        worker: &WorkerName,
        session: SessionId,
        running: Vec<(TaskId, Fence)>,
    ) -> Result<BeatAnswer, Error> {
        self.beat_on_stream(worker, session, running, Vec::new()).await
    }

    /// The same; what is `on_the_way` to it counts as held, and nothing is told of it.
    pub async fn beat_on_stream(
        &self,
        worker: &WorkerName,
        session: SessionId,
        running: Vec<(TaskId, Fence)>,
        on_the_way: Vec<(TaskId, Fence)>,
    ) -> Result<BeatAnswer, Error> {
        let inner = &self.inner;
        if running.len() > limits::BEAT_CLAIMS_MAX {
            return Err(Error::Invalid(format!(
                "a beat lists {} tasks: list at most {}",
                running.len(),
                limits::BEAT_CLAIMS_MAX
            )));
        }
        let session = inner.session(worker, session).await?;
        let now = inner.now();
        session.heard(now, inner.clock.wall());
        let held = inner.claims_of(session.id);
        let listed: HashSet<(TaskId, Fence)> = running.into_iter().collect();
        let on_the_way: HashSet<(TaskId, Fence)> = on_the_way.into_iter().collect();
        let missing = held.iter().map(|claim| (claim.task, claim.fence));
        let missing =
            missing.filter(|claim| !listed.contains(claim) && !on_the_way.contains(claim)).collect();
        for (task, fence) in session.unlisted(missing, now) {
            tracing::info!(%worker, %task, %fence, "claim given back: its worker does not know of it");
            let _ = inner.returns.send(Return { task, fence });
        }
        let asked = held.iter().filter(|claim| claim.cancel_requested);
        let mut cancel: Vec<(TaskId, Fence)> = asked.map(|claim| (claim.task, claim.fence)).collect();
        cancel.sort_unstable();
        let lost = inner.lost(&session, &held, &listed, now).await;
        Ok(BeatAnswer { state: session.state(), cancel, lost })
    }

    /// Holds a session's stream. When what this returns is dropped, the session ends as closed, unless
    /// a later stream took its place, at whichever node, or this node stops.
    pub async fn hold_session(
        &self,
        worker: &WorkerName,
        session: SessionId,
    ) -> Result<SessionStream, Error> {
        let inner = &self.inner;
        let session = inner.session(worker, session).await?;
        session.heard(inner.now(), inner.clock.wall());
        Ok(SessionStream::open(inner.clone(), session))
    }

    /// Ends a worker's session in order: its claims wait again, and no attempt is used up. How many there
    /// were.
    pub async fn end_session(&self, worker: &WorkerName) -> Result<Answer<u64>, Error> {
        self.inner.part_with(worker, FreedReason::Drained).await
    }
}

/// What becomes of another process that has a worker's name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Namesake {
    /// Its session ends.
    GivesWay,
    /// While it has an open stream, the newcomer is refused.
    Stays,
}

impl Inner {
    /// The live session of a worker.
    async fn session(self: &Arc<Inner>, worker: &WorkerName, id: SessionId) -> Result<Arc<Session>, Error> {
        let mut found = self.find_session(worker, id).await?;
        if found.is_some() && self.sessions.endings.is_under_way(id) {
            // Its claims may be free already: who sees that is not told a moment later that it lives.
            self.sessions.endings.settled(id).await;
            found = self.sessions.of(worker, id);
        }
        found.ok_or_else(|| Error::UnknownWorker { worker: worker.clone() })
    }

    /// The live session of a call, which must be that worker's.
    pub(crate) async fn live_session(
        self: &Arc<Inner>,
        worker: &WorkerName,
        session: Option<SessionId>,
    ) -> Result<Option<Arc<Session>>, Error> {
        match session {
            None => Ok(None),
            Some(id) => self.session(worker, id).await.map(Some),
        }
    }

    /// A worker's last session.
    pub(crate) fn worker_session(&self, worker: &WorkerName) -> Result<Arc<Session>, Error> {
        self.sessions.last_of(worker).ok_or_else(|| Error::UnknownWorker { worker: worker.clone() })
    }

    /// A worker's live session: one that is known here, or to another node, or to a shard that has claims of
    /// it. Only one that is not known here costs a question.
    async fn find_session(
        self: &Arc<Inner>,
        worker: &WorkerName,
        id: SessionId,
    ) -> Result<Option<Arc<Session>>, Error> {
        if let Some(session) = self.sessions.of(worker, id) {
            return Ok(Some(session));
        }
        if self.sessions.known(id).is_some() {
            // Over, or another worker's.
            return Ok(None);
        }
        let is_answered = self.ask_all(About::Unknown, &[id], || self.sessions.known(id).is_some()).await;
        if self.sessions.known(id).is_some() {
            return Ok(self.sessions.of(worker, id));
        }
        if self.is_known_to_shards(worker, id) {
            return self.take_up(worker, id);
        }
        if !self.has_other_nodes() {
            return Ok(None);
        }
        if !is_answered {
            // Nobody whom we reach has said no: a worker that is sent away loses what it holds.
            return Err(Error::Unavailable);
        }
        // The other may know as little, when all of them have just started: only the newest state of the shards tells.
        // Not for long: who comes again finds what was learned meanwhile.
        let fresh = self.groups.wait_for(self.groups.all(), Freshness::Linearizable);
        tokio::time::timeout(SURE_WAIT, fresh).await.map_err(|_| Error::Unavailable)??;
        match self.is_known_to_shards(worker, id) {
            true => self.take_up(worker, id),
            false => Ok(self.sessions.of(worker, id)),
        }
    }

    /// Goes on with a session of which the shards have claims.
    fn take_up(&self, worker: &WorkerName, id: SessionId) -> Result<Option<Arc<Session>>, Error> {
        // Another live session of this worker stays: which of them is silent will show.
        let session = self.add_session(id, worker.clone(), limits::SESSIONS_TOLD_MAX)?;
        Ok((!session.is_over()).then_some(session))
    }

    fn is_known_to_shards(&self, worker: &WorkerName, id: SessionId) -> bool {
        let known = |shard| {
            let from = self.groups.look(shard, |state| state.sessions_from(id, 1));
            from.first().is_some_and(|(session, name)| *session == id && name == worker)
        };
        self.groups.all().any(known)
    }

    fn has_other_nodes(&self) -> bool {
        let catalog = &self.groups.catalog;
        catalog.read_stale(|catalog| catalog.nodes().any(|(node, _)| node != self.node))
            // A node that has just started may have nothing of the catalog yet, but knows whom it votes with.
            || catalog.members().voters.iter().any(|member| member.node() != self.node)
    }

    /// Adds a session of which nothing is known but whose it is, if there are fewer than `max`.
    pub(crate) fn add_session(
        &self,
        id: SessionId,
        worker: WorkerName,
        max: usize,
    ) -> Result<Arc<Session>, Error> {
        let facts = WorkerFacts::named(worker.clone());
        let session = self.sessions.add(Session::new(id, facts, self.now(), self.clock.wall()), max)?;
        let mut event = NodeEvent::new(self.clock.wall(), "worker_registered");
        event.worker = Some(worker);
        self.events.publish([event]);
        Ok(session)
    }

    /// What a session holds, over all shards.
    pub(crate) fn claims_of(&self, session: SessionId) -> Vec<SessionClaim> {
        let of = |shard| self.groups.look(shard, |state| state.session_claims(session));
        self.groups.all().flat_map(of).collect()
    }

    /// Which of the tasks that a worker lists are its own no more.
    async fn lost(
        &self,
        session: &Session,
        held: &[SessionClaim],
        listed: &HashSet<(TaskId, Fence)>,
        now: Millis,
    ) -> Vec<(TaskId, Fence)> {
        let held: HashSet<(TaskId, Fence)> = held.iter().map(|claim| (claim.task, claim.fence)).collect();
        // A copy that lags does not have what was claimed a moment ago; the only copy has all.
        let not_here = if self.has_other_nodes() { Fate::Absent } else { Fate::Lost };
        let (mut lost, mut absent) = (Vec::new(), Vec::new());
        for &(task, fence) in listed.difference(&held) {
            match self.fate(task, fence, not_here) {
                Fate::Lost => lost.push((task, fence)),
                Fate::Absent => absent.push((task, fence)),
                Fate::Fine => {}
            }
        }
        lost.extend(self.surely_lost(session.absent(absent, now)).await);
        lost.sort_unstable();
        lost
    }

    /// Which of these claims, not found for long, are lost by the word of their shards' leaders. A copy may lag for
    /// longer; what nobody can tell now is asked again later.
    async fn surely_lost(&self, absent: Vec<(TaskId, Fence)>) -> Vec<(TaskId, Fence)> {
        let shards: HashSet<ShardId> = absent.iter().map(|(task, _)| task.shard()).collect();
        let asked = shards.into_iter().map(|shard| async move {
            let asked = self.groups.wait_for([shard], Freshness::Linearizable);
            let is_fresh = matches!(tokio::time::timeout(FRESH_WAIT, asked).await, Ok(Ok(())));
            is_fresh.then_some(shard)
        });
        let fresh: HashSet<ShardId> = futures::future::join_all(asked).await.into_iter().flatten().collect();
        let is_lost = |&(task, fence): &(TaskId, Fence)| {
            fresh.contains(&task.shard()) && self.fate(task, fence, Fate::Lost) == Fate::Lost
        };
        absent.into_iter().filter(is_lost).collect()
    }

    /// What became of a claim that its session does not hold any more; `not_here` when the copy here does not have
    /// it.
    fn fate(&self, task: TaskId, fence: Fence, not_here: Fate) -> Fate {
        if self.groups.known(task).is_err() {
            return Fate::Lost;
        }
        match self.groups.look(task.shard(), |state| state.task(task)) {
            None => not_here,
            Some(view) if view.fence < fence => not_here,
            Some(view) if view.fence > fence => Fate::Lost,
            Some(view) => match view.state {
                StateKind::Claimed if view.claim.is_some_and(|claim| claim.cancel_requested) => Fate::Lost,
                // The worker ended it itself: its beat crossed the answer.
                StateKind::Claimed | StateKind::Done | StateKind::Retrying => Fate::Fine,
                // `dead` and `failed` too, by the last deadline or as a poison pill: whoever ended it itself does not
                // mind to hear it.
                _ => Fate::Lost,
            },
        }
    }

    /// Ends a worker's sessions and lists the worker no more, also when the caller goes away.
    /// [`Error::Timeout`] when some claims are not freed yet: the leaders of their shards will.
    pub(crate) async fn part_with(
        self: &Arc<Inner>,
        worker: &WorkerName,
        reason: FreedReason,
    ) -> Result<Answer<u64>, Error> {
        let sessions = self.sessions.all_of(worker);
        if sessions.is_empty() {
            return Err(Error::UnknownWorker { worker: worker.clone() });
        }
        let inner = self.clone();
        let ended = Carried::new(async move {
            let ends = sessions.iter().map(|session| inner.end_session(session, reason));
            futures::future::join_all(ends).await
        });
        let mut answer = Answer { value: 0, indexes: Vec::new() };
        for ended in ended.await {
            // The session is over already: whoever hears that nothing was changed would hear wrong.
            let ended = ended.map_err(|_| Error::Timeout)?;
            answer.value += ended.value;
            answer.indexes.extend(ended.indexes);
        }
        Ok(answer)
    }

    /// The same as [`Inner::end_session`], by itself.
    fn end_session_later(self: &Arc<Inner>, session: Arc<Session>, reason: FreedReason) {
        let inner = self.clone();
        self.tasks.spawn(async move {
            if let Err(error) = inner.end_session(&session, reason).await {
                tracing::debug!(worker = %session.name, %error, "claims not freed yet");
            }
        });
    }

    /// Ends a session because somebody wants it, and frees its claims in all shards. How many there were.
    /// What this node does not get done, the leaders do: all nodes are told.
    pub(crate) async fn end_session(
        self: &Arc<Inner>,
        session: &Arc<Session>,
        reason: FreedReason,
    ) -> Result<Answer<u64>, Error> {
        let mut answer = Answer { value: 0, indexes: Vec::new() };
        let is_first = self.sessions.begin_end(session, reason, self.now());
        self.sessions.changed.add(session.id, false);
        // One that was lost, or that somebody else is ending, may hold claims still.
        let holds =
            |shard: &ShardId| self.groups.look(*shard, |state| state.session_last(session.id)).is_some();
        let mut shards: Vec<ShardId> = self.groups.all().filter(holds).collect();
        if mutant::planted(Mutant::SessionInOneShard) {
            shards.truncate(1);
        }
        let ends = shards.into_iter().map(|shard| async move {
            let end = Command::EndSession { worker: session.name.clone(), session: session.id, reason };
            (shard, self.groups.propose_one(shard, end).await)
        });
        let mut failed = None;
        for (shard, ended) in futures::future::join_all(ends).await {
            match ended {
                Ok((index, Reply::Count(freed))) => {
                    answer.value += freed;
                    answer.indexes.push((shard, index));
                }
                Ok(_) => unreachable!("the end of a session is answered by a count"),
                Err(error) => failed = Some(error),
            }
        }
        self.sessions.end(session, reason, answer.value, self.now());
        if is_first {
            if !is_loss(reason) {
                let worker = &session.name;
                tracing::info!(%worker, reason = reason.as_str(), tasks_freed = answer.value, "worker left");
            }
            self.tell_end(session);
        }
        failed.map_or(Ok(answer), Err)
    }

    /// Tells people that a session is over. Every node has its events; one of them logs and counts the loss.
    pub(crate) fn tell_end(&self, session: &Session) {
        let Some(over) = session.over() else { return };
        let (worker, reason, freed) = (&session.name, over.reason.as_str(), over.freed);
        let (is_lost, silent_for) = (is_loss(over.reason), session.silent_for(self.now()));
        let is_mine = self.leads(self.home(session.id)).is_some();
        if is_lost && is_mine {
            self.counters.workers_lost.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                %worker, reason, tasks_freed = freed, since_last_beat_ms = silent_for.0,
                "worker lost"
            );
        }
        let mut event =
            NodeEvent::new(self.clock.wall(), if is_lost { "worker_lost" } else { "worker_left" });
        event.worker = Some(worker.clone());
        event.reason = Some(reason);
        event.freed = Some(freed);
        event.since_last_beat = Some(silent_for);
        self.events.publish([event]);
    }
}

/// What became of a claim that a worker lists and its session does not hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is over in a way that the worker cannot know of.
    Lost,
    /// Our copy of the shard does not have it, yet or any more.
    Absent,
    /// Nothing that the worker does not know.
    Fine,
}

/// Tells other nodes of sessions, and frees the claims of lost ones, until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    tokio::join!(session_news::run(inner.clone()), freeing::run(inner));
}
