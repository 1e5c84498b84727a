//! What the catalog says of the queues, at hand for every request.

use std::collections::HashMap;
use std::sync::Arc;

use model::{QueueName, QueuePolicy, QueueSettings, Spread};
use parking_lot::RwLock;

/// The settings of all queues that were ever set.
#[derive(Default)]
pub(crate) struct Policies {
    queues: RwLock<Arc<HashMap<QueueName, QueueSettings>>>,
    default: QueuePolicy,
}

impl Policies {
    /// All of them, as they are now.
    pub(crate) fn all(&self) -> Arc<HashMap<QueueName, QueueSettings>> {
        self.queues.read().clone()
    }

    /// How a queue spreads.
    pub(crate) fn spread(&self, queue: &QueueName) -> Spread {
        self.queues.read().get(queue).map_or(Spread::All, |settings| settings.policy.spread)
    }

    /// The policy of a queue that was never set.
    pub(crate) fn default(&self) -> &QueuePolicy {
        &self.default
    }

    /// Takes all of them, as `all` finds them. One look at a time, so that an older one never comes last.
    pub(crate) fn replace(&self, all: impl FnOnce() -> HashMap<QueueName, QueueSettings>) {
        let mut queues = self.queues.write();
        *queues = Arc::new(all());
    }
}
