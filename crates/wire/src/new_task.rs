//! A task on its way into a shard, as bytes: in an enqueue, in an ack's follow-ups, in the outbox.
//!
//! Field numbers are for ever: a field may be added, never reused. Next: `command`, which carries these.

use bytes::Bytes;
use model::command::{Dedup, OutboxMessage, Unique, UniqueUntil};
use model::limits::PRIORITY_MAX;
use model::{
    Digest, FollowUp, KeyHash, Millis, NewTask, QueueName, RetryOverride, ShardId, Start, TaskId, WallTime,
    Wishes,
};
use prost::Message;

use crate::bytes_of;
use crate::entry::Malformed;

/// 128 bits.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Bits128 {
    /// The upper half.
    #[prost(fixed64, tag = "1")]
    pub high: u64,
    /// The lower half.
    #[prost(fixed64, tag = "2")]
    pub low: u64,
}

impl From<u128> for Bits128 {
    fn from(bits: u128) -> Bits128 {
        Bits128 { high: (bits >> 64) as u64, low: bits as u64 }
    }
}

impl From<Bits128> for u128 {
    fn from(bits: Bits128) -> u128 {
        u128::from(bits.high) << 64 | u128::from(bits.low)
    }
}

/// [`model::NewTask`] as a message.
#[derive(Clone, PartialEq, Message)]
pub struct NewTaskMessage {
    #[prost(message, optional, tag = "1")]
    id: Option<Bits128>,
    #[prost(bytes = "bytes", tag = "2")]
    queue: Bytes,
    #[prost(fixed32, tag = "3")]
    kind_hash: u32,
    #[prost(message, optional, tag = "4")]
    digest: Option<Bits128>,
    #[prost(uint32, tag = "5")]
    priority: u32,
    #[prost(uint64, optional, tag = "6")]
    start_after_ms: Option<u64>,
    #[prost(uint64, optional, tag = "7")]
    start_at_ms: Option<u64>,
    #[prost(message, optional, tag = "8")]
    order_key: Option<Bits128>,
    #[prost(message, optional, tag = "9")]
    dedup_key: Option<Bits128>,
    #[prost(uint64, tag = "10")]
    dedup_window_ms: u64,
    #[prost(message, optional, tag = "11")]
    unique_key: Option<Bits128>,
    #[prost(uint32, tag = "12")]
    unique_until: u32,
    #[prost(uint64, optional, tag = "13")]
    hold_ms: Option<u64>,
    #[prost(uint32, optional, tag = "14")]
    retry_attempts: Option<u32>,
    #[prost(uint64, optional, tag = "15")]
    retry_base_ms: Option<u64>,
    #[prost(uint64, optional, tag = "16")]
    retry_cap_ms: Option<u64>,
    #[prost(uint64, optional, tag = "17")]
    retry_age_max_ms: Option<u64>,
    #[prost(uint64, optional, tag = "18")]
    expires_in_ms: Option<u64>,
    #[prost(uint64, optional, tag = "19")]
    retention_ms: Option<u64>,
    #[prost(bytes = "bytes", tag = "20")]
    envelope: Bytes,
}

const UNTIL_FINAL: u32 = 0;
const UNTIL_CLAIMED: u32 = 1;

impl From<&NewTask> for NewTaskMessage {
    fn from(task: &NewTask) -> NewTaskMessage {
        let wishes = task.wishes();
        let (start_after_ms, start_at_ms) = match wishes.start {
            Start::Now => (None, None),
            Start::After(delay) => (Some(delay.0), None),
            Start::At(at) => (None, Some(at.millis())),
        };
        NewTaskMessage {
            id: Some(task.id.bits().into()),
            queue: Bytes::copy_from_slice(task.queue.as_str().as_bytes()),
            kind_hash: task.kind_hash,
            digest: Some(task.digest.0.into()),
            priority: u32::from(task.priority),
            start_after_ms,
            start_at_ms,
            order_key: wishes.order_key.map(|key| key.0.into()),
            dedup_key: wishes.dedup.map(|dedup| dedup.key.0.into()),
            dedup_window_ms: wishes.dedup.map_or(0, |dedup| dedup.window.0),
            unique_key: wishes.unique.map(|unique| unique.key.0.into()),
            unique_until: match wishes.unique.map(|unique| unique.until) {
                Some(UniqueUntil::Claimed) => UNTIL_CLAIMED,
                Some(UniqueUntil::Final) | None => UNTIL_FINAL,
            },
            hold_ms: wishes.hold.map(|hold| hold.0),
            retry_attempts: wishes.retry.attempts,
            retry_base_ms: wishes.retry.base.map(|base| base.0),
            retry_cap_ms: wishes.retry.cap.map(|cap| cap.0),
            retry_age_max_ms: wishes.retry.age_max.map(|age| age.0),
            expires_in_ms: wishes.expires_in.map(|expires| expires.0),
            retention_ms: wishes.retention.map(|retention| retention.0),
            envelope: task.envelope.clone(),
        }
    }
}

impl TryFrom<NewTaskMessage> for NewTask {
    type Error = Malformed;

