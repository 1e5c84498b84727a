//! Ends a waiting task; asks the holder of a claimed one to stop.

use model::{Event, Position, Rejection, Reply, StateKind, TaskId};

use super::Shard;
use super::execution::Flags;
use crate::effects::Effects;

impl Shard {
    pub(super) fn cancel(
        &mut self,
        at: Position,
        id: TaskId,
        reason: String,
        effects: &mut Effects,
    ) -> Result<Reply, Rejection> {
        let slot = self.find(id)?;
        let state = self.tasks[slot].state;
        if state.is_ended() {
            return Err(Rejection::AlreadyEnded { id, state });
        }
        if self.is_claimed(slot) {
            if !self.tasks[slot].flags.has(Flags::CANCEL) {
                self.touch(slot);
                self.tasks[slot].flags.set(Flags::CANCEL);
                self.happened(slot, Event::CancelRequested, effects);
            }
            return Ok(self.settled(slot));
        }
        Ok(self.end_because(at, slot, StateKind::Cancelled, reason, effects))
    }
}
