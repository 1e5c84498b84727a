//! Producers and workers that go on whatever happens, and write down every call.
//!
//! Each is a thread with a connection of its own. Chance comes from the trial's seed. Next: `producer.rs`,
//! `worker.rs`; `watch.rs` looks at the nodes meanwhile.

mod producer;
mod session;
mod watch;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Client;
use crate::error::Error;
use crate::history::{History, Lines, Outcome, Span};
use crate::system::{pause, until};

/// Nothing special.
pub(crate) const PLAIN: &str = "plain";
/// Tasks with dedup keys, repeated until somebody answers.
pub(crate) const KEYED: &str = "keyed";
/// Tasks with order keys.
pub(crate) const ORDERED: &str = "ordered";
/// Tasks that are due later.
pub(crate) const LATER: &str = "later";
/// Tasks whose workers fail.
pub(crate) const FLAKY: &str = "flaky";
/// Tasks whose acks enqueue others, and where those go.
pub(crate) const CHAIN: &str = "chain";
pub(crate) const AFTER: &str = "after";
pub(crate) const QUEUES: [&str; 7] = [PLAIN, KEYED, ORDERED, LATER, FLAKY, CHAIN, AFTER];

/// Attempts of a task that says nothing: the product's default.
const ATTEMPTS: u32 = 20;
/// More than a trial has: what ended stays readable until it was listed.
const RETAINED_MAX: u64 = 20_000_000;
const DRAIN_MAX: Duration = Duration::from_secs(120);
const SETTING_MAX: Duration = Duration::from_secs(60);

/// How much load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    pub(crate) producers: usize,
    pub(crate) workers: usize,
    /// Tasks in one request.
    pub(crate) batch: usize,
    /// New tasks a second, of all producers together, while nothing is in the way.
    pub(crate) rate: usize,
}

/// What all clients share.
pub(crate) struct Shared {
    pub(crate) history: Arc<History>,
    addresses: Vec<SocketAddr>,
    weight: Weight,
    seed: u64,
    producing: AtomicBool,
    working: AtomicBool,
    /// Workers are careless: they hold for too long and forget. No more so when all is to come to an end.
    careless: AtomicBool,
}

/// Load that runs. Its threads end with it.
pub(crate) struct Load {
    shared: Arc<Shared>,
    producers: Vec<JoinHandle<()>>,
    others: Vec<JoinHandle<()>>,
}

impl Load {
    /// Sets the queues, then begins.
    pub(crate) fn start(
        history: &Arc<History>,
        addresses: &[SocketAddr],
        lives: Arc<Vec<AtomicU64>>,
        weight: Weight,
        seed: u64,
    ) -> Result<Load, Error> {
        set_queues(history, addresses)?;
        let shared = Arc::new(Shared {
            history: history.clone(),
            addresses: addresses.to_vec(),
            weight,
            seed,
            producing: AtomicBool::new(true),
            working: AtomicBool::new(true),
            careless: AtomicBool::new(true),
        });
        let spawn = |n: usize, run: fn(&Arc<Shared>, usize)| {
            let shared = shared.clone();
            std::thread::spawn(move || run(&shared, n))
        };
        let producers = (0..weight.producers).map(|n| spawn(n, producer::produce)).collect();
        let mut others: Vec<_> = (0..weight.workers).map(|n| spawn(n, worker::work)).collect();
        for n in 0..addresses.len() {
            let (shared, lives) = (shared.clone(), lives.clone());
            others.push(std::thread::spawn(move || watch::watch(&shared, n, &lives)));
        }
        Ok(Load { shared, producers, others })
    }

