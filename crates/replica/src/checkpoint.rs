//! Checkpoints: what changed since the last one, written in one durable transaction, off the hot path.
//!
//! The machine stands still for a slice at a time, never for the whole. When it is on disk the engine is
//! told that it has a snapshot, and the log before it may go. Under load the pause between checkpoints
//! grows: tasks that live shorter than that never reach the disk. Next: `keep`, `records`,
//! `storage::checkpoint`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{Millis, TaskId};
use state_machine::Change;
use storage::Batch;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::keep::{self, Writing};
use crate::machine_store::Checkpointed;
use crate::mend;
use crate::news::{GONE_PER_TASK, NewsTable};
use crate::propose::Raft;
use crate::records::{self, Others};
use crate::replica::ReplicaConfig;
use crate::shared::{Core, Shared};

/// The pause between checkpoints when little changes.
pub const CHECKPOINT_INTERVAL_DEFAULT: Millis = Millis(500);
/// The longest pause, when much changes.
const INTERVAL_BUSY: Duration = Duration::from_secs(20);
/// More changed records than this are "much".
const BUSY_CHANGES: usize = 2_000;
/// So much log since the last checkpoint ends any pause: it is what a restart reads and memory holds.
const LOG_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// So many tasks with news since the last checkpoint end any pause: they are held in memory, whole. Far more than
/// the retained ones of a shard of a busy queue: what comes and goes faster than the pause costs the disk nothing, and a
/// checkpoint that begins because of those would only begin again when as many have taken their place.
const NEWS_MAX: usize = 60_000;
/// How often a pause looks whether this group keeps segments from being used again.
const LAG_LOOK: Duration = Duration::from_millis(500);
/// How often a long pause looks whether it should end.
const BUSY_LOOK: Duration = Duration::from_millis(100);
/// Records encoded, or envelopes cached, per hold of the lock.
const SLICE_RECORDS: usize = 500;
/// How often a group in which nothing happens looks at the same.
const QUIET_LOOK: Duration = Duration::from_secs(1);
/// Log that is kept although it is checkpointed, unless told otherwise.
pub(crate) const KEEP_LOG_BYTES_DEFAULT: u64 = 16 * 1024 * 1024;
/// Log that is kept for a member to which a checkpoint is being sent: it goes on after it.
const HELD_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// How long the engine may take to hear of a checkpoint before its log is let go of later.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(5);
/// How long to wait before a checkpoint that did not fit on the disk is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Writes the checkpoints of one group, one at a time.
pub(crate) struct Checkpointer<M: Codec> {
    shared: Arc<Shared<M>>,
    raft: Raft<M>,
    interval: Duration,
    turns: Arc<Semaphore>,
}

/// Everything that one checkpoint writes.
pub(crate) struct Cut {
    /// What the machine changed.
    changes: Vec<Change>,
    /// What came of tasks beside that.
    writing: Writing,
    hash: u128,
    checkpointed: Checkpointed,
    /// Bytes of envelopes that the cache had room for.
    room: usize,
}

impl<M: Codec> Checkpointer<M> {
    pub(crate) fn new(shared: Arc<Shared<M>>, raft: Raft<M>, config: &ReplicaConfig) -> Checkpointer<M> {
        let turns = config.checkpoint_turns.clone();
        Checkpointer { shared, raft, interval: config.checkpoint_interval.into(), turns }
    }

