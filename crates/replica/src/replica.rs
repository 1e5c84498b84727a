//! The handle to one member of one group.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{GroupId, Millis, NodeId, TaskId};
use openraft::async_runtime::WatchReceiver;
use openraft::errors::LinearizableReadError;
use openraft::{ReadPolicy, ServerState};
use parking_lot::Mutex;
use prost::Message;
use state_machine::view::HistoryLine;
use storage::{CheckpointStore, Executor, GroupLog};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use wire::history::KeptMessage;

use crate::checkpoint::{self, Checkpointer};
use crate::clock::{Clock, Stamper};
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::notice::Notices;
use crate::propose::{self, Applied, Encoded, Inbox, Progress, Raft, STOP_WAIT};
use crate::pulse;
use crate::records;
use crate::shared::Shared;
use crate::start;
use crate::status::{Role, Status};
use crate::tables;

/// How long a call waits for a leader before it says that there is none.
const LEADER_WAIT: Duration = Duration::from_secs(2);
/// How long until a refused call is tried again.
const LEADER_RETRY: Duration = Duration::from_millis(10);
/// Entries whose notices a slow listener may be behind.
const NOTICES_MAX: usize = 4_096;

/// What a replica is told at its start.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// Its group.
    pub group: GroupId,
    /// The node it runs on.
    pub node: NodeId,
    /// The pause between checkpoints when little changes.
    pub checkpoint_interval: Millis,
    /// Envelopes of waiting tasks that stay in memory.
    pub envelope_cache_bytes: usize,
    /// How long a call waits for its answer before the outcome is unknown.
    pub propose_timeout: Millis,
}

impl ReplicaConfig {
    /// The usual settings.
    pub fn new(group: GroupId, node: NodeId) -> ReplicaConfig {
        ReplicaConfig {
            group,
            node,
            checkpoint_interval: checkpoint::CHECKPOINT_INTERVAL_DEFAULT,
            envelope_cache_bytes: 16 * 1024 * 1024,
            propose_timeout: Millis::secs(10),
        }
    }
}

/// All that is kept of a task beside its execution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Its envelope.
    pub envelope: Option<Bytes>,
    /// What came out.
    pub output: Option<Bytes>,
    /// Its last error's detail.
    pub detail: Option<String>,
    /// What happened, oldest first.
    pub history: Vec<HistoryLine>,
}

/// One member of one group. A cheap handle; the replica lives until [`Replica::stop`].
pub struct Replica<M: Codec> {
    inner: Arc<Inner<M>>,
}

struct Inner<M: Codec> {
    config: ReplicaConfig,
    shared: Arc<Shared<M>>,
    raft: Raft<M>,
    inbox: Arc<Inbox<M::Reply>>,
    checkpointer: Arc<Checkpointer<M>>,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// A replica that is dropped without a stop ends as in a crash: nothing is finished, nothing acknowledged is
/// lost.
impl<M: Codec> Drop for Inner<M> {
    fn drop(&mut self) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.iter().for_each(JoinHandle::abort);
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && !tasks.is_empty()
        {
            let raft = self.raft.clone();
            runtime.spawn(async move { drop(raft.shutdown().await) });
        }
    }
}

impl<M: Codec> Clone for Replica<M> {
    fn clone(&self) -> Replica<M> {
        Replica { inner: self.inner.clone() }
    }
}

impl<M: Codec> Replica<M> {
    /// Loads the checkpoint into `machine`, which must be new, and starts. Returns before the log after
    /// the checkpoint is replayed: [`Replica::ready`] waits for that.
    pub async fn start(
        config: ReplicaConfig,
        machine: M,
        log: GroupLog,
        store: CheckpointStore,
        clock: Arc<dyn Clock>,
        executor: Arc<dyn Executor>,
    ) -> Result<Replica<M>> {
        let core = start::load_elsewhere(&config, machine, store.clone(), &*executor).await?;
        start::compare(&core, &log)?;
        let stamper = Stamper::new(clock, core.machine.stamps());
        let shared = Arc::new(Shared::new(core, log, store, executor, stamper, NOTICES_MAX));
        let raft = start::engine(shared.clone(), config.node).await?;
        let (inbox, gatherer) = propose::inbox();
        let inbox = Arc::new(inbox);
        let (stop, stopped) = watch::channel(false);
        let checkpointer =
            Arc::new(Checkpointer::new(shared.clone(), raft.clone(), config.checkpoint_interval));
        let tasks = vec![
            tokio::spawn(propose::run(raft.clone(), shared.clone(), gatherer, stopped.clone())),
            tokio::spawn(pulse::run(raft.clone(), shared.clone(), inbox.clone(), stopped.clone())),
            tokio::spawn(checkpointer.clone().run(stopped)),
        ];
        let tasks = Mutex::new(tasks);
        Ok(Replica { inner: Arc::new(Inner { config, shared, raft, inbox, checkpointer, stop, tasks }) })
    }

