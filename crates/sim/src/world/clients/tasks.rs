//! The tasks and the queues of a run.

use bytes::Bytes;
use model::command::UniqueUntil;
use model::{KindName, Millis, OnExhausted, QueueName, QueuePolicy, RetryPolicy, Spread, Start};
use node::call::TaskSpec;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::super::dice::Dice;
use super::super::plan::Plan;
use crate::history::{Enqueue, Queue, Then};

/// The queues: a usual one, one whose exhausted tasks are thrown away, one in a single shard.
pub(crate) const QUEUES: [&str; 3] = ["mail", "scrap", "line"];
const KIND: &str = "work";
/// Longer than any clock goes wrong.
const WINDOW: Millis = Millis::hours(8);
const RETENTION: Millis = Millis::hours(8);
/// Follow-ups of follow-ups go so deep.
const DEPTH_MAX: usize = 2;

/// A queue's name.
pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("the queues of a run have names of letters")
}

/// A queue's policy.
pub(crate) fn policy(name: &str) -> QueuePolicy {
    QueuePolicy {
        retry: RetryPolicy { attempts: attempts(name), base: Millis(50), cap: Millis(800), age_max: None },
        retention: RETENTION,
        dead_retention: RETENTION,
        on_exhausted: if name == "scrap" { OnExhausted::Discard } else { OnExhausted::Dead },
        spread: if name == "line" { Spread::Pinned } else { Spread::All },
        ..QueuePolicy::default()
    }
}

fn attempts(queue: &str) -> u32 {
    match queue {
        "scrap" => 2,
        _ => 4,
    }
}

/// The same for the checker.
pub(crate) fn rules(name: &str) -> Queue {
    let policy = policy(name);
    Queue {
        queue: name.to_owned(),
        pinned: policy.spread == Spread::Pinned,
        attempts: Some(policy.retry.attempts),
        poison_after: Some(policy.poison_after),
        retention_ms: Some(RETENTION.0),
        retained_max: Some(policy.retained_max),
        age_max: false,
    }
}

/// A task to enqueue, as the node and as the history take it.
#[derive(Clone)]
pub(crate) struct NewTask {
    pub(crate) spec: TaskSpec,
    pub(crate) deed: Enqueue,
}

/// What a history says of kind and payload.
pub(crate) fn payload_hash(kind: &str, payload: &[u8]) -> String {
    format!("{:016x}{:016x}", xxh3_64(kind.as_bytes()), xxh3_128(payload) as u64)
}

fn payload(name: &str, padding: u64) -> Bytes {
    format!("\"{name}|{}\"", "x".repeat(padding as usize)).into()
}

/// The name that a task's payload begins with.
pub(crate) fn name_of(payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(payload);
    let name = text.trim_start_matches('"').split('|').next();
    name.unwrap_or_default().to_owned()
}

impl NewTask {
    fn new(queue_name: &str, name: &str, padding: u64) -> NewTask {
        let kind = KindName::new(KIND).expect("a word of letters");
        let payload = payload(name, padding);
        let hash = payload_hash(KIND, &payload);
        NewTask {
            spec: TaskSpec { payload, ..TaskSpec::new(queue(queue_name), kind) },
            deed: Enqueue { queue: queue_name.to_owned(), payload: hash, ..Enqueue::default() },
        }
    }

    fn delayed(mut self, millis: u64) -> NewTask {
        self.spec.start = Start::After(Millis(millis));
        self.deed.delay_ms = Some(millis);
        self
    }

    fn ordered(mut self, key: String) -> NewTask {
        self.spec.order_key = Some(key.clone());
        self.deed.order_key = Some(key);
        self
    }

    fn with_attempts(mut self, attempts: u32) -> NewTask {
        self.spec.retry.attempts = Some(attempts);
        self.deed.attempts = Some(attempts);
        self
    }

    /// Whether the same again is the same task.
    pub(crate) fn is_keyed(&self) -> bool {
        self.deed.dedup_key.is_some()
    }

    /// The same as an ack enqueues it.
    pub(crate) fn then(&self) -> Then {
        Then {
            queue: self.deed.queue.clone(),
            payload: self.deed.payload.clone(),
            order_key: self.deed.order_key.clone(),
            keyed: false,
            delay_ms: self.deed.delay_ms,
            attempts: self.deed.attempts,
        }
    }
}

/// A task of any kind.
pub(crate) fn any(plan: &Plan, name: &str, dice: &mut Dice) -> NewTask {
    let queue_name = *dice.one_of(&QUEUES);
    if dice.percent(20) {
        return keyed(dice.between(1, plan.dedup_keys));
    }
    let mut task = NewTask::new(queue_name, name, dice.between(0, plan.payload_bytes_max));
    task.spec.priority = dice.between(0, 9) as u8;
    if dice.percent(15) {
        task = task.delayed(dice.between(1, 2_500));
    }
    match dice.between(0, 9) {
        0..=2 => task = task.ordered(format!("o{}", dice.between(1, plan.order_keys))),
        3 => {
            let key = format!("u{}", dice.between(1, 20));
            task.spec.unique = Some((key.clone(), UniqueUntil::Final));
            task.deed.unique_key = Some(key);
        }
        _ => {}
    }
    if dice.percent(30) {
        task = task.with_attempts(dice.between(1, 5) as u32);
    }
    if dice.percent(4) {
        let millis = dice.between(200, 4_000);
        task.spec.expires_in = Some(Millis(millis));
        task.deed.expires_in_ms = Some(millis);
    }
    task
}

/// The task of a dedup key: whoever enqueues it means the same.
fn keyed(key: u64) -> NewTask {
    let queue_name = QUEUES[(key % 3) as usize];
    let mut task = NewTask::new(queue_name, &format!("k{key}"), key).with_attempts(3);
    let name = format!("d{key}");
    task.spec.dedup = Some((name.clone(), WINDOW));
    task.deed.dedup_key = Some(name);
    task.deed.dedup_window_ms = Some(WINDOW.0);
    task
}

/// Some tasks that are enqueued all or none: they have one place.
pub(crate) fn together(plan: &Plan, names: &[String], dice: &mut Dice) -> Vec<NewTask> {
    let key = format!("o{}", dice.between(1, plan.order_keys));
    let queue_name = *dice.one_of(&QUEUES);
    names.iter().map(|name| NewTask::new(queue_name, name, 8).ordered(key.clone())).collect()
}

/// What follows a task. Every attempt at it has the same follow-ups.
pub(crate) fn follow_ups(plan: &Plan, name: &str) -> Vec<NewTask> {
    let hash = xxh3_64(name.as_bytes());
    if name.matches('>').count() >= DEPTH_MAX || !hash.is_multiple_of(5) {
        return Vec::new();
    }
    let one = |n: u64| {
        let hash = hash.rotate_left(16 + n as u32);
        let task = NewTask::new(QUEUES[(hash % 3) as usize], &format!("{name}>{n}"), hash % 64);
        match hash >> 32 & 7 {
            0 | 1 => task.ordered(format!("o{}", 1 + (hash >> 40) % plan.order_keys)),
            2 => task.delayed(hash >> 40 & 1_023),
            3 => task.with_attempts(2),
            _ => task,
        }
    };
    (0..1 + hash / 5 % 2).map(one).collect()
}
