//! Which shards have a leader that can do something for callers of this node.
//!
//! A node that reaches no leader of what a claim asks for cannot say that nothing is ready: another node may do
//! better. All shards are looked at a few times a second, in one place, so that a claim that waits polls nothing.
//!
//! Next: `waiting.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use model::command::ClaimQueue;
use model::{ShardId, Spread};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::inner::Inner;

/// How often the leaders are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The shards without such a leader, as of the last look.
#[derive(Default)]
pub(crate) struct Reach {
    unreached: watch::Sender<BTreeSet<ShardId>>,
}

impl Reach {
    /// Whether a shard had such a leader at the last look.
    pub(crate) fn is_reached(&self, shard: ShardId) -> bool {
        !self.unreached.borrow().contains(&shard)
    }

    /// Returns when none of `shards` was reached for so `long`.
    pub(crate) async fn until_cut_off(&self, shards: &[ShardId], long: Duration) {
        let is_cut_off = |unreached: &BTreeSet<ShardId>| shards.iter().all(|shard| unreached.contains(shard));
        let mut unreached = self.unreached.subscribe();
        loop {
            // The sender lives as long as what is borrowed here.
            let _ = unreached.wait_for(is_cut_off).await;
            let reached = unreached.wait_for(|unreached| !is_cut_off(unreached));
            // Boxed: it seldom comes to that, and every claim that waits would keep room for it.
            if Box::pin(tokio::time::timeout(long, reached)).await.is_err() {
                return;
            }
        }
    }
}

impl Inner {
    /// The shards that may have something of these queues.
    pub(crate) fn shards_of(&self, queues: &[ClaimQueue]) -> Vec<ShardId> {
        let count = self.groups.count();
        let is_pinned = |queue: &ClaimQueue| self.policies.spread(&queue.name) == Spread::Pinned;
        match queues.iter().all(is_pinned) {
            true => queues.iter().map(|queue| ShardId::of_queue(&queue.name, count)).collect(),
            false => self.groups.all().collect(),
        }
    }

    /// Whether none of these shards has a leader that can do something for callers of this node.
    pub(crate) fn is_cut_off(&self, shards: &[ShardId]) -> bool {
        !shards.iter().any(|shard| self.reaches_leader_of(*shard))
    }

    fn reaches_leader_of(&self, shard: ShardId) -> bool {
        self.groups.leader_of(shard).is_some_and(|leader| {
            // Whether a quorum answers costs more to ask than who leads, and matters only here.
            (leader == self.node && self.reach.is_reached(shard))
                || self.is_reached(leader, || self.groups.shard(shard).status())
        })
    }
}

/// Looks at the leaders until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = inner.stopping.cancelled() => return,
        }
        let is_reached = |shard: &ShardId| {
            let leader = inner.groups.leader_of(*shard);
            leader.is_some_and(|leader| inner.is_reached(leader, || inner.groups.shard(*shard).status()))
        };
        let unreached: BTreeSet<ShardId> = inner.groups.all().filter(|shard| !is_reached(shard)).collect();
        inner.reach.unreached.send_if_modified(|known| {
            let is_news = *known != unreached;
            *known = unreached;
            is_news
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cut_off_is_who_reached_none_of_its_shards_all_the_time() {
        let [one, two] = [1, 2].map(|number| ShardId::new(number).unwrap());
        let (begin, long) = (tokio::time::Instant::now(), Duration::from_secs(1));
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let reach = Reach::default();
        let looks = async {
            for (ms, unreached) in [(0, vec![two]), (100, vec![one, two]), (200, vec![two])] {
                tokio::time::sleep_until(at(ms)).await;
                reach.unreached.send_replace(unreached.into_iter().collect());
            }
            tokio::time::sleep_until(at(500)).await;
            reach.unreached.send_replace([one, two].into());
        };
        let cut_off = async |shards: Vec<ShardId>| {
            reach.until_cut_off(&shards, long).await;
            tokio::time::Instant::now()
        };
        let ((), both, first, second) =
            tokio::join!(looks, cut_off(vec![one, two]), cut_off(vec![one]), cut_off(vec![two]));
        assert!(both >= at(1_500), "the first time it was not for long: {:?}", both - begin);
        assert!(first >= at(1_500), "{:?}", first - begin);
        assert!((at(1_000)..first).contains(&second), "all the time: {:?}", second - begin);
    }
}
