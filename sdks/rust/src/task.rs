//! Tasks: the typed ones that a program writes down, and what travels.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::grpc;

use crate::error::Error;

/// A kind of task: its payload, where it waits, what comes out.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use windlass::Task;
///
/// #[derive(Serialize, Deserialize)]
/// struct Welcome {
///     to: String,
/// }
///
/// #[derive(Serialize, Deserialize)]
/// struct Receipt {
///     message_id: String,
/// }
///
/// impl Task for Welcome {
///     const KIND: &'static str = "welcome";
///     const QUEUE: &'static str = "mail";
///     type Output = Receipt;
/// }
/// ```
pub trait Task: Serialize + DeserializeOwned {
    /// Which handler it is for.
    const KIND: &'static str;
    /// The queue in which it waits.
    const QUEUE: &'static str;
    /// What its handler gives back; `()` for nothing.
    type Output: Serialize + DeserializeOwned;
}

/// The id of a task: a UUID as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(Arc<str>);

impl TaskId {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for TaskId {
    fn from(text: String) -> TaskId {
        TaskId(text.into())
    }
}

impl From<&str> for TaskId {
    fn from(text: &str) -> TaskId {
        TaskId(text.into())
    }
}

impl FromStr for TaskId {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<TaskId, Infallible> {
        Ok(text.into())
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TaskState {
    /// Due later, as its producer asked.
    Delayed,
    /// Backs off after a failed attempt.
    Retrying,
    /// Waits for its order key.
    Blocked,
    /// Waits for a worker.
    Ready,
    /// In the hands of a worker.
    Claimed,
    /// Ended: its handler is done.
    Done,
    /// Ended: its attempts are used up. It can be requeued.
    Dead,
    /// Ended: its attempts are used up, in a queue that keeps no dead tasks.
    Failed,
    /// Ended: somebody cancelled it.
    Cancelled,
    /// Ended: nobody claimed it in time.
    Expired,
}

impl TaskState {
    /// Each of them, in the order of a task's life.
    pub const ALL: [TaskState; 10] = [
        TaskState::Delayed,
        TaskState::Retrying,
        TaskState::Blocked,
        TaskState::Ready,
        TaskState::Claimed,
        TaskState::Done,
        TaskState::Dead,
        TaskState::Failed,
        TaskState::Cancelled,
        TaskState::Expired,
    ];

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskState::Delayed => "delayed",
            TaskState::Retrying => "retrying",
            TaskState::Blocked => "blocked",
            TaskState::Ready => "ready",
            TaskState::Claimed => "claimed",
            TaskState::Done => "done",
            TaskState::Dead => "dead",
            TaskState::Failed => "failed",
            TaskState::Cancelled => "cancelled",
            TaskState::Expired => "expired",
        }
    }

    /// Whether nothing more happens to it by itself.
    pub fn is_ended(self) -> bool {
        matches!(
            self,
            TaskState::Done | TaskState::Dead | TaskState::Failed | TaskState::Cancelled | TaskState::Expired
        )
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for TaskState {
    type Err = Error;

    fn from_str(word: &str) -> Result<TaskState, Error> {
        TaskState::ALL.into_iter().find(|state| state.as_str() == word).ok_or_else(|| Error::Json {
            what: "a task's state".into(),
            reason: format!("{word:?} is none that this version knows"),
        })
    }
}

/// A task in a worker's hands, as it came: for handlers that take any payload.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RawTask {
    /// Which.
    pub id: TaskId,
    /// Where it waited.
    pub queue: String,
    /// Which handler it is for.
    pub kind: String,
    /// Its payload, byte for byte.
    pub payload: Bytes,
    /// What the payload is; empty for JSON.
    pub content_type: String,
    /// What travels beside the payload.
    pub headers: BTreeMap<String, String>,
    /// 0 is served first, 9 last.
    pub priority: u32,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Grows with each claim of this task, for handing to other systems.
    pub fence: u64,
    /// What the claim is acked with; opaque. The worker does that itself: this is for programs that it starts.
    pub token: String,
    /// When the claim ends unless it is extended, by the server's clock.
    pub deadline: Option<SystemTime>,
    /// When it was enqueued, by the server's clock.
    pub enqueued_at: Option<SystemTime>,
    /// Tasks of one order key run one after the other.
    pub order_key: Option<String>,
    /// Tasks of one dedup key are one task.
    pub dedup_key: Option<String>,
}

impl RawTask {
    /// From a claim.
    pub(crate) fn of(claim: grpc::Claim) -> RawTask {
        RawTask {
            id: claim.id.into(),
            queue: claim.queue,
            kind: claim.kind,
            payload: claim.payload,
            content_type: claim.content_type,
            headers: claim.headers,
            priority: claim.priority,
            attempt: claim.attempt,
            fence: claim.fence,
            token: claim.token,
            deadline: claim.deadline.and_then(|at| at.try_into().ok()),
            enqueued_at: claim.enqueued_at.and_then(|at| at.try_into().ok()),
            order_key: claim.order_key,
            dedup_key: claim.dedup_key,
        }
    }

    /// A task that no server knows, first attempt, for handlers that are run in a test.
    pub fn made_up(queue: &str, kind: &str, payload: Bytes) -> RawTask {
        RawTask {
            id: "00000000-0000-7000-8000-000000000001".into(),
            queue: queue.to_owned(),
            kind: kind.to_owned(),
            payload,
            content_type: String::new(),
            headers: BTreeMap::new(),
            priority: 5,
            attempt: 1,
            fence: 1,
            token: String::new(),
            deadline: None,
            enqueued_at: None,
            order_key: None,
            dedup_key: None,
        }
    }

    /// The payload as a value.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.payload).map_err(|error| Error::Json {
            what: format!("the payload of {} {}", self.kind, self.id),
            reason: error.to_string(),
        })
    }
}

/// How far a task is: a percentage, with or without a note.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// 0 to 100.
    pub percent: u32,
    /// For people who watch.
    pub note: String,
}

impl From<u32> for Progress {
    fn from(percent: u32) -> Progress {
        Progress { percent, note: String::new() }
    }
}

impl<N: Into<String>> From<(u32, N)> for Progress {
    fn from((percent, note): (u32, N)) -> Progress {
        Progress { percent, note: note.into() }
    }
}

/// So many seconds.
pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// So many minutes.
pub const fn mins(mins: u64) -> Duration {
    Duration::from_secs(mins * 60)
}

/// So many hours.
pub const fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}

/// A length of time as the wire has it: whole milliseconds, rounded up, so that little does not become nothing.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_one_word_that_is_read_back() {
        for state in TaskState::ALL {
            assert_eq!(state.as_str().parse::<TaskState>().unwrap(), state);
        }
        assert!("ready ".parse::<TaskState>().is_err());
    }

    #[test]
    fn a_little_time_is_not_none() {
        for (duration, expected) in
            [(Duration::ZERO, 0), (Duration::from_micros(1), 1), (secs(1), 1_000), (hours(2), 7_200_000)]
        {
            assert_eq!(millis(duration), expected, "{duration:?}");
        }
    }
}
