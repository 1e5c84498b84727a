//! The longest stall of a shard by a checkpoint while the server does as much as it can.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::checkpoint_stall_ms;
use crate::load::Plan;
use crate::process::Server;
use crate::windlass::{Face, bench};

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    #[arg(long, default_value_t = 4)]
    shards: u16,
    /// How long the load goes on
    #[arg(long, default_value_t = 30)]
    seconds: u64,
}

impl Options {
    pub(crate) fn new(nodes: usize, seconds: u64) -> Options {
        Options { nodes, shards: 4, seconds }
    }
}

pub(crate) async fn run(binary: &Path, data: &Path, options: &Options) -> Result<Value> {
    let dir = tempfile::tempdir_in(data)?;
    let servers = Server::cluster(binary, dir.path(), options.nodes, options.shards)?;
    let duration = Some(Duration::from_secs(options.seconds));
    let plan = Plan { batch: 100, duration, ..Plan::lifecycle() };
    let result = bench(binary, &servers[..1], Face::Streams, &plan).await?;
    let stalls = servers.iter().map(|server| checkpoint_stall_ms(server.address));
    Ok(json!({
        "nodes": options.nodes,
        "acked_per_s": result["acked_per_s"],
        "enqueue_max_ms": result["latency_ms"]["enqueue"]["max"],
        "checkpoint_stall_max_ms": stalls.collect::<Result<Vec<f64>>>()?.into_iter().reduce(f64::max),
    }))
}
