//! From commands to entries: stamp, gather, hand to the engine.
//!
//! Group commit: while entries are on their way to the disk, arriving commands gather here, and the next
//! entry takes them all. A call of many commands is one message in and one message back. Next:
//! `log_store`, where the entry goes, and `apply`, where the answer comes from.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use model::limits::{ENTRY_BYTES_MAX, ENTRY_COMMANDS_MAX, REQUEST_BYTES_MAX};
use model::{NodeId, Rejection};
use openraft::errors::ClientWriteError;
use openraft::raft::ClientWriteResult;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::apply::Replies;
use crate::clock::Stamper;
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::machine_store::MachineStore;
use crate::shared::Shared;
use crate::type_config::{EntryBytes, OnDone, Types};

/// Entries that may be on their way to the disk at once. More would make entries smaller, not faster:
/// the writer takes all that has come while it synced.
pub(crate) const ENTRIES_IN_FLIGHT_MAX: usize = 2;
/// Bytes of an entry that a single large command may make: a whole request, and what encoding adds. An
/// entry that the log refused would end the group.
const ENTRY_BYTES_LIMIT: usize = REQUEST_BYTES_MAX + 8 * 1024 * 1024;
/// Calls that may wait for an entry.
const INBOX_CALLS_MAX: usize = 16 * 1024;
/// Bytes of commands that may wait for an entry.
const INBOX_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The engine of one group.
pub(crate) type Raft<M> = openraft::Raft<Types, MachineStore<M>>;

/// What became of a command: the index of its entry, and the machine's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied<R> {
    /// The entry's index.
    pub index: u64,
    /// The reply, or why not.
    pub outcome: Result<R, Rejection>,
}

/// Commands of one call, encoded, and who waits for their answers.
pub(crate) struct Part<R> {
    bytes: Bytes,
    commands: usize,
    reply: oneshot::Sender<Result<Vec<Applied<R>>>>,
}

/// Commands of one call, encoded: as many as fit into one entry.
#[derive(Clone)]
pub(crate) struct Encoded {
    bytes: Bytes,
    commands: usize,
}

/// Encodes the commands of one call: one piece, unless they are more than an entry takes.
pub(crate) fn encode<M: Codec>(commands: &[M::Command]) -> Vec<Encoded> {
    let mut pieces = Vec::with_capacity(1);
    let mut part = BytesMut::new();
    let mut count = 0;
    for command in commands {
        if count == ENTRY_COMMANDS_MAX || part.len() >= ENTRY_BYTES_MAX {
            pieces.push(Encoded { bytes: part.split().freeze(), commands: std::mem::take(&mut count) });
        }
        M::encode(command, &mut part);
        count += 1;
    }
    pieces.push(Encoded { bytes: part.freeze(), commands: count });
    pieces
}

/// Where commands wait for the next entry.
pub(crate) struct Inbox<R> {
    queue: mpsc::Sender<Part<R>>,
    /// What waits in it.
    bytes: Arc<AtomicUsize>,
}

/// The other end of an [`Inbox`].
pub(crate) struct Gatherer<R> {
    queue: mpsc::Receiver<Part<R>>,
    bytes: Arc<AtomicUsize>,
    /// One that did not fit into the last entry.
    carried: Option<Part<R>>,
}

/// An inbox and its other end.
pub(crate) fn inbox<R>() -> (Inbox<R>, Gatherer<R>) {
    let (sender, queue) = mpsc::channel(INBOX_CALLS_MAX);
    let bytes = Arc::new(AtomicUsize::new(0));
    (Inbox { queue: sender, bytes: bytes.clone() }, Gatherer { queue, bytes, carried: None })
}

impl<R> Inbox<R> {
    /// Hands commands over; the answer comes through what is returned.
    pub(crate) fn send(&self, encoded: Encoded) -> Result<oneshot::Receiver<Result<Vec<Applied<R>>>>> {
        let (reply, answer) = oneshot::channel();
        let len = encoded.bytes.len();
        if len > ENTRY_BYTES_LIMIT {
            return Err(Error::TooLarge { bytes: len, bytes_max: ENTRY_BYTES_LIMIT });
        }
        let waiting = self.bytes.fetch_add(len, Ordering::Relaxed);
        let sent = match waiting > INBOX_BYTES_MAX {
            true => Err(Error::Full),
            false => self
                .queue
                .try_send(Part { bytes: encoded.bytes, commands: encoded.commands, reply })
                .map_err(|error| match error {
                    mpsc::error::TrySendError::Full(_) => Error::Full,
                    mpsc::error::TrySendError::Closed(_) => Error::Stopped,
                }),
        };
        if let Err(error) = sent {
            self.bytes.fetch_sub(len, Ordering::Relaxed);
            return Err(error);
        }
        Ok(answer)
    }
}

