//! Lets redb write through our [`Disk`](crate::Disk), or onto a copy that is thrown away.
//!
//! Must never hide a failed sync: `checkpoint.rs` asks for it after every error.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use model::{Mutant, mutant};
use parking_lot::Mutex;
use redb::StorageBackend;

use crate::disk::{DiskFile, WRITE_OUT_BYTES};

/// A file of a disk, for redb.
pub(crate) struct RedbFile {
    file: Box<dyn DiskFile>,
    /// What was written since it was last brought to the disk.
    written_bytes: AtomicUsize,
    sync_failed: Arc<AtomicBool>,
}

impl RedbFile {
    pub(crate) fn new(file: Box<dyn DiskFile>, sync_failed: Arc<AtomicBool>) -> RedbFile {
        RedbFile { file, written_bytes: AtomicUsize::new(0), sync_failed }
    }

    fn synced(&self, outcome: io::Result<()>) -> io::Result<()> {
        outcome.inspect_err(|_| self.sync_failed.store(true, Relaxed))
    }
}

impl fmt::Debug for RedbFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedbFile")
    }
}

impl StorageBackend for RedbFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        // A full disk must show here, where redb can still give up the transaction, not in a later write.
        if len > self.file.len()? { self.file.allocate(len) } else { self.file.set_len(len) }
    }

    fn sync_data(&self) -> io::Result<()> {
        if mutant::planted(Mutant::CheckpointNotSynced) {
            return Ok(());
        }
        self.written_bytes.store(0, Relaxed);
        self.synced(self.file.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(data, offset)?;
        if self.written_bytes.fetch_add(data.len(), Relaxed) + data.len() < WRITE_OUT_BYTES {
            return Ok(());
        }
        self.written_bytes.store(0, Relaxed);
        self.synced(self.file.write_out())
    }
}

const PAGE: usize = 4096;

/// A file that is only read; what redb writes (a repair, say) stays in memory and is forgotten.
pub(crate) struct Overlay {
    file: Box<dyn DiskFile>,
    state: Mutex<OverlayState>,
}

struct OverlayState {
    len: u64,
    /// Bytes of the file that still show.
    shown: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

impl Overlay {
    pub(crate) fn new(file: Box<dyn DiskFile>) -> io::Result<Overlay> {
        let len = file.len()?;
        let state = OverlayState { len, shown: len, pages: BTreeMap::new() };
        Ok(Overlay { file, state: Mutex::new(state) })
    }

    fn read_page(&self, state: &OverlayState, page: u64) -> io::Result<Box<[u8; PAGE]>> {
        if let Some(found) = state.pages.get(&page) {
            return Ok(found.clone());
        }
        let mut bytes = Box::new([0; PAGE]);
        let start = page * PAGE as u64;
        let length = state.shown.saturating_sub(start).min(PAGE as u64) as usize;
        self.file.read_at(&mut bytes[..length], start)?;
        Ok(bytes)
    }
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Overlay")
    }
}

/// Splits `length` bytes from `offset` on into (page, start in it, start in the buffer, length).
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let start = (at % PAGE as u64) as usize;
        let piece = (PAGE - start).min(length - done);
        let found = (at / PAGE as u64, start, done, piece);
        done += piece;
        (piece > 0).then_some(found)
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        if offset + out.len() as u64 > state.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (page, start, at, length) in pieces(offset, out.len()) {
            let bytes = self.read_page(&state, page)?;
            out[at..at + length].copy_from_slice(&bytes[start..start + length]);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.len = len;
        if len < state.shown {
            state.shown = len;
            state.pages.retain(|page, _| page * (PAGE as u64) < len);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        for (page, start, at, length) in pieces(offset, data.len()) {
            let mut bytes = self.read_page(&state, page)?;
            bytes[start..start + length].copy_from_slice(&data[at..at + length]);
            state.pages.insert(page, bytes);
        }
        state.len = state.len.max(offset + data.len() as u64);
        Ok(())
    }
}
