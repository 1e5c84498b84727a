//! What changed since the last checkpoint, and the running hash.
//!
//! A checkpoint takes the state as it was at the cut without copying it: a task that changes while
//! the cut is being read has its bytes saved first. Every change of an execution goes through
//! [`Shard::touch`]; whoever forgets it breaks P9, and the tests against the naive model say so.

use model::TaskId;

use super::Shard;
use super::execution::{Flags, QueueNo, Slot};
use super::outcomes::Outcome;
use super::record::{self, Writer};
use crate::machine::{Change, Table};

/// Executions hashed in one go, at the latest. Under load most tasks are enqueued, claimed and acked before they are hashed at
/// all; hashing so many takes about two milliseconds.
const UNHASHED_MAX: usize = 16_384;

/// Room for changed tasks that is kept from checkpoint to checkpoint.
const CHANGED_KEPT: usize = 65_536;

/// What changed since the last checkpoint, and the running hash.
#[derive(Default)]
pub(super) struct Journal {
    /// Which of the two is being filled.
    epoch: usize,
    /// Slots suffice: a task that took over a slot has flags of its own, and is listed itself.
    changed: [Vec<Slot>; 2],
    removed: Vec<TaskId>,
    /// Small records that never change between being made and removed, in order.
    pending: Vec<Change>,
    queues: Vec<QueueNo>,
    cut: Cut,
    unhashed: Vec<Slot>,
    unhashed_queues: Vec<QueueNo>,
    hash: u128,
    scratch: Writer,
}

/// What the running checkpoint has yet to hand out.
#[derive(Default)]
struct Cut {
    removed: Vec<TaskId>,
    /// Handed out from the end, so they lie in reverse.
    ready: Vec<Change>,
    changed: usize,
}

/// The hash of one record.
pub(super) fn hash_record(table: Table, key: &[u8], value: &[u8]) -> u128 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::with_seed(table as u64);
    hasher.update(key);
    hasher.update(value);
    hasher.digest128()
}

/// As [`hash_record`], for executions: twice as fast in one piece.
fn hash_execution(bytes: &[u8]) -> u128 {
    xxhash_rust::xxh3::xxh3_128_with_seed(bytes, Table::Executions as u64)
}

/// The hash of one outcome: they are stored many in a record, but come and go one by one.
pub(super) fn hash_outcome(bytes: &[u8]) -> u128 {
    xxhash_rust::xxh3::xxh3_128_with_seed(bytes, Table::Outcomes as u64)
}

impl Journal {
    pub(super) fn changed(&self) -> usize {
        self.changed[self.epoch].len() + self.removed.len() + self.pending.len() + self.queues.len()
    }

    /// A small record was made.
    pub(super) fn put(&mut self, table: Table, key: Vec<u8>, value: Vec<u8>) {
        self.hash = self.hash.wrapping_add(hash_record(table, &key, &value));
        self.pending.push(Change { table, key, value: Some(value) });
    }

    /// A small record went.
    pub(super) fn delete(&mut self, table: Table, key: Vec<u8>, value: &[u8]) {
        self.hash = self.hash.wrapping_sub(hash_record(table, &key, value));
        self.pending.push(Change { table, key, value: None });
    }

    /// A record that is stored in another form than it is hashed.
    pub(super) fn store(&mut self, table: Table, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.pending.push(Change { table, key, value });
    }

    pub(super) fn add_hash(&mut self, hash: u128) {
        self.hash = self.hash.wrapping_add(hash);
    }

    /// An outcome went.
    pub(super) fn subtract_outcome(&mut self, outcome: &Outcome) {
        self.scratch.0.clear();
        outcome.write(&mut self.scratch);
        self.hash = self.hash.wrapping_sub(hash_outcome(&self.scratch.0));
    }
}

impl Shard {
    /// A new task is in its slot.
    pub(super) fn touch_new(&mut self, slot: Slot) {
        self.tasks[slot].flags.set(Flags::CHANGED[self.journal.epoch] | Flags::UNHASHED);
        self.journal.changed[self.journal.epoch].push(slot);
        self.journal.unhashed.push(slot);
    }