    /// Its group.
    pub fn group(&self) -> GroupId {
        self.inner.config.group
    }

    /// Waits until it has a leader and all that was acknowledged before the start is applied again.
    pub async fn ready(&self) -> Result<()> {
        self.linearize().await
    }

    /// Has commands replicated and applied, in their order; the answers come in the same order.
    ///
    /// All in one entry, unless they are more than an entry takes. [`Error::Timeout`] means that the
    /// outcome is unknown; with every other error nothing happened.
    pub async fn propose(&self, commands: Vec<M::Command>) -> Result<Vec<Applied<M::Reply>>> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let pieces = propose::encode::<M>(&commands);
        // The bytes are what counts from here on.
        drop(commands);
        let deadline = Instant::now() + Duration::from(self.inner.config.propose_timeout);
        let answers = match timeout_at(deadline, self.propose_pieces(pieces)).await {
            Ok(answers) => answers,
            Err(_) => Err(Error::Timeout),
        };
        answers.map_err(|error| self.or_stopped(error))
    }

    async fn propose_pieces(&self, pieces: Vec<Encoded>) -> Result<Vec<Applied<M::Reply>>> {
        let patience = Instant::now() + LEADER_WAIT;
        let mut all = Vec::new();
        let mut rest = &pieces[..];
        loop {
            let Progress { accepted, done, refusal } = propose::send_all(&self.inner.inbox, rest).await;
            all.extend(done);
            rest = &rest[accepted..];
            let Some(refusal) = refusal else { return Ok(all) };
            let is_between_leaders = matches!(refusal, Error::NotLeader { leader }
                if leader.is_none_or(|node| node == self.inner.config.node));
            if is_between_leaders && Instant::now() <= patience {
                // Nothing of the rest happened, so it can be asked again.
                sleep(LEADER_RETRY).await;
                continue;
            }
            return Err(match refusal {
                // Some of it happened.
                _ if !all.is_empty() => Error::Timeout,
                _ if is_between_leaders => Error::Unavailable,
                refusal => refusal,
            });
        }
    }

    /// Reads the machine as it is after every answer given so far, by anybody. `read` runs under the
    /// machine's lock: it should be short, and must not block.
    pub async fn read<T>(&self, read: impl FnOnce(&M) -> T) -> Result<T> {
        self.linearize().await?;
        Ok(self.read_stale(read))
    }

    /// Reads the machine as it is here and now, perhaps behind. `read` runs under the machine's lock.
    pub fn read_stale<T>(&self, read: impl FnOnce(&M) -> T) -> T {
        read(&self.inner.shared.lock().machine)
    }

    async fn linearize(&self) -> Result<()> {
        let patience = Instant::now() + LEADER_WAIT;
        loop {
            let Err(error) = self.inner.raft.ensure_linearizable(ReadPolicy::ReadIndex).await else {
                return Ok(());
            };
            let leader = match error.api_error() {
                None => return Err(Error::Stopped),
                Some(LinearizableReadError::ForwardToLeader(forward)) => forward.leader_id,
                Some(_) => None,
            };
            match leader {
                Some(leader) if leader != self.inner.config.node.0 => {
                    return Err(Error::NotLeader { leader: Some(NodeId(leader)) });
                }
                _ if Instant::now() > patience => return Err(Error::Unavailable),
                _ => sleep(LEADER_RETRY).await,
            }
        }
    }

    /// The envelopes of tasks, in the order asked.
    pub async fn envelopes(&self, tasks: &[TaskId]) -> Result<Vec<Option<Bytes>>> {
        let mut envelopes: Vec<_> = {
            let core = self.inner.shared.lock();
            tasks.iter().map(|task| core.keep.envelope(*task)).collect()
        };
        let missing: Vec<usize> = (0..tasks.len()).filter(|&n| envelopes[n].is_none()).collect();
        if missing.is_empty() {
            return Ok(envelopes);
        }
        let keys: Vec<_> = missing.iter().map(|&n| tables::key(tasks[n])).collect();
        let store = self.inner.shared.store().map_err(|error| self.storage_error(&error))?;
        let rows = self.inner.shared.reader.run(move || store.get_many(tables::KEPT, &keys)).await;
        let rows = rows.map_err(|error| self.storage_error(&error))?;
        for (n, row) in missing.into_iter().zip(rows) {
            envelopes[n] = row.and_then(|row| KeptMessage::decode(row).ok()?.envelope);
        }
        Ok(envelopes)
    }

    /// All that is kept of a task; nothing of one that is not there.
    pub async fn kept(&self, task: TaskId) -> Result<Kept> {
        let shared = self.inner.shared.clone();
        let kept = self.inner.shared.reader.run(move || records::kept(&shared, task)).await;
        let kept = kept.map_err(|error| self.storage_error(&error))?.unwrap_or_default();
        let lines = kept.history.iter();
        Ok(Kept {
            // A line of a kind that this version does not know is not shown.
            history: lines
                .filter_map(|line| {
                    Some(HistoryLine { at: line.at(), index: line.index(), event: line.event().ok()? })
                })
                .collect(),
            envelope: kept.envelope,
            output: kept.output,
            detail: kept.detail,
        })
    }

    /// Hears of the effects of entries that are proposed here, from now on.
    pub fn subscribe(&self) -> Notices {
        Notices(self.inner.shared.notices.subscribe())
    }

    /// Waits until leader or term changed since the last look at `seen`, and returns what is now.
    pub async fn leader_changed(&self, seen: Option<(NodeId, u64)>) -> Option<(NodeId, u64)> {
        let mut metrics = self.inner.raft.server_metrics();
        loop {
            let now = {
                let metrics = metrics.borrow_and_update();
                metrics.current_leader.map(|leader| (NodeId(leader), metrics.vote.leader_id.term))
            };
            if now != seen || metrics.changed().await.is_err() {
                return now;
            }
        }
    }

    /// What it says of itself.
    pub fn status(&self) -> Status {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let shared = &self.inner.shared;
        let core = shared.lock();
        let checkpointed = shared.checkpointed.lock().applied;
        Status {
            group: shared.group,
            role: match metrics.state {
                _ if metrics.running_state.is_err() => Role::Stopped,
                ServerState::Leader => Role::Leader,
                ServerState::Follower => Role::Follower,
                ServerState::Candidate => Role::Candidate,
                ServerState::Learner => Role::Learner,
                ServerState::Shutdown => Role::Stopped,
            },
            term: metrics.current_term,
            leader: metrics.current_leader.map(NodeId),
            voters: core.membership.voter_ids().map(NodeId).collect(),
            last: metrics.last_log_index,
            committed: metrics.local_committed.map(|id| id.index),
            applied: core.applied.map(|id| id.index),
            checkpointed: checkpointed.map(|id| id.index),
            purged: metrics.purged.map(|id| id.index),
            log_bytes: core.bytes_since_cut,
            envelope_cache_bytes: core.keep.cached_bytes() as u64,
            stall_max: shared.stall_max(),
            hash_points: core.hash_points.to_vec(),
            failure: metrics.running_state.as_ref().err().map(ToString::to_string),
        }
    }

    /// Checkpoints all that is applied now.
    pub async fn checkpoint_now(&self) -> Result<()> {
        self.inner.checkpointer.clone().checkpoint().await
    }

    /// Stops in order: takes in nothing more, finishes what came, checkpoints, ends the engine.
    pub async fn stop(&self) -> Result<()> {
        self.inner.stop.send_replace(true);
        let tasks = std::mem::take(&mut *self.inner.tasks.lock());
        for task in tasks {
            // A task that panicked has nothing left to finish.
            let _ = task.await;
        }
        let checkpointed = self.checkpoint_now().await;
        // An engine that waits for a full disk ends with the log.
        let _ = timeout(STOP_WAIT, self.inner.raft.shutdown()).await;
        self.inner.shared.close().await;
        checkpointed
    }

    fn storage_error(&self, error: &storage::Error) -> Error {
        if matches!(error, storage::Error::Closed) {
            return Error::Stopped;
        }
        Error::Storage { group: self.group(), what: error.to_string() }
    }

    /// After the stop, a refusal is the stop's.
    fn or_stopped(&self, error: Error) -> Error {
        match error {
            Error::NotLeader { .. } | Error::Unavailable if *self.inner.stop.borrow() => Error::Stopped,
            error => error,
        }
    }
}
