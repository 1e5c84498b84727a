//! A checkpoint's way to another member: the file that was gathered from chunks, read and taken in.

use std::path::Path;
use std::sync::Arc;

use storage::{Batch, CheckpointStore, Disk, MemDisk, Open, Spooled, read_spooled};

use crate::checkpoint::{Rows, loaded_twice, rows_as_bytes, rows_of, shard, shard_rows};
use crate::pieces::Pieces;
use crate::{allocation, says_why};

/// The first byte of an input: the bytes of the file as they are. Otherwise rows, in pieces of so many.
const RAW: u8 = 255;
const FILE: &str = "transfer/1.part";
const CACHE_BYTES: usize = 256 * 1024;
/// Of so many files one is taken into a store.
const STORE_EVERY: u32 = 32;
const ROWS: u32 = 1;
const END: u32 = 2;

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let rows: Rows = shard_rows().into_iter().collect();
    let few: Rows = rows.iter().take(3).map(|(key, value)| (key.clone(), value.clone())).collect();
    vec![
        [vec![100, 0], rows_as_bytes(&rows)].concat(),
        [vec![1, 0], rows_as_bytes(&few)].concat(),
        [vec![RAW], file(&rows, 4)].concat(),
        [vec![RAW], file(&Rows::new(), 1)].concat(),
    ]
}

pub(crate) fn run(bytes: &[u8]) {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    let content = match choice {
        RAW => rest.to_vec(),
        per_piece => {
            let mut pieces = Pieces(rest);
            let damage = pieces.byte();
            let mut content = file(&rows_of(&mut pieces), usize::from(per_piece).max(1));
            if damage != 0 {
                let at = usize::from(damage) * content.len() / 256;
                content[at] ^= damage;
            }
            content
        }
    };
    let disk = MemDisk::new();
    put(&disk, &content);
    let (rows, read) = allocation::within(1024 * 1024 + 64 * content.len(), || read(&disk, Path::new(FILE)));
    // A store costs a thousand times what reading does: some files get one.
    let gets_store = crc32c::crc32c(&content).is_multiple_of(STORE_EVERY);
    match read {
        Err(why) => {
            says_why(&why);
            if gets_store {
                refused(&disk);
            }
        }
        Ok(spooled) => {
            assert_eq!(spooled.bytes, content.len() as u64);
            if gets_store {
                taken_in(&disk, &rows);
            }
            loaded_twice(shard, &rows);
        }
    }
}

/// The rows of a file, as far as it could be read.
fn read(disk: &MemDisk, path: &Path) -> (Rows, Result<Spooled, String>) {
    let mut rows = Rows::new();
    let read = read_spooled(disk, path, &mut |table, key, value| {
        rows.insert((table, key.to_vec()), value.to_vec());
        Ok(())
    });
    (rows, read.map_err(|error| error.to_string()))
}

fn store(disk: &MemDisk) -> CheckpointStore {
    let store = CheckpointStore::open(Arc::new(disk.clone()), Path::new("shards/1.redb"), CACHE_BYTES);
    let store = store.expect("a disk in memory");
    let mut batch = Batch::new();
    batch.put(3, b"before", b"it");
    store.write(&batch).expect("there is room");
    store
}

/// A file that is refused leaves what was there.
fn refused(disk: &MemDisk) {
    let store = store(disk);
    assert!(store.install(Path::new(FILE)).is_err());
    assert_eq!(store.get(3, b"before").expect("it can be read").as_deref(), Some(&b"it"[..]));
    assert_eq!(store.count(3).expect("it can be read"), 1);
}

/// A file that is taken in comes out again with the same rows, and nothing of what was there before.
fn taken_in(disk: &MemDisk, rows: &Rows) {
    let store = store(disk);
    store.install(Path::new(FILE)).expect("it was read whole");
    let out = Path::new("transfer/1-out.spool");
    store.spool(out).expect("there is room");
    let (again, read) = read(disk, out);
    assert!(read.is_ok(), "{read:?}");
    assert_eq!(&again, rows);
}

fn put(disk: &MemDisk, content: &[u8]) {
    disk.create_dir_all(Path::new("transfer")).expect("a disk in memory");
    let file = disk.open(Path::new(FILE), Open::Create).expect("a disk in memory");
    file.write_at(content, 0).expect("a disk in memory");
}

/// A file as `docs/formats/checkpoint-file.md` says, with so many rows in a piece.
fn file(rows: &Rows, per_piece: usize) -> Vec<u8> {
    let mut head = b"WLspool\n".to_vec();
    head.extend_from_slice(&1u32.to_le_bytes());
    let crc = crc32c::crc32c_append(0x574c_5350, &head);
    head.extend_from_slice(&crc.to_le_bytes());
    let all: Vec<_> = rows.iter().collect();
    let mut number = 0;
    for some in all.chunks(per_piece) {
        let mut content = Vec::new();
        for ((table, key), value) in some {
            content.push(*table);
            content.extend_from_slice(&(key.len() as u32).to_le_bytes());
            content.extend_from_slice(&(value.len() as u32).to_le_bytes());
            content.extend_from_slice(key);
            content.extend_from_slice(value);
        }
        piece(&mut head, &mut number, ROWS, &content);
    }
    piece(&mut head, &mut number, END, &(all.len() as u64).to_le_bytes());
    head
}

fn piece(file: &mut Vec<u8>, number: &mut u64, kind: u32, content: &[u8]) {
    let crc = crc32c::crc32c_append(0x574c_5350, &number.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &kind.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &(content.len() as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc, content);
    file.extend_from_slice(&kind.to_le_bytes());
    file.extend_from_slice(&(content.len() as u32).to_le_bytes());
    file.extend_from_slice(&crc.to_le_bytes());
    file.extend_from_slice(content);
    *number += 1;
}
