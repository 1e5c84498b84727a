//! Where a task lives, and how its keys are told apart (DESIGN §5).
//!
//! A pinned queue lives in the shard of its name. Else the first key that a task has, of order, unique
//! and dedup, names its place; the later ones hold within that place. A task without keys may live
//! anywhere.

use model::{KeyHash, QueueName, ShardId, Spread};

use crate::call::Keys;

/// A task's keys, and the shard that they ask for. How far each key holds is the shard's business.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The shard, unless any will do.
    pub(crate) shard: Option<ShardId>,
    /// The order key.
    pub(crate) order_key: Option<KeyHash>,
    /// The unique key.
    pub(crate) unique_key: Option<KeyHash>,
    /// The dedup key.
    pub(crate) dedup_key: Option<KeyHash>,
}

/// Places a task in a cluster of `shards`.
pub(crate) fn place(keys: Keys<'_>, spread: Spread, shards: u16) -> Placed {
    let Keys { queue, order, unique, dedup } = keys;
    let hash = |key: &str| KeyHash::new(queue, key);
    let (order_key, unique_key, dedup_key) = (order.map(hash), unique.map(hash), dedup.map(hash));
    let shard = match spread {
        Spread::Pinned => Some(ShardId::of_queue(queue, shards)),
        Spread::All => {
            let first = order_key.or(unique_key).or(dedup_key);
            first.map(|first| ShardId::of_hash(first.place(), shards))
        }
    };
    Placed { shard, order_key, unique_key, dedup_key }
}

/// Where the task with this dedup key is, and the key as that shard knows it: within the place of the
/// order key, or else of the unique key, if there is one.
pub(crate) fn dedup(
    queue: &QueueName,
    spread: Spread,
    shards: u16,
    dedup_key: &str,
    order_key: Option<&str>,
    unique_key: Option<&str>,
) -> (ShardId, KeyHash) {
    let key = KeyHash::new(queue, dedup_key);
    if spread == Spread::Pinned {
        // The queue is the place: all keys hold in the whole of it.
        return (ShardId::of_queue(queue, shards), key);
    }
    match order_key.or(unique_key).map(|first| KeyHash::new(queue, first)) {
        Some(place) => (ShardId::of_hash(place.place(), shards), key.within(place)),
        None => (ShardId::of_hash(key.place(), shards), key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::TaskSpec;
    use model::command::UniqueUntil;
    use model::{KindName, Millis};

    fn task(order: Option<&str>, unique: Option<&str>, dedup: Option<&str>) -> TaskSpec {
        let queue = QueueName::new("mail").unwrap();
        TaskSpec {
            order_key: order.map(str::to_owned),
            unique: unique.map(|key| (key.to_owned(), UniqueUntil::Final)),
            dedup: dedup.map(|key| (key.to_owned(), Millis(0))),
            ..TaskSpec::new(queue, KindName::new("welcome").unwrap())
        }
    }

    fn shard(spread: Spread, task: &TaskSpec) -> Option<ShardId> {
        place(task.keys(), spread, 64).shard
    }

    #[test]
    fn the_first_key_names_the_place() {
        let all = Spread::All;
        let by_order = shard(all, &task(Some("o"), None, None));
        let by_unique = shard(all, &task(None, Some("u"), None));
        assert_eq!(shard(all, &task(Some("o"), Some("u"), Some("d"))), by_order);
        assert_eq!(shard(all, &task(None, Some("u"), Some("d"))), by_unique);
        assert_eq!(shard(all, &task(None, None, None)), None);
        assert!(shard(all, &task(None, None, Some("d"))).is_some());
    }

    #[test]
    fn a_pinned_queue_lives_in_one_shard_whatever_the_keys() {
        let one = shard(Spread::Pinned, &task(Some("o1"), None, Some("d")));
        assert_eq!(one, shard(Spread::Pinned, &task(Some("o2"), None, None)));
        assert_eq!(one, shard(Spread::Pinned, &task(None, None, None)));
    }

    #[test]
    fn a_task_is_found_by_its_dedup_key_where_it_was_placed() {
        let queue = QueueName::new("mail").unwrap();
        for spread in [Spread::All, Spread::Pinned] {
            for (order, unique) in
                [(None, None), (Some("o"), None), (None, Some("u")), (Some("o"), Some("u"))]
            {
                let placed = place(task(order, unique, Some("d")).keys(), spread, 64);
                let (found, _) = dedup(&queue, spread, 64, "d", order, unique);
                assert_eq!(placed.shard, Some(found), "{spread:?} {order:?} {unique:?}");
            }
        }
        let key = |order| dedup(&queue, Spread::All, 64, "d", order, None).1;
        assert_ne!(key(Some("o1")), key(Some("o2")), "another order key is another place");
    }
}
