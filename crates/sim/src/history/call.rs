//! One call: what was asked, when, and what was heard.

use model::{StateKind, TaskId};
use serde::{Deserialize, Serialize};

use super::index::Indexes;
use super::text::{some_state, some_task, task};

/// What a client asked, and what it heard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Who asked.
    pub client: String,
    /// When the request began to leave, by the one clock of the history.
    pub start_us: u64,
    /// When the answer was there, or the client gave up.
    pub end_us: u64,
    /// What came of it.
    pub outcome: Outcome,
    /// Where in the logs the answer stands, if it says so.
    #[serde(default, skip_serializing_if = "Indexes::is_empty")]
    pub index: Indexes,
    /// What was asked, and what the answer said.
    #[serde(rename = "do")]
    pub deed: Deed,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done.
    Ok,
    /// It was refused with this code, and changed nothing.
    Rejected(String),
    /// Nobody knows: no answer, or the code `timeout`. It may still be done at any later time.
    Unknown,
}

/// What was asked, and what the answer said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Deed {
    /// One task taken in. A request with many is many calls of the same time.
    Enqueue(Enqueue),
    /// Ready tasks asked for.
    Claim(Claim),
    /// A task done.
    Ack(Settle),
    /// An attempt failed.
    Fail(Settle),
    /// A claim given back.
    Release(Settle),
    /// A deadline moved.
    Extend(Hold),
    /// Progress told.
    Progress(Hold),
    /// A claim taken from its holder.
    PutBack(OnTasks),
    /// A task ended by hand.
    Discard(OnTasks),
    /// A task's end asked for.
    Cancel(OnTasks),
    /// An ended task brought back.
    Requeue(OnTasks),
    /// All that waits in a queue cancelled.
    Purge {
        /// Which queue.
        queue: String,
    },
    /// A session, or all of a worker's, ended by a call.
    EndSession {
        /// Which session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
        /// Whose sessions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker: Option<String>,
    },
    /// A task looked at.
    Get {
        /// Which.
        #[serde(with = "task")]
        task: TaskId,
        /// Its queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queue: Option<String>,
        /// Its payload's hash.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        payload: Option<String>,
        /// What it was.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "some_state")]
        state: Option<StateKind>,
    },
    /// A queue's numbers looked at.
    Counts(Counts),
}

/// A call by its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Verb {
    Enqueue,
    Claim,
    Ack,
    Fail,
    Release,
    Extend,
    Progress,
    PutBack,
    Discard,
    Cancel,
    Requeue,
    Purge,
    EndSession,
    Get,
    Counts,
}

impl Verb {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Enqueue => "enqueue",
            Verb::Claim => "claim",
            Verb::Ack => "ack",
            Verb::Fail => "fail",
            Verb::Release => "release",
            Verb::Extend => "extend",
            Verb::Progress => "progress",
            Verb::PutBack => "put_back",
            Verb::Discard => "discard",
            Verb::Cancel => "cancel",
            Verb::Requeue => "requeue",
            Verb::Purge => "purge",
            Verb::EndSession => "end_session",
            Verb::Get => "get",
            Verb::Counts => "counts",
        }
    }
}

impl Deed {
    /// The word for it.
    pub fn verb(&self) -> Verb {
        match self {
            Deed::Enqueue(_) => Verb::Enqueue,
            Deed::Claim(_) => Verb::Claim,
            Deed::Ack(_) => Verb::Ack,
            Deed::Fail(_) => Verb::Fail,
            Deed::Release(_) => Verb::Release,
            Deed::Extend(_) => Verb::Extend,
            Deed::Progress(_) => Verb::Progress,
            Deed::PutBack(_) => Verb::PutBack,
            Deed::Discard(_) => Verb::Discard,
            Deed::Cancel(_) => Verb::Cancel,
            Deed::Requeue(_) => Verb::Requeue,
            Deed::Purge { .. } => Verb::Purge,
            Deed::EndSession { .. } => Verb::EndSession,
            Deed::Get { .. } => Verb::Get,
            Deed::Counts(_) => Verb::Counts,
        }
    }
}

