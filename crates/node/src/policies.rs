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

    /// Takes a queue's settings, unless newer ones are there.
    pub(crate) fn set(&self, queue: &QueueName, settings: &QueueSettings) {
        let mut queues = self.queues.write();
        if queues.get(queue).is_none_or(|known| known.version < settings.version) {
            let mut all = HashMap::clone(&queues);
            all.insert(queue.clone(), settings.clone());
            *queues = Arc::new(all);
        }
    }

    /// Forgets a queue's settings.
    pub(crate) fn remove(&self, queue: &QueueName) {
        let mut queues = self.queues.write();
        let mut all = HashMap::clone(&queues);
        all.remove(queue);
        *queues = Arc::new(all);
    }

    /// Takes all of them.
    pub(crate) fn replace(&self, all: HashMap<QueueName, QueueSettings>) {
        *self.queues.write() = Arc::new(all);
    }
}
