//! A checkpoint's way to a member that lags too far behind for the log.
//!
//! The sender spools one state of its checkpoint to a file and sends it in pieces, each with its checksum; after
//! a lost link it goes on where the receiver is (`send`). The receiver gathers the file, checks all of it by
//! loading it into a new machine, and only then lets the engine take it in (`take`, `install`).
//!
//! A crash at any moment leaves the old state or the new one: the checkpoint changes by one transaction. The log
//! before the new one goes after that; until then the received file stays, which tells the next start that the
//! log may be older than the checkpoint (`finish_install`).

mod install;
mod send;
mod take;

use std::path::{Path, PathBuf};
use std::time::Duration;

use model::GroupId;
use storage::{Disk, GroupLog, TRANSFER_DIR};
use tokio::sync::oneshot;

pub(crate) use install::install;
pub(crate) use send::{Spool, begun, send};
pub(crate) use take::{Incoming, take};

use crate::log_store::storage_id;
use crate::type_config::LogId;

/// Bytes of a file that go into one message.
const CHUNK_BYTES: usize = 256 * 1024;
/// A file that nobody sends or receives for so long is removed.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A file that this group sends.
fn spool_path(group: GroupId, spool: u64) -> PathBuf {
    Path::new(TRANSFER_DIR).join(format!("{group}-{spool:016x}.spool"))
}

/// A file that this group receives.
fn part_path(group: GroupId) -> PathBuf {
    Path::new(TRANSFER_DIR).join(format!("{group}.part"))
}

/// A file that this group has received, whole: the state after `index`.
fn install_path(group: GroupId, index: u64) -> PathBuf {
    Path::new(TRANSFER_DIR).join(format!("{group}-{index}.install"))
}

/// Before the start: if a crash came between a checkpoint that was taken in, whose last entry is `applied`, and
/// the purge of the log before it, that is purged now.
pub(crate) async fn finish_install(
    disk: &dyn Disk,
    log: &GroupLog,
    applied: Option<LogId>,
) -> storage::Result<()> {
    let Some(applied) = applied else { return Ok(()) };
    let path = install_path(log.group(), applied.index);
    let failed = |source| storage::Error::io("look for", &path, source);
    let is_behind = log.state().last.is_none_or(|last| last.index < applied.index);
    if is_behind && disk.exists(&path).map_err(failed)? {
        purge(log, applied).await?;
    }
    Ok(())
}

/// Removes what this group has left in the directory.
pub(crate) fn clear(disk: &dyn Disk, group: GroupId) -> storage::Result<()> {
    let dir = Path::new(TRANSFER_DIR);
    let failed = |source| storage::Error::io("clear", dir, source);
    disk.create_dir_all(dir).map_err(failed)?;
    let (of_group, part) = (format!("{group}-"), part_path(group));
    for path in disk.list(dir).map_err(failed)? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(&of_group) || path == part {
            disk.remove(&path).map_err(failed)?;
        }
    }
    Ok(())
}

/// Lets the log up to `upto` go, and waits until that is on the disk.
async fn purge(log: &GroupLog, upto: LogId) -> storage::Result<()> {
    let (done, purged) = oneshot::channel();
    log.purge_upto(storage_id(upto), Box::new(move |result| drop(done.send(result))));
    let failed = |source| storage::Error::io("purge", "the log", source);
    purged.await.map_err(|_| storage::Error::Closed)?.map_err(failed)
}
