//! Over the streams of gRPC: enqueues in flight on `EnqueueStream`, tasks pushed over `Work`, acks in `Outcomes`.
//!
//! A slot is free with its ack, and its credit goes with the ack. Several streams may share a connection; each of
//! them answers each number once, or the run fails.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use prost::Message as _;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::http2::{Arrived, Connection};
use super::load::{Load, Next, Plan};
use super::messages::{Ack, Done, ENQUEUE_STREAM, Enqueued, Heard, Item, Outcomes, Say, WORK};
use super::messages::{credit, goodbye, hello, idle_beat, still_here, task};
use super::pace::Pace;
use super::unanswered::Unanswered;
use super::{Target, part};

/// Connections that are being opened at once.
const OPENING_MAX: usize = 64;
/// Messages that are late are sent in runs of this many, so that others have their turn.
const LATE_RUN: usize = 32;

/// Connections with so many streams each; `n` streams over `connections` of them.
fn parts(streams: usize, connections: Option<usize>) -> Vec<Range<usize>> {
    let connections = connections.unwrap_or(streams).clamp(1, streams.max(1));
    (0..connections).map(|n| part(streams, connections, n)..part(streams, connections, n + 1)).collect()
}

/// How many producers end by themselves.
pub(super) fn producing(load: &Plan, target: &Target) -> usize {
    if load.producers == 0 { 0 } else { parts(load.producers, target.connections).len() }
}

/// Workers that the server knows and that have no room for tasks yet.
pub(super) struct Ready {
    workers: Vec<Crew>,
}

/// Lets all workers come in.
pub(super) async fn begin(target: &Target, plan: &Plan) -> Result<Ready> {
    let opening = Arc::new(Semaphore::new(OPENING_MAX));
    let mut coming = JoinSet::new();
    let parts = if plan.workers == 0 { Vec::new() } else { parts(plan.workers, target.connections) };
    for (n, names) in parts.into_iter().enumerate() {
        let (queue, address) = (target.queue.clone(), target.address(n));
        let (plan, prefix) = (plan.clone(), target.prefix.clone());
        let opening = opening.clone();
        coming.spawn_local(async move {
            let _place = opening.acquire().await?;
            Crew::begin(address, &queue, &prefix, names, &plan).await
        });
    }
    let mut workers = Vec::new();
    while let Some(come) = coming.join_next().await {
        workers.push(come??);
    }
    Ok(Ready { workers })
}

/// Starts all. The workers leave in order when the run is over, none of them earlier unless something is wrong.
pub(super) fn run(
    target: &Target,
    ready: Ready,
    load: &Arc<Load>,
    is_over: &watch::Receiver<bool>,
    running: &mut JoinSet<Result<()>>,
) {
    for crew in ready.workers {
        running.spawn_local(crew.work(load.clone(), is_over.clone()));
    }
    if load.plan.producers == 0 {
        return;
    }
    for (n, streams) in parts(load.plan.producers, target.connections).into_iter().enumerate() {
        let (queue, address, load) = (target.queue.clone(), target.address(n), load.clone());
        running.spawn_local(async move {
            produce(address, &queue, streams, &load).await?;
            load.producer_ended();
            Ok(())
        });
    }
}

/// The producers of one connection.
struct Producers<'a> {
    connection: Connection,
    streams: Vec<Producer>,
    queue: &'a str,
    load: &'a Load,
    /// Whose turn it is, with a rate.
    turn: usize,
}

struct Producer {
    unanswered: Unanswered,
    /// Tasks that may be in flight, without a rate.
    in_flight_max: u64,
}

async fn produce(address: SocketAddr, queue: &str, streams: Range<usize>, load: &Load) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    let plan = &load.plan;
    let streams = streams.map(|n| {
        connection.begin(ENQUEUE_STREAM);
        let in_flight_max = plan.share(plan.producers, n) * plan.batch;
        Producer { unanswered: Unanswered::default(), in_flight_max }
    });
    let streams = streams.collect();
    let producers = Producers { connection, streams, queue, load, turn: 0 };
    match plan.rate {
        None => producers.one_for_one().await,
        Some(_) => producers.on_time().await,
    }
}

