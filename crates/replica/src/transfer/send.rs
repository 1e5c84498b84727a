//! The sender's side: one state of the checkpoint as a file, and its way to the receiver.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use model::TaskId;
use openraft::SnapshotMeta;
use openraft::alias::SnapshotMetaOf;
use openraft::errors::StreamingError;
use openraft::raft::SnapshotResponse;
use state_machine::Table;
use storage::{Disk, DiskFile, Open, Rows, Snapshot};
use tokio::time::{Instant, sleep, timeout};
use wire::entry::CheckpointHead;
use wire::history::KeptMessage;
use wire::peer::PeerKind;
use wire::raft::{SnapshotAnswer, SnapshotBegin, SnapshotChunk, SnapshotFinish, SnapshotPart, SnapshotStep};
use wire::seal;

use super::{CHUNK_BYTES, IDLE_MAX, spool_path};
use crate::codec::Codec;
use crate::mend::{self, Wanted};
use crate::network::{Way, unreachable};
use crate::offload::Offload;
use crate::peers::Unreached;
use crate::records;
use crate::shared::Shared;
use crate::tables;
use crate::type_config::{
    LogId, Membership, StoredMembership, Types, Vote, log_id_from_message, membership_from_message,
    vote_from_message, vote_to_message,
};

/// How often a receiver may ask for the same file from its beginning: each time what it had was damaged.
const RESTARTS_MAX: u32 = 3;
/// Damaged records that one look through a checkpoint finds.
const DAMAGED_MAX: usize = 10_000;
/// Of them, those that other members are asked for at once.
const MENDS_AT_ONCE: usize = 64;
/// How often a record is asked for that could not be written.
const TRIES: usize = 3;
/// How long others are asked for damaged records, before the rest is left out.
const MEND_WAIT: Duration = Duration::from_secs(30);

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
    /// Tasks of which something is missing in it: the receiver keeps what it has of them.
    lacking: BTreeSet<TaskId>,
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
    let spool = match spool(way, known, &offload).await {
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
async fn spool<M: Codec>(way: &Way<M>, known: u64, offload: &Offload) -> storage::Result<Arc<Spool>> {
    let shared = &way.shared;
    let mut slot = shared.spool.lock().await;
    if let Some((spool, used)) = &mut *slot
        && spool.last() >= known
        && goes_on_after(shared, spool)
    {
        *used = Instant::now();
        return Ok(spool.clone());
    }
    *slot = None;
    let until = Instant::now() + MEND_WAIT;
    let mut asked = BTreeSet::new();
    // It ends: nothing is found twice.
    loop {
        let (spool, damaged) = make(shared, asked.clone(), offload).await?;
        if damaged.is_empty() {
            *slot = Some((spool.clone(), Instant::now()));
            return Ok(spool);
        }
        drop(spool);
        mend_all(way, &damaged, until).await?;
        asked.extend(damaged);
    }
}

/// A new file, without damaged records; those that were not `asked` for yet are returned.
async fn make<M: Codec>(
    shared: &Arc<Shared<M>>,
    asked: BTreeSet<TaskId>,
    offload: &Offload,
) -> storage::Result<(Arc<Spool>, Vec<TaskId>)> {
    let shared = shared.clone();
    offload
        .run(move || {
            let snapshot = shared.store()?.snapshot()?;
            let head = match snapshot.get(tables::HEAD, tables::HEAD_KEY)? {
                Some(head) => seal::opened::<CheckpointHead>(tables::HEAD_KEY, head),
                None => Some(CheckpointHead::default()),
            };
            let head = head.ok_or_else(|| damaged(&shared, "its head is not what was written"))?;
            let applied = head.applied.unwrap_or_default();
            let mends = shared.mends.load(Ordering::Relaxed) + asked.len() as u64;
            let number = mix(&[shared.member.bits(), applied.term, applied.index, mends]);
            let path = spool_path(shared.group, number);
            // Removed when it is not whole, too.
            let (disk, lacking) = (shared.disk.clone(), BTreeSet::new());
            let mut spool = Spool { number, bytes: 0, head, path, disk, lacking };
            let mut found = Damage { asked: &asked, damaged: BTreeSet::new(), lacking: BTreeSet::new() };
            // Rows of tasks, in the order of their ids, as the machine's are.
            let mut tasks = Tasks { rows: snapshot.rows(Table::Executions as u8)?, next: None };
            tasks.step()?;
            let mut failed = Ok(());
            let mut takes = |table: u8, key: &[u8], value: &[u8]| match table {
                // A task without a whole record under its key has a damaged one, or one under a damaged key.
                tables::KEPT if seal::is_whole(key, value) => {
                    match tasks.upto(key, |task, row| found.missed::<M>(&snapshot, task, row)) {
                        Ok(Some(task)) if !is_all::<M>(&snapshot, key, value, &task) => found.met(key),
                        Ok(_) => {}
                        Err(error) => failed = Err(error),
                    }
                    true
                }
                tables::KEPT => false,
                tables::LATER if seal::is_whole(key, value) => true,
                tables::LATER => {
                    // A damaged key may be that of no task.
                    if !matches!(snapshot.get(Table::Executions as u8, key), Ok(None)) {
                        found.met(key);
                    }
                    false
                }
                _ => true,
            };
            spool.bytes = snapshot.spool_some(&spool.path, &mut takes)?.bytes;
            failed?;
            tasks.rest(|task, row| found.missed::<M>(&snapshot, task, row))?;
            spool.lacking = found.lacking;
            Ok((Arc::new(spool), found.damaged.into_iter().collect()))
        })
        .await
}

/// What one look through a checkpoint finds.
struct Damage<'a> {
    /// Tasks whose records others were asked for.
    asked: &'a BTreeSet<TaskId>,
    /// Tasks with a damaged record that are not among them.
    damaged: BTreeSet<TaskId>,
    /// Those that are.
    lacking: BTreeSet<TaskId>,
}

