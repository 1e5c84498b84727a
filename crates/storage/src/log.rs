//! The log of a node: one for all its groups.
//!
//! Entries, votes, truncations and purges of all groups become records of the same segments, in the order
//! of the calls, and one synced write completes all that gathered while the last one ran. What a caller may
//! rely on: after `done(Ok)` the change survives any crash, and so do all changes of that group before it.
//!
//! Must never look into a payload. Next: `group_log.rs` for the calls, `writer.rs` for what they lead to,
//! `recovery.rs` for what a restart makes of it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use model::GroupId;
use parking_lot::{Mutex, RwLock};

use crate::disk::{Disk, Open};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::group_index::GroupIndex;
use crate::group_log::{GroupLog, LogId};
use crate::pool::{Pool, Spares};
use crate::queue::{Group, Queue};
use crate::recovery::{self, Replayed};
use crate::reserve::Reserve;
use crate::segment::{DATA_START, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, free_path};
use crate::stats::{Counters, LogStats};
use crate::table::{SegmentFacts, Table};
use crate::writer::{End, IDLE, ROOM_RETRY, Start, State, Writer};

/// What ends the process when its disk can no longer be trusted.
pub type OnFatal = Arc<dyn Fn(&Error) + Send + Sync>;

/// What a process ends with when its disk can no longer be trusted.
pub const FATAL_EXIT_CODE: i32 = 70;

/// How the log behaves.
#[derive(Clone)]
pub struct LogOptions {
    /// Bytes of a segment. An entry may be three quarters of it.
    pub segment_bytes: u64,
    /// Payload bytes of recent entries kept in memory. What is not synced yet stays beyond that.
    pub cache_bytes: usize,
    /// Bytes that may wait to be written before a caller waits.
    pub queue_bytes: usize,
    /// Free segments that are kept to be used again; others are removed.
    pub spare_segments: usize,
    /// A group that keeps more bytes of segments than this lags.
    pub lag_bytes: u64,
    /// What is gathered before it is written, when more than this comes at once.
    pub piece_bytes: usize,
    /// Given back when a segment finds no room.
    pub reserve: Option<Arc<Reserve>>,
    /// Runs once when a write or a sync has failed, before anybody hears of it, or when
    /// [`GroupLog::give_up`] says that nothing here can be trusted. By default it ends the process with [`FATAL_EXIT_CODE`]:
    /// what is on the disk is unknown, and only a restart finds out.
    pub on_fatal: OnFatal,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            segment_bytes: 64 * 1024 * 1024,
            cache_bytes: 8 * 1024 * 1024,
            queue_bytes: 64 * 1024 * 1024,
            spare_segments: 4,
            lag_bytes: 512 * 1024 * 1024,
            piece_bytes: 4 * 1024 * 1024,
            reserve: None,
            on_fatal: Arc::new(|error| {
                tracing::error!(%error, "this process cannot go on: it ends now");
                std::process::exit(FATAL_EXIT_CODE);
            }),
        }
    }
}

/// What a restart found.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// An unfinished write that was cut off. Nothing of it had been acknowledged.
    pub torn: Option<TornTail>,
    /// Groups that have something in the log, by number.
    pub groups: Vec<RecoveredGroup>,
}

/// An unfinished write at the end of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The segment.
    pub path: PathBuf,
    /// Where it begins.
    pub offset: u64,
}

impl fmt::Display for TornTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ends in an unfinished write at byte {}: cut off, nothing of it was acknowledged",
            self.path.display(),
            self.offset
        )
    }
}

/// A group that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredGroup {
    /// The group.
    pub group: GroupId,
    /// Its last vote.
    pub vote: Option<Bytes>,
    /// Its last purged entry.
    pub purged: Option<LogId>,
    /// Its last entry, or the last purged one when there is none after it.
    pub last: Option<LogId>,
    /// How many entries are there.
    pub entries: u64,
}

/// The log of a node. A cheap handle; the writer ends when the last one is dropped, or by [`close`](Log::close).
#[derive(Clone)]
pub struct Log {
    handle: Arc<Handle>,
}

/// What the handles and the writer share.
pub(crate) struct Shared {
    pub(crate) options: LogOptions,
    pub(crate) dir: PathBuf,
    pub(crate) queue: Queue,
    pub(crate) table: Mutex<Table>,
    pub(crate) groups: RwLock<BTreeMap<GroupId, Arc<Group>>>,
    pub(crate) cached_bytes: AtomicUsize,
    pub(crate) counters: Counters,
    pub(crate) out_of_room: AtomicBool,
}

