//! The log with its real writer thread: many callers at once, on a real directory.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::GroupId;
use storage::{Disk, GroupLog, Log, LogEntry, LogId, LogOptions, MemDisk, RealDisk, ThreadExecutor};
use support::{SEGMENT_BYTES, entries, entry, id, options};

const WAIT: Duration = Duration::from_secs(30);

fn open(disk: Arc<dyn Disk>, options: LogOptions) -> Log {
    Log::open(disk, Path::new("log"), options, Arc::new(ThreadExecutor)).unwrap().0
}

/// Calls and waits for the outcome.
fn wait(call: impl FnOnce(storage::Done)) -> std::io::Result<()> {
    let (send, receive) = mpsc::channel();
    call(Box::new(move |outcome| send.send(outcome).unwrap()));
    receive.recv_timeout(WAIT).expect("the writer answers")
}

#[test]
fn many_groups_append_vote_and_purge_at_once_and_a_restart_finds_it_all() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir.path()).unwrap());
    let log = open(disk.clone(), LogOptions { segment_bytes: 64 * 1024, ..options() });
    thread::scope(|scope| {
        for number in 0..8 {
            let group = log.group(GroupId(number));
            scope.spawn(move || busy(&group));
        }
    });
    // The writer answers before it lets go of what it no longer needs.
    let until = Instant::now() + WAIT;
    while log.stats().segments >= 20 || log.stats().cached_bytes > 4096 {
        assert!(Instant::now() < until, "{:?}", log.stats());
        thread::yield_now();
    }
    log.close().unwrap();
    drop(log);

    let log = open(disk, options());
    for number in 0..8 {
        let group = log.group(GroupId(number));
        assert_eq!(group.read(0..u64::MAX).unwrap(), entries(group.state().first..400, 300));
        assert_eq!(group.state().purged, Some(id(390)));
        assert_eq!(group.vote().unwrap(), "vote 399");
    }
    log.close().unwrap();
}

fn busy(group: &GroupLog) {
    let (send, receive) = mpsc::channel();
    for index in 0..400 {
        let send = send.clone();
        group.append(vec![entry(index, 300)], Box::new(move |outcome| send.send((index, outcome)).unwrap()));
        assert_eq!(group.read(index..index + 1).unwrap()[0].index, index);
        if index % 10 == 0 {
            wait(|done| group.purge_upto(id(index.saturating_sub(0)), done)).unwrap();
        }
        group.save_vote(Bytes::from(format!("vote {index}")), Box::new(|outcome| outcome.unwrap()));
    }
    for expected in 0..400 {
        let (index, outcome) = receive.recv_timeout(WAIT).unwrap();
        outcome.unwrap();
        assert_eq!(index, expected, "completed in order");
    }
}

#[test]
fn a_full_queue_lets_callers_wait_and_loses_nothing() {
    let disk = MemDisk::new();
    let log = open(Arc::new(disk.mount()), LogOptions { queue_bytes: 2000, ..options() });
    thread::scope(|scope| {
        for number in 0..4 {
            let group = log.group(GroupId(number));
            scope.spawn(move || {
                for index in 0..200 {
                    group.append(vec![entry(index, 500)], Box::new(|outcome| outcome.unwrap()));
                }
            });
        }
    });
    log.close().unwrap();
    let (log, _) = support::try_open(&disk).unwrap();
    for number in 0..4 {
        assert_eq!(log.group(GroupId(number)).read(0..999).unwrap(), entries(0..200, 500));
    }
}

#[test]
fn a_callback_may_append_even_when_the_queue_is_full() {
    let disk = MemDisk::new();
    let log = open(Arc::new(disk.mount()), LogOptions { queue_bytes: 1, ..options() });
    let (one, two) = (log.group(GroupId(1)), log.group(GroupId(2)));
    let (send, receive) = mpsc::channel();
    let nested = two.clone();
    let done = Box::new(move |outcome: std::io::Result<()>| {
        outcome.unwrap();
        for index in 0..10 {
            let send = send.clone();
            nested.append(vec![entry(index, 100)], Box::new(move |outcome| send.send(outcome).unwrap()));
        }
    });
    one.append(vec![entry(0, 100)], done);
    for _ in 0..10 {
        receive.recv_timeout(WAIT).unwrap().unwrap();
    }
    log.close().unwrap();
}

