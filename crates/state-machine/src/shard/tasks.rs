//! All executions of a shard, found by id or by slot.

use std::ops::{Index, IndexMut};

use hashbrown::HashTable;
use model::TaskId;

use super::execution::{Execution, NONE, Slot};

/// A slab of executions and an index of 5 to 10 bytes a task: up to 75 for one whose id is in no row with others.
#[derive(Default)]
pub(super) struct Tasks {
    slots: Vec<Entry>,
    free: Slot,
    rows: HashTable<Row>,
    len: usize,
}

/// Ids that differ in their last bits only. A request's ids come in a row, and what is asked of them mostly does too: a row takes
/// a line or two of memory, where each task would take as many.
struct Row([Slot; ROW as usize]);

enum Entry {
    Used(Execution),
    /// The next free one.
    Free(Slot),
}

impl Tasks {
    pub(super) fn new() -> Tasks {
        Tasks { slots: Vec::new(), free: NONE, rows: HashTable::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where the task of this id lies.
    pub(super) fn find(&self, id: TaskId) -> Option<Slot> {
        let place = place(id);
        let has_it = |row: &Row| row.0[place] != NONE && self[row.0[place]].id == id;
        self.rows.find(row_hash(id), has_it).map(|row| row.0[place])
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
        let id_in = |row: &Row| used(slots, row.first()).id;
        match self.rows.find_mut(row_hash(id), |row| row_of(id_in(row)) == row_of(id)) {
            Some(row) => row.0[place(id)] = slot,
            None => {
                let mut row = Row([NONE; ROW as usize]);
                row.0[place(id)] = slot;
                self.rows.insert_unique(row_hash(id), row, |row| row_hash(id_in(row)));
            }
        }
        self.len += 1;
        slot
    }

    /// Takes a task out.
    pub(super) fn remove(&mut self, slot: Slot) -> Execution {
        let id = self[slot].id;
        match self.rows.find_entry(row_hash(id), |row| row.0[place(id)] == slot) {
            Ok(mut entry) => {
                entry.get_mut().0[place(id)] = NONE;
                if entry.get().0 == [NONE; ROW as usize] {
                    entry.remove();
                }
            }
            Err(_) => unreachable!("task {id} is in its slot, so it is in the index"),
        };
        self.len -= 1;
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

impl Row {
    /// One of its tasks: it has at least one.
    fn first(&self) -> Slot {
        self.0.into_iter().find(|slot| *slot != NONE).expect("a row without tasks is taken out")
    }
}

/// Ids in a row.
const ROW: u64 = 8;

/// What the ids of a row have in common.
fn row_of(id: TaskId) -> u128 {
    id.bits() / u128::from(ROW)
}

/// Where an id stands in its row.
fn place(id: TaskId) -> usize {
    (id.bits() as u64 % ROW) as usize
}

/// Ids hold a time and random bits; the product spreads both over all 64 bits.
fn row_hash(id: TaskId) -> u64 {
    let bits = id.bits();
    let folded = (bits as u64 & !(ROW - 1)) ^ ((bits >> 64) as u64).rotate_left(23);
    let wide = u128::from(folded).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    (wide >> 64) as u64 ^ wide as u64
}

/// As [`row_hash`], but for an index of single ids: those of a row lie side by side in it. Only where nothing is taken out: full
/// neighbourhoods would fill up with what was there.
pub(super) fn hash(id: TaskId) -> u64 {
    let low = id.bits() as u64;
    // What tells an index's neighbours apart is in the highest bits.
    (row_hash(id) & !(ROW - 1) | (low % ROW)) ^ low.wrapping_mul(0x9e37_79b9_7f4a_7c15) & TAG
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

    fn execution(id: TaskId) -> Execution {
        Execution {
            id,
            digest: 0,
            enqueued_at: model::WallTime::from_millis(0),
            since: 0,
            when: 0,
            rank: 0,
            fence: model::Fence(0),
            extra: None,
            queue: 0,
            kind_hash: 0,
            prev: NONE,
            next: NONE,
            attempts: 0,
            lost_in_row: 0,
            priority: 0,
            state: model::StateKind::Ready,
            last: super::super::execution::Last::Open,
            flags: super::super::execution::Flags::default(),
        }
    }

    #[test]
    fn tasks_are_found_by_id_whether_others_of_their_row_are_there_or_not() {
        let shard = model::ShardId::new(1).unwrap();
        let id = |n: u64| {
            // Some in rows, some alone.
            let n = if n.is_multiple_of(3) { n * 1_000_003 } else { n };
            TaskId::new(shard, model::WallTime::from_millis(1), n)
        };
        let mut tasks = Tasks::new();
        let mut there = std::collections::BTreeMap::new();
        for step in 0..40_000u64 {
            // Up and down between none and some thousands, in no order.
            let n = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
            match there.remove(&n) {
                Some(slot) => assert_eq!(tasks.remove(slot).id, id(n)),
                None => drop(there.insert(n, tasks.insert(execution(id(n))))),
            }
            assert_eq!(tasks.len(), there.len());
            for n in [n, n ^ 1, n ^ 7, step % 4_096] {
                assert_eq!(tasks.find(id(n)), there.get(&n).copied(), "task {n} at step {step}");
            }
        }
        for (n, slot) in there {
            assert_eq!(tasks.remove(slot).id, id(n));
        }
        assert!(tasks.len() == 0 && tasks.rows.is_empty(), "nothing is left of rows");
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