    fn try_from(message: NewTaskMessage) -> Result<NewTask, Malformed> {
        let until = match message.unique_until {
            UNTIL_FINAL => UniqueUntil::Final,
            UNTIL_CLAIMED => UniqueUntil::Claimed,
            _ => return Err(Malformed::Value("how long a unique key is taken")),
        };
        Ok(NewTask {
            id: task_id(message.id)?,
            queue: queue_name(&message.queue)?,
            kind_hash: message.kind_hash,
            digest: Digest(message.digest.ok_or(Malformed::Missing("digest"))?.into()),
            priority: priority(message.priority)?,
            wishes: Wishes {
                start: match (message.start_after_ms, message.start_at_ms) {
                    (None, None) => Start::Now,
                    (Some(delay), None) => Start::After(Millis(delay)),
                    (None, Some(at)) => Start::At(WallTime::from_millis(at)),
                    (Some(_), Some(_)) => return Err(Malformed::Value("start")),
                },
                order_key: message.order_key.map(key),
                dedup: message
                    .dedup_key
                    .map(|bits| Dedup { key: key(bits), window: Millis(message.dedup_window_ms) }),
                unique: message.unique_key.map(|bits| Unique { key: key(bits), until }),
                hold: message.hold_ms.map(Millis),
                retry: RetryOverride {
                    attempts: message.retry_attempts,
                    base: message.retry_base_ms.map(Millis),
                    cap: message.retry_cap_ms.map(Millis),
                    age_max: message.retry_age_max_ms.map(Millis),
                },
                expires_in: message.expires_in_ms.map(Millis),
                retention: message.retention_ms.map(Millis),
            }
            .boxed(),
            envelope: message.envelope,
        })
    }
}

/// [`model::FollowUp`] as a message.
#[derive(Clone, PartialEq, Message)]
pub struct FollowUpMessage {
    #[prost(uint32, tag = "1")]
    shard: u32,
    #[prost(message, optional, tag = "2")]
    task: Option<NewTaskMessage>,
}

impl From<&FollowUp> for FollowUpMessage {
    fn from(follow_up: &FollowUp) -> FollowUpMessage {
        FollowUpMessage {
            shard: u32::from(follow_up.shard.number()),
            task: Some(NewTaskMessage::from(&follow_up.task)),
        }
    }
}

impl TryFrom<FollowUpMessage> for FollowUp {
    type Error = Malformed;

    fn try_from(message: FollowUpMessage) -> Result<FollowUp, Malformed> {
        Ok(FollowUp {
            shard: shard_id(message.shard)?,
            task: message.task.ok_or(Malformed::Missing("task"))?.try_into()?,
        })
    }
}

/// [`model::command::OutboxMessage`] as a message.
#[derive(Clone, PartialEq, Message)]
pub struct OutboxMessageMessage {
    #[prost(uint64, tag = "1")]
    seq: u64,
    #[prost(message, optional, tag = "2")]
    task: Option<NewTaskMessage>,
}

impl From<&OutboxMessage> for OutboxMessageMessage {
    fn from(message: &OutboxMessage) -> OutboxMessageMessage {
        OutboxMessageMessage { seq: message.seq, task: Some(NewTaskMessage::from(&message.task)) }
    }
}

impl TryFrom<OutboxMessageMessage> for OutboxMessage {
    type Error = Malformed;

    fn try_from(message: OutboxMessageMessage) -> Result<OutboxMessage, Malformed> {
        Ok(OutboxMessage {
            seq: message.seq,
            task: message.task.ok_or(Malformed::Missing("task"))?.try_into()?,
        })
    }
}

/// A new task as bytes.
pub fn encode(task: &NewTask) -> Bytes {
    bytes_of(&NewTaskMessage::from(task))
}

/// A new task from its bytes, sharing its envelope with them.
pub fn decode(bytes: Bytes) -> Result<NewTask, Malformed> {
    NewTaskMessage::decode(bytes)?.try_into()
}

pub(crate) fn task_id(bits: Option<Bits128>) -> Result<TaskId, Malformed> {
    let bits = bits.ok_or(Malformed::Missing("task id"))?;
    TaskId::from_bits(bits.into()).ok_or(Malformed::Value("task id"))
}

pub(crate) fn shard_id(number: u32) -> Result<ShardId, Malformed> {
    u16::try_from(number).ok().and_then(ShardId::new).ok_or(Malformed::Value("shard"))
}

pub(crate) fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed::Value("text that is not UTF-8"))
}

pub(crate) fn queue_name(bytes: &[u8]) -> Result<QueueName, Malformed> {
    QueueName::new(text(bytes)?).map_err(|_| Malformed::Value("queue name"))
}

fn priority(number: u32) -> Result<u8, Malformed> {
    let priority = u8::try_from(number).ok().filter(|priority| *priority <= PRIORITY_MAX);
    priority.ok_or(Malformed::Value("priority"))
}

fn key(bits: Bits128) -> KeyHash {
    KeyHash(bits.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_over_the_limit_is_malformed() {
        for (number, is_ok) in [(0, true), (9, true), (10, false), (255, false), (256, false)] {
            assert_eq!(priority(number).is_ok(), is_ok, "{number}");
        }
    }
}
