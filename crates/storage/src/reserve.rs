//! Room kept back, so that a full disk stops new tasks and not the acks of those that are there.
//!
//! A file takes the room while there is plenty. When a log segment finds none, the file is given up, and
//! what is there can be finished; once there is room again, the file is taken back. Must never refuse
//! anything itself: it says [`RoomState`], and the node acts on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::disk::{Disk, Open};
use crate::error::{Error, Result};

const MARGIN_BYTES_MIN: u64 = 16 * 1024 * 1024;
const MARGIN_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Whether there is room for new tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomState {
    /// There is.
    Plenty,
    /// Only for finishing what is there: refuse new tasks, go on with acks, fails and extends.
    Low,
}

/// A preallocated file that is given up when the disk is full.
pub struct Reserve {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    bytes: u64,
    margin_bytes: u64,
    state: Mutex<State>,
}

struct State {
    held: bool,
    room: RoomState,
}

impl Reserve {
    /// Takes `bytes` of room with the file `path`. Without that room it is not an error, but [`RoomState::Low`].
    pub fn open(disk: Arc<dyn Disk>, path: &Path, bytes: u64) -> Result<Reserve> {
        let margin = (bytes / 4).clamp(MARGIN_BYTES_MIN, MARGIN_BYTES_MAX);
        Reserve::with_margin(disk, path, bytes, margin)
    }

    /// The same; room is low already when less than `margin_bytes` are free beside the reserve.
    pub fn with_margin(disk: Arc<dyn Disk>, path: &Path, bytes: u64, margin_bytes: u64) -> Result<Reserve> {
        let state = Mutex::new(State { held: false, room: RoomState::Plenty });
        let reserve = Reserve { disk, path: path.to_owned(), bytes, margin_bytes, state };
        let held = reserve.is_there().map_err(|source| Error::io("open", path, source))?;
        reserve.state.lock().held = held;
        reserve.look();
        Ok(reserve)
    }

    /// As of the last look.
    pub fn state(&self) -> RoomState {
        self.state.lock().room
    }

    /// Looks at the disk again, and takes the reserve back if there is room. Cheap; meant for once a second.
    pub fn look(&self) -> RoomState {
        let mut state = self.state.lock();
        let was = state.room;
        // Without an answer, nothing is changed: an error of the disk shows where it is written to.
        let Ok(mut free) = self.disk.free_bytes() else { return was };
        if !state.held && free >= self.bytes + self.margin_bytes {
            state.held = self.take().is_ok();
            free = self.disk.free_bytes().unwrap_or(0);
        }
        // Back to plenty only with some room to spare, or it would flap.
        let margin = if was == RoomState::Low { 2 * self.margin_bytes } else { self.margin_bytes };
        state.room = if state.held && free >= margin { RoomState::Plenty } else { RoomState::Low };
        if was != state.room {
            tracing::warn!(
                free_bytes = free,
                reserve_held = state.held,
                "room on the disk is {:?}",
                state.room
            );
        }
        state.room
    }

    /// Gives the reserve to whoever needs room now. Whether there was any.
    pub fn give(&self) -> bool {
        let mut state = self.state.lock();
        state.room = RoomState::Low;
        if !state.held || self.bytes == 0 {
            return false;
        }
        state.held = false;
        tracing::warn!(bytes = self.bytes, "the disk is full: its reserve is given to the log");
        self.disk.remove(&self.path).is_ok()
    }

    fn is_there(&self) -> std::io::Result<bool> {
        if self.bytes == 0 {
            return Ok(true);
        }
        Ok(self.disk.exists(&self.path)? && self.disk.open(&self.path, Open::Read)?.len()? >= self.bytes)
    }

    fn take(&self) -> std::io::Result<()> {
        let taken = self.disk.open(&self.path, Open::Create).and_then(|file| file.allocate(self.bytes));
        if taken.is_err() {
            let _ = self.disk.remove(&self.path);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem_disk::MemDisk;

    const MIB: u64 = 1024 * 1024;

    fn reserve(disk: &MemDisk) -> Reserve {
        Reserve::with_margin(Arc::new(disk.clone()), Path::new("reserve"), 4 * MIB, MIB).unwrap()
    }

    #[test]
    fn the_reserve_is_given_once_and_taken_back_when_there_is_room() {
        let disk = MemDisk::new();
        disk.set_capacity(Some(8 * MIB));
        let reserve = reserve(&disk);
        assert_eq!(reserve.state(), RoomState::Plenty);
        assert_eq!(disk.used_bytes(), 4 * MIB);

        let file = disk.open(Path::new("data"), Open::Create).unwrap();
        file.allocate(4 * MIB).unwrap();
        assert_eq!(reserve.look(), RoomState::Low);
        assert!(reserve.give());
        assert!(!reserve.give(), "only once");
        file.allocate(6 * MIB).unwrap();
        assert_eq!(reserve.look(), RoomState::Low);

        disk.set_capacity(Some(16 * MIB));
        assert_eq!(reserve.look(), RoomState::Plenty);
        assert_eq!(disk.used_bytes(), 10 * MIB);
    }

    #[test]
    fn low_room_stays_low_until_there_is_some_to_spare() {
        let disk = MemDisk::new();
        disk.set_capacity(Some(6 * MIB));
        let reserve = reserve(&disk);
        let file = disk.open(Path::new("data"), Open::Create).unwrap();
        file.allocate(3 * MIB / 2).unwrap();
        assert_eq!(reserve.look(), RoomState::Low);
        file.set_len(MIB / 2).unwrap();
        assert_eq!(reserve.look(), RoomState::Low, "above the margin, but not twice");
        file.set_len(0).unwrap();
        assert_eq!(reserve.look(), RoomState::Plenty);
    }

    #[test]
    fn a_disk_without_room_for_the_reserve_opens_low() {
        let disk = MemDisk::new();
        disk.set_capacity(Some(2 * MIB));
        assert_eq!(reserve(&disk).state(), RoomState::Low);
    }
}
