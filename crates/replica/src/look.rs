//! Reads: the machine as it is here, or as it must be after every answer given so far; and what is kept of
//! tasks beside it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use model::{Mutant, TaskId, mutant};
use openraft::ReadPolicy;
use openraft::errors::{ForwardToLeader, LinearizableReadError};
use state_machine::view::HistoryLine;
use tokio::time::{Instant, sleep, timeout};
use wire::history::KeptMessage;
use wire::seal;

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::mend::{self, Wanted};
use crate::propose::Raft;
use crate::records::{self, Found};
use crate::replica::{LEADER_RETRY, LEADER_WAIT, Replica};
use crate::shared::Shared;
use crate::tables;
use crate::type_config::{Types, node_of};

/// Damaged records that other members are asked for at once.
const MENDS_AT_ONCE: usize = 16;

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

impl<M: Codec> Replica<M> {
    /// Reads the machine as it is after every answer given so far, by anybody. Only on the leader. `read` runs
    /// under the machine's lock: it should be short, and must not block.
    pub async fn read<T>(&self, read: impl FnOnce(&M) -> T) -> Result<T> {
        self.linearize().await?;
        Ok(self.read_stale(read))
    }

    /// Reads the machine as it is here and now, perhaps behind. `read` runs under the machine's lock.
    pub fn read_stale<T>(&self, read: impl FnOnce(&M) -> T) -> T {
        read(&self.inner.shared.lock().machine)
    }

    /// Waits until it leads and all that was acknowledged before is applied here.
    pub(crate) async fn linearize(&self) -> Result<()> {
        let patience = Instant::now() + LEADER_WAIT;
        loop {
            let error = match self.read_index().await {
                Ok(index) => {
                    return self.wait_applied(index, self.inner.config.propose_timeout.into()).await;
                }
                Err(error) => error,
            };
            let between = matches!(error, Error::NotLeader { leader }
                if leader.is_none_or(|node| node == self.inner.config.member.node()));
            match error {
                Error::NotLeader { .. } if between => {}
                Error::Unavailable => {}
                error => return Err(error),
            }
            if Instant::now() > patience {
                return Err(self.or_stopped(Error::Unavailable));
            }
            sleep(LEADER_RETRY).await;
        }
    }

    /// The index that a read must have seen, to see every answer given so far. Only the leader knows: it
    /// asks a quorum whether it still is.
    pub async fn read_index(&self) -> Result<u64> {
        if mutant::planted(Mutant::StaleRead) && self.inner.raft.as_leader().is_ok() {
            return Ok(self.applied());
        }
        if *self.inner.stop.borrow() {
            return Err(Error::Stopped);
        }
        ask_quorum(&self.inner.shared, &self.inner.raft).await
    }

