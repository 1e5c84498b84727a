//! What an offline check finds, and that it changes nothing.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::GroupId;
use storage::check::{NoVisitor, Report, Severity, Visitor, check};
use storage::{Batch, CheckpointStore, Disk, LogEntry, MemDisk, Open};
use support::*;

fn filled() -> MemDisk {
    let disk = MemDisk::new();
    let log = open(&disk);
    append(&group(&log, 1), entries(0..20, 1000));
    append(&group(&log, 2), entries(0..3, 10));
    log.close().unwrap();
    let store = CheckpointStore::open(Arc::new(disk.mount()), Path::new("shards/1.redb"), 1 << 20).unwrap();
    let mut batch = Batch::new();
    for number in 0..2_000u32 {
        batch.put(1, &number.to_be_bytes(), &[number as u8; 100]);
    }
    store.write(&batch).unwrap();
    disk
}

fn files(disk: &MemDisk) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = ["log", "shards"].into_iter().flat_map(|dir| disk.list(Path::new(dir)).unwrap());
    paths.map(|path| (path.clone(), disk.read(&path).unwrap())).collect()
}

fn run(disk: &MemDisk) -> Report {
    check(disk, &mut NoVisitor).unwrap()
}

fn damage(report: &Report) -> Vec<&str> {
    let bad = report.findings.iter().filter(|finding| finding.severity == Severity::Damage);
    bad.map(|finding| finding.text.as_str()).collect()
}

#[test]
fn a_whole_directory_is_clean_and_every_file_is_counted() {
    let disk = filled();
    let before = files(&disk);
    let report = run(&disk);
    assert!(report.is_clean(), "{report:?}");
    let records: Vec<_> =
        report.files.iter().map(|file| (file.path.to_str().unwrap(), file.records)).collect();
    assert_eq!(records[..2], [("log/0000000000000001.seg", 12), ("log/0000000000000002.seg", 13)]);
    assert_eq!(records.last().unwrap(), &("shards/1.redb", 2_000));
    assert_eq!(files(&disk), before, "a check changes nothing");
    assert!(run(&MemDisk::new()).is_clean(), "an empty directory");
}

#[test]
fn a_directory_of_a_killed_process_is_clean_with_a_note() {
    let disk = filled();
    let log = open(&disk);
    append(&group(&log, 1), entries(20..21, 100));
    disk.poke(Path::new("log/0000000000000002.seg"), 15_000, 1);
    let store = CheckpointStore::open(Arc::new(disk.mount()), Path::new("shards/1.redb"), 1 << 20).unwrap();
    let mut batch = Batch::new();
    batch.put(1, b"more", b"rows");
    store.write(&batch).unwrap();
    disk.crash(7);
    let before = files(&disk);
    assert!(run(&disk).is_clean());
    assert_eq!(files(&disk), before);
}

#[test]
fn every_flipped_byte_of_a_record_is_found_in_its_file() {
    let disk = filled();
    let path = Path::new("log/0000000000000001.seg");
    for offset in (4096..12_000).step_by(97) {
        disk.flip(path, offset, 5);
        let report = run(&disk);
        assert!(!report.is_clean(), "flip at {offset}");
        assert_eq!(report.findings[0].path, path);
        assert!(report.findings[0].text.contains("restore it from a backup"));
        disk.flip(path, offset, 5);
    }
}

#[test]
fn flipped_bytes_of_a_checkpoint_are_found_or_stand_where_no_row_is() {
    let disk = filled();
    let path = Path::new("shards/1.redb");
    let length = disk.read(path).unwrap().len() as u64;
    let mut found = 0;
    for offset in (0..length).step_by(4999) {
        disk.flip(path, offset, 1);
        let report = run(&disk);
        let rows = report.files.iter().find(|file| file.path == path).unwrap().records;
        assert!(!report.is_clean() || rows == 2_000, "a row went missing in silence, flip at {offset}");
        found += usize::from(!report.is_clean());
        disk.flip(path, offset, 1);
    }
    assert!(found > 10, "{found}");
}

#[test]
fn objections_of_the_visitor_are_findings_and_too_many_are_cut_short() {
    struct Strict;
    impl Visitor for Strict {
        fn entry(&mut self, group: GroupId, entry: &LogEntry) -> Result<(), String> {
            if group.0 == 2 && entry.index == 1 { Err("not an entry of ours".to_owned()) } else { Ok(()) }
        }

        fn row(&mut self, _: GroupId, table: u8, _: &[u8], value: &[u8]) -> Result<(), String> {
            assert_eq!((table, value.len()), (1, 100));
            Err("not a row of ours".to_owned())
        }
    }
    let report = check(&filled(), &mut Strict).unwrap();
    let damage = damage(&report);
    assert_eq!(damage[0], "entry 1 of group 2: not an entry of ours");
    assert_eq!(damage[1], "table 1, key 00000000: not a row of ours");
    assert_eq!(*damage.last().unwrap(), "and more like these");
    assert!(damage.len() < 30);
}

#[test]
fn files_that_are_not_ours_or_not_finished_are_notes() {
    let disk = filled();
    for path in ["log/notes.txt", "log/0000000000000099.new", "shards/9.new", "shards/x.redb"] {
        disk.open(Path::new(path), Open::Create).unwrap();
    }
    let report = run(&disk);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.findings.len(), 4, "{report:?}");
}
