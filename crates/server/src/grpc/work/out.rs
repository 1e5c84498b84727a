//! What goes to a worker: gathered while the stream is busy, handed over as it takes it. Tasks that it does not
//! take any more are given back.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::Stream;
use node::Node;
use node::call::Claim;
use tonic::Status;
use wire::grpc;
use wire::grpc::outcome_result::Result as Told;
use wire::grpc::server_message::Message;
use wire::grpc::streams::{Written, WrittenServerMessage};

use super::super::tell;
use super::handover::{Closed, Giver, Taker, handover};

/// Messages between the two sides. Few: what waits longer is gathered into fewer messages.
const HANDED_OVER_MAX: usize = 4;
/// Bytes of payload in one push, but for a single larger task. Little: what is sent next need not wait long for it.
const PUSH_BYTES_MAX: usize = 256 * 1024;
/// A push of more bytes than this is announced: on a slow line its worker, which counts as the holder already, would be
/// silent until all of it is there.
const ANNOUNCED_BYTES: usize = 64 * 1024;
/// What a task has beside its payload, about.
const BESIDE_PAYLOAD: usize = 256;
/// Results in one message.
const RESULTS_MAX: usize = 1_000;

/// One thing for the worker.
pub(super) enum Out {
    /// Tasks, written as late as possible, and since when the oldest waits.
    Tasks(Vec<Claim>, Instant),
    /// What became of outcomes.
    Results(Written<grpc::OutcomeResults>),
    /// Anything else.
    Message(Box<Message>),
    /// The end of the stream, unless it ends well.
    End(Box<Status>),
}

/// What is to be sent.
pub(super) struct Outbox {
    node: Node,
    results: VecDeque<Written<grpc::OutcomeResults>>,
    tasks: VecDeque<Pushed>,
    tasks_bytes: usize,
    /// The next tasks were announced.
    is_announced: bool,
    beat: Option<grpc::BeatAnswer>,
    error: Option<grpc::Error>,
    /// What a worker shall do: a few, and one for each task that is to be cancelled.
    rest: VecDeque<Message>,
}

/// Tasks that came together.
struct Pushed {
    claims: Vec<Claim>,
    bytes: usize,
    since: Instant,
}

impl Outbox {
    pub(super) fn new(node: Node) -> Outbox {
        let (results, tasks, rest) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Outbox { node, results, tasks, tasks_bytes: 0, is_announced: false, beat: None, error: None, rest }
    }

    /// The bytes of the tasks that wait.
    pub(super) fn tasks_bytes(&self) -> usize {
        self.tasks_bytes
    }

    /// How many results wait.
    pub(super) fn results(&self) -> usize {
        self.results.iter().map(Written::len).sum()
    }

    pub(super) fn tell(&mut self, message: Message) {
        self.rest.push_back(message);
    }

    pub(super) fn add_results(&mut self, results: Written<grpc::OutcomeResults>) {
        match self.results.back_mut() {
            Some(last) if last.len() + results.len() <= RESULTS_MAX => last.join(results),
            _ => self.results.push_back(results),
        }
    }

    /// Answers an outcome that made no sense.
    pub(super) fn refuse(&mut self, seq: u64, error: Told) {
        let mut results = Written::default();
        Written::add_other(&mut results, seq, error);
        self.add_results(results);
    }

    pub(super) fn push(&mut self, claims: Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
        let bytes = claims.iter().map(bytes).sum();
        self.tasks_bytes += bytes;
        match self.tasks.back_mut() {
            Some(last) if last.bytes + bytes <= PUSH_BYTES_MAX => {
                last.claims.extend(claims);
                last.bytes += bytes;
            }
            _ => self.tasks.push_back(Pushed { claims, bytes, since: Instant::now() }),
        }
    }

    /// The newest answer to a beat says all that the one before did, but for what is told once: which claims are lost.
    pub(super) fn answer_beat(&mut self, mut answer: grpc::BeatAnswer) {
        let before = self.beat.take().map(|before| before.lost).unwrap_or_default();
        answer.lost.extend(before);
        answer.lost.sort_unstable_by(|one, other| (&one.id, one.fence).cmp(&(&other.id, other.fence)));
        answer.lost.dedup();
        self.beat = Some(answer);
    }

