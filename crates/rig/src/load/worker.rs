//! A worker: claims many, settles them in batches, and is careless now and then: it holds a claim for too long and
//! acks late, forgets one, gives one back, fails.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use super::producer::outcome;
use super::session::Session;
use super::{AFTER, CHAIN, FLAKY, QUEUES, Shared, payload_of, shard_of};
use crate::client::Client;
use crate::history::{Lines, Outcome, Span};

/// How long a claim holds.
const HOLD: Duration = Duration::from_secs(4);
/// How long a claim waits for a task.
const WAIT: Duration = Duration::from_millis(250);
/// A worker says so often what became of a claim, until somebody answers or this has passed.
const SETTLE_MAX: Duration = Duration::from_secs(12);
const PAUSE: Duration = Duration::from_millis(30);

/// A claim that is held.
struct Held {
    task: String,
    queue: String,
    payload: String,
    token: String,
    fence: u64,
}

/// What is said of a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Ack,
    Fail { retry_in_ms: u64, fatal: bool },
    Release { delay_ms: u64 },
    Extend,
}

impl Verb {
    /// The call, and the name of its list.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Verb::Ack => ("ack", "acks"),
            Verb::Fail { .. } => ("fail", "fails"),
            Verb::Release { .. } => ("release", "releases"),
            Verb::Extend => ("extend", "extends"),
        }
    }
}

struct Worker<'a> {
    shared: &'a Shared,
    name: String,
    client: Client,
    rng: StdRng,
    session: Option<Session>,
    requests: u64,
    /// Claims that are held past their deadline, and until when.
    late: VecDeque<(Instant, Held)>,
}

pub(super) fn work(shared: &Arc<Shared>, n: usize) {
    let name = format!("w{n}");
    // Every second one has a session.
    let session = (n % 2 == 1).then(|| Session::start(shared, &name, n));
    let rng = StdRng::seed_from_u64(shared.seed ^ (0x77_0000 + n as u64));
    let client = Client::new(&shared.addresses, n);
    let mut worker = Worker { shared, name, client, rng, session, requests: 0, late: VecDeque::new() };
    while shared.working.load(Ordering::Relaxed) {
        let claimed = worker.claim();
        worker.handle(claimed);
        worker.settle_late();
    }
}

