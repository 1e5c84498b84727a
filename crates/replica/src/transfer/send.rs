//! The sender's side: one state of the checkpoint as a file, and its way to the receiver.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::SnapshotMeta;
use openraft::alias::SnapshotMetaOf;
use openraft::errors::StreamingError;
use openraft::raft::SnapshotResponse;
use prost::Message;
use storage::{CheckpointStore, Disk, DiskFile, Open};
use tokio::time::{Instant, sleep, timeout};
use wire::entry::CheckpointHead;
use wire::peer::PeerKind;
use wire::raft::{SnapshotAnswer, SnapshotBegin, SnapshotChunk, SnapshotFinish, SnapshotPart, SnapshotStep};

use super::{CHUNK_BYTES, IDLE_MAX, spool_path};
use crate::codec::Codec;
use crate::network::{Way, unreachable};
use crate::offload::Offload;
use crate::peers::Unreached;
use crate::shared::Shared;
use crate::tables;
use crate::type_config::{
    LogId, Membership, StoredMembership, Types, Vote, log_id_from_message, membership_from_message,
    vote_from_message, vote_to_message,
};

/// How often a receiver may ask for the same file from its beginning: each time what it had was damaged.
const RESTARTS_MAX: u32 = 3;

/// How long the receiver may take for a step: the last one takes the whole in.
const ANSWER_WAIT: Duration = Duration::from_secs(600);
/// How long to wait before what the disk or the receiver refused is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// One state of the checkpoint as a file, for as long as this lives.
pub(crate) struct Spool {
    number: u64,
    bytes: u64,
    head: CheckpointHead,
    path: PathBuf,
    disk: Arc<dyn Disk>,
}

impl Drop for Spool {
    fn drop(&mut self) {
        // What stays is removed at the next start.
        let _ = self.disk.remove(&self.path);
    }
}

impl Spool {
    /// The last entry in it.
    fn last(&self) -> u64 {
        self.head.applied.map_or(0, |applied| applied.index)
    }
}

/// Sends this node's checkpoint, which ends at `known` or later: up to there the engine counts the log as the
/// receiver's after it.
pub(crate) async fn send<M: Codec>(
    way: &Way<M>,
    vote: Vote,
    known: Option<LogId>,
) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
    let shared = &way.shared;
    let known = known.map_or(0, |id| id.index);
    // The engine goes on with the log after what it believes to have sent.
    let _hold = shared.holds.hold(known);
    let offload = Offload::new(&*shared.executor, shared.log.clone());
    let spool = match spool(shared, known, &offload).await {
        Ok(spool) => spool,
        Err(error) => {
            sleep(RETRY).await;
            return Err(failed(shared, &error));
        }
    };
    let sent = send_spool(way, &vote, &spool, &offload).await;
    let is_done = sent.is_ok();
    drop(spool);
    put_away(shared, is_done).await;
    sent
}

/// What the engine is told to send: the file that is on its way already, so that a transfer which broke goes on
/// although there are newer checkpoints by now. Nothing if there is none that the log goes on after.
pub(crate) fn begun<M: Codec>(shared: &Shared<M>) -> Option<SnapshotMetaOf<Types>> {
    // While one is being made there is none.
    let slot = shared.spool.try_lock().ok()?;
    let (spool, _) = slot.as_ref().filter(|(spool, _)| goes_on_after(shared, spool))?;
    let members = match &spool.head.membership {
        Some(message) => membership_from_message(message)?,
        None => Membership::default(),
    };
    let membership_at = spool.head.membership_at.map(log_id_from_message);
    Some(SnapshotMeta {
        last_log_id: spool.head.applied.map(log_id_from_message),
        last_membership: StoredMembership::new(membership_at, members),
    })
}

/// Whether the log has all that comes after a file.
fn goes_on_after<M: Codec>(shared: &Shared<M>, spool: &Spool) -> bool {
    spool.last() >= shared.log.state().purged.map_or(0, |id| id.index)
}

/// The file that is there, or a new one. It must reach at least as far as what the engine was told (`known`):
/// with an older one it would count entries for the receiver's that it never got, and would send it only those
/// after them, which do not fit.
async fn spool<M: Codec>(
    shared: &Arc<Shared<M>>,
    known: u64,
    offload: &Offload,
) -> storage::Result<Arc<Spool>> {
    let mut slot = shared.spool.lock().await;
    if let Some((spool, used)) = &mut *slot
        && spool.last() >= known
        && goes_on_after(shared, spool)
    {
        *used = Instant::now();
        return Ok(spool.clone());
    }
    *slot = None;
    let (store, disk) = (shared.store()?, shared.disk.clone());
    let (group, member) = (shared.group, shared.member.bits());
    let spool = offload
        .run(move || {
            let snapshot = store.snapshot()?;
            let head = snapshot.get(tables::HEAD, tables::HEAD_KEY)?.unwrap_or_default();
            let damaged = |error: prost::DecodeError| damaged(&store, &error);
            let head = CheckpointHead::decode(head).map_err(damaged)?;
            let applied = head.applied.unwrap_or_default();
            let number = mix(&[member, applied.term, applied.index]);
            let path = spool_path(group, number);
            // Removed when it is not whole, too.
            let mut spool = Spool { number, bytes: 0, head, path, disk };
            spool.bytes = snapshot.spool(&spool.path)?.bytes;
            Ok(Arc::new(spool))
        })
        .await?;
    *slot = Some((spool.clone(), Instant::now()));
    Ok(spool)
}