/// What the handles share. Its end is the end of the writer.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    pool: Arc<Pool>,
    writer: Arc<Mutex<Writer>>,
    executor: Arc<dyn Executor>,
}

impl Log {
    /// Opens the log in `dir`, which is made if it is not there. Damage is an error; a torn tail is cut and
    /// reported. When this returns, all that was recovered is on the disk.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: LogOptions,
        executor: Arc<dyn Executor>,
    ) -> Result<(Log, Recovered)> {
        assert!(
            (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&options.segment_bytes),
            "a log segment has {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX} bytes"
        );
        disk.create_dir_all(dir).map_err(|source| Error::io("make", dir, source))?;
        let replayed = recovery::replay(&*disk, dir, Open::ReadWrite, &mut |_, _| {})?;
        let recovered = recovered(&replayed);
        if let Some(torn) = &recovered.torn {
            tracing::warn!("{torn}");
        }
        let log = start(disk, dir, options, executor, replayed)?;
        Ok((log, recovered))
    }

    /// A group's part of the log, empty if it was never written to.
    pub fn group(&self, group: GroupId) -> GroupLog {
        let shared = &self.handle.shared;
        let known = shared.groups.read().get(&group).cloned();
        let group = known.unwrap_or_else(|| {
            let new = || Arc::new(Group { id: group, index: Mutex::new(GroupIndex::new(group)) });
            shared.groups.write().entry(group).or_insert_with(new).clone()
        });
        GroupLog::new(self.handle.clone(), group)
    }

    /// Writes what is queued, marks the log as ended in order and stops the writer. Blocks until then.
    /// Calls that come later fail.
    pub fn close(&self) -> Result<()> {
        self.handle.close();
        self.handle.shared.queue.wait_closed();
        self.fatal().map_or(Ok(()), Err)
    }

    /// The counters as they are now.
    pub fn stats(&self) -> LogStats {
        let shared = &self.handle.shared;
        let (queued, queued_bytes) = shared.queue.depth();
        LogStats {
            queued: queued as u64,
            queued_bytes: queued_bytes as u64,
            segments: shared.table.lock().len() as u64,
            segments_spare: self.handle.pool.spare() as u64,
            cached_bytes: shared.cached_bytes.load(Relaxed) as u64,
            ..shared.counters.read()
        }
    }

    /// Why every call fails, once a write or a sync has.
    pub fn fatal(&self) -> Option<Error> {
        self.handle.shared.queue.fatal()
    }

    /// Whether the writer waits for room on the disk. It goes on by itself; without threads and time, by the next
    /// call.
    pub fn is_out_of_room(&self) -> bool {
        self.handle.shared.out_of_room.load(Relaxed)
    }
}

impl Handle {
    /// Asks for a job that writes what is queued.
    pub(crate) fn spawn_job(&self) {
        let (writer, executor) = (self.writer.clone(), self.executor.clone());
        self.executor.spawn("log-writer", Box::new(move || run_job(&writer, &executor, Writer::run_once)));
    }

    fn close(&self) {
        let first = self.shared.queue.close();
        if first && !self.executor.has_threads() {
            let mut writer = self.writer.lock();
            writer.run_once();
            writer.finish();
        }
    }
}

/// Does a job of the writer, and asks for what comes later: another look for room where there was none, a proof of what
/// was written if silence follows.
fn run_job(
    writer: &Arc<Mutex<Writer>>,
    executor: &Arc<dyn Executor>,
    job: impl FnOnce(&mut Writer) -> Option<End>,
) {
    let mut held = writer.lock();
    let (unproven, must_look_again) = (job(&mut held), held.must_look_again());
    drop(held);
    if must_look_again {
        let (writer, later) = (writer.clone(), executor.clone());
        let again = Box::new(move || run_job(&writer, &later, Writer::look_again));
        executor.spawn_after("log-writer", ROOM_RETRY, again);
    }
    if let Some(end) = unproven {
        let writer = writer.clone();
        executor.spawn_after("log-proof", IDLE, Box::new(move || writer.lock().prove_if_silent(end)));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Without threads this would write from wherever the last handle happens to be dropped.
        if self.executor.has_threads() {
            self.close();
        }
    }
}

impl Shared {
    /// Fails every call from now on, and says so once.
    pub(crate) fn poison(&self, error: &Error) {
        if self.queue.set_fatal(error) {
            (self.options.on_fatal)(error);
        }
    }

