//! What comes from the other members: entries in their order, votes, leadership, checkpoints.
//!
//! Appends of one connection go to the engine one after the other without waiting for each other's disk; their
//! answers come in the same order. Next: the engine, then `log_store`; `transfer` for checkpoints.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use model::{Elapsed, MemberId, NodeId};
use openraft::async_runtime::WatchReceiver;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderError, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};
use parking_lot::Mutex;
use prost::Message;
use storage::LogEntry;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use wire::peer::PeerKind;
use wire::raft::{
    Append, AppendAnswer, AppendEntry, Appended, Matched, SnapshotStep, Transfer, TransferAnswer, VoteAnswer,
    VoteAsk, encode,
};

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::log_store::engine_entry;
use crate::mend;
use crate::propose::Raft;
use crate::replica::Replica;
use crate::shared::Shared;
use crate::transfer;
use crate::type_config::{
    RaftEntry, Types, log_id_from_message, log_id_to_message, node_of, vote_from_message, vote_to_message,
};

/// Appends of one connection that may wait for their answer: several times what a member sends ahead.
const APPENDS_MAX: usize = 256;
/// Places of them that heartbeats may take: while a disk is full or hangs they come on and on, without an end to wait
/// for, and must leave room for entries.
const HEARTBEATS_MAX: usize = APPENDS_MAX / 2;
/// Bytes of them.
const APPENDS_BYTES_MAX: usize = 128 * 1024 * 1024;
/// A payload up to this size gets memory of its own: the log's cache would hold on to all that was read from
/// the connection with it.
const COPIED_BYTES_MAX: usize = 16 * 1024;

/// How long a vote may wait for the word that the leader is gone, before it is refused.
const GONE_WAIT: Duration = Duration::from_millis(30);

/// Where the answers to appends go: which request, and its answer.
pub type OnAppended = Box<dyn Fn(u64, Result<Bytes>) + Send + Sync>;

/// Takes the appends of one connection, in their order. Dropped, what waits is not answered.
pub struct AppendSink {
    line: Arc<Line>,
    /// The leader of a term was heard, and how far it has counted.
    heard: Box<dyn Fn(u64, Elapsed) + Send + Sync>,
}

/// The appends of one connection that wait for their answer.
struct Line {
    state: Mutex<Waiting>,
    answer: OnAppended,
}

#[derive(Default)]
struct Waiting {
    /// To the engine; nothing when it has stopped or the connection has gone.
    engine: Option<mpsc::Sender<AppendEntriesRequest<Types>>>,
    /// Requests and their bytes, oldest first.
    requests: VecDeque<(u64, usize)>,
    bytes: usize,
    is_closed: bool,
}

impl AppendSink {
    /// Takes one. `false`: more are waiting than a member may send ahead, so it misbehaves.
    pub fn push(&self, request: u64, body: Bytes) -> bool {
        let bytes = body.len();
        let (append, elapsed) = match decode_append(body) {
            Ok(decoded) => decoded,
            Err(error) => {
                (self.line.answer)(request, Err(error));
                return true;
            }
        };
        (self.heard)(append.vote.leader_id.term, elapsed);
        let is_heartbeat = append.entries.is_empty();
        let places = if is_heartbeat { HEARTBEATS_MAX } else { APPENDS_MAX };
        let mut state = self.line.state.lock();
        if state.requests.len() >= places || state.bytes + bytes > APPENDS_BYTES_MAX {
            drop(state);
            (self.line.answer)(request, Err(Error::Unavailable));
            return is_heartbeat;
        }
        let sent = state.engine.as_ref().map(|engine| engine.try_send(append));
        if let Some(Ok(())) = sent {
            state.requests.push_back((request, bytes));
            state.bytes += bytes;
            return true;
        }
        let error = if state.engine.is_none() { Error::Stopped } else { Error::Unavailable };
        drop(state);
        (self.line.answer)(request, Err(error));
        true
    }
}

impl Drop for AppendSink {
    fn drop(&mut self) {
        let mut state = self.line.state.lock();
        state.is_closed = true;
        state.engine = None;
    }
}

impl Line {
    /// The oldest that waits.
    fn next(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let (request, bytes) = state.requests.pop_front()?;
        state.bytes -= bytes;
        Some(request)
    }

