//! From an enqueue to the waiting worker that gets the task: over HTTP here, over the streams of gRPC in `streams.rs`,
//! with the SDK, where a handler starts, in `sdk.rs`.
//!
//! Open loop: an enqueue that is held up by the answer to an earlier one counts from when it was due, so that a
//! stall counts for all that it held up.

mod sdk;
mod streams;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use parking_lot::Mutex;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep_until};

use crate::http::{self, strings};
use crate::process::Server;

#[derive(Args)]
pub(crate) struct Options {
    /// How to speak with Windlass
    #[arg(long, value_enum, default_value_t = Face::Http)]
    face: Face,
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    #[arg(long, default_value_t = 4)]
    shards: u16,
    /// Enqueues per second
    #[arg(long, default_value_t = 200)]
    rate: u64,
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Waiting claims; over streams and with the SDK: slots, over one worker per node
    #[arg(long, default_value_t = 8)]
    workers: usize,
    /// Over HTTP: connections that enqueue in turn. Else there is one per node
    #[arg(long, default_value_t = 16)]
    producers: usize,
}

/// How to speak with Windlass.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Face {
    Http,
    Streams,
    Sdk,
}

/// What is due when, and how long each took.
#[derive(Clone)]
struct Clock {
    start: Instant,
    rate: u64,
    count: u64,
    micros: Arc<Mutex<Vec<u64>>>,
}

impl Clock {
    fn new(options: &Options) -> Clock {
        let start = Instant::now() + Duration::from_millis(500);
        let count = options.rate * options.seconds;
        let micros = Arc::new(Mutex::new(Vec::with_capacity(count as usize)));
        Clock { start, rate: options.rate, count, micros }
    }

    /// When the nth enqueue is due.
    fn due(&self, n: u64) -> Instant {
        self.start + Duration::from_micros(n * 1_000_000 / self.rate)
    }

    /// Waits until the nth is due. From when it counts, in microseconds since the start.
    async fn until_due(&self, n: u64) -> u64 {
        let due = self.due(n);
        // One that is held up by the answer to the last counts from when it was due; the timer's own lateness is
        // no fault of the server.
        let is_late = Instant::now() > due;
        sleep_until(due).await;
        let sent = if is_late { due } else { Instant::now() };
        (sent - self.start).as_micros() as u64
    }

    /// A task was received that counts from `sent`.
    fn received(&self, sent: u64) {
        let now = self.start.elapsed().as_micros() as u64;
        self.micros.lock().push(now.saturating_sub(sent));
    }

    /// Returns when all were received, or when that takes too long.
    async fn until_all(&self) {
        let patience = Instant::now() + Duration::from_secs(5);
        while (self.micros.lock().len() as u64) < self.count && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub(crate) async fn run(binary: &Path, data: &Path, options: Options) -> Result<()> {
    let dir = tempfile::tempdir_in(data)?;
    let servers = Server::cluster(binary, dir.path(), options.nodes, options.shards)?;
    let clock = Clock::new(&options);
    let local = LocalSet::new();
    let what = match options.face {
        Face::Http => {
            local.run_until(over_http(&servers, &options, clock.clone())).await?;
            "enqueue sent to task received, HTTP"
        }
        Face::Streams => {
            local.run_until(streams::run(&servers, options.workers, clock.clone())).await?;
            "enqueue sent to task received, streams"
        }
        Face::Sdk => {
            local.run_until(sdk::run(&servers, options.workers, clock.clone())).await?;
            "enqueue called to handler started, SDK"
        }
    };
    let mut times = clock.micros.lock().clone();
    times.sort_unstable();
    let at = |part: f64| {
        let n = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
        times.get(n).map_or(f64::NAN, |time| *time as f64 / 1000.0)
    };
    println!(
        "{what}, {} nodes, {}/s, {} of {} tasks: p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms, max {:.2} ms",
        options.nodes,
        options.rate,
        times.len(),
        clock.count,
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
    Ok(())
}

async fn over_http(servers: &[Server], options: &Options, clock: Clock) -> Result<()> {
    for n in 0..options.workers {
        let connection = http::Connection::open(servers[n % servers.len()].address).await?;
        spawn_local(worker(connection, n, clock.clone()));
    }
    let mut producing = Vec::new();
    for n in 0..options.producers {
        let connection = http::Connection::open(servers[n % servers.len()].address).await?;
        let mine = (n as u64..clock.count).step_by(options.producers);
        producing.push(spawn_local(producer(connection, mine, clock.clone())));
    }
    for task in producing {
        task.await??;
    }
    clock.until_all().await;
    Ok(())
}

/// Enqueues the `n`th task when it is due; the payload says from when it counts.
async fn producer(
    mut connection: http::Connection,
    mine: impl Iterator<Item = u64>,
    clock: Clock,
) -> Result<()> {
    for n in mine {
        let sent = clock.until_due(n).await;
        let body = format!(r#"{{"kind":"bench","payload":{{"sent":"{sent}"}}}}"#);
        connection.post("/v1/queues/bench/tasks", body.as_bytes()).await?;
    }
    Ok(())
}

async fn worker(mut connection: http::Connection, n: usize, clock: Clock) -> Result<()> {
    let claim = format!(r#"{{"queues":["bench"],"worker":"bench-{n}","max":1,"wait_ms":10000}}"#);
    loop {
        let answer = connection.post("/v1/claims", claim.as_bytes()).await?;
        let Some(token) = strings(answer, "token").next().map(str::to_owned) else { continue };
        clock.received(strings(answer, "sent").next().context("a task without its time")?.parse()?);
        let ack = format!(r#"{{"token":"{token}"}}"#);
        connection.post("/v1/claims/ack", ack.as_bytes()).await?;
    }
}