    /// Says that a task is about to change: before the first field does.
    pub(super) fn touch(&mut self, slot: Slot) {
        self.save_before(slot);
        let task = &mut self.tasks[slot];
        let journal = &mut self.journal;
        if !task.flags.has(Flags::UNHASHED) {
            task.flags.set(Flags::UNHASHED);
            journal.unhashed.push(slot);
        }
        let now = Flags::CHANGED[journal.epoch];
        if !task.flags.has(now) {
            task.flags.set(now);
            journal.changed[journal.epoch].push(slot);
        }
    }

    /// Says that a task is about to leave its slot: before the first field changes, and none but lists change it any more.
    pub(super) fn touch_last(&mut self, slot: Slot) {
        self.save_before(slot);
        let task = &self.tasks[slot];
        if task.flags.has(Flags::STORED) {
            self.journal.removed.push(task.id);
        }
    }

    /// Hands the task as it is to the cut that is being read, and takes it out of the hash, if it is in them.
    fn save_before(&mut self, slot: Slot) {
        let journal = &mut self.journal;
        let before = Flags::CHANGED[1 - journal.epoch];
        let task = &mut self.tasks[slot];
        let (in_cut, hashed) = (task.flags.has(before), !task.flags.has(Flags::UNHASHED));
        if !in_cut && !hashed {
            return;
        }
        journal.scratch.0.clear();
        journal.scratch.u128(task.id.bits());
        record::write_execution(&mut journal.scratch, task, self.claims.get(&slot));
        if in_cut {
            let value = Some(journal.scratch.0[16..].to_vec());
            journal.cut.ready.push(Change { table: Table::Executions, key: execution_key(task.id), value });
            task.flags.clear(before);
            task.flags.set(Flags::STORED);
        }
        if hashed {
            journal.hash = journal.hash.wrapping_sub(hash_execution(&journal.scratch.0));
        }
    }

    /// Says that a queue's record is about to change.
    pub(super) fn touch_queue(&mut self, no: QueueNo) {
        let Some(queue) = self.queues.get_mut(no) else { return };
        if !queue.changed {
            queue.changed = true;
            self.journal.queues.push(no);
        }
        if !queue.unhashed {
            self.journal.scratch.0.clear();
            record::write_queue(&mut self.journal.scratch, queue);
            let hash = hash_record(Table::Queues, &no.to_be_bytes(), &self.journal.scratch.0);
            self.journal.hash = self.journal.hash.wrapping_sub(hash);
            queue.unhashed = true;
            self.journal.unhashed_queues.push(no);
        }
    }

    /// A new queue is in its place.
    pub(super) fn touch_new_queue(&mut self, no: QueueNo) {
        self.journal.unhashed_queues.push(no);
        self.touch_queue(no);
    }

    /// Hashes what gathered, when it is much: so no later call has to hash it all.
    pub(super) fn hash_some(&mut self) {
        if self.journal.unhashed.len() >= UNHASHED_MAX {
            self.hash_all();
        }
    }

    fn hash_all(&mut self) {
        let journal = &mut self.journal;
        for slot in journal.unhashed.drain(..) {
            let Some(task) = self.tasks.get_mut(slot).filter(|task| task.flags.has(Flags::UNHASHED)) else {
                continue;
            };
            task.flags.clear(Flags::UNHASHED);
            journal.scratch.0.clear();
            journal.scratch.u128(task.id.bits());
            record::write_execution(&mut journal.scratch, task, self.claims.get(&slot));
            journal.hash = journal.hash.wrapping_add(hash_execution(&journal.scratch.0));
        }
        for no in journal.unhashed_queues.drain(..) {
            let Some(queue) = self.queues.get_mut(no).filter(|queue| queue.unhashed) else { continue };
            queue.unhashed = false;
            journal.scratch.0.clear();
            record::write_queue(&mut journal.scratch, queue);
            let hash = hash_record(Table::Queues, &no.to_be_bytes(), &journal.scratch.0);
            journal.hash = journal.hash.wrapping_add(hash);
        }
    }

