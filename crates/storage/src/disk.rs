//! All access to files: a [`Disk`] is a directory tree, a [`DiskFile`] one open file of it.
//!
//! Paths are relative to the tree's root. The real one is here; `mem_disk.rs` has the one that crashes.
//! Nothing else in this crate may open a file. Next: `segment.rs`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FlockOperation};

use crate::direct::DirectFile;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// It exists, and is only read.
    Read,
    /// It exists, and is read and written.
    ReadWrite,
    /// It is made if it is not there; what is in it stays.
    Create,
}

/// A directory tree.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file.
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>>;
    /// The same, for a file that is written page by page and seldom read: it may go past the system's cache.
    fn open_direct(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        self.open(path, how)
    }
    /// The files and directories directly in `dir`, sorted, with `dir` in front.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
    /// Makes a directory and those above it, so that they survive a crash.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Gives a file another name, in place of the one that has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Whether there is such a file or directory.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Makes the names in `dir` survive a crash.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Room that is left for us.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Where a path of this tree is, for messages to people.
    fn locate(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }
    /// Takes an exclusive lock that ends with the returned value or the process. `None`: someone has it.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>>;
}

/// An open file. Its writes survive a crash once [`sync_data`](DiskFile::sync_data) has returned.
pub trait DiskFile: Send + Sync {
    /// Fills `buffer`; an end of file before that is an error.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `data`.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// The file's length.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends the file; new bytes are zero and may take no room yet.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Takes room for the first `len` bytes and extends the file to it; new bytes are zero.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Makes content and length survive a crash.
    fn sync_data(&self) -> io::Result<()>;
    /// The same, with all that the file system knows about the file.
    fn sync_all(&self) -> io::Result<()>;
    /// Brings what was written to the disk, without a promise, and waits a moment: a sync of much that was written at once
    /// holds up everybody else's until all of it is there.
    fn write_out(&self) -> io::Result<()> {
        Ok(())
    }
    /// Writes all of `data` and makes it survive a crash; other writes since the last sync may not.
    fn write_synced_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(data, offset)?;
        self.sync_data()
    }
}

/// A lock that is held while this lives.
pub trait DiskLock: Send + Sync {
    /// The locked file, to say in it who has it.
    fn file(&self) -> &dyn DiskFile;
}

/// A directory of the operating system.
#[derive(Clone, Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// The tree below `root`, which is made if it is not there.
    pub fn new(root: impl Into<PathBuf>) -> io::Result<RealDisk> {
        let root = root.into();
        make_dir(&root)?;
        Ok(RealDisk { root })
    }

    /// The tree below `root`, which must be there.
    pub fn existing(root: impl Into<PathBuf>) -> io::Result<RealDisk> {
        let root = root.into();
        if !fs::metadata(&root)?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "not a directory"));
        }
        Ok(RealDisk { root })
    }

    /// Where the tree is.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(options(how).open(self.root.join(path))?)))
    }

    fn open_direct(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        let path = self.root.join(path);
        let usual = RealFile(options(how).open(&path)?);
        Ok(Box::new(DirectFile::new(usual, &path, how)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.root.join(dir))? {
            found.push(dir.join(entry?.file_name()));
        }
        found.sort();
        Ok(found)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        make_dir(&self.root.join(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(self.root.join(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.root.join(path).try_exists()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(self.root.join(dir))?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn locate(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>> {
        let path = self.root.join(path);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(RealFile(file)))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn options(how: Open) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    match how {
        Open::Read => {}
        Open::ReadWrite => {
            options.write(true);
        }
        Open::Create => {
            options.write(true).create(true).truncate(false);
        }
    }
    options
}

/// A new directory is only there for good once the one above it is synced.
fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let above = dir.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
    make_dir(above)?;
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !dir.is_dir() => Err(error),
        _ => File::open(above)?.sync_all(),
    }
}

/// How long a disk that is slow for other reasons is left to the others.
const WRITE_OUT_PAUSE_MAX: Duration = Duration::from_millis(20);

/// A file behind the system's cache.
pub(crate) struct RealFile(File);

impl DiskLock for RealFile {
    fn file(&self) -> &dyn DiskFile {
        self
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(()),
            // A file system that cannot promise room can still be written to.
            Err(rustix::io::Errno::OPNOTSUPP) if self.len()? < len => self.0.set_len(len),
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn write_out(&self) -> io::Result<()> {
        let start = Instant::now();
        self.0.sync_data()?;
        // As long again belongs to the others.
        thread::sleep(start.elapsed().min(WRITE_OUT_PAUSE_MAX));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_disk_keeps_what_is_written_and_lists_it_sorted() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path().join("data")).unwrap();
        disk.create_dir_all(Path::new("a/b")).unwrap();
        let file = disk.open(Path::new("a/two"), Open::Create).unwrap();
        file.allocate(8192).unwrap();
        file.write_at(b"hello", 100).unwrap();
        file.sync_data().unwrap();
        disk.open(Path::new("a/one"), Open::Create).unwrap();
        disk.sync_dir(Path::new("a")).unwrap();

        let names = disk.list(Path::new("a")).unwrap();
        assert_eq!(names, ["a/b", "a/one", "a/two"].map(PathBuf::from));
        let again = disk.open(Path::new("a/two"), Open::Read).unwrap();
        assert_eq!(again.len().unwrap(), 8192);
        let mut buffer = [1u8; 6];
        again.read_at(&mut buffer, 100).unwrap();
        assert_eq!(&buffer, b"hello\0");
        assert_eq!(again.read_at(&mut buffer, 8190).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(disk.free_bytes().unwrap() > 0);
    }

    #[test]
    fn opening_what_is_not_there_is_an_error_unless_it_is_to_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::existing(dir.path()).unwrap();
        let path = Path::new("nothing");
        assert!(disk.open(path, Open::Read).is_err());
        assert!(disk.open(path, Open::ReadWrite).is_err());
        assert!(!disk.exists(path).unwrap());
        assert!(disk.open(path, Open::Create).is_ok());
        assert!(disk.exists(path).unwrap());
        assert!(RealDisk::existing(dir.path().join("absent")).is_err());
    }
}
