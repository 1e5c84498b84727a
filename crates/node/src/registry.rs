//! Which sessions there are, by worker and by id. Bookkeeping only. Next: `sessions.rs`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use model::{FreedReason, Millis, SessionId, WorkerName, limits};
use parking_lot::RwLock;

use crate::error::Error;
use crate::session::Session;

/// How long a lost worker is listed, and how long a session's end is remembered.
pub(crate) const LOST_LISTED: Millis = Millis::mins(10);
/// Ends that are remembered, and so lost workers that are listed; the oldest are forgotten first.
pub(crate) const ENDED_MAX: usize = limits::SESSIONS_MAX / 10;

/// All sessions of a node.
#[derive(Default)]
pub(crate) struct Registry {
    inner: RwLock<Sessions>,
}

#[derive(Default)]
struct Sessions {
    /// The last session of each worker; a lost one stays for a while.
    by_name: HashMap<WorkerName, Arc<Session>>,
    /// Live ones.
    by_id: HashMap<SessionId, Arc<Session>>,
    /// Ended ones, and why: they must not come to life again while a shard still has to free their
    /// claims.
    ended: HashMap<SessionId, FreedReason>,
    /// The same in the order of their ends.
    ends: VecDeque<End>,
}

struct End {
    at: Millis,
    session: SessionId,
    worker: WorkerName,
}

impl Sessions {
    /// Remembers an end, and forgets the oldest when there are too many.
    fn remember(&mut self, session: SessionId, worker: &WorkerName, reason: FreedReason, at: Millis) {
        if self.ended.insert(session, reason).is_none() {
            self.ends.push_back(End { at, session, worker: worker.clone() });
        }
        while self.ends.len() > ENDED_MAX {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(end) = self.ends.pop_front() else { return };
        self.ended.remove(&end.session);
        self.unlist(end.session, &end.worker);
    }

    /// Lists a worker no more, if this was its last session.
    fn unlist(&mut self, session: SessionId, worker: &WorkerName) {
        if self.by_name.get(worker).is_some_and(|last| last.id == session) {
            self.by_name.remove(worker);
        }
    }
}

impl Registry {
    /// The live session of a call, which must be that worker's.
    pub(crate) fn live(
        &self,
        worker: &WorkerName,
        session: Option<SessionId>,
    ) -> Result<Option<Arc<Session>>, Error> {
        match session {
            None => Ok(None),
            Some(id) => match self.of(worker, id) {
                Some(session) => Ok(Some(session)),
                None => Err(Error::UnknownWorker { worker: worker.clone() }),
            },
        }
    }

    /// The live session with this id, if it is that worker's.
    pub(crate) fn of(&self, worker: &WorkerName, id: SessionId) -> Option<Arc<Session>> {
        self.inner.read().by_id.get(&id).filter(|session| session.name == *worker).cloned()
    }

    /// The live session with this id.
    pub(crate) fn by_id(&self, id: SessionId) -> Option<Arc<Session>> {
        self.inner.read().by_id.get(&id).cloned()
    }

    /// A worker's last session, live or lost.
    pub(crate) fn last_of(&self, worker: &WorkerName) -> Option<Arc<Session>> {
        self.inner.read().by_name.get(worker).cloned()
    }

    /// The last session of every worker, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        let mut all: Vec<Arc<Session>> = self.inner.read().by_name.values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// The live sessions for which `pick` says yes.
    pub(crate) fn pick(&self, pick: impl Fn(&Session) -> bool) -> Vec<Arc<Session>> {
        self.inner.read().by_id.values().filter(|session| pick(session)).cloned().collect()
    }

    /// How many are live.
    pub(crate) fn count(&self) -> usize {
        self.inner.read().by_id.len()
    }

    /// Whether this session has ended here.
    pub(crate) fn has_ended(&self, id: SessionId) -> bool {
        self.inner.read().ended.contains_key(&id)
    }

    /// Adds a session. The live one of the same worker that it replaces, which the caller must end.
    pub(crate) fn add(&self, session: Arc<Session>) -> Result<Option<Arc<Session>>, Error> {
        let mut sessions = self.inner.write();
        if sessions.by_id.len() >= limits::SESSIONS_MAX {
            return Err(Error::TooManyRequests { what: "sessions", max: Some(limits::SESSIONS_MAX) });
        }
        sessions.by_id.insert(session.id, session.clone());
        let before = sessions.by_name.insert(session.name.clone(), session);
        Ok(before.filter(|before| !before.is_over()))
    }

    /// Makes a worker's live session the one that is listed: it was heard, another may not have been.
    pub(crate) fn heard(&self, session: &Arc<Session>) {
        let is_last = |sessions: &Sessions| {
            sessions.by_name.get(&session.name).is_some_and(|last| last.id == session.id)
        };
        if is_last(&self.inner.read()) {
            return;
        }
        let mut sessions = self.inner.write();
        if sessions.by_id.contains_key(&session.id) {
            sessions.by_name.insert(session.name.clone(), session.clone());
        }
    }

