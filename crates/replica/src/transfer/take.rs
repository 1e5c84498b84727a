//! The receiver's side: gathers the file, checks it, and hands it to the engine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use model::TaskId;
use openraft::async_runtime::WatchReceiver;
use openraft::{Snapshot, SnapshotMeta};
use storage::{DiskFile, Open};
use tokio::time::{Instant, sleep};
use wire::raft::{SnapshotAnswer, SnapshotChunk, SnapshotFinish, SnapshotPart, SnapshotStep};

use super::{CHUNK_BYTES, IDLE_MAX, install_path, part_path};
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::machine_store::{CheckpointHandle, Received};
use crate::offload::Offload;
use crate::propose::Raft;
use crate::shared::Shared;
use crate::start;
use crate::tables;
use crate::type_config::{
    Membership, StoredMembership, Vote, log_id_from_message, membership_from_message, vote_from_message,
    vote_to_message,
};

/// Bytes of a task's id.
const TASK_BYTES: usize = 16;

/// A file that is on its way to this member.
pub(crate) struct Incoming {
    /// Which file.
    spool: u64,
    /// Its length when it is whole.
    bytes: u64,
    /// So much of it is there.
    have: u64,
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    offload: Offload,
    touched: Instant,
}

/// Handles one step of a checkpoint's way.
pub(crate) async fn take<M: Codec>(
    shared: Arc<Shared<M>>,
    raft: Raft<M>,
    step: SnapshotStep,
) -> Result<SnapshotAnswer> {
    let vote = vote_from_message(step.vote.ok_or_else(|| Error::malformed("a vote is missing"))?);
    let mine = raft.metrics().borrow_watched().vote;
    let answer = |vote: &Vote, offset, installed| SnapshotAnswer {
        vote: Some(vote_to_message(vote)),
        offset,
        installed,
    };
    // Only the leader of the latest term may bring a state. One that we have not heard of yet is fine.
    if vote < mine {
        return Ok(answer(&mine, 0, false));
    }
    let mut slot = shared.incoming.lock().await;
    match step.part.ok_or_else(|| Error::malformed("a step of a checkpoint is missing"))? {
        SnapshotPart::Begin(begin) => {
            // The answer to an earlier try may have been lost.
            let applied = *shared.applied_index.borrow();
            if begin.applied.is_some_and(|last| applied.is_some_and(|applied| applied >= last.index)) {
                return Ok(answer(&mine, 0, true));
            }
            if slot.as_ref().is_none_or(|file| (file.spool, file.bytes) != (step.spool, begin.bytes)) {
                *slot = None;
                *slot = Some(open(&shared, step.spool, begin.bytes).await?);
                forget_when_idle(&shared);
            }
            Ok(answer(&mine, slot.as_ref().map_or(0, |file| file.have), false))
        }
        SnapshotPart::Chunk(chunk) => {
            let Some(file) = slot.as_mut().filter(|file| file.spool == step.spool) else {
                return Err(Error::Unavailable);
            };
            write(file, chunk).await.map_err(|error| storage_error(&shared, &error))?;
            Ok(answer(&mine, file.have, false))
        }
        SnapshotPart::Finish(finish) => {
            let Some(file) = slot.take_if(|file| file.spool == step.spool) else {
                return Err(Error::Unavailable);
            };
            if file.have != finish.bytes {
                let have = file.have;
                *slot = Some(file);
                return Ok(answer(&mine, have, false));
            }
            // Nothing else may come in meanwhile.
            let vote = finish_file(&shared, &raft, vote, file, finish).await?;
            Ok(answer(&vote, 0, true))
        }
    }
}

async fn open<M: Codec>(shared: &Shared<M>, spool: u64, bytes: u64) -> Result<Incoming> {
    let offload = Offload::new(&*shared.executor, shared.log.clone());
    let (disk, path) = (shared.disk.clone(), part_path(shared.group));
    let opening = {
        let path = path.clone();
        move || {
            let failed = |error| storage::Error::io("open", &path, error);
            let file = disk.open(&path, Open::Create).map_err(failed)?;
            file.set_len(0).map_err(failed)?;
            Ok(file)
        }
    };
    let file = offload.run(opening).await.map_err(|error| storage_error(shared, &error))?;
    let touched = Instant::now();
    Ok(Incoming { spool, bytes, have: 0, file: file.into(), path, offload, touched })
}