#[test]
fn a_full_disk_holds_answers_back_until_there_is_room() {
    let disk = MemDisk::new();
    disk.set_capacity(Some(3 * SEGMENT_BYTES));
    let log = open(Arc::new(disk.mount()), LogOptions { queue_bytes: 4000, ..options() });
    let group = log.group(GroupId(1));
    let (send, receive) = mpsc::channel();
    for index in 0..40 {
        let send = send.clone();
        // Far more than the queue's bound: a caller must not hang while the disk is full.
        group.append(vec![entry(index, 2000)], Box::new(move |outcome| send.send((index, outcome)).unwrap()));
    }
    while !log.is_out_of_room() {
        thread::yield_now();
    }
    disk.set_capacity(None);
    for expected in 0..40 {
        let (index, outcome) = receive.recv_timeout(WAIT).unwrap();
        outcome.unwrap();
        assert_eq!(index, expected);
    }
    assert!(!log.is_out_of_room());
    log.close().unwrap();
}

#[test]
fn a_log_that_is_closed_on_a_full_disk_answers_all_that_wait() {
    let disk = MemDisk::new();
    disk.set_capacity(Some(3 * SEGMENT_BYTES));
    let log = open(Arc::new(disk.mount()), LogOptions { queue_bytes: 4000, ..options() });
    let group = log.group(GroupId(1));
    let (send, receive) = mpsc::channel();
    let append = |index| {
        let send = send.clone();
        group.append(vec![entry(index, 2000)], Box::new(move |outcome| send.send(outcome).unwrap()));
    };
    (0..40).for_each(append);
    while !log.is_out_of_room() {
        thread::yield_now();
    }
    // The writer stands still with what it took: these wait behind that.
    (40..50).for_each(append);
    log.close().unwrap();
    let outcomes: Vec<_> = (0..50).map(|_| receive.recv_timeout(WAIT).unwrap().is_ok()).collect();
    assert!(outcomes[0] && !outcomes[49], "{outcomes:?}");
    assert!(outcomes.is_sorted_by(|a, b| a >= b), "none after a refused one: {outcomes:?}");
}

#[test]
fn a_failed_sync_fails_all_that_wait_and_runs_the_hook_first() {
    let disk = MemDisk::new();
    let (hook, hooked) = mpsc::channel();
    let on_fatal: storage::OnFatal = Arc::new(move |error| hook.send(error.clone()).unwrap());
    let log = open(Arc::new(disk.mount()), LogOptions { on_fatal, ..options() });
    let group = log.group(GroupId(1));
    wait(|done| group.append(vec![entry(0, 10)], done)).unwrap();
    disk.fail_sync(0);
    // The segments made ready ahead of time sync too: whichever fails, the log must not go on.
    let mut index = 1;
    while wait(|done| group.append(vec![entry(index, 2000)], done)).is_ok() {
        index += 1;
    }
    assert!(hooked.recv_timeout(WAIT).unwrap().is_fatal());
    assert!(wait(|done| group.save_vote(Bytes::new(), done)).is_err());
    assert!(log.close().is_err());
}

#[test]
fn a_panic_in_a_callback_does_not_leave_others_waiting() {
    let disk = MemDisk::new();
    let log = open(Arc::new(disk.mount()), options());
    let group = log.group(GroupId(1));
    group.append(vec![entry(0, 10)], Box::new(|_| panic!("a bug of the caller")));
    while log.fatal().is_none() {
        thread::yield_now();
    }
    assert!(wait(|done| group.append(vec![entry(1, 10)], done)).is_err());
    assert!(log.close().is_err());
}

#[test]
fn a_silent_log_proves_its_last_write() {
    let disk = MemDisk::new();
    let log = open(Arc::new(disk.mount()), options());
    wait(|done| log.group(GroupId(1)).append(vec![entry(0, 200)], done)).unwrap();
    let records = log.stats().records;
    while log.stats().records == records {
        thread::sleep(Duration::from_millis(1));
    }
    let path = Path::new("log/0000000000000001.seg");
    while disk.read(path).unwrap()[4096 + 256] == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    disk.flip(path, 4200, 1);
    let error = support::try_open(&disk).err().expect("an acknowledged entry is damaged");
    assert!(error.to_string().contains("proves"), "{error}");
    drop(log);
}

#[test]
fn the_writer_ends_when_the_last_handle_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir.path()).unwrap());
    let log = open(disk.clone(), options());
    let group = log.group(GroupId(1));
    drop(log);
    let last = LogEntry { index: 0, term: 1, node: 1, payload: Bytes::from_static(b"last") };
    wait(|done| group.append(vec![last], done)).unwrap();
    let upto = LogId { term: 1, node: 1, index: 0 };
    wait(|done| group.purge_upto(upto, done)).unwrap();
    drop(group);
    while Arc::strong_count(&disk) > 1 {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(open(disk, options()).group(GroupId(1)).state().purged, Some(upto));
}
