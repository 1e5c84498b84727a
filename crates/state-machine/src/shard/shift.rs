//! How a task moves from state to state: its line, its counts and its timers move with it.

use model::{Elapsed, Event, Position, Recovery, StateKind, WallTime};

use super::Shard;
use super::execution::{NONE, Slot};
use super::lists::{BLOCKED, READY};
use super::timers::Timer;
use crate::effects::Effects;

/// Which end of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Front,
    Back,
}

impl Shard {
    /// Moves a task to `state`; `when` is what that state makes of it (see `Execution::when`).
    pub(super) fn shift(&mut self, slot: Slot, state: StateKind, when: u64, side: Side) {
        self.touch(slot);
        self.disarm(slot);
        self.leave(slot);
        let task = &mut self.tasks[slot];
        task.state = state;
        task.when = when;
        self.join(slot, side);
        self.arm(slot);
    }

    /// Takes a task from its line.
    pub(super) fn leave(&mut self, slot: Slot) {
        let task = &self.tasks[slot];
        let (no, state) = (task.queue, task.state);
        let queue = self.queues.at_mut(no);
        let list = queue.list_of(task);
        queue.lists[list].remove(&mut self.tasks, slot);
        queue.depth.0[state as usize - 1] -= 1;
    }

    /// Puts a task into the line of its state, under a new rank.
    pub(super) fn join(&mut self, slot: Slot, side: Side) {
        let rank = match side {
            Side::Back => {
                self.counters.back += 1;
                self.counters.back - 1
            }
            Side::Front => {
                self.counters.front -= 1;
                self.counters.front + 1
            }
        };
        let task = &mut self.tasks[slot];
        task.rank = rank;
        let no = task.queue;
        let queue = self.queues.at_mut(no);
        let list = super::lists::list_of(task);
        queue.depth.0[task.state as usize - 1] += 1;
        match side {
            Side::Back => queue.lists[list].push_back(&mut self.tasks, slot),
            Side::Front => queue.lists[list].push_front(&mut self.tasks, slot),
        }
        if (READY..READY + 10).contains(&list) && !self.became_ready.contains(&no) {
            self.became_ready.push(no);
        }
        debug_assert!(list != BLOCKED || side == Side::Back);
    }

    /// Sets the timers of a task's state.
    pub(super) fn arm(&mut self, slot: Slot) {
        let task = &self.tasks[slot];
        let bits = task.id.into();
        match task.state {
            StateKind::Delayed => self.wall_timers.add(task.when, Timer::Delay(bits)),
            StateKind::Retrying => self.elapsed_timers.add(task.when, Timer::Backoff(bits)),
            // A claim that waits for a person has no timer: it would fire for nothing.
            StateKind::Claimed if self.recovery(slot) == Recovery::Auto => {
                self.deadlines.add(&mut self.tasks, slot);
                return;
            }
            _ => {}
        }
        if task.state.is_waiting()
            && let Some(at) = task.expires_at()
        {
            self.wall_timers.add(at.millis(), Timer::Expiry(bits));
        }
    }

    /// Takes back the timers of a task's state, if they have not fired.
    pub(super) fn disarm(&mut self, slot: Slot) {
        let task = &self.tasks[slot];
        let bits = task.id.into();
        match task.state {
            StateKind::Delayed => self.wall_timers.remove(task.when, Timer::Delay(bits)),
            StateKind::Retrying => self.elapsed_timers.remove(task.when, Timer::Backoff(bits)),
            StateKind::Claimed => {
                self.deadlines.remove(&mut self.tasks, slot);
                return;
            }
            _ => {}
        }
        if task.state.is_waiting()
            && let Some(at) = task.expires_at()
        {
            self.wall_timers.remove(at.millis(), Timer::Expiry(bits));
        }
    }

    /// A waiting task's delay, backoff or turn has come.
    pub(super) fn become_ready(&mut self, at: Position, slot: Slot, effects: &mut Effects) {
        self.shift(slot, StateKind::Ready, 0, Side::Back);
        // A backoff's answer is its due time, which must not change until the next claim.
        if self.tasks[slot].last != super::Last::FailedForNow {
            self.tasks[slot].since = at.wall.millis();
        }
        self.happened(slot, Event::BecameReady, effects);
    }

    /// A time of this shard, told in the other one.
    pub(super) fn wall_of(&self, elapsed: Elapsed) -> WallTime {
        wall_between(self.elapsed, self.wall, elapsed)
    }

    pub(super) fn first(&self, list: usize, no: super::QueueNo) -> Option<Slot> {
        let head = self.queues[no].lists[list].head;
        (head != NONE).then_some(head)
    }
}

/// As [`Shard::wall_of`], while a command is being applied.
pub(super) fn wall_at(at: Position, elapsed: Elapsed) -> WallTime {
    wall_between(at.elapsed, at.wall, elapsed)
}

fn wall_between(now: Elapsed, wall: WallTime, elapsed: Elapsed) -> WallTime {
    let ahead = wall.after(elapsed.since(now)).millis();
    WallTime::from_millis(ahead.saturating_sub(now.since(elapsed).0))
}
