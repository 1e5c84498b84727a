//! How a node is set up. Checked by whoever reads it from flags or files.

use std::sync::Arc;

use model::{Millis, NodeId};
use storage::{Disk, LogOptions};

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
        }
    }
}
