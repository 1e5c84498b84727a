//! When a worker was last heard, and whose word counts.
//!
//! A worker speaks for itself by its beats, here or at another node. While it holds nothing, a node that has an open
//! stream of it speaks for it (`vouching.rs`). That node's copy of a shard may lag, so it may speak for a worker that
//! holds a claim by now: whoever leads the claim's shard knows better, and counts what the worker said itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use model::{Millis, WallTime};
use wire::gossip::SessionNews;

use crate::session::Session;

/// When one worker was last heard.
pub(crate) struct LastHeard {
    /// When it was heard or spoken for, wherever.
    at: AtomicU64,
    wall: AtomicU64,
    /// When it spoke itself, wherever.
    spoke_at: AtomicU64,
    /// One more than when it last spoke here; 0 when it never did.
    spoke_here: AtomicU64,
    /// It holds a claim in a shard that this node leads.
    must_speak: AtomicBool,
    /// A stream of it broke, at whichever node and however long ago.
    a_stream_broke: AtomicBool,
}

impl LastHeard {
    /// Its silence counts from `at` on.
    pub(crate) fn new(at: Millis, wall: WallTime) -> LastHeard {
        LastHeard {
            at: AtomicU64::new(at.0),
            wall: AtomicU64::new(wall.millis()),
            spoke_at: AtomicU64::new(at.0),
            spoke_here: AtomicU64::new(0),
            must_speak: AtomicBool::new(false),
            a_stream_broke: AtomicBool::new(false),
        }
    }

    /// Notes that a stream of it broke.
    pub(crate) fn stream_broke(&self) {
        self.a_stream_broke.store(true, Ordering::Release);
    }

    /// Whether a stream of it ever broke.
    pub(crate) fn did_a_stream_break(&self) -> bool {
        self.a_stream_broke.load(Ordering::Acquire)
    }

    fn note(&self, at: Millis, wall: WallTime) {
        if self.at.fetch_max(at.0, Ordering::Relaxed) <= at.0 {
            self.wall.store(wall.millis(), Ordering::Relaxed);
        }
    }

    fn spoke(&self, at: Millis, wall: WallTime) {
        self.spoke_at.fetch_max(at.0, Ordering::Relaxed);
        self.note(at, wall);
    }
}

fn before(age: Millis, now: Millis, wall: WallTime) -> (Millis, WallTime) {
    (Millis(now.0.saturating_sub(age.0)), WallTime::from_millis(wall.millis().saturating_sub(age.0)))
}

impl Session {
    /// The worker was heard here.
    pub(crate) fn heard(&self, now: Millis, wall: WallTime) {
        self.last_heard.spoke_here.fetch_max(now.0 + 1, Ordering::Relaxed);
        self.last_heard.spoke(now, wall);
    }

    /// The worker was heard by another node, so long ago.
    pub(crate) fn heard_there(&self, age: Millis, now: Millis, wall: WallTime) {
        let (at, wall) = before(age, now, wall);
        self.last_heard.spoke(at, wall);
    }

    /// A stream here, or another node, spoke for it so long ago. The other nodes are told so in their own way.
    pub(crate) fn vouched_for(&self, age: Millis, now: Millis, wall: WallTime) {
        if !self.last_heard.must_speak.load(Ordering::Relaxed) {
            let (at, wall) = before(age, now, wall);
            self.last_heard.note(at, wall);
        }
    }

    /// Learns when another node last heard it.
    pub(crate) fn merge_heard(&self, news: &SessionNews, now: Millis, wall: WallTime) {
        self.heard_there(news.spoken_age, now, wall);
        self.vouched_for(news.age, now, wall);
    }

    /// Whether it holds a claim in a shard that this node leads, and so must speak for itself.
    pub(crate) fn set_must_speak(&self, must_speak: bool) {
        self.last_heard.must_speak.store(must_speak, Ordering::Relaxed);
    }

    /// How old the last beat is that was heard here, if there was one since `since`.
    pub(crate) fn heard_here_since(&self, since: Millis, now: Millis) -> Option<Millis> {
        let heard = self.last_heard.spoke_here.load(Ordering::Relaxed).checked_sub(1)?;
        (heard >= since.0).then(|| Millis(now.0.saturating_sub(heard)))
    }

    /// When it was last heard by anybody, in this node's time.
    pub(crate) fn heard_last(&self) -> Millis {
        Millis(self.last_heard.at.load(Ordering::Relaxed))
    }

    /// How long it was not heard by anybody.
    pub(crate) fn silent_for(&self, now: Millis) -> Millis {
        Millis(now.0.saturating_sub(self.heard_last().0))
    }

    /// How long ago it spoke itself, to whomever.
    pub(crate) fn spoken_age(&self, now: Millis) -> Millis {
        Millis(now.0.saturating_sub(self.last_heard.spoke_at.load(Ordering::Relaxed)))
    }

    /// When it was last heard.
    pub(crate) fn last_beat(&self) -> WallTime {
        WallTime::from_millis(self.last_heard.wall.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::WorkerFacts;
    use model::{SessionId, WorkerName};

    fn session() -> Session {
        let facts = WorkerFacts::named(WorkerName::new("w1").unwrap());
        Session::new(SessionId(1), facts, Millis(0), WallTime::from_millis(0))
    }

    #[test]
    fn a_beat_heard_elsewhere_counts_by_its_age() {
        let session = session();
        session.heard_there(Millis(300), Millis(5_000), WallTime::from_millis(9_000));
        assert_eq!(session.silent_for(Millis(5_000)), Millis(300));
        assert_eq!(session.last_beat(), WallTime::from_millis(8_700));
        session.heard_there(Millis(900), Millis(5_000), WallTime::from_millis(9_000));
        assert_eq!(session.silent_for(Millis(5_000)), Millis(300), "older news change nothing");
        assert_eq!(session.last_beat(), WallTime::from_millis(8_700));
        assert_eq!(session.heard_here_since(Millis(0), Millis(5_000)), None);
        session.heard(Millis(6_000), WallTime::from_millis(10_000));
        assert_eq!(session.heard_here_since(Millis(6_000), Millis(6_100)), Some(Millis(100)));
        assert_eq!(session.heard_here_since(Millis(6_001), Millis(6_100)), None);
    }

    #[test]
    fn whoever_holds_a_claim_that_this_node_knows_of_must_speak_for_itself() {
        let (lagging, leader) = (session(), session());
        let wall = WallTime::from_millis(9_000);
        for one in [&lagging, &leader] {
            one.heard(Millis(1_000), wall);
        }
        // A node that does not have the claim yet speaks for its worker, and is asked about it.
        lagging.vouched_for(Millis(0), Millis(4_000), wall);
        assert_eq!(lagging.silent_for(Millis(4_000)), Millis(0));
        let news = lagging.news(true, Millis(4_000));
        leader.set_must_speak(true);
        leader.vouched_for(Millis(0), Millis(4_000), wall);
        leader.merge(&news, Millis(4_000), wall);
        assert_eq!(leader.silent_for(Millis(4_000)), Millis(3_000), "neither word counts");
        // What the worker says itself does, wherever.
        lagging.heard(Millis(4_100), wall);
        leader.merge(&lagging.news(true, Millis(4_200)), Millis(4_200), wall);
        assert_eq!(leader.silent_for(Millis(4_200)), Millis(100));
        leader.set_must_speak(false);
        leader.vouched_for(Millis(0), Millis(5_000), wall);
        assert_eq!(leader.silent_for(Millis(5_000)), Millis(0), "it holds nothing any more");
    }
}
