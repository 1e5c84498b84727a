//! Lines of tasks, linked through the tasks themselves: joining, leaving and taking the first cost the
//! same however long the line is.

use model::StateKind;

use super::execution::{Execution, NONE, Slot};
use super::tasks::Tasks;

/// A queue's lines. A task is in exactly one of them.
pub(super) const LISTS: usize = 18;
/// Ready tasks, by priority: 0 to 9.
pub(super) const READY: usize = 0;
pub(super) const CLAIMED: usize = 10;
pub(super) const DELAYED: usize = 11;
pub(super) const RETRYING: usize = 12;
pub(super) const BLOCKED: usize = 13;
pub(super) const DEAD: usize = 14;
/// Ended tasks that stay as long as the queue says, in the order of their ends.
pub(super) const ENDED: usize = 15;
/// Ended tasks that stay as long as they said themselves.
pub(super) const ENDED_OWN: usize = 16;
/// Waiting tasks that a purge has marked.
pub(super) const PURGED: usize = 17;

/// The ends of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub head: Slot,
    pub tail: Slot,
    pub len: u64,
}

impl Default for List {
    fn default() -> List {
        List { head: NONE, tail: NONE, len: 0 }
    }
}

impl List {
    pub(super) fn push_back(&mut self, tasks: &mut Tasks, slot: Slot) {
        let tail = self.tail;
        let task = &mut tasks[slot];
        (task.prev, task.next) = (tail, NONE);
        match tail {
            NONE => self.head = slot,
            _ => tasks[tail].next = slot,
        }
        self.tail = slot;
        self.len += 1;
    }

    pub(super) fn push_front(&mut self, tasks: &mut Tasks, slot: Slot) {
        let head = self.head;
        let task = &mut tasks[slot];
        (task.prev, task.next) = (NONE, head);
        match head {
            NONE => self.tail = slot,
            _ => tasks[head].prev = slot,
        }
        self.head = slot;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, tasks: &mut Tasks, slot: Slot) {
        let (prev, next) = (tasks[slot].prev, tasks[slot].next);
        match prev {
            NONE => self.head = next,
            _ => tasks[prev].next = next,
        }
        match next {
            NONE => self.tail = prev,
            _ => tasks[next].prev = prev,
        }
        self.len -= 1;
    }

    /// Moves all of `other` behind this one.
    pub(super) fn append(&mut self, tasks: &mut Tasks, other: &mut List) {
        if other.head == NONE {
            return;
        }
        match self.tail {
            NONE => self.head = other.head,
            tail => {
                tasks[tail].next = other.head;
                tasks[other.head].prev = tail;
            }
        }
        self.tail = other.tail;
        self.len += other.len;
        *other = List::default();
    }
}

/// The line of a task that no purge has marked.
pub(super) fn list_of(task: &Execution) -> usize {
    match task.state {
        StateKind::Ready => READY + usize::from(task.priority),
        StateKind::Claimed => CLAIMED,
        StateKind::Delayed => DELAYED,
        StateKind::Retrying => RETRYING,
        StateKind::Blocked => BLOCKED,
        StateKind::Dead => DEAD,
        _ if task.extra.as_ref().is_some_and(|extra| extra.retention.is_some()) => ENDED_OWN,
        _ => ENDED,
    }
}
