//! Workers and the nodes they talk to: all on one node, over leader changes, and when the worker or the node goes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Client;
use crate::load::shard_of;
use crate::report;
use crate::rig::{PATIENCE, Rig, ShellWorker, until};

/// How much younger a task may be than one that waits on another shard.
const ORDER_MAX: Duration = Duration::from_secs(1);
/// How long a silent worker's claims last, and those of one whose stream broke.
const SILENT_MAX: Duration = Duration::from_secs(3);
const CLOSED_MAX: Duration = Duration::from_secs(1);
const SHARDS: [u16; 4] = [1, 2, 3, 4];

/// When a task was enqueued and claimed, as seen from outside.
#[derive(Clone, Copy, Debug)]
struct Seen {
    shard: u16,
    sent: Instant,
    enqueued: Instant,
}

#[derive(Clone, Debug)]
struct Taken {
    id: String,
    sent: Instant,
    received: Instant,
}

#[test]
fn workers_on_one_node_get_the_tasks_of_all_shards_oldest_first() {
    let _alone = crate::alone();
    let rig = Rig::started(3, &[]);
    let leaders = rig.await_leaders(PATIENCE);
    println!("leaders: {leaders:?}, all workers on node 1");
    let (enqueued, taken): (Mutex<BTreeMap<String, Seen>>, Mutex<Vec<Taken>>) = Default::default();
    let (producing, working) = (AtomicBool::new(true), AtomicBool::new(true));
    let addresses = rig.addresses();
    let backlog = Duration::from_secs(crate::rounds(4, 10) as u64);
    let together = Duration::from_secs(crate::rounds(6, 60) as u64);
    std::thread::scope(|scope| {
        let _ends = [crate::Ends(&producing, false), crate::Ends(&working, false)];
        for (n, &address) in addresses.iter().enumerate() {
            let (enqueued, producing) = (&enqueued, &producing);
            scope.spawn(move || produce(address, n, enqueued, producing));
        }
        std::thread::sleep(backlog);
        for n in 0..4 {
            let (taken, working, address) = (&taken, &working, addresses[0]);
            scope.spawn(move || work(address, n, taken, working));
        }
        std::thread::sleep(together);
        producing.store(false, Ordering::SeqCst);
        until("all are served", || taken.lock().unwrap().len() >= enqueued.lock().unwrap().len());
    });
    let (enqueued, taken) = (enqueued.into_inner().unwrap(), taken.into_inner().unwrap());
    assert_eq!(enqueued.len(), taken.len(), "each is given out once");
    in_order(&enqueued, &taken);
    let mut waits: BTreeMap<u16, Vec<Duration>> = BTreeMap::new();
    for claim in &taken {
        let seen = enqueued[&claim.id];
        waits.entry(seen.shard).or_default().push(claim.received.saturating_duration_since(seen.enqueued));
    }
    for (shard, mut waits) in waits {
        report(&format!("a task of shard {shard}, led by node {}, waited", leaders[&shard] + 1), &mut waits);
    }
}

/// Enqueues without a pause worth the name: more than the workers take.
fn produce(address: SocketAddr, n: usize, enqueued: &Mutex<BTreeMap<String, Seen>>, producing: &AtomicBool) {
    let mut client = Client::of(address);
    for count in 0.. {
        if !producing.load(Ordering::SeqCst) {
            return;
        }
        let task = json!({"kind": "k", "dedup_key": format!("{n}-{count}")});
        let sent = Instant::now();
        let answer = client.post("/v1/queues/order/tasks", &task, PATIENCE).unwrap();
        let id = answer.body["id"].as_str().unwrap().to_owned();
        let seen = Seen { shard: shard_of(&id), sent, enqueued: Instant::now() };
        enqueued.lock().unwrap().insert(id, seen);
        std::thread::sleep(Duration::from_millis(15));
    }
}

