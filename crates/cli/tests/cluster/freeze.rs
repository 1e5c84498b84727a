//! A leader that stands still under load: the others go on, and when it wakes it knows what it missed or says no.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agreement::await_same;
use crate::client::{Answer, Client};
use crate::load::{Load, Shape, shard_of};
use crate::rig::{PATIENCE, Rig, until};
use crate::{check, report};

/// How long after it woke a node is asked for what it missed.
const ASKED_FOR: Duration = Duration::from_secs(2);
/// The queue that the freeze is about; the load has its own.
const QUEUE: &str = "frozen";

/// A task that changes while the leader of its shard stands still.
struct Probe {
    path: String,
    id: String,
    /// Of a claim that is over when the leader wakes.
    token: Value,
}

#[test]
fn a_leader_frozen_under_load_wakes_up_to_what_happened_meanwhile() {
    let _alone = crate::alone();
    let still = Duration::from_millis(crate::rounds(3_500, 10_000) as u64);
    let mut rig = Rig::started(3, &[]);
    let shape = Shape { hold: Duration::from_secs(15), ..Shape::light() };
    let load = Load::start(&rig.addresses(), shape);
    let mut outages = Vec::new();
    for round in 0..crate::rounds(2, 10) {
        load.flow(200);
        let (victim, led) = rig.busiest();
        let shards: Vec<u16> = led.into_iter().filter(|group| *group > 0).collect();
        let acked = claimed(&rig, &shards, &format!("acked-{round}"), 600_000);
        let taken = claimed(&rig, &shards, &format!("taken-{round}"), 500);
        let address = rig.nodes[victim].http;
        rig.freeze(victim);
        let frozen = Instant::now();
        let others: Vec<SocketAddr> = rig.up().into_iter().map(|n| rig.nodes[n].http).collect();
        let mut others = Client::new(&others);
        // One is done, the other is somebody else's.
        let answer = others.post("/v1/claims/ack", &json!({"token": acked.token}), PATIENCE).unwrap();
        assert_eq!((answer.status, &answer.body["state"]), (200, &json!("done")), "{answer:?}");
        let claim = json!({"id": taken.id, "worker": "next", "hold_ms": 600_000});
        let mut fence = 0;
        until("the old claim is over and there is a new one", || {
            let answer = others.once("POST", "/v1/claims", &claim.to_string(), Duration::ZERO);
            fence = answer.map_or(0, |answer| answer.body["claims"][0]["fence"].as_u64().unwrap_or(0));
            if fence == 0 {
                others.next();
            }
            fence > 0
        });
        let mut first = Vec::new();
        until("writes go on", || {
            first = load.first_writes(frozen, &shards).unwrap_or_default();
            !first.is_empty()
        });
        outages.push(first.iter().max().unwrap().duration_since(frozen));
        std::thread::sleep(still.saturating_sub(frozen.elapsed()));

        // These lie in its sockets already when it wakes, and are the first that it reads.
        let early: Vec<JoinHandle<Option<Answer>>> = asks(&acked, &taken)
            .into_iter()
            .map(|ask| std::thread::spawn(move || ask_once(address, &ask)))
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        rig.thaw(victim);
        let woken = Instant::now();
        for (ask, answer) in asks(&acked, &taken).iter().zip(early) {
            if let Some(answer) = answer.join().unwrap() {
                not_stale(ask, &answer);
            }
        }
        println!("round {round}: what waited was answered {:?} after it woke", woken.elapsed());
        let mut answered = 0;
        while woken.elapsed() < ASKED_FOR {
            for ask in asks(&acked, &taken) {
                if let Some(answer) = ask_once(address, &ask) {
                    not_stale(&ask, &answer);
                    answered += usize::from(!answer.is_passing());
                }
            }
        }
        assert!(answered > 0, "it never came back");
        let after = others.get(&taken.path).unwrap();
        assert_eq!(
            (&after.body["state"], &after.body["worker"]),
            (&json!("claimed"), &json!("next")),
            "{after:?}"
        );
        rig.await_leaders(PATIENCE);
    }
    let history = load.stop();
    check::all(&history);
    check::counted(&history, &mut rig.client());
    check::nothing_failed(&history);
    await_same(&rig);
    let (_, worst) = report("without successful writes after a leader froze", &mut outages);
    assert!(worst <= still, "{worst:?}: writes went on only when it woke");
}

