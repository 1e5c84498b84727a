//! Keeps a claim: a later deadline, and how far the work is.

use model::{Fence, Millis, Mutant, Position, Rejection, Reply, StateKind, TaskId, mutant};

use super::Shard;
use super::execution::{Flags, Slot};
use super::shift::wall_at;

impl Shard {
    pub(super) fn extend(
        &mut self,
        at: Position,
        id: TaskId,
        fence: Fence,
        hold: Option<Millis>,
    ) -> Result<Reply, Rejection> {
        let slot = self.holding(id, fence)?;
        self.touch(slot);
        let claim = self.claims.get(&slot).expect("a claimed task has a claim");
        let hold = hold.unwrap_or(claim.hold);
        self.disarm(slot);
        if !mutant::planted(Mutant::ExtendForgotten) {
            self.tasks[slot].when = at.elapsed.after(hold).0;
        }
        self.arm(slot);
        let cancel_requested = self.tasks[slot].flags.has(Flags::CANCEL);
        Ok(Reply::Held { deadline: at.wall.after(hold), cancel_requested })
    }

    pub(super) fn progress(
        &mut self,
        at: Position,
        id: TaskId,
        fence: Fence,
        percent: u8,
        note: String,
    ) -> Result<Reply, Rejection> {
        let slot = self.holding(id, fence)?;
        self.touch(slot);
        let claim = self.claims.get_mut(&slot).expect("a claimed task has a claim");
        claim.progress = Some(Box::new((percent, note)));
        let task = &self.tasks[slot];
        let deadline = wall_at(at, task.deadline());
        Ok(Reply::Held { deadline, cancel_requested: task.flags.has(Flags::CANCEL) })
    }

    pub(super) fn is_claimed(&self, slot: Slot) -> bool {
        self.tasks[slot].state == StateKind::Claimed
    }
}
