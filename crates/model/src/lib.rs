//! The nouns of Windlass: ids, times, states, policies, commands and their answers.
//!
//! Pure: no clock, no randomness, no IO, no async. Values are checked when they are made, so whoever
//! holds one may rely on it. Next: `state-machine`, which says what a command does.

pub mod catalog;
pub mod command;
pub mod id;
pub mod key;
pub mod limits;
pub mod mutant;
pub mod name;
pub mod policy;
pub mod rejection;
pub mod reply;
pub mod state;
pub mod time;

pub use command::{Command, FollowUp, NewTask, OutboxMessage, Position, Start, Wishes};
pub use id::{Fence, GroupId, MemberId, NodeId, SessionId, ShardId, TaskId};
pub use key::{Digest, KeyHash};
pub use mutant::Mutant;
pub use name::{InvalidName, KindName, QueueName, WorkerName};
pub use policy::{
    FreedTo, OnExhausted, QueuePolicy, QueueSettings, Recovery, RetryOverride, RetryPolicy, Spread,
};
pub use rejection::Rejection;
pub use reply::{Claimed, Enqueued, Reply, Settled};
pub use state::{Event, Failure, FreedReason, Stand, StateKind};
pub use time::{Elapsed, Millis, WallTime};
