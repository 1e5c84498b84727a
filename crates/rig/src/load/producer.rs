//! A producer: batches of new tasks of one kind, each with a payload of its own.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use super::{CHAIN, FLAKY, KEYED, LATER, ORDERED, PLAIN, Shared, rest, shard_of};
use crate::client::{Answer, Client};
use crate::history::{Lines, Outcome, Span};

/// Whoever has no answer by then gives up: the history says that nobody knows.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// What producers make, in turn.
const KINDS: [&str; 6] = [PLAIN, KEYED, ORDERED, LATER, FLAKY, CHAIN];
/// Order keys of one producer.
const ORDER_KEYS: u64 = 16;
const FLAKY_ATTEMPTS: u32 = 3;

/// A task as it is asked for, and as the history says it.
struct NewTask {
    payload: String,
    is_keyed: bool,
    order_key: Option<String>,
    delay_ms: Option<u64>,
    attempts: Option<u32>,
}

pub(super) fn produce(shared: &Arc<Shared>, n: usize) {
    let mut rng = StdRng::seed_from_u64(shared.seed ^ (0x70_0000 + n as u64));
    let mut client = Client::new(&shared.addresses, n);
    let queue = KINDS[n % KINDS.len()];
    let weight = shared.weight;
    let every =
        Duration::from_micros((weight.batch * weight.producers * 1_000_000 / weight.rate.max(1)) as u64);
    let (mut count, mut next) = (0u64, Instant::now());
    while shared.producing.load(Ordering::Relaxed) {
        let batch: Vec<NewTask> = (0..weight.batch)
            .map(|_| {
                count += 1;
                task(&mut rng, queue, n, count)
            })
            .collect();
        enqueue(shared, &mut client, n, queue, batch);
        next = (next + every).max(Instant::now());
        rest(&shared.producing, next);
    }
}

fn task(rng: &mut StdRng, queue: &str, producer: usize, count: u64) -> NewTask {
    NewTask {
        payload: format!("p{producer}.{count}"),
        is_keyed: queue != PLAIN,
        order_key: (queue == ORDERED).then(|| format!("p{producer}.{}", rng.random_range(0..ORDER_KEYS))),
        delay_ms: (queue == LATER).then(|| rng.random_range(50..2_000)),
        attempts: (queue == FLAKY).then_some(FLAKY_ATTEMPTS),
    }
}

/// Asks until every task has an answer that stays. What has no key is asked for once.
fn enqueue(shared: &Shared, client: &mut Client, n: usize, queue: &str, mut batch: Vec<NewTask>) {
    let (name, path) = (format!("p{n}"), format!("/v1/queues/{queue}/tasks"));
    let until = Instant::now() + PATIENCE;
    while !batch.is_empty() && Instant::now() < until {
        if !client.connect() {
            std::thread::sleep(PAUSE);
            continue;
        }
        let body = request(&batch);
        let start_us = shared.history.now_us();
        let answer = client.call("POST", &path, &body, Duration::ZERO);
        let span = Span { start_us, end_us: shared.history.now_us() };
        let (mut lines, mut left) = (Lines::default(), Vec::new());
        for (at, task) in batch.into_iter().enumerate() {
            let result = answer.as_ref().map_or(&Value::Null, |answer| &answer.body["results"][at]);
            let outcome = outcome(answer.as_ref(), result);
            let id = result["id"].as_str().filter(|_| outcome == Outcome::Ok);
            let index = id.and_then(|id| answer.as_ref()?.index_of(shard_of(id)));
            lines.add(&name, span, &outcome, index, &deed(queue, &task, id, result));
            if let Some(id) = id {
                shared.history.succeeded(shard_of(id), span.end_us);
            }
            let is_passing = outcome == Outcome::Unknown
                || matches!(&outcome, Outcome::Rejected(code) if is_passing(code));
            if is_passing && task.is_keyed {
                left.push(task);
            }
        }
        shared.history.write_calls(lines);
        batch = left;
        if !batch.is_empty() {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Whether asking again may change the answer.
fn is_passing(code: &str) -> bool {
    matches!(code, "unavailable" | "not_leader" | "memory_full" | "disk_full" | "too_many_requests")
}

/// What became of one of many.
pub(super) fn outcome(answer: Option<&Answer>, result: &Value) -> Outcome {
    let Some(answer) = answer else { return Outcome::Unknown };
    if !answer.is_ok() {
        return Outcome::of_code(answer.code());
    }
    match result["error"]["code"].as_str() {
        Some(code) => Outcome::of_code(code),
        None if result["id"].is_string() => Outcome::Ok,
        None => Outcome::Unknown,
    }
}

fn request(batch: &[NewTask]) -> String {
    let mut body = "{\"tasks\":[".to_owned();
    for (at, task) in batch.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let payload = &task.payload;
        let _ = write!(body, "{comma}{{\"kind\":\"k\",\"payload\":{{\"p\":\"{payload}\"}}");
        if task.is_keyed {
            let _ = write!(body, ",\"dedup_key\":\"{payload}\"");
        }
        if let Some(key) = &task.order_key {
            let _ = write!(body, ",\"order_key\":\"{key}\"");
        }
        if let Some(delay_ms) = task.delay_ms {
            let _ = write!(body, ",\"delay_ms\":{delay_ms}");
        }
        if let Some(attempts) = task.attempts {
            let _ = write!(body, ",\"retry\":{{\"attempts\":{attempts},\"base_ms\":50}}");
        }
        body.push('}');
    }
    body + "]}"
}

fn deed(queue: &str, task: &NewTask, id: Option<&str>, result: &Value) -> String {
    let mut deed = format!("{{\"enqueue\":{{\"queue\":\"{queue}\",\"payload\":\"{}\"", task.payload);
    if task.is_keyed {
        let _ = write!(deed, ",\"dedup_key\":\"{}\"", task.payload);
    }
    if let Some(key) = &task.order_key {
        let _ = write!(deed, ",\"order_key\":\"{key}\"");
    }
    if let Some(delay_ms) = task.delay_ms {
        let _ = write!(deed, ",\"delay_ms\":{delay_ms}");
    }
    if let Some(attempts) = task.attempts {
        let _ = write!(deed, ",\"attempts\":{attempts}");
    }
    if let Some(id) = id {
        let _ = write!(deed, ",\"task\":\"{id}\",\"duplicate\":{}", result["status"] == "duplicate");
    }
    deed + "}}"
}
