//! What a shard answers.

use bytes::Bytes;

use crate::id::{Fence, TaskId};
use crate::name::QueueName;
use crate::rejection::Rejection;
use crate::state::StateKind;
use crate::time::{Elapsed, Millis, WallTime};

/// What became of one enqueued task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// The task: the new one, or the one that has the dedup key.
    pub id: TaskId,
    /// Whether another enqueue made it.
    pub duplicate: bool,
    /// What it is now.
    pub state: StateKind,
}

/// One task given to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Which.
    pub id: TaskId,
    /// Its queue.
    pub queue: QueueName,
    /// Its priority.
    pub priority: u8,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// The claim's fence.
    pub fence: Fence,
    /// When the claim ends, in the shard's own time.
    pub deadline: Elapsed,
    /// The same for people.
    pub deadline_wall: WallTime,
    /// How long it holds, from the claim on; 0 from a node that does not say.
    pub hold: Millis,
    /// When it was enqueued.
    pub enqueued_at: WallTime,
    /// Since when it could be claimed.
    pub ready_since: WallTime,
    /// Filled in by the replica after `apply`; empty until then.
    pub envelope: Bytes,
}

/// What became of a task that somebody settled or acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Which.
    pub id: TaskId,
    /// What it is now.
    pub state: StateKind,
    /// Attempts used up.
    pub attempt: u32,
    /// When it is due again, if it waits for a time.
    pub due: Option<WallTime>,
}

/// What a shard answers to a command that it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `Enqueue`, in the order given.
    Enqueued(Vec<Result<Enqueued, Rejection>>),
    /// To `Claim` and `ClaimById`.
    Claimed(Vec<Claimed>),
    /// To `Ack`, `Fail`, `Release`, `PutBack`, `Discard`, `Cancel` and `Requeue`.
    Settled(Settled),
    /// To `Extend` and `Progress`.
    Held {
        /// When the claim ends.
        deadline: WallTime,
        /// Whether the worker should stop.
        cancel_requested: bool,
    },
    /// To `EndSession`: how many claims it freed. To `Purge`: how many tasks it will cancel. To `Pulse`: how much it did.
    Count(u64),
    /// To `Deliver`: the number up to which the target has everything.
    Upto(u64),
    /// To the rest.
    Done,
}
