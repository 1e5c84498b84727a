//! The tables of a checkpoint that are the replica's own, beside the machine's ([`state_machine::Table`]).
//! The numbers are part of the format.

use model::TaskId;

/// One record: what the checkpoint says of itself ([`wire::entry::CheckpointHead`]).
pub(crate) const HEAD: u8 = 0;
/// The key of that record.
pub(crate) const HEAD_KEY: &[u8] = b"head";
/// What is kept of a task when it first reaches a checkpoint ([`wire::history::KeptMessage`]), by id.
pub(crate) const KEPT: u8 = 16;
/// What came of it after that, by id. An envelope never changes and is not written again.
pub(crate) const LATER: u8 = 17;

/// A task's key.
pub(crate) fn key(task: TaskId) -> [u8; 16] {
    task.bits().to_be_bytes()
}

/// The task of a key.
pub(crate) fn task_of(key: &[u8]) -> Option<TaskId> {
    TaskId::from_bits(u128::from_be_bytes(key.try_into().ok()?))
}