impl Producers<'_> {
    /// The next goes out when one before was answered.
    async fn one_for_one(mut self) -> Result<()> {
        let (mut arrived, mut next) = (Vec::new(), self.load.next());
        loop {
            for n in 0..self.streams.len() {
                while let Some(message) = next
                    && self.streams[n].unanswered.count() + message.tasks <= self.streams[n].in_flight_max
                {
                    self.send(n, message, Instant::now());
                    next = self.load.next();
                }
            }
            if self.unanswered() == 0 {
                return Ok(());
            }
            self.connection.receive(&mut arrived).await?;
            self.answers(&mut arrived)?;
        }
    }

    /// Each goes out when it is due, whatever became of those before.
    async fn on_time(mut self) -> Result<()> {
        let (mut arrived, mut next) = (Vec::new(), self.load.next());
        let (mut pace, mut sent) = (Pace::default(), 0);
        loop {
            let Some(message) = next else {
                if self.unanswered() == 0 {
                    return Ok(());
                }
                self.connection.receive(&mut arrived).await?;
                self.answers(&mut arrived)?;
                continue;
            };
            // In any order: what is always due must not keep the socket waiting.
            tokio::select! {
                from = pace.until(message.due) => {
                    self.send(self.turn, message, from);
                    self.turn = (self.turn + 1) % self.streams.len();
                    next = self.load.next();
                    sent += 1;
                    if sent % LATE_RUN == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                received = self.connection.receive(&mut arrived) => {
                    received?;
                    self.answers(&mut arrived)?;
                }
            }
        }
    }

    fn unanswered(&self) -> u64 {
        self.streams.iter().map(|producer| producer.unanswered.count()).sum()
    }

    fn send(&mut self, n: usize, next: Next, from: Instant) {
        let task = task(self.queue, self.load.payload(from).into());
        let more = vec![task.clone(); next.tasks as usize - 1];
        let seq = self.streams[n].unanswered.send(from, next.tasks);
        self.connection.send(n, &Item { seq, task, more });
        self.load.sent(next, from);
    }

    fn answers(&mut self, arrived: &mut Vec<Arrived>) -> Result<()> {
        for (n, message) in arrived.drain(..) {
            let unanswered = &mut self.streams[n].unanswered;
            let mut sent = Vec::new();
            for result in Enqueued::decode(message)?.results {
                let at = unanswered.answer(result.seq).context("enqueue")?;
                match result.error {
                    None => sent.push(at),
                    Some(error) => self.load.refused(&error.code, 1),
                }
            }
            self.load.enqueued(sent);
        }
        Ok(())
    }
}

/// The workers of one connection.
struct Crew {
    connection: Connection,
    workers: Vec<Worker>,
    beat: Duration,
    idle_beat: Duration,
    /// When it spoke last, or was told when to speak next.
    said: Instant,
}

struct Worker {
    slots: u32,
    unanswered: Unanswered,
    acks: Vec<Bytes>,
}

impl Crew {
    async fn begin(
        address: SocketAddr,
        queue: &str,
        prefix: &str,
        names: Range<usize>,
        plan: &Plan,
    ) -> Result<Crew> {
        let mut connection = Connection::open(address).await?;
        let mut workers = Vec::new();
        for n in names {
            let slots = (plan.share(plan.workers, n) * plan.batch) as u32;
            let stream = connection.begin(WORK);
            connection.send(stream, &hello(queue, format!("{prefix}-{n}"), slots));
            workers.push(Worker { slots, unanswered: Unanswered::default(), acks: Vec::new() });
        }
        let (mut arrived, mut welcomed) = (Vec::new(), 0);
        let (mut beat, mut idle_beat) = (Duration::MAX, Duration::MAX);
        while welcomed < workers.len() {
            connection.receive(&mut arrived).await?;
            for (_, message) in arrived.drain(..) {
                let heard = Heard::decode(message)?;
                if let Some(error) = heard.error {
                    bail!("a worker was refused: {}: {}", error.code, error.message);
                }
                let welcome = heard.welcome.context("the server does not say welcome")?;
                beat = Duration::from_millis(welcome.beat_ms);
                idle_beat = Duration::from_millis(welcome.idle_beat_ms);
                welcomed += 1;
            }
        }
        Ok(Crew { connection, workers, beat, idle_beat, said: Instant::now() })
    }

