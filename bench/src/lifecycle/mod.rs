//! Tasks per second through the whole lifecycle, producers and workers at once. Over HTTP and Redis here, over the
//! streams of gRPC in `streams.rs`.

mod streams;

use std::cell::Cell;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use tokio::task::LocalSet;

use crate::http::{self, strings};
use crate::process::{self, Server};
use crate::redis;

#[derive(Args)]
pub(crate) struct Options {
    /// How to speak with Windlass
    #[arg(long, value_enum, default_value_t = Face::Http)]
    face: Face,
    /// Connections of HTTP and of Redis, half of them producers and half workers
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Over streams: messages in flight on each side
    #[arg(long, default_value_t = 32)]
    outstanding: u64,
    /// Over streams: how many producers, each with a stream and a connection of its own, spread over the nodes
    #[arg(long, default_value_t = 1)]
    producers: usize,
    /// Over streams: how many workers, each with a stream and a connection of its own, spread over the nodes
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Tasks through the lifecycle, for one and for 100 per request; 0 leaves one of them out
    #[arg(long, num_args = 2, default_values_t = [100_000, 800_000])]
    tasks: Vec<u64>,
    /// Payload size
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    /// Repetitions; the median counts
    #[arg(long, default_value_t = 3)]
    runs: usize,
    #[arg(long, default_value_t = 4)]
    shards: u16,
    /// Nodes of the cluster; the connections are spread over them
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Windlass alone
    #[arg(long)]
    alone: bool,
    /// Shows how many records and syncs the log had for each run
    #[arg(long)]
    details: bool,
    /// A JSON file for the figures
    #[arg(long)]
    out: Option<std::path::PathBuf>,
}

/// How to speak with Windlass.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Face {
    Http,
    Streams,
}

/// One run's work.
#[derive(Clone, Copy)]
struct Work {
    tasks: u64,
    batch: u64,
    connections: usize,
    bytes: usize,
}

pub(crate) async fn run(binary: &Path, data: &Path, options: Options) -> Result<()> {
    let producers = options.producers.max(1);
    let workers = options.workers.max(1);
    let (face, how) = match options.face {
        Face::Http => ("HTTP", format!("{} connections", options.connections)),
        Face::Streams => (
            "streams",
            format!(
                "{} messages in flight each way, {producers} producers, {workers} workers",
                options.outstanding
            ),
        ),
    };
    println!("lifecycles/s, fsync before every answer, {how}, {} nodes, client included:\n", options.nodes);
    println!("| per request | Windlass ({face}) | Redis (AOF always) | ratio |\n|---|---|---|---|");
    let mut figures = Vec::new();
    for (batch, &tasks) in [1, 100].into_iter().zip(&options.tasks) {
        if tasks == 0 {
            continue;
        }
        let work = Work { tasks, batch, connections: options.connections, bytes: options.bytes };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        // Alternating, so that a slow minute of the machine hits both.
        for _ in 0..options.runs {
            let dir = tempfile::tempdir_in(data)?;
            let servers = Server::cluster(binary, dir.path(), options.nodes, options.shards)?;
            let own_cpu = process::own_cpu()?;
            let time = match options.face {
                Face::Http => windlass(&servers, work).await?,
                Face::Streams => {
                    let (outstanding, bytes) = (options.outstanding, options.bytes);
                    let work = streams::Work { tasks, batch, bytes, outstanding, producers, workers };
                    streams::run(&servers, work).await?
                }
            };
            ours.push(rate(work, time));
            if options.details {
                let micros = (process::own_cpu()? - own_cpu).as_micros() as f64 / tasks as f64;
                eprintln!("  {:.0}/s; the client took {micros:.1} µs for each task", rate(work, time));
                for server in &servers {
                    details(server, work).await?;
                }
            }
            drop(servers);
            if !options.alone {
                let dir = tempfile::tempdir_in(data)?;
                let server = Server::redis(dir.path())?;
                theirs.push(rate(work, redis(server.address, work).await?));
            }
        }
        let ours_median = median(&mut ours);
        match theirs.is_empty() {
            true => println!("| {batch} | {ours_median:.0} | | |"),
            false => {
                let theirs_median = median(&mut theirs);
                let ratio = ours_median / theirs_median;
                println!("| {batch} | {ours_median:.0} | {theirs_median:.0} | {ratio:.2} |");
            }
        }
        figures.push(serde_json::json!({"per_request": batch, "windlass": ours, "redis": theirs}));
    }
    if let Some(path) = options.out {
        std::fs::write(path, serde_json::to_string_pretty(&figures)? + "\n")?;
    }
    Ok(())
}

async fn details(server: &Server, work: Work) -> Result<()> {
    let mut connection = http::Connection::open(server.address).await?;
    let metrics = String::from_utf8_lossy(connection.get("/metrics").await?).into_owned();
    let wanted = [
        "windlass_log_records_total",
        "windlass_log_sync_seconds_count",
        "windlass_log_sync_seconds_sum",
        "windlass_log_bytes_total",
        "windlass_checkpoint",
        "windlass_shard_stall",
    ];
    for line in metrics.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name))) {
        eprintln!("  {line}");
    }
    let micros = server.cpu()?.as_micros() as f64 / work.tasks as f64;
    eprintln!("  {} MB RSS, {micros:.1} µs of processor time for each task", server.rss()? / 1_000_000);
    Ok(())
}

