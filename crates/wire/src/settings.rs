//! A queue's settings as bytes.

use model::{FreedTo, Millis, OnExhausted, QueuePolicy, QueueSettings, Recovery, RetryPolicy, Spread};
use prost::Message;

use crate::entry::Malformed;

/// [`model::QueueSettings`] as a message.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SettingsMessage {
    #[prost(uint64, tag = "1")]
    version: u64,
    #[prost(bool, tag = "2")]
    paused: bool,
    #[prost(uint64, tag = "3")]
    hold_ms: u64,
    #[prost(uint32, tag = "4")]
    attempts: u32,
    #[prost(uint64, tag = "5")]
    base_ms: u64,
    #[prost(uint64, tag = "6")]
    cap_ms: u64,
    #[prost(uint64, optional, tag = "7")]
    age_max_ms: Option<u64>,
    #[prost(uint64, tag = "8")]
    retention_ms: u64,
    #[prost(uint64, tag = "9")]
    retained_max: u64,
    #[prost(uint64, tag = "10")]
    dead_max: u64,
    #[prost(uint64, tag = "11")]
    dead_retention_ms: u64,
    #[prost(uint64, tag = "12")]
    dedup_keys_max: u64,
    #[prost(uint64, optional, tag = "13")]
    tasks_max: Option<u64>,
    #[prost(uint64, tag = "14")]
    payload_bytes_max: u64,
    #[prost(uint32, tag = "15")]
    recovery: u32,
    #[prost(uint32, tag = "16")]
    freed_to: u32,
    #[prost(uint32, tag = "17")]
    on_exhausted: u32,
    #[prost(uint32, tag = "18")]
    spread: u32,
    #[prost(uint32, tag = "19")]
    poison_after: u32,
}

impl From<&QueueSettings> for SettingsMessage {
    fn from(settings: &QueueSettings) -> SettingsMessage {
        let policy = &settings.policy;
        SettingsMessage {
            version: settings.version,
            paused: settings.paused,
            hold_ms: policy.hold.0,
            attempts: policy.retry.attempts,
            base_ms: policy.retry.base.0,
            cap_ms: policy.retry.cap.0,
            age_max_ms: policy.retry.age_max.map(|age| age.0),
            retention_ms: policy.retention.0,
            retained_max: policy.retained_max,
            dead_max: policy.dead_max,
            dead_retention_ms: policy.dead_retention.0,
            dedup_keys_max: policy.dedup_keys_max,
            tasks_max: policy.tasks_max,
            payload_bytes_max: policy.payload_bytes_max,
            recovery: match policy.recovery {
                Recovery::Auto => 0,
                Recovery::Manual => 1,
            },
            freed_to: match policy.freed_to {
                FreedTo::Front => 0,
                FreedTo::Back => 1,
            },
            on_exhausted: match policy.on_exhausted {
                OnExhausted::Dead => 0,
                OnExhausted::Discard => 1,
            },
            spread: match policy.spread {
                Spread::All => 0,
                Spread::Pinned => 1,
            },
            poison_after: policy.poison_after,
        }
    }
}

impl TryFrom<SettingsMessage> for QueueSettings {
    type Error = Malformed;

    fn try_from(message: SettingsMessage) -> Result<QueueSettings, Malformed> {
        Ok(QueueSettings {
            version: message.version,
            paused: message.paused,
            policy: QueuePolicy {
                hold: Millis(message.hold_ms),
                retry: RetryPolicy {
                    attempts: message.attempts,
                    base: Millis(message.base_ms),
                    cap: Millis(message.cap_ms),
                    age_max: message.age_max_ms.map(Millis),
                },
                retention: Millis(message.retention_ms),
                retained_max: message.retained_max,
                dead_max: message.dead_max,
                dead_retention: Millis(message.dead_retention_ms),
                dedup_keys_max: message.dedup_keys_max,
                tasks_max: message.tasks_max,
                payload_bytes_max: message.payload_bytes_max,
                recovery: match message.recovery {
                    0 => Recovery::Auto,
                    1 => Recovery::Manual,
                    _ => return Err(Malformed::Value("recovery")),
                },
                freed_to: match message.freed_to {
                    0 => FreedTo::Front,
                    1 => FreedTo::Back,
                    _ => return Err(Malformed::Value("freed_to")),
                },
                on_exhausted: match message.on_exhausted {
                    0 => OnExhausted::Dead,
                    1 => OnExhausted::Discard,
                    _ => return Err(Malformed::Value("on_exhausted")),
                },
                spread: match message.spread {
                    0 => Spread::All,
                    1 => Spread::Pinned,
                    _ => return Err(Malformed::Value("spread")),
                },
                poison_after: message.poison_after,
            },
        })
    }
}
