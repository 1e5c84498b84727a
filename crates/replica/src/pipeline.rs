//! Sends appends to one member, several ahead of their answers, and returns the answers in order.
//!
//! What is on its way is bounded in number and bytes, so that a slow member holds up nobody and fills no
//! memory. The answers end with the first that is not a plain yes: the engine begins anew from there.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt};
use model::{Elapsed, MemberId, Mutant, mutant};
use openraft::errors::RPCError;
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use prost::Message;
use tokio::time::{Instant, Sleep, sleep};
use wire::peer::PeerKind;
use wire::raft::{Append, AppendAnswer, AppendEntry, Appended, encode};

use crate::codec::Codec;
use crate::log_store::stored;
use crate::network::{Told, unreachable};
use crate::peers::{Pace, PeerAnswer, Unreached};
use crate::shared::Shared;
use crate::type_config::{
    LogId, Types, log_id_from_message, log_id_to_message, vote_from_message, vote_to_message,
};

/// Requests that may be ahead of their answers.
const IN_FLIGHT_MAX: usize = 16;
/// Bytes of them; one that is larger goes alone.
const IN_FLIGHT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How often the word that something was committed lets others go first, without entries to go with. Under load
/// the next entries come at once and bring it along; a quiet group loses a few microseconds.
const COMMIT_YIELDS: u32 = 8;
/// How long the oldest answer may take. The engine keeps the log for whom it sends to: a member whose disk
/// hangs must not make it grow without end.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

type Answer = Result<StreamAppendResult<Types>, RPCError<Types>>;

