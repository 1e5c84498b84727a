//! What many waiting tasks cost: memory, restart after kill -9, and the longest stall by a checkpoint.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use crate::http::Connection;
use crate::process::Server;

#[derive(Args)]
pub(crate) struct Options {
    /// Waiting tasks
    #[arg(long, default_value_t = 1_000_000)]
    tasks: u64,
    /// Payload size
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    #[arg(long, default_value_t = 4)]
    shards: u16,
}

/// Tasks in one request.
const BATCH: u64 = 1_000;

pub(crate) async fn run(binary: &Path, data: &Path, options: Options) -> Result<()> {
    let dir = tempfile::tempdir_in(data)?;
    let server = Server::windlass(binary, dir.path(), options.shards)?;
    println!("empty: {} MB RSS, started in {:?}", server.rss()? / 1_000_000, server.started_in);
    let mut connection = Connection::open(server.address).await?;
    let one = format!(r#"{{"kind":"bench","payload":"{}"}}"#, "x".repeat(options.bytes.saturating_sub(2)));
    let body = format!(r#"{{"tasks":[{}]}}"#, vec![one.as_str(); BATCH as usize].join(","));
    let start = Instant::now();
    for _ in 0..options.tasks / BATCH {
        connection.post("/v1/queues/bench/tasks", body.as_bytes()).await?;
    }
    let rate = options.tasks as f64 / start.elapsed().as_secs_f64();
    println!("{} waiting: enqueued at {rate:.0}/s, {} MB RSS", options.tasks, server.rss()? / 1_000_000);
    // Checkpoints go on for a moment after the last enqueue.
    tokio::time::sleep(Duration::from_secs(5)).await;
    println!("5 s later: {} MB RSS", server.rss()? / 1_000_000);
    println!("longest stall of a shard by a checkpoint: {}", stall(&mut connection).await?);
    drop(connection);
    server.kill()?;
    let server = Server::windlass(binary, dir.path(), options.shards)?;
    println!("after kill -9: first answer in {:?}, {} MB RSS", server.started_in, server.rss()? / 1_000_000);
    let mut connection = Connection::open(server.address).await?;
    let queue = String::from_utf8_lossy(connection.get("/v1/queues/bench").await?).into_owned();
    let queue: serde_json::Value = serde_json::from_str(&queue)?;
    println!("ready after restart: {}", queue["depth"]["ready"]);
    drain(&mut connection).await
}

async fn drain(connection: &mut Connection) -> Result<()> {
    let claim = br#"{"queues":["bench"],"worker":"bench","max":1000}"#;
    let start = Instant::now();
    let mut claimed = 0;
    for _ in 0..100 {
        claimed += crate::http::strings(connection.post("/v1/claims", claim).await?, "token").count();
    }
    println!("claimed at that depth: {:.0}/s", claimed as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

async fn stall(connection: &mut Connection) -> Result<String> {
    let metrics = String::from_utf8_lossy(connection.get("/metrics").await?).into_owned();
    let lines: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("windlass_checkpoint_stall_seconds_max")).collect();
    lines.first().context("/metrics has no windlass_checkpoint_stall_seconds_max")?;
    Ok(lines.join(", "))
}