    /// A new way to the engine, if anybody still wants one. What went the old way is not answered by the engine
    /// any more; the sender begins anew after the refusal that ended it.
    fn begin(&self) -> Option<mpsc::Receiver<AppendEntriesRequest<Types>>> {
        let (engine, requests) = mpsc::channel(APPENDS_MAX);
        let mut state = self.state.lock();
        let lost = std::mem::take(&mut state.requests);
        state.bytes = 0;
        let goes_on = !state.is_closed;
        state.engine = goes_on.then_some(engine);
        drop(state);
        for (request, _) in lost {
            (self.answer)(request, Err(Error::Unavailable));
        }
        goes_on.then_some(requests)
    }

    /// The engine has stopped.
    fn end(&self) {
        let mut state = self.state.lock();
        state.engine = None;
        let lost = std::mem::take(&mut state.requests);
        drop(state);
        for (request, _) in lost {
            (self.answer)(request, Err(Error::Stopped));
        }
    }
}

/// Passes the engine's answers on, until the connection or the engine has gone, or the replica stops: an engine that is
/// asked something after its end calls that an error.
async fn run<M: Codec>(
    raft: Raft<M>,
    line: Arc<Line>,
    first: mpsc::Receiver<AppendEntriesRequest<Types>>,
    mut stop: watch::Receiver<bool>,
) {
    let stopping = stop.clone();
    let mut stopped = std::pin::pin!(stop.wait_for(|stop| *stop));
    let mut requests = Some(first);
    while let Some(some) = requests {
        let input = futures::stream::unfold((some, stopping.clone()), |(mut some, stopping)| async move {
            let request = some.recv().await.filter(|_| !*stopping.borrow())?;
            Some((request, (some, stopping)))
        });
        let mut answers = std::pin::pin!(raft.stream_append(input));
        loop {
            let answer = tokio::select! {
                biased;
                _ = &mut stopped => return line.end(),
                answer = answers.next() => answer,
            };
            let Some(answer) = answer else { break };
            let Ok(answer) = answer else { return line.end() };
            let Some(request) = line.next() else { break };
            (line.answer)(request, Ok(encode(&append_answer(answer))));
        }
        requests = line.begin();
    }
}

fn append_answer(answer: StreamAppendResult<Types>) -> AppendAnswer {
    let outcome = match answer {
        Ok(last) => Appended::Matched(Matched { last: last.map(log_id_to_message) }),
        Err(StreamAppendError::Conflict(id)) => Appended::Conflict(log_id_to_message(id)),
        Err(StreamAppendError::HigherVote(vote)) => Appended::HigherVote(vote_to_message(&vote)),
    };
    AppendAnswer { outcome: Some(outcome) }
}

fn decode_append(body: Bytes) -> Result<(AppendEntriesRequest<Types>, Elapsed)> {
    let append = Append::decode(body).map_err(Error::malformed)?;
    let elapsed = Elapsed(append.elapsed);
    let entries: Result<Vec<RaftEntry>> = append.entries.into_iter().map(entry).collect();
    let request = AppendEntriesRequest {
        vote: vote_from_message(append.vote.ok_or_else(|| Error::malformed("a vote is missing"))?),
        prev_log_id: append.prev.map(log_id_from_message),
        entries: entries?,
        leader_commit: append.committed.map(log_id_from_message),
    };
    Ok((request, elapsed))
}

fn entry(entry: AppendEntry) -> Result<RaftEntry> {
    let AppendEntry { term, index, payload } = entry;
    let payload = match payload.len() <= COPIED_BYTES_MAX {
        true => Bytes::copy_from_slice(&payload),
        false => payload,
    };
    engine_entry(LogEntry { index, term, node: 0, payload }).map_err(Error::malformed)
}