impl Worker<'_> {
    /// Asks once, and once more with the same request id when nobody answers.
    fn claim(&mut self) -> Vec<Held> {
        self.requests += 1;
        let request = format!("{}.{}.{:x}", self.name, self.requests, self.shared.seed & 0xffff_ffff);
        let session = self.session.as_ref().and_then(Session::id);
        for _ in 0..2 {
            if !self.client.connect() {
                std::thread::sleep(PAUSE);
                continue;
            }
            let (outcome, held) = self.claim_once(&request, session.as_deref());
            match outcome {
                Outcome::Ok => return held,
                Outcome::Unknown => {}
                Outcome::Rejected(code) => {
                    if let Some(session) = self.session.as_ref().filter(|_| !is_passing(&code)) {
                        session.renew();
                    }
                    std::thread::sleep(PAUSE);
                    return Vec::new();
                }
            }
        }
        Vec::new()
    }

    fn claim_once(&mut self, request: &str, session: Option<&str>) -> (Outcome, Vec<Held>) {
        let (hold_ms, wait_ms, max) = (HOLD.as_millis(), WAIT.as_millis(), self.shared.weight.batch);
        let of_session = session.map_or_else(String::new, |session| format!(",\"session\":\"{session}\""));
        let (name, queues) = (&self.name, serde_json::json!(QUEUES));
        let body = format!(
            "{{\"queues\":{queues},\"worker\":\"{name}\",\"max\":{max},\"hold_ms\":{hold_ms},\
             \"wait_ms\":{wait_ms},\"request_id\":\"{request}\"{of_session}}}"
        );
        let start_us = self.shared.history.now_us();
        let answer = self.client.call("POST", "/v1/claims", &body, WAIT);
        let span = Span { start_us, end_us: self.shared.history.now_us() };
        let outcome = match &answer {
            None => Outcome::Unknown,
            Some(answer) if answer.is_ok() => Outcome::Ok,
            Some(answer) => Outcome::of_code(answer.code()),
        };
        let claims = answer.as_ref().and_then(|answer| answer.body["claims"].as_array());
        let held: Vec<Held> = claims.into_iter().flatten().map(held).collect();
        let mut got = String::new();
        for (claim, held) in claims.into_iter().flatten().zip(&held) {
            let comma = if got.is_empty() { "" } else { "," };
            let Held { task, queue, payload, fence, .. } = held;
            let _ = write!(
                got,
                "{comma}{{\"task\":\"{task}\",\"queue\":\"{queue}\",\"payload\":\"{payload}\",\"fence\":{fence},\
                 \"attempt\":{}}}",
                claim["attempt"].as_u64().unwrap_or(0)
            );
        }
        let deed = format!(
            "{{\"claim\":{{\"queues\":{queues},\"worker\":\"{name}\",\"request\":\"{request}\",\
             \"hold_ms\":{hold_ms}{of_session},\"got\":[{got}]}}}}"
        );
        let index = answer.as_ref().map(|answer| answer.index.as_str()).filter(|index| !index.is_empty());
        // An empty answer too: behind it may be a claim that no answer tells of.
        let mut lines = Lines::default();
        lines.add(name, span, &outcome, index.filter(|_| outcome == Outcome::Ok), &deed);
        self.shared.history.write_calls(lines);
        if let Some(session) = &self.session {
            held.iter().for_each(|held| session.hold(&held.task, held.fence));
        }
        (outcome, held)
    }

    /// Decides what becomes of each, and says so.
    fn handle(&mut self, claimed: Vec<Held>) {
        let is_careless = self.shared.careless.load(Ordering::Relaxed);
        let (mut acks, mut fails, mut releases, mut extends) = (vec![], vec![], vec![], vec![]);
        for held in claimed {
            let dice = self.rng.random_range(0..1000);
            match dice {
                0..3 if is_careless => {
                    let late = HOLD + Duration::from_millis(self.rng.random_range(0..2_000));
                    self.late.push_back((Instant::now() + late, held));
                }
                3..5 if is_careless => self.forget(&held),
                5..20 if is_careless => releases.push(held),
                20..30 => {
                    extends.push(held);
                }
                30..300 if held.queue == FLAKY => fails.push(held),
                _ => acks.push(held),
            }
        }
        let fail = Verb::Fail {
            retry_in_ms: self.rng.random_range(50..800),
            fatal: self.rng.random_range(0..20) == 0,
        };
        let release = Verb::Release { delay_ms: self.rng.random_range(0..2) * 300 };
        // Whoever extends goes on to ack.
        self.settle(Verb::Extend, &extends);
        acks.append(&mut extends);
        for (verb, all) in [(Verb::Ack, acks), (fail, fails), (release, releases)] {
            self.settle(verb, &all);
            all.iter().for_each(|held| self.forget(held));
        }
    }

    /// Acks of those that were held for too long: most are refused, and whoever holds them now is not disturbed.
    fn settle_late(&mut self) {
        let is_careless = self.shared.careless.load(Ordering::Relaxed);
        let is_due = |(at, _): &(Instant, Held)| !is_careless || *at <= Instant::now();
        let mut due = Vec::new();
        while self.late.front().is_some_and(is_due) {
            due.extend(self.late.pop_front().map(|(_, held)| held));
        }
        self.settle(Verb::Ack, &due);
        due.iter().for_each(|held| self.forget(held));
    }

    fn forget(&self, held: &Held) {
        if let Some(session) = &self.session {
            session.let_go(&held.task);
        }
    }

    /// Says what became of some, until there is an answer for each.
    fn settle(&mut self, verb: Verb, all: &[Held]) {
        let (mut left, until): (Vec<&Held>, _) = (all.iter().collect(), Instant::now() + SETTLE_MAX);
        while !left.is_empty() && Instant::now() < until {
            if !self.client.connect() {
                std::thread::sleep(PAUSE);
                continue;
            }
            left = self.settle_once(verb, &left);
            if !left.is_empty() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Those of which nobody knows, or that may be taken later.
    fn settle_once<'h>(&mut self, verb: Verb, all: &[&'h Held]) -> Vec<&'h Held> {
        let (word, list) = verb.words();
        let items: Vec<String> = all.iter().map(|held| item(verb, held)).collect();
        let body = format!("{{\"{list}\":[{}]}}", items.join(","));
        let start_us = self.shared.history.now_us();
        let answer = self.client.call("POST", &format!("/v1/claims/{word}"), &body, Duration::ZERO);
        let span = Span { start_us, end_us: self.shared.history.now_us() };
        let (mut lines, mut left) = (Lines::default(), Vec::new());
        for (at, held) in all.iter().enumerate() {
            let result = answer.as_ref().map_or(&Value::Null, |answer| &answer.body["results"][at]);
            let outcome = outcome(answer.as_ref(), result);
            let shard = shard_of(&held.task);
            let index =
                answer.as_ref().filter(|_| outcome == Outcome::Ok).and_then(|answer| answer.index_of(shard));
            lines.add(&self.name, span, &outcome, index, &deed(verb, held, result));
            if outcome == Outcome::Ok {
                self.shared.history.succeeded(shard, span.end_us);
            }
            if outcome == Outcome::Unknown || matches!(&outcome, Outcome::Rejected(code) if is_passing(code))
            {
                left.push(*held);
            }
        }
        self.shared.history.write_calls(lines);
        left
    }
}

