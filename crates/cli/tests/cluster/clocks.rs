//! One node's clock is an hour wrong, while it leads and while it follows, over a change of leaders: claims, delays,
//! backoffs and expiries keep their times.
//!
//! The clock is made wrong by libfaketime, which reads how wrong from a file; the monotonic clock stays as it is.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::agreement::await_same;
use crate::client::Client;
use crate::load::shard_of;
use crate::rig::{PATIENCE, Rig, until};

/// The node whose clock is wrong.
const WRONG: usize = 0;
const HOUR_S: i64 = 3_600;
/// How long everything lasts that a scenario waits for.
const SPAN: Duration = Duration::from_secs(4);
/// When leaders change, after the scenario began. Nothing is written between: what was idle since must count too.
const CHANGE: Duration = Duration::from_millis(2_500);
/// A node that holds its clock to the others' knows theirs this well: the way of a message may be uneven.
const EARLY_MAX: Duration = Duration::from_millis(50);
/// Beyond what a change of leaders takes: time stands still without one.
const LATE_MAX: Duration = Duration::from_secs(2);
/// Tasks of each kind and by each way: enough that every shard has some.
const EACH: usize = 12;
/// What ends by its time, and must not before.
const KINDS: [&str; 5] = ["held", "delayed", "run-at", "retried", "released"];

/// How leaders change in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Every shard gets another leader, in good order.
    Transfer,
    /// The node with the wrong clock dies and comes back with it.
    Death,
}

/// A task, and when it may be claimed.
struct Due {
    kind: &'static str,
    not_before: Instant,
    not_after: Instant,
}

