//! A disk in memory that can crash, fail and fill up: for tests and for the simulator.
//!
//! It remembers for each file what was synced and what was not. [`crash`](MemDisk::crash) throws a seeded
//! part of the rest away, sector by sector, as a power cut does; names that were not synced go back, too.
//! Files opened before a crash are dead after it, and so are handles made by [`mount`](MemDisk::mount): a
//! process that "died" cannot write any more.
//!
//! Deterministic: the same calls and the same seed leave the same bytes. Next: `mem_file.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::disk::{Disk, DiskFile, DiskLock, Open};
use crate::mem_file::{Content, PAGE_BYTES, Rng};

/// A disk in memory. A cheap handle.
#[derive(Clone, Default)]
pub struct MemDisk {
    inner: Arc<Mutex<Inner>>,
    /// The life in which this handle works; `None` outlives crashes.
    life: Option<u64>,
}

#[derive(Default)]
struct Inner {
    files: BTreeMap<u64, Content>,
    next_file: u64,
    names: BTreeMap<PathBuf, u64>,
    dirs: BTreeSet<PathBuf>,
    /// Changes of names that were not synced, by directory, oldest first.
    unsynced: BTreeMap<PathBuf, Vec<NameChange>>,
    locks: BTreeSet<PathBuf>,
    /// Crashes so far; a file of an earlier life is dead.
    life: u64,
    capacity_bytes: Option<u64>,
    faults: Faults,
}

#[derive(Default)]
struct Faults {
    /// Syncs that will succeed before one fails.
    syncs_left: Option<u64>,
    /// Reads that will succeed before one fails.
    reads_left: Option<u64>,
    /// Writes and syncs that will succeed before the power goes.
    changes_left: Option<u64>,
    /// The directory whose files alone are counted for that.
    changes_in: Option<PathBuf>,
    power_is_off: bool,
}

/// Names that changed together, with what they meant before.
type NameChange = Vec<(PathBuf, Option<u64>)>;

impl MemDisk {
    /// An empty disk without an end.
    pub fn new() -> MemDisk {
        MemDisk::default()
    }

    /// A handle for one process: it is dead after the next crash, like the process.
    pub fn mount(&self) -> MemDisk {
        let life = Some(self.inner.lock().life);
        MemDisk { inner: self.inner.clone(), life }
    }

    /// Cuts the power and turns it on again. Of what was not synced, `seed` decides what survives: all,
    /// nothing, a beginning, any mixture of sectors, or all but the end of the last write.
    pub fn crash(&self, seed: u64) {
        let mut inner = self.inner.lock();
        let mut rng = Rng::new(seed);
        inner.life += 1;
        inner.locks.clear();
        inner.faults = Faults::default();
        for (_, changes) in std::mem::take(&mut inner.unsynced) {
            let kept = rng.below(changes.len() as u64 + 1) as usize;
            for (path, before) in changes.into_iter().skip(kept).rev().flatten() {
                match before {
                    Some(file) => inner.names.insert(path, file),
                    None => inner.names.remove(&path),
                };
            }
        }
        for file in inner.files.values_mut() {
            file.crash(&mut rng);
        }
        inner.forget_unnamed();
    }

    /// The `n`th sync from now on fails, and what it should have kept is lost by a crash. 0 is the next one.
    pub fn fail_sync(&self, n: u64) {
        self.inner.lock().faults.syncs_left = Some(n);
    }

    /// The `n`th read of a file's bytes from now on fails; those after it succeed. 0 is the next one.
    pub fn fail_read(&self, n: u64) {
        self.inner.lock().faults.reads_left = Some(n);
    }

    /// The power goes during the write or sync after `n` more: it fails, and so does everything until
    /// [`crash`](MemDisk::crash).
    pub fn cut_power_after(&self, n: u64) {
        let mut inner = self.inner.lock();
        inner.faults.changes_left = Some(n);
        inner.faults.changes_in = None;
    }

    /// The same, counting only what befalls the content of files in `dir`.
    pub fn cut_power_in(&self, dir: &Path, n: u64) {
        let mut inner = self.inner.lock();
        inner.faults.changes_left = Some(n);
        inner.faults.changes_in = Some(dir.to_owned());
    }

    /// Whether the power is off.
    pub fn power_is_off(&self) -> bool {
        self.inner.lock().faults.power_is_off
    }

