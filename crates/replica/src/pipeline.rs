//! Sends appends to one member, several ahead of their answers, and returns the answers in order.
//!
//! What is on its way is bounded in number and bytes, so that a slow member holds up nobody and fills no
//! memory. The answers end with the first that is not a plain yes: the engine begins anew from there. Nor does a member
//! whose disk is full get the same entries again and again: until it has answered what was given up, it gets none.

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
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(10);

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
    /// Entries that wait until the member has answered what it was sent before.
    stalled: Option<AppendEntriesRequest<Types>>,
    /// What the link has not taken yet.
    sending: Option<(BoxFuture<'static, Result<PeerAnswer, Unreached>>, Sent)>,
    waiting: VecDeque<(PeerAnswer, Sent)>,
    waiting_bytes: usize,
    /// Until when the oldest must be answered.
    patience: Pin<Box<Sleep>>,
    answer_wait: Duration,
    ended: bool,
}

/// What was sent.
struct Sent {
    bytes: usize,
    has_entries: bool,
    last: Option<LogId>,
    /// The leader's term, and how far it had counted.
    counted: (u64, Elapsed),
}

impl<M, S> Pipeline<M, S>
where
    M: Codec,
    S: Stream<Item = AppendEntriesRequest<Types>> + Unpin,
{
    pub(crate) fn new(
        shared: Arc<Shared<M>>,
        to: MemberId,
        told: Arc<Told>,
        input: S,
        answer_wait: Duration,
    ) -> Pipeline<M, S> {
        Pipeline {
            shared,
            to,
            told,
            input: Some(input),
            last: None,
            held: None,
            stalled: None,
            sending: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            patience: Box::pin(sleep(answer_wait)),
            answer_wait,
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
                    self.patience.as_mut().reset(Instant::now() + self.answer_wait);
                }
                self.waiting_bytes += sent.bytes;
                self.waiting.push_back((taken?, sent));
            }
            if !self.has_room() {
                return Ok(());
            }
            let next = match (self.stalled.take(), &mut self.input) {
                (Some(stalled), _) => Poll::Ready(Some(stalled)),
                (None, Some(input)) => input.poll_next_unpin(context),
                (None, None) => Poll::Ready(None),
            };
            match next {
                Poll::Ready(Some(request)) => {
                    // It says what the held one would have said, and more, and its answer stands for both. The
                    // held one must not be answered here: to the engine an answer means that the member
                    // spoke after the request was made, and reads rest on that.
                    self.held = None;
                    if !request.entries.is_empty() && self.told.is_owed(context) {
                        self.stalled = Some(request);
                        return Ok(());
                    }
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
        let has_entries = !request.entries.is_empty();
        let sent = Sent { bytes: body.len(), has_entries, last, counted: (term, elapsed) };
        let taking = self.shared.peers.send(self.to, self.shared.group, PeerKind::Append, body, pace);
        self.sending = Some((taking, sent));
    }

    /// Ends when the member has had its time to answer.
    fn lose_patience(&mut self, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        if self.patience.as_mut().poll_unpin(context).is_pending() {
            return Poll::Pending;
        }
        self.told.give_up(self.waiting.drain(..).map(|(answer, _)| answer));
        let error = Unreached(format!("member {} did not answer in time", self.to));
        self.end(Err(RPCError::Unreachable(unreachable(&error))))
    }

    fn end(&mut self, answer: Answer) -> Poll<Option<Answer>> {
        self.ended = true;
        self.input = None;
        self.sending = None;
        self.stalled = None;
        self.waiting.clear();
        Poll::Ready(Some(answer))
    }
}

/// What was sent takes room at the member until it is answered, whoever waits. Heartbeats have places of their own there.
impl<M: Codec, S> Drop for Pipeline<M, S> {
    fn drop(&mut self) {
        let entries = self.waiting.drain(..).filter(|(_, sent)| sent.has_entries);
        self.told.give_up(entries.map(|(answer, _)| answer));
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
                Ok(()) if this.stalled.is_some() => this.lose_patience(context),
                Ok(()) if this.input.is_none() && this.sending.is_none() => Poll::Ready(None),
                Ok(()) => Poll::Pending,
            };
        };
        if sending.is_err() {
            this.input = None;
        }
        let Poll::Ready(answered) = answer.poll_unpin(context) else {
            return this.lose_patience(context);
        };
        let (bytes, last, (term, elapsed)) = (sent.bytes, sent.last, sent.counted);
        this.waiting.pop_front();
        this.waiting_bytes -= bytes;
        this.patience.as_mut().reset(Instant::now() + this.answer_wait);
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

#[cfg(test)]
mod tests {
    use model::{GroupId, NodeId};
    use parking_lot::Mutex;
    use storage::LogEntry;
    use tokio::sync::oneshot;

    use super::*;
    use crate::log_store::engine_entry;
    use crate::lone;
    use crate::peers::Peers;
    use crate::type_config::log_id;

    /// Takes everything, and answers when the test does.
    #[derive(Default)]
    struct Silent {
        taken: Mutex<Vec<oneshot::Sender<Bytes>>>,
    }

    impl Peers for Silent {
        fn send(
            &self,
            _to: MemberId,
            _group: GroupId,
            _kind: PeerKind,
            _body: Bytes,
            _pace: Pace,
        ) -> BoxFuture<'static, Result<PeerAnswer, Unreached>> {
            let (answer, answered) = oneshot::channel();
            self.taken.lock().push(answer);
            let answered = async { answered.await.map_err(|_| Unreached("the link is lost".to_owned())) };
            Box::pin(async move { Ok(answered.boxed()) })
        }

        fn is_gone(&self, _node: NodeId) -> bool {
            false
        }
    }

    fn request(index: u64) -> AppendEntriesRequest<Types> {
        let entry = LogEntry { index, term: 1, node: 0, payload: wire::entry::encode_blank() };
        AppendEntriesRequest {
            vote: vote_from_message(wire::entry::Vote { term: 1, member: 1, committed: true }),
            prev_log_id: Some(log_id(1, index - 1)),
            entries: vec![engine_entry(entry).unwrap()],
            leader_commit: None,
        }
    }

    #[tokio::test]
    async fn a_member_that_does_not_answer_gets_no_more_until_it_has() {
        let peers = Arc::<Silent>::default();
        let (log, replica, _) = lone::start(peers.clone()).await;
        let (told, to) = (Arc::<Told>::default(), MemberId::new(NodeId(2), 0));
        let begin = || {
            let input = futures::stream::iter((1..=100).map(request));
            Pipeline::new(replica.inner.shared.clone(), to, told.clone(), input, Duration::from_millis(50))
        };
        let taken = || peers.taken.lock().len();
        for round in 0..3 {
            let answer = begin().next().await.unwrap();
            assert!(matches!(answer, Err(RPCError::Unreachable(_))), "{answer:?}");
            assert_eq!(taken(), IN_FLIGHT_MAX, "round {round}");
        }
        // The disk has room again, and what waited is answered.
        for answer in std::mem::take(&mut *peers.taken.lock()) {
            let _ = answer.send(Bytes::new());
        }
        for what in ["it gets entries again", "those of one that was dropped count, too"] {
            assert!(futures::poll!(begin().next()).is_pending());
            assert_eq!(taken(), IN_FLIGHT_MAX, "{what}");
        }
        replica.stop().await.unwrap();
        log.close().unwrap();
    }
}
