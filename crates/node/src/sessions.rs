//! Sessions: beats outside the log, and what follows when they stop.
//!
//! The node that hears a worker owns its session. It never writes a beat to a log; it proposes the end
//! of a session to the shards that hold claims of it: in order (drained), because its held stream broke
//! (closed), because it fell silent, or because a person removed it (put back). Once a second it asks the
//! shards whether they hold claims of a session that does not live, and ends those too.
//!
//! A session is marked as over before its end is proposed. A claim under way checks that mark after its
//! commit, so either the end comes after the claim in the log and frees it, or the claim gives itself
//! back (`waiting.rs`). Next: `workers.rs`, what people see and do.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use model::{
    Command, Fence, FreedReason, Millis, Reply, SessionId, ShardId, StateKind, TaskId, WorkerName, limits,
};
use state_machine::view::SessionClaim;
use tokio::sync::watch;

use crate::call::{Answer, BeatAnswer, WorkerFacts, WorkerState};
use crate::error::Error;
use crate::events::NodeEvent;
use crate::inner::{Inner, Node};
use crate::session::{Asked, Session};
use crate::taken::{Carried, Return};

/// How often silence is looked for. With 2.5 s of silence and a commit, well within 3 s.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// When a look comes this late, it was the node that was silent.
const STOOD_STILL: Millis = Millis(1_000);
/// Between two tries to end a session in a shard without a leader.
const BACKOFF: Duration = Duration::from_millis(100);
/// How often the shards are asked for claims of sessions that are over.
const SWEEP_EVERY: Millis = Millis(1_000);

impl Node {
    /// Takes a worker in, or goes on with the session that it names.
    pub async fn register(&self, facts: WorkerFacts) -> Result<(SessionId, WorkerState), Error> {
        let inner = &self.inner;
        if let Some(id) = facts.session
            && let Some(session) = inner.resume(&facts.name, id)?
        {
            session.heard(inner.now(), inner.clock.wall());
            *session.facts.write() = facts;
            return Ok((session.id, session.state()));
        }
        let id = SessionId(rand::random());
        if let (_, Some(before)) = inner.add_session(id, facts)? {
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
        let inner = &self.inner;
        if running.len() > limits::BEAT_CLAIMS_MAX {
            return Err(Error::Invalid(format!(
                "a beat lists {} tasks: list at most {}",
                running.len(),
                limits::BEAT_CLAIMS_MAX
            )));
        }
        let session = inner.session(worker, session)?;
        let now = inner.now();
        session.heard(now, inner.clock.wall());
        inner.sessions.heard(&session);
        let held = inner.claims_of(session.id);
        let listed: HashSet<(TaskId, Fence)> = running.into_iter().collect();
        let missing = held.iter().map(|claim| (claim.task, claim.fence));
        let missing = missing.filter(|claim| !listed.contains(claim)).collect();
        for (task, fence) in session.unlisted(missing, now) {
            tracing::info!(%worker, %task, %fence, "claim given back: its worker does not know of it");
            let _ = inner.returns.send(Return { task, fence });
        }
        Ok(BeatAnswer { state: session.state(), cancel: inner.to_cancel(&held, &listed) })
    }

    /// Holds a session's stream. When what this returns is dropped, the session ends as closed, unless
    /// a later stream took its place or the node stops.
    pub async fn hold_session(
        &self,
        worker: &WorkerName,
        session: SessionId,
    ) -> Result<SessionStream, Error> {
        let inner = &self.inner;
        let session = inner.session(worker, session)?;
        session.heard(inner.now(), inner.clock.wall());
        let number = session.next_stream();
        let mut asked = session.subscribe();
        // The state as it is now is news to a new stream.
        asked.mark_changed();
        Ok(SessionStream { inner: inner.clone(), session, number, asked })
    }

    /// Ends a worker's session in order: its claims wait again, and no attempt is used up. How many there
    /// were.
    pub async fn end_session(&self, worker: &WorkerName) -> Result<Answer<u64>, Error> {
        self.inner.part_with(worker, FreedReason::Drained).await
    }
}

/// A worker's held stream.
pub struct SessionStream {
    inner: Arc<Inner>,
    session: Arc<Session>,
    number: u64,
    asked: watch::Receiver<Asked>,
}

impl SessionStream {
    /// What the worker shall do, now and whenever that changes; nothing when the session has ended.
    pub async fn next(&mut self) -> Option<BeatAnswer> {
        tokio::select! {
            changed = self.asked.changed() => changed.ok()?,
            () = self.inner.stopping.cancelled() => return None,
        }
        let asked = *self.asked.borrow_and_update();
        if asked.over.is_some() || asked.stream != self.number {
            return None;
        }
        let held = self.inner.claims_of(self.session.id);
        let cancel = held.iter().filter(|claim| claim.cancel_requested);
        Some(BeatAnswer {
            state: asked.state,
            cancel: cancel.map(|claim| (claim.task, claim.fence)).collect(),
        })
    }
}

impl Drop for SessionStream {
    fn drop(&mut self) {
        if self.inner.stopping.is_cancelled()
            || self.session.is_over()
            || !self.session.is_stream(self.number)
        {
            return;
        }
        self.inner.end_session_later(self.session.clone(), FreedReason::Closed);
    }
}

impl Inner {
    /// The live session of a worker, or the one that a shard still knows.
    fn session(self: &Arc<Inner>, worker: &WorkerName, id: SessionId) -> Result<Arc<Session>, Error> {
        self.resume(worker, id)?.ok_or_else(|| Error::UnknownWorker { worker: worker.clone() })
    }

