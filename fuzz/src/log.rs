//! The log: a start on segments that hold any bytes, and any records that are whole.
//!
//! Checksums keep a fuzzer from ever seeing what is behind them. So most inputs say which records there are, and are
//! written as `docs/formats/log.md` says; the others are a segment's bytes as they are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use storage::check::NoVisitor;
use storage::{Disk, GroupLog, InlineExecutor, LOG_DIR, Log, LogEntry, LogOptions, MemDisk, Open, Recovered};

use crate::pieces::{Pieces, put_bytes};
use crate::{allocation, says_why};

const SEGMENT_BYTES: u64 = 16 * 1024;
const DATA_START: usize = 4096;
const RECORDS_MAX: usize = 64;
const PAYLOAD_BYTES_MAX: usize = 300;
/// The first byte of an input: what follows are the bytes of a segment.
const RAW: u8 = 255;

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    // Kind, group, index, term, node, synced, damage, payload; as `record` takes them.
    let record = |kind: u8, group: u8, index: u8, synced: u8, payload: &[u8]| {
        let mut bytes = vec![kind, group, index, 2, 1, synced, 0];
        put_bytes(&mut bytes, payload);
        bytes
    };
    let plain = [
        record(2, 1, 0, 0, b"vote"),
        record(1, 1, 1, 0, b"first"),
        record(1, 1, 2, 0, b"second"),
        record(1, 2, 1, 0, b"other group"),
        record(4, 1, 1, 0, b""),
        record(3, 1, 2, 0, b""),
        record(1, 1, 2, 0, b"again"),
        record(7, 0, 0, 0, b""),
    ];
    let sealed = [
        record(1, 1, 1, 0, b"first"),
        record(5, 0, 2, 0, b""),
        record(1, 1, 2, 0, b"second"),
        record(6, 0, 0, 100, b""),
    ];
    let mut torn =
        [record(1, 1, 1, 0, b"first"), record(1, 1, 2, 0, b"second"), record(1, 1, 3, 0, b"third")];
    // The second one is damaged, and the third says whether it was synced.
    torn[1][6] = 1;
    let mut damaged = torn.clone();
    damaged[2][5] = 230;
    let head = |epoch: u8| vec![0, epoch, 0];
    // 255 stands for the last number that there is.
    let last_entry = [record(1, 1, 255, 0, b"last"), record(1, 1, 255, 0, b"again")];
    let last_purge = [record(4, 1, 255, 0, b""), record(3, 1, 255, 0, b""), record(1, 1, 1, 0, b"first")];
    let back = [record(1, 1, 1, 0, b"first"), record(5, 0, 1, 0, b"")];
    let short = [vec![0, 1, 1], record(1, 1, 1, 0, b"first")].concat();
    let raw = {
        let disk = MemDisk::new();
        let (log, _) = open(&disk).expect("an empty disk");
        append(&log.group(model::GroupId(1)), 1, b"entry").expect("there is room");
        log.close().expect("there is room");
        files(&disk).into_values().next().expect("a segment")
    };
    vec![
        [head(1), plain.concat()].concat(),
        [head(1), sealed.concat()].concat(),
        [head(3), torn.concat()].concat(),
        [head(3), damaged.concat()].concat(),
        [head(1), last_entry.concat()].concat(),
        [head(1), last_purge.concat()].concat(),
        [head(3), back.concat()].concat(),
        [head(255), plain.concat()].concat(),
        short,
        [vec![RAW], raw[..DATA_START + 512].to_vec()].concat(),
    ]
}

pub(crate) fn run(bytes: &[u8]) {
    let disk = MemDisk::new();
    fill(&disk, bytes);
    let before = files(&disk);
    allocation::within(16 * 1024 * 1024, || {
        if let Err(error) = storage::check::check(&disk, &mut NoVisitor) {
            says_why(&error.to_string());
        }
        assert_eq!(files(&disk), before, "a check changed something");
        match open(&disk) {
            Err(error) => {
                says_why(&error.to_string());
                assert_eq!(files(&disk), before, "a start that was refused changed something");
            }
            Ok((log, recovered)) => go_on(&disk, &log, &recovered),
        }
    });
}

/// A log that opened can be read and written, and opens again as it was.
fn go_on(disk: &MemDisk, log: &Log, recovered: &Recovered) {
    let mut appended = BTreeMap::new();
    for found in &recovered.groups {
        let group = log.group(found.group);
        let state = group.state();
        let next = state.last.map_or(state.first, |last| last.index.saturating_add(1));
        let entries = group.read(state.first..next).expect("what was found can be read");
        assert_eq!(entries.len() as u64, found.entries, "group {}", found.group);
        assert!(entries.iter().all(|entry| entry.payload.len() <= SEGMENT_BYTES as usize));
        // The last index that there is has no next one.
        if next < u64::MAX - 1 && (found.entries > 0 || found.purged.is_some()) {
            append(&group, next, b"one more").expect("there is room");
            appended.insert(found.group, next);
        }
    }
    log.close().expect("there is room");
    let (again, recovered_again) = open(disk).expect("what was closed in order opens");
    // An unfinished write stays where it is until something is written after it.
    let torn = recovered.torn.as_ref().filter(|_| appended.is_empty());
    assert_eq!(recovered_again.torn.as_ref(), torn);
    for found in &recovered.groups {
        let now = recovered_again.groups.iter().find(|group| group.group == found.group);
        let now = now.expect("a group is still there");
        let more = u64::from(appended.contains_key(&found.group));
        assert_eq!((now.entries, &now.vote, now.purged), (found.entries + more, &found.vote, found.purged));
        if let Some(index) = appended.get(&found.group) {
            let entries = again.group(found.group).read(*index..index + 1).expect("it can be read");
            assert_eq!(entries[0].payload, b"one more"[..]);
        }
    }
}

