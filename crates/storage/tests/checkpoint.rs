//! What a checkpoint promises, on a disk in memory that crashes, fails and fills up.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use storage::{Batch, CheckpointStore, Disk, Error, MemDisk, Open};

const FILE: &str = "shards/1.redb";
const CACHE: usize = 1024 * 1024;

fn open(disk: &MemDisk) -> CheckpointStore {
    CheckpointStore::open(Arc::new(disk.mount()), Path::new(FILE), CACHE).unwrap()
}

fn put(table: u8, rows: &[(&str, &str)]) -> Batch {
    let mut batch = Batch::new();
    for (key, value) in rows {
        batch.put(table, key.as_bytes(), value.as_bytes());
    }
    batch
}

fn keys(store: &CheckpointStore, table: u8) -> Vec<String> {
    let rows = store.scan(table, b"", usize::MAX).unwrap();
    rows.into_iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect()
}

#[test]
fn rows_are_put_replaced_deleted_and_found_again_after_reopening() {
    let disk = MemDisk::new();
    let store = open(&disk);
    store.write(&put(1, &[("b", "1"), ("d", "1")])).unwrap();
    let mut batch = put(1, &[("a", "2"), ("b", "2"), ("c", "2"), ("e", "2"), ("f", "2")]);
    batch.delete(1, b"d");
    batch.delete(1, b"zzz");
    batch.put(2, b"x", b"");
    store.write(&batch).unwrap();
    drop(store);

    let store = open(&disk);
    assert_eq!(keys(&store, 1), ["a", "b", "c", "e", "f"]);
    assert_eq!(store.get(1, b"b").unwrap().unwrap(), "2");
    assert_eq!(store.get(1, b"d").unwrap(), None);
    assert_eq!(store.get(2, b"x").unwrap().unwrap(), "");
    assert_eq!(store.get(9, b"x").unwrap(), None, "a table that was never written");
    let many = store.get_many(1, &["f", "nope", "a"]).unwrap();
    assert_eq!(many, [Some(Bytes::from("2")), None, Some(Bytes::from("2"))]);
    assert_eq!(store.count(1).unwrap(), 5);
    let piece: Vec<_> = store.scan(1, b"b\0", 2).unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(piece, ["c", "e"]);
}

#[test]
fn a_snapshot_does_not_see_later_writes() {
    let disk = MemDisk::new();
    let store = open(&disk);
    store.write(&put(1, &[("a", "1")])).unwrap();
    let snapshot = store.snapshot().unwrap();
    store.write(&put(1, &[("a", "2"), ("b", "2")])).unwrap();
    assert_eq!(snapshot.get(1, b"a").unwrap().unwrap(), "1");
    assert_eq!(snapshot.scan(1, b"", 9).unwrap().len(), 1);
    assert_eq!(store.get(1, b"a").unwrap().unwrap(), "2");
}

#[test]
fn the_whole_content_moves_to_another_store_by_a_file() {
    let disk = MemDisk::new();
    let store = open(&disk);
    let mut batch = Batch::new();
    for number in 0..5_000u32 {
        batch.put(1, &number.to_be_bytes(), &[number as u8; 600]);
    }
    batch.put(7, b"meta", b"index 12");
    store.write(&batch).unwrap();
    let spooled = store.spool(Path::new("out.spool")).unwrap();
    assert_eq!(spooled.rows, 5_001);
    assert_eq!(spooled.bytes, disk.read(Path::new("out.spool")).unwrap().len() as u64);

    let other = CheckpointStore::open(Arc::new(disk.mount()), Path::new("shards/2.redb"), CACHE).unwrap();
    other.write(&put(1, &[("old", "row")])).unwrap();
    other.write(&put(3, &[("old", "table")])).unwrap();
    for _ in 0..2 {
        let mut last = None;
        let read = storage::read_spooled(&disk, Path::new("out.spool"), &mut |table, key, _| {
            let this = Some((table, key.to_vec()));
            assert!(last < this, "in order");
            last = this;
            Ok(())
        });
        assert_eq!(read.unwrap(), spooled);
        assert_eq!(other.install(Path::new("out.spool")).unwrap(), spooled);
    }
    drop(other);
    let other = CheckpointStore::open(Arc::new(disk.mount()), Path::new("shards/2.redb"), CACHE).unwrap();
    assert_eq!(other.count(1).unwrap(), 5_000);
    assert_eq!(other.count(3).unwrap(), 0);
    assert_eq!(other.get(7, b"meta").unwrap().unwrap(), "index 12");
    assert_eq!(other.get(1, &77u32.to_be_bytes()).unwrap().unwrap(), vec![77; 600]);
    other.write(&put(7, &[("meta", "index 13")])).unwrap();
}

