//! Checkpoints: what changed since the last one, written in one durable transaction, off the hot path.
//!
//! The machine stands still for a slice at a time, never for the whole. When it is on disk the engine is
//! told that it has a snapshot, and the log before it may go. Under load the pause between checkpoints
//! grows: tasks that live shorter than that never reach the disk. Next: `keep`, `storage::checkpoint`.

use std::sync::Arc;
use std::time::Duration;

use model::limits::HISTORY_MAX;
use model::{Millis, TaskId};
use prost::Message;
use storage::Batch;
use tokio::sync::{Mutex, oneshot, watch};
use tokio::time::{Instant, sleep};
use wire::entry::{CheckpointHead, LogId as LogIdMessage};
use wire::history::{KeptMessage, LineMessage};

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::keep::{self, News, Writing};
use crate::machine_store::Checkpointed;
use crate::propose::Raft;
use crate::shared::Shared;
use crate::tables;
use crate::type_config::{LogId, membership_to_message};

/// The pause between checkpoints when little changes.
pub const CHECKPOINT_INTERVAL_DEFAULT: Millis = Millis(500);
/// The longest pause, when much changes.
const INTERVAL_BUSY: Duration = Duration::from_secs(3);
/// More changed records than this are "much".
const BUSY_CHANGES: usize = 2_000;
/// So much log since the last checkpoint ends any pause: it is what a restart reads and memory holds.
const LOG_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// How often a long pause looks whether it should end.
const BUSY_LOOK: Duration = Duration::from_millis(100);
/// Records encoded, or envelopes cached, per hold of the lock.
const SLICE_RECORDS: usize = 1_000;
/// How long to wait before a checkpoint that did not fit on the disk is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Writes the checkpoints of one group, one at a time.
pub(crate) struct Checkpointer<M: Codec> {
    shared: Arc<Shared<M>>,
    raft: Raft<M>,
    interval: Duration,
    /// A cut that is not on disk yet: what it holds is nowhere else, so it must be before the next.
    unwritten: Mutex<Option<Cut>>,
}

/// Everything that one checkpoint writes.
struct Cut {
    batch: Batch,
    writing: Writing,
    checkpointed: Checkpointed,
}

impl<M: Codec> Checkpointer<M> {
    pub(crate) fn new(shared: Arc<Shared<M>>, raft: Raft<M>, interval: Millis) -> Checkpointer<M> {
        Checkpointer { shared, raft, interval: interval.into(), unwritten: Mutex::new(None) }
    }

    /// Checkpoints whenever something changed, until told to stop.
    pub(crate) async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = self.pause() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            if let Err(error) = self.checkpoint().await {
                tracing::warn!(group = %self.shared.group, %error, "checkpoint failed, trying again");
                sleep(RETRY).await;
            }
        }
    }

    /// Until there is something to write and it is time to.
    async fn pause(&self) {
        while !self.is_behind() {
            self.shared.applied.notified().await;
        }
        let start = Instant::now();
        sleep(self.interval).await;
        while self.is_busy() && start.elapsed() < INTERVAL_BUSY {
            sleep(BUSY_LOOK).await;
        }
    }

    fn is_behind(&self) -> bool {
        let applied = self.shared.lock().applied;
        applied != self.shared.checkpointed.lock().applied
    }

    fn is_busy(&self) -> bool {
        let core = self.shared.lock();
        let changed = core.machine.changed() + core.keep.changed();
        changed > BUSY_CHANGES && core.bytes_since_cut < LOG_BYTES_MAX
    }

    /// Writes a checkpoint of all that is applied now, and lets the log before it go.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        let mut unwritten = self.unwritten.lock().await;
        loop {
            let cut = unwritten.take();
            let is_new = cut.is_none();
            if is_new && !self.is_behind() {
                return Ok(());
            }
            let (cut, written) = self.write(cut).await?;
            if let Err(error) = written {
                *unwritten = cut;
                return Err(error);
            }
            // The engine builds its snapshot from `checkpointed`, and purges the log before it.
            if self.raft.trigger().snapshot().await.is_err() {
                return Err(Error::Stopped);
            }
            if is_new {
                return Ok(());
            }
        }
    }

    /// Cuts, unless there is a cut, and writes it, on a thread that may block.
    async fn write(&self, cut: Option<Cut>) -> Result<(Option<Cut>, Result<()>)> {
        let (done, result) = oneshot::channel();
        let shared = self.shared.clone();
        let work = move || {
            let cut = cut.unwrap_or_else(|| make_cut(&shared));
            drop(done.send(write_cut(&shared, cut)));
        };
        self.shared.executor.spawn(&format!("checkpoint-{}", self.shared.group), Box::new(work));
        result.await.map_err(|_| Error::Stopped)
    }
}

/// Takes all that changed out of the machine, a slice at a time.
fn make_cut<M: Codec>(shared: &Shared<M>) -> Cut {
    let (checkpointed, hash, writing) = shared.slice(|core| {
        let hash = core.machine.hash();
        core.machine.cut();
        core.bytes_since_cut = 0;
        if let Some(applied) = core.applied {
            core.hash_points.push(applied.index, hash);
        }
        let checkpointed = Checkpointed { applied: core.applied, membership: core.membership.clone() };
        (checkpointed, hash, core.keep.cut())
    });
    let mut batch = Batch::new();
    let mut changes = Vec::with_capacity(SLICE_RECORDS);
    loop {
        let more = shared.slice(|core| core.machine.cut_some(SLICE_RECORDS, &mut changes));
        for change in changes.drain(..) {
            match &change.value {
                Some(value) => batch.put(change.table as u8, &change.key, value),
                None => batch.delete(change.table as u8, &change.key),
            }
        }
        if !more {
            break;
        }
    }
    batch.put(tables::HEAD, tables::HEAD_KEY, &head(&checkpointed, hash).encode_to_vec());
    Cut { batch, writing, checkpointed }
}