fn open(disk: &MemDisk) -> storage::Result<(Log, Recovered)> {
    let options = LogOptions {
        segment_bytes: SEGMENT_BYTES,
        cache_bytes: 4096,
        lag_bytes: 2 * SEGMENT_BYTES,
        on_fatal: Arc::new(|error| panic!("{error}")),
        ..LogOptions::default()
    };
    Log::open(Arc::new(disk.clone()), Path::new(LOG_DIR), options, Arc::new(InlineExecutor))
}

fn append(group: &GroupLog, index: u64, payload: &'static [u8]) -> std::io::Result<()> {
    let outcome = Arc::new(Mutex::new(None));
    let told = outcome.clone();
    let entry = LogEntry { index, term: u64::MAX, node: 1, payload: Bytes::from_static(payload) };
    let done = move |outcome| *told.lock().expect("nobody panics with it") = Some(outcome);
    group.append(vec![entry], Box::new(done));
    outcome.lock().expect("nobody panics with it").take().expect("without threads it is done at return")
}

/// The segments and their bytes.
fn files(disk: &MemDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let all = disk.list(Path::new(LOG_DIR)).unwrap_or_default();
    let segments =
        all.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "seg"));
    segments.map(|path| (path.clone(), disk.read(&path).expect("it is there"))).collect()
}

fn fill(disk: &MemDisk, bytes: &[u8]) {
    disk.create_dir_all(Path::new(LOG_DIR)).expect("a disk in memory");
    if let Some((&RAW, raw)) = bytes.split_first() {
        let mut file = raw.to_vec();
        file.resize(file.len().max(SEGMENT_BYTES as usize), 0);
        return write(disk, 1, &file);
    }
    let mut pieces = Pieces(bytes.get(1..).unwrap_or_default());
    let mut epoch = pieces.number();
    let length = match pieces.number() {
        0 => SEGMENT_BYTES,
        other => other,
    };
    let mut segment = header(epoch, length);
    for _ in 0..RECORDS_MAX {
        if pieces.is_empty() {
            break;
        }
        let next = record(&mut segment, epoch, &mut pieces);
        if let Some(next) = next {
            segment.resize(segment.len().max(SEGMENT_BYTES as usize), 0);
            write(disk, epoch, &segment);
            epoch = next;
            segment = header(epoch, length);
        }
    }
    segment.resize(segment.len().max(SEGMENT_BYTES as usize), 0);
    write(disk, epoch, &segment);
}

fn write(disk: &MemDisk, epoch: u64, bytes: &[u8]) {
    let path = Path::new(LOG_DIR).join(format!("{epoch:016}.seg"));
    let file = disk.open(&path, Open::Create).expect("a disk in memory");
    file.write_at(bytes, 0).expect("a disk in memory");
}

fn header(epoch: u64, length: u64) -> Vec<u8> {
    let mut head = b"WLseg\r\n\x1a".to_vec();
    head.extend_from_slice(&1u32.to_le_bytes());
    head.extend_from_slice(&epoch.to_le_bytes());
    head.extend_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c_append(0x574c_5347, &head);
    head.extend_from_slice(&crc.to_le_bytes());
    head.resize(DATA_START, 0);
    head
}

/// Adds a record; the next segment's epoch if it is a seal.
fn record(segment: &mut Vec<u8>, epoch: u64, pieces: &mut Pieces<'_>) -> Option<u64> {
    let (kind, group) = (pieces.byte(), pieces.number() as u16);
    let (index, term, node) = (pieces.number(), pieces.number(), pieces.number());
    let (synced, damage) = (pieces.number() as u32, pieces.byte());
    let payload = pieces.bytes(PAYLOAD_BYTES_MAX);
    let mut record = (payload.len() as u32).to_le_bytes().to_vec();
    record.extend_from_slice(&group.to_le_bytes());
    record.extend_from_slice(&[kind % 9, 0]);
    for number in [epoch, index, term, node] {
        record.extend_from_slice(&number.to_le_bytes());
    }
    record.extend_from_slice(&synced.to_le_bytes());
    record.extend_from_slice(&[0; 4]);
    record.extend_from_slice(payload);
    let crc = crc32c::crc32c_append(0x574c_5231, &record);
    segment.extend_from_slice(b"WLr1");
    segment.extend_from_slice(&crc.to_le_bytes());
    let at = segment.len();
    segment.extend_from_slice(&record);
    if damage != 0 {
        let place = at + usize::from(damage) % record.len();
        segment[place] ^= damage;
    }
    segment.resize(segment.len().next_multiple_of(8), 0);
    (kind % 9 == 5 && damage == 0).then_some(index)
}
