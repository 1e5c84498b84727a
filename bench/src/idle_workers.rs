//! What workers cost that wait: each with a session and a stream of its own, and a connection unless told otherwise.

use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;
use prost::Message as _;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, interval_at, sleep};

use crate::http;
use crate::http2::Connection;
use crate::messages::{Heard, WORK, credit, hello, idle_beat};
use crate::process::{Server, raise_files};

#[derive(Args)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 10_000)]
    workers: usize,
    /// Connections that the workers share; one each unless said
    #[arg(long)]
    connections: Option<usize>,
    #[arg(long, default_value_t = 4)]
    shards: u16,
    /// How long to settle before measuring
    #[arg(long, default_value_t = 10)]
    settle: u64,
    /// How long to measure
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Connections that are being opened at once.
const OPENING_MAX: usize = 64;
/// Files that a process has open beside its connections.
const FILES: u64 = 500;

/// What all connections share.
struct Crowd {
    address: SocketAddr,
    workers: usize,
    welcomed: Cell<usize>,
    are_all_there: Notify,
    opening: Semaphore,
}

pub(crate) async fn run(binary: &Path, data: &Path, options: Options) -> Result<()> {
    let connections = options.connections.unwrap_or(options.workers).clamp(1, options.workers.max(1));
    raise_files(connections as u64 + FILES)?;
    let dir = tempfile::tempdir_in(data)?;
    let server = Server::windlass(binary, dir.path(), options.shards)?;
    sleep(Duration::from_secs(2)).await;
    let crowd = Rc::new(Crowd {
        address: server.address,
        workers: options.workers,
        welcomed: Cell::new(0),
        are_all_there: Notify::new(),
        opening: Semaphore::new(OPENING_MAX),
    });
    LocalSet::new().run_until(measure(&server, &options, connections, crowd)).await
}

async fn measure(server: &Server, options: &Options, connections: usize, crowd: Rc<Crowd>) -> Result<()> {
    let before = server.rss()?;
    let start = Instant::now();
    let mut running = JoinSet::new();
    for n in 0..connections {
        let part = |n: usize| n * options.workers / connections;
        running.spawn_local(some_workers(part(n)..part(n + 1), crowd.clone()));
    }
    // None of them ends, unless something is wrong.
    let wrong = async {
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        bail!("every worker has left")
    };
    let figures = async {
        crowd.are_all_there.notified().await;
        println!(
            "{} workers on {connections} connections, all there in {:?}",
            crowd.workers,
            start.elapsed()
        );
        sleep(Duration::from_secs(options.settle)).await;
        let mut http = http::Connection::open(server.address).await?;
        let slots = json(&mut http, "/v1/cluster").await?["slots"]["total"].as_u64();
        ensure!(slots == Some(crowd.workers as u64), "the server knows of {slots:?} slots");
        let after = server.rss()?;
        println!(
            "memory: {} MB before, {} MB with them: {} MB, {:.1} kB each",
            before / 1_000_000,
            after / 1_000_000,
            after.saturating_sub(before) / 1_000_000,
            after.saturating_sub(before) as f64 / 1000.0 / crowd.workers as f64
        );
        let (applied, cpu) = (applied(&mut http).await?, server.cpu()?);
        sleep(Duration::from_secs(options.seconds)).await;
        let percent = (server.cpu()? - cpu).as_secs_f64() / options.seconds as f64 * 100.0;
        let entries = self::applied(&mut http).await? - applied;
        println!("over {} s: {percent:.1} % of a core, {entries} log entries", options.seconds);
        println!("memory at the end: {} MB", server.rss()? / 1_000_000);
        Ok(())
    };
    tokio::select! {
        wrong = wrong => wrong,
        done = figures => done,
    }
}

/// Workers of one connection: come in, then beat as often as the server wants.
async fn some_workers(names: Range<usize>, crowd: Rc<Crowd>) -> Result<()> {
    let place = crowd.opening.acquire().await?;
    let mut connection = Connection::open(crowd.address).await?;
    let mut streams = Vec::new();
    for n in names.clone() {
        let stream = connection.begin(WORK);
        connection.send(stream, &hello(format!("idle-{n}"), 1));
        connection.send(stream, &credit(1));
        streams.push(stream);
    }
    let (mut arrived, mut beat) = (Vec::new(), Duration::ZERO);
    let mut welcomed = 0;
    while welcomed < streams.len() {
        connection.receive(&mut arrived).await?;
        for (_, message) in arrived.drain(..) {
            let Some(welcome) = Heard::decode(message)?.welcome else { bail!("not a welcome") };
            beat = Duration::from_millis(welcome.idle_beat_ms);
            welcomed += 1;
        }
    }
    drop(place);
    crowd.welcomed.set(crowd.welcomed.get() + welcomed);
    if crowd.welcomed.get() == crowd.workers {
        crowd.are_all_there.notify_one();
    }
    let part = names.start as f64 / crowd.workers as f64;
    let mut beats = interval_at(Instant::now() + beat.mul_f64(part), beat);
    loop {
        tokio::select! {
            received = connection.receive(&mut arrived) => {
                received?;
                for (_, message) in arrived.drain(..) {
                    if let Some(error) = Heard::decode(message)?.error {
                        bail!("{}: {}", error.code, error.message);
                    }
                }
            }
            _ = beats.tick() => {
                for &stream in &streams {
                    connection.send(stream, &idle_beat());
                }
            }
        }
    }
}

/// Up to which index this node has applied, over all its groups.
async fn applied(http: &mut http::Connection) -> Result<u64> {
    let node = json(http, "/v1/node").await?;
    let groups = node["groups"].as_array().map(Vec::as_slice).unwrap_or_default();
    ensure!(!groups.is_empty(), "/v1/node has no groups");
    Ok(groups.iter().filter_map(|group| group["applied"].as_u64()).sum())
}

async fn json(http: &mut http::Connection, path: &str) -> Result<serde_json::Value> {
    Ok(serde_json::from_slice(http.get(path).await?)?)
}
