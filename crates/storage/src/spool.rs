//! The whole content of a checkpoint as one checksummed file, and back (`docs/formats/checkpoint-file.md`).
//!
//! Reads one state and holds one piece of it in memory. A file that is cut, changed or reordered is refused
//! before anything counts. Next: `checkpoint.rs`.

use std::path::Path;

use crate::batch::Batch;
use crate::checkpoint::{Amend, CheckpointStore, Next, Snapshot};
use crate::disk::{Disk, DiskFile, Open};
use crate::error::{Error, Result};

const MAGIC: [u8; 8] = *b"WLspool\n";
const VERSION: u32 = 1;
const FILE_HEADER_BYTES: u64 = 16;
/// Kind, length, checksum of a piece.
const PIECE_HEADER_BYTES: usize = 12;
const ROW_HEADER_BYTES: usize = 9;
/// A piece ends with the row that exceeds this; one transaction installs one piece.
const PIECE_BYTES: usize = 1024 * 1024;
/// Nothing we write makes a larger piece: one row of the largest value beyond the limit above.
const PIECE_BYTES_MAX: usize = 256 * 1024 * 1024;
const CRC_SEED: u32 = 0x574c_5350;

/// Whether a row is taken: its table, key and value.
pub type Takes<'a> = &'a mut dyn FnMut(u8, &[u8], &[u8]) -> bool;

const ROWS: u32 = 1;
const END: u32 = 2;

/// A file made by [`CheckpointStore::spool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spooled {
    /// Rows in it.
    pub rows: u64,
    /// Its length.
    pub bytes: u64,
}

/// Writes one state into a file, but for the rows that `takes` does not take.
pub(crate) fn spool(snapshot: &Snapshot, path: &Path, takes: Takes<'_>) -> Result<Spooled> {
    let failed = |source| Error::io("write", path, source);
    let file = snapshot.disk.open(path, Open::Create).map_err(failed)?;
    file.set_len(0).map_err(failed)?;
    let mut head = [0; FILE_HEADER_BYTES as usize];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let crc = crc32c::crc32c_append(CRC_SEED, &head[..12]);
    head[12..].copy_from_slice(&crc.to_le_bytes());
    file.write_at(&head, 0).map_err(failed)?;
    let mut writer =
        PieceWriter { file: &*file, path, offset: FILE_HEADER_BYTES, pieces: 0, buffer: Vec::new() };
    let mut rows = 0u64;
    for table in snapshot.tables()? {
        snapshot.for_each(table, &mut |key, value| {
            if !takes(table, key, value) {
                return Ok(());
            }
            rows += 1;
            writer.row(table, key, value)
        })?;
    }
    writer.flush(ROWS)?;
    writer.buffer.extend_from_slice(&rows.to_le_bytes());
    writer.flush(END)?;
    let bytes = writer.offset;
    file.sync_all().map_err(failed)?;
    snapshot.disk.sync_dir(path.parent().unwrap_or(Path::new(""))).map_err(failed)?;
    Ok(Spooled { rows, bytes })
}

struct PieceWriter<'a> {
    file: &'a dyn DiskFile,
    path: &'a Path,
    offset: u64,
    pieces: u64,
    buffer: Vec<u8>,
}

impl PieceWriter<'_> {
    fn row(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<()> {
        self.buffer.push(table);
        self.buffer.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(key);
        self.buffer.extend_from_slice(value);
        if self.buffer.len() >= PIECE_BYTES { self.flush(ROWS) } else { Ok(()) }
    }

    fn flush(&mut self, kind: u32) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let crc = piece_crc(self.pieces, kind, &self.buffer);
        let mut head = [0; PIECE_HEADER_BYTES];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[4..8].copy_from_slice(&(self.buffer.len() as u32).to_le_bytes());
        head[8..].copy_from_slice(&crc.to_le_bytes());
        let failed = |source| Error::io("write", self.path, source);
        self.file.write_at(&head, self.offset).map_err(failed)?;
        self.file.write_at(&self.buffer, self.offset + PIECE_HEADER_BYTES as u64).map_err(failed)?;
        self.offset += (PIECE_HEADER_BYTES + self.buffer.len()) as u64;
        self.pieces += 1;
        self.buffer.clear();
        Ok(())
    }
}

/// The number of the piece is part of it, so that pieces cannot change places.
fn piece_crc(number: u64, kind: u32, content: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(CRC_SEED, &number.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &kind.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &(content.len() as u32).to_le_bytes());
    crc32c::crc32c_append(crc, content)
}

/// Called with a table, a key and a value.
pub type OnSpooled<'a> = &'a mut dyn FnMut(u8, &[u8], &[u8]) -> Result<()>;