    /// A worker's last session.
    pub(crate) fn worker_session(&self, worker: &WorkerName) -> Result<Arc<Session>, Error> {
        self.sessions.last_of(worker).ok_or_else(|| Error::UnknownWorker { worker: worker.clone() })
    }

    /// Goes on with a session: one that lives here, or one whose claims a shard still has.
    fn resume(self: &Arc<Inner>, worker: &WorkerName, id: SessionId) -> Result<Option<Arc<Session>>, Error> {
        if let Some(session) = self.sessions.of(worker, id) {
            return Ok(Some(session));
        }
        if self.sessions.has_ended(id) {
            return Ok(None);
        }
        let known = |shard| {
            self.groups.look(shard, |state| {
                !state.session_claims(id).is_empty()
                    && state.sessions().iter().any(|(session, name)| *session == id && name == worker)
            })
        };
        if !self.groups.all().any(known) {
            return Ok(None);
        }
        // Another live session of this worker stays: which of them is silent will show.
        self.add_session(id, WorkerFacts::named(worker.clone())).map(|(session, _)| Some(session))
    }

    /// Adds a session. It, and the live one of the same worker that it takes the place of.
    fn add_session(
        &self,
        id: SessionId,
        facts: WorkerFacts,
    ) -> Result<(Arc<Session>, Option<Arc<Session>>), Error> {
        let session = Arc::new(Session::new(id, facts, self.now(), self.clock.wall()));
        let before = self.sessions.add(session.clone())?;
        let mut event = NodeEvent::new(self.clock.wall(), "worker_registered");
        event.worker = Some(session.name.clone());
        self.events.publish([event]);
        Ok((session, before))
    }

    /// Finds the sessions that the shards know after a restart; their workers have 2.5 s to be heard.
    /// Of two sessions of one worker, one was about to be ended: its silence says which.
    pub(crate) fn adopt_sessions(&self) {
        for shard in self.groups.all() {
            for (id, worker) in self.groups.look(shard, |state| state.sessions()) {
                if self.sessions.by_id(id).is_none()
                    && let Err(error) = self.add_session(id, WorkerFacts::named(worker.clone()))
                {
                    tracing::warn!(%worker, %error, "session not taken up: its claims are freed as if it were silent");
                }
            }
        }
    }

    /// What a session holds, over all shards.
    pub(crate) fn claims_of(&self, session: SessionId) -> Vec<SessionClaim> {
        let of = |shard| self.groups.look(shard, |state| state.session_claims(session));
        self.groups.all().flat_map(of).collect()
    }

    /// Which of its tasks a worker shall stop: those to be cancelled, and those that it lost.
    fn to_cancel(&self, held: &[SessionClaim], listed: &HashSet<(TaskId, Fence)>) -> Vec<(TaskId, Fence)> {
        let asked = held.iter().filter(|claim| claim.cancel_requested);
        let mut cancel: Vec<(TaskId, Fence)> = asked.map(|claim| (claim.task, claim.fence)).collect();
        let held: HashSet<(TaskId, Fence)> = held.iter().map(|claim| (claim.task, claim.fence)).collect();
        for &(task, fence) in listed.difference(&held) {
            if self.is_lost(task, fence) {
                cancel.push((task, fence));
            }
        }
        cancel.sort_unstable();
        cancel
    }

    /// Whether a claim is over in a way that its worker cannot know of. One that the worker ended
    /// itself is not lost: its beat crossed the answer.
    fn is_lost(&self, task: TaskId, fence: Fence) -> bool {
        if self.groups.known(task).is_err() {
            return true;
        }
        match self.groups.look(task.shard(), |state| state.task(task)) {
            None => true,
            Some(view) if view.fence != fence => true,
            Some(view) => match view.state {
                StateKind::Claimed => view.claim.is_some_and(|claim| claim.cancel_requested),
                StateKind::Done | StateKind::Dead | StateKind::Failed | StateKind::Retrying => false,
                _ => true,
            },
        }
    }

    /// Ends a worker's last session and lists the worker no more, also when the caller goes away.
    pub(crate) async fn part_with(
        self: &Arc<Inner>,
        worker: &WorkerName,
        reason: FreedReason,
    ) -> Result<Answer<u64>, Error> {
        let session = self.worker_session(worker)?;
        let inner = self.clone();
        let ended = Carried::new(async move {
            let ended = inner.end_session(&session, reason).await;
            inner.sessions.forget(&session);
            ended
        });
        Ok(ended.await)
    }