/// A file that was sent is not needed any more, unless somebody else is sending it. One that was not is kept for
/// the next try, for a while.
async fn put_away<M: Codec>(shared: &Arc<Shared<M>>, is_done: bool) {
    let mut slot = shared.spool.lock().await;
    if is_done {
        slot.take_if(|(spool, _)| Arc::strong_count(spool) == 1);
        return;
    }
    let Some((_, used)) = &mut *slot else { return };
    *used = Instant::now();
    drop(slot);
    let weak = Arc::downgrade(shared);
    tokio::spawn(async move {
        sleep(IDLE_MAX).await;
        let Some(shared) = weak.upgrade() else { return };
        let mut slot = shared.spool.lock().await;
        slot.take_if(|(spool, used)| used.elapsed() >= IDLE_MAX && Arc::strong_count(spool) == 1);
    });
}

async fn send_spool<M: Codec>(
    way: &Way<M>,
    vote: &Vote,
    spool: &Spool,
    offload: &Offload,
) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
    let shared = &way.shared;
    let file = shared.disk.open(&spool.path, Open::Read);
    let file: Arc<dyn DiskFile> = match file {
        Ok(file) => file.into(),
        Err(error) => return Err(failed(shared, &storage::Error::io("open", &spool.path, error))),
    };
    let ask = |part: SnapshotPart| {
        let step = SnapshotStep { vote: Some(vote_to_message(vote)), spool: spool.number, part: Some(part) };
        async move {
            let asked = way.ask::<SnapshotAnswer>(PeerKind::Snapshot, &step);
            let late = |_| Err(unreachable(&Unreached(format!("member {} does not go on", way.to))));
            timeout(ANSWER_WAIT, asked).await.unwrap_or_else(late)
        }
    };
    tracing::info!(
        group = %shared.group, to = %way.to, index = spool.last(), bytes = spool.bytes, "sends a checkpoint"
    );
    let mut answer =
        ask(SnapshotPart::Begin(SnapshotBegin { bytes: spool.bytes, applied: spool.head.applied })).await?;
    let mut restarts = 0;
    loop {
        let theirs = vote_from_message(answer.vote.unwrap_or_default());
        if answer.installed || theirs > *vote {
            return Ok(SnapshotResponse::new(theirs));
        }
        let offset = answer.offset.min(spool.bytes);
        if offset == 0 {
            restarts += 1;
            if restarts > RESTARTS_MAX {
                let what = format!("member {} cannot take in the checkpoint", way.to);
                return Err(unreachable(&Unreached(what)).into());
            }
        }
        let part = match spool.bytes - offset {
            0 => SnapshotPart::Finish(SnapshotFinish {
                bytes: spool.bytes,
                applied: spool.head.applied,
                membership_at: spool.head.membership_at,
                membership: spool.head.membership.clone(),
            }),
            rest => {
                let len = (rest as usize).min(CHUNK_BYTES);
                let chunk = read(&file, &spool.path, offset, len, offload).await;
                SnapshotPart::Chunk(chunk.map_err(|error| failed(shared, &error))?)
            }
        };
        let is_last = matches!(part, SnapshotPart::Finish(_));
        answer = match ask(part).await {
            Ok(answer) => answer,
            Err(error) => {
                // It may have been refused whole: not again in a hot loop.
                if is_last {
                    sleep(RETRY).await;
                }
                return Err(error.into());
            }
        };
    }
}

async fn read(
    file: &Arc<dyn DiskFile>,
    path: &std::path::Path,
    offset: u64,
    len: usize,
    offload: &Offload,
) -> storage::Result<SnapshotChunk> {
    let (file, path) = (file.clone(), path.to_owned());
    offload
        .run(move || {
            let mut bytes = vec![0; len];
            file.read_at(&mut bytes, offset).map_err(|error| storage::Error::io("read", path, error))?;
            Ok(SnapshotChunk { offset, crc: crc32c::crc32c(&bytes), bytes: Bytes::from(bytes) })
        })
        .await
}

/// The disk's failure is no reason to end the group: the engine tries again after a while.
fn failed<M: Codec>(shared: &Shared<M>, error: &storage::Error) -> StreamingError<Types> {
    tracing::error!(group = %shared.group, %error, "cannot send a checkpoint, it is tried again");
    unreachable(error).into()
}

fn damaged(store: &CheckpointStore, error: &prost::DecodeError) -> storage::Error {
    storage::Error::Damaged {
        path: store.path().to_owned(),
        offset: 0,
        what: format!("its head cannot be read ({error})"),
    }
}

/// Names a file by what is in it: the same state of the same member makes the same file (FNV-1a).
fn mix(parts: &[u64]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
