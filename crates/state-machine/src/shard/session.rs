//! Frees all claims of a session at once.

use model::{FreedReason, Position, Recovery, Reply, SessionId};

use super::Shard;
use crate::effects::Effects;

impl Shard {
    pub(super) fn end_session(
        &mut self,
        at: Position,
        session: SessionId,
        reason: FreedReason,
        effects: &mut Effects,
    ) -> Reply {
        let slots: Vec<_> = self.sessions.claims_of(session).map(|(_, slot)| slot).collect();
        // A worker that says goodbye gives its claims back itself; one that is lost does not.
        let freed: Vec<_> = slots
            .into_iter()
            .filter(|&slot| !reason.uses_attempt() || self.recovery(slot) == Recovery::Auto)
            .collect();
        let count = freed.len() as u64;
        self.free_all(at, freed, reason, effects);
        Reply::Count(count)
    }

    pub(super) fn recovery(&self, slot: super::Slot) -> Recovery {
        self.queues[self.tasks[slot].queue].policy().recovery
    }
}
