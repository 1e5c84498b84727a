//! When claims end by themselves.
//!
//! Nearly every claim is acked long before its deadline, so taking one back costs next to nothing: it is only counted, and what
//! is listed for it goes with the others of its time. Ties are broken by id, never by slot: replicas must agree.

use std::collections::BTreeMap;

use model::StateKind;

use super::execution::{Flags, Slot};
use super::tasks::Tasks;

/// Slots of claims that are over, listed beside as many of claims that hold, before a time is cleaned up.
const OVER_MAX: usize = 16;

/// Deadlines of claims, in elapsed time.
#[derive(Default)]
pub(super) struct Deadlines {
    by_time: BTreeMap<u64, Due>,
    count: usize,
}

/// The claims that end at one time.
#[derive(Default)]
struct Due {
    /// How many there are.
    count: usize,
    /// Where their tasks are, and where those of some claims that are over were.
    slots: Vec<Slot>,
    /// They lie by the ids of their tasks, the first at the end, each once.
    is_sorted: bool,
}

/// Whether the claim of the task in this slot ends at `time` by itself.
fn is_due(tasks: &mut Tasks, slot: Slot, time: u64) -> bool {
    let claimed = tasks.get_mut(slot).filter(|task| task.state == StateKind::Claimed);
    claimed.is_some_and(|task| task.flags.has(Flags::DEADLINE) && task.when == time)
}

impl Due {
    fn sort(&mut self, tasks: &mut Tasks, time: u64) {
        self.slots.retain(|&slot| is_due(tasks, slot, time));
        self.slots.sort_unstable_by_key(|&slot| std::cmp::Reverse(tasks[slot].id));
        // A slot is listed twice where its claim ended, and the next one has the same deadline.
        self.slots.dedup();
        self.is_sorted = true;
        debug_assert_eq!(self.slots.len(), self.count, "deadlines at {time}");
    }
}

impl Deadlines {
    /// The claim of the task in this slot ends at its deadline.
    pub(super) fn add(&mut self, tasks: &mut Tasks, slot: Slot) {
        let task = &mut tasks[slot];
        debug_assert!(!task.flags.has(Flags::DEADLINE), "a claim has one deadline");
        task.flags.set(Flags::DEADLINE);
        let due = self.by_time.entry(task.when).or_default();
        due.count += 1;
        due.slots.push(slot);
        due.is_sorted = false;
        self.count += 1;
    }

    /// It no longer does, if it did. Before anything else of the task changes.
    pub(super) fn remove(&mut self, tasks: &mut Tasks, slot: Slot) {
        let task = &mut tasks[slot];
        if !task.flags.has(Flags::DEADLINE) {
            return;
        }
        task.flags.clear(Flags::DEADLINE);
        let time = task.when;
        let due = self.by_time.get_mut(&time).expect("a claim with a deadline is listed under it");
        due.count -= 1;
        self.count -= 1;
        if due.count == 0 {
            self.by_time.remove(&time);
        } else if due.slots.len() > 2 * due.count + OVER_MAX {
            due.sort(tasks, time);
            due.slots.shrink_to(2 * due.count);
        }
    }

    /// The first of them.
    pub(super) fn first(&self) -> Option<u64> {
        self.by_time.first_key_value().map(|(&time, _)| time)
    }

    /// Takes the claims of the first time, by the ids of their tasks, at most `limit`.
    pub(super) fn pop(&mut self, tasks: &mut Tasks, limit: usize) -> Vec<Slot> {
        let Some(mut first) = self.by_time.first_entry() else { return Vec::new() };
        let time = *first.key();
        let due = first.get_mut();
        if !due.is_sorted {
            due.sort(tasks, time);
        }
        let mut popped = Vec::with_capacity(limit.min(due.count));
        while popped.len() < limit
            && let Some(slot) = due.slots.pop()
        {
            if is_due(tasks, slot, time) {
                tasks[slot].flags.clear(Flags::DEADLINE);
                popped.push(slot);
            }
        }
        due.count -= popped.len();
        if due.count == 0 {
            first.remove();
        }
        self.count -= popped.len();
        popped
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }
}
