//! How a queue treats its tasks.

use serde::{Deserialize, Serialize};

use crate::limits;
use crate::time::Millis;

/// When a failed attempt is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all, at least 1.
    pub attempts: u32,
    /// The first backoff; doubles each time.
    pub base: Millis,
    /// The longest backoff.
    pub cap: Millis,
    /// No retry of a task older than this.
    pub age_max: Option<Millis>,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy { attempts: 20, base: Millis::secs(1), cap: Millis::hours(1), age_max: None }
    }
}

/// What one task says of its retries; the queue fills in the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryOverride {
    /// Attempts in all.
    pub attempts: Option<u32>,
    /// The first backoff.
    pub base: Option<Millis>,
    /// The longest backoff.
    pub cap: Option<Millis>,
    /// No retry of a task older than this.
    pub age_max: Option<Millis>,
}

impl RetryOverride {
    /// The policy of a task in a queue with `queue`.
    pub fn over(self, queue: RetryPolicy) -> RetryPolicy {
        RetryPolicy {
            attempts: self.attempts.unwrap_or(queue.attempts),
            base: self.base.unwrap_or(queue.base),
            cap: self.cap.unwrap_or(queue.cap),
            age_max: self.age_max.or(queue.age_max),
        }
    }

    /// Whether it says nothing.
    pub fn is_empty(self) -> bool {
        self == RetryOverride::default()
    }
}

/// Who frees a claim whose worker is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// Windlass, by deadline and session.
    #[default]
    Auto,
    /// A person: claims wait for put-back or discard.
    Manual,
}

/// Where a freed task goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FreedTo {
    /// Next in line.
    #[default]
    Front,
    /// Behind the others: a circular queue.
    Back,
}

/// What becomes of a task whose attempts are used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExhausted {
    /// A dead letter.
    #[default]
    Dead,
    /// It ends as `failed`.
    Discard,
}

/// How many shards a queue lives in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// All of them.
    #[default]
    All,
    /// One, chosen by the hash of its name: exact order, queue-wide limits.
    Pinned,
}

/// How a queue treats its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePolicy {
    /// How long a claim holds, unless task or claim say otherwise.
    pub hold: Millis,
    /// Retries, unless the task says otherwise.
    pub retry: RetryPolicy,
    /// How long an ended task stays readable.
    pub retention: Millis,
    /// How many ended tasks stay readable.
    pub retained_max: u64,
    /// How many dead letters are kept; the oldest go first.
    pub dead_max: u64,
    /// How long a dead letter is kept.
    pub dead_retention: Millis,
    /// How many dedup keys are remembered; over it a keyed enqueue is refused.
    pub dedup_keys_max: u64,
    /// How many live tasks the queue takes.
    pub tasks_max: Option<u64>,
    /// The largest payload.
    pub payload_bytes_max: u64,
    /// Who frees a claim whose worker is gone.
    pub recovery: Recovery,
    /// Where a freed task goes.
    pub freed_to: FreedTo,
    /// What becomes of a task whose attempts are used up.
    pub on_exhausted: OnExhausted,
    /// How many shards it lives in.
    pub spread: Spread,
    /// Claims lost in a row that make a task a poison pill.
    pub poison_after: u32,
}

impl Default for QueuePolicy {
    fn default() -> QueuePolicy {
        QueuePolicy {
            hold: Millis::secs(30),
            retry: RetryPolicy::default(),
            retention: Millis::hours(1),
            retained_max: 100_000,
            dead_max: 100_000,
            dead_retention: Millis::hours(24 * 30),
            dedup_keys_max: 1_000_000,
            tasks_max: None,
            payload_bytes_max: limits::PAYLOAD_BYTES_MAX_DEFAULT,
            recovery: Recovery::Auto,
            freed_to: FreedTo::Front,
            on_exhausted: OnExhausted::Dead,
            spread: Spread::All,
            poison_after: limits::POISON_AFTER_DEFAULT,
        }
    }
}

/// A queue's policy and whether it is paused, as the catalog tells every shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// How it treats its tasks.
    pub policy: QueuePolicy,
    /// Whether claims pass it by.
    pub paused: bool,
    /// Which edition this is. 0: made on first use, never set.
    pub version: u64,
}