#[test]
fn a_clock_an_hour_wrong_makes_nothing_early_and_keeps_nothing_late() {
    let _alone = crate::alone();
    let Some(library) = library() else {
        crate::skip("clocks an hour wrong", "libfaketime is missing (package faketime)");
        return;
    };
    for wrong_s in [HOUR_S, -HOUR_S] {
        let dir = tempfile::tempdir().unwrap();
        let clock = dir.path().join("clock");
        std::fs::write(&clock, "+0\n").unwrap();
        let mut rig = Rig::new(3, &[]);
        for (name, value) in [
            ("LD_PRELOAD", library.to_str().unwrap()),
            ("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("FAKETIME_CACHE_DURATION", "1"),
        ] {
            rig.set_env(WRONG, name, value);
        }
        (0..3).for_each(|n| rig.start(n));
        rig.await_leaders(PATIENCE);
        // It jumps while the node runs.
        std::fs::write(&clock, format!("{wrong_s:+}\n")).unwrap();
        await_wrong(&rig, wrong_s, 1);
        for _ in 0..crate::rounds(1, 5) {
            scenario(&mut rig, wrong_s, Change::Transfer);
            scenario(&mut rig, wrong_s, Change::Death);
        }
        // It is set right again.
        std::fs::write(&clock, "+0\n").unwrap();
        until("it is held no more", || clock_of(&rig).is_some_and(|clock| clock["held"] == false));
        if crate::rounds(0, 1) > 0 {
            scenario(&mut rig, 0, Change::Transfer);
        }
        await_same(&rig);
    }
}

/// Where libfaketime is.
fn library() -> Option<PathBuf> {
    let places = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
    let multiarch = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    places
        .into_iter()
        .chain(multiarch)
        .map(|dir| dir.join("faketime/libfaketime.so.1"))
        .find(|path| path.exists())
}

fn clock_of(rig: &Rig) -> Option<Value> {
    let answer = Client::of(rig.nodes[WRONG].http).get("/v1/node").ok()?;
    Some(answer.body["clock"].clone())
}

/// Waits until the node notices that its clock is so wrong.
fn await_wrong(rig: &Rig, wrong_s: i64, jumps: u64) {
    until("the node sees that its clock is wrong", || {
        let Some(clock) = clock_of(rig) else { return false };
        let off_ms = clock["offset_ms"].as_i64().unwrap_or(0);
        clock["held"] == true
            && (off_ms - wrong_s * 1000).abs() < 1_000
            && clock["jumps"].as_u64() >= Some(jumps)
    });
}

fn scenario(rig: &mut Rig, wrong_s: i64, change: Change) {
    let leaders = rig.await_leaders(PATIENCE);
    let tag = format!("{:08x}", rand::random::<u32>());
    let addresses = rig.addresses();
    let dues = prepare(&addresses, &tag);
    let expiring = expiring(&addresses, &tag);
    let received: Mutex<BTreeMap<String, Instant>> = Mutex::default();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = crate::Ends(&is_over, true);
        for n in 0..3 {
            let (received, is_over, tag, client) =
                (&received, &is_over, &tag, Client::new(&addresses).beginning_with(n));
            scope.spawn(move || claim_on(client, tag, received, is_over));
        }
        std::thread::sleep(CHANGE);
        match change {
            Change::Transfer => {
                for (shard, leader) in leaders.iter().filter(|(shard, _)| **shard > 0) {
                    // The wrong one gives all away and gets what the next one has.
                    let to = if *leader == WRONG { 1 } else { WRONG };
                    let transfer = json!({"shard": shard, "node": rig.nodes[to].number});
                    let answer = Client::of(addresses[2]).post("/v1/cluster/transfer", &transfer, PATIENCE);
                    assert_eq!(answer.unwrap().status, 200);
                }
            }
            Change::Death => {
                rig.kill(WRONG);
                rig.start(WRONG);
            }
        }
        let end = Instant::now() + SPAN + LATE_MAX;
        while Instant::now() < end && received.lock().unwrap().len() < dues.len() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    if wrong_s != 0 {
        await_wrong(rig, wrong_s, 0);
    }
    judge(&format!("{wrong_s:+} s, {change:?}"), &dues, &received.into_inner().unwrap(), &leaders);
    let mut client = rig.client();
    for (path, state) in expiring {
        let task = client.safe("GET", &path, &Value::Null, Duration::ZERO, PATIENCE).unwrap();
        assert_eq!(task.body["state"], state, "{wrong_s:+} s, {change:?}: {task:?}");
    }
}

/// Tasks of all kinds on all shards, by way of the node with the wrong clock and of another; when each is due.
fn prepare(addresses: &[SocketAddr], tag: &str) -> BTreeMap<String, Due> {
    let mut dues = BTreeMap::new();
    for kind in KINDS {
        for n in 0..2 * EACH {
            let mut client = Client::of(addresses[if n % 2 == 0 { WRONG } else { 1 }]);
            let id = prepare_one(&mut client, kind, tag, n, &mut dues);
            assert!(!id.is_empty());
        }
    }
    dues
}

fn prepare_one(
    client: &mut Client,
    kind: &'static str,
    tag: &str,
    n: usize,
    dues: &mut BTreeMap<String, Due>,
) -> String {
    let span_ms = SPAN.as_millis() as u64;
    let queue = format!("/v1/queues/{kind}-{tag}/tasks");
    let mut task = json!({"kind": "k", "dedup_key": n.to_string()});
    let (mut began, mut wall) = (Instant::now(), SystemTime::now());
    match kind {
        "delayed" => task["delay_ms"] = json!(span_ms),
        "run-at" => {
            wall += SPAN;
            let at = wall.duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
            task["run_at"] = json!(jiff::Timestamp::from_millisecond(at).unwrap().to_string());
        }
        _ => {}
    }
    let enqueued = client.post(&queue, &task, PATIENCE).unwrap();
    let id = enqueued.body["id"].as_str().unwrap_or_else(|| panic!("{enqueued:?}")).to_owned();
    if matches!(kind, "held" | "retried" | "released") {
        let hold_ms = if kind == "held" { span_ms } else { 60_000 };
        let claim = json!({"id": id, "worker": "first", "hold_ms": hold_ms, "request_id": format!("{tag}-{kind}-{n}")});
        began = Instant::now();
        let claimed = client.post("/v1/claims", &claim, PATIENCE).unwrap();
        let token = claimed.body["claims"][0]["token"].clone();
        assert!(token.is_string(), "{claimed:?}");
        if kind != "held" {
            began = Instant::now();
            let (verb, body) = match kind {
                "retried" => ("fail", json!({"token": token, "error": "e", "retry_in_ms": span_ms})),
                _ => ("release", json!({"token": token, "delay_ms": span_ms})),
            };
            let answer = client.post(&format!("/v1/claims/{verb}"), &body, PATIENCE).unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
    dues.insert(
        id.clone(),
        Due { kind, not_before: began + SPAN, not_after: Instant::now() + SPAN + LATE_MAX },
    );
    id
}

/// Tasks that expire, and what they are when the scenario is over.
fn expiring(addresses: &[SocketAddr], tag: &str) -> Vec<(String, &'static str)> {
    let mut tasks = Vec::new();
    for n in 0..2 * EACH {
        let mut client = Client::of(addresses[if n % 2 == 0 { WRONG } else { 1 }]);
        let (expires_in_ms, state) = if n % 4 < 2 { (120_000, "ready") } else { (1_000, "expired") };
        let task = json!({"kind": "k", "dedup_key": n.to_string(), "expires_in_ms": expires_in_ms});
        let enqueued = client.post(&format!("/v1/queues/expiring-{tag}/tasks"), &task, PATIENCE).unwrap();
        tasks.push((format!("/v1/tasks/{}", enqueued.body["id"].as_str().unwrap()), state));
    }
    tasks
}

/// Claims whatever comes and notes when.
fn claim_on(
    mut client: Client,
    tag: &str,
    received: &Mutex<BTreeMap<String, Instant>>,
    is_over: &AtomicBool,
) {
    let queues = KINDS.map(|kind| format!("{kind}-{tag}"));
    while !is_over.load(Ordering::SeqCst) {
        let claim = json!({
            "queues": queues, "worker": "second", "max": 20, "wait_ms": 200, "hold_ms": 60_000,
            "request_id": format!("{:016x}", rand::random::<u64>()),
        });
        let answer = client.safe("POST", "/v1/claims", &claim, Duration::from_millis(200), PATIENCE).unwrap();
        let now = Instant::now();
        for claim in answer.body["claims"].as_array().unwrap() {
            let before = received.lock().unwrap().insert(claim["id"].as_str().unwrap().to_owned(), now);
            assert!(before.is_none(), "P3: given out twice: {claim}");
        }
    }
}

#[track_caller]
fn judge(
    what: &str,
    dues: &BTreeMap<String, Due>,
    received: &BTreeMap<String, Instant>,
    leaders: &BTreeMap<u16, usize>,
) {
    for kind in KINDS {
        let (mut early, mut late) = (Duration::ZERO, Duration::ZERO);
        for (id, due) in dues.iter().filter(|(_, due)| due.kind == kind) {
            let shard = shard_of(id);
            let whose =
                format!("{what}: {kind} task of shard {shard}, led by node {} at first", leaders[&shard] + 1);
            let at = received.get(id).unwrap_or_else(|| panic!("{whose}: kept for more than {LATE_MAX:?}"));
            early = early.max(due.not_before.saturating_duration_since(*at));
            late = late.max(at.saturating_duration_since(due.not_before));
            assert!(early <= EARLY_MAX, "{whose}: {early:?} early");
            assert!(*at <= due.not_after, "{whose}: {late:?} late");
        }
        println!("{what}: {kind}: at most {early:?} early, {late:?} late");
    }
}