    /// The disk holds this much from now on; `None` is without end. What is there stays.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.inner.lock().capacity_bytes = bytes;
    }

    /// Bytes taken by files.
    pub fn used_bytes(&self) -> u64 {
        self.inner.lock().used_bytes()
    }

    /// Flips a bit of a file, as a failing disk does. Nothing happens if there is no such byte.
    pub fn flip(&self, path: &Path, offset: u64, bit: u8) {
        self.inner.lock().change_raw(path, offset, |byte| byte ^ (1 << (bit % 8)));
    }

    /// Sets a byte of a file behind everybody's back. Nothing happens if there is no such byte.
    pub fn poke(&self, path: &Path, offset: u64, byte: u8) {
        self.inner.lock().change_raw(path, offset, |_| byte);
    }

    /// Cuts a file off at `len` behind everybody's back, as a file system that forgot its last size does.
    /// Nothing happens if there is no such file or it is not longer.
    pub fn truncate(&self, path: &Path, len: u64) {
        let mut inner = self.inner.lock();
        let file = inner.names.get(path).copied();
        if let Some(content) = file.and_then(|file| inner.files.get_mut(&file)) {
            content.truncate_raw(len);
        }
    }

    /// A file's bytes as a reader sees them.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path, Open::Read)?;
        let mut bytes = vec![0; file.len()? as usize];
        file.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn alive(&self) -> io::Result<MutexGuard<'_, Inner>> {
        let inner = self.inner.lock();
        inner.power()?;
        if self.life.is_some_and(|life| life != inner.life) {
            return Err(io::Error::other("this process died in a crash"));
        }
        Ok(inner)
    }
}

impl Inner {
    fn power(&self) -> io::Result<()> {
        if self.faults.power_is_off {
            return Err(io::Error::other("the power is off"));
        }
        Ok(())
    }

    /// Counts a change of a name.
    fn count_rename(&mut self) -> io::Result<()> {
        match self.faults.changes_in {
            Some(_) => self.power(),
            None => self.count_change(),
        }
    }

    /// Counts a write or a sync of a file.
    fn count_write(&mut self, file: u64) -> io::Result<()> {
        let is_in = |dir: &PathBuf| self.names.iter().any(|(path, id)| *id == file && path.starts_with(dir));
        match self.faults.changes_in.as_ref().is_none_or(is_in) {
            true => self.count_change(),
            false => self.power(),
        }
    }

