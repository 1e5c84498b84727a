//! The handle to one member of one group.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{GroupId, MemberId, Millis};
use openraft::async_runtime::WatchReceiver;
use openraft::{Instant as _, ServerState};
use parking_lot::Mutex;
use storage::{CheckpointStore, Disk, Executor, GroupLog};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::checkpoint::{self, Checkpointer};
use crate::clock::{Clock, Stamper};
use crate::codec::Codec;
use crate::ending;
use crate::error::{Error, Result};
use crate::hash_points::HASH_EVERY;
use crate::notice::Notices;
use crate::peers::Peers;
use crate::propose::{self, Applied, Inbox, Piece, Raft, STOP_WAIT};
use crate::pulse;
use crate::shared::{Parts, Shared};
use crate::start;
use crate::status::{Role, Status};
use crate::transfer;
use crate::witness::Witness;

/// How long a call waits for a leader before it says that there is none.
pub(crate) const LEADER_WAIT: Duration = Duration::from_secs(2);
/// How long until a refused call is tried again.
pub(crate) const LEADER_RETRY: Duration = Duration::from_millis(10);
/// As good as no limit.
const FOR_EVER: Duration = Duration::from_secs(24 * 3_600);
/// Entries whose notices a slow listener may be behind.
const NOTICES_MAX: usize = 4_096;

/// What a replica is told at its start.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// Its group.
    pub group: GroupId,
    /// Which member it is: its node, and which life of it.
    pub member: MemberId,
    /// Who votes in the group at its beginning, and where they listen, on each of these members, so that
    /// none depends on another to hear of it; nobody on a member that was let in later.
    pub founders: Vec<(MemberId, String)>,
    /// The pause between checkpoints when little changes.
    pub checkpoint_interval: Millis,
    /// A checkpoint is written by whoever has one of these: all groups of a node share them, or those of many shards that
    /// are busy at once would leave nothing of processors and disk for the work.
    pub checkpoint_turns: Arc<Semaphore>,
    /// Envelopes of waiting tasks that stay in memory.
    pub envelope_cache_bytes: usize,
    /// How long a call waits for its answer before the outcome is unknown.
    pub propose_timeout: Millis,
    /// Log that stays although it is checkpointed, for members that were away for a moment.
    pub keep_log_bytes: u64,
    /// The state's hash is kept at every index that this divides; the same on all members.
    pub hash_every: u64,
    /// Who hears what this member keeps.
    pub witness: Option<Arc<dyn Witness>>,
}

impl ReplicaConfig {
    /// The usual settings.
    pub fn new(group: GroupId, member: MemberId) -> ReplicaConfig {
        ReplicaConfig {
            group,
            member,
            founders: Vec::new(),
            checkpoint_interval: checkpoint::CHECKPOINT_INTERVAL_DEFAULT,
            checkpoint_turns: Arc::new(Semaphore::new(1)),
            envelope_cache_bytes: 16 * 1024 * 1024,
            propose_timeout: Millis::secs(10),
            keep_log_bytes: checkpoint::KEEP_LOG_BYTES_DEFAULT,
            hash_every: HASH_EVERY,
            witness: None,
        }
    }
}

/// Makes an empty machine: for the start, and for a checkpoint that comes from another member.
pub type MakeMachine<M> = Box<dyn Fn() -> M + Send + Sync>;

/// One member of one group. A cheap handle; the replica lives until [`Replica::stop`].
pub struct Replica<M: Codec> {
    pub(crate) inner: Arc<Inner<M>>,
}

