//! How a node is set up. Checked by whoever reads it from flags or files.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Millis, NodeId};
use replica::Witness;
use storage::{Disk, LogOptions};
use tokio::sync::watch;

use crate::link::Network;

/// How a node is set up.
#[derive(Clone)]
pub struct NodeConfig {
    /// Its number.
    pub node: NodeId,
    /// Its data directory.
    pub data: Arc<dyn Disk>,
    /// How many shards a new cluster has. Nothing: as many as the data says, or the default.
    pub shards: Option<u16>,
    /// Over it new tasks are refused.
    pub memory_bytes_max: u64,
    /// Room that is kept back so that acks go on when the disk is full.
    pub disk_reserve_bytes: u64,
    /// Envelopes of waiting tasks kept in memory, over all shards; the rest is on disk.
    pub envelope_cache_bytes: u64,
    /// Whether a queue is made on first use.
    pub auto_create: bool,
    /// How long a write may take before its outcome is called unknown.
    pub propose_timeout: Millis,
    /// How the log behaves; its reserve is set by the start.
    pub log: LogOptions,
    /// The nodes that shall be a cluster and where they listen for each other, this one included. Nothing: a
    /// node alone, which others may join.
    pub peers: BTreeMap<NodeId, String>,
    /// How other nodes are reached; without it, nobody is.
    pub network: Option<Arc<dyn Network>>,
    /// Where other nodes reach this one.
    pub peer_address: String,
    /// Where everybody else reaches this one.
    pub http_address: String,
    /// Whether a node with an empty disk makes a cluster of its own at once, without asking the others.
    pub bootstrap: bool,
    /// What the start waits for.
    pub progress: StartProgress,
    /// What a simulation wants otherwise.
    pub tuning: Tuning,
}

/// What a simulation wants otherwise, so that hours of use happen in seconds. Nothing is set: as in production.
#[derive(Clone, Default)]
pub struct Tuning {
    /// The pause between checkpoints when little changes.
    pub checkpoint_interval: Option<Millis>,
    /// Log that stays although it is checkpointed.
    pub keep_log_bytes: Option<u64>,
    /// The state's hash is kept at every index that this divides.
    pub hash_every: Option<u64>,
    /// Who hears what the members on this node keep.
    pub witness: Option<Arc<dyn Witness>>,
}

/// What a start waits for, for people. Clones are the same.
#[derive(Clone)]
pub struct StartProgress(Arc<watch::Sender<String>>);

impl Default for StartProgress {
    fn default() -> StartProgress {
        StartProgress(Arc::new(watch::Sender::new(String::new())))
    }
}

impl StartProgress {
    /// What it waits for now, in a sentence; empty when it waits for nothing.
    pub fn now(&self) -> String {
        self.0.borrow().clone()
    }

    /// What it waits for, from now on.
    pub fn subscribe(&self) -> watch::Receiver<String> {
        self.0.subscribe()
    }

    /// Whether that is news.
    pub(crate) fn set(&self, waits_for: &str) -> bool {
        self.0.send_if_modified(|known| {
            let is_news = known != waits_for;
            if is_news {
                waits_for.clone_into(known);
            }
            is_news
        })
    }
}

impl NodeConfig {
    /// The defaults, on this disk.
    pub fn new(data: Arc<dyn Disk>) -> NodeConfig {
        NodeConfig {
            node: NodeId(1),
            data,
            shards: None,
            memory_bytes_max: u64::MAX,
            disk_reserve_bytes: 256 * 1024 * 1024,
            envelope_cache_bytes: 64 * 1024 * 1024,
            auto_create: true,
            propose_timeout: Millis::secs(10),
            log: LogOptions::default(),
            peers: BTreeMap::new(),
            network: None,
            peer_address: String::new(),
            http_address: String::new(),
            bootstrap: false,
            progress: StartProgress::default(),
            tuning: Tuning::default(),
        }
    }
}
