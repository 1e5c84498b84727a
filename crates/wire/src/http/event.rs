//! `GET /v1/events` and a worker's held session: what server-sent events carry.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::time::Time;
use super::value::{Id, Ms, State};
use super::worker::{RunningTask, WorkerStateWord};

/// Something that happened. The number of the event is in the stream's `id:`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventReply {
    /// When.
    pub at: Time,
    /// What: a word of a task's history, or `worker_registered`, `worker_lost`, `worker_left`,
    /// `deadline_passed`, `queue_changed`, `queue_deleted`, `replica_diverged`, `events_missed`.
    pub event: String,
    /// Where in the log: `shard:index`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub index: Option<String>,
    /// Which task.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub task: Option<Id>,
    /// Which queue.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queue: Option<String>,
    /// Which worker.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub worker: Option<String>,
    /// What the task is after it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state: Option<State>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// How many tasks were freed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub freed: Option<u64>,
    /// How long the worker had not been heard.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub since_last_beat_ms: Option<Ms>,
}

/// What a held session tells its worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionEventReply {
    /// What the worker shall do.
    pub state: WorkerStateWord,
    /// Which tasks it shall stop.
    pub cancel: Vec<RunningTask>,
}