pub(crate) struct Inner<M: Codec> {
    pub(crate) config: ReplicaConfig,
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) raft: Raft<M>,
    inbox: Arc<Inbox<M::Reply>>,
    checkpointer: Arc<Checkpointer<M>>,
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) tasks: Mutex<Vec<JoinHandle<()>>>,
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
    /// Loads the checkpoint into a new machine and starts. Returns before the log after the checkpoint is
    /// replayed: [`Replica::ready`] waits for that. Does not ask for votes by itself, other than a member that
    /// misses its leader does.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the world that a simulation replaces")]
    pub async fn start(
        config: ReplicaConfig,
        machine: MakeMachine<M>,
        log: GroupLog,
        store: CheckpointStore,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        executor: Arc<dyn Executor>,
        peers: Arc<dyn Peers>,
    ) -> Result<Replica<M>> {
        let core = start::load_elsewhere(&config, machine(), store.clone(), &*executor).await?;
        let failed = |error: storage::Error| Error::Storage { group: config.group, what: error.to_string() };
        transfer::finish_install(&*disk, &log, core.applied).await.map_err(failed)?;
        start::compare(&core, &log)?;
        start::found(&config, &core, &log).await?;
        transfer::clear(&*disk, config.group).map_err(failed)?;
        let stamper = Stamper::new(clock, core.machine.stamps());
        let parts = Parts {
            config: config.clone(),
            make: machine,
            log,
            store,
            disk,
            executor,
            stamper,
            peers,
            notices_max: NOTICES_MAX,
        };
        let shared = Arc::new(Shared::new(core, parts));
        let raft = start::engine(shared.clone()).await?;
        let (inbox, gatherer) = propose::inbox();
        let inbox = Arc::new(inbox);
        let settle = inbox.clone();
        let _ = shared.settle.set(Box::new(move |piece| settle.send(piece).is_ok()));
        let (stop, stopped) = watch::channel(false);
        let checkpointer = Arc::new(Checkpointer::new(shared.clone(), raft.clone(), &config));
        let tasks = vec![
            tokio::spawn(propose::run(raft.clone(), shared.clone(), gatherer, stopped.clone())),
            tokio::spawn(pulse::run(raft.clone(), shared.clone(), inbox.clone(), stopped.clone())),
            tokio::spawn(checkpointer.clone().run(stopped.clone())),
            tokio::spawn(ending::run(raft.clone(), shared.clone(), stopped)),
        ];
        let tasks = Mutex::new(tasks);
        Ok(Replica { inner: Arc::new(Inner { config, shared, raft, inbox, checkpointer, stop, tasks }) })
    }

    /// Its group.
    pub fn group(&self) -> GroupId {
        self.inner.config.group
    }

    /// Waits until it has a leader and has applied what that says is safe; on the leader itself, all that was
    /// acknowledged before. Without a leader it gives up after a moment.
    pub async fn ready(&self) -> Result<()> {
        let mut patience = Instant::now() + LEADER_WAIT;
        loop {
            if self.leads() {
                match self.read_index().await {
                    Ok(index) => return self.wait_applied(index, FOR_EVER).await,
                    Err(Error::Stopped) => return Err(Error::Stopped),
                    // The next look tells.
                    Err(_) => {}
                }
            } else if self.leader().is_some() {
                let safe = self.inner.raft.metrics().borrow_watched().cluster_committed;
                if safe.is_some_and(|safe| self.applied() >= safe.index) {
                    return Ok(());
                }
                // However long the log is.
                patience = Instant::now() + LEADER_WAIT;
            }
            if Instant::now() > patience {
                return Err(self.or_stopped(Error::Unavailable));
            }
            sleep(LEADER_RETRY).await;
        }
    }

    /// Which member it is.
    pub fn member(&self) -> MemberId {
        self.inner.config.member
    }

    /// Encodes commands once, for [`Replica::propose_pieces`] here or on the leader's node: one piece, unless
    /// they are more than an entry takes.
    pub fn encode(commands: &[M::Command]) -> Vec<Piece> {
        if commands.is_empty() { Vec::new() } else { propose::encode::<M>(commands) }
    }

    /// A piece that another node encoded, once all its commands are understood: one that is not would stop every
    /// member of the group that applies it.
    pub fn received(bytes: Bytes) -> Result<Piece> {
        propose::received::<M>(bytes)
    }

    /// How many calls wait here for an entry.
    pub fn calls_waiting(&self) -> usize {
        self.inner.inbox.waiting()
    }

    /// Has commands replicated and applied, in their order; the answers come in the same order. Only on the
    /// leader; waits a moment for one when there is none.
    ///
    /// All in one entry, unless they are more than an entry takes. [`Error::Timeout`] means that the
    /// outcome is unknown; with every other error nothing happened.
    pub async fn propose(&self, commands: Vec<M::Command>) -> Result<Vec<Applied<M::Reply>>> {
        let pieces = Self::encode(&commands);
        // The bytes are what counts from here on.
        drop(commands);
        let now = Instant::now();
        let (deadline, patience) =
            (now + Duration::from(self.inner.config.propose_timeout), now + LEADER_WAIT);
        let mut all = Vec::new();
        let mut rest = &pieces[..];
        loop {
            let progress = propose::send_all(&self.inner.inbox, rest, deadline).await;
            all.extend(progress.done);
            rest = &rest[progress.accepted..];
            let Some(refusal) = progress.refusal else { return Ok(all) };
            let is_between_leaders = matches!(refusal, Error::NotLeader { leader }
                if leader.is_none_or(|node| node == self.inner.config.member.node()));
            if is_between_leaders && Instant::now() <= patience {
                // Nothing of the rest happened, so it can be asked again.
                sleep(LEADER_RETRY).await;
                continue;
            }
            return Err(match self.or_stopped(refusal) {
                // Some of it happened.
                _ if !all.is_empty() => Error::Timeout,
                Error::NotLeader { .. } if is_between_leaders => Error::Unavailable,
                refusal => refusal,
            });
        }
    }

    /// One try, here, as leader: the answers of what is done, and why not the rest. [`Error::Timeout`] means
    /// that the outcome of the rest is unknown; with every other error nothing of it happened.
    pub async fn propose_pieces(
        &self,
        pieces: &[Piece],
        patience: Duration,
    ) -> (Vec<Applied<M::Reply>>, Option<Error>) {
        let progress = propose::send_all(&self.inner.inbox, pieces, Instant::now() + patience).await;
        (progress.done, progress.refusal.map(|refusal| self.or_stopped(refusal)))
    }

    /// Hears of the effects of entries that are applied here, from now on. Never holds up the replica.
    pub fn subscribe(&self) -> Notices {
        Notices(self.inner.shared.notices.subscribe())
    }

    /// What it says of itself.
    pub fn status(&self) -> Status {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let shared = &self.inner.shared;
        let failure = shared.failure.lock().clone();
        let core = shared.lock();
        let checkpointed = shared.checkpointed.lock().applied;
        Status {
            group: shared.group,
            role: match metrics.state {
                _ if metrics.running_state.is_err() || failure.is_some() => Role::Stopped,
                ServerState::Leader => Role::Leader,
                ServerState::Follower => Role::Follower,
                ServerState::Candidate => Role::Candidate,
                ServerState::Learner => Role::Learner,
                ServerState::Shutdown => Role::Stopped,
            },
            member: shared.member,
            term: metrics.current_term,
            leader: metrics.current_leader.map(MemberId::from_bits),
            voted_for: shared.teller.own_vote(metrics.current_term),
            heard: match metrics.state {
                ServerState::Leader => {
                    let acked = metrics.last_quorum_acked.map(|acked| acked.elapsed());
                    acked.into_iter().chain(shared.quiet.agreed_age(metrics.current_term)).min()
                }
                _ => shared.heard(),
            },
            voters: core.membership.voter_ids().map(MemberId::from_bits).collect(),
            learners: core.membership.membership().learner_ids().map(MemberId::from_bits).collect(),
            last: metrics.last_log_index,
            committed: metrics.local_committed.map(|id| id.index),
            applied: core.applied.map(|id| id.index),
            checkpointed: checkpointed.map(|id| id.index),
            purged: metrics.purged.map(|id| id.index),
            log_bytes: core.bytes_since_cut,
            envelope_cache_bytes: core.keep.cached_bytes() as u64,
            stall_max: shared.stall_max(),
            hash_points: core.hash_points.to_vec(),
            failure: failure.or_else(|| metrics.running_state.as_ref().err().map(ToString::to_string)),
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
        let checkpointed = match self.inner.shared.is_replaced() {
            // What the leader sent is not in yet, and what it replaces is not worth the wait.
            true => Ok(()),
            false => self.checkpoint_now().await,
        };
        // An engine that waits for a full disk ends with the log.
        let _ = timeout(STOP_WAIT, self.inner.raft.shutdown()).await;
        self.inner.shared.close().await;
        checkpointed
    }

    /// Stops this replica for good because its state differs from that of the others (`what`). Its data stays as
    /// it is, for whoever looks into it.
    pub fn diverged(&self, what: &str) {
        let mut failure = self.inner.shared.failure.lock();
        if failure.is_some() {
            return;
        }
        *failure = Some(what.to_owned());
        drop(failure);
        tracing::error!(group = %self.group(), member = %self.member(), what, "this replica differs: it stops");
        self.inner.stop.send_replace(true);
        let raft = self.inner.raft.clone();
        tokio::spawn(async move { drop(raft.shutdown().await) });
    }

    pub(crate) fn storage_error(&self, error: &storage::Error) -> Error {
        if matches!(error, storage::Error::Closed) {
            return Error::Stopped;
        }
        Error::Storage { group: self.group(), what: error.to_string() }
    }

    /// After the stop, a refusal is the stop's.
    pub(crate) fn or_stopped(&self, error: Error) -> Error {
        match error {
            Error::NotLeader { .. } | Error::Unavailable if *self.inner.stop.borrow() => Error::Stopped,
            error => error,
        }
    }
}