    /// Says what went wrong; of several such things that wait, the last.
    pub(super) fn complain(&mut self, error: grpc::Error) {
        self.error = Some(error);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.results.is_empty()
            && self.tasks.is_empty()
            && self.beat.is_none()
            && self.error.is_none()
            && self.rest.is_empty()
    }

    /// Hands over what there is room for. Returns when something went, or when nobody reads any more. Losing a race
    /// loses nothing.
    pub(super) async fn send(&mut self, way: &WayOut) -> Result<(), Closed> {
        poll_fn(|context| way.0.poll_give(context, || self.next())).await
    }

    /// The next to go out.
    fn next(&mut self) -> Option<Out> {
        if let Some(message) = self.rest.pop_front() {
            return Some(Out::Message(Box::new(message)));
        }
        // Before all that may be long: a worker that hears nothing goes elsewhere.
        if let Some(beat) = self.beat.take() {
            return Some(Out::Message(Box::new(Message::Beat(beat))));
        }
        if let Some(results) = self.results.pop_front() {
            return Some(Out::Results(results));
        }
        if let Some(first) = self.tasks.front_mut() {
            let (count, bytes) = fitting(&first.claims);
            if bytes > ANNOUNCED_BYTES && !std::mem::replace(&mut self.is_announced, true) {
                return Some(Out::Message(Box::new(Message::Tasks(grpc::Tasks::default()))));
            }
            self.is_announced = false;
            self.tasks_bytes -= bytes;
            let (since, rest) = (first.since, first.claims.split_off(count));
            let claims = std::mem::replace(&mut first.claims, rest);
            first.bytes -= bytes;
            if first.claims.is_empty() {
                self.tasks.pop_front();
            }
            return Some(Out::Tasks(claims, since));
        }
        self.error.take().map(|error| Out::Message(Box::new(Message::Error(error))))
    }

    /// Gives back the tasks that were not sent. How many.
    pub(super) fn give_back(&mut self) -> usize {
        let tasks: Vec<Claim> = self.tasks.drain(..).flat_map(|pushed| pushed.claims).collect();
        (self.tasks_bytes, self.is_announced) = (0, false);
        if !tasks.is_empty() {
            self.node.give_back(&tasks);
        }
        tasks.len()
    }
}

/// How many of these, from the first on, go with one push, and their bytes.
fn fitting(claims: &[Claim]) -> (usize, usize) {
    let (mut count, mut sum) = (0, 0);
    for claim in claims {
        let bytes = bytes(claim);
        if count > 0 && sum + bytes > PUSH_BYTES_MAX {
            break;
        }
        (count, sum) = (count + 1, sum + bytes);
    }
    (count, sum)
}

/// What a task takes until it is sent, about.
pub(super) fn bytes(claim: &Claim) -> usize {
    claim.envelope.payload.len() + BESIDE_PAYLOAD
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Both ends of the way out.
pub(super) fn way_out(node: Node) -> (WayOut, Outgoing) {
    let (giver, taker) = handover(HANDED_OVER_MAX);
    (WayOut(giver), Outgoing { taker, node })
}

/// The way to a worker.
pub(super) struct WayOut(Giver<Out>);

impl WayOut {
    /// Sends one thing more.
    pub(super) async fn send(&self, out: Out) -> Result<(), Closed> {
        let mut out = Some(out);
        poll_fn(|context| self.0.poll_give(context, || out.take())).await
    }
}

/// The stream to a worker, as the connection reads it.
pub(crate) struct Outgoing {
    taker: Taker<Out>,
    node: Node,
}

impl Stream for Outgoing {
    type Item = Result<WrittenServerMessage, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let out = std::task::ready!(self.taker.poll_take(context));
        Poll::Ready(out.map(|out| match out {
            Out::Tasks(claims, since) => {
                let waited = since.elapsed();
                Ok(Written::tasks(claims.iter().map(|claim| tell::push(claim, waited))))
            }
            Out::Results(results) => Ok(Written::results(&results)),
            Out::Message(message) => Ok(Written::from(&grpc::ServerMessage { message: Some(*message) })),
            Out::End(status) => Err(*status),
        }))
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        for out in self.taker.close() {
            if let Out::Tasks(claims, _) = out {
                self.node.give_back(&claims);
            }
        }
    }
}