/// One task taken in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enqueue {
    /// Into which queue.
    pub queue: String,
    /// A hash of its kind and payload. Two calls with one hash mean one task.
    pub payload: String,
    /// Its order key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_key: Option<String>,
    /// Its dedup key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_key: Option<String>,
    /// How long the dedup key is remembered after the end; 15 minutes if it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_window_ms: Option<u64>,
    /// Its unique key, until its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// Not claimed earlier than this after the enqueue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Not claimed earlier than this, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at_ms: Option<u64>,
    /// Its attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Whether its age may end it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub age_max: bool,
    /// Not claimed later than this after the enqueue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// How long it stays readable after its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<u64>,
    /// Answered: the task.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "some_task")]
    pub task: Option<TaskId>,
    /// Answered: it was there already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// Ready tasks asked for, from queues or by id.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// From which queues.
    pub queues: Vec<String>,
    /// For whom.
    pub worker: String,
    /// In which session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The request id: the same again gets the same claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// How long the claims hold, if the call says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<u64>,
    /// Answered: the claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub got: Vec<Got>,
}

/// One claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Got {
    /// Of which task.
    #[serde(with = "task")]
    pub task: TaskId,
    /// Its queue.
    pub queue: String,
    /// Its payload's hash.
    pub payload: String,
    /// The claim's fence.
    pub fence: u64,
    /// Which attempt it is, from 1.
    pub attempt: u32,
    /// How long it holds, if the task or the queue said so and not the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<u64>,
}

/// A claim ended by its holder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settle {
    /// Of which task.
    #[serde(with = "task")]
    pub task: TaskId,
    /// The claim's fence.
    pub fence: u64,
    /// Ack: what is enqueued with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Then>,
    /// Fail: the backoff that the worker asks for. Release: the delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_in_ms: Option<u64>,
    /// Fail: no retry.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fatal: bool,
    /// Answered: what the task is now.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "some_state")]
    pub state: Option<StateKind>,
    /// Answered to a fail or a release: attempts used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

impl Settle {
    /// The claim with this fence, and nothing said beyond that.
    pub fn of(task: TaskId, fence: u64) -> Settle {
        Settle { task, fence, then: Vec::new(), retry_in_ms: None, fatal: false, state: None, attempt: None }
    }
}

/// A task that an ack enqueues.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Then {
    /// Into which queue.
    pub queue: String,
    /// A hash of its kind and payload, of this follow-up alone.
    pub payload: String,
    /// Its order key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_key: Option<String>,
    /// Whether it has a dedup or unique key: then its work may be there already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keyed: bool,
    /// Not claimed earlier than this after the ack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Its attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
}

/// A claim kept by its holder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// Of which task.
    #[serde(with = "task")]
    pub task: TaskId,
    /// The claim's fence.
    pub fence: u64,
    /// Extend: from now; else as at the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<u64>,
}

/// Something done without a token, to one task or to some of a queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnTasks {
    /// To this task.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "some_task")]
    pub task: Option<TaskId>,
    /// To tasks of this queue, chosen by a filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Answered: what the task is now.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "some_state")]
    pub state: Option<StateKind>,
}

/// A queue's numbers, over all shards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Which queue.
    pub queue: String,
    /// Since the queue was made.
    #[serde(default)]
    pub totals: Totals,
    /// Now.
    #[serde(default)]
    pub depth: Depth,
}

/// Numbers that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Totals {
    pub enqueued: u64,
    pub done: u64,
    pub failed: u64,
    pub dead: u64,
    pub freed: u64,
}

/// How many tasks are in which live state, and how many are dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Depth {
    pub ready: u64,
    pub claimed: u64,
    pub delayed: u64,
    pub retrying: u64,
    pub blocked: u64,
    pub dead: u64,
}

impl Depth {
    /// How many have not ended.
    pub fn live(&self) -> u64 {
        self.ready + self.claimed + self.delayed + self.retrying + self.blocked
    }
}
