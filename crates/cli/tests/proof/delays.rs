//! P8: a delayed task is never claimed before its time, and is ready soon after it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::client::Client;
use crate::server::Server;

const TASKS: usize = 10_000;
const WORKERS: usize = 8;
/// They are due within this time, which begins a little after the first enqueue.
const SPREAD_MS: u64 = 10_000;
const LEAD_MS: u64 = 6_000;

#[test]
fn ten_thousand_delayed_tasks_are_on_time() {
    let _alone = crate::alone();
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let start = now_ms();
    let mut due_of: BTreeMap<String, u64> = BTreeMap::new();
    let mut client = Client::new(server.address);
    for chunk in 0..TASKS / 500 {
        let dues: Vec<u64> =
            (0..500).map(|n| start + LEAD_MS + scatter(chunk * 500 + n) % SPREAD_MS).collect();
        let tasks: Vec<Value> =
            dues.iter().map(|&due| json!({"kind": "late", "run_at": rfc3339(due)})).collect();
        let answer = client.post("/v1/queues/late/tasks", &json!({"tasks": tasks})).unwrap();
        for (result, due) in answer.body["results"].as_array().unwrap().iter().zip(dues) {
            assert_eq!(result["state"], "delayed", "{result}");
            due_of.insert(result["id"].as_str().unwrap().to_owned(), due);
        }
    }
    assert!(now_ms() < start + LEAD_MS, "the enqueues took longer than the lead: raise LEAD_MS");
    let mut late = receive(&server, &due_of);
    late.sort_unstable();
    let p99 = late[TASKS * 99 / 100];
    println!(
        "{TASKS} delayed tasks: median {} ms late, p99 {p99} ms, worst {} ms",
        late[TASKS / 2],
        late[TASKS - 1]
    );
    // A debug build on a busy machine is no measure of the promise's 100 ms: that is for the long form.
    let most = if std::env::var("WINDLASS_FAULTS").is_ok_and(|form| form == "long") { 100 } else { 500 };
    assert!(p99 <= most, "99 % within {most} ms of due, not {p99}");
}

/// Claims all; how late each came, in milliseconds.
fn receive(server: &Server, due_of: &BTreeMap<String, u64>) -> Vec<u64> {
    let late = Mutex::new(Vec::new());
    let received = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for n in 0..WORKERS {
            let (late, received) = (&late, &received);
            scope.spawn(move || {
                let mut client = Client::new(server.address);
                let claim = json!({"queues": ["late"], "worker": format!("w{n}"), "max": 10, "wait_ms": 500});
                while received.load(Ordering::SeqCst) < TASKS {
                    let answer = client.post("/v1/claims", &claim).unwrap();
                    let now = now_ms();
                    let claims = answer.body["claims"].as_array().unwrap();
                    for claim in claims {
                        let due = due_of[claim["id"].as_str().unwrap()];
                        assert!(now >= due, "P8: claimed {} ms early", due - now);
                        late.lock().unwrap().push(now - due);
                    }
                    received.fetch_add(claims.len(), Ordering::SeqCst);
                }
            });
        }
    });
    late.into_inner().unwrap()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn rfc3339(ms: u64) -> String {
    jiff::Timestamp::from_millisecond(ms as i64).unwrap().to_string()
}

/// Spreads numbers without a generator to seed.
fn scatter(n: usize) -> u64 {
    (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}