impl<M: Codec> Replica<M> {
    /// Where the appends of one connection go.
    pub fn appends(&self, answer: OnAppended) -> AppendSink {
        let line = Arc::new(Line { state: Mutex::default(), answer });
        let stop = self.inner.stop.subscribe();
        let mut tasks = self.inner.tasks.lock();
        // Under the lock: the stop waits for what it finds there.
        let is_stopped = *stop.borrow();
        if !is_stopped && let Some(first) = line.begin() {
            tasks.retain(|task| !task.is_finished());
            tasks.push(tokio::spawn(run(self.inner.raft.clone(), line.clone(), first, stop)));
        }
        drop(tasks);
        let shared = Arc::downgrade(&self.inner.shared);
        let metrics = self.inner.raft.server_metrics();
        let heard = move |term, elapsed| {
            // One that was deposed may have counted on while nobody followed it.
            let is_current = term >= metrics.borrow_watched().vote.leader_id.term;
            if let Some(shared) = shared.upgrade().filter(|_| is_current) {
                shared.hear();
                shared.stamper.heard(term, elapsed);
            }
        };
        AppendSink { line, heard: Box::new(heard) }
    }

    /// Handles a message of another member, other than an append.
    pub fn handle(&self, kind: PeerKind, body: Bytes) -> BoxFuture<'static, Result<Bytes>> {
        // Not the replica itself: it ends when its owner lets go of it.
        let (shared, raft) = (self.inner.shared.clone(), self.inner.raft.clone());
        let is_stopped = *self.inner.stop.borrow();
        Box::pin(async move {
            match kind {
                _ if is_stopped => Err(Error::Stopped),
                PeerKind::Vote => vote(&shared, &raft, decode(body)?).await.map(|answer| encode(&answer)),
                PeerKind::PreVote => {
                    pre_vote(&shared, &raft, decode(body)?).await.map(|answer| encode(&answer))
                }
                PeerKind::Transfer => {
                    shared.quiet.disturb(&raft);
                    hand_over(&raft, decode(body)?).await.map(|answer| encode(&answer))
                }
                PeerKind::Snapshot => {
                    let step: SnapshotStep = decode(body)?;
                    transfer::take(shared, raft, step).await.map(|answer| encode(&answer))
                }
                PeerKind::Record => mend::give(&shared, decode(body)?).await.map(|answer| encode(&answer)),
                kind => Err(Error::malformed(format!("{kind:?} is not for a group's member"))),
            }
        })
    }
}

fn decode<T: Message + Default>(body: Bytes) -> Result<T> {
    T::decode(body).map_err(Error::malformed)
}

fn vote_request(ask: VoteAsk) -> Result<VoteRequest<Types>> {
    let vote = vote_from_message(ask.vote.ok_or_else(|| Error::malformed("a vote is missing"))?);
    let mut request = VoteRequest::new(vote, ask.last.map(log_id_from_message));
    request.leadership_transfer = ask.leadership_transfer;
    Ok(request)
}

/// The node that leads, if it is another one.
fn other_leader<M: Codec>(shared: &Shared<M>, raft: &Raft<M>) -> Option<NodeId> {
    let leader = raft.server_metrics().borrow_watched().current_leader.map(node_of);
    leader.filter(|leader| *leader != shared.member.node())
}

/// Whether this member of a quiet group may vote for nobody, though its engine has heard nothing for long.
fn is_promised<M: Codec>(shared: &Shared<M>, raft: &Raft<M>) -> bool {
    let term = raft.server_metrics().borrow_watched().vote.leader_id.term;
    shared.quiet.is_promised(raft, shared.member, term)
}

fn refused<M: Codec>(raft: &Raft<M>) -> VoteResponse<Types> {
    let vote = raft.server_metrics().borrow_watched().vote;
    let last = raft.data_metrics().borrow_watched().last_log;
    VoteResponse::new(vote, last, false)
}

async fn vote<M: Codec>(shared: &Shared<M>, raft: &Raft<M>, ask: VoteAsk) -> Result<VoteAnswer> {
    let mut request = vote_request(ask)?;
    let leader = other_leader(shared, raft);
    let is_gone = || leader.is_some_and(|leader| shared.peers.is_gone(leader));
    // The engine would wait until the leader has been silent for long enough; it is known to be gone.
    request.leadership_transfer |= is_gone();
    let is_promised = is_promised(shared, raft);
    let mut answer = match is_promised && !request.leadership_transfer {
        true => refused(raft),
        false => raft.vote(request.clone()).await.map_err(|_| Error::Stopped)?,
    };
    if !answer.vote_granted && !request.leadership_transfer && leader.is_some() {
        // Whoever asks may have seen it a moment before this node does.
        sleep(GONE_WAIT).await;
        if is_gone() {
            request.leadership_transfer = true;
            answer = raft.vote(request).await.map_err(|_| Error::Stopped)?;
        }
    }
    Ok(VoteAnswer {
        vote: Some(vote_to_message(&answer.vote)),
        last: answer.last_log_id.map(log_id_to_message),
        granted: answer.vote_granted,
    })
}

