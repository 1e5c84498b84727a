//! Bytes of every format version must open for ever.
//!
//! `tests/fixtures/v1` was written by the code below. It is never written anew: a change of format gets a
//! version, a directory and a test of its own. To make the bytes of a new version, run this test with
//! `WINDLASS_FIXTURES=DIR`.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use model::GroupId;
use storage::check::{NoVisitor, check};
use storage::{Batch, CheckpointStore, Disk, GroupState, LogEntry, LogId, MemDisk, Open, RealDisk};
use support::*;

const CACHE: usize = 1024 * 1024;
const SPOOL: &str = "checkpoint.spool";
const STORE: &str = "shards/1.redb";

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1")
}

/// A log with every kind of record, in two segments, one of them recycled; a checkpoint; its spool.
fn write_v1(disk: &MemDisk) {
    let log = open(disk);
    let (catalog, one) = (group(&log, 0), group(&log, 1));
    outcome(|done| catalog.save_vote(Bytes::from_static(b"catalog vote"), done)).unwrap();
    append(&catalog, entries(0..2, 5));
    outcome(|done| one.save_vote(Bytes::from_static(b"vote"), done)).unwrap();
    append(&one, entries(1..7, 2000));
    purge(&one, 6);
    purge(&catalog, 1);
    append(&one, entries(7..12, 2000));
    outcome(|done| one.truncate_after(Some(9), done)).unwrap();
    append(
        &one,
        vec![LogEntry { index: 10, term: 2, node: 3, payload: Bytes::from_static(b"after a truncation") }],
    );
    append(&one, entries_of_term_2());
    log.close().unwrap();

    let store = CheckpointStore::open(Arc::new(disk.mount()), Path::new(STORE), CACHE).unwrap();
    let mut batch = Batch::new();
    for number in 0..300u32 {
        batch.put(1, &number.to_be_bytes(), format!("row {number}").as_bytes());
    }
    batch.put(0, b"applied", b"11");
    store.write(&batch).unwrap();
    store.spool(Path::new(SPOOL)).unwrap();
}

fn entries_of_term_2() -> Vec<LogEntry> {
    (11..14).map(|index| LogEntry { term: 2, node: 3, ..entry(index, 1500) }).collect()
}

fn copy_to_memory(files: &[PathBuf]) -> MemDisk {
    let disk = MemDisk::new();
    for path in files {
        disk.create_dir_all(path.parent().unwrap()).unwrap();
        let bytes = std::fs::read(fixture().join(path)).unwrap();
        disk.open(path, Open::Create).unwrap().write_at(&bytes, 0).unwrap();
    }
    disk
}

fn fixture_files() -> Vec<PathBuf> {
    let disk = RealDisk::existing(fixture()).unwrap();
    let dirs = ["", "log", "shards"];
    let all = dirs.iter().flat_map(|dir| disk.list(Path::new(dir)).unwrap());
    all.filter(|path| fixture().join(path).is_file()).collect()
}

#[test]
fn a_log_of_version_1_opens_with_all_that_was_in_it() {
    let disk = copy_to_memory(&fixture_files());
    let (log, recovered) = try_open(&disk).unwrap();
    assert_eq!(recovered.torn, None);
    let (catalog, one) = (group(&log, 0), group(&log, 1));
    assert_eq!(catalog.vote().unwrap(), "catalog vote");
    assert_eq!(catalog.state(), GroupState { first: 2, last: Some(id(1)), purged: Some(id(1)) });
    assert_eq!(one.vote().unwrap(), "vote");
    assert_eq!(one.state().purged, Some(id(6)));
    assert_eq!(one.state().last, Some(LogId { term: 2, node: 3, index: 13 }));
    assert_eq!(one.read(0..10).unwrap(), entries(7..10, 2000));
    assert_eq!(one.read(10..11).unwrap()[0].payload, "after a truncation");
    assert_eq!(one.read(11..99).unwrap(), entries_of_term_2());
    append(&one, entries(14..15, 10));
}

#[test]
fn a_checkpoint_and_a_spool_of_version_1_open_with_all_that_was_in_them() {
    let disk = copy_to_memory(&fixture_files());
    let expect = |store: &CheckpointStore| {
        assert_eq!(store.count(1).unwrap(), 300);
        assert_eq!(store.get(1, &299u32.to_be_bytes()).unwrap().unwrap(), "row 299");
        assert_eq!(store.get(0, b"applied").unwrap().unwrap(), "11");
    };
    expect(&CheckpointStore::open(Arc::new(disk.mount()), Path::new(STORE), CACHE).unwrap());
    let other = CheckpointStore::open(Arc::new(disk.mount()), Path::new("shards/2.redb"), CACHE).unwrap();
    other.install(Path::new(SPOOL)).unwrap();
    expect(&other);
    let report = check(&disk, &mut NoVisitor).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn the_same_calls_still_write_the_bytes_of_version_1() {
    let disk = MemDisk::new();
    write_v1(&disk);
    let mut paths = disk.list(Path::new(DIR)).unwrap();
    paths.extend([PathBuf::from(STORE), PathBuf::from(SPOOL)]);
    if let Ok(target) = std::env::var("WINDLASS_FIXTURES") {
        for path in &paths {
            let target = Path::new(&target).join(path);
            std::fs::create_dir_all(target.parent().unwrap()).unwrap();
            std::fs::write(target, disk.read(path).unwrap()).unwrap();
        }
        return;
    }
    // redb's own pages may be laid out differently by a later redb; they only have to open.
    for path in paths.iter().filter(|path| *path != Path::new(STORE)) {
        let old = std::fs::read(fixture().join(path)).unwrap();
        assert!(old == disk.read(path).unwrap(), "{} differs", path.display());
    }
    assert_eq!(group(&open(&disk), 1).group(), GroupId(1));
}
