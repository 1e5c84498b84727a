//! From an enqueue to the waiting claim that gets the task.
//!
//! Open loop: an enqueue that is held up by the answer to an earlier one counts from when it was due, so that a
//! stall counts for all that it held up.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};

use crate::http::{self, strings};
use crate::process::Server;

#[derive(Args)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    #[arg(long, default_value_t = 4)]
    shards: u16,
    /// Enqueues per second
    #[arg(long, default_value_t = 200)]
    rate: u64,
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Waiting claims
    #[arg(long, default_value_t = 8)]
    workers: usize,
    /// Connections that enqueue in turn
    #[arg(long, default_value_t = 16)]
    producers: usize,
}

pub(crate) async fn run(binary: &Path, data: &Path, options: Options) -> Result<()> {
    let dir = tempfile::tempdir_in(data)?;
    let servers = Server::cluster(binary, dir.path(), options.nodes, options.shards)?;
    let start = Instant::now() + Duration::from_millis(500);
    let count = options.rate * options.seconds;
    let times = Rc::new(RefCell::new(Vec::with_capacity(count as usize)));
    let local = LocalSet::new();
    for n in 0..options.workers {
        let address = servers[n % servers.len()].address;
        local.spawn_local(worker(http::Connection::open(address).await?, n, start, times.clone()));
    }
    let mut producing = Vec::new();
    for n in 0..options.producers {
        let connection = http::Connection::open(servers[n % servers.len()].address).await?;
        let mine = (n as u64..count).step_by(options.producers);
        producing.push(local.spawn_local(producer(connection, mine, options.rate, start)));
    }
    let waiting = times.clone();
    local
        .run_until(async move {
            for task in producing {
                task.await??;
            }
            let patience = Instant::now() + Duration::from_secs(5);
            while (waiting.borrow().len() as u64) < count && Instant::now() < patience {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            anyhow::Ok(())
        })
        .await?;
    let mut times = times.borrow().clone();
    times.sort_unstable();
    let at = |part: f64| {
        let n = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
        times.get(n).map_or(f64::NAN, |time| *time as f64 / 1000.0)
    };
    println!(
        "enqueue sent to task received, {} nodes, {}/s, {} of {count} tasks: p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms, max {:.2} ms",
        options.nodes,
        options.rate,
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
    Ok(())
}

/// Enqueues the `n`th task when it is due; the payload says which it is.
async fn producer(
    mut connection: http::Connection,
    mine: impl Iterator<Item = u64>,
    rate: u64,
    start: Instant,
) -> Result<()> {
    for n in mine {
        let due = start + Duration::from_micros(n * 1_000_000 / rate);
        // One that is held up by the answer to the last counts from when it was due; the timer's own lateness is
        // no fault of the server.
        let is_late = Instant::now() > due;
        sleep_until(due).await;
        let sent = if is_late { due } else { Instant::now() };
        let micros = (sent - start).as_micros();
        let body = format!(r#"{{"kind":"bench","payload":{{"due":"{micros}"}}}}"#);
        connection.post("/v1/queues/bench/tasks", body.as_bytes()).await?;
    }
    Ok(())
}

async fn worker(
    mut connection: http::Connection,
    n: usize,
    start: Instant,
    times: Rc<RefCell<Vec<u64>>>,
) -> Result<()> {
    let claim = format!(r#"{{"queues":["bench"],"worker":"bench-{n}","max":1,"wait_ms":10000}}"#);
    loop {
        let answer = connection.post("/v1/claims", claim.as_bytes()).await?;
        let received = start.elapsed().as_micros() as u64;
        let Some(token) = strings(answer, "token").next().map(str::to_owned) else { continue };
        let due: u64 = strings(answer, "due").next().context("a task without its time")?.parse()?;
        times.borrow_mut().push(received.saturating_sub(due));
        let ack = format!(r#"{{"token":"{token}"}}"#);
        connection.post("/v1/claims/ack", ack.as_bytes()).await?;
    }
}