    /// A queue has gone.
    pub(super) fn touch_removed_queue(&mut self, no: QueueNo) {
        self.journal.store(Table::Queues, no.to_be_bytes().to_vec(), None);
    }

    /// The sum over all records, as of now.
    pub(super) fn hash_now(&mut self) -> u128 {
        self.hash_all();
        let meta = self.write_meta();
        // The stamps come first in the record and are no part of the hash: a rejected command, too,
        // has a time, and must leave no trace.
        let counters = &meta[super::META_STAMPS_BYTES..];
        self.journal.hash.wrapping_add(hash_record(Table::Meta, b"", counters))
    }

    /// Begins a checkpoint.
    pub(super) fn cut_begin(&mut self) {
        self.store_outcomes();
        let meta = self.write_meta();
        let journal = &mut self.journal;
        assert!(
            journal.cut.removed.is_empty()
                && journal.cut.ready.is_empty()
                && journal.cut.changed == journal.changed[1 - journal.epoch].len(),
            "a cut begins when the one before was read to its end"
        );
        journal.changed[1 - journal.epoch].clear();
        journal.changed[1 - journal.epoch].shrink_to(CHANGED_KEPT);
        journal.epoch = 1 - journal.epoch;
        journal.cut.changed = 0;
        journal.cut.removed = std::mem::take(&mut journal.removed);
        journal.cut.ready = std::mem::take(&mut journal.pending);
        journal.cut.ready.push(Change { table: Table::Meta, key: Vec::new(), value: Some(meta) });
        for no in std::mem::take(&mut journal.queues) {
            let Some(queue) = self.queues.get_mut(no).filter(|queue| queue.changed) else { continue };
            queue.changed = false;
            let mut w = Writer::default();
            record::write_queue(&mut w, queue);
            let key = no.to_be_bytes().to_vec();
            journal.cut.ready.push(Change { table: Table::Queues, key, value: Some(w.0) });
        }
        // Handed out from the end; their order matters.
        journal.cut.ready.reverse();
    }

    /// Hands out more of the running cut. Whether there is more.
    pub(super) fn cut_more(&mut self, limit: usize, out: &mut Vec<Change>) -> bool {
        let journal = &mut self.journal;
        let before = 1 - journal.epoch;
        for _ in 0..limit {
            if let Some(id) = journal.cut.removed.pop() {
                out.push(Change { table: Table::Executions, key: execution_key(id), value: None });
                continue;
            }
            if let Some(change) = journal.cut.ready.pop() {
                out.push(change);
                continue;
            }
            let Some(&slot) = journal.changed[before].get(journal.cut.changed) else { return false };
            journal.cut.changed += 1;
            let task = self.tasks.get_mut(slot);
            let Some(task) = task.filter(|task| task.flags.has(Flags::CHANGED[before])) else { continue };
            task.flags.clear(Flags::CHANGED[before]);
            task.flags.set(Flags::STORED);
            let mut w = Writer(Vec::with_capacity(96));
            record::write_execution(&mut w, task, self.claims.get(&slot));
            let key = execution_key(task.id);
            out.push(Change { table: Table::Executions, key, value: Some(w.0) });
        }
        true
    }

    /// All of a loaded shard is in the hash and in the checkpoint.
    pub(super) fn journal_loaded(&mut self, slots: &[Slot]) {
        for &slot in slots {
            self.tasks[slot].flags.set(Flags::STORED | Flags::UNHASHED);
            self.journal.unhashed.push(slot);
            self.hash_some();
        }
        self.hash_all();
    }

    pub(super) fn journal_loaded_queue(&mut self, no: QueueNo) {
        self.journal.unhashed_queues.push(no);
    }
}

/// The key of an execution: ids in the order of their bytes are in the order of their times.
pub(super) fn execution_key(id: TaskId) -> Vec<u8> {
    id.bits().to_be_bytes().to_vec()
}
