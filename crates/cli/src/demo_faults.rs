//! `windlass demo-faults`: three nodes and four workers on this machine, killed in turn while tasks flow.
//!
//! Prints each recovery as it happens and counts at the end: every task that was accepted is done, none twice. Exits
//! with 1 if that is not so. Needs no privileges and leaves nothing behind. The workers are in
//! `demo_faults/workers.rs`, what producers and programs wrote down in `demo_faults/ledger.rs`.

mod ledger;
mod workers;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::client::{Call, Client, Repeat};
use crate::exit::{Exit, Failure};
use crate::fleet::{Fleet, Logs};
use crate::json::Json;
use crate::output::print;
use crate::scratch::Scratch;
use crate::serve::Stop;
use ledger::Ledger;
use workers::Workers;

/// The queue of all tasks here.
const QUEUE: &str = "demo-faults";
const NODES: u16 = 3;
const WORKERS: usize = 4;
/// Between two tasks.
const PACE: Duration = Duration::from_millis(40);
/// How long one enqueue may take; it is repeated under its dedup key meanwhile.
const ENQUEUE_MAX: Duration = Duration::from_secs(20);
/// Load between two deaths.
const CALM: Duration = Duration::from_secs(3);
/// A recovery that takes longer has failed.
const RECOVERY_MAX: Duration = Duration::from_secs(30);
/// Between two looks at what is awaited.
const LOOK: Duration = Duration::from_millis(10);

/// Kill nodes and workers of a cluster of its own while tasks flow, and count at the end
#[derive(Args, Debug)]
pub(crate) struct DemoFaults {
    /// How many deaths, of nodes and workers in turn
    #[arg(long, value_name = "N", default_value_t = 8)]
    deaths: u32,
    /// Show the log lines of the nodes as well
    #[arg(long)]
    logs: bool,
}

pub(crate) async fn run(args: DemoFaults) -> Result<()> {
    crate::log::init(crate::log::LogFormat::Text);
    let mut stop = Stop::watch()?;
    let scratch = Scratch::new("demo-faults")?;
    let logs = if args.logs { Logs::Numbered } else { Logs::Hidden };
    let flags = ["--shards=4", "--disk-reserve-bytes=16MiB"].map(OsString::from).to_vec();
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let fleet = Fleet::new(NODES, anywhere, scratch.path(), flags, logs)?;
    let workers = Workers::new(WORKERS, QUEUE, &fleet.servers(), scratch.path())?;
    let ledger = Arc::new(Ledger::new(scratch.path()));
    let mut stage =
        Stage { client: Arc::new(Client::new(&fleet.servers(), ENQUEUE_MAX)?), fleet, workers, ledger };
    let outcome = tokio::select! {
        outcome = stage.play(args.deaths) => outcome,
        () = stop.asked() => Err(Failure::new(Exit::Failure, "stopped before the end").into()),
    };
    let Stage { fleet, workers, .. } = stage;
    workers.stop().await;
    fleet.stop().await;
    outcome
}

/// All that takes part.
struct Stage {
    fleet: Fleet,
    workers: Workers,
    client: Arc<Client>,
    ledger: Arc<Ledger>,
}

impl Stage {
    async fn play(&mut self, deaths: u32) -> Result<()> {
        self.raise().await?;
        let producing = CancellationToken::new();
        let producer = produce(self.client.clone(), self.ledger.clone());
        let producer = tokio::spawn(producing.clone().run_until_cancelled_owned(producer));
        let _stop_with_us = producing.clone().drop_guard();
        for n in 0..deaths {
            sleep(CALM).await;
            if n.is_multiple_of(2) {
                self.kill_leader().await?;
            } else {
                self.kill_worker(n as usize / 2).await?;
            }
        }
        sleep(CALM).await;
        // An enqueue that was sent and not answered is not counted, nor awaited.
        producing.cancel();
        producer.await.context("the producer ends when it is told to")?;
        self.drained().await?;
        self.count().await
    }

    /// Starts everything.
    async fn raise(&mut self) -> Result<()> {
        let started = Instant::now();
        for n in 0..self.fleet.places.len() {
            self.fleet.start(n)?;
        }
        for n in 0..self.fleet.places.len() {
            self.fleet.ready(n, RECOVERY_MAX).await?;
        }
        for n in 0..WORKERS {
            self.workers.start(n)?;
        }
        let took = started.elapsed().as_secs_f64();
        print(&format!("{NODES} nodes are ready after {took:.1} s, {WORKERS} workers begin, tasks flow"))
    }

    /// Kills the node that leads most shards; writes and claims of those shards must go on.
    async fn kill_leader(&mut self) -> Result<()> {
        let (victim, shards) = self.busiest().await?;
        let node = self.fleet.places[victim].node;
        let pid = self.fleet.pid(victim).unwrap_or_default();
        let led: Vec<String> = shards.iter().map(u16::to_string).collect();
        print(&format!("\nkill -9 node {node} (process {pid}), leader of shard {}", led.join(", ")))?;
        let begun = self.ledger.begun()?.len();
        self.fleet.kill(victim).await;
        let died = Instant::now();
        let ledger = self.ledger.clone();
        await_that(died, "writes to its shards go on", || Ok(ledger.has_written(died, &shards))).await?;
        let claims = |ledger: &Ledger| -> Result<bool> {
            let begun = ledger.begun()?.split_off(begun);
            Ok(shards.iter().all(|shard| begun.iter().any(|line| ledger::shard_of(&line.id) == Some(*shard))))
        };
        await_that(died, "claims from its shards go on", || claims(&ledger)).await?;
        let back = Instant::now();
        self.fleet.start(victim)?;
        self.fleet.ready(victim, RECOVERY_MAX).await?;
        print(&format!(
            "  node {node} is back and has caught up {:.2} s after its start",
            back.elapsed().as_secs_f64()
        ))
    }

