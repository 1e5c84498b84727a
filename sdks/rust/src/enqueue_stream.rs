//! The fast way in: all enqueues of one client share one stream, each is answered.
//!
//! A task owns the stream and what waits for an answer. When the stream breaks, what carries a dedup key is sent
//! again on the next one; of the rest nobody knows, and its caller is told so.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tonic::Streaming;
use wire::grpc::enqueue_result::Outcome;
use wire::grpc::{EnqueueItem, EnqueueReply, EnqueueResults, Task};

use crate::client::{Backoff, Line, Lines};
use crate::error::{Error, is_elsewhere};

/// Enqueues that wait to be sent.
const WAITING_MAX: usize = 4096;
/// Enqueues that wait for their answers.
const IN_FLIGHT_MAX: usize = 8192;
/// Messages handed to the connection ahead of it.
const AHEAD_MAX: usize = 512;
/// How long a server may take to open a stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Where enqueues come in.
pub(crate) struct Entrance {
    lines: Arc<Lines>,
    carrier: Mutex<Option<mpsc::Sender<Asked>>>,
}

/// One enqueue and who waits for it.
struct Asked {
    task: Task,
    answer: oneshot::Sender<Result<EnqueueReply, Error>>,
    until: Instant,
}

impl Entrance {
    pub(crate) fn new(lines: Arc<Lines>) -> Entrance {
        Entrance { lines, carrier: Mutex::new(None) }
    }

    /// Enqueues one task.
    pub(crate) async fn enqueue(&self, task: Task) -> Result<EnqueueReply, Error> {
        let (answer, answered) = oneshot::channel();
        let until = Instant::now() + self.lines.patience;
        let mut asked = Asked { task, answer, until };
        // The carrier ends with the runtime that it was started on: another one takes over.
        while let Err(mpsc::error::SendError(back)) = self.carrier().send(asked).await {
            asked = back;
            *self.carrier.lock() = None;
        }
        answered.await.unwrap_or_else(|_| Err(unknown("the runtime of this client ended")))
    }

    fn carrier(&self) -> mpsc::Sender<Asked> {
        let mut carrier = self.carrier.lock();
        let known = carrier.as_ref().filter(|sender| !sender.is_closed());
        known.cloned().unwrap_or_else(|| {
            let (sender, receiver) = mpsc::channel(WAITING_MAX);
            tokio::spawn(Carrier::new(self.lines.clone()).run(receiver));
            *carrier = Some(sender.clone());
            sender
        })
    }
}

fn unknown(reason: &str) -> Error {
    Error::Unknown { reason: reason.to_owned() }
}

/// Whether a second time is answered like the first.
fn is_repeatable(task: &Task) -> bool {
    task.dedup_key.is_some()
}

/// Whether what was refused with this word may be sent again.
fn is_worth_another(code: &str, asked: &Asked) -> bool {
    let is_safe = is_elsewhere(code) || (code == "timeout" && is_repeatable(&asked.task));
    is_safe && Instant::now() < asked.until
}

/// Owns the stream.
struct Carrier {
    lines: Arc<Lines>,
    /// To be sent.
    waiting: VecDeque<Asked>,
    /// Sent, by number.
    in_flight: BTreeMap<u64, Asked>,
    /// Refused for now.
    again: Vec<Asked>,
    seq: u64,
    /// Whether something was enqueued since the last pause.
    went_well: bool,
}

/// Why a stream is no longer used.
enum End {
    /// Nobody will ask any more.
    Over,
    /// This server cannot do it now.
    Elsewhere,
    Broken(String),
}

impl Carrier {
    fn new(lines: Arc<Lines>) -> Carrier {
        Carrier {
            lines,
            waiting: VecDeque::new(),
            in_flight: BTreeMap::new(),
            again: Vec::new(),
            seq: 0,
            went_well: false,
        }
    }

    async fn run(mut self, mut asked: mpsc::Receiver<Asked>) {
        let mut backoff = Backoff::default();
        loop {
            if self.waiting.is_empty() {
                match asked.recv().await {
                    Some(first) => self.waiting.push_back(first),
                    None => return,
                }
            }
            match self.on_a_line(&mut asked).await {
                Ok(End::Over) => return,
                Ok(End::Elsewhere) => {}
                Ok(End::Broken(reason)) => self.broken(&reason),
                Err(error) => self.give_up_late(&error),
            }
            self.waiting.extend(self.again.drain(..));
            if std::mem::take(&mut self.went_well) {
                backoff.reset();
            }
            if !self.waiting.is_empty() {
                sleep(backoff.next()).await;
            }
        }
    }