/// Claims one or a few at a time, acks them, and is a little slow.
fn work(address: SocketAddr, n: usize, taken: &Mutex<Vec<Taken>>, working: &AtomicBool) {
    let mut client = Client::of(address);
    while working.load(Ordering::SeqCst) {
        let claim = json!({"queues": ["order"], "worker": format!("w{n}"), "max": 1 + n % 3, "wait_ms": 200});
        let sent = Instant::now();
        let answer = client.once("POST", "/v1/claims", &claim.to_string(), Duration::from_secs(1)).unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        let received = Instant::now();
        for claim in answer.body["claims"].as_array().unwrap() {
            let id = claim["id"].as_str().unwrap().to_owned();
            taken.lock().unwrap().push(Taken { id, sent, received });
            let acked = client.post("/v1/claims/ack", &json!({"token": claim["token"]}), PATIENCE).unwrap();
            assert_eq!(acked.status, 200, "{acked:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// No task was given out while another waited that was more than [`ORDER_MAX`] older. One waits from when its enqueue
/// was answered until the claim that got it was sent.
#[track_caller]
fn in_order(enqueued: &BTreeMap<String, Seen>, taken: &[Taken]) {
    let mut worst = (Duration::ZERO, String::new());
    for claim in taken {
        let young = enqueued[&claim.id];
        for other in taken.iter().filter(|other| other.sent > claim.received) {
            let old = enqueued[&other.id];
            let apart = young.sent.saturating_duration_since(old.enqueued);
            if old.enqueued < claim.sent && apart > worst.0 {
                let what =
                    format!("{} of shard {} before {} of {}", claim.id, young.shard, other.id, old.shard);
                worst = (apart, what);
            }
        }
    }
    println!("{} tasks, order broken by at most {:?} ({})", taken.len(), worst.0, worst.1);
    assert!(worst.0 <= crate::most(ORDER_MAX), "{worst:?}");
}

#[test]
fn a_waiting_claim_survives_the_death_of_a_leader() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let mut took = Vec::new();
    for round in 0..crate::rounds(2, 20) {
        // They wait at one node; another dies, and what it led goes elsewhere.
        let leaders = rig.await_leaders(PATIENCE);
        let victim = leaders[&SHARDS[round % 4]];
        let home = (victim + 1) % 3;
        let led: Vec<u16> =
            leaders.iter().filter(|(group, n)| **n == victim && **group > 0).map(|(g, _)| *g).collect();
        let (queue, address) = (format!("polled-{round}"), rig.nodes[home].http);
        let waiting: Vec<_> = (0..2 * SHARDS.len())
            .map(|n| {
                let claim = json!({"queues": [queue], "worker": format!("w{n}"), "wait_ms": 30_000});
                std::thread::spawn(move || {
                    let answer =
                        Client::of(address).once("POST", "/v1/claims", &claim.to_string(), PATIENCE).unwrap();
                    (answer, Instant::now())
                })
            })
            .collect();
        until("they wait", || waiting_claims(address) >= waiting.len());
        rig.kill(victim);
        let mut left: BTreeMap<u16, usize> = SHARDS.iter().map(|shard| (*shard, 2)).collect();
        let mut enqueued = BTreeMap::new();
        let mut client = Client::of(address);
        // Two for each shard, so that all of them have to be asked.
        for n in 0.. {
            let task = json!({"kind": "k", "dedup_key": format!("{n}")});
            let answer = client.post(&format!("/v1/queues/{queue}/tasks"), &task, PATIENCE).unwrap();
            let id = answer.body["id"].as_str().unwrap().to_owned();
            let room = left.get_mut(&shard_of(&id)).unwrap();
            *room = room.saturating_sub(1);
            enqueued.insert(id, Instant::now());
            if left.values().all(|room| *room == 0) || enqueued.len() >= waiting.len() {
                break;
            }
        }
        for waiting in waiting {
            let (answer, at) = waiting.join().unwrap();
            let claims = answer.body["claims"].as_array().unwrap_or_else(|| panic!("{answer:?}"));
            assert_eq!((answer.status, claims.len()), (200, 1), "a waiting claim broke: {answer:?}");
            took.push(at.saturating_duration_since(enqueued[claims[0]["id"].as_str().unwrap()]));
        }
        println!("round {round}: node {} died, which led {led:?}", victim + 1);
        rig.start(victim);
        rig.await_ready(victim);
    }
    let (_, worst) =
        report("from enqueued to received by a claim that waited through a leader's death", &mut took);
    assert!(worst <= crate::most(Duration::from_secs(1)), "{worst:?}");
}

fn waiting_claims(address: SocketAddr) -> usize {
    let page = text(address, "/metrics");
    let line = page.lines().find(|line| line.starts_with("windlass_waiting_claims ")).unwrap_or_default();
    line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok()).unwrap_or(0.0) as usize
}

/// A page that is no JSON.
pub(crate) fn text(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

/// A worker that holds tasks of all shards.
struct Worker {
    name: String,
    session: String,
    /// Path, fence and shard of each.
    held: Vec<(String, Value, u64, u16)>,
}

impl Worker {
    /// Registers at a node and claims there, at least one of each shard.
    fn at(address: SocketAddr, name: &str) -> Worker {
        let mut client = Client::of(address);
        let worker = json!({"id": name, "slots": 64, "beat_ms": 1000});
        let registered = client.post("/v1/workers", &worker, PATIENCE).unwrap();
        let session =
            registered.body["session"].as_str().unwrap_or_else(|| panic!("{registered:?}")).to_owned();
        let mut worker = Worker { name: name.to_owned(), session, held: Vec::new() };
        let mut beaten = Instant::now();
        for n in 0.. {
            let task = json!({"kind": "k", "dedup_key": n.to_string(), "hold_ms": 600_000});
            let queue = format!("of-{name}");
            client.post(&format!("/v1/queues/{queue}/tasks"), &task, PATIENCE).unwrap();
            let claim = json!({
                "queues": [queue], "worker": name, "session": worker.session,
                "request_id": format!("{name}-{n}"), "wait_ms": 1000,
            });
            let answer = client.safe("POST", "/v1/claims", &claim, Duration::from_secs(1), PATIENCE).unwrap();
            for claim in answer.body["claims"].as_array().unwrap_or_else(|| panic!("{answer:?}")) {
                let id = claim["id"].as_str().unwrap();
                let fence = claim["fence"].as_u64().unwrap();
                worker.held.push((format!("/v1/tasks/{id}"), claim["id"].clone(), fence, shard_of(id)));
            }
            if beaten.elapsed() > Duration::from_millis(300) {
                assert_eq!(worker.beat(&mut client), "running");
                beaten = Instant::now();
            }
            if SHARDS.iter().all(|shard| worker.held.iter().any(|(.., held)| held == shard)) {
                break;
            }
        }
        assert_eq!(worker.beat(&mut client), "running");
        worker
    }

    /// One beat; what it is told to do, or the error's code.
    fn beat(&self, client: &mut Client) -> String {
        let running: Vec<Value> =
            self.held.iter().map(|(_, id, fence, _)| json!({"id": id, "fence": fence})).collect();
        let beat = json!({"session": self.session, "running": running});
        let answer = client.post(&format!("/v1/workers/{}/beat", self.name), &beat, PATIENCE).unwrap();
        answer.body["state"].as_str().unwrap_or(answer.code()).to_owned()
    }

    /// Those that it does not hold any more with the fence that it knows.
    fn lost(&self, client: &mut Client) -> Vec<(u16, Value)> {
        let look = |(path, _, _, shard): &(String, Value, u64, u16)| {
            let task = client.safe("GET", path, &Value::Null, Duration::ZERO, PATIENCE).unwrap().body;
            let is_held =
                task["state"] == "claimed" && task["worker"] == self.name.as_str() && task["attempt"] == 1;
            (!is_held).then_some((*shard, task))
        };
        self.held.iter().filter_map(look).collect()
    }

    /// How long after `since` the last of its claims was freed, by shard.
    fn freed(&self, client: &mut Client, since: Instant) -> BTreeMap<u16, Duration> {
        let mut freed = BTreeMap::new();
        until("all its claims are free", || {
            for (shard, _) in self.lost(client) {
                freed.entry(shard).or_insert_with(|| since.elapsed());
            }
            freed.len() == SHARDS.len()
        });
        freed
    }
}

#[test]
fn a_session_outlives_its_node_and_ends_with_the_worker() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let mut silent = Vec::new();
    for round in 0..crate::rounds(2, 10) {
        let leaders = rig.await_leaders(PATIENCE);
        let home = round % 3;
        let worker = Worker::at(rig.nodes[home].http, &format!("wanderer-{round}"));
        rig.kill(home);
        // It goes on at another node, longer than silence takes.
        let others: Vec<SocketAddr> = rig.up().into_iter().map(|n| rig.nodes[n].http).collect();
        let (mut client, mut eye) = (Client::new(&others), Client::new(&others).beginning_with(1));
        let killed = Instant::now();
        let mut beaten = Instant::now();
        while killed.elapsed() < Duration::from_secs(5) {
            assert_eq!(worker.beat(&mut client), "running");
            beaten = Instant::now();
            std::thread::sleep(Duration::from_millis(500));
        }
        let lost = worker.lost(&mut eye);
        assert!(lost.is_empty(), "P6: taken from a worker that beats (leaders {leaders:?}): {lost:?}");
        let freed = worker.freed(&mut eye, beaten);
        println!("round {round}: freed after the last beat, by shard: {freed:?}");
        silent.extend(freed.into_values());
        rig.start(home);
        rig.await_ready(home);
    }
    let (_, worst) = report("claims of a worker that fell silent", &mut silent);
    assert!(worst <= crate::most(SILENT_MAX + Duration::from_millis(100)), "P6: {worst:?}");
}

#[test]
fn a_broken_stream_frees_the_claims_on_every_shard() {
    let _alone = crate::alone();
    let rig = Rig::started(3, &[]);
    let mut closed = Vec::new();
    for round in 0..crate::rounds(3, 20) {
        let home = rig.nodes[round % 3].http;
        let worker = Worker::at(home, &format!("streamer-{round}"));
        let stream = open_stream(home, &worker);
        let mut client = Client::of(rig.nodes[(round + 1) % 3].http);
        assert_eq!(worker.beat(&mut Client::of(home)), "running");
        assert!(worker.lost(&mut client).is_empty());
        drop(stream);
        let broken = Instant::now();
        let freed = worker.freed(&mut client, broken);
        println!("round {round}: freed after the stream broke, by shard: {freed:?}");
        closed.extend(freed.into_values());
    }
    let (_, worst) = report("claims of a worker whose stream broke", &mut closed);
    assert!(worst <= crate::most(CLOSED_MAX), "P6: {worst:?}");
}

fn open_stream(address: SocketAddr, worker: &Worker) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let path = format!("/v1/workers/{}/session?session={}", worker.name, worker.session);
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&first));
    stream
}

