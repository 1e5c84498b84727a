//! Kill -9 under load: what was answered is kept, whatever crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Client;
use crate::server::{Server, windlass};

const ROUNDS: usize = 50;
const PRODUCERS: usize = 8;
const WORKERS: usize = 8;
const HOLD: Duration = Duration::from_secs(2);

/// What the clients saw.
#[derive(Default)]
struct History {
    /// Answered enqueues, by id.
    enqueued: BTreeMap<String, Enqueue>,
    claims: Vec<Claim>,
    /// Answered acks: the fence, and whether a follow-up was asked for.
    acked: BTreeMap<String, (u64, bool)>,
}

struct Enqueue {
    /// The order key and the number within it.
    order: Option<(String, u64)>,
}

struct Claim {
    id: String,
    fence: u64,
    payload: Value,
    sent: Instant,
    received: Instant,
}

/// What the clients share.
struct Load<'a> {
    producing: AtomicBool,
    working: AtomicBool,
    /// Until then a call that must have an answer is made again.
    is_over: AtomicBool,
    history: &'a Mutex<History>,
}

/// Ends the load when it is dropped, by a failure too.
struct Over<'a, 'b>(&'a Load<'b>);

impl Drop for Over<'_, '_> {
    fn drop(&mut self) {
        self.0.producing.store(false, Ordering::SeqCst);
        self.0.working.store(false, Ordering::SeqCst);
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

#[test]
fn what_was_answered_survives_fifty_kills_under_load() {
    let _alone = crate::alone();
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path());
    let address = server.address;
    let history = Mutex::new(History::default());
    let (producing, working) = (AtomicBool::new(true), AtomicBool::new(true));
    let load = Load { producing, working, is_over: AtomicBool::new(false), history: &history };
    std::thread::scope(|scope| {
        // Whatever fails in here, the others end too: a scope waits for them.
        let _over = Over(&load);
        let load = &load;
        let producers: Vec<_> =
            (0..PRODUCERS).map(|n| scope.spawn(move || produce(address, n, load))).collect();
        let workers: Vec<_> = (0..WORKERS).map(|n| scope.spawn(move || work(address, n, load))).collect();
        for round in 0..ROUNDS {
            // A different moment of the load each time, without a random generator to seed.
            std::thread::sleep(Duration::from_millis(60 + (round as u64 * 37) % 240));
            server.kill();
            server = Server::start_at(dir.path(), address);
        }
        load.producing.store(false, Ordering::SeqCst);
        for producer in producers {
            producer.join().expect("its own words are above");
        }
        wait_until_empty(address);
        load.working.store(false, Ordering::SeqCst);
        for worker in workers {
            worker.join().expect("its own words are above");
        }
    });
    let history = history.into_inner().unwrap();
    println!(
        "{ROUNDS} kills: {} enqueues answered, {} claims, {} acks answered",
        history.enqueued.len(),
        history.claims.len(),
        history.acked.len()
    );
    assert!(history.acked.len() > 1_000, "too little load to prove anything");
    check_kept(&history);
    check_holders(&history);
    check_order(&history);
    check_follow_ups(&history);
    assert_eq!(server.stop(), Some(0), "a graceful stop exits with 0");
    let (code, report) = windlass(&["check", dir.path().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{report}");
}

fn produce(address: SocketAddr, producer: usize, load: &Load<'_>) {
    let mut client = Client::new(address);
    let mut n = 0u64;
    while load.producing.load(Ordering::SeqCst) {
        n += 1;
        let mut task = json!({"kind": "load", "payload": {"producer": producer, "n": n}});
        // Every other task is keyed, so that an enqueue without an answer can be sent again.
        let keyed = n.is_multiple_of(2);
        let order = keyed.then(|| (format!("{producer}-{}", n % 3), n));
        if let Some((key, _)) = &order {
            task["order_key"] = json!(key);
            task["dedup_key"] = json!(format!("{producer}:{n}"));
        }
        loop {
            match client.post("/v1/queues/load/tasks", &task) {
                Ok(answer) if answer.status < 300 => {
                    let id = answer.body["id"].as_str().unwrap().to_owned();
                    load.history.lock().unwrap().enqueued.insert(id, Enqueue { order });
                    break;
                }
                Ok(answer) => assert!(answer.status >= 500, "{answer:?}"),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
            if !keyed || load.is_over.load(Ordering::SeqCst) {
                break;
            }
        }
    }
}

fn work(address: SocketAddr, worker: usize, load: &Load<'_>) {
    let mut client = Client::new(address);
    let request = json!({
        "queues": ["load", "after"], "worker": format!("w{worker}"), "max": 1 + worker % 4,
        "hold_ms": HOLD.as_millis() as u64, "wait_ms": 500,
    });
    while load.working.load(Ordering::SeqCst) {
        let sent = Instant::now();
        let Ok(answer) = client.post("/v1/claims", &request) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        assert!(answer.status == 200 || answer.status >= 500, "{answer:?}");
        let received = Instant::now();
        for claim in answer.body["claims"].as_array().into_iter().flatten() {
            let id = claim["id"].as_str().unwrap().to_owned();
            let (fence, payload) = (claim["fence"].as_u64().unwrap(), claim["payload"].clone());
            let held = Claim { id: id.clone(), fence, payload, sent, received };
            load.history.lock().unwrap().claims.push(held);
            ack(&mut client, &id, claim, load);
        }
    }
}

/// Acks until there is an answer: the same ack again gets the same one.
fn ack(client: &mut Client, id: &str, claim: &Value, load: &Load<'_>) {
    let mut body = json!({"token": claim["token"], "output": {"ok": true}});
    // Follow-ups with a key go to other shards, those without stay: both ways must deliver once.
    let follows = claim["queue"] == "load" && claim["payload"]["n"].as_u64().unwrap().is_multiple_of(3);
    if follows {
        let mut task = json!({"queue": "after", "kind": "after", "payload": {"of": id}});
        if claim["payload"]["n"].as_u64().unwrap().is_multiple_of(2) {
            task["order_key"] = json!(id);
        }
        body["then"] = json!([task]);
    }
    while !load.is_over.load(Ordering::SeqCst) {
        match client.post("/v1/claims/ack", &body) {
            Ok(answer) if answer.status == 200 => {
                let fence = claim["fence"].as_u64().unwrap();
                let before = load.history.lock().unwrap().acked.insert(id.to_owned(), (fence, follows));
                assert!(before.is_none(), "{id} was acked twice: {before:?}, then by fence {fence}");
                return;
            }
            Ok(answer) if answer.status >= 500 => {}
            Ok(answer) => {
                assert!(["stale_token", "not_claimed"].contains(&answer.code()), "{answer:?}");
                return;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn wait_until_empty(address: SocketAddr) {
    let mut client = Client::new(address);
    let start = Instant::now();
    loop {
        let queues = client.get("/v1/queues").unwrap().body;
        let live: u64 = queues["queues"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|queue| {
                ["ready", "claimed", "delayed", "retrying", "blocked"].map(|s| queue["depth"][s].as_u64())
            })
            .flatten()
            .sum();
        if live == 0 {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{live} tasks never ended: {queues}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// P1 and P5: every answered enqueue was worked off, and no answered ack was undone.
fn check_kept(history: &History) {
    for id in history.enqueued.keys() {
        assert!(history.acked.contains_key(id), "P1: {id} was enqueued and lost");
    }
    for claim in &history.claims {
        if let Some(&(acked, _)) = history.acked.get(&claim.id) {
            assert!(
                claim.fence <= acked,
                "P5: {} was acked with {acked} and claimed with {}",
                claim.id,
                claim.fence
            );
        }
    }
}

/// P3: a task is claimed again only after the hold of the claim before has passed.
fn check_holders(history: &History) {
    let mut by_task: BTreeMap<&str, Vec<&Claim>> = BTreeMap::new();
    for claim in &history.claims {
        by_task.entry(&claim.id).or_default().push(claim);
    }
    for (id, mut claims) in by_task {
        claims.sort_by_key(|claim| claim.fence);
        for pair in claims.windows(2) {
            assert!(
                pair[0].fence < pair[1].fence,
                "P3: {id} was given out twice with fence {}",
                pair[0].fence
            );
            let apart = pair[1].received.duration_since(pair[0].sent);
            assert!(apart >= HOLD, "P3: {id} had two holders: {apart:?} apart");
        }
    }
}

/// P7: within an order key, the next is claimed only after the one before was acked.
fn check_order(history: &History) {
    let mut last_fence: BTreeMap<&str, u64> = BTreeMap::new();
    let mut first_fence: BTreeMap<&str, u64> = BTreeMap::new();
    for claim in &history.claims {
        let first = first_fence.entry(&claim.id).or_insert(claim.fence);
        *first = (*first).min(claim.fence);
        let last = last_fence.entry(&claim.id).or_insert(claim.fence);
        *last = (*last).max(claim.fence);
    }
    let mut by_key: BTreeMap<&str, Vec<(u64, &str)>> = BTreeMap::new();
    for (id, enqueue) in &history.enqueued {
        if let Some((key, n)) = &enqueue.order {
            by_key.entry(key).or_default().push((*n, id));
        }
    }
    assert!(by_key.len() >= PRODUCERS, "order keys were used");
    for (key, mut tasks) in by_key {
        tasks.sort_unstable();
        for pair in tasks.windows(2) {
            let (before, after) = (last_fence[pair[0].1], first_fence[pair[1].1]);
            assert!(
                before < after,
                "P7: key {key}: {:?} was claimed before {:?} had ended",
                pair[1],
                pair[0]
            );
        }
    }
}

/// Every answered ack with a follow-up made exactly one, and nothing else made any.
fn check_follow_ups(history: &History) {
    let mut made: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for claim in &history.claims {
        if let Some(source) = claim.payload["of"].as_str() {
            made.entry(source).or_default().insert(&claim.id);
        }
    }
    let asked: BTreeSet<&str> =
        history.acked.iter().filter(|(_, (_, follows))| *follows).map(|(id, _)| id.as_str()).collect();
    assert!(asked.len() > 100, "follow-ups were used");
    for source in &asked {
        assert_eq!(made.get(source).map_or(0, BTreeSet::len), 1, "follow-ups of {source}");
    }
    for source in made.keys() {
        assert!(asked.contains(source), "{source} was never acked, but followed");
    }
}
