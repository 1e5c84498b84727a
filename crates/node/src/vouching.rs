//! Speaks for idle workers: one that holds nothing and has an open stream counts as heard, without a beat.
//!
//! Thousands of idle workers cost what changes about them. Which sessions hold claims is looked up only in shards
//! that have applied something; the other nodes are told once that a stream here speaks for a session, and from then
//! on with one short message for all of them that it still does (`Vouched` in `wire/src/gossip.rs`). Whoever holds a
//! claim must speak for itself.
//!
//! Next: `freeing.rs`, for whom nobody speaks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{Millis, NodeId, SessionId, ShardId, WallTime};
use parking_lot::Mutex;
use wire::gossip::Vouched;

use crate::inner::Inner;
use crate::registry::Registry;
use crate::session::Session;
use crate::session_news::Heard;

/// How often an idle worker counts as heard.
const VOUCH_EVERY: Millis = Millis(500);
/// Sessions listed in a shard at a time.
const STEP: usize = 2_000;

type Sessions = HashMap<SessionId, Arc<Session>>;

/// For whom streams speak.
#[derive(Default)]
pub(crate) struct Vouching {
    /// Sessions with streams here that would speak for them, and how many.
    open: Mutex<HashMap<SessionId, (Arc<Session>, u32)>>,
    /// How often that changed.
    changes: AtomicU64,
    /// Those of them that hold nothing.
    idle: Mutex<Arc<Idle>>,
    /// For whom other nodes speak.
    there: Mutex<HashMap<NodeId, There>>,
}

/// Idle sessions with streams here.
#[derive(Default)]
struct Idle {
    sessions: Sessions,
    /// When it was last looked, and found that these are.
    looked_at: AtomicU64,
}

impl Idle {
    /// How long ago it was looked. Whoever got a task and fell silent since is not spoken for.
    fn age(&self, now: Millis) -> Millis {
        Millis(now.0.saturating_sub(self.looked_at.load(Ordering::Relaxed)))
    }
}

/// For whom another node speaks, by its own word.
#[derive(Default)]
struct There {
    edition: u64,
    known: Sessions,
    /// Nobody told us of these yet.
    unknown: HashSet<SessionId>,
}

