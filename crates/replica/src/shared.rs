//! What the tasks of one replica share: the machine behind its lock, and the signals between them.
//!
//! The lock is never held across an await, and by a checkpoint only for a slice at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use model::{GroupId, MemberId};
use parking_lot::{Mutex, MutexGuard};
use state_machine::{Effects, Machine, NextDue};
use storage::{CheckpointStore, Disk, Executor, GroupLog};
use tokio::sync::{Notify, broadcast, watch};

use crate::checkpoint::Cut;
use crate::clock::Stamper;
use crate::hash_points::HashPoints;
use crate::holds::Holds;
use crate::keep::Keep;
use crate::machine_store::Checkpointed;
use crate::mend::Mending;
use crate::notice::Heard;
use crate::offload::Offload;
use crate::peers::Peers;
use crate::propose::Piece;
use crate::quiet::Quiet;
use crate::replica::{MakeMachine, ReplicaConfig};
use crate::transfer::{Incoming, Spool};
use crate::type_config::{LogId, StoredMembership};
use crate::witness::{Teller, Who};

/// What a checkpoint rests before each slice.
const SLICE_REST: Duration = Duration::from_micros(50);

/// Hands commands to the inbox; whether it took them.
pub(crate) type Settle = Box<dyn Fn(Piece) -> bool + Send + Sync>;

/// The machine and what moves with it, index by index.
pub(crate) struct Core<M> {
    pub(crate) machine: M,
    pub(crate) keep: Keep,
    /// The last applied entry.
    pub(crate) applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
    /// Bytes of entries applied since the last cut.
    pub(crate) bytes_since_cut: u64,
    pub(crate) hash_points: HashPoints,
    /// When something is due next, as of the last applied entry.
    pub(crate) next_due: NextDue,
    /// Empty between entries: room for the effects of the next.
    pub(crate) effects: Effects,
}

/// What the tasks of one replica share.
pub(crate) struct Shared<M> {
    pub(crate) group: GroupId,
    pub(crate) member: MemberId,
    pub(crate) envelope_cache_bytes: usize,
    pub(crate) keep_log_bytes: u64,
    pub(crate) hash_every: u64,
    pub(crate) teller: Teller,
    /// Makes an empty machine, to install a checkpoint of another member into.
    pub(crate) make: MakeMachine<M>,
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) log: GroupLog,
    core: Mutex<Core<M>>,
    /// Until the stop.
    store: Mutex<Option<CheckpointStore>>,
    /// The last checkpoint that is on disk.
    pub(crate) checkpointed: Mutex<Checkpointed>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) reader: Offload,
    pub(crate) stamper: Stamper,
    pub(crate) notices: broadcast::Sender<Heard>,
    /// Rings when entries were applied: there may be something to checkpoint.
    pub(crate) applied: Notify,
    /// The last applied entry, for those who wait for one.
    pub(crate) applied_index: watch::Sender<Option<u64>>,
    /// Reads that wait for a quorum's word: heartbeats do not wait for company then.
    pub(crate) reads_waiting: AtomicUsize,
    /// A cut that is not on disk yet: what it holds is nowhere else, so it must be before the next. Whoever
    /// writes the checkpoint or replaces it holds this.
    pub(crate) unwritten: tokio::sync::Mutex<Option<Cut>>,
    /// The state is being replaced by a checkpoint of the leader.
    pub(crate) installing: AtomicBool,
    /// What of the log others still need.
    pub(crate) holds: Holds,
    /// A checkpoint that is being sent, and when it last was.
    pub(crate) spool: tokio::sync::Mutex<Option<(Arc<Spool>, tokio::time::Instant)>>,
    /// A checkpoint that is being received.
    pub(crate) incoming: tokio::sync::Mutex<Option<Incoming>>,
    /// When the leader was last heard.
    heard: Mutex<Option<tokio::time::Instant>>,
    /// Why this replica stopped for good, if it did.
    pub(crate) failure: Mutex<Option<String>>,
    /// Has commands of this replica's own proposed, if it leads; nobody waits for what they bring.
    pub(crate) settle: OnceLock<Settle>,
    /// Records that were mended, so that a file made before is told from one made after.
    pub(crate) mends: AtomicU64,
    pub(crate) mending: Mending,
    /// Whether its group is quiet.
    pub(crate) quiet: Quiet,
    /// Rings when the next due time moved.
    pub(crate) due_moved: Notify,
    stall_max_us: AtomicU64,
}

