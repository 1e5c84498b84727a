//! Producers and workers that go on whatever happens to the nodes, and write down what they saw.
//!
//! Every write can be repeated safely: enqueues carry a dedup key, claims a request id, acks their token. So every
//! call has an answer in the end, and one that has none within [`CALL_MAX`] is a failure of the cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Client;

/// The queue of all load.
pub(crate) const QUEUE: &str = "load";
/// A call that has no answer by then has failed.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(10);
/// How long a claim waits for a task.
const CLAIM_WAIT: Duration = Duration::from_millis(500);
/// How long the workers may take to empty the queue at the end.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// Producers rest while so many tasks are not acked: on a busy machine enqueues outrun workers without end.
const BACKLOG_MAX: usize = 1000;
const BACKLOG_REST: Duration = Duration::from_millis(100);

/// How much load, and of what kind.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) producers: usize,
    pub(crate) workers: usize,
    /// How long a claim holds; longer than any outage that the test makes, or tasks are claimed twice by right.
    pub(crate) hold: Duration,
    /// Between two enqueues of one producer.
    pub(crate) pace: Duration,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { producers: 8, workers: 4, hold: Duration::from_secs(5), pace: Duration::from_millis(2) }
    }
}

impl Shape {
    /// Less of it, and more workers than it needs: what counts is what happens beside it.
    pub(crate) fn light() -> Shape {
        Shape { producers: 4, workers: 6, hold: Duration::from_secs(5), pace: Duration::from_millis(10) }
    }
}

/// What the callers saw. Times are when a call was first sent and when its answer came.
#[derive(Default)]
pub(crate) struct History {
    /// Answered enqueues, by id.
    pub(crate) enqueued: BTreeMap<String, Write>,
    pub(crate) claims: Vec<Claim>,
    /// Answered acks: task and fence.
    pub(crate) acks: Vec<(String, u64)>,
    /// Calls that had no answer in time, or one that they should not have.
    pub(crate) failures: Vec<String>,
}

/// An answered write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) shard: u16,
    pub(crate) sent: Instant,
    pub(crate) answered: Instant,
}

/// A claim that was received.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) id: String,
    pub(crate) fence: u64,
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    pub(crate) hold: Duration,
}

/// Load that runs.
pub(crate) struct Load {
    shared: Arc<Shared>,
    producers: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    addresses: Vec<SocketAddr>,
}

struct Shared {
    shape: Shape,
    producing: AtomicBool,
    working: AtomicBool,
    history: Mutex<History>,
}

impl Load {
    /// Begins, with callers that know all of these nodes and begin with different ones.
    pub(crate) fn start(addresses: &[SocketAddr], shape: Shape) -> Load {
        let shared = Arc::new(Shared {
            shape: shape.clone(),
            producing: AtomicBool::new(true),
            working: AtomicBool::new(true),
            history: Mutex::default(),
        });
        let spawn = |n: usize, run: fn(&Shared, Client, usize)| {
            let (shared, client) = (shared.clone(), Client::new(addresses).beginning_with(n));
            std::thread::spawn(move || run(&shared, client, n))
        };
        let producers = (0..shape.producers).map(|n| spawn(n, produce)).collect();
        let workers = (0..shape.workers).map(|n| spawn(n, work)).collect();
        Load { shared, producers, workers, addresses: addresses.to_vec() }
    }

    /// How many enqueues were answered so far.
    pub(crate) fn written(&self) -> usize {
        self.shared.history.lock().unwrap().enqueued.len()
    }

    /// Waits until so many more enqueues were answered: the load flows.
    #[track_caller]
    pub(crate) fn flow(&self, writes: usize) {
        let enough = self.written() + writes;
        crate::rig::until("the load flows", || self.written() >= enough);
    }

    /// The first answered write to each of these shards that was sent after `since`; nothing while one has none.
    pub(crate) fn first_writes(&self, since: Instant, shards: &[u16]) -> Option<Vec<Instant>> {
        let history = self.shared.history.lock().unwrap();
        let first = |shard: &u16| {
            let writes =
                history.enqueued.values().filter(|write| write.shard == *shard && write.answered > since);
            writes.map(|write| write.answered).min()
        };
        shards.iter().map(first).collect()
    }

