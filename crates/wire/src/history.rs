//! What is kept of a task beside its execution, as bytes: envelope, output, detail, history.
//!
//! A record of the checkpoint; see `docs/formats/entry.md`. The state machine never sees these.

use bytes::Bytes;
use model::{Event, Failure, Fence, Millis, StateKind, WallTime};
use prost::Message;

use crate::command::{freed_reason, worker_name};
use crate::entry::Malformed;

/// All that is kept of a task: whole when it is first written, and what came later.
#[derive(Clone, PartialEq, Message)]
pub struct KeptMessage {
    /// The envelope; only in the first record.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub envelope: Option<Bytes>,
    /// What came out.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub output: Option<Bytes>,
    /// The detail of the last error.
    #[prost(string, optional, tag = "3")]
    pub detail: Option<String>,
    /// What happened, oldest first.
    #[prost(message, repeated, tag = "4")]
    pub history: Vec<LineMessage>,
}

/// A line of a task's history.
#[derive(Clone, PartialEq, Message)]
pub struct LineMessage {
    #[prost(uint64, tag = "1")]
    at_ms: u64,
    #[prost(uint64, tag = "2")]
    index: u64,
    #[prost(uint32, tag = "3")]
    kind: u32,
    #[prost(uint32, tag = "4")]
    state: u32,
    #[prost(string, tag = "5")]
    worker: String,
    #[prost(uint32, tag = "6")]
    attempt: u32,
    #[prost(uint64, tag = "7")]
    fence: u64,
    #[prost(uint32, tag = "8")]
    reason: u32,
    #[prost(string, tag = "9")]
    text: String,
    #[prost(uint64, tag = "10")]
    retry_in_ms: u64,
}

const ENQUEUED: u32 = 1;
const BECAME_READY: u32 = 2;
const BECAME_DELAYED: u32 = 3;
const CLAIMED: u32 = 4;
const FREED: u32 = 5;
const FAILED: u32 = 6;
const ACKED: u32 = 7;
const CANCEL_REQUESTED: u32 = 8;
const ENDED: u32 = 9;
const REQUEUED: u32 = 10;

impl LineMessage {
    /// A line for what happened at a time and an index.
    pub fn new(at: WallTime, index: u64, event: &Event) -> LineMessage {
        let line = LineMessage { at_ms: at.millis(), index, ..LineMessage::default() };
        let number = |state: &StateKind| u32::from(*state as u8);
        match event {
            Event::Enqueued { state } => LineMessage { kind: ENQUEUED, state: number(state), ..line },
            Event::BecameReady => LineMessage { kind: BECAME_READY, ..line },
            Event::BecameDelayed => LineMessage { kind: BECAME_DELAYED, ..line },
            Event::Claimed { worker, attempt, fence } => LineMessage {
                kind: CLAIMED,
                worker: worker.to_string(),
                attempt: *attempt,
                fence: fence.0,
                ..line
            },
            Event::Freed { worker, reason, state } => LineMessage {
                kind: FREED,
                worker: worker.to_string(),
                reason: u32::from(*reason as u8),
                state: number(state),
                ..line
            },
            Event::Failed { worker, state, failure } => LineMessage {
                kind: FAILED,
                worker: worker.to_string(),
                text: failure.error.clone(),
                state: number(state),
                retry_in_ms: failure.retry_in.0,
                ..line
            },
            Event::Acked { worker } => LineMessage { kind: ACKED, worker: worker.to_string(), ..line },
            Event::CancelRequested => LineMessage { kind: CANCEL_REQUESTED, ..line },
            Event::Ended { state, reason } => {
                LineMessage { kind: ENDED, state: number(state), text: reason.clone(), ..line }
            }
            Event::Requeued { state } => LineMessage { kind: REQUEUED, state: number(state), ..line },
        }
    }

    /// When it happened.
    pub fn at(&self) -> WallTime {
        WallTime::from_millis(self.at_ms)
    }

    /// At which index of the log.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// What happened.
    pub fn event(&self) -> Result<Event, Malformed> {
        let state = || {
            let number = u8::try_from(self.state).ok();
            number.and_then(StateKind::from_number).ok_or(Malformed::Value("state"))
        };
        let worker = || worker_name(self.worker.as_bytes());
        Ok(match self.kind {
            ENQUEUED => Event::Enqueued { state: state()? },
            BECAME_READY => Event::BecameReady,
            BECAME_DELAYED => Event::BecameDelayed,
            CLAIMED => Event::Claimed { worker: worker()?, attempt: self.attempt, fence: Fence(self.fence) },
            FREED => Event::Freed { worker: worker()?, reason: freed_reason(self.reason)?, state: state()? },
            FAILED => Event::Failed {
                worker: worker()?,
                state: state()?,
                failure: Box::new(Failure { error: self.text.clone(), retry_in: Millis(self.retry_in_ms) }),
            },
            ACKED => Event::Acked { worker: worker()? },
            CANCEL_REQUESTED => Event::CancelRequested,
            ENDED => Event::Ended { state: state()?, reason: self.text.clone() },
            REQUEUED => Event::Requeued { state: state()? },
            _ => return Err(Malformed::Unknown("line of a history")),
        })
    }
}