    /// Kills a worker in the midst of its tasks; others must begin them anew.
    async fn kill_worker(&mut self, n: usize) -> Result<()> {
        let victim = n % WORKERS;
        let name = workers::name(victim);
        let held = timeout(RECOVERY_MAX, async {
            loop {
                let held = self.ledger.running(&name)?;
                if !held.is_empty() {
                    return anyhow::Ok(held);
                }
                sleep(LOOK).await;
            }
        });
        held.await.map_err(|_| failed(format!("{name} got no task within {RECOVERY_MAX:?}")))??;
        self.workers.kill(victim).await;
        let died = Instant::now();
        // What it had ended just before may still be acked by nobody: it is begun again too.
        let held = self.ledger.running(&name)?;
        print(&format!("\nkill -9 {name} in the midst of {} tasks", held.len()))?;
        let ledger = self.ledger.clone();
        let again = || {
            let begun = ledger.begun()?;
            Ok(held.iter().all(|task| begun.iter().any(|line| line.id == task.id && line.fence > task.fence)))
        };
        await_that(died, "others have begun all of them again", again).await?;
        self.workers.start(victim)
    }

    /// The node that leads most shards, and which.
    async fn busiest(&self) -> Result<(usize, Vec<u16>)> {
        let cluster = self.client.get("/v1/cluster").await?;
        let shards = cluster.items("shards");
        let led_by = |node: u64| -> Vec<u16> {
            let led = shards.iter().filter(|shard| shard.value()["leader"].as_u64() == Some(node));
            led.map(|shard| shard.number("id") as u16).collect()
        };
        let nodes = self.fleet.places.iter().enumerate().map(|(n, place)| (n, led_by(place.node)));
        nodes.max_by_key(|(_, led)| led.len()).context("there are nodes")
    }

    /// Waits until no task waits or is claimed.
    async fn drained(&self) -> Result<()> {
        print("\nno more tasks: waiting for the workers")?;
        let emptied = timeout(RECOVERY_MAX * 2, async {
            loop {
                let queue = self.client.get(format!("/v1/queues/{QUEUE}")).await?;
                let depth = |state: &str| queue.value()["depth"][state].as_u64().unwrap_or(0);
                let live: u64 =
                    ["ready", "claimed", "delayed", "retrying", "blocked"].map(depth).iter().sum();
                if live == 0 {
                    return anyhow::Ok(());
                }
                sleep(LOOK * 10).await;
            }
        });
        emptied.await.map_err(|_| failed("tasks were left over that nobody finished".to_owned()))?
    }

    /// Asks for every task that was accepted: done, and acked once.
    async fn count(&self) -> Result<()> {
        let accepted = self.ledger.accepted();
        let (mut lost, mut twice) = (0, 0);
        for id in &accepted {
            match self.client.get(format!("/v1/tasks/{id}")).await {
                Ok(task) => {
                    let acks = task
                        .items("history")
                        .iter()
                        .filter(|line| line.text("event") == Some("acked"))
                        .count();
                    lost += usize::from(task.text("state") != Some("done"));
                    twice += usize::from(acks > 1);
                }
                Err(_) => lost += 1,
            }
        }
        let queue = self.client.get(format!("/v1/queues/{QUEUE}")).await?;
        let done = total(&queue, "done");
        let begun = self.ledger.begun()?.len();
        print(&format!(
            "\n{} tasks accepted, {done} done, {lost} lost, {twice} acked twice",
            accepted.len()
        ))?;
        print(&format!("programs were begun {begun} times: what a dead worker had begun was begun again"))?;
        // What was enqueued and not answered before we stopped may be done too.
        if lost > 0 || twice > 0 || done < accepted.len() as u64 || done != total(&queue, "enqueued") {
            return Err(failed(format!("the count is wrong: {}", queue.value()["totals"])).into());
        }
        print("nothing lost, nothing done twice")
    }
}

fn total(queue: &Json, name: &str) -> u64 {
    queue.value()["totals"][name].as_u64().unwrap_or(0)
}

fn failed(message: String) -> Failure {
    Failure::new(Exit::Failure, message)
}

/// Waits until it is so and says how long that took since `since`.
async fn await_that(since: Instant, what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    while !is_so()? {
        if since.elapsed() > RECOVERY_MAX {
            return Err(failed(format!("after {RECOVERY_MAX:?} it is still not so that {what}")).into());
        }
        sleep(LOOK).await;
    }
    print(&format!("  {what} after {:.2} s", since.elapsed().as_secs_f64()))
}

/// Enqueues for ever, several at a time so that one shard without a leader holds up no other.
async fn produce(client: Arc<Client>, ledger: Arc<Ledger>) {
    let lanes = (0..u64::from(NODES) * 4).map(|lane| {
        let (client, ledger) = (client.clone(), ledger.clone());
        async move {
            for n in 0u64.. {
                let key = format!("{lane}:{n}");
                let task: Value = json!({"kind": "sleep", "payload": {"n": n}, "dedup_key": key});
                let path = format!("/v1/queues/{QUEUE}/tasks");
                let accepted = loop {
                    let call =
                        Call::post(path.as_str(), &task, Repeat::Safe).each(Duration::from_millis(2500));
                    match client.call(call).await {
                        Ok(answer) => break answer,
                        // Its dedup key makes a repeat harmless.
                        Err(_) => sleep(LOOK).await,
                    }
                };
                if let Some(id) = accepted.text("id") {
                    ledger.accept(id);
                }
                sleep(PACE * 12).await;
            }
        }
    });
    futures::future::join_all(lanes).await;
}
