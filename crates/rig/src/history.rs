//! Writes the history of a trial (docs/formats/history.md), and counts as it goes.
//!
//! All who record share one clock, the monotonic one of this machine, from the moment at which the history began.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

use crate::cluster::SHARDS;
use crate::error::Error;

/// The calls that clients of the rig make.
const CALLS: [&str; 8] = ["enqueue", "claim", "ack", "fail", "release", "extend", "get", "counts"];

/// The history of one trial.
pub(crate) struct History {
    began: Instant,
    out: Mutex<BufWriter<File>>,
    calls: AtomicU64,
    unknown: AtomicU64,
    listed: AtomicU64,
    /// When something last succeeded in each shard, and the longest time without in any.
    success_us: Vec<AtomicU64>,
    gap_us: AtomicU64,
    /// What the rig itself saw that must not be.
    found: Mutex<Vec<String>>,
}

/// What a call came to, as text of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Rejected(String),
    Unknown,
}

impl Outcome {
    /// What a refusal of the whole request says.
    pub(crate) fn of_code(code: &str) -> Outcome {
        match code {
            "" | "timeout" | "internal" => Outcome::Unknown,
            code => Outcome::Rejected(code.to_owned()),
        }
    }

    fn text(&self) -> String {
        match self {
            Outcome::Ok => "\"ok\"".to_owned(),
            Outcome::Rejected(code) => format!("{{\"rejected\":\"{code}\"}}"),
            Outcome::Unknown => "\"unknown\"".to_owned(),
        }
    }
}

/// All nodes have the wall clock of one machine; that clock itself may be set while they run.
const SKEW_MS: u64 = 500;
/// What a node counts for a wrong clock, and does not stamp with, is further off than this.
const WRONG_SKEW_MS: u64 = 10_000;

/// When a call was made.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start_us: u64,
    pub(crate) end_us: u64,
}

impl History {
    /// A new history in a file.
    pub(crate) fn create(path: &Path, name: &str, shards: u16, faults: &[&str]) -> Result<History, Error> {
        let file = File::create(path).map_err(Error::io(format!("create {}", path.display())))?;
        let history = History {
            began: Instant::now(),
            out: Mutex::new(BufWriter::with_capacity(1 << 20, file)),
            calls: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            listed: AtomicU64::new(0),
            success_us: (0..SHARDS).map(|_| AtomicU64::new(0)).collect(),
            gap_us: AtomicU64::new(0),
            found: Mutex::default(),
        };
        history.write(&json!({"run": {
            "version": 1, "name": name, "shards": shards, "wall_skew_ms": SKEW_MS, "calls": CALLS, "faults": faults,
        }}));
        Ok(history)
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Writes lines that are no calls.
    pub(crate) fn write(&self, line: &Value) {
        self.put(&format!("{line}\n"));
    }

    fn put(&self, lines: &str) {
        let written = self.out.lock().unwrap_or_else(PoisonError::into_inner).write_all(lines.as_bytes());
        if let Err(error) = written {
            self.find(format!("the history cannot be written: {error}"));
        }
    }

    /// Writes calls that were put into `lines`.
    pub(crate) fn write_calls(&self, lines: Lines) {
        self.calls.fetch_add(lines.count, Ordering::Relaxed);
        self.unknown.fetch_add(lines.unknown, Ordering::Relaxed);
        self.put(&lines.text);
    }

    /// Writes what was read of tasks that are left, which counts for no operation of a client.
    pub(crate) fn write_list(&self, lines: &Lines) {
        self.listed.fetch_add(lines.count, Ordering::Relaxed);
        self.put(&lines.text);
    }

    /// Notes a fault that fires.
    pub(crate) fn fault(&self, kind: &str) {
        self.write(&json!({"fault": {"kind": kind, "at_us": self.now_us()}}));
    }

    /// A clock is about to be wrong: from now on wall clocks may be further apart.
    pub(crate) fn wrong_clock(&self, kind: &str) {
        let at_us = self.now_us();
        self.write(&json!({"fault": {"kind": kind, "at_us": at_us, "wall_skew_ms": WRONG_SKEW_MS}}));
    }

    /// A write succeeded in a shard, counted from 1.
    pub(crate) fn succeeded(&self, shard: u16, at_us: u64) {
        let Some(last) = usize::from(shard).checked_sub(1).and_then(|at| self.success_us.get(at)) else {
            return;
        };
        let before = last.fetch_max(at_us, Ordering::Relaxed);
        self.gap_us.fetch_max(at_us.saturating_sub(before), Ordering::Relaxed);
    }

    /// From here on it counts how long nothing succeeds.
    pub(crate) fn count_gaps(&self) {
        self.success_us.iter().for_each(|last| last.store(self.now_us(), Ordering::Relaxed));
        self.gap_us.store(0, Ordering::Relaxed);
    }

    /// The longest time since then in which nothing was written in some shard.
    pub(crate) fn gap_us(&self) -> u64 {
        let now_us = self.now_us();
        let open = self.success_us.iter().map(|last| now_us.saturating_sub(last.load(Ordering::Relaxed)));
        open.fold(self.gap_us.load(Ordering::Relaxed), u64::max)
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    pub(crate) fn listed(&self) -> u64 {
        self.listed.load(Ordering::Relaxed)
    }

    /// Notes something that must not be.
    pub(crate) fn find(&self, what: String) {
        crate::system::say(&format!("  FOUND: {what}"));
        self.found.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// What the rig saw that must not be.
    pub(crate) fn found(&self) -> Vec<String> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Everything is in the file.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let flushed = self.out.lock().unwrap_or_else(PoisonError::into_inner).flush();
        flushed.map_err(Error::io("write the history"))
    }
}

/// Lines of calls before they are written. Texts are of our own making or ids of the product: nothing to escape.
#[derive(Default)]
pub(crate) struct Lines {
    text: String,
    count: u64,
    unknown: u64,
}

impl Lines {
    /// One call: `deed` is the JSON of `do`.
    pub(crate) fn add(
        &mut self,
        client: &str,
        span: Span,
        outcome: &Outcome,
        index: Option<&str>,
        deed: &str,
    ) {
        use std::fmt::Write as _;
        let Span { start_us, end_us } = span;
        let index = index.map_or_else(String::new, |index| format!("\"index\":\"{index}\","));
        let outcome_text = outcome.text();
        writeln!(
            self.text,
            "{{\"call\":{{\"client\":\"{client}\",\"start_us\":{start_us},\"end_us\":{end_us},\
             \"outcome\":{outcome_text},{index}\"do\":{deed}}}}}"
        )
        .expect("memory takes every write");
        self.count += 1;
        self.unknown += u64::from(*outcome == Outcome::Unknown);
    }
}
