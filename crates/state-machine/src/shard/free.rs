//! What becomes of a task whose claim ends without ack or fail.

use model::{Event, FreedReason, FreedTo, Millis, Mutant, Position, Reply, StateKind, mutant};

use super::Shard;
use super::execution::{Flags, Slot};
use super::shift::Side;
use crate::effects::Effects;

impl Shard {
    /// Frees a claimed task; with a `delay` it waits first.
    pub(super) fn free(
        &mut self,
        at: Position,
        slot: Slot,
        reason: FreedReason,
        delay: Millis,
        effects: &mut Effects,
    ) -> Reply {
        let claim = self.drop_claim(slot);
        let task = &mut self.tasks[slot];
        if uses_attempt(reason) {
            task.attempts = task.attempts.saturating_add(1);
        }
        if reason.is_suspicious() {
            task.lost_in_row = task.lost_in_row.saturating_add(1);
        }
        let no = task.queue;
        self.touch_queue(no);
        self.queues.at_mut(no).totals.freed += 1;
        let end = self.end_of_free(at, slot, reason);
        let state = match end {
            Some((state, _)) => state,
            None if delay.0 > 0 => StateKind::Delayed,
            None => StateKind::Ready,
        };
        self.happened(slot, Event::Freed { worker: claim.worker, reason, state }, effects);
        if let Some((state, why)) = end {
            return self.end_because(at, slot, state, why, effects);
        } else if delay.0 > 0 {
            let due = at.wall.after(delay).millis();
            self.shift(slot, StateKind::Delayed, due, Side::Back);
            self.tasks[slot].since = due;
        } else {
            let side = match self.queues[no].policy().freed_to {
                FreedTo::Front => Side::Front,
                FreedTo::Back => Side::Back,
            };
            self.shift(slot, StateKind::Ready, 0, side);
        }
        self.settled(slot)
    }

    fn end_of_free(&self, at: Position, slot: Slot, reason: FreedReason) -> Option<(StateKind, String)> {
        let task = &self.tasks[slot];
        let poison_after = self.queues[task.queue].policy().poison_after;
        let attempts_max = self.retry_policy(slot).attempts;
        if task.flags.has(Flags::CANCEL) {
            return Some((StateKind::Cancelled, "its cancellation was asked for".to_owned()));
        }
        if reason.is_suspicious() && u32::from(task.lost_in_row) >= poison_after {
            let why = format!("poison pill: {} claims in a row were lost", task.lost_in_row);
            return Some((self.exhausted(slot), why));
        }
        if uses_attempt(reason) && u32::from(task.attempts) >= attempts_max {
            return Some((self.exhausted(slot), format!("all {attempts_max} attempts are used up")));
        }
        if task.expires_at().is_some_and(|expires| expires <= at.wall) {
            return Some((StateKind::Expired, "its time passed while it was claimed".to_owned()));
        }
        None
    }

    /// Frees several tasks at once so that they keep their order among themselves.
    pub(super) fn free_all(
        &mut self,
        at: Position,
        mut slots: Vec<Slot>,
        reason: FreedReason,
        effects: &mut Effects,
    ) {
        slots.sort_unstable_by_key(|&slot| self.tasks[slot].fence);
        // At the front the last one put there stands first, so the oldest goes last.
        let (front, back): (Vec<Slot>, Vec<Slot>) = slots
            .into_iter()
            .partition(|&slot| self.queues[self.tasks[slot].queue].policy().freed_to == FreedTo::Front);
        for slot in front.into_iter().rev().chain(back) {
            self.free(at, slot, reason, Millis(0), effects);
        }
    }
}

/// Whether an attempt is used up, planted bugs included.
fn uses_attempt(reason: FreedReason) -> bool {
    match reason {
        FreedReason::Deadline if mutant::planted(Mutant::DeadlineIsFree) => false,
        FreedReason::Released if mutant::planted(Mutant::ReleaseCounts) => true,
        reason => reason.uses_attempt(),
    }
}
