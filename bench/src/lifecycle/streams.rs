//! The lifecycle over the streams of gRPC: enqueues in flight on `EnqueueStream`, tasks pushed over `Work`.
//!
//! A task is through when its enqueue was answered, a worker got it and its ack was answered. Each answer must come
//! once, and at the end the server's own count must be the same.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use prost::Message as _;
use tokio::sync::Notify;
use tokio::task::{JoinSet, LocalSet};
use wire::grpc;

use crate::http;
use crate::http2::Connection;
use crate::messages::{Ack, Done, ENQUEUE_STREAM, Enqueued, Heard, Item, NAME, Outcomes, Say, WORK};
use crate::messages::{credit, hello, task};
use crate::process::Server;

/// One run's work.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub(super) tasks: u64,
    /// Tasks in one message.
    pub(super) batch: u64,
    pub(super) bytes: usize,
    /// Messages in flight on each side, over all streams.
    pub(super) outstanding: u64,
    /// Streams of each side, each on a connection of its own.
    pub(super) producers: usize,
    pub(super) workers: usize,
}

/// What was begun and what is through, over all streams of one thread.
#[derive(Default)]
struct Count {
    begun: Cell<u64>,
    acked: Cell<u64>,
    is_through: Notify,
}

pub(super) async fn run(servers: &[Server], work: Work) -> Result<Duration> {
    let time = LocalSet::new().run_until(all(servers, work)).await?;
    check(servers, work).await?;
    Ok(time)
}

async fn all(servers: &[Server], work: Work) -> Result<Duration> {
    let address = |n: usize| servers[n % servers.len()].address;
    let mut workers = Vec::new();
    for n in 0..work.workers {
        let slots = share(work.outstanding, work.workers, n) * work.batch;
        workers.push(Worker::begin(address(n), n, slots as u32).await?);
    }
    let count = Rc::new(Count::default());
    let mut running = JoinSet::new();
    let start = Instant::now();
    for worker in workers {
        running.spawn_local(worker.work(work, count.clone()));
    }
    for n in 0..work.producers {
        let in_flight = share(work.outstanding, work.producers, n) * work.batch;
        running.spawn_local(produce(address(n), work, in_flight, count.clone()));
    }
    // Producers end, workers only when something is wrong.
    let wrong = async {
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        bail!("every stream ended before all tasks were through")
    };
    tokio::select! {
        wrong = wrong => wrong,
        () = count.is_through.notified() => Ok(start.elapsed()),
    }
}

/// The part of `total` that the nth of so many has; at least 1.
fn share(total: u64, parts: usize, n: usize) -> u64 {
    let (parts, n) = (parts as u64, n as u64);
    (total / parts + u64::from(n < total % parts)).max(1)
}

impl Count {
    /// How many to begin next; 0 when all have been.
    fn next(&self, work: Work) -> u64 {
        let count = work.batch.min(work.tasks - self.begun.get());
        self.begun.set(self.begun.get() + count);
        count
    }

    fn ack(&self, work: Work) {
        self.acked.set(self.acked.get() + 1);
        if self.acked.get() == work.tasks {
            self.is_through.notify_one();
        }
    }
}

/// Marks a number as answered, which happens once and well.
fn once(answered: &mut [bool], seq: u64, error: Option<grpc::Error>) -> Result<()> {
    if let Some(grpc::Error { code, message, .. }) = error {
        bail!("{code}: {message}");
    }
    match answered.get_mut(seq as usize) {
        Some(answered) if !*answered => *answered = true,
        Some(_) => bail!("{seq} was answered twice"),
        None => bail!("{seq} was answered and not asked"),
    }
    Ok(())
}

