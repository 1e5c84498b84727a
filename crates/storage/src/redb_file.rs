//! Lets redb write through our [`Disk`](crate::Disk), or onto a copy that is thrown away.
//!
//! redb keeps a small part of a transaction in memory, writes the rest page by page, and reads it back when it commits. Here
//! pages wait for the sync in memory, and go to the disk in long runs, each of them once.
//!
//! Must never hide a failed sync: `checkpoint.rs` asks for it after every error.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use model::{Mutant, mutant};
use parking_lot::{Mutex, RwLock};
use redb::StorageBackend;

use crate::disk::DiskFile;

/// What one write to the disk has at most, and what a sync of the log may have to wait for.
const RUN_BYTES_MAX: usize = 256 * 1024;
/// Pages that wait for a sync; more go to the disk before it.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A file of a disk, for redb.
pub(crate) struct RedbFile {
    file: Box<dyn DiskFile>,
    /// What was written since the last sync.
    waiting: RwLock<Pages>,
    /// Whoever changes something has it, also while it goes to the disk; who reads does not wait for that.
    changing: Mutex<()>,
    sync_failed: Arc<AtomicBool>,
}

impl RedbFile {
    pub(crate) fn new(file: Box<dyn DiskFile>, sync_failed: Arc<AtomicBool>) -> RedbFile {
        RedbFile { file, waiting: RwLock::default(), changing: Mutex::new(()), sync_failed }
    }

    /// Writes what waits. Should that fail, all of it waits on: the transaction is given up.
    fn write_waiting(&self) -> io::Result<()> {
        let mut written = 0;
        for (offset, run) in self.waiting.read().runs() {
            self.file.write_at(&run, offset)?;
            written += run.len();
            if written >= RUN_BYTES_MAX {
                self.synced(self.file.write_out())?;
                written = 0;
            }
        }
        drop(std::mem::take(&mut *self.waiting.write()));
        Ok(())
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
        let waiting = self.waiting.read();
        if waiting.0.is_empty() {
            drop(waiting);
            return self.file.read_at(out, offset);
        }
        if waiting.has_all(offset, out.len()) {
            waiting.show(offset, out);
            return Ok(());
        }
        self.file.read_at(out, offset)?;
        waiting.show(offset, out);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let _one = self.changing.lock();
        debug_assert!(
            len.is_multiple_of(PAGE as u64),
            "a whole page at the end of {len} bytes would make them more"
        );
        self.waiting.write().cut(len);
        // A full disk must show here, where redb can still give up the transaction, not in a later write.
        if len > self.file.len()? { self.file.allocate(len) } else { self.file.set_len(len) }
    }

    fn sync_data(&self) -> io::Result<()> {
        let _one = self.changing.lock();
        self.write_waiting()?;
        if mutant::planted(Mutant::CheckpointNotSynced) {
            return Ok(());
        }
        self.synced(self.file.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let _one = self.changing.lock();
        let count = {
            let mut waiting = self.waiting.write();
            waiting.write(offset, data, |number| read_page(&*self.file, self.file.len()?, number))?;
            waiting.0.len()
        };
        if count * PAGE > WAITING_BYTES_MAX { self.write_waiting() } else { Ok(()) }
    }
}

const PAGE: usize = 4096;

/// A page of a file; zeros from `end` on.
fn read_page(file: &dyn DiskFile, end: u64, number: u64) -> io::Result<Box<[u8; PAGE]>> {
    let (mut page, start) = (Box::new([0; PAGE]), number * PAGE as u64);
    let length = end.saturating_sub(start).min(PAGE as u64);
    file.read_at(&mut page[..length as usize], start)?;
    Ok(page)
}

/// Pages of a file in memory, by their numbers.
#[derive(Default)]
struct Pages(BTreeMap<u64, Box<[u8; PAGE]>>);

impl Pages {
    /// Changes bytes. A page that is not here and changes in part is read first.
    fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        read: impl Fn(u64) -> io::Result<Box<[u8; PAGE]>>,
    ) -> io::Result<()> {
        for (number, start, at, length) in pieces(offset, data.len()) {
            let page = match self.0.entry(number) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(none) if length < PAGE => none.insert(read(number)?),
                Entry::Vacant(none) => none.insert(Box::new([0; PAGE])),
            };
            page[start..start + length].copy_from_slice(&data[at..at + length]);
        }
        Ok(())
    }

    /// Copies what is here of these bytes over `out`.
    fn show(&self, offset: u64, out: &mut [u8]) {
        for (number, start, at, length) in pieces(offset, out.len()) {
            if let Some(page) = self.0.get(&number) {
                out[at..at + length].copy_from_slice(&page[start..start + length]);
            }
        }
    }

    fn has_all(&self, offset: u64, length: usize) -> bool {
        pieces(offset, length).all(|(number, ..)| self.0.contains_key(&number))
    }

    /// The file ends here now.
    fn cut(&mut self, len: u64) {
        drop(self.0.split_off(&len.div_ceil(PAGE as u64)));
    }

    /// All of them, those side by side together, with the offsets where they begin.
    fn runs(&self) -> impl Iterator<Item = (u64, Vec<u8>)> + '_ {
        let mut pages = self.0.iter().peekable();
        std::iter::from_fn(move || {
            let (&first, page) = pages.next()?;
            let (mut run, mut next) = (page.to_vec(), first + 1);
            while run.len() < RUN_BYTES_MAX
                && let Some((_, page)) = pages.next_if(|(number, _)| **number == next)
            {
                run.extend_from_slice(&page[..]);
                next += 1;
            }
            Some((first * PAGE as u64, run))
        })
    }
}

/// A file that is only read; what redb writes (a repair, say) stays in memory and is forgotten.
pub(crate) struct Overlay {
    file: Box<dyn DiskFile>,
    state: Mutex<OverlayState>,
}

struct OverlayState {
    len: u64,
    /// Bytes of the file that still show.
    shown: u64,
    pages: Pages,
}

impl Overlay {
    pub(crate) fn new(file: Box<dyn DiskFile>) -> io::Result<Overlay> {
        let len = file.len()?;
        let state = OverlayState { len, shown: len, pages: Pages::default() };
        Ok(Overlay { file, state: Mutex::new(state) })
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
        for (number, start, at, length) in pieces(offset, out.len()) {
            if !state.pages.0.contains_key(&number) {
                let page = read_page(&*self.file, state.shown, number)?;
                out[at..at + length].copy_from_slice(&page[start..start + length]);
            }
        }
        state.pages.show(offset, out);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.len = len;
        if len < state.shown {
            state.shown = len;
            state.pages.cut(len);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let OverlayState { len, shown, pages } = &mut *self.state.lock();
        pages.write(offset, data, |number| read_page(&*self.file, *shown, number))?;
        *len = (*len).max(offset + data.len() as u64);
        Ok(())
    }
}
