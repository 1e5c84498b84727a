//! Which sessions there are in the cluster, as far as this node knows. Bookkeeping only.
//!
//! Every node keeps all of them: those that it heard itself, those that others told it of, and for a while
//! those that ended, which must not come to life again. Next: `sessions.rs`, and `session_news.rs` for what
//! is told.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use model::{FreedReason, Millis, NodeId, SessionId, WallTime, WorkerName, limits};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use wire::gossip::SessionNews;

use crate::error::Error;
use crate::session::{Merged, Session, is_loss};
use crate::session_news::Asks;
use crate::vouching::Vouching;

/// How long a lost worker is listed, and how long a session's end is remembered.
pub(crate) const LOST_LISTED: Millis = Millis::mins(10);
/// Ends that are remembered, and so lost workers that are listed; the oldest are forgotten first.
pub(crate) const ENDED_MAX: usize = limits::SESSIONS_MAX / 10;
/// How long a worker waits to hear whether its session is over. A shard without a quorum leaves that open.
const END_WAIT: Duration = Duration::from_millis(250);

/// All sessions that a node knows.
#[derive(Default)]
pub(crate) struct Registry {
    inner: RwLock<Sessions>,
    /// What the other nodes are to be told at once.
    pub(crate) changed: Pending,
    /// Whose claims are to be looked at at once.
    pub(crate) alarms: Pending,
    /// Those whose end was proposed here.
    pub(crate) endings: Endings,
    /// Questions to other nodes.
    pub(crate) asks: Asks,
    /// For whom open streams speak, here and elsewhere.
    pub(crate) vouching: Vouching,
    /// Nodes that want to be told everything.
    pub(crate) newcomers: Mutex<BTreeSet<NodeId>>,
    /// When it was last said that there is no room.
    pub(crate) full_said: Mutex<Option<Millis>>,
}

#[derive(Default)]
struct Sessions {
    live: HashMap<SessionId, Arc<Session>>,
    /// They must not come to life again while a shard still has to free their claims.
    ended: HashMap<SessionId, Arc<Session>>,
    /// Live ones and lost ones of each worker; seldom more than one.
    by_name: BTreeMap<WorkerName, Vec<Arc<Session>>>,
    /// When those of `ended` were learned to have ended, in this order.
    ends: VecDeque<(Millis, SessionId)>,
}

/// Sessions that somebody shall look at, and a bell for it. Never more of them than there are sessions.
#[derive(Default)]
pub(crate) struct Pending {
    sessions: Mutex<HashMap<SessionId, bool>>,
    bell: Notify,
}

impl Pending {
    /// Adds a session, rung for at once. What was said to be `whole` once stays so.
    pub(crate) fn add(&self, session: SessionId, whole: bool) {
        *self.sessions.lock().entry(session).or_default() |= whole;
        self.ring();
    }

    /// Takes all of them.
    pub(crate) fn take(&self) -> HashMap<SessionId, bool> {
        std::mem::take(&mut self.sessions.lock())
    }

    /// Rings for whoever looks at them.
    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Returns when there may be some.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }
}

/// Sessions whose end this node has proposed, and does not know the outcome of yet.
#[derive(Default)]
pub(crate) struct Endings {
    sessions: Mutex<HashSet<SessionId>>,
    decided: Notify,
}

impl Endings {
    /// The ends of these are proposed.
    pub(crate) fn begin(&self, sessions: impl Iterator<Item = SessionId>) {
        self.sessions.lock().extend(sessions);
    }

    /// It is known what became of this one's end.
    pub(crate) fn decide(&self, session: SessionId) {
        self.sessions.lock().remove(&session);
        self.decided.notify_waiters();
    }

    /// Whether it is not known yet.
    pub(crate) fn is_under_way(&self, session: SessionId) -> bool {
        self.sessions.lock().contains(&session)
    }

    /// Waits, not for long, until it is known.
    pub(crate) async fn settled(&self, session: SessionId) {
        let settled = async {
            loop {
                let decided = self.decided.notified();
                if !self.is_under_way(session) {
                    return;
                }
                decided.await;
            }
        };
        let _ = tokio::time::timeout(END_WAIT, settled).await;
    }
}

/// What news did to the registry.
pub(crate) enum Learned {
    /// A session that was not known, with what merging did.
    New(Arc<Session>, Merged),
    /// One that was.
    Known(Arc<Session>, Merged),
    /// Too old to matter.
    TooOld,
    /// There is no room for it.
    Full,
}