    /// Checkpoints whenever something changed, until told to stop.
    pub(crate) async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = self.pause() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            match self.clone().checkpoint().await {
                Ok(()) => {}
                Err(Error::Stopped) => return,
                Err(error) => {
                    tracing::error!(group = %self.shared.group, %error, "checkpoint failed, it is tried again");
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Until there is something to write and it is time to.
    async fn pause(&self) {
        while !self.is_behind() {
            // A quiet shard keeps no room for the load that was.
            let unused = self.shared.lock().keep.rest();
            drop(unused);
            tokio::select! {
                () = self.shared.applied.notified() => {}
                // A quiet group holds on to the log of the busy ones.
                () = sleep(QUIET_LOOK) => self.let_go().await,
            }
        }
        let start = Instant::now();
        loop {
            // At least one look long: a purge takes its time too.
            sleep(LAG_LOOK.min(self.interval.saturating_sub(start.elapsed()))).await;
            if start.elapsed() >= self.interval || self.shared.log.is_lagging() {
                break;
            }
        }
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
        let busy = core.machine.changed() + core.keep.changed() > BUSY_CHANGES;
        busy && core.keep.weight() < NEWS_MAX
            && core.bytes_since_cut < LOG_BYTES_MAX
            && !self.shared.log.is_lagging()
    }

    /// Writes a checkpoint of all that is applied now, and lets the log before it go.
    pub(crate) async fn checkpoint(self: Arc<Self>) -> Result<()> {
        // In a task of its own: a caller that gives up must not leave a cut half read.
        let whole = self.clone();
        let task = tokio::spawn(async move { whole.checkpoint_whole().await });
        match task.await {
            Ok(result) => result,
            Err(error) if error.is_panic() => Err(self.panicked()),
            Err(_) => Err(Error::Stopped),
        }
    }

    /// What a panic took with it is nowhere else: without checkpoints the log would grow without end, so
    /// nothing goes on.
    fn panicked(&self) -> Error {
        let what = format!("a checkpoint of group {} panicked", self.shared.group);
        self.shared.log.give_up(&what);
        Error::Storage { group: self.shared.group, what }
    }

    async fn checkpoint_whole(&self) -> Result<()> {
        let mut unwritten = self.shared.unwritten.lock().await;
        if self.shared.failure.lock().is_some() {
            // What is in memory is not what it should be: what is on disk stays for whoever looks into it.
            return Err(Error::Stopped);
        }
        let before = self.shared.checkpointed.lock().applied;
        if let Some(cut) = unwritten.take() {
            self.write(Some(cut), &mut unwritten).await?;
        }
        if self.is_behind() {
            self.write(None, &mut unwritten).await?;
        }
        // Not while others wait for it: the engine may, too.
        drop(unwritten);
        if self.shared.checkpointed.lock().applied != before {
            // The engine takes its snapshot from `checkpointed`.
            self.raft.trigger().snapshot().await.map_err(|_| Error::Stopped)?;
        }
        self.let_go().await;
        Ok(())
    }

    /// Lets the log go that nobody needs any more.
    async fn let_go(&self) {
        let Some(upto) = self.needless() else { return };
        // The engine lets go only of what it knows a snapshot of.
        let mut snapshot = self.raft.watch_snapshot_progress();
        let known = snapshot.wait_until(|known| known.is_some_and(|known| known.index >= upto));
        if timeout(SNAPSHOT_WAIT, known).await.is_ok() {
            // An engine that has stopped has nothing to let go of.
            let _ = self.raft.trigger().purge_log(upto).await;
        }
    }

    /// The last entry that nobody needs any more, if it is still there.
    fn needless(&self) -> Option<u64> {
        let log = &self.shared.log;
        let checkpointed = self.shared.checkpointed.lock().applied?.index;
        let is_alone = self.shared.lock().membership.membership().nodes().nth(1).is_none();
        let upto = match is_alone || log.is_lagging() {
            true => checkpointed,
            // A member that was away for a moment catches up by the log.
            false => log.last_before(self.shared.keep_log_bytes)?.min(checkpointed),
        };
        let held = self.shared.holds.first().filter(|held| log.bytes_since(*held) <= HELD_BYTES_MAX);
        let upto = upto.min(held.unwrap_or(u64::MAX));
        log.state().purged.is_none_or(|purged| purged.index < upto).then_some(upto)
    }

    /// Makes a cut, unless there is one, and writes it, on a thread that may block. If that fails the cut
    /// stays in `unwritten`.
    async fn write(&self, cut: Option<Cut>, unwritten: &mut Option<Cut>) -> Result<()> {
        // With `unwritten` in hand: a checkpoint that is being installed may have that for long on a full disk, and must not have
        // the turn of all others meanwhile.
        let _turn = self.turns.acquire().await.map_err(|_| Error::Stopped)?;
        if cut.is_none() && self.shared.failure.lock().is_some() {
            return Err(Error::Stopped);
        }
        let executor = &*self.shared.executor;
        let cut = match cut {
            Some(cut) => cut,
            None => self.on_thread(|name, work| executor.spawn(name, work), make_cut).await?,
        };
        // The most of it, without the lock: whoever serves goes first.
        let write = |shared: &Shared<M>| {
            let written = write_cut(shared, &cut);
            (cut, written)
        };
        let (cut, written) = self.on_thread(|name, work| executor.spawn_behind(name, work), write).await?;
        let Written { damaged, cacheable } = match written {
            Ok(written) => written,
            Err(error) => {
                *unwritten = Some(cut);
                // A damaged file takes no checkpoint any more, and the log would grow without end.
                if error.is_fatal() || matches!(error, storage::Error::Damaged { .. }) {
                    self.shared.log.give_up(&error.to_string());
                }
                return Err(Error::Storage { group: self.shared.group, what: error.to_string() });
            }
        };
        let take_over = |shared: &Shared<M>| take_over(shared, cut, cacheable);
        let checkpointed = self.on_thread(|name, work| executor.spawn(name, work), take_over).await?;
        *self.shared.checkpointed.lock() = checkpointed;
        mend::mend_met(&self.shared, damaged);
        Ok(())
    }

    /// Does `work` on a thread that may block, which `spawn` gets.
    async fn on_thread<T: Send + 'static>(
        &self,
        spawn: impl FnOnce(&str, storage::Work),
        work: impl FnOnce(&Shared<M>) -> T + Send + 'static,
    ) -> Result<T> {
        let (done, result) = oneshot::channel();
        let shared = self.shared.clone();
        let work = move || drop(done.send(catch_unwind(AssertUnwindSafe(|| work(&shared)))));
        spawn(&format!("checkpoint-{}", self.shared.group), Box::new(work));
        result.await.map_err(|_| Error::Stopped)?.map_err(|_| self.panicked())
    }
}

/// Takes all that changed out of the machine, a slice at a time.
fn make_cut<M: Codec>(shared: &Shared<M>) -> Cut {
    // Room for as much as came before is made here: growing under the lock would copy it all.
    let empty = NewsTable::with_capacity(shared.lock().keep.changed().min(GONE_PER_TASK * NEWS_MAX));
    let mut cut = shared.slice(|core| begin(core, empty));
    if let Some(applied) = cut.checkpointed.applied {
        shared.teller.hashed(applied.index, cut.hash);
    }
    loop {
        let mut changes = Vec::with_capacity(SLICE_RECORDS);
        let more = shared.slice(|core| core.machine.cut_some(SLICE_RECORDS, &mut changes));
        cut.changes.append(&mut changes);
        if !more {
            return cut;
        }
    }
}

/// Begins a checkpoint of the state as it is now.
fn begin<M: Codec>(core: &mut Core<M>, empty: NewsTable) -> Cut {
    let hash = core.machine.hash();
    core.machine.cut();
    core.bytes_since_cut = 0;
    if let Some(applied) = core.applied {
        core.hash_points.push(applied.index, hash);
    }
    let checkpointed = Checkpointed { applied: core.applied, membership: core.membership.clone() };
    let (writing, room) = (core.keep.cut(empty), core.keep.room());
    Cut { changes: Vec::new(), writing, hash, checkpointed, room }
}

/// What a written checkpoint leaves to do.
struct Written {
    /// Tasks that have a damaged record on the disk.
    damaged: Vec<TaskId>,
    /// Envelopes that memory held and the cache may hold from now on.
    cacheable: Vec<(TaskId, Bytes)>,
}

/// Writes a cut.
fn write_cut<M: Codec>(shared: &Shared<M>, cut: &Cut) -> storage::Result<Written> {
    let store = shared.store()?;
    // One that grows is copied again and again.
    let own: usize = cut.changes.iter().map(Change::bytes).sum();
    let mut batch = Batch::with_room(own + cut.writing.bytes());
    for change in &cut.changes {
        match &change.value {
            Some(value) => batch.put(change.table as u8, &change.key, value),
            None => batch.delete(change.table as u8, &change.key),
        }
    }
    records::put_head(&cut.checkpointed, cut.hash, &mut batch);
    let is_alone = cut.checkpointed.membership.membership().nodes().nth(1).is_none();
    let others = if is_alone { Others::None } else { Others::Some };
    let news = cut.writing.sorted();
    let damaged = records::put_kept(&store, &news, others, &mut batch)?;
    store.write(&batch)?;
    Ok(Written { damaged, cacheable: keep::cacheable(&news, cut.room) })
}

/// The cache takes over what memory held until it was on the disk.
fn take_over<M: Codec>(shared: &Shared<M>, cut: Cut, cacheable: Vec<(TaskId, Bytes)>) -> Checkpointed {
    let mut cacheable = cacheable.into_iter().peekable();
    while cacheable.peek().is_some() {
        let some = cacheable.by_ref().take(SLICE_RECORDS).collect();
        shared.slice(|Core { keep, machine, .. }| keep.cache(some, |task| machine.slot(task)));
    }
    // Large, and still the cut's: dropped here, not under the lock and not on a thread that serves.
    drop(shared.slice(|core| core.keep.written()));
    cut.checkpointed
}
