//! What the final fences of tasks came to that went before their answers may be forgotten.
//!
//! At full load every task leaves one, for a minute: millions of them, so the index beside them is eight bytes for each.

use std::collections::VecDeque;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use model::{Elapsed, Fence, StateKind, TaskId};

use super::execution::Last;
use super::record::{Read, Reader, Writer};
use super::tasks;

/// What the final fence of a task came to, kept when the task itself went early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub seq: u64,
    pub task: TaskId,
    pub fence: Fence,
    pub last: Last,
    pub state: StateKind,
    pub attempts: u16,
    pub until: Elapsed,
}

/// Outcomes in the order of their numbers, which is the order in which they may go.
#[derive(Default)]
pub(super) struct Outcomes {
    ring: VecDeque<Outcome>,
    /// Places in the ring, by task: the newest of each. They count from the first that ever was here and may wrap around.
    by_task: HashTable<Place>,
    /// How many have gone.
    gone: u32,
    /// What records hold: the first and last number of each chunk.
    pub chunks: VecDeque<(u64, u64)>,
    /// The first that no record holds.
    pub fresh: u64,
    /// Those that no record holds, as the next will: encoded one by one, so that a cut is short.
    pub fresh_bytes: Writer,
}

/// A place, and the hash of its task: a table that grows must not look at the whole ring.
#[derive(Clone, Copy)]
struct Place {
    at: u32,
    hash: u32,
}

/// 32 bits of a task's hash.
fn hash(id: TaskId) -> u32 {
    (tasks::hash(id) >> 32) as u32
}

/// As the table wants it: it looks at both ends.
fn wide(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

impl Outcomes {
    /// None yet; the first that comes is one that no record holds.
    pub(super) fn new() -> Outcomes {
        Outcomes { fresh: 1, ..Outcomes::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(super) fn first(&self) -> Option<&Outcome> {
        self.ring.front()
    }

    pub(super) fn last(&self) -> Option<&Outcome> {
        self.ring.back()
    }

    /// The newest of a task.
    pub(super) fn find(&self, id: TaskId) -> Option<&Outcome> {
        let (ring, gone) = (&self.ring, self.gone);
        let place = self.by_task.find(wide(hash(id)), |place| at(ring, gone, place.at).task == id)?;
        Some(at(ring, gone, place.at))
    }

    /// Adds one behind all others.
    pub(super) fn push(&mut self, outcome: Outcome) {
        let len = u32::try_from(self.ring.len()).expect("a shard keeps fewer than four billion outcomes");
        let place = Place { at: self.gone.wrapping_add(len), hash: hash(outcome.task) };
        self.ring.push_back(outcome);
        let (ring, gone) = (&self.ring, self.gone);
        let is_its = |place: &Place| at(ring, gone, place.at).task == outcome.task;
        match self.by_task.entry(wide(place.hash), is_its, |place| wide(place.hash)) {
            Entry::Occupied(mut older) => *older.get_mut() = place,
            Entry::Vacant(none) => {
                none.insert(place);
            }
        }
    }

    /// Takes the first.
    pub(super) fn pop(&mut self) -> Option<Outcome> {
        let first = *self.ring.front()?;
        let place = self.gone;
        // Unless a newer one of the same task stands there.
        if let Ok(entry) = self.by_task.find_entry(wide(hash(first.task)), |found| found.at == place) {
            entry.remove();
        }
        self.ring.pop_front();
        self.gone = self.gone.wrapping_add(1);
        Some(first)
    }
}

fn at(ring: &VecDeque<Outcome>, gone: u32, place: u32) -> &Outcome {
    &ring[place.wrapping_sub(gone) as usize]
}

impl Outcome {
    pub(super) fn write(&self, w: &mut Writer) {
        w.u64(self.seq);
        w.u128(self.task.bits());
        w.u64(self.fence.0);
        w.u8(self.last as u8);
        w.u8(self.state as u8);
        w.u16(self.attempts);
        w.u64(self.until.0);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Read<Outcome> {
        Ok(Outcome {
            seq: r.u64()?,
            task: r.task()?,
            fence: Fence(r.u64()?),
            last: Last::from_number(r.u8()?).ok_or("an outcome is unknown")?,
            state: StateKind::from_number(r.u8()?).ok_or("a state is unknown")?,
            attempts: r.u16()?,
            until: Elapsed(r.u64()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use model::{ShardId, WallTime};

    use super::*;

    fn outcome(seq: u64, task: u64) -> Outcome {
        let task = TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1_000 + task), task);
        Outcome {
            seq,
            task,
            fence: Fence(seq),
            last: Last::Acked,
            state: StateKind::Done,
            attempts: 0,
            until: Elapsed(seq),
        }
    }

    #[test]
    fn the_newest_outcome_of_a_task_is_found_until_it_goes() {
        // Also where the places begin anew.
        for gone in [0, u32::MAX - 3, u32::MAX] {
            let mut outcomes = Outcomes { gone, ..Outcomes::new() };
            let all: Vec<Outcome> =
                [1, 2, 1, 3, 4, 2].into_iter().zip(1..).map(|(t, s)| outcome(s, t)).collect();
            let found = |outcomes: &Outcomes, n: usize| outcomes.find(all[n].task).map(|found| found.seq);
            all.iter().for_each(|outcome| outcomes.push(*outcome));
            assert_eq!([0, 1, 3, 4].map(|n| found(&outcomes, n)), [Some(3), Some(6), Some(4), Some(5)]);
            assert_eq!(outcomes.pop(), Some(all[0]));
            assert_eq!(outcomes.pop(), Some(all[1]));
            assert_eq!(found(&outcomes, 0), Some(3), "an older one of that task went");
            assert_eq!(outcomes.pop(), Some(all[2]));
            assert_eq!([0, 1].map(|n| found(&outcomes, n)), [None, Some(6)]);
            assert_eq!(std::iter::from_fn(|| outcomes.pop()).count(), 3);
            assert_eq!((outcomes.len(), outcomes.by_task.len()), (0, 0));
        }
    }

    #[test]
    fn many_are_found() {
        let mut outcomes = Outcomes::new();
        for n in 1..=10_000 {
            outcomes.push(outcome(n, n));
            if n > 1_000 {
                outcomes.pop();
            }
        }
        for n in 1..=10_000 {
            let found = outcomes.find(outcome(n, n).task).map(|found| found.seq);
            assert_eq!(found, (n > 9_000).then_some(n));
        }
    }
}