    /// Stops the producers and lets the workers come to an end. That they do not is found, and no error.
    pub(crate) fn drain(mut self) -> Result<bool, Error> {
        self.shared.producing.store(false, Ordering::SeqCst);
        self.shared.careless.store(false, Ordering::SeqCst);
        self.producers.drain(..).for_each(|thread| drop(thread.join()));
        let (mut client, mut left) = (Client::new(&self.shared.addresses, 0), String::new());
        let drained = until("the queues are empty", DRAIN_MAX, || {
            left = live(&mut client);
            if left.is_empty() {
                return Ok(true);
            }
            pause(Duration::from_millis(100)).map(|()| false)
        });
        self.stop();
        match drained {
            Ok(()) => Ok(true),
            Err(Error::Never { within, .. }) => {
                self.shared.history.find(format!("not drained within {} s: {left}", within.as_secs()));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn stop(&mut self) {
        self.shared.producing.store(false, Ordering::SeqCst);
        self.shared.working.store(false, Ordering::SeqCst);
        self.producers.drain(..).chain(self.others.drain(..)).for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Keeps all that ends readable, so that at the end every task can be listed.
fn set_queues(history: &History, addresses: &[SocketAddr]) -> Result<(), Error> {
    let mut client = Client::new(addresses, 0);
    for queue in QUEUES {
        let rules =
            json!({"retained_max": RETAINED_MAX, "dead_max": RETAINED_MAX, "dedup_keys_max": RETAINED_MAX});
        let mut heard = None;
        let set = until("a queue takes its rules", SETTING_MAX, || {
            let path = format!("/v1/queues/{queue}");
            heard = client
                .connect()
                .then(|| client.call("PUT", &path, &rules.to_string(), Duration::ZERO))
                .flatten();
            Ok(heard.as_ref().is_some_and(|answer| answer.is_ok()))
        });
        set.map_err(|error| match error {
            Error::Never { what, within } => Error::Never { what: format!("{what}: {heard:?}"), within },
            error => error,
        })?;
        history
            .write(&json!({"queue": {"queue": queue, "attempts": ATTEMPTS, "retained_max": RETAINED_MAX}}));
    }
    Ok(())
}

/// What is not at its end, for people; empty when all is.
fn live(client: &mut Client) -> String {
    let mut left = Vec::new();
    for queue in QUEUES {
        let Some(answer) = client.look(&format!("/v1/queues/{queue}")).filter(|answer| answer.is_ok()) else {
            return format!("{queue} cannot be looked at");
        };
        let depth = |state: &str| answer.body["depth"][state].as_u64().unwrap_or(0);
        let live: u64 = ["ready", "claimed", "delayed", "retrying", "blocked"].map(depth).iter().sum();
        if live > 0 {
            left.push(format!("{queue} {}", answer.body["depth"]));
        }
    }
    left.join(", ")
}

/// Reads every task that is left, and the numbers of every queue. Whether all could be read.
pub(crate) fn list(history: &History, addresses: &[SocketAddr]) -> Result<bool, Error> {
    let mut client = Client::new(addresses, 0);
    for queue in QUEUES {
        let mut cursor = String::new();
        loop {
            pause(Duration::ZERO)?;
            let after = if cursor.is_empty() { String::new() } else { format!("&cursor={cursor}") };
            let start_us = history.now_us();
            let answer = client.look(&format!("/v1/tasks?queue={queue}&limit=1000{after}"));
            let span = Span { start_us, end_us: history.now_us() };
            let Some(answer) = answer.filter(|answer| answer.is_ok()) else {
                history.find(format!("the tasks of {queue} cannot be listed"));
                return Ok(false);
            };
            let mut lines = Lines::default();
            for task in answer.body["tasks"].as_array().into_iter().flatten() {
                let text = |field: &str| task[field].as_str().unwrap_or_default();
                let payload = payload_of(&task["payload"]);
                let deed = format!(
                    "{{\"get\":{{\"task\":\"{}\",\"queue\":\"{queue}\",\"payload\":\"{payload}\",\"state\":\"{}\"}}}}",
                    text("id"),
                    text("state")
                );
                lines.add("list", span, &Outcome::Ok, None, &deed);
            }
            history.write_list(&lines);
            match answer.body["cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        count(history, &mut client, queue);
    }
    Ok(true)
}

/// Writes the numbers of one queue, if somebody tells them.
fn count(history: &History, client: &mut Client, queue: &str) {
    let start_us = history.now_us();
    let answer = client.look(&format!("/v1/queues/{queue}"));
    let span = Span { start_us, end_us: history.now_us() };
    if let Some(answer) = answer.filter(|answer| answer.is_ok()) {
        let pick = |what: &str, names: &[&str]| -> Value {
            names.iter().map(|name| ((*name).to_owned(), answer.body[what][*name].clone())).collect()
        };
        let totals = pick("totals", &["enqueued", "done", "failed", "dead", "freed"]);
        let depth = pick("depth", &["ready", "claimed", "delayed", "retrying", "blocked", "dead"]);
        let deed = json!({"counts": {"queue": queue, "totals": totals, "depth": depth}});
        let mut lines = Lines::default();
        lines.add("list", span, &Outcome::Ok, None, &deed.to_string());
        history.write_list(&lines);
    }
}

/// The text that tells payloads apart.
fn payload_of(payload: &Value) -> &str {
    payload["p"].as_str().unwrap_or("none of ours")
}

/// The shard that a task lives in: the 12 bits after the version of its id.
fn shard_of(id: &str) -> u16 {
    id.get(15..18).and_then(|digits| u16::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// Waits for so long, or until `goes_on` is false.
fn rest(goes_on: &AtomicBool, until: Instant) {
    while goes_on.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}