async fn produce(address: SocketAddr, work: Work, in_flight_max: u64, count: Rc<Count>) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    let stream = connection.begin(ENQUEUE_STREAM);
    let payload = format!("\"{}\"", "x".repeat(work.bytes.saturating_sub(2)));
    let task = task(payload.into());
    let (mut answered, mut in_flight) = (Vec::new(), 0);
    let mut arrived = Vec::new();
    loop {
        while in_flight + work.batch <= in_flight_max {
            let tasks = count.next(work);
            if tasks == 0 {
                break;
            }
            let (seq, more) = (answered.len() as u64, vec![task.clone(); tasks as usize - 1]);
            connection.send(stream, &Item { seq, task: task.clone(), more });
            answered.resize(answered.len() + tasks as usize, false);
            in_flight += tasks;
        }
        if in_flight == 0 {
            return Ok(());
        }
        connection.receive(&mut arrived).await?;
        for (_, message) in arrived.drain(..) {
            for result in Enqueued::decode(message)?.results {
                once(&mut answered, result.seq, result.error)?;
                in_flight -= 1;
            }
        }
    }
}

/// One worker's stream.
struct Worker {
    connection: Connection,
    stream: usize,
    slots: u32,
}

impl Worker {
    async fn begin(address: SocketAddr, n: usize, slots: u32) -> Result<Worker> {
        let mut connection = Connection::open(address).await?;
        let stream = connection.begin(WORK);
        connection.send(stream, &hello(format!("{NAME}-{n}"), slots));
        let mut arrived = Vec::new();
        connection.receive(&mut arrived).await?;
        for (_, message) in arrived {
            ensure!(Heard::decode(message)?.welcome.is_some(), "the server does not say welcome");
        }
        Ok(Worker { connection, stream, slots })
    }

    async fn work(mut self, work: Work, count: Rc<Count>) -> Result<()> {
        self.connection.send(self.stream, &credit(self.slots));
        let (mut arrived, mut answered) = (Vec::new(), Vec::new());
        let mut acks = Vec::new();
        loop {
            self.connection.receive(&mut arrived).await?;
            for (_, message) in arrived.drain(..) {
                let heard = Heard::decode(message)?;
                if let Some(error) = heard.error {
                    // It goes on by itself.
                    eprintln!("{}: {}", error.code, error.message);
                }
                for claim in heard.tasks.into_iter().flat_map(|tasks| tasks.claims) {
                    acks.push(ack(answered.len() as u64, claim.token));
                    answered.push(false);
                }
                for result in heard.results.into_iter().flat_map(|results| results.results) {
                    once(&mut answered, result.seq, result.error)?;
                    count.ack(work);
                }
            }
            while !acks.is_empty() {
                let rest = acks.split_off(acks.len().min(work.batch as usize));
                let acks = std::mem::replace(&mut acks, rest);
                // Each of them leaves a slot free.
                let credit = acks.len() as u32;
                self.connection.send(self.stream, &Say { outcomes: Some(Outcomes { acks, credit }) });
            }
        }
    }
}

fn ack(seq: u64, token: Bytes) -> Ack {
    Ack { seq, token, done: Some(Done {}) }
}

/// The server counted as we did.
async fn check(servers: &[Server], work: Work) -> Result<()> {
    let mut connection = http::Connection::open(servers[0].address).await?;
    let queue: serde_json::Value =
        serde_json::from_slice(connection.get(&format!("/v1/queues/{NAME}")).await?)?;
    for (what, figure, wanted) in [
        ("enqueued", &queue["totals"]["enqueued"], work.tasks),
        ("done", &queue["totals"]["done"], work.tasks),
        ("ready", &queue["depth"]["ready"], 0),
        ("claimed", &queue["depth"]["claimed"], 0),
    ] {
        ensure!(figure.as_u64() == Some(wanted), "the server counts {figure} {what}, not {wanted}");
    }
    // Claimed, not sent to a worker and claimed again: no fault, but no use either.
    if let Some(freed @ 1..) = queue["totals"]["freed"].as_u64() {
        eprintln!("  {freed} claims were freed");
    }
    Ok(())
}