impl Vouching {
    /// A stream here speaks for this session from now on.
    pub(crate) fn begin(&self, session: &Arc<Session>) {
        self.open.lock().entry(session.id).or_insert_with(|| (session.clone(), 0)).1 += 1;
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// It does so no more.
    pub(crate) fn end(&self, session: SessionId) {
        let mut open = self.open.lock();
        if let Some((_, streams)) = open.get_mut(&session) {
            *streams -= 1;
            if *streams == 0 {
                open.remove(&session);
            }
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Another node is not heard any more: what it said must not be built upon.
    pub(crate) fn forget(&self, node: NodeId) {
        self.there.lock().remove(&node);
    }

    fn idle(&self) -> Arc<Idle> {
        self.idle.lock().clone()
    }
}

/// Which sessions hold claims in a shard, as of an index.
#[derive(Default)]
struct Holders {
    applied: u64,
    sessions: HashSet<SessionId>,
}

/// Speaks for this node's idle workers, now and then.
#[derive(Default)]
pub(crate) struct Voucher {
    last: Millis,
    holders: HashMap<ShardId, Holders>,
    changes: u64,
}

impl Voucher {
    /// Hears the idle workers with streams here, if it is time.
    pub(crate) fn vouch(&mut self, inner: &Inner, now: Millis) {
        if now.0.saturating_sub(self.last.0) < VOUCH_EVERY.0 {
            return;
        }
        self.last = now;
        let vouching = &inner.sessions.vouching;
        if vouching.open.lock().is_empty() && vouching.idle().sessions.is_empty() {
            return;
        }
        // Before anything is looked at: what changes meanwhile is seen the next time.
        let changes = vouching.changes.load(Ordering::Relaxed);
        let has_changed = self.look(inner);
        if has_changed || changes != self.changes {
            self.changes = changes;
            self.sort_out(vouching, now);
        }
        let (idle, wall) = (vouching.idle(), inner.clock.wall());
        idle.looked_at.store(now.0, Ordering::Relaxed);
        for session in idle.sessions.values() {
            session.vouched_for(Millis(0), now, wall);
        }
    }

    /// Learns who holds claims. Whether that has changed.
    fn look(&mut self, inner: &Inner) -> bool {
        let mut has_changed = false;
        for shard in inner.groups.all() {
            let holders = self.holders.entry(shard).or_default();
            let applied = inner.groups.shard(shard).applied();
            if holders.applied == applied {
                continue;
            }
            holders.applied = applied;
            let mut sessions = HashSet::with_capacity(holders.sessions.len());
            let mut from = Some(SessionId(0));
            while let Some(first) = from {
                let step = inner.groups.look(shard, |state| state.holders_from(first, STEP));
                from = step.last().and_then(|last| last.0.checked_add(1)).map(SessionId);
                sessions.extend(step);
            }
            has_changed |= holders.sessions != sessions;
            holders.sessions = sessions;
        }
        has_changed
    }

    /// Finds those with streams here that hold nothing.
    fn sort_out(&self, vouching: &Vouching, now: Millis) {
        let holds = |id: &SessionId| self.holders.values().any(|holders| holders.sessions.contains(id));
        let open = vouching.open.lock();
        let idle = open.iter().filter(|(id, (session, _))| !session.is_over() && !holds(id));
        let sessions: Sessions = idle.map(|(id, (session, _))| (*id, session.clone())).collect();
        drop(open);
        *vouching.idle.lock() = Arc::new(Idle { sessions, looked_at: AtomicU64::new(now.0) });
    }
}

/// What this node has told the others of its idle workers.
pub(crate) struct VouchedTold {
    /// Which of its words was the last. No two processes begin with the same.
    edition: u64,
    idle: Arc<Idle>,
}

impl Default for VouchedTold {
    fn default() -> VouchedTold {
        VouchedTold { edition: rand::random(), idle: Arc::default() }
    }
}

impl VouchedTold {
    /// What those who heard the last word are told now. Nothing while there is nobody to speak for.
    pub(crate) fn next(&mut self, vouching: &Vouching, now: Millis) -> Option<Vouched> {
        let before = std::mem::replace(&mut self.idle, vouching.idle());
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        if !Arc::ptr_eq(&before, &self.idle) {
            let only_in = |one: &Sessions, other: &Sessions| {
                one.keys().filter(|id| !other.contains_key(id)).copied().collect()
            };
            removed = only_in(&before.sessions, &self.idle.sessions);
            added = only_in(&self.idle.sessions, &before.sessions);
        }
        let is_change = !added.is_empty() || !removed.is_empty();
        if is_change {
            self.edition = self.edition.wrapping_add(1);
        }
        let has_words = is_change || !self.idle.sessions.is_empty();
        let age = self.idle.age(now);
        has_words.then_some(Vouched { edition: self.edition, is_whole: false, added, removed, age })
    }

    /// What somebody is told who did not hear the last word: the same, as old as it is.
    pub(crate) fn whole(&self, now: Millis) -> Vouched {
        let added = self.idle.sessions.keys().copied().collect();
        let age = self.idle.age(now);
        Vouched { edition: self.edition, is_whole: true, added, removed: Vec::new(), age }
    }
}

impl Registry {
    /// Hears for whom another node speaks. False when a word before this one was not heard: it shall tell everything.
    pub(crate) fn hear_vouched(
        &self,
        from: NodeId,
        told: &Vouched,
        now: Millis,
        wall: WallTime,
        heard: &mut Heard,
    ) -> bool {
        let mut there = self.vouching.there.lock();
        let there = there.entry(from).or_default();
        if told.is_whole {
            *there = There { edition: told.edition, ..There::default() };
        } else {
            let is_change = !told.added.is_empty() || !told.removed.is_empty();
            let expected = there.edition.wrapping_add(u64::from(is_change));
            if told.edition != expected {
                // Whoever is no more spoken for may be among them.
                *there = There::default();
                return false;
            }
        }
        there.edition = told.edition;
        for id in &told.removed {
            there.known.remove(id);
            there.unknown.remove(id);
        }
        there.unknown.extend(&told.added);
        let There { known, unknown, .. } = there;
        unknown.retain(|id| match self.known(*id) {
            Some(session) => {
                known.insert(*id, session);
                false
            }
            None => {
                heard.ask.push(*id);
                true
            }
        });
        for session in known.values() {
            match session.is_over() {
                true => heard.tell.push(session.id),
                false => session.vouched_for(told.age, now, wall),
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::WorkerFacts;
    use model::{FreedReason, WorkerName};

    const WALL: WallTime = WallTime::MAX;
    const ME: NodeId = NodeId(1);

    fn session(registry: &Registry, id: u128) -> Arc<Session> {
        let facts = WorkerFacts::named(WorkerName::new(&format!("w{id}")).unwrap());
        registry.add(Session::new(SessionId(id), facts, Millis(0), WALL), 9).unwrap()
    }

    /// Says which sessions with streams hold claims.
    fn hold(voucher: &mut Voucher, vouching: &Vouching, holders: &[u128]) {
        let sessions = holders.iter().copied().map(SessionId).collect();
        voucher.holders.insert(ShardId::new(1).unwrap(), Holders { applied: 1, sessions });
        voucher.sort_out(vouching, Millis(0));
    }

    fn hear(registry: &Registry, told: Option<Vouched>, at: u64) -> (bool, Heard) {
        let mut heard = Heard::default();
        let told = told.expect("there is somebody to speak for");
        let is_understood = registry.hear_vouched(ME, &told, Millis(at), WALL, &mut heard);
        (is_understood, heard)
    }

    fn silent_for(registry: &Registry, id: u128, at: u64) -> u64 {
        registry.known(SessionId(id)).unwrap().silent_for(Millis(at)).0
    }

    #[test]
    fn whoever_is_idle_is_told_once_and_heard_again_with_every_word() {
        let (here, there) = (Registry::default(), Registry::default());
        let (mut voucher, mut told) = (Voucher::default(), VouchedTold::default());
        assert_eq!(told.next(&here.vouching, Millis(0)), None, "nobody to speak for");
        for id in [1, 2] {
            session(&there, id);
            here.vouching.begin(&session(&here, id));
        }
        hold(&mut voucher, &here.vouching, &[]);
        let (is_understood, _) = hear(&there, told.next(&here.vouching, Millis(0)), 100);
        assert!(!is_understood, "it does not know what was said before");
        assert_eq!(silent_for(&there, 1, 100), 100, "and does not build upon it");
        assert!(hear(&there, Some(told.whole(Millis(0))), 200).0);
        let again = told.next(&here.vouching, Millis(0)).unwrap();
        assert!(again.added.is_empty() && again.removed.is_empty(), "what did not change is not said again");
        assert!(hear(&there, Some(again), 300).0);
        assert_eq!([1, 2].map(|id| silent_for(&there, id, 400)), [100, 100]);

        // One of them holds a claim: it must speak for itself.
        hold(&mut voucher, &here.vouching, &[2]);
        assert!(hear(&there, told.next(&here.vouching, Millis(0)), 500).0);
        assert_eq!([1, 2].map(|id| silent_for(&there, id, 500)), [0, 200]);
        // It has ended it, and a third one comes that was not heard of.
        here.vouching.begin(&session(&here, 3));
        hold(&mut voucher, &here.vouching, &[]);
        let (is_understood, heard) = hear(&there, told.next(&here.vouching, Millis(0)), 600);
        assert!(is_understood && heard.ask == [SessionId(3)], "{:?}", heard.ask);
        session(&there, 3);
        assert!(hear(&there, told.next(&here.vouching, Millis(0)), 700).1.ask.is_empty());
        assert_eq!([1, 2, 3].map(|id| silent_for(&there, id, 700)), [0; 3]);

        // What is told late counts from when it was looked.
        let late = told.next(&here.vouching, Millis(40));
        assert!(hear(&there, late, 760).0);
        assert_eq!(silent_for(&there, 1, 760), 40);

        // All streams end.
        (1..=3).for_each(|id| here.vouching.end(SessionId(id)));
        hold(&mut voucher, &here.vouching, &[]);
        assert!(hear(&there, told.next(&here.vouching, Millis(0)), 800).0);
        assert_eq!([1, 2, 3].map(|id| silent_for(&there, id, 800)), [80; 3]);
        assert_eq!(told.next(&here.vouching, Millis(0)), None);
    }

    #[test]
    fn a_word_that_was_missed_is_noticed_and_an_end_that_was_missed_is_told() {
        let (here, there) = (Registry::default(), Registry::default());
        let (mut voucher, mut told) = (Voucher::default(), VouchedTold::default());
        for id in [1, 2] {
            session(&there, id);
            here.vouching.begin(&session(&here, id));
        }
        hold(&mut voucher, &here.vouching, &[]);
        told.next(&here.vouching, Millis(0));
        assert!(hear(&there, Some(told.whole(Millis(0))), 100).0);
        hold(&mut voucher, &here.vouching, &[1]);
        told.next(&here.vouching, Millis(0));
        let (is_understood, _) = hear(&there, told.next(&here.vouching, Millis(0)), 200);
        assert!(!is_understood, "a word was lost");
        assert_eq!([1, 2].map(|id| silent_for(&there, id, 200)), [100, 100]);
        there.end(&there.known(SessionId(2)).unwrap(), FreedReason::PutBack, 0, Millis(200));
        let (is_understood, heard) = hear(&there, Some(told.whole(Millis(0))), 300);
        assert!(is_understood && heard.tell == [SessionId(2)], "{:?}", heard.tell);
        there.vouching.forget(ME);
        assert!(
            !hear(&there, told.next(&here.vouching, Millis(0)), 400).0,
            "after a lost link all is told anew"
        );
    }

    #[test]
    fn a_session_with_two_streams_is_spoken_for_until_both_have_ended() {
        let here = Registry::default();
        let (mut voucher, session) = (Voucher::default(), session(&here, 1));
        here.vouching.begin(&session);
        here.vouching.begin(&session);
        here.vouching.end(session.id);
        hold(&mut voucher, &here.vouching, &[]);
        assert_eq!(here.vouching.idle().sessions.len(), 1);
        here.vouching.end(session.id);
        hold(&mut voucher, &here.vouching, &[]);
        assert!(here.vouching.idle().sessions.is_empty());
    }

    #[test]
    fn whoever_is_told_everything_hears_no_more_than_was_seen() {
        let here = Registry::default();
        let (mut voucher, mut told) = (Voucher::default(), VouchedTold::default());
        here.vouching.begin(&session(&here, 1));
        hold(&mut voucher, &here.vouching, &[]);
        told.next(&here.vouching, Millis(0));
        // It gets a task, and that is seen; then somebody comes who is to be told everything.
        let sessions = HashSet::from([SessionId(1)]);
        voucher.holders.insert(ShardId::new(1).unwrap(), Holders { applied: 2, sessions });
        voucher.sort_out(&here.vouching, Millis(400));
        let whole = told.whole(Millis(450));
        assert_eq!((whole.added, whole.age), (vec![SessionId(1)], Millis(450)), "it was idle 450 ms ago");
        let next = told.next(&here.vouching, Millis(500)).unwrap();
        assert_eq!((next.removed, next.age), (vec![SessionId(1)], Millis(100)));
    }
}
