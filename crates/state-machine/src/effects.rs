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

/// Where a task lies in the memory of its machine while it is there, for tables beside the machine: no two tasks have the same at
/// one time. Another copy of the shard, and this one after a restart, has the task elsewhere.
pub type Slot = u32;

/// No slot.
pub(crate) const NO_SLOT: Slot = Slot::MAX;

/// Gathers effects in the order in which they came about.
#[derive(Debug, Default)]
pub struct Effects {
    list: Vec<Effect>,
    /// Where the task of each lies; beside the effects, which are the same on every copy.
    slots: Vec<Slot>,
}

impl Effects {
    /// Adds one that is not about a task.
    pub fn push(&mut self, effect: Effect) {
        self.push_of(NO_SLOT, effect);
    }

    /// Adds one about the task in this slot.
    pub fn push_of(&mut self, slot: Slot, effect: Effect) {
        self.list.push(effect);
        self.slots.push(slot);
    }

    /// Takes all that was gathered, each with the slot of its task.
    pub fn drain(&mut self) -> impl Iterator<Item = (Slot, Effect)> + '_ {
        self.slots.drain(..).zip(self.list.drain(..))
    }

    /// Keeps room for so many at most.
    pub fn shrink_to(&mut self, effects: usize) {
        self.list.shrink_to(effects);
        self.slots.shrink_to(effects);
    }

    /// What was gathered.
    pub fn as_slice(&self) -> &[Effect] {
        &self.list
    }
}
