//! A file whose whole pages go to the disk past the system's cache.
//!
//! The cache is of no use to the log: what is written once is seldom read, and a sync has to look for it there. A write
//! that goes straight to the disk and says that it must stay is one call instead of two, and 10 to 25 % shorter
//! (docs/decisions/0026-the-log-goes-past-the-cache.md). Where the file system cannot do that, or what is written is no
//! whole pages, it goes the usual way; the system keeps the two coherent.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};

use crate::disk::{DiskFile, Open, RealFile};

/// What memory, length and offset of such a write are multiples of: no disk asks for more.
const PAGE_BYTES: usize = 4096;
/// The most that is written at once; more goes the usual way, which has no copy of its own.
const DIRECT_BYTES_MAX: usize = 1024 * 1024;

/// File systems whose kernel code syncs what such a write has written: ext4 and xfs, by the numbers that `statfs` tells.
const KNOWN: [u64; 2] = [0xef53, 0x5846_5342];

/// Room that is kept from write to write.
const KEPT_BYTES_MAX: usize = 256 * 1024;

/// A file and its second way to the disk.
pub(crate) struct DirectFile {
    usual: RealFile,
    direct: Option<File>,
    /// The disk refused it once: it would again.
    is_refused: AtomicBool,
    pages: Mutex<Pages>,
}

impl DirectFile {
    /// The same file twice. Without the second way where there is none, or none that is known to be good.
    pub(crate) fn new(usual: RealFile, path: &Path, how: Open) -> DirectFile {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(OFlags::DIRECT.bits() as i32);
        let is_read = how == Open::Read;
        let direct = if is_read { None } else { options.open(path).ok().filter(keeps_its_word) };
        DirectFile { usual, direct, is_refused: AtomicBool::new(false), pages: Mutex::default() }
    }

    /// Writes past the cache. False: it must go the usual way, whatever of it has been written.
    fn write(&self, data: &[u8], offset: u64, flags: ReadWriteFlags) -> io::Result<bool> {
        let Some(direct) = &self.direct else { return Ok(false) };
        let is_whole = data.len().is_multiple_of(PAGE_BYTES) && offset.is_multiple_of(PAGE_BYTES as u64);
        if !is_whole || data.len() > DIRECT_BYTES_MAX || self.is_refused.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mut pages = self.pages.lock();
        let written = rustix::io::pwritev2(direct, &[IoSlice::new(pages.filled(data))], offset, flags);
        pages.rest();
        match written {
            Ok(bytes) => Ok(bytes == data.len()),
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.is_refused.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Whether a direct write that must stay does stay, on this file system. On some that lie behind a network or another
/// program the call returns without having asked for that, where `fdatasync` does ask.
fn keeps_its_word(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|facts| KNOWN.contains(&(facts.f_type as u64)))
}

impl DiskFile for DirectFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.usual.read_at(buffer, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if self.write(data, offset, ReadWriteFlags::empty())? {
            return Ok(());
        }
        self.usual.write_at(data, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.usual.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.usual.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.usual.allocate(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.usual.sync_data()
    }

    fn write_synced_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if self.write(data, offset, ReadWriteFlags::DSYNC)? {
            return Ok(());
        }
        self.usual.write_synced_at(data, offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.usual.sync_all()
    }
}

/// Memory that begins on a page.
#[derive(Default)]
struct Pages {
    bytes: Vec<u8>,
}

impl Pages {
    /// Gives up room that only large writes need.
    fn rest(&mut self) {
        if self.bytes.len() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
    }

    /// A copy of `data` that begins on a page.
    fn filled(&mut self, data: &[u8]) -> &[u8] {
        if self.bytes.len() < data.len() + PAGE_BYTES {
            self.bytes = vec![0; data.len() + PAGE_BYTES];
        }
        // Where the next page begins, wherever the memory is.
        let begin = self.bytes.as_ptr().addr().next_multiple_of(PAGE_BYTES) - self.bytes.as_ptr().addr();
        let pages = &mut self.bytes[begin..begin + data.len()];
        pages.copy_from_slice(data);
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, RealDisk};

    const PAGE: u64 = PAGE_BYTES as u64;

    #[test]
    fn what_goes_past_the_cache_and_what_does_not_is_read_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path()).unwrap();
        let file = disk.open_direct(Path::new("log"), Open::Create).unwrap();
        file.allocate(64 * PAGE).unwrap();
        let mut expected = vec![0; 64 * PAGE_BYTES];
        // (what, byte, offset, length)
        for (what, byte, offset, length) in [
            ("two pages", 1, 0, 2 * PAGE_BYTES),
            ("a few bytes over the end of a page", 2, PAGE - 5, 10),
            ("one of these pages again", 3, PAGE, PAGE_BYTES),
            ("a page that does not begin on one", 4, 3 * PAGE + 1, PAGE_BYTES),
            ("many pages", 5, 8 * PAGE, 50 * PAGE_BYTES),
        ] {
            for is_synced in [false, true] {
                let data = vec![byte + 10 * u8::from(is_synced); length];
                match is_synced {
                    true => file.write_synced_at(&data, offset).unwrap(),
                    false => file.write_at(&data, offset).unwrap(),
                }
                expected[offset as usize..][..length].copy_from_slice(&data);
                let mut read = vec![0; expected.len()];
                file.read_at(&mut read, 0).unwrap();
                assert!(read == expected, "{what}, synced: {is_synced}");
            }
        }
        assert_eq!(file.len().unwrap(), 64 * PAGE);
    }

    #[test]
    fn more_than_it_takes_at_once_is_written_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path()).unwrap();
        let file = disk.open_direct(Path::new("log"), Open::Create).unwrap();
        let data = vec![7; DIRECT_BYTES_MAX + PAGE_BYTES];
        file.write_synced_at(&data, PAGE).unwrap();
        let mut read = vec![0; data.len()];
        file.read_at(&mut read, PAGE).unwrap();
        assert!(read == data);
    }

    #[test]
    fn a_copy_begins_on_a_page() {
        let mut pages = Pages::default();
        for length in [PAGE_BYTES, 8 * PAGE_BYTES, PAGE_BYTES] {
            let data = vec![9; length];
            let copy = pages.filled(&data);
            assert!(copy.as_ptr().addr().is_multiple_of(PAGE_BYTES) && copy == data);
        }
    }
}
