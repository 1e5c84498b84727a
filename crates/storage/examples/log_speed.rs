//! How fast the log is on this disk: `cargo run --release -p storage --example log_speed -- DIR`.
//!
//! One group with one append outstanding shows the price of a sync; many show what a sync shared by all
//! gathers. Not a test: it prints, and asserts nothing about time.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::GroupId;
use storage::{Log, LogEntry, LogId, LogOptions, RealDisk, ThreadExecutor};

fn main() {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "log-speed".to_owned());
    for (outstanding, bytes) in [(1, 300), (1, 4_000), (4, 300), (32, 300), (256, 300), (4, 65_536)] {
        let path = Path::new(&dir).join(format!("{outstanding}-{bytes}"));
        run(&path, outstanding, bytes);
        let _ = std::fs::remove_dir_all(&path);
    }
}

fn run(path: &Path, outstanding: usize, bytes: usize) {
    let disk = Arc::new(RealDisk::new(path).expect("the directory can be written"));
    let opened = Log::open(disk, Path::new("log"), LogOptions::default(), Arc::new(ThreadExecutor));
    let (log, _) = opened.expect("a new log opens");
    let payload = Bytes::from(vec![7; bytes]);
    let (done, completed) = mpsc::channel();
    let groups: Vec<_> = (0..4).map(|group| log.group(GroupId(group))).collect();
    let mut next = [0u64; 4];
    let mut append = |turn: usize| {
        let group = turn % 4;
        let (index, done) = (next[group], done.clone());
        next[group] += 1;
        let entry = LogEntry { index, term: 1, node: 1, payload: payload.clone() };
        groups[group]
            .append(vec![entry], Box::new(move |outcome| done.send((group, index, outcome)).expect("open")));
        if index % 10_000 == 9_999 {
            let upto = LogId { term: 1, node: 1, index: index - 5_000 };
            groups[group].purge_upto(upto, Box::new(|outcome| outcome.expect("purged")));
        }
    };
    (0..outstanding).for_each(&mut append);
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(3) {
        let (_, _, outcome) = completed.recv().expect("the writer lives");
        outcome.expect("appended");
        append(count + outstanding);
        count += 1;
    }
    let (seconds, stats) = (start.elapsed().as_secs_f64(), log.stats());
    println!(
        "{outstanding:>4} outstanding of {bytes:>6} bytes: {:>9.0} appends/s {:>7.0} syncs/s, sync mean {} us, max {} us, {} segments, {} spare",
        count as f64 / seconds,
        stats.syncs as f64 / seconds,
        stats.sync_micros / stats.syncs.max(1),
        stats.sync_micros_max,
        stats.segments,
        stats.segments_spare,
    );
    (0..outstanding).for_each(|_| drop(completed.recv()));
    log.close().expect("closed");
}