#[test]
fn workers_of_the_command_line_finish_every_task_while_nodes_die() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let count = crate::rounds(60, 1_000);
    let mut client = rig.client();
    let mut paths = Vec::new();
    for n in 0..count {
        let task = json!({"kind": "k", "dedup_key": n.to_string(), "hold_ms": 60_000});
        let answer = client.post("/v1/queues/shell/tasks", &task, PATIENCE).unwrap();
        paths.push(format!("/v1/tasks/{}", answer.body["id"].as_str().unwrap()));
    }
    let start = |n| ShellWorker::started(&rig, "shell", "sleep 0.2", 4, &format!("shell-{n}"));
    let mut workers = [0, 1].map(start);
    let mut done = 0;
    let queue = |client: &mut Client| {
        client.safe("GET", "/v1/queues/shell", &Value::Null, Duration::ZERO, PATIENCE).unwrap().body
    };
    let mut victim = 0;
    while done < count {
        until("some more are done", || {
            let now = queue(&mut client)["totals"]["done"].as_u64().unwrap() as usize;
            let is_more = now == count || now >= done + count / 4;
            done = if is_more { now } else { done };
            is_more
        });
        // The one that they talk to, and then the others.
        rig.kill(victim);
        rig.start(victim);
        rig.await_ready(victim);
        victim = (victim + 1) % 3;
    }
    workers.iter_mut().for_each(ShellWorker::leave);
    let mut again = 0;
    for path in &paths {
        let task = client.safe("GET", path, &Value::Null, Duration::ZERO, PATIENCE).unwrap().body;
        assert_eq!(task["state"], "done", "{task}");
        again += usize::from(task["attempt"] != 1);
    }
    println!("{count} tasks done, {again} of them in more than one attempt");
    assert_eq!(again, 0, "a node's death took a claim from a worker that lived");
}