/// What a beat heard elsewhere means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeardThere {
    /// A live session.
    Live,
    /// One that has ended, which the other node does not know.
    Over,
    /// Nobody told us of it.
    Unknown,
}

impl Sessions {
    fn get(&self, id: SessionId) -> Option<&Arc<Session>> {
        self.live.get(&id).or_else(|| self.ended.get(&id))
    }

    fn add(&mut self, session: Arc<Session>) {
        self.by_name.entry(session.name.clone()).or_default().push(session.clone());
        self.live.insert(session.id, session);
    }

    /// Moves a session that is over to where it belongs.
    fn bury(&mut self, session: &Arc<Session>) {
        let Some(over) = session.over() else { return };
        if self.live.remove(&session.id).is_some() {
            self.ended.insert(session.id, session.clone());
            self.ends.push_back((over.at, session.id));
        }
        while self.ends.len() > ENDED_MAX {
            self.forget_oldest();
        }
    }

    /// The same, and lists it only if it is lost.
    fn settle(&mut self, session: &Arc<Session>) {
        self.bury(session);
        if session.over().is_some_and(|over| !is_loss(over.reason)) {
            self.unlist(session);
        }
    }

    fn forget_oldest(&mut self) {
        let Some((_, id)) = self.ends.pop_front() else { return };
        if let Some(session) = self.ended.remove(&id) {
            self.unlist(&session);
        }
    }

    fn unlist(&mut self, session: &Session) {
        let Some(of_worker) = self.by_name.get_mut(&session.name) else { return };
        of_worker.retain(|other| other.id != session.id);
        if of_worker.is_empty() {
            self.by_name.remove(&session.name);
        }
    }
}

/// The one that a worker is known by: a live one, heard last.
fn last(of_worker: &[Arc<Session>]) -> Option<&Arc<Session>> {
    of_worker.iter().max_by_key(|session| (!session.is_over(), session.heard_last(), session.id))
}

impl Registry {
    /// The live session with this id, if it is that worker's.
    pub(crate) fn of(&self, worker: &WorkerName, id: SessionId) -> Option<Arc<Session>> {
        self.by_id(id).filter(|session| session.name == *worker)
    }

    /// The live session with this id.
    pub(crate) fn by_id(&self, id: SessionId) -> Option<Arc<Session>> {
        self.inner.read().live.get(&id).cloned()
    }

    /// The session with this id, live or ended.
    pub(crate) fn known(&self, id: SessionId) -> Option<Arc<Session>> {
        self.inner.read().get(id).cloned()
    }

    /// A worker's last session, live or lost.
    pub(crate) fn last_of(&self, worker: &WorkerName) -> Option<Arc<Session>> {
        last(self.inner.read().by_name.get(worker)?).cloned()
    }

    /// All live and lost sessions of a worker.
    pub(crate) fn all_of(&self, worker: &WorkerName) -> Vec<Arc<Session>> {
        self.inner.read().by_name.get(worker).cloned().unwrap_or_default()
    }

