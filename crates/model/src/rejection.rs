//! The request does not fit the state: nothing changed, and the caller decides what next.

use crate::id::{Fence, NodeId, TaskId};
use crate::name::QueueName;
use crate::state::StateKind;

/// Why a shard or the catalog said no.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// No task of this id, or its retention has passed.
    #[error("there is no task {id}: it never was, or its retention has passed")]
    NotFound {
        /// The id asked for.
        id: TaskId,
    },
    /// No queue of this name.
    #[error("there is no queue {queue:?}: create it with PUT /v1/queues/{queue}")]
    UnknownQueue {
        /// The name asked for.
        queue: QueueName,
    },
    /// The task was freed and nobody claimed it since.
    #[error("task {id} is {state}, nobody holds it: claim it to work on it")]
    NotClaimed {
        /// Which.
        id: TaskId,
        /// What it is.
        state: StateKind,
    },
    /// Another claim came after this one.
    #[error("this token has fence {given}, task {id} has had fence {current} since: stop working on it")]
    StaleToken {
        /// Which.
        id: TaskId,
        /// The caller's.
        given: Fence,
        /// The task's last.
        current: Fence,
    },
    /// The task cannot be claimed now.
    #[error("task {id} is {state}, only a ready task can be claimed")]
    NotReady {
        /// Which.
        id: TaskId,
        /// What it is.
        state: StateKind,
    },
    /// The task is over, and this needs a live one.
    #[error("task {id} has ended as {state}")]
    AlreadyEnded {
        /// Which.
        id: TaskId,
        /// Its end.
        state: StateKind,
    },
    /// The task is not over, and this needs an ended one.
    #[error("task {id} is {state}: only a dead, failed or cancelled task can be requeued")]
    NotEnded {
        /// Which.
        id: TaskId,
        /// What it is.
        state: StateKind,
    },
    /// Another task has the unique key.
    #[error("task {holder} has this key already")]
    NotUnique {
        /// Who has it.
        holder: TaskId,
    },
    /// The dedup key's task has another kind or payload.
    #[error("task {holder} has this dedup key, but another kind or payload: use another key")]
    DedupMismatch {
        /// Who has it.
        holder: TaskId,
    },
    /// The queue has as many tasks, or dedup keys, as it takes.
    #[error("queue {queue:?} is full ({count} {what}): retry later or raise {limit}")]
    QueueFull {
        /// Which.
        queue: QueueName,
        /// How many there are, in this shard.
        count: u64,
        /// Of what.
        what: &'static str,
        /// The policy field.
        limit: &'static str,
    },
    /// An atomic enqueue failed because of another of its tasks.
    #[error("nothing was enqueued, task {n} of this atomic request was refused: {because}")]
    NotAtomic {
        /// Which one, from 0.
        n: usize,
        /// Why.
        because: Box<Rejection>,
    },
    /// The cluster has as many queues as it takes.
    #[error("queue {queue:?} would be one too many, there are {count} already: delete empty ones")]
    TooManyQueues {
        /// The one that is not made.
        queue: QueueName,
        /// How many there are.
        count: u64,
    },
    /// The settings are older than what is there.
    #[error("version {given} is not newer than {current}: read the queue again and retry")]
    StaleVersion {
        /// The caller's.
        given: u64,
        /// What is there.
        current: u64,
    },
    /// The queue has tasks.
    #[error("queue {queue:?} is not empty ({count} tasks): {hint}")]
    NotEmpty {
        /// Which.
        queue: QueueName,
        /// How many there are.
        count: u64,
        /// What to do.
        hint: &'static str,
    },
    /// The settings that placed the task here are not the queue's any more.
    #[error("queue {queue:?} lives in another shard since its settings changed: retry")]
    Moved {
        /// Which.
        queue: QueueName,
    },
    /// Nobody has made the cluster yet.
    #[error("the cluster is still being made: retry")]
    NoCluster,
    /// The cluster has no such node, or not in this life.
    #[error("node {node} is not part of this cluster, or is leaving it: see `windlass cluster status`")]
    UnknownNode {
        /// The one asked for.
        node: NodeId,
    },
    /// The node cannot go, or cannot have its votes taken.
    #[error("node {node} is still needed: it has votes, or no other node could take them; add a node first")]
    NodeNeeded {
        /// Which.
        node: NodeId,
    },
    /// The cluster has as many nodes as it takes.
    #[error(
        "node {node} would be one too many, there are {count} already: remove one with `windlass cluster leave`"
    )]
    TooManyNodes {
        /// The one that is not taken in.
        node: NodeId,
        /// How many there are.
        count: u64,
    },
}

impl Rejection {
    /// The stable code that programs read.
    pub fn code(&self) -> &'static str {
        match self {
            Rejection::NotFound { .. } => "not_found",
            Rejection::UnknownQueue { .. } => "unknown_queue",
            Rejection::NotClaimed { .. } => "not_claimed",
            Rejection::StaleToken { .. } => "stale_token",
            Rejection::NotReady { .. } => "not_ready",
            Rejection::AlreadyEnded { .. } => "already_ended",
            Rejection::NotEnded { .. } => "not_ready",
            Rejection::NotUnique { .. } => "not_unique",
            Rejection::DedupMismatch { .. } => "dedup_mismatch",
            Rejection::QueueFull { .. } => "queue_full",
            Rejection::NotAtomic { because, .. } => because.code(),
            Rejection::TooManyQueues { .. } => "queue_full",
            Rejection::StaleVersion { .. } => "stale_version",
            Rejection::NotEmpty { .. } => "not_ready",
            Rejection::Moved { .. } | Rejection::NoCluster => "unavailable",
            Rejection::UnknownNode { .. } => "not_found",
            Rejection::NodeNeeded { .. } => "not_ready",
            Rejection::TooManyNodes { .. } => "not_ready",
        }
    }
}
