//! What the tasks of one replica share: the machine behind its lock, and the signals between them.
//!
//! The lock is never held across an await, and by a checkpoint only for a slice at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use model::GroupId;
use parking_lot::{Mutex, MutexGuard};
use state_machine::{Machine, NextDue};
use storage::{CheckpointStore, Executor, GroupLog};
use tokio::sync::{Notify, broadcast};

use crate::clock::Stamper;
use crate::hash_points::HashPoints;
use crate::keep::Keep;
use crate::machine_store::Checkpointed;
use crate::notice::Notice;
use crate::offload::Offload;
use crate::type_config::{LogId, StoredMembership};

/// What a checkpoint rests before each slice.
const SLICE_REST: Duration = Duration::from_micros(50);

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
}

/// What the tasks of one replica share.
pub(crate) struct Shared<M> {
    pub(crate) group: GroupId,
    pub(crate) log: GroupLog,
    core: Mutex<Core<M>>,
    /// Until the stop.
    store: Mutex<Option<CheckpointStore>>,
    /// The last checkpoint that is on disk.
    pub(crate) checkpointed: Mutex<Checkpointed>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) reader: Offload,
    pub(crate) stamper: Stamper,
    pub(crate) notices: broadcast::Sender<Arc<Vec<Notice>>>,
    /// Rings when entries were applied: there may be something to checkpoint.
    pub(crate) applied: Notify,
    /// Rings when the next due time moved.
    pub(crate) due_moved: Notify,
    stall_max_us: AtomicU64,
}

impl<M: Machine> Shared<M> {
    pub(crate) fn new(
        core: Core<M>,
        log: GroupLog,
        store: CheckpointStore,
        executor: Arc<dyn Executor>,
        stamper: Stamper,
        notices_max: usize,
    ) -> Shared<M> {
        let checkpointed = Checkpointed { applied: core.applied, membership: core.membership.clone() };
        let group = log.group();
        let reader = Offload::new(&*executor, log.clone());
        Shared {
            group,
            log,
            core: Mutex::new(core),
            store: Mutex::new(Some(store)),
            checkpointed: Mutex::new(checkpointed),
            reader,
            executor,
            stamper,
            notices: broadcast::channel(notices_max).0,
            applied: Notify::new(),
            due_moved: Notify::new(),
            stall_max_us: AtomicU64::new(0),
        }
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