    /// Takes a line and a stream on it for as long as that lasts.
    async fn on_a_line(&mut self, asked: &mut mpsc::Receiver<Asked>) -> Result<End, Error> {
        let line = self.lines.line().await?;
        let (sender, mut receiver) = mpsc::channel(AHEAD_MAX);
        let items = futures::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let mut grpc = line.grpc.clone();
        let opened = match timeout(OPEN_TIMEOUT, grpc.enqueue_stream(items)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Error::of_status(&status, &line.address)),
            Err(_) => Err(unknown("the server did not open a stream")),
        };
        let end = match opened {
            Ok(answers) => Ok(self.carry(asked, sender, answers, &line).await),
            // Nothing was sent on it: whatever is wrong, nothing was done.
            Err(Error::Unknown { reason }) => {
                Err(Error::Unreachable { addresses: line.address.clone(), reason })
            }
            Err(error) => Err(error),
        };
        if !matches!(end, Ok(End::Over)) {
            self.lines.leave(&line).await;
        }
        end
    }

    async fn carry(
        &mut self,
        asked: &mut mpsc::Receiver<Asked>,
        items: mpsc::Sender<EnqueueItem>,
        mut answers: Streaming<EnqueueResults>,
        line: &Line,
    ) -> End {
        let mut is_leaving = false;
        let mut is_over = false;
        let mut batch = Vec::new();
        loop {
            if self.in_flight.is_empty() && is_leaving {
                return End::Elsewhere;
            }
            if self.in_flight.is_empty() && self.waiting.is_empty() && is_over {
                return End::Over;
            }
            let may_take = self.waiting.is_empty() && self.in_flight.len() < IN_FLIGHT_MAX;
            tokio::select! {
                message = answers.message() => match message {
                    Ok(Some(EnqueueResults { results })) => for result in results {
                        let Some(asked) = self.in_flight.remove(&result.seq) else { continue };
                        is_leaving |= self.answered(asked, result.outcome);
                    },
                    Ok(None) => return End::Broken("the server ended the stream".into()),
                    Err(status) => return End::Broken(Error::of_status(&status, &line.address).to_string()),
                },
                permit = items.reserve(), if !self.waiting.is_empty() && !is_leaving => {
                    let Ok(permit) = permit else { return End::Broken("the connection is gone".into()) };
                    permit.send(self.next_item());
                    while !self.waiting.is_empty() && let Ok(permit) = items.try_reserve() {
                        permit.send(self.next_item());
                    }
                }
                count = asked.recv_many(&mut batch, AHEAD_MAX), if may_take && !is_over && !is_leaving => {
                    is_over = count == 0;
                    self.waiting.extend(batch.drain(..));
                }
            }
        }
    }

    /// The next of those that wait, which is there, on its way.
    fn next_item(&mut self) -> EnqueueItem {
        let asked = self.waiting.pop_front().expect("the caller saw one");
        self.seq += 1;
        let item = EnqueueItem { seq: self.seq, task: Some(asked.task.clone()) };
        self.in_flight.insert(self.seq, asked);
        item
    }

    /// Tells a caller, unless it is worth another try. Whether it is.
    fn answered(&mut self, asked: Asked, outcome: Option<Outcome>) -> bool {
        let answer = match outcome {
            Some(Outcome::Enqueued(reply)) => {
                self.went_well = true;
                Ok(reply)
            }
            Some(Outcome::Error(error)) if is_worth_another(&error.code, &asked) => {
                self.again.push(asked);
                return true;
            }
            Some(Outcome::Error(error)) => Err(Error::refused(error)),
            None => Err(unknown("the server sent an answer that this version does not know")),
        };
        // A caller that went away wants no answer.
        let _ = asked.answer.send(answer);
        false
    }

    /// The stream broke: what may be repeated is, of the rest nobody knows.
    fn broken(&mut self, reason: &str) {
        for (_, asked) in std::mem::take(&mut self.in_flight) {
            if is_repeatable(&asked.task) && Instant::now() < asked.until {
                self.waiting.push_back(asked);
            } else {
                let _ = asked.answer.send(Err(unknown(reason)));
            }
        }
    }

    /// No server took the stream: those who waited long enough are told.
    fn give_up_late(&mut self, error: &Error) {
        let now = Instant::now();
        let is_final = !error.is_elsewhere();
        for asked in std::mem::take(&mut self.waiting) {
            if is_final || now >= asked.until {
                let _ = asked.answer.send(Err(error.clone()));
            } else {
                self.waiting.push_back(asked);
            }
        }
    }
}
