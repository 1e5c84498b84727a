//! Gives a claim back without an attempt: by its holder, or by a person.

use model::command::OnTask;
use model::{Event, Fence, FreedReason, Millis, Position, Rejection, Reply, StateKind, TaskId};

use super::Shard;
use super::execution::Slot;
use crate::effects::Effects;

impl Shard {
    pub(super) fn release(
        &mut self,
        at: Position,
        id: TaskId,
        fence: Fence,
        delay: Millis,
        effects: &mut Effects,
    ) -> Result<Reply, Rejection> {
        let slot = self.holding(id, fence)?;
        Ok(self.free(at, slot, FreedReason::Released, delay, effects))
    }

    pub(super) fn put_back(
        &mut self,
        at: Position,
        on: OnTask,
        effects: &mut Effects,
    ) -> Result<Reply, Rejection> {
        let slot = self.find_on(on)?;
        let task = &self.tasks[slot];
        if task.state != StateKind::Claimed {
            return Err(Rejection::NotClaimed { id: on.task, state: task.state });
        }
        Ok(self.free(at, slot, FreedReason::PutBack, Millis(0), effects))
    }

    /// Ends a claimed, waiting or dead task as cancelled.
    pub(super) fn discard(
        &mut self,
        at: Position,
        on: OnTask,
        effects: &mut Effects,
    ) -> Result<Reply, Rejection> {
        let slot = self.find_on(on)?;
        let state = self.tasks[slot].state;
        if state.is_ended() && state != StateKind::Dead {
            return Err(Rejection::AlreadyEnded { id: on.task, state });
        }
        if state == StateKind::Claimed {
            self.drop_claim(slot);
        }
        let event = Event::Ended { state: StateKind::Cancelled, reason: "discarded by hand".to_owned() };
        self.happened(slot, event, effects);
        Ok(match state {
            StateKind::Dead => self.relabel_dead(at, slot, effects),
            _ => self.end(at, slot, StateKind::Cancelled, effects),
        })
    }

    /// The task that a person means, unless somebody else claimed it since they looked.
    pub(super) fn find_on(&self, on: OnTask) -> Result<Slot, Rejection> {
        let slot = self.find(on.task)?;
        let current = self.tasks[slot].fence;
        match on.fence {
            Some(given) if given != current => Err(Rejection::StaleToken { id: on.task, given, current }),
            _ => Ok(slot),
        }
    }
}