fn rate(work: Work, time: Duration) -> f64 {
    work.tasks as f64 / time.as_secs_f64()
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Counts what was begun and what was finished, over all connections of one thread.
#[derive(Default)]
struct Count {
    begun: Cell<u64>,
    finished: Cell<u64>,
}

impl Count {
    /// The next few to begin, or nothing when all have been.
    fn next(&self, work: Work) -> Option<u64> {
        let count = work.batch.min(work.tasks - self.begun.get());
        self.begun.set(self.begun.get() + count);
        (count > 0).then_some(count)
    }
}

async fn windlass(servers: &[Server], work: Work) -> Result<Duration> {
    let count = Rc::new(Count::default());
    let local = LocalSet::new();
    let start = Instant::now();
    let mut running = Vec::new();
    for n in 0..work.connections / 2 {
        let address = servers[n % servers.len()].address;
        running.push(local.spawn_local(windlass_producer(address, work, count.clone())));
        running.push(local.spawn_local(windlass_worker(address, work, count.clone(), n)));
    }
    local
        .run_until(async {
            for task in running {
                task.await??;
            }
            anyhow::Ok(start.elapsed())
        })
        .await
}

async fn windlass_producer(address: SocketAddr, work: Work, count: Rc<Count>) -> Result<()> {
    let mut connection = http::Connection::open(address).await?;
    let one = format!(r#"{{"kind":"bench","payload":"{}"}}"#, "x".repeat(work.bytes.saturating_sub(2)));
    while let Some(tasks) = count.next(work) {
        let body = match work.batch {
            1 => one.clone(),
            _ => format!(r#"{{"tasks":[{}]}}"#, vec![one.as_str(); tasks as usize].join(",")),
        };
        connection.post("/v1/queues/bench/tasks", body.as_bytes()).await?;
    }
    Ok(())
}

async fn windlass_worker(address: SocketAddr, work: Work, count: Rc<Count>, n: usize) -> Result<()> {
    let mut connection = http::Connection::open(address).await?;
    let claim = format!(r#"{{"queues":["bench"],"worker":"bench-{n}","max":{},"wait_ms":250}}"#, work.batch);
    let mut tokens: Vec<String> = Vec::new();
    while count.finished.get() < work.tasks {
        let acked = tokens.len() as u64;
        let answer = match tokens.as_slice() {
            [] => connection.post("/v1/claims", claim.as_bytes()).await?,
            [token] => {
                let body = format!(r#"{{"token":"{token}","claim":{claim}}}"#);
                connection.post("/v1/claims/ack", body.as_bytes()).await?
            }
            _ => {
                let mut body = String::from(r#"{"acks":["#);
                for (n, token) in tokens.iter().enumerate() {
                    let comma = if n == 0 { "" } else { "," };
                    write!(body, r#"{comma}{{"token":"{token}"}}"#)?;
                }
                write!(body, r#"],"claim":{claim}}}"#)?;
                connection.post("/v1/claims/ack", body.as_bytes()).await?
            }
        };
        tokens = strings(answer, "token").map(str::to_owned).collect();
        count.finished.set(count.finished.get() + acked);
    }
    Ok(())
}

async fn redis(address: SocketAddr, work: Work) -> Result<Duration> {
    let count = Rc::new(Count::default());
    let local = LocalSet::new();
    let start = Instant::now();
    let mut running = Vec::new();
    for n in 0..work.connections / 2 {
        running.push(local.spawn_local(redis_producer(address, work, count.clone(), n)));
        running.push(local.spawn_local(redis_worker(address, work, count.clone())));
    }
    local
        .run_until(async {
            for task in running {
                task.await??;
            }
            anyhow::Ok(start.elapsed())
        })
        .await
}

async fn redis_producer(address: SocketAddr, work: Work, count: Rc<Count>, n: usize) -> Result<()> {
    let mut connection = redis::Connection::open(address).await?;
    let mut made = 0u64;
    while let Some(tasks) = count.next(work) {
        let payloads: Vec<Vec<u8>> = (0..tasks)
            .map(|_| {
                made += 1;
                // Different payloads, or LREM would find any of them.
                format!("{:0width$}", made * 1000 + n as u64, width = work.bytes).into_bytes()
            })
            .collect();
        connection.push(&payloads).await?;
    }
    Ok(())
}

async fn redis_worker(address: SocketAddr, work: Work, count: Rc<Count>) -> Result<()> {
    let mut connection = redis::Connection::open(address).await?;
    while count.finished.get() < work.tasks {
        let taken = connection.take(work.batch as usize).await?;
        if taken.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        connection.done(&taken).await?;
        count.finished.set(count.finished.get() + taken.len() as u64);
    }
    Ok(())
}
