//! What a replica needs of the state machine it drives: the shard's and the catalog's alike.

use model::{Elapsed, Position, Rejection, WallTime};

use crate::effects::{Effects, Slot};

/// A table of a checkpoint. The number is part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    /// Counters and stamps: one record.
    Meta = 1,
    /// Queues, their settings and totals.
    Queues = 2,
    /// Executions, by task id.
    Executions = 3,
    /// Dedup keys whose task has gone.
    Keys = 4,
    /// Request ids and their claims.
    Requests = 5,
    /// Outcomes of tasks that went early.
    Outcomes = 6,
    /// Messages for other shards.
    Outbox = 7,
}

impl Table {
    /// All of them, in the order in which they are loaded.
    pub const ALL: [Table; 7] = [
        Table::Meta,
        Table::Queues,
        Table::Executions,
        Table::Keys,
        Table::Requests,
        Table::Outcomes,
        Table::Outbox,
    ];
}

/// A record that a checkpoint writes (`value`) or removes (no `value`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where.
    pub table: Table,
    /// Under which key.
    pub key: Vec<u8>,
    /// What, or nothing when it is gone.
    pub value: Option<Vec<u8>>,
}

impl Change {
    /// How long key and value are.
    pub fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Vec::len)
    }
}

/// A checkpoint's record that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("damaged record in table {table:?}: {what}")]
pub struct Damaged {
    /// Where.
    pub table: Table,
    /// What is wrong with it.
    pub what: &'static str,
}

/// When something is due next, in either time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextDue {
    /// A deadline or backoff.
    pub elapsed: Option<Elapsed>,
    /// A delay, expiry or retention.
    pub wall: Option<WallTime>,
}

/// A deterministic state machine that can be checkpointed while it runs.
pub trait Machine: Send + 'static {
    /// What can be asked.
    type Command: Send + 'static;
    /// What it answers.
    type Reply: Send + 'static;

    /// Applies one committed command.
    ///
    /// Runs on every replica: the result may depend only on the machine, `at` and `command`.
    /// A rejected command touched nothing.
    fn apply(
        &mut self,
        at: Position,
        command: Self::Command,
        effects: &mut Effects,
    ) -> Result<Self::Reply, Rejection>;

    /// Looks at what these commands will change, so that it is in the processor's caches when they do. Tells where tasks are
    /// that will end and that will go.
    fn foresee(&self, _commands: &[Self::Command], _slots: &mut Vec<Slot>) {}

    /// The stamps of the last applied command: a new leader goes on from here.
    fn stamps(&self) -> (Elapsed, WallTime);

    /// When a pulse has something to do. `None` in both: nothing, ever.
    fn next_due(&self) -> NextDue;

    /// The sum over all records: equal on all replicas at the same index.
    fn hash(&mut self) -> u128;

    /// How many records changed since the last cut.
    fn changed(&self) -> usize;

    /// Begins a checkpoint of all that changed since the last one, as it is now. Costs nothing that
    /// grows with the changes: later commands save a record's bytes before they change it.
    ///
    /// The one before must have been drained by [`Machine::cut_some`].
    fn cut(&mut self);

    /// Encodes up to `limit` more records of the cut. Whether there are more.
    fn cut_some(&mut self, limit: usize, out: &mut Vec<Change>) -> bool;

    /// Takes in a record of a checkpoint. Tables in the order of [`Table::ALL`], into a new machine.
    fn load(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Damaged>;

    /// All records are in: builds the indexes.
    fn loaded(&mut self) -> Result<(), Damaged>;
}