/// A task in one of these shards, claimed for so long.
fn claimed(rig: &Rig, shards: &[u16], key: &str, hold_ms: u64) -> Probe {
    let mut client = rig.client();
    for n in 0.. {
        let task = json!({"kind": "k", "dedup_key": format!("{key}-{n}")});
        let enqueued = client.post(&format!("/v1/queues/{QUEUE}/tasks"), &task, PATIENCE).unwrap();
        let id = enqueued.body["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/tasks/{id}");
        if !shards.contains(&shard_of(&id)) {
            client.safe("DELETE", &path, &Value::Null, Duration::ZERO, PATIENCE).unwrap();
            continue;
        }
        let claim = json!({"id": id, "worker": "first", "hold_ms": hold_ms});
        let answer = client.post("/v1/claims", &claim, PATIENCE).unwrap();
        let token = answer.body["claims"][0]["token"].clone();
        assert!(token.is_string(), "{answer:?}");
        return Probe { path, id, token };
    }
    unreachable!("some key leads there")
}

/// What an old leader is asked.
struct Ask {
    method: &'static str,
    path: String,
    body: String,
    /// What it must answer, if it answers at all.
    expected: Expected,
}

enum Expected {
    State(&'static str),
    Refused(&'static [&'static str]),
    NoClaims,
}

fn asks(acked: &Probe, taken: &Probe) -> Vec<Ask> {
    let ask = |method, path: &str, body: Value, expected| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        Ask { method, path: path.to_owned(), body, expected }
    };
    let extend = json!({"token": taken.token, "hold_ms": 600_000});
    let queue = json!({"queues": [QUEUE], "worker": "stale"});
    vec![
        ask("GET", &acked.path, Value::Null, Expected::State("done")),
        ask("GET", &taken.path, Value::Null, Expected::State("claimed")),
        // The same ack again has the same answer.
        ask("POST", "/v1/claims/ack", json!({"token": acked.token}), Expected::State("done")),
        ask("POST", "/v1/claims/ack", json!({"token": taken.token}), Expected::Refused(&["stale_token"])),
        ask("POST", "/v1/claims/extend", extend, Expected::Refused(&["stale_token"])),
        ask(
            "POST",
            "/v1/claims",
            json!({"id": taken.id, "worker": "stale"}),
            Expected::Refused(&["not_ready"]),
        ),
        ask(
            "POST",
            "/v1/claims",
            json!({"id": acked.id, "worker": "stale"}),
            Expected::Refused(&["not_ready", "already_ended"]),
        ),
        ask("POST", "/v1/claims", queue, Expected::NoClaims),
    ]
}

/// One answer, or nothing if the connection broke.
fn ask_once(address: SocketAddr, ask: &Ask) -> Option<Answer> {
    let mut client = Client::of(address);
    client.answer_max = PATIENCE;
    client.once(ask.method, &ask.path, &ask.body, Duration::ZERO).ok()
}

#[track_caller]
fn not_stale(ask: &Ask, answer: &Answer) {
    let what = format!("{} {} {}: {answer:?}", ask.method, ask.path, ask.body);
    if answer.is_passing() {
        return;
    }
    match ask.expected {
        Expected::State(state) => {
            assert_eq!((answer.status, &answer.body["state"]), (200, &json!(state)), "stale: {what}");
        }
        Expected::Refused(codes) => assert!(codes.contains(&answer.code()), "stale: {what}"),
        Expected::NoClaims => {
            let none = answer.body["claims"].as_array().is_some_and(Vec::is_empty);
            assert!(answer.status == 200 && none, "stale: {what}");
        }
    }
}
