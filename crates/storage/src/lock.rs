//! Keeps a second process out of a data directory.
//!
//! The lock is the operating system's (flock), so it ends with the process, however that ends; the pid in
//! the file is only for the message. Must never be taken from a living owner.

use std::path::Path;

use crate::disk::{Disk, DiskLock, Open};
use crate::error::{Error, Result};

/// The exclusive right to a data directory, for as long as this lives.
pub struct DirLock {
    _held: Box<dyn DiskLock>,
}

impl DirLock {
    /// Takes the lock of `path`, usually [`LOCK_FILE`](crate::LOCK_FILE), or says who has it.
    pub fn acquire(disk: &dyn Disk, path: &Path) -> Result<DirLock> {
        let held = disk.lock(path).map_err(|source| Error::io("lock", path, source))?;
        let Some(held) = held else {
            return Err(Error::Locked { path: disk.locate(path), pid: owner(disk, path) });
        };
        let text = format!("{}\n", std::process::id());
        let file = held.file();
        file.set_len(0)
            .and_then(|()| file.write_at(text.as_bytes(), 0))
            .map_err(|source| Error::io("write", path, source))?;
        Ok(DirLock { _held: held })
    }
}

fn owner(disk: &dyn Disk, path: &Path) -> Option<u32> {
    let file = disk.open(path, Open::Read).ok()?;
    let mut text = vec![0; file.len().ok()?.min(32) as usize];
    file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn a_second_owner_is_refused_with_the_pid_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path()).unwrap();
        let path = Path::new(crate::LOCK_FILE);
        let first = DirLock::acquire(&disk, path).unwrap();
        let Err(refused) = DirLock::acquire(&disk, path) else { panic!("two owners") };
        let text = refused.to_string();
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
        assert!(text.starts_with(dir.path().to_str().unwrap()), "{text}");
        drop(first);
        DirLock::acquire(&disk, path).unwrap();
    }
}
