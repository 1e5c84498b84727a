//! The fast way in: all enqueues of one client share one stream, each is answered.
//!
//! A task owns the stream and what waits for an answer. What a shard cannot take now is put aside and tried again
//! while the others go on. When the server ends the stream, what it did not answer it did not take, and is sent
//! again on the next one. When the stream breaks, that holds only for what carries a dedup key: of the rest nobody
//! knows, and its caller is told so.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tonic::Status;
use wire::grpc::enqueue_result::Outcome;
use wire::grpc::{EnqueueItem, EnqueueReply, EnqueueResults, Task};

use crate::client::{Backoff, CALL_TIMEOUT, Lines};
use crate::error::{Error, TOO_LARGE, is_elsewhere, is_servers_word};

/// Enqueues that wait to be sent.
const WAITING_MAX: usize = 4096;
/// Enqueues that wait for their answers.
const IN_FLIGHT_MAX: usize = 8192;
/// Messages handed to the connection ahead of it.
const AHEAD_MAX: usize = 512;
/// How long a server may take to open a stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that took nothing at all for so long is left: another may do better.
const NO_USE_AFTER: Duration = Duration::from_millis(300);
/// A stream that was not used for so long is closed: a connection without one is not asked for signs of life.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// A dedup key that is remembered for less after its task's end does not make a second try safe.
const REPEATABLE_WINDOW_MS: u64 = 60_000;
/// How often unanswered and idle streams are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where enqueues come in.
pub(crate) struct Entrance {
    lines: Arc<Lines>,
    carrier: Mutex<Option<mpsc::Sender<Asked>>>,
}

/// One enqueue and who waits for it.
struct Asked {
    task: Task,
    answer: oneshot::Sender<Result<EnqueueReply, Error>>,
    /// How long it is tried.
    until: Instant,
    /// When it was last sent, and when first on this stream.
    sent: Option<Instant>,
    sent_first: Option<Instant>,
    /// Whether an earlier try of it may have been done.
    may_be_done: bool,
    backoff: Backoff,
}

impl Asked {
    fn new(task: Task, patience: Duration) -> (Asked, oneshot::Receiver<Result<EnqueueReply, Error>>) {
        let (answer, answered) = oneshot::channel();
        let (until, backoff) = (Instant::now() + patience, Backoff::default());
        let asked = Asked { task, answer, until, sent: None, sent_first: None, may_be_done: false, backoff };
        (asked, answered)
    }

    /// Tells its caller that it was not done, as far as anybody knows. One that went away wants no answer.
    fn refuse(self, error: Error) {
        let _ = self.answer.send(Err(error.after_a_try(self.may_be_done)));
    }
}

impl Entrance {
    pub(crate) fn new(lines: Arc<Lines>) -> Entrance {
        Entrance { lines, carrier: Mutex::new(None) }
    }

