//! All executions of a shard, found by id or by slot.

use std::ops::{Index, IndexMut};

use hashbrown::HashTable;
use model::TaskId;

use super::execution::{Execution, NONE, Slot};

/// A slab of executions and an index of 5 to 10 bytes a task.
#[derive(Default)]
pub(super) struct Tasks {
    slots: Vec<Entry>,
    free: Slot,
    by_id: HashTable<Slot>,
}

enum Entry {
    Used(Execution),
    /// The next free one.
    Free(Slot),
}

impl Tasks {
    pub(super) fn new() -> Tasks {
        Tasks { slots: Vec::new(), free: NONE, by_id: HashTable::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Where the task of this id lies.
    pub(super) fn find(&self, id: TaskId) -> Option<Slot> {
        self.by_id.find(hash(id), |&slot| self[slot].id == id).copied()
    }

    /// The task in this slot, if it is in use.
    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Execution> {
        match &mut self.slots[slot as usize] {
            Entry::Used(execution) => Some(execution),
            Entry::Free(_) => None,
        }
    }

    /// Puts in a task whose id is not there yet.
    pub(super) fn insert(&mut self, execution: Execution) -> Slot {
        let id = execution.id;
        let slot = if self.free == NONE {
            let slot = Slot::try_from(self.slots.len()).expect("a shard holds fewer than four billion tasks");
            assert!(slot != NONE, "a shard holds fewer than four billion tasks");
            self.slots.push(Entry::Used(execution));
            slot
        } else {
            let slot = self.free;
            match std::mem::replace(&mut self.slots[slot as usize], Entry::Used(execution)) {
                Entry::Free(next) => self.free = next,
                Entry::Used(_) => unreachable!("slot {slot} was listed as free"),
            }
            slot
        };
        let slots = &self.slots;
        self.by_id.insert_unique(hash(id), slot, |&slot| hash(used(slots, slot).id));
        slot
    }

    /// Takes a task out.
    pub(super) fn remove(&mut self, slot: Slot) -> Execution {
        let id = self[slot].id;
        match self.by_id.find_entry(hash(id), |&found| found == slot) {
            Ok(entry) => entry.remove(),
            Err(_) => unreachable!("task {id} is in its slot, so it is in the index"),
        };
        let entry = std::mem::replace(&mut self.slots[slot as usize], Entry::Free(self.free));
        self.free = slot;
        match entry {
            Entry::Used(execution) => execution,
            Entry::Free(_) => unreachable!("slot {slot} was in use"),
        }
    }

    /// All slots in use, in no meaningful order: for rebuilding indexes that sort by themselves.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        let used = self.slots.iter().enumerate().filter(|(_, entry)| matches!(entry, Entry::Used(_)));
        used.map(|(slot, _)| slot as Slot)
    }
}

fn used(slots: &[Entry], slot: Slot) -> &Execution {
    match &slots[slot as usize] {
        Entry::Used(execution) => execution,
        Entry::Free(_) => unreachable!("slot {slot} is free"),
    }
}

impl Index<Slot> for Tasks {
    type Output = Execution;

    fn index(&self, slot: Slot) -> &Execution {
        used(&self.slots, slot)
    }
}

impl IndexMut<Slot> for Tasks {
    fn index_mut(&mut self, slot: Slot) -> &mut Execution {
        match &mut self.slots[slot as usize] {
            Entry::Used(execution) => execution,
            Entry::Free(_) => unreachable!("slot {slot} is free"),
        }
    }
}

/// Ids hold a time and random bits; the product spreads both over all 64 bits.
pub(super) fn hash(id: TaskId) -> u64 {
    let bits = id.bits();
    let folded = (bits as u64) ^ ((bits >> 64) as u64).rotate_left(23);
    let wide = u128::from(folded).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    (wide >> 64) as u64 ^ wide as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_takes_no_more_than_96_bytes() {
        assert!(size_of::<Entry>() <= 96, "{} bytes: ten million of them must fit", size_of::<Entry>());
    }
}