    fn count_change(&mut self) -> io::Result<()> {
        self.power()?;
        match &mut self.faults.changes_left {
            Some(0) => {
                self.faults.power_is_off = true;
                self.power()
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Changes names of one directory, all or none of them.
    fn set_names(&mut self, changes: &[(&Path, Option<u64>)]) {
        let mut undo = NameChange::new();
        for (path, file) in changes {
            let before = match file {
                Some(file) => self.names.insert(path.to_path_buf(), *file),
                None => self.names.remove(*path),
            };
            undo.push((path.to_path_buf(), before));
        }
        let dir = changes[0].0.parent().unwrap_or(Path::new(""));
        self.unsynced.entry(dir.to_owned()).or_default().push(undo);
    }

    fn forget_unnamed(&mut self) {
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.files.retain(|file, _| named.contains(file));
    }

    fn used_bytes(&self) -> u64 {
        // A removed file gives its room back at once, although an open handle still reads it.
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        named.iter().filter_map(|file| self.files.get(file)).map(Content::allocated_bytes).sum()
    }

    fn make_room(&self, file: u64, needed_bytes: u64) -> io::Result<()> {
        let Some(capacity) = self.capacity_bytes else { return Ok(()) };
        let had = self.files.get(&file).map_or(0, Content::allocated_bytes);
        if needed_bytes > had && self.used_bytes() - had + needed_bytes > capacity {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(())
    }

    fn change_raw(&mut self, path: &Path, offset: u64, change: impl Fn(u8) -> u8) {
        let file = self.names.get(path).and_then(|file| self.files.get_mut(file));
        if let Some(file) = file {
            file.change_raw(offset, change);
        }
    }
}

impl Disk for MemDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        let mut inner = self.alive()?;
        let file = match inner.names.get(path) {
            Some(file) => *file,
            None if how == Open::Create => {
                let parent = path.parent().unwrap_or(Path::new(""));
                if parent != Path::new("") && !inner.dirs.contains(parent) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                let file = inner.next_file;
                inner.next_file += 1;
                inner.files.insert(file, Content::default());
                inner.set_names(&[(path, Some(file))]);
                file
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        let life = inner.life;
        Ok(Box::new(MemFile { disk: self.clone(), file, life, writable: how != Open::Read }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let inner = self.alive()?;
        if dir != Path::new("") && !inner.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let all = inner.names.keys().chain(&inner.dirs);
        let mut found: Vec<_> = all.filter(|path| path.parent() == Some(dir)).cloned().collect();
        found.sort();
        Ok(found)
    }

    /// Directories survive crashes at once: nobody here relies on their loss.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut inner = self.alive()?;
        for above in dir.ancestors().filter(|above| *above != Path::new("")) {
            inner.dirs.insert(above.to_owned());
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.alive()?;
        inner.count_rename()?;
        let Some(file) = inner.names.get(from).copied() else { return Err(io::ErrorKind::NotFound.into()) };
        inner.set_names(&[(to, Some(file)), (from, None)]);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.alive()?;
        inner.count_rename()?;
        if !inner.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        inner.set_names(&[(path, None)]);
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let inner = self.alive()?;
        Ok(inner.names.contains_key(path) || inner.dirs.contains(path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut inner = self.alive()?;
        inner.count_rename()?;
        inner.unsynced.remove(dir);
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let inner = self.alive()?;
        Ok(inner.capacity_bytes.map_or(u64::MAX / 2, |capacity| capacity.saturating_sub(inner.used_bytes())))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>> {
        let file = self.open(path, Open::Create)?;
        let mut inner = self.alive()?;
        if !inner.locks.insert(path.to_owned()) {
            return Ok(None);
        }
        let life = inner.life;
        Ok(Some(Box::new(MemLock { disk: self.clone(), path: path.to_owned(), life, file })))
    }
}

struct MemLock {
    disk: MemDisk,
    path: PathBuf,
    life: u64,
    file: Box<dyn DiskFile>,
}

impl DiskLock for MemLock {
    fn file(&self) -> &dyn DiskFile {
        &*self.file
    }
}

impl Drop for MemLock {
    fn drop(&mut self) {
        let mut inner = self.disk.inner.lock();
        if inner.life == self.life {
            inner.locks.remove(&self.path);
        }
    }
}

struct MemFile {
    disk: MemDisk,
    file: u64,
    life: u64,
    writable: bool,
}

impl MemFile {
    fn inner(&self) -> io::Result<MutexGuard<'_, Inner>> {
        let inner = self.disk.alive()?;
        if inner.life != self.life {
            return Err(io::Error::other("this file was opened before the crash"));
        }
        Ok(inner)
    }

    /// Changes the content, if `needed_bytes` of room can be had for it.
    fn change(
        &self,
        room: impl FnOnce(&Content) -> u64,
        change: impl FnOnce(&mut Content),
    ) -> io::Result<()> {
        let mut inner = self.inner()?;
        inner.power()?;
        // The power may go in the middle of it: what was under way survives like all that is not synced.
        let counted = inner.count_write(self.file);
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let gone = || io::Error::other("this file is gone");
        let needed = room(inner.files.get(&self.file).ok_or_else(gone)?);
        inner.make_room(self.file, needed)?;
        change(inner.files.get_mut(&self.file).ok_or_else(gone)?);
        counted
    }

    /// Makes some of the content survive, unless this sync is one that fails.
    fn sync(&self, sync: impl FnOnce(&mut Content)) -> io::Result<()> {
        let mut inner = self.inner()?;
        inner.count_write(self.file)?;
        let left = inner.faults.syncs_left;
        inner.faults.syncs_left = left.and_then(|left| left.checked_sub(1));
        let Some(content) = inner.files.get_mut(&self.file) else { return Ok(()) };
        if left == Some(0) {
            content.lose();
            return Err(io::Error::other("input/output error"));
        }
        sync(content);
        Ok(())
    }

    fn content<T>(&self, read: impl FnOnce(&Content) -> io::Result<T>) -> io::Result<T> {
        let inner = self.inner()?;
        read(inner.files.get(&self.file).ok_or_else(|| io::Error::other("this file is gone"))?)
    }
}

impl DiskFile for MemFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut inner = self.inner()?;
        let left = inner.faults.reads_left;
        inner.faults.reads_left = left.and_then(|left| left.checked_sub(1));
        if left == Some(0) {
            return Err(io::Error::other("input/output error"));
        }
        drop(inner);
        self.content(|content| content.read(buffer, offset))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.change(
            |content| content.bytes_with(offset, data.len() as u64),
            |content| content.write(data, offset),
        )
    }

    fn len(&self) -> io::Result<u64> {
        self.content(|content| Ok(content.len()))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|_| 0, |content| content.set_len(len))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.change(|_| len.next_multiple_of(PAGE_BYTES), |content| content.allocate(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(Content::sync)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn write_out(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn write_synced_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(data, offset)?;
        self.sync(|content| content.sync_bytes(offset..offset + data.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_keeps_what_was_synced_and_never_more_than_was_written() {
        let mut outcomes = BTreeSet::new();
        for seed in 0..200 {
            let disk = MemDisk::new();
            let path = Path::new("file");
            let file = disk.open(path, Open::Create).unwrap();
            disk.sync_dir(Path::new("")).unwrap();
            file.write_at(&[1; 4096], 0).unwrap();
            file.sync_data().unwrap();
            file.write_at(&[2; 4096], 2048).unwrap();
            disk.crash(seed);
            assert!(file.write_at(b"x", 0).is_err(), "a dead process does not write");
            let bytes = disk.read(path).unwrap();
            assert_eq!(&bytes[..2048], [1; 2048]);
            for (sector, bytes) in bytes.chunks(512).enumerate().skip(4) {
                let old = if sector < 8 { 1 } else { 0 };
                assert!(bytes.iter().skip_while(|byte| **byte == 2).all(|byte| *byte == old));
            }
            outcomes.insert(bytes);
        }
        assert!(outcomes.len() > 20, "{} different outcomes", outcomes.len());
    }

    #[test]
    fn a_name_that_was_not_synced_may_go_back_but_a_file_is_never_lost_by_a_rename() {
        let (mut old, mut new) = (0, 0);
        for seed in 0..50 {
            let disk = MemDisk::new();
            let (from, to) = (Path::new("from"), Path::new("to"));
            disk.open(from, Open::Create).unwrap();
            disk.sync_dir(Path::new("")).unwrap();
            disk.rename(from, to).unwrap();
            disk.crash(seed);
            match (disk.exists(from).unwrap(), disk.exists(to).unwrap()) {
                (true, false) => old += 1,
                (false, true) => new += 1,
                both => panic!("{both:?}"),
            }
        }
        assert!(old > 0 && new > 0);
    }

    #[test]
    fn a_full_disk_refuses_new_pages_but_takes_what_was_promised() {
        let disk = MemDisk::new();
        disk.set_capacity(Some(8192));
        let file = disk.open(Path::new("a"), Open::Create).unwrap();
        file.allocate(8192).unwrap();
        let other = disk.open(Path::new("b"), Open::Create).unwrap();
        assert_eq!(other.write_at(b"x", 0).unwrap_err().kind(), io::ErrorKind::StorageFull);
        file.write_at(&[1; 8192], 0).unwrap();
        assert!(file.write_at(b"x", 8192).is_err());
        assert_eq!(disk.free_bytes().unwrap(), 0);
        disk.remove(Path::new("a")).unwrap();
        other.write_at(b"x", 0).unwrap();
    }

    #[test]
    fn a_failed_sync_loses_what_it_should_have_kept() {
        let disk = MemDisk::new();
        let file = disk.open(Path::new("a"), Open::Create).unwrap();
        disk.sync_dir(Path::new("")).unwrap();
        file.sync_data().unwrap();
        disk.fail_sync(0);
        file.write_at(b"x", 0).unwrap();
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        disk.crash(1);
        assert!(disk.read(Path::new("a")).unwrap().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn one_read_fails_and_the_next_one_sees_the_bytes() {
        let disk = MemDisk::new();
        let file = disk.open(Path::new("a"), Open::Create).unwrap();
        file.write_at(b"xy", 0).unwrap();
        disk.fail_read(1);
        let mut buffer = [0];
        file.read_at(&mut buffer, 0).unwrap();
        assert!(file.read_at(&mut buffer, 1).is_err());
        file.read_at(&mut buffer, 1).unwrap();
        assert_eq!(&buffer, b"y");
        disk.fail_read(0);
        disk.crash(1);
        assert!(disk.read(Path::new("a")).is_ok(), "a crash ends what was armed");
    }

    #[test]
    fn a_file_cut_at_rest_has_lost_its_end_for_good_and_can_grow_again() {
        for synced in [false, true] {
            let disk = MemDisk::new();
            let path = Path::new("a");
            let file = disk.open(path, Open::Create).unwrap();
            disk.sync_dir(Path::new("")).unwrap();
            file.write_at(&[1; 10_000], 0).unwrap();
            if synced {
                file.sync_data().unwrap();
            }
            disk.truncate(path, 20_000);
            assert_eq!(file.len().unwrap(), 10_000, "it is not longer than that");
            disk.truncate(path, 5_000);
            assert_eq!(disk.read(path).unwrap(), [1; 5_000]);
            file.sync_data().unwrap();
            disk.crash(1);
            assert_eq!(disk.read(path).unwrap(), [1; 5_000]);
            let file = disk.open(path, Open::ReadWrite).unwrap();
            file.set_len(6_000).unwrap();
            assert_eq!(disk.read(path).unwrap()[5_000..], [0; 1_000], "nothing of the old end is left");
        }
    }

    #[test]
    fn a_mounted_handle_dies_with_its_process() {
        let disk = MemDisk::new();
        let process = disk.mount();
        process.open(Path::new("a"), Open::Create).unwrap();
        disk.crash(0);
        assert!(process.remove(Path::new("a")).is_err());
        assert!(disk.mount().list(Path::new("")).is_ok());
    }

    #[test]
    fn the_power_goes_after_so_many_changes_and_comes_back_with_a_crash() {
        let disk = MemDisk::new();
        let file = disk.open(Path::new("a"), Open::Create).unwrap();
        disk.cut_power_after(1);
        file.write_at(b"x", 0).unwrap();
        assert!(file.sync_data().is_err());
        assert!(disk.power_is_off());
        assert!(disk.list(Path::new("")).is_err());
        disk.crash(0);
        assert!(disk.list(Path::new("")).is_ok());
    }

    #[test]
    fn what_is_written_while_the_power_goes_may_survive_in_part() {
        let path = Path::new("a");
        let mut left = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let disk = MemDisk::new();
            let file = disk.open(path, Open::Create).unwrap();
            disk.cut_power_after(0);
            assert!(file.write_at(&[1; 1_024], 0).is_err());
            disk.crash(seed);
            let bytes = disk.read(path).unwrap_or_default();
            left.insert(bytes.chunks(512).map(|sector| sector[0]).collect::<Vec<u8>>());
        }
        let torn = [vec![], vec![0, 1], vec![1, 0], vec![1, 1]];
        assert!(torn.iter().all(|sectors| left.contains(sectors)), "{left:?}");
    }

    #[test]
    fn a_lock_is_held_once_and_a_crash_frees_it() {
        let disk = MemDisk::new();
        let path = Path::new("LOCK");
        let held = disk.lock(path).unwrap();
        assert!(held.is_some());
        assert!(disk.lock(path).unwrap().is_none());
        disk.crash(1);
        let again = disk.lock(path).unwrap();
        drop(held);
        assert!(disk.lock(path).unwrap().is_none(), "the dead owner frees nothing");
        drop(again);
        assert!(disk.lock(path).unwrap().is_some());
    }

    #[test]
    fn a_synced_write_syncs_nothing_but_itself() {
        let mut left = std::collections::BTreeSet::new();
        for seed in 0..64 {
            let disk = MemDisk::new();
            let path = Path::new("file");
            let file = disk.open(path, Open::Create).unwrap();
            file.write_at(&[0; 3 * 4096], 0).unwrap();
            file.sync_all().unwrap();
            disk.sync_dir(Path::new("")).unwrap();
            file.write_at(&[1; 4096], 0).unwrap();
            file.write_synced_at(&[2; 4096], 4096).unwrap();
            disk.crash(seed);
            let file = disk.open(path, Open::Read).unwrap();
            let mut bytes = vec![9; 3 * 4096];
            file.read_at(&mut bytes, 0).unwrap();
            assert_eq!((bytes[4096], bytes[8191], bytes[8192]), (2, 2, 0));
            left.insert(bytes[0]);
        }
        assert_eq!(left.into_iter().collect::<Vec<_>>(), [0, 1], "the first write may be lost and may not");
    }
}