/// What does not fit or is damaged is not written: the sender goes on from what is there.
async fn write(file: &mut Incoming, chunk: SnapshotChunk) -> storage::Result<()> {
    file.touched = Instant::now();
    let len = chunk.bytes.len();
    let fits = chunk.offset == file.have && len <= CHUNK_BYTES && file.have + len as u64 <= file.bytes;
    if !fits {
        return Ok(());
    }
    let (target, path) = (file.file.clone(), file.path.clone());
    let written = file
        .offload
        .run(move || {
            if crc32c::crc32c(&chunk.bytes) != chunk.crc {
                return Ok(false);
            }
            let written = target.write_at(&chunk.bytes, chunk.offset);
            written.map_err(|error| storage::Error::io("write", path, error))?;
            Ok(true)
        })
        .await?;
    if written {
        file.have += len as u64;
    }
    Ok(())
}

/// The file is whole: it is loaded into a new machine, which proves it, and the engine takes it in. Returns this
/// member's vote after that.
async fn finish_file<M: Codec>(
    shared: &Arc<Shared<M>>,
    raft: &Raft<M>,
    vote: Vote,
    file: Incoming,
    finish: SnapshotFinish,
) -> Result<Vote> {
    let applied =
        finish.applied.ok_or_else(|| Error::malformed("the last entry of a checkpoint is missing"))?;
    let members = match &finish.membership {
        Some(members) => membership_from_message(members).ok_or_else(|| Error::malformed("members"))?,
        None => Membership::default(),
    };
    let membership = StoredMembership::new(finish.membership_at.map(log_id_from_message), members);
    let lacking: Option<Vec<TaskId>> = finish.lacking.chunks(TASK_BYTES).map(tables::task_of).collect();
    let lacking = lacking.ok_or_else(|| Error::malformed("a task id"))?;
    let path = install_path(shared.group, applied.index);
    let loading = {
        let (shared, path, part) = (shared.clone(), path.clone(), file.path.clone());
        let target = file.file.clone();
        move || {
            let failed = |error| storage::Error::io("keep", &path, error);
            target.sync_all().map_err(failed)?;
            shared.disk.rename(&part, &path).map_err(failed)?;
            shared.disk.sync_dir(path.parent().unwrap_or(std::path::Path::new(""))).map_err(failed)?;
            let load = || {
                let (group, machine) = (shared.group, (shared.make)());
                start::load_spooled(group, machine, &*shared.disk, &path, shared.envelope_cache_bytes)
            };
            // A file that breaks the code is not taken in, and breaks nothing else.
            let panicked = |_| Err(Error::malformed("loading a checkpoint panicked"));
            Ok(catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(panicked))
        }
    };
    let loaded = file.offload.run(loading).await.map_err(|error| storage_error(shared, &error))?;
    let core = match loaded {
        Ok(core) => core,
        Err(error) => {
            remove(shared, &path);
            return Err(error);
        }
    };
    let last_log_id = Some(log_id_from_message(applied));
    if core.applied != last_log_id {
        remove(shared, &path);
        return Err(Error::malformed("a checkpoint that ends elsewhere than was said"));
    }
    let meta = SnapshotMeta { last_log_id, last_membership: membership };
    let received = Received { path: path.clone(), core, lacking };
    let handle = CheckpointHandle { received: Some(Box::new(received)) };
    let installed = raft.install_full_snapshot(vote, Snapshot { meta, snapshot: handle }).await;
    // After an error the engine may still be at it: the next start clears up.
    let response = installed.map_err(|_| Error::Stopped)?;
    // One that was not wanted any more is still there.
    remove(shared, &path);
    Ok(response.vote)
}

fn remove<M: Codec>(shared: &Shared<M>, path: &std::path::Path) {
    if shared.disk.exists(path).unwrap_or(false) {
        let _ = shared.disk.remove(path);
    }
}

/// A sender that went away leaves a file behind.
fn forget_when_idle<M: Codec>(shared: &Arc<Shared<M>>) {
    let weak = Arc::downgrade(shared);
    tokio::spawn(async move {
        loop {
            sleep(IDLE_MAX).await;
            let Some(shared) = weak.upgrade() else { return };
            let mut slot = shared.incoming.lock().await;
            match &*slot {
                None => return,
                Some(file) if file.touched.elapsed() >= IDLE_MAX => {
                    let path = file.path.clone();
                    *slot = None;
                    remove(&shared, &path);
                    return;
                }
                Some(_) => {}
            }
        }
    });
}

fn storage_error<M: Codec>(shared: &Shared<M>, error: &storage::Error) -> Error {
    tracing::error!(group = %shared.group, %error, "cannot take in a checkpoint");
    Error::Storage { group: shared.group, what: error.to_string() }
}
