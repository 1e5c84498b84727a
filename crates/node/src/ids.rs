//! Ids of new tasks: in the order in which they were made, and never twice.

use model::{ShardId, TaskId, WallTime};
use parking_lot::Mutex;

/// Room for the ids of one millisecond above its random start.
const RANDOM_BITS: u32 = 62;

/// Makes task ids that only grow, even when the clock goes back.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    wall: u64,
    random: u64,
}

/// Ids that were set aside for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    wall: WallTime,
    next: u64,
}

impl Ids {
    /// Sets `count` ids aside.
    pub(crate) fn take(&self, now: WallTime, count: usize) -> Range {
        let count = count as u64;
        let mut last = self.last.lock();
        if now.millis() > last.wall {
            last.wall = now.millis();
            // The top bit stays free: a millisecond never runs out of ids.
            last.random = rand::random::<u64>() >> (64 - RANDOM_BITS + 1);
        }
        let next = last.random;
        last.random += count;
        Range { wall: WallTime::from_millis(last.wall), next }
    }
}

impl Range {
    /// The next id, in `shard`.
    pub(crate) fn next(&mut self, shard: ShardId) -> TaskId {
        let id = TaskId::new(shard, self.wall, self.next);
        self.next += 1;
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_grow_even_when_the_clock_goes_back() {
        let ids = Ids::default();
        let shard = ShardId::new(1).unwrap();
        let mut before = None;
        for wall in [1_000, 1_000, 1_001, 900, 1_001, 1_002] {
            let mut range = ids.take(WallTime::from_millis(wall), 3);
            for _ in 0..3 {
                let id = range.next(shard);
                assert!(before < Some(id), "{before:?} then {id:?}");
                before = Some(id);
            }
        }
    }
}