    /// Stops the producers, lets the workers empty the queue, stops them too; what all saw.
    #[track_caller]
    pub(crate) fn stop(mut self) -> History {
        self.shared.producing.store(false, Ordering::SeqCst);
        self.producers.drain(..).for_each(|producer| producer.join().unwrap());
        if let Err(why) = await_empty(&self.addresses) {
            panic!("the workers did not empty the queue: {why}");
        }
        self.shared.working.store(false, Ordering::SeqCst);
        self.workers.drain(..).for_each(|worker| worker.join().unwrap());
        std::mem::take(&mut *self.shared.history.lock().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.producing.store(false, Ordering::SeqCst);
        self.shared.working.store(false, Ordering::SeqCst);
    }
}

fn produce(shared: &Shared, mut client: Client, producer: usize) {
    let mut n = 0u64;
    while shared.producing.load(Ordering::SeqCst) {
        n += 1;
        let key = format!("{producer}:{n}");
        let task = json!({"kind": "load", "payload": {"key": key}, "dedup_key": key});
        let sent = Instant::now();
        let answer = client.post(&format!("/v1/queues/{QUEUE}/tasks"), &task, CALL_MAX);
        let mut history = shared.history.lock().unwrap();
        match answer {
            Ok(answer) if answer.status == 200 || answer.status == 201 => {
                let id = answer.body["id"].as_str().unwrap().to_owned();
                let write = Write { shard: shard_of(&id), sent, answered: Instant::now() };
                if history.enqueued.insert(id.clone(), write).is_some() {
                    history.failures.push(format!("{id} was given to two dedup keys, one of them {key}"));
                }
            }
            Ok(answer) => history.failures.push(format!("enqueue {key}: {answer:?}")),
            Err(why) => history.failures.push(format!("enqueue {key}: {why}")),
        }
        let backlog = history.enqueued.len().saturating_sub(history.acks.len());
        drop(history);
        std::thread::sleep(if backlog < BACKLOG_MAX { shared.shape.pace } else { BACKLOG_REST });
    }
}

/// The shard that a task lives in: the 12 bits after the version of its id.
pub(crate) fn shard_of(id: &str) -> u16 {
    u16::from_str_radix(&id[15..18], 16).unwrap()
}

fn work(shared: &Shared, mut client: Client, worker: usize) {
    let mut n = 0u64;
    while shared.working.load(Ordering::SeqCst) {
        n += 1;
        let request = json!({
            "queues": [QUEUE], "worker": format!("w{worker}"), "max": 1 + worker % 4,
            "hold_ms": shared.shape.hold.as_millis() as u64, "wait_ms": CLAIM_WAIT.as_millis() as u64,
            "request_id": format!("w{worker}:{n}:{:016x}", rand::random::<u64>()),
        });
        let sent = Instant::now();
        let answer = match client.safe("POST", "/v1/claims", &request, CLAIM_WAIT, CALL_MAX) {
            Ok(answer) if answer.status == 200 => answer,
            other => {
                shared.history.lock().unwrap().failures.push(format!("claim: {other:?}"));
                continue;
            }
        };
        let (received, hold) = (Instant::now(), shared.shape.hold);
        for claim in answer.body["claims"].as_array().unwrap() {
            let id = claim["id"].as_str().unwrap().to_owned();
            let fence = claim["fence"].as_u64().unwrap();
            shared.history.lock().unwrap().claims.push(Claim { id: id.clone(), fence, sent, received, hold });
            ack(shared, &mut client, &id, fence, &claim["token"]);
        }
    }
}

/// Acks until there is an answer: the same ack again gets the same one.
fn ack(shared: &Shared, client: &mut Client, id: &str, fence: u64, token: &Value) {
    let answer = client.post("/v1/claims/ack", &json!({"token": token}), CALL_MAX);
    let mut history = shared.history.lock().unwrap();
    match answer {
        Ok(answer) if answer.status == 200 => history.acks.push((id.to_owned(), fence)),
        // The hold has passed: somebody else has it, which the checker looks at.
        Ok(answer) if ["stale_token", "not_claimed"].contains(&answer.code()) => {}
        other => history.failures.push(format!("ack {id}: {other:?}")),
    }
}

/// Waits until no task waits or is claimed.
fn await_empty(addresses: &[SocketAddr]) -> Result<(), String> {
    let (mut client, until) = (Client::new(addresses), Instant::now() + DRAIN_MAX);
    loop {
        let answer =
            client.safe("GET", &format!("/v1/queues/{QUEUE}"), &Value::Null, Duration::ZERO, CALL_MAX)?;
        let depth = |state: &str| answer.body["depth"][state].as_u64().unwrap_or(0);
        let live: u64 = ["ready", "claimed", "delayed", "retrying", "blocked"].map(depth).iter().sum();
        if answer.status == 404 || (answer.status == 200 && live == 0) {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("{live} tasks never ended: {}", answer.body));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