    async fn work(mut self, load: Arc<Load>, mut is_over: watch::Receiver<bool>) -> Result<()> {
        for (n, worker) in self.workers.iter().enumerate() {
            self.connection.send(n, &credit(worker.slots));
        }
        // The answer says when the next is due.
        self.beat();
        let mut arrived = Vec::new();
        loop {
            let is_idle = self.workers.iter().all(|worker| worker.unanswered.count() == 0);
            let beat = self.said + if is_idle { self.idle_beat } else { self.beat };
            tokio::select! {
                received = self.connection.receive(&mut arrived) => {
                    received?;
                    self.take(&mut arrived, &load)?;
                    if self.ack(&load.plan) {
                        self.said = Instant::now();
                    }
                }
                () = sleep_until(beat.into()) => {
                    self.beat();
                    self.said = Instant::now();
                }
                _ = is_over.changed() => {
                    self.leave().await;
                    return Ok(());
                }
            }
        }
    }

    /// What is held is given back without an attempt, and the server ends the streams.
    async fn leave(&mut self) {
        for n in 0..self.workers.len() {
            self.connection.send(n, &goodbye());
        }
        let mut arrived = Vec::new();
        while self.connection.receive(&mut arrived).await.is_ok() {
            arrived.clear();
        }
    }

    fn take(&mut self, arrived: &mut Vec<Arrived>, load: &Load) -> Result<()> {
        for (n, message) in arrived.drain(..) {
            let worker = &mut self.workers[n];
            let heard = Heard::decode(message)?;
            if let Some(error) = heard.error {
                // The stream goes on by itself.
                load.refused(&error.code, 1);
            }
            if let Some(answer) = heard.beat.filter(|answer| answer.idle_beat_ms > 0) {
                (self.idle_beat, self.said) = (Duration::from_millis(answer.idle_beat_ms), Instant::now());
            }
            if let Some(tasks) = heard.tasks {
                load.received(tasks.claims.iter().map(|claim| &claim.payload[..]));
                worker.acks.extend(tasks.claims.into_iter().map(|claim| claim.token));
            }
            let mut sent = Vec::new();
            for result in heard.results.into_iter().flat_map(|results| results.results) {
                let at = worker.unanswered.answer(result.seq).context("ack")?;
                match result.error {
                    None => sent.push(at),
                    Some(error) => load.refused(&error.code, 1),
                }
            }
            if !sent.is_empty() {
                load.acked(sent);
            }
        }
        Ok(())
    }

    /// Acks what was received, a batch in each message; whether there was anything.
    fn ack(&mut self, plan: &Plan) -> bool {
        let (mut has_said, now) = (false, Instant::now());
        for (n, worker) in self.workers.iter_mut().enumerate() {
            for tokens in worker.acks.chunks(plan.batch as usize) {
                has_said = true;
                let first = worker.unanswered.send(now, tokens.len() as u64);
                let acks = (first..).zip(tokens);
                let acks = acks.map(|(seq, token)| Ack { seq, token: token.clone(), done: Some(Done {}) });
                let acks: Vec<Ack> = acks.collect();
                // Each of them leaves a slot free.
                let credit = acks.len() as u32;
                self.connection.send(n, &Say { outcomes: Some(Outcomes { acks, credit }) });
            }
            worker.acks.clear();
        }
        has_said
    }

    fn beat(&mut self) {
        for (n, worker) in self.workers.iter().enumerate() {
            match worker.unanswered.count() {
                0 => self.connection.send(n, &idle_beat()),
                // A beat would have to list what is held; its acks are on the way.
                _ => self.connection.send(n, &still_here()),
            }
        }
    }
}