#[test]
fn a_spooled_file_with_any_byte_changed_or_cut_changes_nothing() {
    let disk = MemDisk::new();
    let store = open(&disk);
    store.write(&put(1, &[("a", "1"), ("b", "2")])).unwrap();
    let path = Path::new("out.spool");
    store.spool(path).unwrap();
    store.write(&put(1, &[("later", "row")])).unwrap();
    let bytes = disk.read(path).unwrap();
    for at in 0..bytes.len() as u64 {
        disk.flip(path, at, 2);
        let error = store.install(path).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. } | Error::Version { .. }), "{error}");
        disk.flip(path, at, 2);
    }
    for cut in 0..bytes.len() as u64 {
        let file = disk.open(Path::new("cut"), Open::Create).unwrap();
        file.set_len(0).unwrap();
        file.write_at(&bytes[..cut as usize], 0).unwrap();
        assert!(store.install(Path::new("cut")).is_err(), "cut to {cut}");
    }
    assert_eq!(keys(&store, 1), ["a", "b", "later"]);
    store.install(path).unwrap();
    assert_eq!(keys(&store, 1), ["a", "b"]);
}

#[test]
fn a_full_disk_refuses_a_batch_and_takes_it_when_there_is_room() {
    let disk = MemDisk::new();
    let store = open(&disk);
    store.write(&put(1, &[("a", "1")])).unwrap();
    disk.set_capacity(Some(disk.used_bytes() + 64 * 1024));
    let mut batch = Batch::new();
    for number in 0..4_000u32 {
        batch.put(1, &number.to_be_bytes(), &[1; 1000]);
    }
    for _ in 0..2 {
        let error = store.write(&batch).unwrap_err();
        assert!(error.is_full() && !error.is_fatal(), "{error}");
        assert_eq!(store.count(1).unwrap(), 1, "it goes on with what there was");
        assert_eq!(store.get(1, b"a").unwrap().unwrap(), "1");
    }
    disk.set_capacity(None);
    store.write(&batch).unwrap();
    assert_eq!(store.count(1).unwrap(), 4_001);
}

#[test]
fn a_failed_sync_is_fatal_and_stays_so() {
    let disk = MemDisk::new();
    let store = open(&disk);
    store.write(&put(1, &[("a", "1")])).unwrap();
    disk.fail_sync(0);
    assert!(store.write(&put(1, &[("b", "2")])).unwrap_err().is_fatal());
    assert!(store.write(&put(1, &[("c", "3")])).unwrap_err().is_fatal());
    assert!(store.get(1, b"a").is_err());
    drop(store);
    disk.crash(3);
    assert_eq!(keys(&open(&disk), 1)[0], "a");
}

#[test]
fn a_file_that_is_not_a_checkpoint_is_refused() {
    let disk = MemDisk::new();
    disk.create_dir_all(Path::new("shards")).unwrap();
    let file = disk.open(Path::new(FILE), Open::Create).unwrap();
    file.write_at(&[7; 100_000], 0).unwrap();
    let opened = CheckpointStore::open(Arc::new(disk.mount()), Path::new(FILE), CACHE);
    let Err(error) = opened else { panic!("rubbish opened") };
    assert!(error.to_string().contains("shards/1.redb"), "{error}");
}

/// Some of these pages are redb's own, which it trusts; the table of free pages made it panic when it opened.
#[test]
fn a_file_with_any_page_changed_is_refused_in_words_or_read() {
    let disk = MemDisk::new();
    let store = open(&disk);
    let rows: Vec<(String, String)> = (0..500).map(|n| (format!("{n:04}"), "x".repeat(n % 300))).collect();
    let rows: Vec<(&str, &str)> = rows.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    store.write(&put(1, &rows)).unwrap();
    store.write(&put(2, &rows[..50])).unwrap();
    drop(store);
    let whole = disk.read(Path::new(FILE)).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let mut damaged = 0;
    for (at, byte) in (0..used).step_by(499).flat_map(|at| [(at, 0xff), (at, whole[at] ^ 0x11)]) {
        let disk = MemDisk::new();
        disk.create_dir_all(Path::new("shards")).unwrap();
        disk.open(Path::new(FILE), Open::Create).unwrap().write_at(&whole, 0).unwrap();
        disk.poke(Path::new(FILE), at as u64, byte);
        let used = CheckpointStore::open(Arc::new(disk.mount()), Path::new(FILE), CACHE).and_then(|store| {
            store.for_each(1, &mut |_, _| Ok(()))?;
            store.get_many(2, &["0001", "0049"])?;
            store.write(&put(1, &rows[100..300]))
        });
        if let Err(error) = used {
            damaged += 1;
            assert!(!error.is_fatal() && error.to_string().contains(FILE), "byte {at}: {error}");
        }
    }
    assert!(damaged > 0, "no byte mattered");
}

