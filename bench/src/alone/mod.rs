//! What concerns Windlass alone: many waiting tasks, shards, stalls, nodes and workers that have nothing to do.

pub(crate) mod depth;
pub(crate) mod idle;
pub(crate) mod idle_workers;
pub(crate) mod shards;
pub(crate) mod stall;

use std::net::SocketAddr;

use anyhow::{Context, Result};

use crate::process;

/// The longest stall of a shard by a checkpoint since the server started, in milliseconds.
fn checkpoint_stall_ms(address: SocketAddr) -> Result<f64> {
    let metrics = process::get(address, "/metrics")?;
    let lines = metrics.lines().filter(|line| line.starts_with("windlass_checkpoint_stall_seconds_max"));
    let seconds = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    let longest =
        seconds.reduce(f64::max).context("/metrics has no windlass_checkpoint_stall_seconds_max")?;
    Ok(longest * 1000.0)
}