/// What a replica is made of.
pub(crate) struct Parts<M> {
    pub(crate) config: ReplicaConfig,
    pub(crate) make: MakeMachine<M>,
    pub(crate) log: GroupLog,
    pub(crate) store: CheckpointStore,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) stamper: Stamper,
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) notices_max: usize,
}

impl<M: Machine> Shared<M> {
    pub(crate) fn new(core: Core<M>, parts: Parts<M>) -> Shared<M> {
        let Parts { config, make, log, store, disk, executor, stamper, peers, notices_max } = parts;
        let checkpointed = Checkpointed { applied: core.applied, membership: core.membership.clone() };
        let reader = Offload::new(&*executor, log.clone());
        let teller = Teller::new(Who { group: config.group, member: config.member }, config.witness);
        core.hash_points.tell(&teller);
        Shared {
            group: config.group,
            member: config.member,
            envelope_cache_bytes: config.envelope_cache_bytes,
            keep_log_bytes: config.keep_log_bytes,
            hash_every: config.hash_every,
            teller,
            make,
            peers,
            disk,
            log,
            applied_index: watch::channel(core.applied.map(|id| id.index)).0,
            reads_waiting: AtomicUsize::new(0),
            unwritten: Default::default(),
            installing: AtomicBool::new(false),
            holds: Holds::default(),
            spool: Default::default(),
            incoming: Default::default(),
            heard: Mutex::default(),
            failure: Mutex::default(),
            settle: OnceLock::new(),
            mends: AtomicU64::new(0),
            mending: Mending::default(),
            core: Mutex::new(core),
            store: Mutex::new(Some(store)),
            checkpointed: Mutex::new(checkpointed),
            reader,
            executor,
            stamper,
            notices: broadcast::channel(notices_max).0,
            applied: Notify::new(),
            quiet: Quiet::new(config.group),
            due_moved: Notify::new(),
            stall_max_us: AtomicU64::new(0),
        }
    }

    /// Whether it has had nothing of its group yet, but who founded it.
    pub(crate) fn is_new(&self) -> bool {
        self.log.state().last.is_none_or(|last| last.index == 0)
    }

    /// The leader was heard.
    pub(crate) fn hear(&self) {
        *self.heard.lock() = Some(tokio::time::Instant::now());
    }

    /// How long ago the leader was last heard.
    pub(crate) fn heard(&self) -> Option<Duration> {
        self.heard.lock().map(|heard| heard.elapsed())
    }

    /// The entry at `index` is applied: whoever waits for it is told.
    pub(crate) fn has_applied(&self, index: u64) {
        self.applied.notify_one();
        self.applied_index.send_replace(Some(index));
    }

    /// Whether a checkpoint of the leader is taking this state's place.
    pub(crate) fn is_replaced(&self) -> bool {
        self.installing.load(Ordering::Relaxed)
    }

    /// What is on disk; not after the stop.
    pub(crate) fn store(&self) -> storage::Result<CheckpointStore> {
        self.store.lock().clone().ok_or(storage::Error::Closed)
    }

    /// Closes the checkpoint, whoever still holds on to the replica: another may open it now.
    pub(crate) async fn close(&self) {
        // Whoever reads it now does so on this thread: all of them are done when this is.
        // If one of them panicked the log has said so.
        let _ = self.reader.run(|| Ok(())).await;
        drop(self.store.lock().take());
    }

    /// The machine, for as long as the guard lives.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core<M>> {
        self.core.lock()
    }

    /// Runs a slice of a checkpoint under the lock, and remembers how long the shard stood still.
    pub(crate) fn slice<T>(&self, work: impl FnOnce(&mut Core<M>) -> T) -> T {
        // On a busy machine a thread that has run for a while is taken off its core, for many milliseconds;
        // one that has just rested is not. It must not happen with the lock in its hands.
        if self.executor.has_threads() {
            std::thread::sleep(SLICE_REST);
        }
        let mut core = self.core.lock();
        let start = Instant::now();
        let result = work(&mut core);
        drop(core);
        let micros = start.elapsed().as_micros() as u64;
        self.stall_max_us.fetch_max(micros, Ordering::Relaxed);
        result
    }

    /// The longest time that a checkpoint held the lock.
    pub(crate) fn stall_max(&self) -> Duration {
        Duration::from_micros(self.stall_max_us.load(Ordering::Relaxed))
    }
}
