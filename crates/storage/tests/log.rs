//! What the log promises, one promise per test, on a disk in memory.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use storage::{Disk, Error, InlineExecutor, Log, LogId, MemDisk, Open, Reserve};
use support::*;

fn segment(epoch: u64) -> PathBuf {
    Path::new(DIR).join(format!("{epoch:016}.seg"))
}

fn names(disk: &MemDisk) -> Vec<String> {
    let found = disk.list(Path::new(DIR)).unwrap();
    found.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn two_groups_keep_their_entries_votes_and_purges_over_a_restart() {
    let disk = MemDisk::new();
    let log = open(&disk);
    let (one, two) = (group(&log, 1), group(&log, 2));
    append(&one, entries(0..3, 100));
    append(&two, entries(1..5, 10));
    outcome(|done| one.save_vote(Bytes::from_static(b"vote 1"), done)).unwrap();
    append(&one, entries(3..6, 100));
    outcome(|done| one.save_vote(Bytes::from_static(b"vote 2"), done)).unwrap();
    outcome(|done| one.truncate_after(Some(4), done)).unwrap();
    purge(&two, 2);
    log.close().unwrap();

    let (log, recovered) = try_open(&disk).unwrap();
    assert_eq!(recovered.torn, None);
    let facts: Vec<_> = recovered.groups.iter().map(|group| (group.group.0, group.entries)).collect();
    assert_eq!(facts, [(1, 5), (2, 2)]);
    let (one, two) = (group(&log, 1), group(&log, 2));
    assert_eq!(one.read(0..99).unwrap(), entries(0..5, 100));
    assert_eq!(two.read(0..99).unwrap(), entries(3..5, 10));
    assert_eq!(one.vote().unwrap(), "vote 2");
    assert_eq!(two.vote(), None);
    assert_eq!(two.state().purged, Some(id(2)));
    assert_eq!(two.state().first, 3);
    append(&one, entries(5..6, 1));
}

#[test]
fn entries_can_be_read_before_they_are_on_the_disk_and_are_done_only_after() {
    let disk = MemDisk::new();
    let executor = ManualExecutor::default();
    let opened = Log::open(Arc::new(disk.clone()), Path::new(DIR), options(), Arc::new(executor.clone()));
    let (log, _) = opened.unwrap();
    let one = group(&log, 1);
    let done = Arc::new(AtomicU64::new(0));
    for index in 0..10 {
        let done = done.clone();
        one.append(
            vec![entry(index, 10)],
            Box::new(move |outcome| {
                outcome.unwrap();
                done.fetch_add(1, Relaxed);
            }),
        );
    }
    assert_eq!(one.read(0..10).unwrap(), entries(0..10, 10));
    assert_eq!(done.load(Relaxed), 0);
    let before = log.stats();
    executor.run();
    assert_eq!(done.load(Relaxed), 10);
    assert_eq!(log.stats().syncs - before.syncs, 1, "one sync completes all that gathered");
    assert_eq!(log.stats().records - before.records, 10);
}

#[test]
fn old_entries_leave_memory_and_are_read_from_their_segments() {
    let disk = MemDisk::new();
    let log = open(&disk);
    let one = group(&log, 1);
    for index in 0..100 {
        append(&one, entries(index..index + 1, 1000));
    }
    assert!(log.stats().cached_bytes <= 4096, "{}", log.stats().cached_bytes);
    assert!(log.stats().segments > 5);
    assert_eq!(one.read(0..100).unwrap(), entries(0..100, 1000));
    assert_eq!(one.read_upto(10..100, 3 * 1056).unwrap(), entries(10..13, 1000));
    assert_eq!(one.bytes_since(97), 2 * 1056);
}

#[test]
fn a_change_that_does_not_fit_changes_nothing() {
    let disk = MemDisk::new();
    let log = open(&disk);
    let one = group(&log, 1);
    append(&one, entries(0..2, 10));
    let refused = [
        (outcome(|done| one.append(entries(3..4, 1), done)), "entry 3 does not follow 2"),
        (outcome(|done| one.append(entries(2..3, 16_384), done)), "does not fit into a log segment"),
        (outcome(|done| one.save_vote(Bytes::from(vec![0; 2000]), done)), "does not fit"),
    ];
    for (outcome, text) in refused {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    assert_eq!(one.state().last, Some(id(1)));
    append(&one, entries(2..3, 9000));
}

#[test]
fn segments_without_unpurged_entries_are_used_again_and_the_directory_stays_small() {
    let disk = MemDisk::new();
    let log = open(&disk);
    let (one, two) = (group(&log, 1), group(&log, 2));
    outcome(|done| two.save_vote(Bytes::from_static(b"kept"), done)).unwrap();
    for index in 0..500 {
        append(&one, entries(index..index + 1, 2000));
        if index % 10 == 9 {
            purge(&one, index - 3);
        }
    }
    assert!(log.stats().segments <= 4, "{:?}", log.stats());
    assert!(names(&disk).len() <= 8, "{:?}", names(&disk));
    let newest = names(&disk).iter().filter_map(|name| name.strip_suffix(".seg")?.parse::<u64>().ok()).max();
    assert!(newest > Some(70), "{newest:?}");
    drop((log, one, two));

    let log = open(&disk);
    assert_eq!(group(&log, 2).vote().unwrap(), "kept", "its segment was recycled long ago");
    let one = group(&log, 1);
    assert_eq!(one.read(0..999).unwrap(), entries(one.state().first..500, 2000));
    assert_eq!(one.state().purged, Some(id(496)));
}

#[test]
fn a_group_that_is_not_purged_pins_segments_and_lags() {
    let disk = MemDisk::new();
    let log = open(&disk);
    let (one, two) = (group(&log, 1), group(&log, 2));
    append(&two, entries(0..1, 10));
    for index in 0..100 {
        append(&one, entries(index..index + 1, 2000));
    }
    purge(&one, 99);
    assert!(log.stats().segments > 10, "{:?}", log.stats());
    assert!(two.is_lagging() && !one.is_lagging());
    purge(&two, 0);
    assert!(!two.is_lagging() && !one.is_lagging());
    assert_eq!(log.stats().segments, 1);
}

#[test]
fn truncated_entries_do_not_come_back_when_the_log_has_moved_on() {
    let disk = MemDisk::new();
    let log = open(&disk);
    let one = group(&log, 1);
    append(&one, entries(0..20, 2000));
    outcome(|done| one.truncate_after(Some(5), done)).unwrap();
    let other = |index| storage::LogEntry { term: 2, ..entry(index, 500) };
    append(&one, (6..9).map(other).collect());
    purge(&one, 3);
    drop((log, one));
    let log = open(&disk);
    let one = group(&log, 1);
    assert_eq!(one.state().last, Some(LogId { term: 2, node: 7, index: 8 }));
    assert_eq!(one.read(6..99).unwrap(), (6..9).map(other).collect::<Vec<_>>());
    outcome(|done| one.truncate_after(None, done)).unwrap();
    assert_eq!(one.state().last, Some(id(3)));
    append(&one, entries(4..5, 1));
}

#[test]
fn a_purge_beyond_the_end_lets_the_log_go_on_there() {
    let disk = MemDisk::new();
    let log = open(&disk);
    let one = group(&log, 1);
    append(&one, entries(0..20, 2000));
    purge(&one, 1000);
    append(&one, entries(1001..1003, 10));
    drop((log, one));
    let log = open(&disk);
    assert_eq!(group(&log, 1).read(0..2000).unwrap(), entries(1001..1003, 10));
}

#[test]
fn a_torn_tail_is_cut_and_reported_at_every_byte() {
    let disk = MemDisk::new();
    let log = open(&disk);
    append(&group(&log, 1), entries(0..3, 200));
    append(&group(&log, 1), entries(3..4, 200));
    drop(log);
    let whole = disk.read(&segment(1)).unwrap();
    // The last record is the fourth: 256 bytes each from 4096 on.
    let start = 4096 + 3 * 256;
    for cut in (start + 1)..(start + 256) {
        let disk = MemDisk::new();
        disk.create_dir_all(Path::new(DIR)).unwrap();
        let file = disk.open(&segment(1), Open::Create).unwrap();
        file.allocate(SEGMENT_BYTES).unwrap();
        file.write_at(&whole[..cut], 0).unwrap();
        let (log, recovered) = try_open(&disk).unwrap();
        assert_eq!(recovered.torn.unwrap().offset, start as u64, "cut at {cut}");
        let one = group(&log, 1);
        assert_eq!(one.read(0..9).unwrap(), entries(0..3, 200));
        append(&one, entries(3..5, 100));
        drop((log, one));
        let (log, recovered) = try_open(&disk).unwrap();
        assert_eq!(recovered.torn, None);
        assert_eq!(group(&log, 1).read(3..9).unwrap(), entries(3..5, 100));
    }
}

#[test]
fn damage_below_a_proven_sync_is_refused_with_what_to_do() {
    let disk = MemDisk::new();
    let log = open(&disk);
    for index in 0..4 {
        append(&group(&log, 1), entries(index..index + 1, 200));
    }
    log.close().unwrap();
    // Records of 256 bytes; behind the last comes the mark of an orderly end, which proves it.
    for offset in (4096..4096 + 4 * 256).step_by(3) {
        disk.flip(&segment(1), offset, (offset % 8) as u8);
        // Padding and reserved bytes of a record carry nothing.
        let Err(error) = try_open(&disk) else { panic!("a flip at {offset} went unseen") };
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("proves that valid ones stood here"), "{text}");
        assert!(text.contains("restore it from a backup"), "{text}");
        disk.flip(&segment(1), offset, (offset % 8) as u8);
    }
    try_open(&disk).unwrap();
}

#[test]
fn without_threads_too_silence_proves_the_last_write() {
    for silent in [false, true] {
        let disk = MemDisk::new();
        let executor = ManualExecutor::default();
        let opened = Log::open(Arc::new(disk.clone()), Path::new(DIR), options(), Arc::new(executor.clone()));
        let (log, _) = opened.unwrap();
        let one = group(&log, 1);
        for index in 0..2 {
            one.append(vec![entry(index, 100)], Box::new(|outcome| outcome.unwrap()));
            executor.run();
        }
        let written = log.stats().records;
        if silent {
            executor.pass_time();
            assert_eq!(log.stats().records, written + 1, "of two writes only the last is the end");
            executor.pass_time();
            assert_eq!(log.stats().records, written + 1, "once is enough");
        }
        drop((log, one));
        // Records of 160 bytes: this is the payload of the second.
        disk.flip(&segment(1), 4096 + 160 + 60, 0);
        match try_open(&disk) {
            Ok((_, recovered)) => assert!(!silent && recovered.torn.is_some(), "{recovered:?}"),
            Err(error) => assert!(silent && matches!(error, Error::Damaged { .. }), "{error}"),
        }
    }
}

#[test]
fn a_closed_log_proves_nothing_more() {
    let disk = MemDisk::new();
    let executor = ManualExecutor::default();
    let opened = Log::open(Arc::new(disk.clone()), Path::new(DIR), options(), Arc::new(executor.clone()));
    let (log, _) = opened.unwrap();
    group(&log, 1).append(vec![entry(0, 100)], Box::new(|outcome| outcome.unwrap()));
    executor.run();
    log.close().unwrap();
    let written = log.stats().records;
    executor.pass_time();
    assert_eq!(log.stats().records, written);
}

#[test]
fn a_read_error_is_an_error_of_that_read_alone() {
    let disk = MemDisk::new();
    let log = open(&disk);
    let one = group(&log, 1);
    append(&one, entries(0..50, 1000));
    disk.fail_read(0);
    assert!(matches!(one.read(0..10), Err(Error::Io { .. })), "what left the cache is read from the disk");
    assert_eq!(one.read(0..50).unwrap(), entries(0..50, 1000));
    assert!(log.fatal().is_none());
}

#[test]
fn a_segment_cut_at_rest_is_refused() {
    let disk = MemDisk::new();
    let log = open(&disk);
    append(&group(&log, 1), entries(0..10, 100));
    log.close().unwrap();
    disk.truncate(&segment(1), SEGMENT_BYTES - 1);
    let error = try_open(&disk).err().unwrap();
    assert!(error.to_string().contains("its header says"), "{error}");
}

#[test]
fn damage_in_an_old_segment_or_a_missing_one_is_refused() {
    let disk = MemDisk::new();
    let log = open(&disk);
    append(&group(&log, 1), entries(0..30, 2000));
    log.close().unwrap();
    disk.flip(&segment(2), 5000, 1);
    assert!(matches!(try_open(&disk), Err(Error::Damaged { .. })));
    disk.flip(&segment(2), 5000, 1);

    // The end of a segment, where the next one is named.
    let bytes = disk.read(&segment(2)).unwrap();
    let seal = (0..bytes.len()).step_by(8).rfind(|at| bytes[*at..].starts_with(b"WLr1")).unwrap();
    disk.flip(&segment(2), seal as u64 + 30, 1);
    let Err(error) = try_open(&disk) else { panic!("a broken seal opened") };
    assert!(error.to_string().contains("has later ones"), "{error}");
    disk.flip(&segment(2), seal as u64 + 30, 1);

    let away = Path::new("away");
    disk.rename(&segment(2), away).unwrap();
    let Err(error) = try_open(&disk) else { panic!("a missing segment went unseen") };
    assert!(matches!(error, Error::Missing { .. }), "{error}");
    disk.rename(away, &segment(2)).unwrap();

    disk.rename(&segment(1), away).unwrap();
    let Err(error) = try_open(&disk) else { panic!("the missing first segment went unseen") };
    assert!(error.to_string().contains("entries 0 to"), "{error}");
    disk.rename(away, &segment(1)).unwrap();
    try_open(&disk).unwrap();
}

#[test]
fn records_of_a_segments_earlier_life_are_never_read() {
    let disk = MemDisk::new();
    let log = open(&disk);
    let one = group(&log, 1);
    // Every segment is full of records of the same size, so that old ones stand exactly where new ones end.
    append(&one, entries(0..200, 200));
    purge(&one, 199);
    for index in 200..210 {
        append(&one, entries(index..index + 1, 200));
        let (log, recovered) = try_open(&disk).unwrap();
        assert_eq!(group(&log, 1).read(0..999).unwrap(), entries(200..index + 1, 200));
        assert_eq!(recovered.torn, None, "an old record is not an unfinished one");
    }
}

#[test]
fn a_failed_sync_fails_everything_from_then_on() {
    for failing in 0..3 {
        let disk = MemDisk::new();
        let fatal = Arc::new(AtomicU64::new(0));
        let seen = fatal.clone();
        let mut options = options();
        options.on_fatal = Arc::new(move |error| {
            assert!(error.is_fatal());
            seen.fetch_add(1, Relaxed);
        });
        let opened = Log::open(Arc::new(disk.clone()), Path::new(DIR), options, Arc::new(InlineExecutor));
        let (log, _) = opened.unwrap();
        let one = group(&log, 1);
        disk.fail_sync(failing);
        let outcomes: Vec<_> =
            (0..5).map(|at| outcome(|done| one.append(entries(at..at + 1, 9), done)).is_ok()).collect();
        let expected: Vec<_> = (0..5).map(|at| at < failing).collect();
        assert_eq!(outcomes, expected);
        assert_eq!(fatal.load(Relaxed), 1, "the hook runs once");
        assert!(log.fatal().is_some());
        assert!(one.read(0..1).is_err());
        assert!(outcome(|done| one.save_vote(Bytes::new(), done)).is_err());
        assert!(log.close().is_err());
        drop((log, one));
        disk.crash(failing);
        let log = open(&disk);
        assert_eq!(group(&log, 1).read(0..9).unwrap().len() as u64, failing);
    }
}

#[test]
fn a_full_disk_stalls_the_log_and_room_lets_it_go_on() {
    let disk = MemDisk::new();
    disk.set_capacity(Some(2 * SEGMENT_BYTES));
    let log = open(&disk);
    let one = group(&log, 1);
    let done = Arc::new(AtomicU64::new(0));
    let append_one = |index: u64| {
        let done = done.clone();
        one.append(
            entries(index..index + 1, 2000),
            Box::new(move |outcome| {
                outcome.unwrap();
                done.fetch_add(1, Relaxed);
            }),
        );
    };
    (0..30).for_each(append_one);
    let written = done.load(Relaxed);
    assert!((8..14).contains(&written), "{written}");
    assert!(log.is_out_of_room());
    assert_eq!(one.read(0..99).unwrap(), entries(0..30, 2000), "all can be read");
    append_one(30);
    assert!(log.is_out_of_room());
    assert_eq!(done.load(Relaxed), written, "nothing is written while there is no room");

    disk.set_capacity(Some(20 * SEGMENT_BYTES));
    append_one(31);
    assert_eq!(done.load(Relaxed), 32);
    assert!(!log.is_out_of_room());
    assert_eq!(log.stats().stalls, 1);
    drop((log, one));
    assert_eq!(group(&open(&disk), 1).read(0..99).unwrap(), entries(0..32, 2000));
}

#[test]
fn the_reserve_is_used_before_the_log_stalls() {
    let disk = MemDisk::new();
    disk.set_capacity(Some(4 * SEGMENT_BYTES));
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let reserve = Reserve::with_margin(shared.clone(), Path::new("reserve"), 2 * SEGMENT_BYTES, 0).unwrap();
    let mut options = options();
    options.reserve = Some(Arc::new(reserve));
    let (log, _) = Log::open(shared, Path::new(DIR), options, Arc::new(InlineExecutor)).unwrap();
    let one = group(&log, 1);
    for index in 0..20 {
        append(&one, entries(index..index + 1, 2000));
    }
    assert_eq!(log.stats().segments, 4);
    assert!(!disk.exists(Path::new("reserve")).unwrap());
}

#[test]
fn an_orderly_end_goes_on_in_the_same_segment_and_a_killed_one_in_the_next() {
    let disk = MemDisk::new();
    let log = open(&disk);
    append(&group(&log, 1), entries(0..1, 10));
    log.close().unwrap();
    let log = open(&disk);
    append(&group(&log, 1), entries(1..2, 10));
    assert_eq!(log.stats().segments, 1);
    drop(log);
    let log = open(&disk);
    append(&group(&log, 1), entries(2..3, 10));
    assert_eq!(log.stats().segments, 2);
    assert_eq!(group(&log, 1).read(0..9).unwrap(), entries(0..3, 10));
}

#[test]
fn a_closed_log_refuses_and_stays_closed() {
    let disk = MemDisk::new();
    let log = open(&disk);
    let one = group(&log, 1);
    log.close().unwrap();
    log.close().unwrap();
    let error = outcome(|done| one.append(entries(0..1, 1), done)).unwrap_err();
    assert_eq!(error.to_string(), "the log is closed");
}

#[test]
fn foreign_files_in_the_directory_are_left_alone() {
    let disk = MemDisk::new();
    disk.create_dir_all(Path::new(DIR)).unwrap();
    disk.open(Path::new("log/README.txt"), Open::Create).unwrap();
    disk.open(Path::new("log/0000000000000009.new"), Open::Create).unwrap();
    drop(open(&disk));
    assert!(disk.exists(Path::new("log/README.txt")).unwrap());
    assert!(!disk.exists(Path::new("log/0000000000000009.new")).unwrap());
}
