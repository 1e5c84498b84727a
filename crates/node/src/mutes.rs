//! Which queues of which shards are not worth a question for a moment.
//!
//! The copy here shows a task as ready that the shard's leader, on another node, has promised to somebody
//! else, or a shard has no leader at all. Asking again at once would bring the same answer, and asking at every
//! new task would lose to those who wait at the leader again and again. So the pair is left alone for a time,
//! twice as long after each question in vain; a question that brought something begins anew.
//!
//! Pure bookkeeping: whoever mutes a pair ends that when its time is over. Next: `waiting.rs`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use model::{QueueName, ShardId};
use parking_lot::Mutex;

/// How long a pair is left alone after the first question in vain, and at most.
const TIME_MIN: Duration = Duration::from_millis(1);
const TIME_MAX: Duration = Duration::from_millis(32);
/// Pairs that are remembered; when there are more, those whose time is over begin anew.
const PAIRS_MAX: usize = 10_000;

#[derive(Debug)]
struct Mute {
    /// Tells it from a later one. Nothing when its time is over.
    number: Option<u64>,
    /// How long the next one is, unless it is told.
    next: Duration,
}

/// All pairs that were asked in vain the last time.
#[derive(Debug, Default)]
pub(crate) struct Mutes {
    inner: Mutex<Inner>,
    /// How many of them. Mostly none: then nobody needs the lock.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inner {
    pairs: HashMap<(ShardId, QueueName), Mute>,
    last: u64,
}

impl Mutes {
    /// Leaves `queue` of `shard` alone, for at least `time_min`. The number that ends it and when that is;
    /// nothing when it was muted already.
    pub(crate) fn mute(
        &self,
        shard: ShardId,
        queue: &QueueName,
        time_min: Duration,
    ) -> Option<(u64, Duration)> {
        let mut inner = self.inner.lock();
        if inner.pairs.len() >= PAIRS_MAX {
            inner.pairs.retain(|_, mute| mute.number.is_some());
        }
        inner.last += 1;
        let number = inner.last;
        let pair = inner.pairs.entry((shard, queue.clone()));
        let mute = pair.or_insert(Mute { number: None, next: TIME_MIN });
        if mute.number.is_some() {
            return None;
        }
        let time = mute.next.max(time_min);
        *mute = Mute { number: Some(number), next: (mute.next * 2).min(TIME_MAX) };
        self.count.store(inner.pairs.len(), Ordering::Release);
        Some((number, time))
    }

    /// Whether `queue` of `shard` is left alone.
    pub(crate) fn is_muted(&self, shard: ShardId, queue: &QueueName) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let inner = self.inner.lock();
        inner.pairs.get(&(shard, queue.clone())).is_some_and(|mute| mute.number.is_some())
    }

    /// The time of this mute is over. Whether it still was one.
    pub(crate) fn end(&self, shard: ShardId, queue: &QueueName, number: u64) -> bool {
        let mut inner = self.inner.lock();
        match inner.pairs.get_mut(&(shard, queue.clone())) {
            Some(mute) if mute.number == Some(number) => {
                mute.number = None;
                true
            }
            _ => false,
        }
    }

    /// A question brought something: the next one in vain is the first.
    pub(crate) fn paid_off(&self, shard: ShardId, queue: &QueueName) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut inner = self.inner.lock();
        inner.pairs.remove(&(shard, queue.clone()));
        self.count.store(inner.pairs.len(), Ordering::Release);
    }

    /// The shard has another leader, who may answer otherwise.
    pub(crate) fn clear(&self, shard: ShardId) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut inner = self.inner.lock();
        inner.pairs.retain(|(of, _), _| *of != shard);
        self.count.store(inner.pairs.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_muted_stays_so_when_there_are_too_many() {
        let shard = ShardId::new(1).unwrap();
        let queue = |n: usize| QueueName::new(&format!("q{n}")).unwrap();
        let mutes = Mutes::default();
        mutes.mute(shard, &queue(0), Duration::ZERO).unwrap();
        for n in 1..=PAIRS_MAX {
            let (number, _) = mutes.mute(shard, &queue(n), Duration::ZERO).unwrap();
            mutes.end(shard, &queue(n), number);
        }
        assert!(mutes.is_muted(shard, &queue(0)));
        assert_eq!(mutes.count.load(Ordering::Acquire), 2);
    }

    #[test]
    fn a_mute_grows_until_a_question_pays_off_and_ends_with_its_time_or_with_the_leader() {
        let (queue, other) = (QueueName::new("mail").unwrap(), QueueName::new("reports").unwrap());
        let shard = |number| ShardId::new(number).unwrap();
        let mutes = Mutes::default();
        let is_muted = || mutes.is_muted(shard(1), &queue);
        let mute = || mutes.mute(shard(1), &queue, Duration::ZERO);
        let (first, time) = mute().unwrap();
        assert!(is_muted() && time == TIME_MIN);
        assert!(!mutes.is_muted(shard(2), &queue) && !mutes.is_muted(shard(1), &other));
        assert_eq!(mute(), None, "it is muted already");
        assert!(mutes.end(shard(1), &queue, first) && !is_muted());

        let (second, time) = mute().unwrap();
        assert_eq!(time, TIME_MIN * 2);
        assert!(!mutes.end(shard(1), &queue, first) && is_muted(), "not this one's end");
        assert!(mutes.end(shard(1), &queue, second));
        let long = Duration::from_millis(100);
        assert_eq!(mutes.mute(shard(1), &queue, long).unwrap().1, long, "as long as it was told");
        mutes.paid_off(shard(1), &queue);
        assert!(!is_muted());
        assert_eq!(mute().unwrap().1, TIME_MIN);

        mutes.clear(shard(2));
        assert!(is_muted());
        mutes.clear(shard(1));
        assert!(!is_muted());
        for _ in 0..20 {
            let (number, time) = mute().unwrap();
            assert!(time <= TIME_MAX);
            mutes.end(shard(1), &queue, number);
        }
    }
}
