//! Brings an ended task back for a new life: no attempts used, at the tail, its fence going on.

use model::command::OnTask;
use model::{Event, Position, Rejection, Reply, StateKind};

use super::Shard;
use super::execution::{Flags, Last, Slot};
use super::shift::Side;
use super::timers::Timer;
use crate::effects::Effects;

impl Shard {
    pub(super) fn requeue(
        &mut self,
        at: Position,
        on: OnTask,
        effects: &mut Effects,
    ) -> Result<Reply, Rejection> {
        let slot = self.find_on(on)?;
        let (id, state) = (on.task, self.tasks[slot].state);
        match state {
            StateKind::Dead | StateKind::Failed | StateKind::Cancelled => {}
            StateKind::Done | StateKind::Expired => return Err(Rejection::AlreadyEnded { id, state }),
            _ => return Err(Rejection::NotEnded { id, state }),
        }
        self.check_keys_free(slot)?;
        self.touch(slot);
        self.revive(self.tasks[slot].queue);
        self.end_retention(slot);
        self.retake_keys(slot);
        self.leave(slot);
        let task = &mut self.tasks[slot];
        (task.attempts, task.lost_in_row) = (0, 0);
        task.last = Last::Open;
        task.since = at.wall.millis();
        if let Some(extra) = task.extra.as_mut() {
            // A person brings it back: it runs, however late, and at once.
            (extra.expires_at, extra.not_before) = (None, None);
        }
        let state = self.enter(slot, None);
        self.happened(slot, Event::Requeued { state }, effects);
        Ok(self.settled(slot))
    }

    /// Other tasks may have taken the keys since.
    fn check_keys_free(&self, slot: Slot) -> Result<(), Rejection> {
        let Some(extra) = self.tasks[slot].extra.as_ref() else { return Ok(()) };
        let id = self.tasks[slot].id;
        let unique = extra.unique.and_then(|unique| self.unique.get(&unique.key).copied());
        let dedup = extra.dedup.and_then(|dedup| self.dedup.get(&dedup.key).map(|entry| entry.task));
        match [unique, dedup].into_iter().flatten().find(|&holder| holder != id) {
            Some(holder) => Err(Rejection::NotUnique { holder }),
            None => Ok(()),
        }
    }

    fn retake_keys(&mut self, slot: Slot) {
        if let Some(dedup) = self.tasks[slot].dedup() {
            // Still remembered: the window ends with the next end.
            let until = self.tasks[slot].ended_at().after(dedup.window).millis();
            self.wall_timers.remove(until, Timer::Window(dedup.key.into()));
            self.queues.at_mut(self.tasks[slot].queue).dedup_keys -= 1;
        }
        self.tasks[slot].flags.clear(Flags::DEDUP_FREED | Flags::UNIQUE_FREED);
        self.take_keys(slot);
    }

    /// A dead task that a person discards ends anew, as cancelled; its keys and line were given up before.
    pub(super) fn relabel_dead(&mut self, at: Position, slot: Slot, effects: &mut Effects) -> Reply {
        if let Some(dedup) = self.tasks[slot].dedup() {
            let until = self.tasks[slot].ended_at().after(dedup.window).millis();
            self.wall_timers.remove(until, Timer::Window(dedup.key.into()));
            self.wall_timers.add(at.wall.after(dedup.window).millis(), Timer::Window(dedup.key.into()));
        }
        self.shift(slot, StateKind::Cancelled, at.wall.millis(), Side::Back);
        // The fail that made it dead is not what it came to.
        self.tasks[slot].last = Last::Open;
        self.tasks[slot].since = at.elapsed.0;
        let settled = self.settled(slot);
        self.retain(at, slot, effects);
        settled
    }
}