    /// The same as [`Inner::end_session`], by itself.
    pub(crate) fn end_session_later(self: &Arc<Inner>, session: Arc<Session>, reason: FreedReason) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let inner = self.clone();
        runtime.spawn(self.tasks.track_future(async move {
            inner.end_session(&session, reason).await;
        }));
    }

    /// Ends a session and frees its claims in all shards. How many there were.
    pub(crate) async fn end_session(
        self: &Arc<Inner>,
        session: &Arc<Session>,
        reason: FreedReason,
    ) -> Answer<u64> {
        let mut answer = Answer { value: 0, indexes: Vec::new() };
        if !session.end(reason) {
            return answer;
        }
        let silent_for = session.silent_for(self.now());
        self.sessions.ended(session, reason, self.now());
        let holds =
            |shard: &ShardId| !self.groups.look(*shard, |state| state.session_claims(session.id)).is_empty();
        let shards: Vec<ShardId> = self.groups.all().filter(holds).collect();
        let ends = shards.into_iter().map(|shard| async move {
            let end = Command::EndSession { worker: session.name.clone(), session: session.id, reason };
            (shard, self.end_session_in(shard, end).await)
        });
        for (shard, ended) in futures::future::join_all(ends).await {
            if let Some((index, freed)) = ended {
                answer.value += freed;
                answer.indexes.push((shard, index));
            }
        }
        self.tell_end(session, reason, answer.value, silent_for);
        answer
    }

    /// Ends a session in one shard, however long that takes. Where in the log, and how many were freed.
    async fn end_session_in(&self, shard: ShardId, end: Command) -> Option<(u64, u64)> {
        loop {
            match self.groups.propose_one(shard, end.clone()).await {
                Ok((index, Reply::Count(freed))) => return Some((index, freed)),
                Ok(_) | Err(Error::Rejected(_)) => return None,
                Err(_) if self.stopping.is_cancelled() => return None,
                Err(_) => tokio::time::sleep(BACKOFF).await,
            }
        }
    }

    /// Frees the claims of sessions that a shard knows and that do not live here. There should be none:
    /// whatever was missed ends here, instead of with its deadline a day later.
    async fn sweep(&self) {
        let now = self.now();
        for shard in self.groups.all() {
            let known = self.groups.look(shard, |state| state.sessions());
            let over = known.into_iter().filter_map(|(session, worker)| {
                let reason = self.sessions.end_unless_live(session, &worker, now)?;
                Some(Command::EndSession { worker, session, reason })
            });
            let ends: Vec<Command> = over.take(limits::ENTRY_COMMANDS_MAX).collect();
            if ends.is_empty() {
                continue;
            }
            let sessions = ends.len();
            match self.groups.propose(shard, ends).await {
                Ok(_) => tracing::info!(%shard, sessions, "claims of sessions that are over were freed"),
                // The next sweep tries again.
                Err(error) => tracing::debug!(%shard, sessions, %error, "claims not freed yet"),
            }
        }
    }

    fn tell_end(&self, session: &Session, reason: FreedReason, freed: u64, silent_for: Millis) {
        let lost = matches!(reason, FreedReason::Silent | FreedReason::Closed);
        let worker = &session.name;
        if lost {
            self.counters.workers_lost.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                %worker, reason = reason.as_str(), tasks_freed = freed, since_last_beat_ms = silent_for.0,
                "worker lost"
            );
        } else {
            tracing::info!(%worker, reason = reason.as_str(), tasks_freed = freed, "worker left");
        }
        let mut event = NodeEvent::new(self.clock.wall(), if lost { "worker_lost" } else { "worker_left" });
        event.worker = Some(worker.clone());
        event.reason = Some(reason.as_str());
        event.freed = Some(freed);
        event.since_last_beat = Some(silent_for);
        self.events.publish([event]);
    }
}

/// Looks for silent workers until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = inner.now();
    // After a start, workers have time to be heard first.
    let mut swept = Millis(last.0 + limits::SILENCE.0);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = inner.stopping.cancelled() => return,
        }
        let now = inner.now();
        let late = now.0.saturating_sub(last.0);
        last = now;
        if late >= STOOD_STILL.0 {
            // Beats may wait unread: the count begins anew, as after a restart.
            tracing::warn!(for_ms = late, "this node stood still: its workers get time to be heard");
            inner.sessions.pick(|session| {
                session.not_heard_before(now);
                false
            });
            continue;
        }
        for session in inner.sessions.pick(|session| session.silent_for(now) >= limits::SILENCE) {
            inner.end_session_later(session, FreedReason::Silent);
        }
        inner.sessions.prune(now);
        if now.0.saturating_sub(swept.0) >= SWEEP_EVERY.0 {
            swept = now;
            // A shard that does not answer must not keep silence from being noticed.
            let _ = tokio::time::timeout(LOOK_EVERY, inner.sweep()).await;
        }
    }
}