    /// Enqueues one task.
    pub(crate) async fn enqueue(&self, task: Task) -> Result<EnqueueReply, Error> {
        let (mut asked, answered) = Asked::new(task, self.lines.patience);
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

/// Whether a second time is answered like the first: its key must outlive its task for longer than anybody tries.
pub(crate) fn is_repeatable(task: &Task) -> bool {
    task.dedup_key.is_some() && task.dedup_window_ms.is_none_or(|window| window >= REPEATABLE_WINDOW_MS)
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
    /// Refused for now, by when they are sent again and the number that they had.
    aside: BTreeMap<(Instant, u64), Asked>,
    seq: u64,
    /// When something was last enqueued.
    worked: Option<Instant>,
    /// Whether something was since the last pause.
    went_well: bool,
}

/// Why a stream is no longer used.
enum End {
    /// Nobody will ask any more.
    Over,
    /// Nobody asked for long.
    Idle,
    /// This server cannot do it now.
    Elsewhere,
    /// The server ended it, with what it had to say. It answered all that it took.
    Ended(Error),
    Broken(String),
}

impl Carrier {
    fn new(lines: Arc<Lines>) -> Carrier {
        Carrier {
            lines,
            waiting: VecDeque::new(),
            in_flight: BTreeMap::new(),
            aside: BTreeMap::new(),
            seq: 0,
            worked: None,
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
                Ok(End::Elsewhere | End::Idle) => {}
                Ok(End::Ended(error)) => self.ended(&error),
                Ok(End::Broken(reason)) => self.broken(&reason),
                Err(error) => self.give_up_late(&error),
            }
            self.begin_anew();
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
            Ok(answers) => Ok(self.carry(asked, sender, answers, &line.address).await),
            // Nothing was sent on it: whatever is wrong, nothing was done.
            Err(Error::Unknown { reason }) => {
                Err(Error::Unreachable { addresses: line.address.clone(), reason })
            }
            Err(error) => Err(error),
        };
        if !matches!(end, Ok(End::Over | End::Idle)) {
            self.lines.leave(&line).await;
        }
        end
    }

    async fn carry(
        &mut self,
        asked: &mut mpsc::Receiver<Asked>,
        items: mpsc::Sender<EnqueueItem>,
        mut answers: impl Stream<Item = Result<EnqueueResults, Status>> + Unpin,
        address: &str,
    ) -> End {
        let mut is_leaving = false;
        let mut is_over = false;
        let mut batch = Vec::new();
        let mut used = Instant::now();
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.in_flight.is_empty() && is_leaving {
                return End::Elsewhere;
            }
            if self.is_empty() && is_over {
                return End::Over;
            }
            let is_full = self.in_flight.len() + self.aside.len() >= IN_FLIGHT_MAX;
            let may_take = self.waiting.is_empty() && !is_full;
            let again_at = self.aside.first_key_value().map(|((at, _), _)| *at);
            tokio::select! {
                message = answers.next() => match message {
                    Some(Ok(EnqueueResults { results })) => for result in results {
                        let Some(asked) = self.in_flight.remove(&result.seq) else { continue };
                        is_leaving |= self.answered(result.seq, asked, result.outcome);
                    },
                    None => return End::Broken("the server ended the stream".into()),
                    Some(Err(status)) => {
                        let error = Error::of_status(&status, address);
                        return match is_servers_word(&status) {
                            true => End::Ended(error),
                            false => End::Broken(error.to_string()),
                        };
                    }
                },
                permit = items.reserve(), if !self.waiting.is_empty() && !is_leaving => {
                    let Ok(permit) = permit else { return End::Broken("the connection is gone".into()) };
                    used = Instant::now();
                    permit.send(self.next_item(used));
                    self.send_waiting(&items, used);
                }
                count = asked.recv_many(&mut batch, AHEAD_MAX), if may_take && !is_over && !is_leaving => {
                    is_over = count == 0;
                    self.waiting.extend(batch.drain(..));
                    // What there is room for goes at once.
                    used = Instant::now();
                    self.send_waiting(&items, used);
                }
                () = until(again_at), if !is_leaving => self.take_up(Instant::now()),
                now = looks.tick() => {
                    if self.is_unanswered(now) {
                        return End::Broken(format!("no answer within {CALL_TIMEOUT:?}"));
                    }
                    if self.is_empty() && now.saturating_duration_since(used) >= IDLE_MAX {
                        return End::Idle;
                    }
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.waiting.is_empty() && self.aside.is_empty()
    }

    /// Whether the oldest of those that were sent waits for too long.
    fn is_unanswered(&self, now: Instant) -> bool {
        let oldest = self.in_flight.values().next().and_then(|asked| asked.sent);
        oldest.is_some_and(|sent| now.saturating_duration_since(sent) >= CALL_TIMEOUT)
    }

    /// Sends those that wait, as far as there is room.
    fn send_waiting(&mut self, items: &mpsc::Sender<EnqueueItem>, now: Instant) {
        while !self.waiting.is_empty()
            && let Ok(permit) = items.try_reserve()
        {
            permit.send(self.next_item(now));
        }
    }

    /// The next of those that wait, which is there, on its way.
    fn next_item(&mut self, now: Instant) -> EnqueueItem {
        let mut asked = self.waiting.pop_front().expect("the caller saw one");
        self.seq += 1;
        asked.sent = Some(now);
        asked.sent_first.get_or_insert(now);
        let item = EnqueueItem { seq: self.seq, task: Some(asked.task.clone()), ..EnqueueItem::default() };
        self.in_flight.insert(self.seq, asked);
        item
    }

    /// Tells a caller, or puts the task aside when it is worth another try. Whether the server is of no use: it
    /// took nothing, of whomever, for as long as this one has tried.
    fn answered(&mut self, seq: u64, mut asked: Asked, outcome: Option<Outcome>) -> bool {
        let now = Instant::now();
        let answer = match outcome {
            Some(Outcome::Enqueued(reply)) => {
                self.worked = Some(now);
                self.went_well = true;
                Ok(reply)
            }
            Some(Outcome::Error(error)) if is_worth_another(&error.code, &asked) => {
                asked.may_be_done |= error.code == "timeout";
                let since = asked.sent_first.unwrap_or(now);
                let took_something = self.worked.is_some_and(|worked| worked >= since);
                let again_at = (now + asked.backoff.next()).min(asked.until);
                self.aside.insert((again_at, seq), asked);
                return !took_something && now.saturating_duration_since(since) >= NO_USE_AFTER;
            }
            Some(Outcome::Error(error)) => {
                asked.refuse(Error::refused(error));
                return false;
            }
            None => Err(unknown("the server sent an answer that this version does not know")),
        };
        // A caller that went away wants no answer.
        let _ = asked.answer.send(answer);
        false
    }

    /// Those that were put aside for long enough wait to be sent again.
    fn take_up(&mut self, now: Instant) {
        let later = self.aside.split_off(&(now, u64::MAX));
        self.waiting.extend(std::mem::replace(&mut self.aside, later).into_values());
    }

    /// What was tried on one stream is tried on the next.
    fn begin_anew(&mut self) {
        let aside = std::mem::take(&mut self.aside);
        self.waiting.extend(aside.into_values());
        for asked in &mut self.waiting {
            asked.sent_first = None;
        }
    }

    /// The server ended the stream: what it did not answer, it did not take. When that was because of an item's
    /// size, it was the first of them.
    fn ended(&mut self, error: &Error) {
        let mut left = std::mem::take(&mut self.in_flight).into_values();
        if error.code() == Some(TOO_LARGE)
            && let Some(first) = left.next()
        {
            first.refuse(error.clone());
        } else if !error.is_elsewhere() {
            return left.for_each(|asked| asked.refuse(error.clone()));
        }
        for asked in left {
            match Instant::now() < asked.until {
                true => self.waiting.push_back(asked),
                false => asked.refuse(error.clone()),
            }
        }
    }

    /// The stream broke: what may be repeated is, of the rest nobody knows.
    fn broken(&mut self, reason: &str) {
        for (_, mut asked) in std::mem::take(&mut self.in_flight) {
            if is_repeatable(&asked.task) && Instant::now() < asked.until {
                asked.may_be_done = true;
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
                asked.refuse(error.clone());
            } else {
                self.waiting.push_back(asked);
            }
        }
    }
}

/// Returns at this time, or never.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    type Answer = oneshot::Receiver<Result<EnqueueReply, Error>>;

    fn carrier() -> Carrier {
        Carrier::new(Client::builder("http://127.0.0.1:1").connect_lazily().unwrap().lines)
    }

    fn task(queue: &str, dedup_key: Option<&str>) -> Task {
        Task { queue: queue.to_owned(), dedup_key: dedup_key.map(str::to_owned), ..Task::default() }
    }

    fn refusal(code: &str) -> wire::grpc::Error {
        wire::grpc::Error { code: code.to_owned(), ..Default::default() }
    }

    /// Answers each item by its queue, until the stream is closed.
    async fn serve(
        mut items: mpsc::Receiver<EnqueueItem>,
        answers: mpsc::Sender<Told>,
        mut outcome: impl FnMut(&str) -> Outcome,
    ) {
        while let Some(EnqueueItem { seq, task, .. }) = items.recv().await {
            let outcome = Some(outcome(&task.unwrap().queue));
            let results = vec![wire::grpc::EnqueueResult { seq, outcome }];
            let _ = answers.send(Ok(EnqueueResults { results })).await;
        }
    }

    type Told = Result<EnqueueResults, Status>;

    /// What is told, as the carrier hears it.
    fn told_on_a_stream() -> (mpsc::Sender<Told>, impl Stream<Item = Told> + Unpin) {
        let (told, mut answers) = mpsc::channel(16);
        (told, futures::stream::poll_fn(move |cx| answers.poll_recv(cx)))
    }

    #[tokio::test]
    async fn what_one_shard_cannot_take_now_does_not_hold_up_the_rest() {
        let ((items, sent), (told, answers)) = (mpsc::channel(16), told_on_a_stream());
        let (entrance, mut asked) = mpsc::channel(16);
        let mut carrier = carrier();
        let until = Instant::now() + 3 * NO_USE_AFTER;
        let server = serve(sent, told, |queue| match queue == "slow" && Instant::now() < until {
            true => Outcome::Error(refusal("unavailable")),
            false => Outcome::Enqueued(EnqueueReply::default()),
        });
        let asking = async move {
            let ask = |queue: &str| {
                let (asked, answer): (_, Answer) = Asked::new(task(queue, None), Duration::from_secs(30));
                assert!(entrance.try_send(asked).is_ok());
                answer
            };
            let slow = ask("slow");
            while Instant::now() < until {
                assert!(ask("quick").await.unwrap().is_ok());
                sleep(Duration::from_millis(5)).await;
            }
            assert!(slow.await.unwrap().is_ok(), "it is tried again");
        };
        let (end, (), ()) = tokio::join!(carrier.carry(&mut asked, items, answers, "here"), asking, server);
        assert!(matches!(end, End::Over), "the stream was not left");
    }

    #[tokio::test]
    async fn a_server_that_takes_nothing_is_left_and_all_are_tried_elsewhere() {
        let ((items, sent), (told, answers)) = (mpsc::channel(16), told_on_a_stream());
        let (_entrance, mut asked) = mpsc::channel(16);
        let mut carrier = carrier();
        let (first, _answer) = Asked::new(task("slow", None), Duration::from_secs(30));
        carrier.waiting.push_back(first);
        let server = serve(sent, told, |_| Outcome::Error(refusal("unavailable")));
        let (end, ()) = tokio::join!(carrier.carry(&mut asked, items, answers, "here"), server);
        assert!(matches!(end, End::Elsewhere));
        carrier.begin_anew();
        assert_eq!((carrier.waiting.len(), carrier.in_flight.len()), (1, 0));
    }

    #[tokio::test]
    async fn what_may_have_been_done_is_never_said_to_be_undone() {
        for (first, expected) in [("its stream broke", true), ("it was not sent", false)] {
            let mut carrier = carrier();
            let (asked, mut answer): (_, Answer) =
                Asked::new(task("mail", Some("key")), Duration::from_millis(50));
            carrier.waiting.push_back(asked);
            if expected {
                carrier.next_item(Instant::now());
                carrier.broken("cut");
            }
            sleep(Duration::from_millis(60)).await;
            carrier.give_up_late(&Error::refused(refusal("unavailable")));
            let error = answer.try_recv().unwrap().unwrap_err();
            assert_eq!(error.is_unknown(), expected, "{first}: {error}");
        }
    }

    #[test]
    fn a_key_that_goes_with_its_task_makes_no_second_try_safe() {
        for (window, expected) in
            [(None, true), (Some(60_000), true), (Some(59_999), false), (Some(0), false)]
        {
            let task = Task { dedup_window_ms: window, ..task("mail", Some("key")) };
            assert_eq!(is_repeatable(&task), expected, "{window:?}");
        }
        assert!(!is_repeatable(&task("mail", None)));
    }

    #[tokio::test]
    async fn what_a_server_did_not_take_is_sent_again_and_of_what_it_took_nobody_knows() {
        let told = |error: &Error| error.code().unwrap_or("unknown").to_owned();
        for (what, end, expected) in [
            ("it stops", End::Ended(Error::refused(refusal("unavailable"))), ["again", "again", "again"]),
            ("too large", End::Ended(Error::refused(refusal(TOO_LARGE))), [TOO_LARGE, "again", "again"]),
            ("denied", End::Ended(Error::refused(refusal("denied"))), ["denied"; 3]),
            ("it broke", End::Broken(String::new()), ["unknown", "again", "unknown"]),
        ] {
            let mut carrier = carrier();
            let keys = [None, Some("key"), None];
            let mut answers: Vec<Answer> = Vec::new();
            for key in keys {
                let (asked, answer) = Asked::new(task("mail", key), Duration::from_secs(30));
                carrier.waiting.push_back(asked);
                carrier.next_item(Instant::now());
                answers.push(answer);
            }
            match end {
                End::Ended(error) => carrier.ended(&error),
                End::Broken(reason) => carrier.broken(&reason),
                End::Over | End::Idle | End::Elsewhere => unreachable!("not in this table"),
            }
            let outcomes: Vec<String> = answers
                .iter_mut()
                .map(|answer| match answer.try_recv() {
                    Ok(answer) => told(&answer.unwrap_err()),
                    Err(_) => "again".to_owned(),
                })
                .collect();
            assert_eq!(outcomes, expected, "{what}");
            let again = expected.iter().filter(|word| **word == "again").count();
            assert_eq!((carrier.waiting.len(), carrier.in_flight.len()), (again, 0), "{what}");
        }
    }
}