async fn pre_vote<M: Codec>(shared: &Shared<M>, raft: &Raft<M>, ask: VoteAsk) -> Result<VoteAnswer> {
    let request = vote_request(ask)?;
    let leader = other_leader(shared, raft);
    let is_promised = is_promised(shared, raft);
    let mut answer = raft.pre_vote(request.clone()).await.map_err(|_| Error::Stopped)?;
    answer.vote_granted &= !is_promised;
    // As `vote` would: a leader that is known to be gone does not stand in the way.
    let is_newer = request.vote.leader_id.term > answer.vote.leader_id.term;
    let has_all = request.last_log_id >= answer.last_log_id;
    if let (false, true, true, Some(leader)) = (answer.vote_granted, is_newer, has_all, leader) {
        if !shared.peers.is_gone(leader) {
            sleep(GONE_WAIT).await;
        }
        answer.vote_granted = shared.peers.is_gone(leader);
    }
    Ok(VoteAnswer {
        vote: Some(vote_to_message(&answer.vote)),
        last: answer.last_log_id.map(log_id_to_message),
        granted: answer.vote_granted,
    })
}

async fn hand_over<M: Codec>(raft: &Raft<M>, message: Transfer) -> Result<TransferAnswer> {
    let from = vote_from_message(message.from.ok_or_else(|| Error::malformed("a vote is missing"))?);
    tracing::debug!(to = %MemberId::from_bits(message.to), "the leader hands over");
    let request = TransferLeaderRequest::new(from, message.to, message.last.map(log_id_from_message));
    let refused = match raft.handle_transfer_leader(request).await.map_err(|_| Error::Stopped)? {
        Ok(()) => return Ok(TransferAnswer::default()),
        Err(refused) => refused,
    };
    Ok(match refused {
        TransferLeaderError::VoteChanged { actual, .. } => {
            TransferAnswer { vote_changed: Some(vote_to_message(&actual)), not_flushed: None }
        }
        TransferLeaderError::LogNotFlushed { actual, .. } => TransferAnswer {
            vote_changed: None,
            not_flushed: Some(Matched { last: actual.map(log_id_to_message) }),
        },
    })
}

#[cfg(test)]
mod tests {
    use wire::entry::Vote;

    use super::*;

    /// An append of the first term's leader.
    fn append(entries: impl Iterator<Item = u64>) -> Bytes {
        let vote = Some(Vote { term: 1, member: 1, committed: true });
        let payload = wire::entry::encode_blank;
        let entries = entries.map(|index| AppendEntry { term: 1, index, payload: payload() }).collect();
        encode(&Append { vote, entries, ..Append::default() })
    }

    #[test]
    fn heartbeats_that_pile_up_at_a_full_disk_leave_room_for_entries() {
        let refused = Arc::new(Mutex::new(Vec::new()));
        let answers = refused.clone();
        let answer = move |request, answer: Result<Bytes>| {
            assert!(matches!(answer, Err(Error::Unavailable)), "{answer:?}");
            answers.lock().push(request);
        };
        let line = Arc::new(Line { state: Mutex::default(), answer: Box::new(answer) });
        // Nobody takes anything out of it.
        let _engine = line.begin().unwrap();
        let sink = AppendSink { line, heard: Box::new(|_, _| ()) };
        let heartbeats = 3 * APPENDS_MAX as u64;
        for request in 0..heartbeats {
            assert!(sink.push(request, append(std::iter::empty())), "heartbeat {request}");
        }
        let taken = HEARTBEATS_MAX as u64;
        assert_eq!(std::mem::take(&mut *refused.lock()), (taken..heartbeats).collect::<Vec<_>>());
        for request in heartbeats..heartbeats + 64 {
            assert!(sink.push(request, append(std::iter::once(request))), "entry {request}");
        }
        assert!(refused.lock().is_empty(), "entries are taken");
    }
}