/// Appends on their way to one member.
pub(crate) struct Pipeline<M: Codec, S> {
    shared: Arc<Shared<M>>,
    to: MemberId,
    told: Arc<Told>,
    /// Gone when it has ended.
    input: Option<S>,
    /// The end of what was sent here.
    last: Option<LogId>,
    /// A request that brings nothing but a commit, and how often it still lets others go first.
    held: Option<(AppendEntriesRequest<Types>, u32)>,
    /// What the link has not taken yet.
    sending: Option<(BoxFuture<'static, Result<PeerAnswer, Unreached>>, Sent)>,
    waiting: VecDeque<(PeerAnswer, Sent)>,
    waiting_bytes: usize,
    /// Until when the oldest must be answered.
    patience: Pin<Box<Sleep>>,
    ended: bool,
}

/// What was sent.
struct Sent {
    bytes: usize,
    last: Option<LogId>,
    /// The leader's term, and how far it had counted.
    counted: (u64, Elapsed),
}

impl<M, S> Pipeline<M, S>
where
    M: Codec,
    S: Stream<Item = AppendEntriesRequest<Types>> + Unpin,
{
    pub(crate) fn new(shared: Arc<Shared<M>>, to: MemberId, told: Arc<Told>, input: S) -> Pipeline<M, S> {
        Pipeline {
            shared,
            to,
            told,
            input: Some(input),
            last: None,
            held: None,
            sending: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            patience: Box::pin(sleep(ANSWER_WAIT)),
            ended: false,
        }
    }

    fn has_room(&self) -> bool {
        // The engine takes an answer also for later requests that end at the same entry. While somebody waits for
        // a read, which asks whether this member has spoken since, nothing may be on its way twice.
        if self.shared.reads_waiting.load(Ordering::Relaxed) > 0 {
            return self.waiting.is_empty();
        }
        self.waiting.len() < IN_FLIGHT_MAX && self.waiting_bytes < IN_FLIGHT_BYTES_MAX
    }

    /// Sends as much as there is and fits. An error is that of the member not being reached.
    fn send_on(&mut self, context: &mut Context<'_>) -> Result<(), Unreached> {
        loop {
            if let Some((taking, _)) = &mut self.sending {
                let Poll::Ready(taken) = taking.poll_unpin(context) else { return Ok(()) };
                let (_, sent) = self.sending.take().expect("it was there a line before");
                if self.waiting.is_empty() {
                    self.patience.as_mut().reset(Instant::now() + ANSWER_WAIT);
                }
                self.waiting_bytes += sent.bytes;
                self.waiting.push_back((taken?, sent));
            }
            if !self.has_room() {
                return Ok(());
            }
            let next = match &mut self.input {
                Some(input) => input.poll_next_unpin(context),
                None => Poll::Ready(None),
            };
            match next {
                Poll::Ready(Some(request)) => {
                    // It says what the held one would have said, and more, and its answer stands for both. The
                    // held one must not be answered here: to the engine an answer means that the member
                    // spoke after the request was made, and reads rest on that.
                    self.held = None;
                    if self.is_commit_alone(&request) {
                        self.held = Some((request, COMMIT_YIELDS));
                    } else {
                        self.send(&request);
                    }
                }
                Poll::Pending => match &mut self.held {
                    None => return Ok(()),
                    Some((_, yields @ 1..)) => {
                        *yields -= 1;
                        context.waker().wake_by_ref();
                        return Ok(());
                    }
                    Some(_) => self.send_held(),
                },
                Poll::Ready(None) => {
                    self.input = None;
                    if self.held.is_none() {
                        return Ok(());
                    }
                    self.send_held();
                }
            }
        }
    }

    /// Whether a request brings nothing but the word that what was sent here before is committed.
    fn is_commit_alone(&self, request: &AppendEntriesRequest<Types>) -> bool {
        request.entries.is_empty() && self.last.is_some() && request.prev_log_id == self.last
    }

    fn send_held(&mut self) {
        let (request, _) = self.held.take().expect("there is one");
        self.send(&request);
    }

    fn send(&mut self, request: &AppendEntriesRequest<Types>) {
        let is_news = self.told.is_news(request.leader_commit.map(|id| id.index));
        let is_awaited = self.shared.reads_waiting.load(Ordering::Relaxed) > 0;
        let pace = match is_news || is_awaited || !request.entries.is_empty() {
            true => Pace::Now,
            false => Pace::Lazy,
        };
        let term = request.vote.leader_id.term;
        let elapsed = self.shared.stamper.counted(term);
        let body = body(request, elapsed);
        let last = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        self.last = last;
        let sent = Sent { bytes: body.len(), last, counted: (term, elapsed) };
        let taking = self.shared.peers.send(self.to, self.shared.group, PeerKind::Append, body, pace);
        self.sending = Some((taking, sent));
    }

    fn end(&mut self, answer: Answer) -> Poll<Option<Answer>> {
        self.ended = true;
        self.input = None;
        self.sending = None;
        self.waiting.clear();
        Poll::Ready(Some(answer))
    }
}

impl<M, S> Stream for Pipeline<M, S>
where
    M: Codec,
    S: Stream<Item = AppendEntriesRequest<Types>> + Unpin,
{
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        // An error waits until what came before it is answered: that may be on its disk.
        let sending = this.send_on(context);
        let Some((answer, sent)) = this.waiting.front_mut() else {
            return match sending {
                Err(error) => this.end(Err(RPCError::Unreachable(unreachable(&error)))),
                Ok(()) if this.input.is_none() && this.sending.is_none() => Poll::Ready(None),
                Ok(()) => Poll::Pending,
            };
        };
        if sending.is_err() {
            this.input = None;
        }
        let Poll::Ready(answered) = answer.poll_unpin(context) else {
            if this.patience.as_mut().poll_unpin(context).is_ready() {
                let error = Unreached(format!("member {} did not answer in time", this.to));
                return this.end(Err(RPCError::Unreachable(unreachable(&error))));
            }
            return Poll::Pending;
        };
        let (bytes, last, (term, elapsed)) = (sent.bytes, sent.last, sent.counted);
        this.waiting.pop_front();
        this.waiting_bytes -= bytes;
        this.patience.as_mut().reset(Instant::now() + ANSWER_WAIT);
        let mut answer = understand(answered);
        if mutant::planted(Mutant::AnsweredBeforeCommit) && answer.is_err() {
            answer = Ok(Ok(last));
        }
        if matches!(answer, Ok(Ok(_))) {
            // It followed this far: should this leader be the next one too, the count goes on from here.
            this.shared.stamper.heard(term, elapsed);
        }
        match answer {
            // Not all of it: what follows does not fit.
            Ok(Ok(matched)) if matched < last => this.end(Ok(Ok(matched))),
            Ok(Ok(matched)) => Poll::Ready(Some(Ok(Ok(matched)))),
            answer => this.end(answer),
        }
    }
}

/// The entries go as they are stored.
fn body(request: &AppendEntriesRequest<Types>, elapsed: Elapsed) -> Bytes {
    let entry = |entry| {
        let storage::LogEntry { index, term, payload, .. } = stored(entry);
        AppendEntry { term, index, payload }
    };
    encode(&Append {
        vote: Some(vote_to_message(&request.vote)),
        prev: request.prev_log_id.map(log_id_to_message),
        committed: request.leader_commit.map(log_id_to_message),
        entries: request.entries.iter().map(entry).collect(),
        elapsed: elapsed.0,
    })
}

fn understand(answered: Result<Bytes, Unreached>) -> Answer {
    let bytes = answered.map_err(|error| unreachable(&error))?;
    let answer = AppendAnswer::decode(bytes).map_err(|error| unreachable(&error))?;
    match answer.outcome {
        Some(Appended::Matched(matched)) => Ok(Ok(matched.last.map(log_id_from_message))),
        Some(Appended::Conflict(id)) => Ok(Err(StreamAppendError::Conflict(log_id_from_message(id)))),
        Some(Appended::HigherVote(vote)) => Ok(Err(StreamAppendError::HigherVote(vote_from_message(vote)))),
        None => Err(unreachable(&Unreached("an answer that this version does not know".to_owned())).into()),
    }
}
