//! What the leader tells the node: effects of entries that were proposed here.
//!
//! A listener that is too slow loses notices and is told so: it looks at the state anew.

use std::sync::Arc;

use model::WallTime;
use state_machine::Effect;
use tokio::sync::broadcast;

/// An effect and where it came from: `Happened`, `Ready` or `Outbox`.
#[derive(Clone, Debug)]
pub struct Notice {
    /// The entry's index.
    pub index: u64,
    /// When it was stamped.
    pub wall: WallTime,
    /// What.
    pub effect: Effect,
}

/// What a listener gets.
#[derive(Clone, Debug)]
pub enum Heard {
    /// The notices of one entry, in order.
    Notices(Arc<Vec<Notice>>),
    /// So many entries' notices were lost: look at the state anew.
    Lagged(u64),
}

/// Listens to a replica.
pub struct Notices(pub(crate) broadcast::Receiver<Arc<Vec<Notice>>>);

impl Notices {
    /// The next ones; nothing when the replica is gone. Safe to cancel.
    pub async fn next(&mut self) -> Option<Heard> {
        match self.0.recv().await {
            Ok(notices) => Some(Heard::Notices(notices)),
            Err(broadcast::error::RecvError::Lagged(count)) => Some(Heard::Lagged(count)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Whether the node is told of an effect; the rest is the replica's own business.
pub(crate) fn is_told(effect: &Effect) -> bool {
    matches!(effect, Effect::Happened { .. } | Effect::Ready { .. } | Effect::Outbox { .. })
}