impl Damage<'_> {
    /// No whole record of this task came where it should. It may have come elsewhere: a row whose key is damaged and
    /// too high makes all behind it late.
    fn missed<M: Codec>(&mut self, snapshot: &Snapshot, key: &[u8], task: &[u8]) {
        let first = snapshot.get(tables::KEPT, key).ok().flatten();
        if !first.is_some_and(|first| is_all::<M>(snapshot, key, &first, task)) {
            self.met(key);
        }
    }

    /// The record of this task is damaged, or not there.
    fn met(&mut self, key: &[u8]) {
        let Some(task) = tables::task_of(key) else { return };
        if self.asked.contains(&task) {
            self.lacking.insert(task);
        } else if self.damaged.len() < DAMAGED_MAX {
            self.damaged.insert(task);
        }
    }
}

/// Whether a task's first record and a later one are all that is kept of it, as of its row.
fn is_all<M: Codec>(snapshot: &Snapshot, key: &[u8], first: &[u8], task: &[u8]) -> bool {
    let opened = |row| seal::opened::<KeptMessage>(key, row);
    let Some(first) = opened(Bytes::copy_from_slice(first)) else { return false };
    let Some(stand) = M::stored_stand(key, task) else { return true };
    if records::is_all(&first, stand) {
        return true;
    }
    // One that is damaged is met when it comes.
    match snapshot.get(tables::LATER, key) {
        Ok(Some(row)) => {
            opened(row).is_none_or(|later| records::is_all(&records::joined(first, later), stand))
        }
        Ok(None) => false,
        Err(_) => true,
    }
}

/// The rows of the machine's tasks, beside which those of their records are read.
struct Tasks<'a> {
    rows: Rows<'a>,
    next: Option<(Bytes, Bytes)>,
}

impl Tasks<'_> {
    fn step(&mut self) -> storage::Result<()> {
        self.next = self.rows.next().transpose()?;
        Ok(())
    }

    /// Goes on behind this key, tells of the tasks before it, and returns the row of its own.
    fn upto(&mut self, key: &[u8], mut missed: impl FnMut(&[u8], &[u8])) -> storage::Result<Option<Bytes>> {
        while let Some((task, row)) = self.next.take_if(|(task, _)| **task <= *key) {
            self.step()?;
            if *task == *key {
                return Ok(Some(row));
            }
            missed(&task, &row);
        }
        Ok(None)
    }

    /// The same of all that are left.
    fn rest(mut self, mut missed: impl FnMut(&[u8], &[u8])) -> storage::Result<()> {
        while let Some((task, row)) = self.next.take() {
            self.step()?;
            missed(&task, &row);
        }
        Ok(())
    }
}

/// Mends records with those of other members, as far as these have them. The receiver is not asked: it lags, and keeps
/// what it has.
async fn mend_all<M: Codec>(way: &Way<M>, tasks: &[TaskId], until: Instant) -> storage::Result<()> {
    let shared = &way.shared;
    let count = tasks.len();
    tracing::error!(group = %shared.group, count, "the checkpoint has damaged records: it is not sent before they are mended");
    let mut unknown = 0;
    for some in tasks.chunks(MENDS_AT_ONCE) {
        if Instant::now() >= until {
            unknown += some.len();
            continue;
        }
        let mut left: Vec<TaskId> = some.to_vec();
        for _ in 0..TRIES {
            let each = left.iter().map(|task| mend::fetch(shared, *task, Wanted::Whole, Some(way.to)));
            let fetched = futures::future::join_all(each).await;
            let mut records = BTreeMap::new();
            for (task, fetched) in left.drain(..).zip(fetched) {
                match fetched {
                    Ok(Some(fetched)) => drop(records.insert(task, fetched)),
                    Ok(None) => {
                        tracing::error!(group = %shared.group, %task, "no member has this record whole");
                    }
                    Err(_) => unknown += 1,
                }
            }
            // A checkpoint that came between makes a record that was fetched before it too old.
            left.extend(records.keys());
            let whole = mend::write_back(shared, records).await?;
            left.retain(|task| !whole.contains(task));
            if left.is_empty() {
                break;
            }
        }
        unknown += left.len();
    }
    if unknown > 0 {
        tracing::error!(group = %shared.group, to = %way.to, count = unknown, "sends a checkpoint without these damaged records: not all other members could be asked for them");
    }
    Ok(())
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
                lacking: spool.lacking.iter().flat_map(|task| tables::key(*task)).collect(),
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

fn damaged<M: Codec>(shared: &Shared<M>, what: &str) -> storage::Error {
    storage::Error::Damaged { path: storage::checkpoint_path(shared.group), offset: 0, what: what.to_owned() }
}

/// Names a file by what is in it: the same state of the same member makes the same file (FNV-1a).
fn mix(parts: &[u64]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
