//! A command to a shard as bytes.
//!
//! One message per command, one number per kind, both for ever: a kind may be added, never changed.
//! Malformed bytes are an error, never a panic. Next: `entry`, which carries many of these.

use bytes::{Bytes, BytesMut};
use model::command::{Ack, Fail};
use model::command::{Claim, ClaimById, ClaimQueue, OnTask};
use model::{Command, Fence, FreedReason, KeyHash, Millis, SessionId, WorkerName};
use prost::{Message, Oneof};

use crate::catalog::SetQueueMessage;
use crate::entry::{self, Malformed};
use crate::new_task::{
    Bits128, FollowUpMessage, NewTaskMessage, OutboxMessageMessage, queue_name, shard_id, task_id, text,
};
use crate::quick;

/// [`model::Command`] as a message.
#[derive(Clone, PartialEq, Message)]
pub struct CommandMessage {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    Enqueue(EnqueueMessage),
    #[prost(message, tag = "2")]
    Claim(ClaimMessage),
    #[prost(message, tag = "3")]
    ClaimById(ClaimByIdMessage),
    #[prost(message, tag = "4")]
    Ack(AckMessage),
    #[prost(message, tag = "5")]
    Fail(FailMessage),
    #[prost(message, tag = "6")]
    Extend(ExtendMessage),
    #[prost(message, tag = "7")]
    Release(ReleaseMessage),
    #[prost(message, tag = "8")]
    Progress(ProgressMessage),
    #[prost(message, tag = "9")]
    PutBack(OnTaskMessage),
    #[prost(message, tag = "10")]
    Discard(OnTaskMessage),
    #[prost(message, tag = "11")]
    Cancel(CancelMessage),
    #[prost(message, tag = "12")]
    Requeue(OnTaskMessage),
    #[prost(bytes = "bytes", tag = "13")]
    Purge(Bytes),
    #[prost(message, tag = "14")]
    EndSession(EndSessionMessage),
    #[prost(message, tag = "15")]
    SetQueue(SetQueueMessage),
    #[prost(message, tag = "16")]
    DropQueue(DropQueueMessage),
    #[prost(message, tag = "17")]
    Deliver(DeliverMessage),
    #[prost(message, tag = "18")]
    Delivered(DeliveredMessage),
    #[prost(uint32, tag = "19")]
    Pulse(u32),
}

#[derive(Clone, PartialEq, Message)]
struct EnqueueMessage {
    #[prost(message, repeated, tag = "1")]
    tasks: Vec<NewTaskMessage>,
    #[prost(bool, tag = "2")]
    atomic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct ClaimQueueMessage {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(uint32, tag = "2")]
    weight: u32,
}

#[derive(Clone, PartialEq, Message)]
struct ClaimMessage {
    #[prost(message, repeated, tag = "1")]
    queues: Vec<ClaimQueueMessage>,
    #[prost(bytes = "bytes", tag = "2")]
    worker: Bytes,
    #[prost(message, optional, tag = "3")]
    session: Option<Bits128>,
    #[prost(uint32, tag = "4")]
    max: u32,
    #[prost(uint64, optional, tag = "5")]
    hold_ms: Option<u64>,
    #[prost(message, optional, tag = "6")]
    request: Option<Bits128>,
}

#[derive(Clone, PartialEq, Message)]
struct ClaimByIdMessage {
    #[prost(message, optional, tag = "1")]
    task: Option<Bits128>,
    #[prost(bytes = "bytes", tag = "2")]
    worker: Bytes,
    #[prost(message, optional, tag = "3")]
    session: Option<Bits128>,
    #[prost(uint64, optional, tag = "4")]
    hold_ms: Option<u64>,
    #[prost(message, optional, tag = "5")]
    request: Option<Bits128>,
}