    /// The last session of every worker, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.page(None, usize::MAX)
    }

    /// The same of the workers that come `after` one, at most `limit`.
    pub(crate) fn page(&self, after: Option<&WorkerName>, limit: usize) -> Vec<Arc<Session>> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let sessions = self.inner.read();
        let rest = sessions.by_name.range::<WorkerName, _>((begin, Bound::Unbounded));
        rest.filter_map(|(_, of_worker)| last(of_worker).cloned()).take(limit).collect()
    }

    /// Looks at the last session of every worker, in no order, until `look` has seen enough.
    pub(crate) fn any_last(&self, mut look: impl FnMut(&Session) -> bool) -> bool {
        self.inner.read().by_name.values().filter_map(|of_worker| last(of_worker)).any(|last| look(last))
    }

    /// The live sessions for which `pick` says yes.
    pub(crate) fn pick(&self, pick: impl Fn(&Session) -> bool) -> Vec<Arc<Session>> {
        self.inner.read().live.values().filter(|session| pick(session)).cloned().collect()
    }

    /// Those that have ended.
    pub(crate) fn ended(&self) -> Vec<Arc<Session>> {
        self.inner.read().ended.values().cloned().collect()
    }

    /// How many are live.
    pub(crate) fn count(&self) -> usize {
        self.inner.read().live.len()
    }

    /// Whether this session has ended.
    #[cfg(test)]
    pub(crate) fn has_ended(&self, id: SessionId) -> bool {
        self.inner.read().ended.contains_key(&id)
    }

    /// Adds a session, if it is not known and there are fewer than `max`. The one that is known from now on.
    pub(crate) fn add(&self, session: Session, max: usize) -> Result<Arc<Session>, Error> {
        let mut sessions = self.inner.write();
        if let Some(known) = sessions.get(session.id) {
            return Ok(known.clone());
        }
        if sessions.live.len() >= max {
            return Err(Error::TooManyRequests { what: "sessions", max: Some(max) });
        }
        let session = Arc::new(session);
        sessions.add(session.clone());
        Ok(session)
    }

    /// Learns what another node says of a session.
    pub(crate) fn merge(&self, news: &SessionNews, now: Millis, wall: WallTime) -> Learned {
        let known = self.known(news.session);
        if let Some(session) = known {
            return self.merge_known(session, news, now, wall);
        }
        let age = news.over.map_or(news.age, |over| over.age);
        if age >= LOST_LISTED {
            return Learned::TooOld;
        }
        let mut sessions = self.inner.write();
        if let Some(session) = sessions.get(news.session).cloned() {
            drop(sessions);
            return self.merge_known(session, news, now, wall);
        }
        if sessions.live.len() >= limits::SESSIONS_TOLD_MAX {
            return Learned::Full;
        }
        let session = Arc::new(Session::told(news, now, wall));
        sessions.add(session.clone());
        sessions.settle(&session);
        let lacks_facts = news.facts.is_none() && news.facts_edition.number > 0;
        let is_alarm = news.over.is_some() || news.closed.is_some();
        Learned::New(session, Merged { lacks_facts, is_alarm, ..Merged::default() })
    }

    fn merge_known(&self, session: Arc<Session>, news: &SessionNews, now: Millis, wall: WallTime) -> Learned {
        let merged = session.merge(news, now, wall);
        if news.over.is_some() {
            self.settle(&session);
        }
        Learned::Known(session, merged)
    }

    /// Another node heard this session's worker, so long ago.
    pub(crate) fn heard_there(&self, id: SessionId, age: Millis, now: Millis, wall: WallTime) -> HeardThere {
        let sessions = self.inner.read();
        match sessions.live.get(&id) {
            Some(session) => {
                session.heard_there(age, now, wall);
                HeardThere::Live
            }
            None if sessions.ended.contains_key(&id) => HeardThere::Over,
            None => HeardThere::Unknown,
        }
    }

    /// Begins to end a session, which stays listed until [`Registry::end`]. Whether it had not ended before.
    pub(crate) fn begin_end(&self, session: &Arc<Session>, reason: FreedReason, now: Millis) -> bool {
        let is_first = session.end(reason, 0, now);
        self.inner.write().bury(session);
        is_first
    }

    /// Ends a session. Whether it had not ended before; one that had may get a more deliberate end.
    pub(crate) fn end(&self, session: &Arc<Session>, reason: FreedReason, freed: u64, now: Millis) -> bool {
        let is_first = session.end(reason, freed, now);
        self.settle(session);
        is_first
    }

    fn settle(&self, session: &Arc<Session>) {
        self.inner.write().settle(session);
    }

    /// Forgets what ended long ago, and what was not heard for as long without anybody ending it. What
    /// still `holds` claims is not forgotten: it would be taken for a session that nobody knows.
    pub(crate) fn prune(&self, now: Millis, holds: impl Fn(SessionId) -> bool) {
        let is_old = |at: Millis| now.0.saturating_sub(at.0) >= LOST_LISTED.0;
        let forgotten = self.pick(|session| session.silent_for(now) >= LOST_LISTED && !holds(session.id));
        if forgotten.is_empty() && !self.inner.read().ends.front().is_some_and(|(at, _)| is_old(*at)) {
            return;
        }
        let mut sessions = self.inner.write();
        for session in forgotten {
            sessions.live.remove(&session.id);
            sessions.unlist(&session);
        }
        while let Some((_, id)) = sessions.ends.front().copied().filter(|(at, _)| is_old(*at)) {
            if holds(id) {
                sessions.ends.pop_front();
                sessions.ends.push_back((now, id));
            } else {
                sessions.forget_oldest();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::WorkerFacts;
    use wire::gossip;

    const WALL: WallTime = WallTime::MAX;

    fn named(name: &str, id: u128) -> Session {
        Session::new(SessionId(id), WorkerFacts::named(WorkerName::new(name).unwrap()), Millis(0), WALL)
    }

    fn lose(registry: &Registry, n: usize) -> Arc<Session> {
        let session = registry.add(named(&format!("w{n}"), n as u128), limits::SESSIONS_MAX).unwrap();
        assert!(registry.end(&session, FreedReason::Silent, 0, Millis(n as u64)));
        session
    }

    #[test]
    fn lost_workers_are_bounded_and_the_oldest_go_first() {
        let registry = Registry::default();
        let sessions: Vec<_> = (0..ENDED_MAX + 5).map(|n| lose(&registry, n)).collect();
        assert_eq!(registry.all().len(), ENDED_MAX);
        assert!(!registry.has_ended(sessions[4].id));
        assert!(registry.has_ended(sessions[5].id));
        registry.prune(Millis(LOST_LISTED.0 + 9), |_| false);
        assert_eq!(registry.all().len(), ENDED_MAX - 5);
    }

    #[test]
    fn a_lost_worker_whose_claims_wait_for_a_person_is_not_forgotten() {
        let registry = Registry::default();
        let (first, second) = (lose(&registry, 1), lose(&registry, 2));
        registry.prune(Millis(LOST_LISTED.0 + 9), |id| id == first.id);
        assert!(registry.has_ended(first.id) && !registry.has_ended(second.id));
        registry.prune(Millis(2 * LOST_LISTED.0 + 9), |_| false);
        assert!(!registry.has_ended(first.id));
        assert!(registry.all().is_empty());
    }

    #[test]
    fn of_two_live_sessions_of_a_worker_the_one_that_is_heard_is_listed() {
        let registry = Registry::default();
        let worker = WorkerName::new("w1").unwrap();
        let [first, second] = [1, 2].map(|id| registry.add(named("w1", id), 9).unwrap());
        assert_eq!(registry.last_of(&worker).unwrap().id, second.id);
        first.heard(Millis(1), WALL);
        assert_eq!(registry.last_of(&worker).unwrap().id, first.id);
        assert!(registry.of(&worker, second.id).is_some(), "the other lives on until it is silent");
        second.heard(Millis(2), WALL);
        registry.end(&second, FreedReason::Silent, 0, Millis(3));
        assert_eq!(registry.last_of(&worker).unwrap().id, first.id, "a live one before a lost one");
        assert_eq!(registry.all().len(), 1);
    }

    #[test]
    fn who_left_in_order_is_not_listed_but_remembered() {
        let registry = Registry::default();
        let lost = lose(&registry, 1);
        assert!(!registry.end(&lost, FreedReason::PutBack, 0, Millis(2)), "it was lost before");
        assert!(registry.all().is_empty());
        assert!(registry.has_ended(lost.id));
        assert!(registry.add(named("w1", lost.id.0), 9).unwrap().is_over(), "it does not come to life again");
    }

    #[test]
    fn a_full_registry_takes_nobody_in_but_knows_whom_it_knows() {
        let registry = Registry::default();
        registry.add(named("w1", 1), 1).unwrap();
        assert_eq!(registry.add(named("w2", 2), 1).err().unwrap().code(), "too_many_requests");
        assert_eq!(registry.add(named("w1", 1), 1).unwrap().id, SessionId(1));
    }

    #[test]
    fn a_session_nobody_hears_and_nobody_ends_is_forgotten() {
        let registry = Registry::default();
        registry.add(named("w1", 1), 9).unwrap();
        registry.add(named("w2", 2), 9).unwrap().heard(Millis(9), WALL);
        registry.prune(LOST_LISTED, |_| false);
        assert_eq!((registry.count(), registry.all().len()), (1, 1));
    }

    #[test]
    fn news_that_are_too_old_bring_nothing_to_life() {
        let registry = Registry::default();
        let news = named("w1", 1).news(true, Millis(0));
        let old = SessionNews { age: LOST_LISTED, ..news.clone() };
        assert!(matches!(registry.merge(&old, Millis(0), WALL), Learned::TooOld));
        let over = gossip::Over { reason: FreedReason::Silent, age: LOST_LISTED, freed: 0 };
        let ended = SessionNews { over: Some(over), ..news.clone() };
        assert!(matches!(registry.merge(&ended, Millis(0), WALL), Learned::TooOld));
        assert!(matches!(registry.merge(&news, Millis(0), WALL), Learned::New(..)));
        assert!(matches!(
            registry.merge(&ended, Millis(0), WALL),
            Learned::Known(_, Merged { ended: true, .. })
        ));
    }
}
