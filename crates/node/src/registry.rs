//! Which sessions there are, by worker and by id. Bookkeeping only. Next: `sessions.rs`.

use std::collections::HashMap;
use std::sync::Arc;

use model::{Millis, SessionId, WorkerName, limits};
use parking_lot::RwLock;

use crate::error::Error;
use crate::session::Session;

/// How long a lost worker is listed, and how long a session's end is remembered.
pub(crate) const LOST_LISTED: Millis = Millis::mins(10);

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
    /// Ended ones, and when: they must not come to life again while a shard still has to free their
    /// claims.
    ended: HashMap<SessionId, Millis>,
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

    /// Notes that a session has ended.
    pub(crate) fn ended(&self, session: &Session, now: Millis) {
        let mut sessions = self.inner.write();
        sessions.by_id.remove(&session.id);
        sessions.ended.insert(session.id, now);
    }

    /// Lists a worker no more, if this was its last session.
    pub(crate) fn forget(&self, session: &Session) {
        let mut sessions = self.inner.write();
        if sessions.by_name.get(&session.name).is_some_and(|last| last.id == session.id) {
            sessions.by_name.remove(&session.name);
        }
    }

    /// Forgets what ended long ago.
    pub(crate) fn prune(&self, now: Millis) {
        let mut sessions = self.inner.write();
        if sessions.ended.is_empty() {
            return;
        }
        let old: Vec<SessionId> = sessions
            .ended
            .iter()
            .filter(|(_, at)| now.0.saturating_sub(at.0) >= LOST_LISTED.0)
            .map(|(id, _)| *id)
            .collect();
        for id in old {
            sessions.ended.remove(&id);
            sessions.by_name.retain(|_, session| session.id != id);
        }
    }
}