fn head(checkpointed: &Checkpointed, hash: u128) -> CheckpointHead {
    let id = |id: LogId| LogIdMessage { term: id.leader_id.term, index: id.index };
    CheckpointHead {
        applied: checkpointed.applied.map(id),
        membership_at: checkpointed.membership.log_id().map(id),
        membership: Some(membership_to_message(checkpointed.membership.membership())),
        hash_high: (hash >> 64) as u64,
        hash_low: hash as u64,
    }
}

/// Writes a cut; gives it back if that failed.
fn write_cut<M: Codec>(shared: &Shared<M>, mut cut: Cut) -> (Option<Cut>, Result<()>) {
    let failed = |error: storage::Error| Error::Storage { group: shared.group, what: error.to_string() };
    let written =
        add_kept(shared, &cut.writing, &mut cut.batch).and_then(|()| shared.store.write(&cut.batch));
    if let Err(error) = written {
        return (Some(cut), Err(failed(error)));
    }
    fill_cache(shared, &cut.writing);
    let written = shared.slice(|core| core.keep.written());
    *shared.checkpointed.lock() = cut.checkpointed;
    // A large map: dropped here, not under the lock.
    drop(written);
    (None, Ok(()))
}

/// Adds what is kept of tasks. Doing it twice does no harm: the last word on a key counts.
fn add_kept<M: Codec>(shared: &Shared<M>, writing: &Writing, batch: &mut Batch) -> storage::Result<()> {
    let mut tasks: Vec<(TaskId, &News)> = writing.iter().map(|(task, news)| (*task, news)).collect();
    tasks.sort_unstable_by_key(|(task, _)| *task);
    let mut later = Vec::new();
    for (task, news) in tasks {
        let key = tables::key(task);
        if news.forgotten {
            batch.delete(tables::KEPT, &key);
            batch.delete(tables::LATER, &key);
        } else if news.fresh {
            batch.put(tables::KEPT, &key, &message(news).encode_to_vec());
        } else {
            later.push((key, news));
        }
    }
    for slice in later.chunks(SLICE_RECORDS) {
        let keys: Vec<_> = slice.iter().map(|(key, _)| *key).collect();
        let rows = shared.store.get_many(tables::LATER, &keys)?;
        for ((key, news), row) in slice.iter().zip(rows) {
            // A row that does not decode is replaced: it is history, not state.
            let stored = row.and_then(|row| KeptMessage::decode(row).ok()).unwrap_or_default();
            batch.put(tables::LATER, key, &joined(stored, message(news)).encode_to_vec());
        }
    }
    Ok(())
}

/// What came of a task, as a record.
fn message(news: &News) -> KeptMessage {
    let skip = news.history.len().saturating_sub(HISTORY_MAX);
    let lines = news.history[skip..].iter();
    KeptMessage {
        envelope: news.envelope.clone(),
        output: news.output.clone(),
        detail: news.detail.clone(),
        history: lines.map(|line| LineMessage::new(line.at, line.index, &line.event)).collect(),
    }
}

/// Two records of one task, the newer word counting.
pub(crate) fn joined(mut old: KeptMessage, new: KeptMessage) -> KeptMessage {
    old.envelope = new.envelope.or(old.envelope);
    old.output = new.output.or(old.output);
    old.detail = new.detail.or(old.detail);
    // A checkpoint that ends while somebody reads shows its lines twice: in memory and on disk.
    let seen = old.history.last().map(LineMessage::index);
    old.history.extend(new.history.into_iter().filter(|line| Some(line.index()) > seen));
    let skip = old.history.len().saturating_sub(HISTORY_MAX);
    old.history.drain(..skip);
    old
}

/// What is known of a task: on disk, on its way there, and newer than that.
pub(crate) fn kept<M: Codec>(shared: &Shared<M>, task: TaskId) -> storage::Result<Option<KeptMessage>> {
    // Memory first: what a checkpoint moves from there to the disk meanwhile is then seen twice, not never.
    let news = shared.lock().keep.news(task);
    let key = tables::key(task);
    let mut all = None::<KeptMessage>;
    let mut add = |message: KeptMessage| all = Some(joined(all.take().unwrap_or_default(), message));
    for table in [tables::KEPT, tables::LATER] {
        if let Some(row) = shared.store.get(table, &key)? {
            add(KeptMessage::decode(row).unwrap_or_default());
        }
    }
    for news in news.into_iter().flatten() {
        if news.forgotten {
            return Ok(None);
        }
        add(message(&news));
    }
    Ok(all)
}

/// Keeps envelopes of waiting tasks in memory while there is room.
fn fill_cache<M: Codec>(shared: &Shared<M>, writing: &Writing) {
    if !shared.lock().keep.has_room() {
        return;
    }
    let mut envelopes = keep::cacheable(writing).peekable();
    while envelopes.peek().is_some() {
        let slice: Vec<_> = envelopes.by_ref().take(SLICE_RECORDS).collect();
        let has_room = shared.slice(|core| {
            core.keep.cache(slice.into_iter());
            core.keep.has_room()
        });
        if !has_room {
            return;
        }
    }
}
