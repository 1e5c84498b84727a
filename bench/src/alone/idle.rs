//! What a cluster costs that has nothing to do.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::process::Server;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    #[arg(long, default_value_t = 64)]
    shards: u16,
    /// How long to settle, and then to measure
    #[arg(long, default_value_t = 15)]
    seconds: u64,
}

impl Options {
    pub(crate) fn new(seconds: u64) -> Options {
        Options { nodes: 3, shards: 64, seconds }
    }
}

pub(crate) async fn run(binary: &Path, data: &Path, options: &Options) -> Result<Value> {
    let dir = tempfile::tempdir_in(data)?;
    let servers = Server::cluster(binary, dir.path(), options.nodes, options.shards)?;
    let pause = Duration::from_secs(options.seconds);
    tokio::time::sleep(pause).await;
    let before = servers.iter().map(Server::cpu).collect::<Result<Vec<_>>>()?;
    tokio::time::sleep(pause).await;
    let mut nodes = Vec::new();
    for (server, before) in servers.iter().zip(before) {
        let percent = (server.cpu()? - before).as_secs_f64() / pause.as_secs_f64() * 100.0;
        nodes.push(json!({"percent_of_a_core": percent, "rss_bytes": server.rss()?}));
    }
    Ok(json!({"shards": options.shards, "nodes": nodes}))
}
