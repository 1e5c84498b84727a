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

/// Ids in a row that lie side by side in an index.
const ROW: u64 = 8;

/// Ids hold a time and random bits; the product spreads both over all 64 bits. But a request's ids come in a row, and what is
/// asked of them mostly does too: so they lie side by side, and a row takes a line or two of memory instead of one for each.
pub(super) fn hash(id: TaskId) -> u64 {
    let bits = id.bits();
    let (low, high) = (bits as u64, (bits >> 64) as u64);
    let folded = (low & !(ROW - 1)) ^ high.rotate_left(23);
    let wide = u128::from(folded).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let spread = (wide >> 64) as u64 ^ wide as u64;
    // What tells an index's neighbours apart is in the highest bits.
    (spread & !(ROW - 1) | low & (ROW - 1)) ^ low.wrapping_mul(0x9e37_79b9_7f4a_7c15) & TAG
}

/// The highest bits of a hash: an index compares them before it looks at what it found.
pub(super) const TAG: u64 = 0xfe00_0000_0000_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_takes_no_more_than_96_bytes() {
        assert!(size_of::<Entry>() <= 96, "{} bytes: ten million of them must fit", size_of::<Entry>());
    }

    #[test]
    fn ids_in_a_row_lie_side_by_side_and_rows_do_not_pile_up() {
        let shard = model::ShardId::new(1).unwrap();
        let id = |milli: u64, n: u64| TaskId::new(shard, model::WallTime::from_millis(milli), n);
        let rows = 4_096;
        let mut places = vec![0u8; rows as usize];
        for row in 0..rows {
            // A request each millisecond, or many in one.
            let (milli, first) = if row % 2 == 0 { (row, row * 1_000_000_007) } else { (1, row * ROW) };
            let first = first & !(ROW - 1);
            let place = |n: u64| hash(id(milli, first + n)) & !TAG;
            (1..ROW).for_each(|n| assert_eq!(place(n), place(0) + n, "row {row}"));
            places[((place(0) / ROW) % rows) as usize] += 1;
        }
        let most = places.iter().max().unwrap();
        assert!(*most <= 9, "{most} rows in one place: by chance it would be six or seven");
        let tags: std::collections::BTreeSet<u64> = (0..ROW).map(|n| hash(id(5, n)) & TAG).collect();
        assert!(tags.len() > 4, "neighbours can be told apart without a look at them: {tags:?}");
    }
}