#[derive(Clone, Debug)]
enum Op {
    Put { count: u64, from: u64, bytes: usize },
    Delete { count: u64, from: u64 },
    Install,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..40u64, 0..400u64, 0..900usize).prop_map(|(count, from, bytes)| Op::Put { count, from, bytes }),
        2 => (1..40u64, 0..400u64).prop_map(|(count, from)| Op::Delete { count, from }),
        1 => Just(Op::Install),
    ]
}

type Model = BTreeMap<u64, Vec<u8>>;

fn read(store: &CheckpointStore) -> Model {
    let rows = store.scan(1, b"", usize::MAX).unwrap();
    rows.into_iter()
        .map(|(key, value)| (u64::from_be_bytes(key[..].try_into().unwrap()), value.to_vec()))
        .collect()
}

/// Applies an operation to the model and asks the store for the same.
fn apply(store: &CheckpointStore, model: &mut Model, op: &Op, turn: u8) -> storage::Result<()> {
    let mut batch = Batch::new();
    match *op {
        Op::Put { count, from, bytes } => {
            for key in from..from + count {
                batch.put(1, &key.to_be_bytes(), &vec![turn; bytes]);
                model.insert(key, vec![turn; bytes]);
            }
        }
        Op::Delete { count, from } => {
            for key in from..from + count {
                batch.delete(1, &key.to_be_bytes());
                model.remove(&key);
            }
        }
        Op::Install => {
            store.spool(Path::new("spool"))?;
            return store.install(Path::new("spool")).map(drop);
        }
    }
    store.write(&batch)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(100),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn after_a_crash_at_any_write_a_checkpoint_is_whole(
        ops in prop::collection::vec((op(), 0..120u64, any::<u64>(), any::<bool>()), 1..12)
    ) {
        let disk = MemDisk::new();
        let mut store = open(&disk);
        let mut model = Model::new();
        for (turn, (op, after, seed, crash)) in ops.iter().enumerate() {
            let before = model.clone();
            if *crash {
                disk.cut_power_after(*after);
            }
            let outcome = apply(&store, &mut model, op, turn as u8);
            if !crash {
                outcome.unwrap();
                prop_assert_eq!(&read(&store), &model);
                continue;
            }
            disk.crash(*seed);
            store = open(&disk);
            let found = read(&store);
            let lost = outcome.is_err() && found == before;
            prop_assert!(found == model || lost, "acknowledged: {}", outcome.is_ok());
            model = found;
        }
        let report = storage::check::check(&disk, &mut storage::check::NoVisitor).unwrap();
        prop_assert!(report.is_clean(), "{:?}", report);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Runs of neighbours, single keys far apart, and keys that are not there.
    #[test]
    fn what_is_removed_and_nothing_else_is_gone(
        rows in prop::collection::btree_set(0u32..20_000, 1..3_000),
        runs in prop::collection::vec((0u32..20_000, 1u32..4_000), 0..4),
        singles in prop::collection::vec(0u32..20_000, 0..50),
    ) {
        let store = open(&MemDisk::default());
        let mut batch = Batch::new();
        rows.iter().for_each(|row| batch.put(1, &row.to_be_bytes(), &[7; 100]));
        store.write(&batch).unwrap();
        let mut left = rows;
        batch.clear();
        for row in runs.iter().flat_map(|(from, count)| *from..from + count).chain(singles) {
            batch.delete(1, &row.to_be_bytes());
            left.remove(&row);
        }
        store.write(&batch).unwrap();
        let found = store.scan(1, &[], usize::MAX).unwrap();
        let found: Vec<u32> = found.iter().map(|(key, _)| u32::from_be_bytes(key[..].try_into().unwrap())).collect();
        prop_assert_eq!(found, left.into_iter().collect::<Vec<_>>());
    }
}
