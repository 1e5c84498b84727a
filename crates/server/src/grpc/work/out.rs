//! What goes to a worker: gathered while the stream is busy, handed over as it takes it. Tasks that it does not
//! take any more are given back.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use node::Node;
use node::call::Claim;
use tokio::sync::mpsc;
use tonic::Status;
use wire::grpc;
use wire::grpc::server_message::Message;

use super::super::tell;

/// Messages between the two sides. Few: what waits longer is gathered into fewer messages.
const HANDED_OVER_MAX: usize = 4;
/// Bytes of payload in one push, but for a single larger task. Little: what is sent next need not wait long for it.
const PUSH_BYTES_MAX: usize = 256 * 1024;
/// What a task has beside its payload, about.
const BESIDE_PAYLOAD: usize = 256;
/// Results in one message.
const RESULTS_MAX: usize = 1_000;

/// One thing for the worker.
pub(super) enum Out {
    /// Tasks, written as late as possible.
    Tasks(Vec<Claim>),
    /// Anything else.
    Message(Box<Message>),
    /// The end of the stream, unless it ends well.
    End(Box<Status>),
}

/// Nobody reads any more.
pub(super) struct Closed;

/// What is to be sent.
pub(super) struct Outbox {
    node: Node,
    results: VecDeque<grpc::OutcomeResult>,
    tasks: VecDeque<Claim>,
    tasks_bytes: usize,
    beat: Option<grpc::BeatAnswer>,
    error: Option<grpc::Error>,
    /// What a worker shall do: a few, and one for each task that is to be cancelled.
    rest: VecDeque<Message>,
}

impl Outbox {
    pub(super) fn new(node: Node) -> Outbox {
        let (results, tasks, rest) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Outbox { node, results, tasks, tasks_bytes: 0, beat: None, error: None, rest }
    }

    /// The bytes of the tasks that wait.
    pub(super) fn tasks_bytes(&self) -> usize {
        self.tasks_bytes
    }

    /// How many results wait.
    pub(super) fn results(&self) -> usize {
        self.results.len()
    }

    pub(super) fn tell(&mut self, message: Message) {
        self.rest.push_back(message);
    }

    pub(super) fn add_results(&mut self, results: Vec<grpc::OutcomeResult>) {
        self.results.extend(results);
    }

    pub(super) fn push(&mut self, claims: Vec<Claim>) {
        self.tasks_bytes += claims.iter().map(bytes).sum::<usize>();
        self.tasks.extend(claims);
    }

    /// The newest answer to a beat says all that the one before did.
    pub(super) fn answer_beat(&mut self, answer: grpc::BeatAnswer) {
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

    /// Sends what there is room for, once there is some. Losing a race loses nothing.
    pub(super) async fn send(&mut self, sender: &mpsc::Sender<Out>) -> Result<(), Closed> {
        let mut permit = sender.reserve().await.map_err(|_| Closed)?;
        while let Some(out) = self.next() {
            permit.send(out);
            match sender.try_reserve() {
                Ok(next) => permit = next,
                Err(_) => break,
            }
        }
        Ok(())
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
        if !self.results.is_empty() {
            let count = self.results.len().min(RESULTS_MAX);
            let results = self.results.drain(..count).collect();
            return Some(Out::Message(Box::new(Message::Results(grpc::OutcomeResults { results }))));
        }
        if !self.tasks.is_empty() {
            return Some(Out::Tasks(self.next_tasks()));
        }
        self.error.take().map(|error| Out::Message(Box::new(Message::Error(error))))
    }

    fn next_tasks(&mut self) -> Vec<Claim> {
        let mut sum = 0;
        let mut fits = |claim: &Claim| {
            sum += bytes(claim);
            sum <= PUSH_BYTES_MAX
        };
        let count = self.tasks.iter().take_while(|claim| fits(claim)).count().max(1);
        let tasks: Vec<Claim> = self.tasks.drain(..count).collect();
        self.tasks_bytes -= tasks.iter().map(bytes).sum::<usize>();
        tasks
    }

    /// Gives back the tasks that were not sent. How many.
    pub(super) fn give_back(&mut self) -> usize {
        let tasks = Vec::from(std::mem::take(&mut self.tasks));
        self.tasks_bytes = 0;
        if !tasks.is_empty() {
            self.node.give_back(&tasks);
        }
        tasks.len()
    }
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
pub(super) fn way_out(node: Node) -> (mpsc::Sender<Out>, Outgoing) {
    let (sender, receiver) = mpsc::channel(HANDED_OVER_MAX);
    (sender, Outgoing { receiver, node })
}

/// The stream to a worker, as the connection reads it.
pub(crate) struct Outgoing {
    receiver: mpsc::Receiver<Out>,
    node: Node,
}

impl Stream for Outgoing {
    type Item = Result<grpc::ServerMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let out = std::task::ready!(self.receiver.poll_recv(context));
        Poll::Ready(out.map(|out| match out {
            Out::Tasks(claims) => {
                let claims = tell::claims(claims);
                Ok(grpc::ServerMessage { message: Some(Message::Tasks(grpc::Tasks { claims })) })
            }
            Out::Message(message) => Ok(grpc::ServerMessage { message: Some(*message) }),
            Out::End(status) => Err(*status),
        }))
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.receiver.close();
        while let Ok(out) = self.receiver.try_recv() {
            if let Out::Tasks(claims) = out {
                self.node.give_back(&claims);
            }
        }
    }
}