#[derive(Clone, PartialEq, Message)]
struct AckMessage {
    #[prost(message, optional, tag = "1")]
    task: Option<Bits128>,
    #[prost(uint64, tag = "2")]
    fence: u64,
    #[prost(bytes = "bytes", tag = "3")]
    output: Bytes,
    #[prost(message, repeated, tag = "4")]
    then: Vec<FollowUpMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct FailMessage {
    #[prost(message, optional, tag = "1")]
    task: Option<Bits128>,
    #[prost(uint64, tag = "2")]
    fence: u64,
    #[prost(string, tag = "3")]
    error: String,
    #[prost(string, tag = "4")]
    detail: String,
    #[prost(uint64, optional, tag = "5")]
    retry_in_ms: Option<u64>,
    #[prost(bool, tag = "6")]
    fatal: bool,
}

#[derive(Clone, PartialEq, Message)]
struct ExtendMessage {
    #[prost(message, optional, tag = "1")]
    task: Option<Bits128>,
    #[prost(uint64, tag = "2")]
    fence: u64,
    #[prost(uint64, optional, tag = "3")]
    hold_ms: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct ReleaseMessage {
    #[prost(message, optional, tag = "1")]
    task: Option<Bits128>,
    #[prost(uint64, tag = "2")]
    fence: u64,
    #[prost(uint64, tag = "3")]
    delay_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
struct ProgressMessage {
    #[prost(message, optional, tag = "1")]
    task: Option<Bits128>,
    #[prost(uint64, tag = "2")]
    fence: u64,
    #[prost(uint32, tag = "3")]
    percent: u32,
    #[prost(string, tag = "4")]
    note: String,
}

#[derive(Clone, PartialEq, Message)]
struct OnTaskMessage {
    #[prost(message, optional, tag = "1")]
    task: Option<Bits128>,
    #[prost(uint64, optional, tag = "2")]
    fence: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct CancelMessage {
    #[prost(message, optional, tag = "1")]
    task: Option<Bits128>,
    #[prost(string, tag = "2")]
    reason: String,
}

#[derive(Clone, PartialEq, Message)]
struct EndSessionMessage {
    #[prost(bytes = "bytes", tag = "1")]
    worker: Bytes,
    #[prost(message, optional, tag = "2")]
    session: Option<Bits128>,
    #[prost(uint32, tag = "3")]
    reason: u32,
}

#[derive(Clone, PartialEq, Message)]
struct DropQueueMessage {
    #[prost(bytes = "bytes", tag = "1")]
    queue: Bytes,
    #[prost(uint64, tag = "2")]
    version: u64,
}

#[derive(Clone, PartialEq, Message)]
struct DeliverMessage {
    #[prost(uint32, tag = "1")]
    source: u32,
    #[prost(message, repeated, tag = "2")]
    messages: Vec<OutboxMessageMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct DeliveredMessage {
    #[prost(uint32, tag = "1")]
    target: u32,
    #[prost(uint64, tag = "2")]
    upto: u64,
}

impl From<&Command> for CommandMessage {
    fn from(command: &Command) -> CommandMessage {
        CommandMessage { kind: Some(kind_of(command)) }
    }
}

fn kind_of(command: &Command) -> Kind {
    match command {
        Command::Enqueue { tasks, atomic } => Kind::Enqueue(EnqueueMessage {
            tasks: tasks.iter().map(NewTaskMessage::from).collect(),
            atomic: *atomic,
        }),
        Command::Claim(claim) => Kind::Claim(claim.into()),
        Command::ClaimById(claim) => Kind::ClaimById(claim.into()),
        Command::Ack(ack) => Kind::Ack(ack.into()),
        Command::Fail(fail) => Kind::Fail(fail.into()),
        Command::Extend { task, fence, hold } => Kind::Extend(ExtendMessage {
            task: Some(task.bits().into()),
            fence: fence.0,
            hold_ms: hold.map(|hold| hold.0),
        }),
        Command::Release { task, fence, delay } => Kind::Release(ReleaseMessage {
            task: Some(task.bits().into()),
            fence: fence.0,
            delay_ms: delay.0,
        }),
        Command::Progress { task, fence, percent, note } => Kind::Progress(ProgressMessage {
            task: Some(task.bits().into()),
            fence: fence.0,
            percent: u32::from(*percent),
            note: note.clone(),
        }),
        Command::PutBack(on) => Kind::PutBack(on.into()),
        Command::Discard(on) => Kind::Discard(on.into()),
        Command::Cancel { task, reason } => {
            Kind::Cancel(CancelMessage { task: Some(task.bits().into()), reason: reason.clone() })
        }
        Command::Requeue(on) => Kind::Requeue(on.into()),
        Command::Purge { queue } => Kind::Purge(bytes_of(queue.as_str())),
        Command::EndSession { worker, session, reason } => Kind::EndSession(EndSessionMessage {
            worker: bytes_of(worker.as_str()),
            session: Some(session.0.into()),
            reason: u32::from(*reason as u8),
        }),
        Command::SetQueue { queue, settings } => Kind::SetQueue(SetQueueMessage {
            queue: bytes_of(queue.as_str()),
            settings: Some(settings.into()),
        }),
        Command::DropQueue { queue, version } => {
            Kind::DropQueue(DropQueueMessage { queue: bytes_of(queue.as_str()), version: *version })
        }
        Command::Deliver { source, messages } => Kind::Deliver(DeliverMessage {
            source: u32::from(source.number()),
            messages: messages.iter().map(OutboxMessageMessage::from).collect(),
        }),
        Command::Delivered { target, upto } => {
            Kind::Delivered(DeliveredMessage { target: u32::from(target.number()), upto: *upto })
        }
        Command::Pulse { limit } => Kind::Pulse(*limit),
    }
}

impl From<&Claim> for ClaimMessage {
    fn from(claim: &Claim) -> ClaimMessage {
        let queues = claim.queues.iter();
        ClaimMessage {
            queues: queues
                .map(|queue| ClaimQueueMessage { name: bytes_of(queue.name.as_str()), weight: queue.weight })
                .collect(),
            worker: bytes_of(claim.worker.as_str()),
            session: claim.session.map(|session| session.0.into()),
            max: claim.max,
            hold_ms: claim.hold.map(|hold| hold.0),
            request: claim.request.map(|request| request.0.into()),
        }
    }
}

impl From<&ClaimById> for ClaimByIdMessage {
    fn from(claim: &ClaimById) -> ClaimByIdMessage {
        ClaimByIdMessage {
            task: Some(claim.task.bits().into()),
            worker: bytes_of(claim.worker.as_str()),
            session: claim.session.map(|session| session.0.into()),
            hold_ms: claim.hold.map(|hold| hold.0),
            request: claim.request.map(|request| request.0.into()),
        }
    }
}

impl From<&Ack> for AckMessage {
    fn from(ack: &Ack) -> AckMessage {
        AckMessage {
            task: Some(ack.task.bits().into()),
            fence: ack.fence.0,
            output: ack.output.clone(),
            then: ack.then.iter().map(FollowUpMessage::from).collect(),
        }
    }
}

impl From<&Fail> for FailMessage {
    fn from(fail: &Fail) -> FailMessage {
        FailMessage {
            task: Some(fail.task.bits().into()),
            fence: fail.fence.0,
            error: fail.error.clone(),
            detail: fail.detail.clone(),
            retry_in_ms: fail.retry_in.map(|retry_in| retry_in.0),
            fatal: fail.fatal,
        }
    }
}

impl From<&OnTask> for OnTaskMessage {
    fn from(on: &OnTask) -> OnTaskMessage {
        OnTaskMessage { task: Some(on.task.bits().into()), fence: on.fence.map(|fence| fence.0) }
    }
}

/// Adds a command to a part of an entry.
pub fn push(command: &Command, part: &mut BytesMut) {
    let is_written = match command {
        Command::Enqueue { tasks, atomic } => quick::push_enqueue(tasks, *atomic, part),
        Command::Ack(ack) => quick::push_ack(ack, part),
        _ => false,
    };
    if !is_written {
        entry::push_command(&CommandMessage::from(command), part);
    }
}

/// A command from its bytes, sharing envelopes and outputs with them.
pub fn decode(bytes: Bytes) -> Result<Command, Malformed> {
    match quick::decode(&bytes) {
        Some(command) => Ok(command),
        None => decode_any(bytes),
    }
}

/// The same, by its message.
pub(crate) fn decode_any(bytes: Bytes) -> Result<Command, Malformed> {
    let kind = CommandMessage::decode(bytes)?.kind.ok_or(Malformed::Unknown("command to a shard"))?;
    Ok(match kind {
        Kind::Enqueue(enqueue) => Command::Enqueue {
            tasks: enqueue.tasks.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
            atomic: enqueue.atomic,
        },
        Kind::Claim(claim) => Command::Claim(claim.try_into()?),
        Kind::ClaimById(claim) => Command::ClaimById(claim.try_into()?),
        Kind::Ack(ack) => Command::Ack(ack.try_into()?),
        Kind::Fail(fail) => Command::Fail(fail.try_into()?),
        Kind::Extend(extend) => Command::Extend {
            task: task_id(extend.task)?,
            fence: Fence(extend.fence),
            hold: extend.hold_ms.map(Millis),
        },
        Kind::Release(release) => Command::Release {
            task: task_id(release.task)?,
            fence: Fence(release.fence),
            delay: Millis(release.delay_ms),
        },
        Kind::Progress(progress) => Command::Progress {
            task: task_id(progress.task)?,
            fence: Fence(progress.fence),
            percent: u8::try_from(progress.percent).map_err(|_| Malformed::Value("percent"))?,
            note: progress.note,
        },
        Kind::PutBack(on) => Command::PutBack(on.try_into()?),
        Kind::Discard(on) => Command::Discard(on.try_into()?),
        Kind::Cancel(cancel) => Command::Cancel { task: task_id(cancel.task)?, reason: cancel.reason },
        Kind::Requeue(on) => Command::Requeue(on.try_into()?),
        Kind::Purge(queue) => Command::Purge { queue: queue_name(&queue)? },
        Kind::EndSession(end) => Command::EndSession {
            worker: worker_name(&end.worker)?,
            session: SessionId(end.session.ok_or(Malformed::Missing("session"))?.into()),
            reason: freed_reason(end.reason)?,
        },
        Kind::SetQueue(set) => Command::SetQueue {
            queue: queue_name(&set.queue)?,
            settings: set.settings.ok_or(Malformed::Missing("settings"))?.try_into()?,
        },
        Kind::DropQueue(drop) => {
            Command::DropQueue { queue: queue_name(&drop.queue)?, version: drop.version }
        }
        Kind::Deliver(deliver) => Command::Deliver {
            source: shard_id(deliver.source)?,
            messages: deliver.messages.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
        },
        Kind::Delivered(delivered) => {
            Command::Delivered { target: shard_id(delivered.target)?, upto: delivered.upto }
        }
        Kind::Pulse(limit) => Command::Pulse { limit },
    })
}

impl TryFrom<ClaimMessage> for Claim {
    type Error = Malformed;

    fn try_from(message: ClaimMessage) -> Result<Claim, Malformed> {
        let queue = |queue: ClaimQueueMessage| {
            Ok(ClaimQueue { name: queue_name(&queue.name)?, weight: queue.weight })
        };
        Ok(Claim {
            queues: message.queues.into_iter().map(queue).collect::<Result<_, Malformed>>()?,
            worker: worker_name(&message.worker)?,
            session: message.session.map(|bits| SessionId(bits.into())),
            max: message.max,
            hold: message.hold_ms.map(Millis),
            request: message.request.map(|bits| KeyHash(bits.into())),
        })
    }
}

impl TryFrom<ClaimByIdMessage> for ClaimById {
    type Error = Malformed;

    fn try_from(message: ClaimByIdMessage) -> Result<ClaimById, Malformed> {
        Ok(ClaimById {
            task: task_id(message.task)?,
            worker: worker_name(&message.worker)?,
            session: message.session.map(|bits| SessionId(bits.into())),
            hold: message.hold_ms.map(Millis),
            request: message.request.map(|bits| KeyHash(bits.into())),
        })
    }
}

impl TryFrom<AckMessage> for Ack {
    type Error = Malformed;

    fn try_from(message: AckMessage) -> Result<Ack, Malformed> {
        Ok(Ack {
            task: task_id(message.task)?,
            fence: Fence(message.fence),
            output: message.output,
            then: message.then.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
        })
    }
}

impl TryFrom<FailMessage> for Fail {
    type Error = Malformed;

    fn try_from(message: FailMessage) -> Result<Fail, Malformed> {
        Ok(Fail {
            task: task_id(message.task)?,
            fence: Fence(message.fence),
            error: message.error,
            detail: message.detail,
            retry_in: message.retry_in_ms.map(Millis),
            fatal: message.fatal,
        })
    }
}

impl TryFrom<OnTaskMessage> for OnTask {
    type Error = Malformed;

    fn try_from(message: OnTaskMessage) -> Result<OnTask, Malformed> {
        Ok(OnTask { task: task_id(message.task)?, fence: message.fence.map(Fence) })
    }
}

fn bytes_of(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

pub(crate) fn worker_name(bytes: &[u8]) -> Result<WorkerName, Malformed> {
    WorkerName::new(text(bytes)?).map_err(|_| Malformed::Value("worker name"))
}

pub(crate) fn freed_reason(number: u32) -> Result<FreedReason, Malformed> {
    let reason = u8::try_from(number).ok().and_then(FreedReason::from_number);
    reason.ok_or(Malformed::Value("reason of a freed claim"))
}