/// Reads a spooled file, row by row, tables in their order; `on_row` ends it by an error. What is wrong with
/// the file is found at the latest at its end: what came before that must not count yet.
pub fn read_spooled(disk: &dyn Disk, path: &Path, on_row: OnSpooled<'_>) -> Result<Spooled> {
    read(disk, path, &mut |content| {
        let mut refused = Ok(());
        each_row(content, |table, key, value| {
            if refused.is_ok() {
                refused = on_row(table, key, value);
            }
        })
        .ok_or_else(|| damaged(path, 0, "a row is cut"))?;
        refused
    })
}

/// Replaces the content of `store` by that of the file.
pub(crate) fn install(store: &CheckpointStore, path: &Path, amend: Amend<'_>) -> Result<Spooled> {
    // All of it is verified before the first row is written.
    let spooled = read(store.disk(), path, &mut |_| Ok(()))?;
    store.clear_next()?;
    let mut batch = Batch::new();
    read(store.disk(), path, &mut |content| {
        batch.clear();
        let filled = each_row(content, |table, key, value| batch.put(table, key, value));
        filled.ok_or_else(|| damaged(path, 0, "a row is cut"))?;
        store.write_next(&batch)
    })?;
    amend(Next(store))?;
    store.swap()?;
    Ok(spooled)
}

/// Reads and verifies a spooled file, piece by piece.
fn read(disk: &dyn Disk, path: &Path, on_rows: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<Spooled> {
    let failed = |source| Error::io("read", path, source);
    let file = disk.open(path, Open::Read).map_err(failed)?;
    let length = file.len().map_err(failed)?;
    let mut head = [0; FILE_HEADER_BYTES as usize];
    if length < FILE_HEADER_BYTES {
        return Err(damaged(path, 0, "it is shorter than its header"));
    }
    file.read_at(&mut head, 0).map_err(failed)?;
    let crc = crc32c::crc32c_append(CRC_SEED, &head[..12]);
    if head[..8] != MAGIC || head[12..] != crc.to_le_bytes() {
        return Err(damaged(path, 0, "it does not begin like a spooled checkpoint"));
    }
    let found = le_u32(&head[8..]);
    if found != VERSION {
        return Err(Error::Version { path: path.to_owned(), found, known: VERSION });
    }
    let (mut offset, mut pieces, mut rows) = (FILE_HEADER_BYTES, 0, 0u64);
    let mut content = Vec::new();
    loop {
        let kind = read_piece(&*file, path, (offset, length), pieces, &mut content)?;
        offset += (PIECE_HEADER_BYTES + content.len()) as u64;
        pieces += 1;
        if kind == ROWS {
            let count = each_row(&content, |_, _, _| {});
            rows += count.ok_or_else(|| damaged(path, offset, "a row is cut"))?;
            on_rows(&content)?;
            continue;
        }
        if kind != END || content != rows.to_le_bytes() || offset != length {
            return Err(damaged(path, offset, "it does not end as it should"));
        }
        return Ok(Spooled { rows, bytes: offset });
    }
}

fn read_piece(
    file: &dyn DiskFile,
    path: &Path,
    (offset, length): (u64, u64),
    number: u64,
    content: &mut Vec<u8>,
) -> Result<u32> {
    let failed = |source| Error::io("read", path, source);
    if offset + PIECE_HEADER_BYTES as u64 > length {
        return Err(damaged(path, offset, "it ends too early"));
    }
    let mut head = [0; PIECE_HEADER_BYTES];
    file.read_at(&mut head, offset).map_err(failed)?;
    let (kind, bytes, crc) = (le_u32(&head), le_u32(&head[4..]) as usize, le_u32(&head[8..]));
    if bytes > PIECE_BYTES_MAX || offset + (PIECE_HEADER_BYTES + bytes) as u64 > length {
        return Err(damaged(path, offset, "it ends too early"));
    }
    content.resize(bytes, 0);
    file.read_at(content, offset + PIECE_HEADER_BYTES as u64).map_err(failed)?;
    if piece_crc(number, kind, content) != crc {
        return Err(damaged(path, offset, "the checksum of a piece is wrong"));
    }
    Ok(kind)
}

/// Calls `on_row` with every row of a piece; how many there were, `None` if one is cut.
fn each_row(mut content: &[u8], mut on_row: impl FnMut(u8, &[u8], &[u8])) -> Option<u64> {
    let mut rows = 0;
    while !content.is_empty() {
        let (head, rest) = content.split_at_checked(ROW_HEADER_BYTES)?;
        let (key, rest) = rest.split_at_checked(le_u32(&head[1..]) as usize)?;
        let (value, rest) = rest.split_at_checked(le_u32(&head[5..]) as usize)?;
        on_row(head[0], key, value);
        rows += 1;
        content = rest;
    }
    Some(rows)
}

fn le_u32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn damaged(path: &Path, offset: u64, what: &str) -> Error {
    let what = format!("{what} (transfer it again)");
    Error::Damaged { path: path.to_owned(), offset, what }
}
