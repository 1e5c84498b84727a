//! What workers cost that wait: each with a session and a stream of its own, and a connection unless told otherwise.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::load::Plan;
use crate::process::{Server, get_json, raise_files};
use crate::windlass::{Face, spawn};

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 10_000)]
    workers: usize,
    #[arg(long, default_value_t = 4)]
    shards: u16,
    /// How long to settle before measuring
    #[arg(long, default_value_t = 10)]
    settle: u64,
    /// How long to measure
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Files that a process has open beside its connections.
const FILES: u64 = 500;
/// How long all of them may take to come in.
const COMING_PATIENCE: Duration = Duration::from_secs(120);

impl Options {
    pub(crate) fn new(workers: usize, seconds: u64) -> Options {
        Options { workers, shards: 4, settle: 10, seconds }
    }
}

pub(crate) async fn run(binary: &Path, data: &Path, options: &Options) -> Result<Value> {
    raise_files(options.workers as u64 + FILES)?;
    let dir = tempfile::tempdir_in(data)?;
    let servers = [Server::windlass(binary, dir.path(), options.shards)?];
    let server = &servers[0];
    sleep(Duration::from_secs(2)).await;
    let before = server.rss()?;
    let start = Instant::now();
    // Workers alone, with room for one task each, for longer than all of this takes.
    let duration = COMING_PATIENCE + Duration::from_secs(options.settle + options.seconds);
    let (workers, outstanding) = (options.workers, options.workers as u64);
    let plan = Plan { producers: 0, workers, outstanding, duration: Some(duration), ..Plan::lifecycle() };
    let _crowd = spawn(binary, &servers, Face::Streams, &plan)?;
    while get_json(server.address, "/v1/cluster")?["slots"]["total"] != workers {
        ensure!(start.elapsed() < COMING_PATIENCE, "not all {workers} workers have come in");
        sleep(Duration::from_millis(100)).await;
    }
    let coming = start.elapsed();
    sleep(Duration::from_secs(options.settle)).await;
    let (rss, entries, cpu) = (server.rss()?, applied(server.address)?, server.cpu()?);
    sleep(Duration::from_secs(options.seconds)).await;
    let percent = (server.cpu()? - cpu).as_secs_f64() / options.seconds as f64 * 100.0;
    Ok(json!({
        "workers": workers,
        "all_there_after_s": coming.as_secs_f64(),
        "rss_before_bytes": before,
        "rss_bytes": rss,
        "bytes_each": rss.saturating_sub(before) / workers.max(1) as u64,
        "percent_of_a_core": percent,
        "log_entries": applied(server.address)? - entries,
        "seconds": options.seconds,
    }))
}

/// Up to which index this node has applied, over all its groups.
fn applied(address: SocketAddr) -> Result<u64> {
    let node = get_json(address, "/v1/node")?;
    let groups = node["groups"].as_array().map(Vec::as_slice).unwrap_or_default();
    ensure!(!groups.is_empty(), "/v1/node has no groups");
    Ok(groups.iter().filter_map(|group| group["applied"].as_u64()).sum())
}
