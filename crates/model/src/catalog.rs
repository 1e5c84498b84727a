//! What can be asked of the catalog, and what it knows.

use crate::name::QueueName;
use crate::policy::QueueSettings;

/// What can be asked of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogCommand {
    /// Makes the cluster; the first one counts.
    Init(ClusterFacts),
    /// Sets a queue's policy or pause.
    SetQueue {
        /// Which.
        queue: QueueName,
        /// What it shall be; its `version` is the one that the caller read (0: there was none).
        settings: QueueSettings,
    },
    /// Forgets a queue's settings.
    DeleteQueue {
        /// Which.
        queue: QueueName,
    },
}

/// What never changes after the cluster was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Tells clusters apart.
    pub cluster_id: u128,
    /// How many shards there are.
    pub shards: u16,
    /// The key under which tokens are signed.
    pub token_key: [u8; 32],
}

/// What the catalog answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogReply {
    /// To `Init`: the facts that count, whoever made them.
    Cluster(ClusterFacts),
    /// To `SetQueue`: the edition that is valid now. To `DeleteQueue`: the version of the deletion.
    Version(u64),
}
