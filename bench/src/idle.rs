//! What a cluster costs that has nothing to do.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::process::Server;

#[derive(Args)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    #[arg(long, default_value_t = 16)]
    shards: u16,
    /// How long to settle, and then to measure
    #[arg(long, default_value_t = 15)]
    seconds: u64,
}

pub(crate) async fn run(binary: &Path, data: &Path, options: Options) -> Result<()> {
    let dir = tempfile::tempdir_in(data)?;
    let servers = Server::cluster(binary, dir.path(), options.nodes, options.shards)?;
    let pause = Duration::from_secs(options.seconds);
    tokio::time::sleep(pause).await;
    let before = servers.iter().map(Server::cpu).collect::<Result<Vec<_>>>()?;
    tokio::time::sleep(pause).await;
    println!("{} idle shards, share of a core and memory of each node:", options.shards);
    for (n, (server, before)) in servers.iter().zip(before).enumerate() {
        let percent = (server.cpu()? - before).as_secs_f64() / pause.as_secs_f64() * 100.0;
        println!("node {}: {percent:.1} %, {} MB", n + 1, server.rss()? / 1_000_000);
    }
    Ok(())
}
