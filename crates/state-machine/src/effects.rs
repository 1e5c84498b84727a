//! What an applied command asks of the world around the state machine.

use bytes::Bytes;
use model::{Event, QueueName, ShardId, TaskId};

/// One thing to do or to tell. Every replica does `Keep`, `Output`, `Detail`, `Happened` (for the
/// history) and `Forget`; only the leader tells others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Keep the envelope of a task that entered.
    Keep {
        /// Whose.
        task: TaskId,
        /// Its bytes.
        envelope: Bytes,
    },
    /// Keep the output of a task that is done.
    Output {
        /// Whose.
        task: TaskId,
        /// Its bytes.
        output: Bytes,
    },
    /// Keep the detail of a task's last error.
    Detail {
        /// Whose.
        task: TaskId,
        /// A backtrace, for instance.
        detail: String,
    },
    /// Add a line to a task's history, at the time and index of the command.
    Happened {
        /// To which.
        task: TaskId,
        /// Its queue.
        queue: QueueName,
        /// What.
        event: Event,
    },
    /// The task's record is gone: forget its envelope, output, detail and history.
    Forget {
        /// Which.
        task: TaskId,
    },
    /// A queue that had nothing ready has something now, or its best changed.
    Ready {
        /// Which.
        queue: QueueName,
    },
    /// There is a message for another shard.
    Outbox {
        /// Which shard.
        target: ShardId,
    },
}

/// Gathers effects in the order in which they came about.
#[derive(Debug, Default)]
pub struct Effects {
    list: Vec<Effect>,
}

impl Effects {
    /// Adds one.
    pub fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }

    /// Takes all that was gathered.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Effect> {
        self.list.drain(..)
    }

    /// What was gathered.
    pub fn as_slice(&self) -> &[Effect] {
        &self.list
    }
}