    /// Waits until the entry at `index` is applied here.
    pub async fn wait_applied(&self, index: u64, patience: Duration) -> Result<()> {
        let mut applied = self.inner.shared.applied_index.subscribe();
        let come = applied.wait_for(|applied| applied.is_some_and(|applied| applied >= index));
        match timeout(patience, come).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(self.or_stopped(Error::Unavailable)),
        }
    }

    /// The last entry that is applied here, 0 if none is.
    pub fn applied(&self) -> u64 {
        self.inner.shared.applied_index.borrow().unwrap_or(0)
    }

    /// The envelopes of tasks, in the order asked: nothing for one that has gone, or whose record no member has.
    /// [`Error::Unavailable`] for one whose record is damaged here, when not all others can be asked for it.
    pub async fn envelopes(&self, tasks: &[TaskId]) -> Vec<Result<Option<Bytes>>> {
        let shared = &self.inner.shared;
        let mut envelopes: Vec<Result<Option<Bytes>>> = {
            let core = shared.lock();
            let envelope = |task: TaskId| core.keep.envelope(core.machine.slot(task)?, task);
            tasks.iter().map(|task| Ok(envelope(*task))).collect()
        };
        let missing: Vec<usize> = (0..tasks.len()).filter(|&n| matches!(envelopes[n], Ok(None))).collect();
        if missing.is_empty() {
            return envelopes;
        }
        let keys: Vec<_> = missing.iter().map(|&n| tables::key(tasks[n])).collect();
        let reader = shared.clone();
        let rows = shared.reader.run(move || Ok(records::rows(&reader.store()?, tables::KEPT, &keys))).await;
        let rows = rows.unwrap_or_else(|error| vec![Err(error); missing.len()]);
        for (n, row) in missing.into_iter().zip(rows) {
            envelopes[n] = match row {
                Ok(row) => Ok(row
                    .and_then(|row| seal::opened::<KeptMessage>(&tables::key(tasks[n]), row))
                    .and_then(|kept| kept.envelope)),
                Err(error) => Err(self.storage_error(&error)),
            };
        }
        // One that is not there has gone, or is kept under a damaged key: the machine knows.
        let unread: Vec<usize> = {
            let core = shared.lock();
            let is_unread = |n: &usize| !matches!(envelopes[*n], Ok(Some(_)) | Err(Error::Stopped));
            (0..tasks.len()).filter(is_unread).filter(|&n| core.machine.stand(tasks[n]).is_some()).collect()
        };
        let wanted: Vec<TaskId> = unread.iter().map(|&n| tasks[n]).collect();
        let mends = wanted.into_iter().map(|task| {
            self.tell_damage(task);
            mend::mend(shared, task, Wanted::Envelope)
        });
        let mended = futures::stream::iter(mends).buffered(MENDS_AT_ONCE).collect::<Vec<_>>().await;
        for (n, kept) in unread.into_iter().zip(mended) {
            envelopes[n] = match kept {
                // What cannot be read now may be there all the same.
                Ok(None) if envelopes[n].is_err() => Err(Error::Unavailable),
                kept => kept.map(|kept| kept.and_then(|kept| kept.envelope)),
            };
        }
        envelopes
    }

    /// All that is kept of a task; nothing of one that is not there, and as much as can be read of one whose record no
    /// member has whole. [`Error::Unavailable`] as for the envelopes.
    pub async fn kept(&self, task: TaskId) -> Result<Kept> {
        let shared = self.inner.shared.clone();
        let kept = self.inner.shared.reader.run(move || records::kept(&shared, task)).await;
        let rest = match kept.map_err(|error| self.storage_error(&error))? {
            Found::Whole(kept) => return Ok(shown(kept)),
            Found::Gone => return Ok(Kept::default()),
            Found::Nothing => KeptMessage::default(),
            Found::Damaged(rest) => rest,
        };
        self.tell_damage(task);
        let shared = &self.inner.shared;
        if let Some(kept) = mend::mend(shared, task, Wanted::Whole).await? {
            return Ok(shown(kept));
        }
        if rest.envelope.is_some() {
            return Ok(shown(rest));
        }
        let other = mend::mend(shared, task, Wanted::Envelope).await?;
        Ok(shown(KeptMessage { envelope: other.and_then(|kept| kept.envelope), ..rest }))
    }

    fn tell_damage(&self, task: TaskId) {
        let error = records::damaged(self.group(), task);
        tracing::error!(group = %self.group(), %error, "the other members are asked for it");
    }
}

fn shown(kept: KeptMessage) -> Kept {
    Kept {
        // A line of a kind that this version does not know is not shown.
        history: kept
            .history
            .iter()
            .filter_map(|line| {
                Some(HistoryLine { at: line.at(), index: line.index(), event: line.event().ok()? })
            })
            .collect(),
        envelope: kept.envelope,
        output: kept.output,
        detail: kept.detail,
    }
}

/// Asks a quorum whether this member still leads. The index that a read must have seen.
pub(crate) async fn ask_quorum<M: Codec>(shared: &Shared<M>, raft: &Raft<M>) -> Result<u64> {
    // Somebody waits for the heartbeats that this takes.
    let _waiting = Waiting::new(&shared.reads_waiting);
    let error = match timeout(LEADER_WAIT, raft.get_read_linearizer(ReadPolicy::ReadIndex)).await {
        Ok(Ok(linearizer)) => return Ok(linearizer.read_log_id().index()),
        Ok(Err(error)) => match error.into_api_error() {
            None => Error::Stopped,
            Some(LinearizableReadError::ForwardToLeader(forward)) => not_leader(&forward),
            Some(LinearizableReadError::QuorumNotEnough(_)) => Error::Unavailable,
        },
        Err(_) => Error::Unavailable,
    };
    if matches!(error, Error::Unavailable) {
        // The quorum does not answer, or this engine does not: the others must not wait for its words.
        shared.quiet.disturb(raft);
    }
    Err(error)
}

/// Counts those who wait, as long as it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn new(count: &AtomicUsize) -> Waiting<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whom to ask instead.
pub(crate) fn not_leader(forward: &ForwardToLeader<Types>) -> Error {
    Error::NotLeader { leader: forward.leader_id.map(node_of) }
}
