//! Which queues of which shards are not worth a question for a moment.
//!
//! The copy here shows a task as ready that the shard's leader, on another node, has promised to somebody
//! else, or a shard has no leader at all. Asking again at once would bring the same answer. So the pair is
//! left alone until something new is known of it, or its time is over.
//!
//! Pure bookkeeping: whoever mutes a pair ends that when its time is over. Next: `waiting.rs`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use model::{QueueName, ShardId};
use parking_lot::Mutex;

#[derive(Debug)]
struct Mute {
    /// Tells it from a later one.
    number: u64,
    /// What the answer had seen of the shard's log.
    index: u64,
}

/// All pairs that are left alone.
#[derive(Debug, Default)]
pub(crate) struct Mutes {
    inner: Mutex<Inner>,
    /// Shards with a muted queue. Mostly none: then nobody needs the lock.
    shards: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inner {
    by_shard: HashMap<ShardId, HashMap<QueueName, Mute>>,
    last: u64,
}

impl Mutes {
    /// Leaves `queue` of `shard` alone, whose log was seen up to `index`. The number that ends it; nothing
    /// when it was muted already.
    pub(crate) fn mute(&self, shard: ShardId, queue: &QueueName, index: u64) -> Option<u64> {
        let mut inner = self.inner.lock();
        inner.last += 1;
        let number = inner.last;
        let of_shard = inner.by_shard.entry(shard).or_default();
        if let Some(mute) = of_shard.get_mut(queue) {
            mute.index = mute.index.max(index);
            return None;
        }
        of_shard.insert(queue.clone(), Mute { number, index });
        self.count(&inner);
        Some(number)
    }

    /// Whether `queue` of `shard` is left alone.
    pub(crate) fn is_muted(&self, shard: ShardId, queue: &QueueName) -> bool {
        if self.shards.load(Ordering::Acquire) == 0 {
            return false;
        }
        let inner = self.inner.lock();
        inner.by_shard.get(&shard).is_some_and(|of_shard| of_shard.contains_key(queue))
    }

    /// The shard's log says at `index` that the queue has something: news, unless the answer had seen it.
    pub(crate) fn ready(&self, shard: ShardId, queue: &QueueName, index: u64) {
        self.remove_if(shard, queue, |mute| mute.index < index);
    }

    /// The time of this mute is over. Whether it still was one.
    pub(crate) fn end(&self, shard: ShardId, queue: &QueueName, number: u64) -> bool {
        self.remove_if(shard, queue, |mute| mute.number == number)
    }

    /// The shard has another leader, who may answer otherwise.
    pub(crate) fn clear(&self, shard: ShardId) {
        let mut inner = self.inner.lock();
        inner.by_shard.remove(&shard);
        self.count(&inner);
    }

    fn count(&self, inner: &Inner) {
        self.shards.store(inner.by_shard.len(), Ordering::Release);
    }

    fn remove_if(&self, shard: ShardId, queue: &QueueName, is_over: impl FnOnce(&Mute) -> bool) -> bool {
        if self.shards.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut inner = self.inner.lock();
        let Some(of_shard) = inner.by_shard.get_mut(&shard) else { return false };
        let is_over = of_shard.get(queue).is_some_and(is_over);
        if is_over {
            of_shard.remove(queue);
            if of_shard.is_empty() {
                inner.by_shard.remove(&shard);
                self.count(&inner);
            }
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mute_ends_with_its_time_with_news_or_with_the_leader() {
        let (queue, other) = (QueueName::new("mail").unwrap(), QueueName::new("reports").unwrap());
        let shard = |number| ShardId::new(number).unwrap();
        let mutes = Mutes::default();
        let is_muted = || mutes.is_muted(shard(1), &queue);
        let first = mutes.mute(shard(1), &queue, 10).unwrap();
        assert!(is_muted());
        assert!(!mutes.is_muted(shard(2), &queue) && !mutes.is_muted(shard(1), &other));

        mutes.ready(shard(1), &queue, 10);
        assert!(is_muted(), "the answer had seen that");
        assert_eq!(mutes.mute(shard(1), &queue, 12), None, "it is muted already");
        mutes.ready(shard(1), &queue, 12);
        assert!(is_muted(), "the second answer had seen that");
        mutes.ready(shard(1), &queue, 13);
        assert!(!is_muted(), "news");

        let second = mutes.mute(shard(1), &queue, 13).unwrap();
        assert!(!mutes.end(shard(1), &queue, first) && is_muted(), "not this one's end");
        assert!(mutes.end(shard(1), &queue, second) && !is_muted());

        mutes.mute(shard(1), &queue, 13);
        mutes.clear(shard(2));
        assert!(is_muted());
        mutes.clear(shard(1));
        assert!(!is_muted());
        assert!(mutes.inner.lock().by_shard.is_empty());
    }
}
