//! What random tasks and policies look like.

use bytes::Bytes;
use model::command::{Dedup, Unique, UniqueUntil};
use model::{
    Digest, FreedTo, KeyHash, Millis, NewTask, OnExhausted, QueueName, QueuePolicy, Recovery, RetryOverride,
    RetryPolicy, Spread, Start, TaskId, WallTime, Wishes,
};
use proptest::prelude::*;

/// How many queues there are; the last one is pinned.
pub(crate) const QUEUES: u8 = 3;

pub(crate) fn queue_name(n: u8) -> QueueName {
    QueueName::new(["mail", "reports", "pinned"][usize::from(n)]).expect("a good name")
}

pub(crate) fn spread(queue: &QueueName) -> Spread {
    if queue.as_str() == "pinned" { Spread::Pinned } else { Spread::All }
}

/// A task without its id.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) queue: u8,
    pub(crate) digest: u8,
    pub(crate) priority: u8,
    pub(crate) start: Start,
    pub(crate) order: Option<u8>,
    pub(crate) dedup: Option<(u8, u64)>,
    pub(crate) unique: Option<(u8, UniqueUntil)>,
    pub(crate) hold: Option<u64>,
    pub(crate) attempts: Option<u32>,
    pub(crate) age_max: Option<u64>,
    pub(crate) expires_in: Option<u64>,
    pub(crate) retention: Option<u64>,
}

pub(crate) fn key(queue: &QueueName, what: &str, n: u8) -> KeyHash {
    KeyHash::new(queue, &format!("{what}-{n}"))
}

impl Shape {
    pub(crate) fn task(&self, id: TaskId) -> NewTask {
        let queue = queue_name(self.queue);
        NewTask {
            id,
            kind_hash: u32::from(self.digest),
            digest: Digest(u128::from(self.digest)),
            priority: self.priority,
            wishes: Wishes {
                start: self.start,
                order_key: self.order.map(|n| key(&queue, "order", n)),
                dedup: self
                    .dedup
                    .map(|(n, window)| Dedup { key: key(&queue, "dedup", n), window: Millis(window) }),
                unique: self.unique.map(|(n, until)| Unique { key: key(&queue, "unique", n), until }),
                hold: self.hold.map(Millis),
                retry: RetryOverride {
                    attempts: self.attempts,
                    age_max: self.age_max.map(Millis),
                    ..RetryOverride::default()
                },
                expires_in: self.expires_in.map(Millis),
                retention: self.retention.map(Millis),
            }
            .boxed(),
            envelope: Bytes::copy_from_slice(&id.bits().to_be_bytes()),
            queue,
        }
    }
}

fn rarely<T: Clone + std::fmt::Debug + 'static>(
    often: u32,
    value: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Option<T>> {
    prop_oneof![often => Just(None), 1 => value.prop_map(Some)]
}

pub(crate) fn shape() -> impl Strategy<Value = Shape> {
    let queue = prop_oneof![4 => Just(0u8), 1 => Just(1), 2 => Just(2)];
    let digest = prop_oneof![9 => Just(0u8), 1 => Just(1)];
    let priority = prop_oneof![4 => Just(5u8), 1 => Just(0), 1 => Just(9)];
    let start = prop_oneof![
        6 => Just(Start::Now),
        1 => Just(Start::After(Millis(0))),
        2 => Just(Start::After(Millis(2_000))),
        1 => Just(Start::At(WallTime::from_millis(1_000))),
        1 => Just(Start::At(WallTime::from_millis(1_000_010_000))),
    ];
    let until = prop_oneof![Just(UniqueUntil::Claimed), Just(UniqueUntil::Final)];
    let window = prop_oneof![Just(0u64), Just(2_000), Just(900_000)];
    let first = (queue, digest, priority, start);
    let keys = (rarely(1, 0u8..2), rarely(2, (0u8..2, window)), rarely(3, (0u8..2, until)));
    let rest = (
        rarely(3, prop_oneof![Just(1_000u64), Just(10_000)]),
        rarely(2, 1u32..4),
        rarely(9, Just(2_000u64)),
        rarely(5, prop_oneof![Just(0u64), Just(1_000), Just(10_000)]),
        rarely(4, prop_oneof![Just(0u64), Just(2_000), Just(900_000)]),
    );
    (first, keys, rest).prop_map(
        |(
            (queue, digest, priority, start),
            (order, dedup, unique),
            (hold, attempts, age_max, expires_in, retention),
        )| {
            Shape {
                queue,
                digest,
                priority,
                start,
                order,
                dedup,
                unique,
                hold,
                attempts,
                age_max,
                expires_in,
                retention,
            }
        },
    )
}

pub(crate) fn policy() -> impl Strategy<Value = QueuePolicy> {
    let hold = prop_oneof![Just(1_000u64), Just(30_000)].prop_map(Millis);
    let retry = (prop_oneof![Just(1u32), Just(2), Just(20)], prop_oneof![Just(100u64), Just(1_000)])
        .prop_map(|(attempts, base)| RetryPolicy { attempts, base: Millis(base), ..RetryPolicy::default() });
    let retention = prop_oneof![Just(0u64), Just(2_000), Just(3_600_000)].prop_map(Millis);
    let bounds = (
        prop_oneof![1 => Just(0u64), 1 => Just(1), 1 => Just(2), 3 => Just(100_000)],
        prop_oneof![1 => Just(0u64), 1 => Just(1), 1 => Just(3), 3 => Just(100_000)],
        prop_oneof![1 => Just(0u64), 1 => Just(2), 4 => Just(1_000_000)],
        rarely(2, 1u64..5),
    );
    let manual = prop_oneof![3 => Just(Recovery::Auto), 1 => Just(Recovery::Manual)];
    let freed_to = prop_oneof![2 => Just(FreedTo::Front), 1 => Just(FreedTo::Back)];
    let on_exhausted = prop_oneof![2 => Just(OnExhausted::Dead), 1 => Just(OnExhausted::Discard)];
    let poison = prop_oneof![Just(1u32), Just(2), Just(5)];
    (hold, retry, retention.clone(), retention, bounds, manual, (freed_to, on_exhausted, poison)).prop_map(
        |(
            hold,
            retry,
            retention,
            dead_retention,
            bounds,
            recovery,
            (freed_to, on_exhausted, poison_after),
        )| {
            QueuePolicy {
                hold,
                retry,
                retention,
                retained_max: bounds.0,
                dead_max: bounds.1,
                dead_retention,
                dedup_keys_max: bounds.2,
                tasks_max: bounds.3,
                recovery,
                freed_to,
                on_exhausted,
                poison_after,
                ..QueuePolicy::default()
            }
        },
    )
}