impl<R> Gatherer<R> {
    /// All that waits, up to one entry; nothing when the inbox is closed and empty.
    async fn gather(&mut self, stop: &mut watch::Receiver<bool>) -> Option<Vec<Part<R>>> {
        let first = match self.carried.take() {
            Some(part) => part,
            None => self.first(stop).await?,
        };
        let (mut bytes, mut commands) = (first.bytes.len(), first.commands);
        let mut parts = vec![first];
        while let Ok(part) = self.queue.try_recv() {
            if commands + part.commands > ENTRY_COMMANDS_MAX || bytes + part.bytes.len() > ENTRY_BYTES_MAX {
                self.carried = Some(part);
                break;
            }
            bytes += part.bytes.len();
            commands += part.commands;
            parts.push(part);
        }
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Some(parts)
    }

    async fn first(&mut self, stop: &mut watch::Receiver<bool>) -> Option<Part<R>> {
        tokio::select! {
            biased;
            part = self.queue.recv() => return part,
            _ = stop.wait_for(|stop| *stop) => self.queue.close(),
        }
        // Closed: nobody can send any more, what was sent is still done.
        self.queue.recv().await
    }
}

/// Makes entries of what comes in, until told to stop and all that came is done.
pub(crate) async fn run<M: Codec>(
    raft: Raft<M>,
    shared: Arc<Shared<M>>,
    mut gatherer: Gatherer<M::Reply>,
    mut stop: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(ENTRIES_IN_FLIGHT_MAX));
    loop {
        let permit = room.clone().acquire_owned().await.expect("nobody closes this semaphore");
        let Some(parts) = gatherer.gather(&mut stop).await else { break };
        propose(&raft, &shared.stamper, parts, permit).await;
    }
    let _all = room.acquire_many(ENTRIES_IN_FLIGHT_MAX as u32).await;
}

/// One entry, if this node leads.
async fn propose<M: Codec>(
    raft: &Raft<M>,
    stamper: &Stamper,
    parts: Vec<Part<M::Reply>>,
    permit: OwnedSemaphorePermit,
) {
    let term = match raft.as_leader() {
        Ok(leader) => leader.term(),
        Err(forward) => return refuse(parts, &Error::NotLeader { leader: forward.leader_id.map(NodeId) }),
    };
    let stamps = stamper.now(term);
    let bytes = wire::entry::assemble(stamps.elapsed, stamps.wall, parts.iter().map(|part| &part.bytes[..]));
    let done = OnDone { room: Some(permit), done: Box::new(move |result| finish(parts, result)) };
    // With this leader or not at all: the stamps are of its term.
    let written = raft.write(EntryBytes(bytes)).with_leader(term).responder(done).await;
    if let Err(error) = written {
        // The parts went with the responder: whoever waits hears that the outcome is unknown.
        tracing::warn!(%error, "the group's engine has stopped");
    }
}

fn finish<R: Send + 'static>(parts: Vec<Part<R>>, result: ClientWriteResult<Types>) {
    let error = match result {
        Ok(response) => match response.data.take::<Replies<R>>() {
            Some(replies) => return distribute(parts, replies),
            None => Error::Timeout,
        },
        Err(ClientWriteError::ForwardToLeader(forward)) => {
            Error::NotLeader { leader: forward.leader_id.map(NodeId) }
        }
        // It was in this node's log, and may have reached another's.
        Err(ClientWriteError::LogEntryDiscarded(_)) => Error::Timeout,
        Err(_) => Error::Unavailable,
    };
    refuse(parts, &error);
}

fn distribute<R>(parts: Vec<Part<R>>, replies: Replies<R>) {
    let index = replies.index;
    let mut results = replies.results.into_iter().map(|outcome| Applied { index, outcome });
    for part in parts {
        let answers = results.by_ref().take(part.commands).collect();
        // Whoever asked may have gone; it happened all the same.
        let _ = part.reply.send(Ok(answers));
    }
}

fn refuse<R>(parts: Vec<Part<R>>, error: &Error) {
    for part in parts {
        let _ = part.reply.send(Err(error.clone()));
    }
}
