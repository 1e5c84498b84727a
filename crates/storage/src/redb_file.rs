//! Lets redb write through our [`Disk`](crate::Disk), or onto a copy that is thrown away.
//!
//! redb keeps a small part of a transaction in memory, writes the rest page by page, and reads it back when it commits. Here
//! pages wait for the sync in memory, and go to the disk in long runs.
//!
//! Must never hide a failed sync: redb drops the errors of some writes, so nothing is synced after one has failed, and
//! `checkpoint.rs` asks for it after every error.

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

/// What one write to the disk has at most.
const RUN_BYTES_MAX: usize = 256 * 1024;
/// What is brought to the disk at once, about: what a sync of the log may have to wait for.
const PIECE_BYTES_MIN: usize = 256 * 1024;
/// Pieces of a sync, so many at most, however much waits: on a slow disk it would never come to its end.
const PIECES_MAX: usize = 64;
/// Pages that wait for a sync; more go to the disk before it.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A file of a disk, for redb.
pub(crate) struct RedbFile {
    file: Box<dyn DiskFile>,
    /// What was written since the last sync.
    waiting: RwLock<Pages>,
    waiting_bytes_max: usize,
    /// Whoever changes something has it, also while it goes to the disk; who only reads pages of this file does not wait for that.
    changing: Mutex<Last>,
    sync_failed: Arc<AtomicBool>,
}

/// What was changed last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The file became longer, and nothing was written since.
    Longer,
    Another,
}

impl RedbFile {
    pub(crate) fn new(file: Box<dyn DiskFile>, sync_failed: Arc<AtomicBool>) -> RedbFile {
        let (waiting, changing) = (RwLock::default(), Mutex::new(Last::Another));
        RedbFile { file, waiting, waiting_bytes_max: WAITING_BYTES_MAX, changing, sync_failed }
    }

    /// Writes what waits; `written` is told how much of it, run by run. Should that fail, all of it waits on: the transaction is
    /// given up.
    fn write_waiting(&self, mut written: impl FnMut(usize) -> io::Result<()>) -> io::Result<()> {
        for (offset, run) in self.waiting.read().runs() {
            self.file.write_at(&run, offset)?;
            written(run.len())?;
        }
        // Dropped when nobody waits for it any more.
        let gone = std::mem::take(&mut *self.waiting.write());
        drop(gone);
        Ok(())
    }

    /// The same, a piece at a time: whoever syncs the log would wait for all of it.
    fn write_out_waiting(&self) -> io::Result<()> {
        let piece = PIECE_BYTES_MIN.max(self.waiting.read().bytes() / PIECES_MAX);
        let mut since = 0;
        self.write_waiting(|bytes| {
            since += bytes;
            if since < piece {
                return Ok(());
            }
            since = 0;
            self.synced(self.file.write_out())
        })
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
        let mut last = self.changing.lock();
        debug_assert!(
            len.is_multiple_of(PAGE as u64),
            "a whole page at the end of {len} bytes would make them more"
        );
        self.waiting.write().cut(len);
        // A full disk must show here, where redb can still give up the transaction, not in a later write.
        if len <= self.file.len()? {
            return self.file.set_len(len);
        }
        self.file.allocate(len)?;
        *last = Last::Longer;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut last = self.changing.lock();
        if self.sync_failed.load(Relaxed) {
            return Err(io::Error::other("an earlier sync has failed"));
        }
        // redb wants the new length to stay, and lets nobody begin to read meanwhile: what waits is not for this sync.
        if std::mem::replace(&mut *last, Last::Another) == Last::Another {
            self.write_out_waiting()?;
        }
        if mutant::planted(Mutant::CheckpointNotSynced) {
            return Ok(());
        }
        self.synced(self.file.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut last = self.changing.lock();
        *last = Last::Another;
        let bytes = {
            let mut waiting = self.waiting.write();
            waiting.write(offset, data, |number| read_page(&*self.file, self.file.len()?, number))?;
            waiting.bytes()
        };
        // Without a sync: redb may write on behalf of one who reads.
        if bytes > self.waiting_bytes_max { self.write_waiting(|_| Ok(())) } else { Ok(()) }
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

    fn bytes(&self) -> usize {
        self.0.len() * PAGE
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::disk::{Disk as _, Open};
    use crate::mem_disk::MemDisk;

    const PATH: &str = "file";

    fn open(disk: &MemDisk, waiting_bytes_max: usize) -> RedbFile {
        let file = disk.open(Path::new(PATH), Open::Create).unwrap();
        RedbFile { waiting_bytes_max, ..RedbFile::new(file, Arc::default()) }
    }

    /// Numbers that look random.
    fn numbers() -> impl FnMut(u64) -> u64 {
        let mut state = 1u64;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    #[test]
    fn what_was_written_is_read_whether_it_waits_or_not() {
        for waiting_bytes_max in [0, 8 * PAGE, WAITING_BYTES_MAX] {
            let disk = MemDisk::new();
            let file = open(&disk, waiting_bytes_max);
            let (mut model, mut number) = (Vec::new(), numbers());
            for step in 0..3_000u32 {
                match number(20) {
                    0 => {
                        let len = number(40) as usize * PAGE;
                        file.set_len(len as u64).unwrap();
                        model.resize(len, 0);
                    }
                    1 => {
                        file.sync_data().unwrap();
                        let on_disk = disk.read(Path::new(PATH)).unwrap();
                        // One that follows a longer file is for its length alone.
                        if file.waiting.read().0.is_empty() {
                            assert_eq!(on_disk, model, "step {step}");
                        }
                    }
                    what if !model.is_empty() => {
                        let offset = number(model.len() as u64) as usize;
                        let length = number(3 * PAGE as u64).min((model.len() - offset) as u64) as usize;
                        let range = offset..offset + length;
                        if what < 12 {
                            let data = vec![step as u8; length];
                            file.write(offset as u64, &data).unwrap();
                            model[range].copy_from_slice(&data);
                        } else {
                            let mut out = vec![0xff; length];
                            file.read(offset as u64, &mut out).unwrap();
                            assert_eq!(out, model[range], "step {step}");
                        }
                    }
                    _ => {}
                }
            }
            file.write(0, &[]).unwrap();
            file.sync_data().unwrap();
            disk.crash(7);
            assert_eq!(disk.mount().read(Path::new(PATH)).unwrap(), model);
        }
    }

    #[test]
    fn a_sync_for_the_length_leaves_what_waits() {
        let disk = MemDisk::new();
        let file = open(&disk, WAITING_BYTES_MAX);
        file.set_len(2 * PAGE as u64).unwrap();
        file.write(0, &[1; PAGE]).unwrap();
        file.set_len(4 * PAGE as u64).unwrap();
        file.sync_data().unwrap();
        assert_eq!(disk.read(Path::new(PATH)).unwrap(), [0; 4 * PAGE]);
        file.sync_data().unwrap();
        assert_eq!(disk.read(Path::new(PATH)).unwrap()[..PAGE], [1; PAGE]);
    }

    #[test]
    fn nothing_is_synced_after_a_sync_that_failed() {
        let disk = MemDisk::new();
        let file = open(&disk, WAITING_BYTES_MAX);
        file.set_len(1024 * PAGE as u64).unwrap();
        file.write(0, &vec![1; 1024 * PAGE]).unwrap();
        disk.fail_sync(0);
        assert!(file.sync_data().is_err(), "a piece of it was not brought to the disk");
        assert!(file.sync_failed.load(Relaxed));
        assert!(file.sync_data().is_err(), "and the next sync does not know better");
    }
}