    /// Forgets payloads when there are too many, the largest group's first.
    pub(crate) fn evict(&self) {
        let (cached, max) = (self.cached_bytes.load(Relaxed), self.options.cache_bytes);
        if cached <= max {
            return;
        }
        // A little more than needed, so that the groups are not compared after every batch.
        let mut excess = cached - max + max / 8;
        while excess > 0 {
            let groups = self.groups.read();
            let largest = groups.values().max_by_key(|group| group.index.lock().cached_bytes());
            let Some(largest) = largest.cloned() else { return };
            drop(groups);
            let freed = largest.index.lock().evict(excess);
            if freed == 0 {
                return;
            }
            self.cached_bytes.fetch_sub(freed, Relaxed);
            excess = excess.saturating_sub(freed);
        }
    }

    /// The largest payload of an entry.
    pub(crate) fn entry_bytes_max(&self) -> u64 {
        (self.options.segment_bytes - DATA_START) / 4 * 3
    }
}

fn recovered(replayed: &Replayed) -> Recovered {
    let groups = replayed.groups.iter().map(|(group, index)| RecoveredGroup {
        group: *group,
        vote: index.vote().cloned(),
        purged: index.purged(),
        last: index.state().last,
        entries: index.entries(),
    });
    Recovered { torn: replayed.torn.clone(), groups: groups.collect() }
}

fn start(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: LogOptions,
    executor: Arc<dyn Executor>,
    mut replayed: Replayed,
) -> Result<Log> {
    let free = clear_leftovers(&*disk, dir, &mut replayed, options.spare_segments)?;
    let spares = Spares { free, next_epoch: replayed.next_epoch };
    let sizes = (options.segment_bytes, options.spare_segments);
    let pool = Arc::new(Pool::new(disk, dir, executor.clone(), sizes, spares));
    let mut chain = std::mem::take(&mut replayed.chain);
    match chain.last() {
        None => {
            chain.push(SegmentFacts::new(Arc::new(pool.take()?)));
            replayed.end = DATA_START;
        }
        Some(last) => {
            // What an ended process wrote may be in memory only; from now on others rely on it. Also after an orderly end: its
            // last write may have failed, and a synced write syncs nothing but itself.
            let (file, path) = (&last.segment().file, &last.segment().path);
            file.sync_data().map_err(|source| Error::io("sync", path, source))?;
            pool.work_ahead();
        }
    }
    let must_roll = !replayed.clean;
    let segment = chain.last().expect("one was just made").segment().clone();
    let mut table = Table::new(chain);
    let mut states = BTreeMap::new();
    for (group, index) in &replayed.groups {
        let (vote, purged) = (index.vote().cloned(), index.purged());
        if let Some(purged) = purged {
            table.purged(*group, purged.index + 1);
        }
        states.insert(*group, State { vote, purged });
    }
    let group = |(id, index)| (id, Arc::new(Group { id, index: Mutex::new(index) }));
    let shared = Arc::new(Shared {
        queue: Queue::new(options.queue_bytes, executor.has_threads()),
        options,
        dir: dir.to_owned(),
        table: Mutex::new(table),
        groups: RwLock::new(replayed.groups.into_iter().map(group).collect()),
        cached_bytes: AtomicUsize::new(0),
        counters: Counters::default(),
        out_of_room: AtomicBool::new(false),
    });
    let start = Start { segment, position: replayed.end, must_roll, states };
    let writer = Arc::new(Mutex::new(Writer::new(shared.clone(), pool.clone(), start)?));
    if executor.has_threads() {
        let writer = writer.clone();
        executor.spawn("log-writer", Box::new(move || writer.lock().run()));
    }
    Ok(Log { handle: Arc::new(Handle { shared, pool, writer, executor }) })
}

/// Frees what an ended process had made ready, and removes what it had not finished.
fn clear_leftovers(
    disk: &dyn Disk,
    dir: &Path,
    replayed: &mut Replayed,
    spare_max: usize,
) -> Result<Vec<PathBuf>> {
    let mut free = std::mem::take(&mut replayed.free);
    for segment in replayed.unused.drain(..) {
        // It may hold torn records of its epoch, so it keeps that number in its name.
        let to = free_path(dir, segment.epoch);
        disk.rename(&segment.path, &to).map_err(|source| Error::io("rename", &segment.path, source))?;
        free.push(to);
    }
    let surplus = free.split_off(free.len().min(spare_max));
    for path in replayed.unfinished.drain(..).chain(surplus) {
        disk.remove(&path).map_err(|source| Error::io("remove", &path, source))?;
    }
    disk.sync_dir(dir).map_err(|source| Error::io("sync", dir, source))?;
    Ok(free)
}
