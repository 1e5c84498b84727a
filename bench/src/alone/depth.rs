//! What many waiting tasks cost: memory, disk, enqueues and claims at that depth, restart after kill -9. The same on
//! Redis for as many as asked.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::checkpoint_stall_ms;
use crate::compare::redis;
use crate::load::Plan;
use crate::process::{Server, disk, get_json};
use crate::windlass::{Face, bench};

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Waiting tasks: one server for each figure
    #[arg(long, num_args = 1.., default_values_t = [1_000, 10_000, 100_000, 1_000_000])]
    tasks: Vec<u64>,
    /// The same on Redis, for so many
    #[arg(long, num_args = 0..)]
    redis: Vec<u64>,
    /// Payload size
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    #[arg(long, default_value_t = 4)]
    shards: u16,
}

/// Tasks in one message while the queue is filled.
const FILL_BATCH: u64 = 1_000;
/// Tasks in one message, and tasks in all, while the rates at a depth are measured.
const BATCH: u64 = 100;
const MEASURED: u64 = 50_000;
/// Checkpoints go on for a moment after the last enqueue.
const SETTLE: Duration = Duration::from_secs(5);

impl Options {
    pub(crate) fn new(tasks: Vec<u64>, redis: Vec<u64>) -> Options {
        Options { tasks, redis, bytes: 200, shards: 4 }
    }
}

pub(crate) async fn run(binary: &Path, data: &Path, options: &Options) -> Result<Value> {
    let mut windlass = Vec::new();
    for &tasks in &options.tasks {
        eprintln!("windlass with {tasks} waiting tasks");
        windlass.push(on_windlass(binary, data, options, tasks).await?);
    }
    let mut redis = Vec::new();
    for &tasks in &options.redis {
        eprintln!("redis with {tasks} waiting tasks");
        redis.push(on_redis(data, options, tasks).await?);
    }
    Ok(json!({"windlass": windlass, "redis": redis}))
}

/// Producers alone.
fn fill(options: &Options, tasks: u64, batch: u64) -> Plan {
    let batch = batch.min(tasks);
    let (producers, workers, outstanding) = (1, 0, if batch == FILL_BATCH { 4 } else { 32 });
    let tasks = Some(tasks);
    let payload_bytes = options.bytes;
    Plan { tasks, duration: None, rate: None, batch, outstanding, payload_bytes, producers, workers }
}

/// Workers alone.
fn claim(options: &Options, tasks: u64) -> Plan {
    Plan { producers: 0, workers: 1, ..fill(options, tasks, BATCH) }
}

async fn on_windlass(binary: &Path, data: &Path, options: &Options, tasks: u64) -> Result<Value> {
    let dir = tempfile::tempdir_in(data)?;
    let mut servers = vec![Server::windlass(binary, dir.path(), options.shards)?];
    let empty = servers[0].rss()?;
    let filled = bench(binary, &servers, Face::Streams, &fill(options, tasks, FILL_BATCH)).await?;
    let peak = servers[0].rss()?;
    tokio::time::sleep(SETTLE).await;
    let (rss, bytes) = (servers[0].rss()?, disk(dir.path())?);
    let stall = checkpoint_stall_ms(servers[0].address)?;
    servers.remove(0).kill()?;
    let server = Server::windlass(binary, dir.path(), options.shards)?;
    let restarted_in = server.started_in;
    let queue = get_json(server.address, "/v1/queues/bench")?;
    ensure!(
        queue["depth"]["ready"] == tasks,
        "{} of {tasks} are there after kill -9",
        queue["depth"]["ready"]
    );
    servers.push(server);
    let measured = MEASURED.min(tasks);
    let enqueue = bench(binary, &servers, Face::Streams, &fill(options, measured, BATCH)).await?;
    let claimed = bench(binary, &servers, Face::Streams, &claim(options, measured)).await?;
    Ok(json!({
        "waiting": tasks,
        "rss_empty_bytes": empty,
        "rss_after_fill_bytes": peak,
        "rss_bytes": rss,
        "disk_bytes": bytes,
        "fill_per_s": filled["enqueued_per_s"],
        "enqueue_per_s": enqueue["enqueued_per_s"],
        "claim_and_ack_per_s": claimed["acked_per_s"],
        "restart_after_kill_ms": restarted_in.as_secs_f64() * 1000.0,
        "checkpoint_stall_max_ms": stall,
    }))
}

async fn on_redis(data: &Path, options: &Options, tasks: u64) -> Result<Value> {
    let dir = tempfile::tempdir_in(data)?;
    let server = redis(dir.path(), "always")?;
    let empty = server.rss()?;
    let run = |plan| crate::peers::redis::run(server.address, plan);
    let filled = run(fill(options, tasks, FILL_BATCH)).await?;
    tokio::time::sleep(SETTLE).await;
    let (rss, bytes) = (server.rss()?, disk(dir.path())?);
    let measured = MEASURED.min(tasks);
    let enqueue = run(fill(options, measured, BATCH)).await?;
    let claimed = run(claim(options, measured)).await?;
    Ok(json!({
        "waiting": tasks,
        "rss_empty_bytes": empty,
        "rss_bytes": rss,
        "disk_bytes": bytes,
        "fill_per_s": filled.enqueued_per_s,
        "enqueue_per_s": enqueue.enqueued_per_s,
        "claim_and_ack_per_s": claimed.acked_per_s,
    }))
}
