//! Whether there is room for new tasks: in memory and on disk.
//!
//! Looked at a few times a second, off the path of requests. New tasks are refused first; acks, fails
//! and extends never come here. It recovers by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use storage::{Executor, Log, Reserve, RoomState};

use crate::error::Error;
use crate::inner::Inner;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// New tasks are taken again below this share of the memory, so that it does not flutter.
const AGAIN_BELOW_PERCENT: u64 = 95;

/// The room that is left.
pub(crate) struct Room {
    memory_bytes: AtomicU64,
    memory_bytes_max: u64,
    memory_full: AtomicBool,
    disk_full: AtomicBool,
    reserve: Option<Arc<Reserve>>,
}

impl Room {
    pub(crate) fn new(memory_bytes_max: u64, reserve: Option<Arc<Reserve>>) -> Room {
        Room {
            memory_bytes: AtomicU64::new(0),
            memory_bytes_max,
            memory_full: AtomicBool::new(false),
            disk_full: AtomicBool::new(false),
            reserve,
        }
    }

    /// Whether new tasks may come in.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_memory_full() {
            let bytes = self.memory_bytes();
            return Err(Error::MemoryFull { bytes, bytes_max: self.memory_bytes_max });
        }
        if self.is_disk_full() {
            return Err(Error::DiskFull);
        }
        Ok(())
    }

    /// What the tasks take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    pub(crate) fn is_memory_full(&self) -> bool {
        self.memory_full.load(Ordering::Relaxed)
    }

    pub(crate) fn is_disk_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    fn set_memory(&self, bytes: u64) {
        self.memory_bytes.store(bytes, Ordering::Relaxed);
        let again_below = (u128::from(self.memory_bytes_max) * u128::from(AGAIN_BELOW_PERCENT) / 100) as u64;
        let was_full = self.is_memory_full();
        let full = if was_full { bytes >= again_below } else { bytes >= self.memory_bytes_max };
        if full != was_full {
            self.memory_full.store(full, Ordering::Relaxed);
            if full {
                tracing::warn!(
                    bytes,
                    bytes_max = self.memory_bytes_max,
                    "memory full: new tasks are refused"
                );
            } else {
                tracing::info!(bytes, "there is memory again: new tasks are taken");
            }
        }
    }

    fn set_disk(&self, full: bool) {
        if self.disk_full.swap(full, Ordering::Relaxed) != full {
            if full {
                tracing::warn!("disk full: new tasks are refused, acks go on");
            } else {
                tracing::info!("there is disk again: new tasks are taken");
            }
        }
    }
}

/// Looks at the memory until the node stops.
pub(crate) async fn run(inner: Arc<Inner>, executor: Arc<dyn Executor>) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = inner.stopping.cancelled() => return,
        }
        let memory = |shard| inner.groups.look(shard, |state| state.memory_bytes());
        inner.room.set_memory(inner.groups.all().map(memory).sum());
        look_at_disk(&inner, &*executor).await;
    }
}

/// Asks the disk, away from async tasks: it may take its time when it is full.
async fn look_at_disk(inner: &Arc<Inner>, executor: &dyn Executor) {
    let (told, answer) = tokio::sync::oneshot::channel();
    let (reserve, log): (Option<Arc<Reserve>>, Log) = (inner.room.reserve.clone(), inner.log.clone());
    executor.spawn(
        "room",
        Box::new(move || {
            let low = reserve.is_some_and(|reserve| reserve.look() == RoomState::Low);
            let _ = told.send(low || log.is_out_of_room());
        }),
    );
    if let Ok(full) = answer.await {
        inner.room.set_disk(full);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_full_is_room_again_only_well_below_the_limit() {
        let room = Room::new(1_000, None);
        for (bytes, full) in [(999, false), (1_000, true), (960, true), (949, false), (960, false)] {
            room.set_memory(bytes);
            assert_eq!(room.check().is_err(), full, "{bytes}");
        }
    }

    #[test]
    fn a_full_disk_refuses_until_there_is_room() {
        let room = Room::new(u64::MAX, None);
        room.set_disk(true);
        assert_eq!(room.check(), Err(Error::DiskFull));
        room.set_disk(false);
        assert_eq!(room.check(), Ok(()));
    }
}
