//! What the tests of the log share.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::GroupId;
use parking_lot::Mutex;
use storage::executor::Work;
use storage::{
    Done, Executor, GroupLog, InlineExecutor, Log, LogEntry, LogId, LogOptions, MemDisk, Recovered, Result,
};

pub(crate) const DIR: &str = "log";
pub(crate) const SEGMENT_BYTES: u64 = 16 * 1024;

/// Small segments, and a process that survives its disk.
pub(crate) fn options() -> LogOptions {
    LogOptions {
        segment_bytes: SEGMENT_BYTES,
        cache_bytes: 4096,
        lag_bytes: 2 * SEGMENT_BYTES,
        piece_bytes: 4096,
        on_fatal: Arc::new(|_| {}),
        ..LogOptions::default()
    }
}

pub(crate) fn try_open(disk: &MemDisk) -> Result<(Log, Recovered)> {
    Log::open(Arc::new(disk.clone()), Path::new(DIR), options(), Arc::new(InlineExecutor))
}

pub(crate) fn open(disk: &MemDisk) -> Log {
    try_open(disk).unwrap().0
}

pub(crate) fn entry(index: u64, bytes: usize) -> LogEntry {
    let payload = Bytes::from(vec![(index % 251) as u8 + 1; bytes]);
    LogEntry { index, term: 1, node: 7, payload }
}

pub(crate) fn entries(range: std::ops::Range<u64>, bytes: usize) -> Vec<LogEntry> {
    range.map(|index| entry(index, bytes)).collect()
}

pub(crate) fn id(index: u64) -> LogId {
    LogId { term: 1, node: 7, index }
}

/// The outcome of a call whose `done` has been called by now.
pub(crate) fn outcome(call: impl FnOnce(Done)) -> io::Result<()> {
    let seen = Arc::new(Mutex::new(None));
    let slot = seen.clone();
    call(Box::new(move |outcome| *slot.lock() = Some(outcome)));
    let outcome = seen.lock().take();
    outcome.expect("without threads a call is complete at return")
}

pub(crate) fn append(log: &GroupLog, entries: Vec<LogEntry>) {
    outcome(|done| log.append(entries, done)).unwrap();
}

pub(crate) fn purge(log: &GroupLog, index: u64) {
    outcome(|done| log.purge_upto(id(index), done)).unwrap();
}

pub(crate) fn group(log: &Log, number: u16) -> GroupLog {
    log.group(GroupId(number))
}

/// Keeps jobs until they are asked for, so that several changes gather.
#[derive(Clone, Default)]
pub(crate) struct ManualExecutor {
    jobs: Arc<Mutex<VecDeque<Work>>>,
    later: Arc<Mutex<Vec<Work>>>,
}

impl ManualExecutor {
    pub(crate) fn run(&self) {
        loop {
            let job = self.jobs.lock().pop_front();
            let Some(job) = job else { return };
            job();
        }
    }

    /// Runs what was to wait a while.
    pub(crate) fn pass_time(&self) {
        let later = std::mem::take(&mut *self.later.lock());
        later.into_iter().for_each(|work| work());
    }
}

impl Executor for ManualExecutor {
    fn spawn(&self, _name: &str, work: Work) {
        self.jobs.lock().push_back(work);
    }

    fn has_threads(&self) -> bool {
        false
    }

    fn spawn_after(&self, _name: &str, _delay: Duration, work: Work) {
        self.later.lock().push(work);
    }
}
