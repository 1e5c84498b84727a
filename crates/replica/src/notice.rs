//! What a replica tells its node: effects of the entries that it applies.
//!
//! A listener that is too slow loses notices and is told so: it looks at the state anew.

use std::sync::Arc;

use model::WallTime;
use state_machine::Effect;
use tokio::sync::broadcast;

/// What one entry brought for others: `Happened`, `Ready` and `Outbox`.
#[derive(Debug)]
pub struct Notice {
    /// The entry's index.
    pub index: u64,
    /// When it was stamped.
    pub wall: WallTime,
    /// The entry was proposed here: this replica leads, or did a moment ago.
    pub is_leader: bool,
    /// What, in order; at least one.
    pub effects: Vec<Effect>,
}

/// What a listener gets.
#[derive(Clone, Debug)]
pub enum Heard {
    /// The notice of one entry.
    Notice(Arc<Notice>),
    /// So many entries' notices were lost, or their entries were never applied here because a checkpoint of the
    /// leader took their place: look at the state anew.
    Lagged(u64),
}

/// Listens to a replica.
pub struct Notices(pub(crate) broadcast::Receiver<Heard>);

impl Notices {
    /// The next ones; nothing when the replica is gone. Safe to cancel.
    pub async fn next(&mut self) -> Option<Heard> {
        match self.0.recv().await {
            Ok(heard) => Some(heard),
            Err(broadcast::error::RecvError::Lagged(count)) => Some(Heard::Lagged(count)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Whether the node is told of an effect; the rest is the replica's own business.
pub(crate) fn is_told(effect: &Effect) -> bool {
    matches!(effect, Effect::Happened { .. } | Effect::Ready { .. } | Effect::Outbox { .. })
}