    /// Notes that a session has ended.
    pub(crate) fn ended(&self, session: &Session, reason: FreedReason, now: Millis) {
        let mut sessions = self.inner.write();
        sessions.by_id.remove(&session.id);
        sessions.remember(session.id, &session.name, reason, now);
    }

    /// Why a session that a shard knows is over: as it ended here, or silent when nobody here has heard
    /// it. Nothing for a live one. From now on it cannot come to life.
    pub(crate) fn end_unless_live(
        &self,
        id: SessionId,
        worker: &WorkerName,
        now: Millis,
    ) -> Option<FreedReason> {
        if self.inner.read().by_id.contains_key(&id) {
            return None;
        }
        let mut sessions = self.inner.write();
        if sessions.by_id.contains_key(&id) {
            return None;
        }
        let reason = sessions.ended.get(&id).copied().unwrap_or(FreedReason::Silent);
        sessions.remember(id, worker, reason, now);
        Some(reason)
    }

    /// Lists a worker no more, if this was its last session.
    pub(crate) fn forget(&self, session: &Session) {
        self.inner.write().unlist(session.id, &session.name);
    }

    /// Forgets what ended long ago.
    pub(crate) fn prune(&self, now: Millis) {
        let is_old = |end: &End| now.0.saturating_sub(end.at.0) >= LOST_LISTED.0;
        if !self.inner.read().ends.front().is_some_and(is_old) {
            return;
        }
        let mut sessions = self.inner.write();
        while sessions.ends.front().is_some_and(is_old) {
            sessions.forget_oldest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::WorkerFacts;
    use model::WallTime;

    fn lose(registry: &Registry, n: usize) -> Arc<Session> {
        let facts = WorkerFacts::named(WorkerName::new(&format!("w{n}")).unwrap());
        let session =
            Arc::new(Session::new(SessionId(n as u128), facts, Millis(0), WallTime::from_millis(0)));
        registry.add(session.clone()).unwrap();
        session.end(FreedReason::Silent);
        registry.ended(&session, FreedReason::Silent, Millis(n as u64));
        session
    }

    #[test]
    fn lost_workers_are_bounded_and_the_oldest_go_first() {
        let registry = Registry::default();
        let sessions: Vec<_> = (0..ENDED_MAX + 5).map(|n| lose(&registry, n)).collect();
        assert_eq!(registry.all().len(), ENDED_MAX);
        assert!(!registry.has_ended(sessions[4].id));
        assert!(registry.has_ended(sessions[5].id));
        registry.prune(Millis(LOST_LISTED.0 + 9));
        assert_eq!(registry.all().len(), ENDED_MAX - 5);
    }

    #[test]
    fn of_two_live_sessions_of_a_worker_the_one_that_is_heard_is_listed() {
        let registry = Registry::default();
        let worker = WorkerName::new("w1").unwrap();
        let [first, second] = [1, 2].map(|id| {
            let facts = WorkerFacts::named(worker.clone());
            let session = Arc::new(Session::new(SessionId(id), facts, Millis(0), WallTime::from_millis(0)));
            registry.add(session.clone()).unwrap();
            session
        });
        assert_eq!(registry.last_of(&worker).unwrap().id, second.id);
        registry.heard(&first);
        assert_eq!(registry.last_of(&worker).unwrap().id, first.id);
        assert!(registry.of(&worker, second.id).is_some(), "the other lives on until it is silent");
        registry.ended(&second, FreedReason::Silent, Millis(1));
        registry.heard(&second);
        assert_eq!(registry.last_of(&worker).unwrap().id, first.id);
    }

    #[test]
    fn a_session_that_only_a_shard_knows_is_silent_and_stays_ended() {
        let registry = Registry::default();
        let worker = WorkerName::new("w1").unwrap();
        let unknown = SessionId(9);
        let silent = Some(FreedReason::Silent);
        assert_eq!(registry.end_unless_live(unknown, &worker, Millis(1)), silent);
        assert!(registry.has_ended(unknown));
        let session = Session::new(
            SessionId(1),
            WorkerFacts::named(worker.clone()),
            Millis(0),
            WallTime::from_millis(0),
        );
        let session = Arc::new(session);
        registry.add(session.clone()).unwrap();
        assert_eq!(registry.end_unless_live(session.id, &worker, Millis(2)), None);
        registry.ended(&session, FreedReason::Drained, Millis(3));
        let drained = Some(FreedReason::Drained);
        assert_eq!(registry.end_unless_live(session.id, &worker, Millis(4)), drained);
    }
}
