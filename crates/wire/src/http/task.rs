//! `/v1/tasks`: looking at tasks, and acting on them without a token.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::fresh::StaleWord;
use super::text::{Pairs, Text};
use super::time::Time;
use super::value::{Id, Ms, Session, State};

/// A task. `output`, `detail` and `history` come when one task is asked for, not in lists.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TaskReply<'a> {
    /// Which.
    pub id: Id,
    /// Its queue.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub queue: Text<'a>,
    /// Which handler it is for.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub kind: Text<'a>,
    /// What it is.
    pub state: State,
    /// Which attempt runs now, or ran last; 0 before the first.
    pub attempt: u32,
    /// Attempts in all.
    pub attempts_max: u32,
    /// 0 is served first.
    pub priority: u8,
    /// Its order key.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub order_key: Option<Text<'a>>,
    /// Its dedup key.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub dedup_key: Option<Text<'a>>,
    /// Its unique key.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub unique_key: Option<Text<'a>>,
    /// Its payload, byte for byte.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<&'a RawValue>,
    /// Its payload, when it was enqueued as bytes.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub payload_base64: Option<Text<'a>>,
    /// What those bytes are.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub content_type: Option<Text<'a>>,
    /// What travels beside the payload.
    #[serde(borrow, default, skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub headers: Pairs<'a>,
    /// What came out.
    #[serde(borrow)]
    #[schema(value_type = Option<Object>)]
    pub output: Option<&'a RawValue>,
    /// Its last error.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub error: Option<Text<'a>>,
    /// The rest of its last error.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub detail: Option<Text<'a>>,
    /// How far it is.
    pub progress: Option<ProgressReply>,
    /// When it was enqueued.
    pub enqueued_at: Time,
    /// When it becomes ready, if it waits for a time.
    pub due: Option<Time>,
    /// When its claim ends, if it is claimed.
    pub deadline: Option<Time>,
    /// Who holds it, if anybody.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub worker: Option<Text<'a>>,
    /// In which session it is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// Its last fence; 0 before the first claim.
    pub fence: u64,
    /// Whether its holder was asked to stop.
    #[serde(default)]
    pub cancel_requested: bool,
    /// When it expires, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// When it ended, if it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// What happened, oldest first; the last 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<HistoryReply>>,
}

/// How far a task is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProgressReply {
    /// 0 to 100.
    pub percent: u8,
    /// For people who watch.
    pub note: String,
}

/// One line of a task's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryReply {
    /// When.
    pub at: Time,
    /// At which index of its shard's log.
    pub index: u64,
    /// What: `enqueued`, `ready`, `claimed`, `freed`, `failed`, `acked`, …
    pub event: String,
    /// Who had a hand in it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub worker: Option<String>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// What the task was after it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state: Option<State>,
    /// Which attempt began.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attempt: Option<u32>,
    /// The fence of the claim.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fence: Option<u64>,
    /// Why: a freed claim's reason, or why it was ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// The backoff that followed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry_in_ms: Option<Ms>,
}

/// Tasks, one step of a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TasksReply<'a> {
    /// What was found.
    #[serde(borrow)]
    #[schema(value_type = Vec<TaskReply>)]
    pub tasks: Vec<TaskReply<'a>>,
    /// How many tasks were looked at.
    pub looked_at: u64,
    /// Where to go on; nothing when this was the last step.
    pub cursor: Option<String>,
}

/// Why a task is not being worked on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhyReply {
    /// What it is.
    pub state: State,
    /// Every reason there is.
    pub reasons: Vec<ReasonReply>,
}

/// A reason, for programs and for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReasonReply {
    /// The stable word.
    pub code: String,
    /// The same in a sentence.
    pub text: String,
}

/// `GET /v1/tasks/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TaskQuery {
    /// Answers when the task has ended, or after this long: at most 60000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// `ok`: this node's own copy will do, quorum or not.
    #[param(inline)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<StaleWord>,
}

/// `GET /v1/queues/{queue}/tasks/{dedup_key}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DedupQuery {
    /// The order key, if the task has one: a dedup key holds within it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_key: Option<String>,
    /// The unique key, if the task has one and no order key: a dedup key holds within it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// `ok`: this node's own copy will do, quorum or not.
    #[param(inline)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<StaleWord>,
}

/// `GET /v1/tasks`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TasksQuery {
    /// Of this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// In this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// With this order key; needs a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_key: Option<String>,
    /// With this text in id, kind, keys, headers or payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q: Option<String>,
    /// At most so many: 1 to 1000, 100 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Where the step before ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// `ok`: this node's own copy will do, quorum or not.
    #[param(inline)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<StaleWord>,
}

/// `GET /v1/claims`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ClaimsQuery {
    /// Of this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Held by this worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Held for at least this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than_ms: Option<u64>,
    /// At most so many: 1 to 1000, 100 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Where the step before ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// `ok`: this node's own copy will do, quorum or not.
    #[param(inline)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<StaleWord>,
}

/// `POST /v1/tasks:requeue · :discard · :cancel · :put-back`: acts on what fits, in bounded steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"queue": "mail", "state": "dead", "dry_run": true}))]
pub struct ActionRequest {
    /// Of this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// In this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// With this order key; needs a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_key: Option<String>,
    /// Held by this worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Held for at least this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than_ms: Option<Ms>,
    /// With this text in id, kind, keys, headers or payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q: Option<String>,
    /// Only counts.
    #[serde(default)]
    pub dry_run: bool,
    /// Where the step before ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// What one step of an action by filter did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ActionReply {
    /// How many fit the filter.
    pub matched: u64,
    /// How many were changed.
    pub changed: u64,
    /// Where to go on; nothing when this was the last step.
    pub cursor: Option<String>,
}

/// `DELETE /v1/tasks/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CancelQuery {
    /// Why, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