fn is_passing(code: &str) -> bool {
    matches!(code, "unavailable" | "not_leader" | "disk_full" | "memory_full" | "too_many_requests")
}

fn held(claim: &Value) -> Held {
    let text = |field: &str| claim[field].as_str().unwrap_or_default().to_owned();
    Held {
        task: text("id"),
        queue: text("queue"),
        payload: payload_of(&claim["payload"]).to_owned(),
        token: text("token"),
        fence: claim["fence"].as_u64().unwrap_or(0),
    }
}

/// The payloads of what follows an ack with this fence.
fn follow_ups(held: &Held) -> Vec<String> {
    let count = if held.queue == CHAIN { 1 + held.fence % 2 } else { 0 };
    (0..count).map(|n| format!("{}.{}.{n}", held.payload, held.fence)).collect()
}

fn item(verb: Verb, held: &Held) -> String {
    let token = &held.token;
    match verb {
        Verb::Ack => {
            let then = |payload: &String| {
                format!("{{\"queue\":\"{AFTER}\",\"kind\":\"k\",\"payload\":{{\"p\":\"{payload}\"}}}}")
            };
            let then: Vec<String> = follow_ups(held).iter().map(then).collect();
            format!("{{\"token\":\"{token}\",\"then\":[{}]}}", then.join(","))
        }
        Verb::Fail { retry_in_ms, fatal } => format!(
            "{{\"token\":\"{token}\",\"error\":\"by chance\",\"retry_in_ms\":{retry_in_ms},\"fatal\":{fatal}}}"
        ),
        Verb::Release { delay_ms } => format!("{{\"token\":\"{token}\",\"delay_ms\":{delay_ms}}}"),
        Verb::Extend => format!("{{\"token\":\"{token}\",\"hold_ms\":{}}}", HOLD.as_millis()),
    }
}

fn deed(verb: Verb, held: &Held, result: &Value) -> String {
    let (word, _) = verb.words();
    let Held { task, fence, .. } = held;
    let mut deed = format!("{{\"{word}\":{{\"task\":\"{task}\",\"fence\":{fence}");
    match verb {
        Verb::Ack => {
            let then = |payload: &String| format!("{{\"queue\":\"{AFTER}\",\"payload\":\"{payload}\"}}");
            let then: Vec<String> = follow_ups(held).iter().map(then).collect();
            let _ = write!(deed, ",\"then\":[{}]", then.join(","));
        }
        Verb::Fail { retry_in_ms, fatal } => {
            let _ = write!(deed, ",\"retry_in_ms\":{retry_in_ms},\"fatal\":{fatal}");
        }
        Verb::Release { delay_ms } => {
            let _ = write!(deed, ",\"retry_in_ms\":{delay_ms}");
        }
        Verb::Extend => {
            let _ = write!(deed, ",\"hold_ms\":{}", HOLD.as_millis());
        }
    }
    if let Some(state) = result["state"].as_str().filter(|_| verb != Verb::Extend) {
        let _ = write!(deed, ",\"state\":\"{state}\"");
    }
    if let (Verb::Fail { .. }, Some(attempt)) = (verb, result["attempt"].as_u64()) {
        let _ = write!(deed, ",\"attempt\":{attempt}");
    }
    deed + "}}"
}
