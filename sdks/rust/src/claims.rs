//! What a worker holds: each claim from its push to the answer of its outcome.
//!
//! No IO and no clock: `stream.rs` hands in what arrived and what time it is, and takes out what is to be sent. A
//! claim is listed in beats until its outcome is answered, so that no server gives it back while the ack is under way.
//! Next: `claims/answers.rs`, what follows from an answer.

mod answers;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use wire::grpc;
use wire::grpc::outcome::Outcome as Said;

use crate::context::{Cancelled, Running};
use crate::error::{Error, TaskError};
use crate::hub::{ExtendWish, Outcome};
use crate::middleware::Metrics;
use crate::outcome::{cut, done, follow_ups, given_back, not_done, within};
use crate::task::{TaskId, millis};

/// A claim is extended when this part of its hold has passed.
const EXTEND_AT: f64 = 1.0 / 3.0;
/// A claim of which nobody said how long it holds is over when the server says so.
const UNSURE: Duration = Duration::from_secs(24 * 3600);
/// What a server could not do now is asked again after this, or twice as long each time, up to a limit.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(5);
/// An extension that was refused is asked for again no sooner than this.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Outcomes of one message, and their bytes, but for a single larger one.
const OUTCOMES_MAX: usize = 1_000;
const OUTCOMES_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What follows the outcomes of one message. Servers refuse a message with more than twice as many.
const FOLLOW_UPS_MAX: usize = 50_000;
/// The largest message that a server takes, unless it says another.
const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// What a message has beside its outcome, at most.
const BESIDE_OUTCOME: usize = 64;
/// Length of a progress note; what is longer is cut.
const NOTE_BYTES_MAX: usize = 1024;

/// All that a worker holds.
pub(crate) struct Claims {
    held: HashMap<u64, Held>,
    by_task: HashMap<(TaskId, u64), u64>,
    /// When to look at which claim.
    timers: BTreeSet<(Instant, u64)>,
    /// To be sent, in this order, each with whose it is.
    outbox: VecDeque<Letter>,
    /// Sent and not answered, each with when.
    sent: BTreeMap<u64, (Instant, Letter)>,
    /// Refused for now; to be sent again then.
    later: BTreeMap<(Instant, u64), Letter>,
    /// The number of the last outcome.
    seq: u64,
    /// Handlers that run.
    executing: usize,
    /// The largest outcome that a server takes.
    outcome_bytes_max: usize,
    metrics: Arc<dyn Metrics>,
}

/// An outcome on its way.
struct Letter {
    /// Whose it is.
    number: u64,
    outcome: grpc::Outcome,
    /// How often it was sent.
    sent: u32,
    /// How often a server could not do it.
    put_off: u32,
}

/// One claim.
struct Held {
    running: Arc<Running>,
    token: String,
    /// How long a claim holds from each extension on.
    hold: Duration,
    extends: bool,
    /// The time until which it surely holds.
    until: Instant,
    /// When it is extended next.
    extend_at: Instant,
    /// Which outcome is on its way, if any; an extension with its hold.
    extending: Option<(u64, Duration)>,
    noting: Option<u64>,
    ending: Option<u64>,
    answer: Option<oneshot::Sender<Result<(), Error>>>,
    abort: Option<AbortHandle>,
    handler: HandlerIs,
    /// Whether it is another's by now.
    is_lost: bool,
    timer: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandlerIs {
    Running,
    Ended,
}

/// How a claim is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) hold: Duration,
    /// Whether the server said so, or it only seems to be.
    pub(crate) is_sure: bool,
    /// How much of it had passed when the server sent the task.
    pub(crate) waited: Duration,
    pub(crate) extends: bool,
    /// How long its handler wants it held, if that is something else.
    pub(crate) wanted: Option<Duration>,
}

impl Claims {
    pub(crate) fn new(metrics: Arc<dyn Metrics>) -> Claims {
        Claims {
            held: HashMap::new(),
            by_task: HashMap::new(),
            timers: BTreeSet::new(),
            outbox: VecDeque::new(),
            sent: BTreeMap::new(),
            later: BTreeMap::new(),
            seq: 0,
            executing: 0,
            outcome_bytes_max: MESSAGE_BYTES_MAX - BESIDE_OUTCOME,
            metrics,
        }
    }

    /// The server takes messages of at most so many bytes; 0 when it does not say.
    pub(crate) fn set_message_bytes_max(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(MESSAGE_BYTES_MAX);
        self.outcome_bytes_max = bytes.saturating_sub(BESIDE_OUTCOME);
    }

    /// How many there are, ended ones without an answer too.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Handlers that run.
    pub(crate) fn executing(&self) -> usize {
        self.executing
    }

    /// Outcomes that were sent and are not answered.
    pub(crate) fn unanswered(&self) -> usize {
        self.sent.len()
    }

    /// Whether nothing waits to be sent or answered.
    pub(crate) fn is_settled(&self) -> bool {
        self.outbox.is_empty() && self.sent.is_empty() && self.later.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// A task was pushed, and its handler begins.
    pub(crate) fn begin(&mut self, running: Arc<Running>, token: String, hold: Hold, now: Instant) {
        let number = running.number;
        self.by_task.insert((running.id.clone(), running.fence), number);
        let held = Held {
            running,
            token,
            hold: hold.hold,
            extends: hold.extends,
            until: now + if hold.is_sure { hold.hold.saturating_sub(hold.waited) } else { UNSURE },
            extend_at: now + hold.hold.mul_f64(EXTEND_AT).saturating_sub(hold.waited),
            extending: None,
            noting: None,
            ending: None,
            answer: None,
            abort: None,
            handler: HandlerIs::Running,
            is_lost: false,
            timer: None,
        };
        self.held.insert(number, held);
        self.executing += 1;
        if let Some(wanted) = hold.wanted {
            self.extend(number, wanted);
        }
        self.set_timer(number);
    }

    /// How to end the handler that began last.
    pub(crate) fn set_abort(&mut self, number: u64, abort: AbortHandle) {
        if let Some(held) = self.held.get_mut(&number) {
            held.abort = Some(abort);
        }
    }

    /// A handler ended.
    pub(crate) fn end(&mut self, number: u64, outcome: Outcome) {
        let Some(held) = self.held.get_mut(&number) else { return };
        if held.handler == HandlerIs::Ended {
            return;
        }
        held.handler = HandlerIs::Ended;
        held.abort = None;
        self.executing -= 1;
        if held.is_lost {
            tracing::debug!(id = %held.running.id, "the outcome of a lost task is dropped");
            return self.forget(number);
        }
        let said = match (outcome, held.running.is_stopping()) {
            (Ok(output), _) => done(output, &held.running),
            // The handler was told to stop: that it did not finish is nobody's failure.
            (Err(error), true) if !error.is_fatal() => given_back(Duration::ZERO),
            (Err(error), _) => not_done(&error),
        };
        let said = within(said, &held.token, self.outcome_bytes_max);
        let seq = self.say(number, said);
        self.held.entry(number).and_modify(|held| held.ending = Some(seq));
        self.set_timer(number);
    }

    /// A handler wants to hold on.
    pub(crate) fn wish(&mut self, wish: ExtendWish) {
        match self.held.get_mut(&wish.number) {
            Some(held) if !held.is_lost && held.handler == HandlerIs::Running => {
                held.answer = Some(wish.answer);
                self.extend(wish.number, wish.hold);
                self.set_timer(wish.number);
            }
            _ => drop(wish.answer.send(Err(lost()))),
        }
    }

    /// A handler said how far it is.
    pub(crate) fn note(&mut self, number: u64) {
        let Some(held) = self.held.get_mut(&number) else { return };
        // The note before is under way: this one follows when that was answered.
        if held.noting.is_some() || held.is_lost || held.handler == HandlerIs::Ended {
            return;
        }
        let note = {
            let mut progress = held.running.progress.lock();
            progress.is_told = false;
            progress.latest.take()
        };
        let Some(note) = note else { return };
        let text = cut(&note.note, NOTE_BYTES_MAX).to_owned();
        let said = Said::Progress(grpc::ProgressNote { percent: note.percent.min(100), note: text });
        let seq = self.say(number, said);
        self.held.entry(number).and_modify(|held| held.noting = Some(seq));
    }

    /// Somebody wants this task stopped.
    pub(crate) fn cancel(&self, id: &str, fence: u64) {
        if let Some(held) = self.find(id, fence).and_then(|number| self.held.get(&number)) {
            held.running.tell(Cancelled::Asked);
        }
    }

    /// This task is ours no more.
    pub(crate) fn lose(&mut self, id: &str, fence: u64) {
        let Some(number) = self.find(id, fence) else { return };
        // One whose outcome is under way may be listed though its ack went through: the answer tells.
        if self.held.get(&number).is_some_and(|held| held.handler == HandlerIs::Running) {
            self.lose_number(number);
        }
    }

    /// Our session is over: all that runs is ours no more. Outcomes are still sent; the fence decides.
    pub(crate) fn lose_all(&mut self) {
        let running = self.held.iter().filter(|(_, held)| held.handler == HandlerIs::Running);
        for number in running.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.lose_number(number);
        }
    }

    fn lose_number(&mut self, number: u64) {
        let Some(held) = self.held.get_mut(&number) else { return };
        if held.is_lost {
            return;
        }
        held.is_lost = true;
        held.running.tell(Cancelled::Lost);
        if let Some(answer) = held.answer.take() {
            let _ = answer.send(Err(lost()));
        }
        let running = held.running.clone();
        tracing::warn!(id = %running.id, kind = %running.kind, fence = running.fence, "claim lost");
        self.metrics.lost(&running.queue, &running.kind);
        if held.handler == HandlerIs::Ended {
            self.forget(number);
        } else {
            self.set_timer(number);
        }
    }

    /// Tells all handlers that the worker stops.
    pub(crate) fn cancel_all(&self) {
        for held in self.held.values() {
            held.running.tell(Cancelled::Stopping);
        }
    }

    /// Ends all handlers that still run and gives their tasks back.
    pub(crate) fn release_all(&mut self) {
        for number in self.held.keys().copied().collect::<Vec<_>>() {
            let Some(held) = self.held.get_mut(&number) else { continue };
            if held.handler == HandlerIs::Ended {
                continue;
            }
            held.running.tell(Cancelled::Stopping);
            if let Some(abort) = held.abort.take() {
                abort.abort();
            }
            self.end(number, Err(TaskError::release("the worker stops")));
        }
    }

    /// The stream is new: what was sent and not answered is sent again, before everything else.
    pub(crate) fn send_again(&mut self) {
        for (_, (_, letter)) in std::mem::take(&mut self.sent).into_iter().rev() {
            self.outbox.push_front(letter);
        }
    }

    /// All that a beat must list.
    pub(crate) fn listed(&self) -> Vec<grpc::HeldTask> {
        let ours = self.held.values().filter(|held| !held.is_lost);
        ours.map(|held| grpc::HeldTask { id: held.running.id.to_string(), fence: held.running.fence })
            .collect()
    }

    /// Whether there is something to be sent.
    pub(crate) fn has_outcomes(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// What is to be sent now, at most `room`.
    pub(crate) fn outcomes(&mut self, room: usize, now: Instant) -> Vec<grpc::Outcome> {
        let mut outcomes = Vec::with_capacity(self.outbox.len().min(OUTCOMES_MAX));
        let (mut bytes, mut items) = (0, 0);
        while outcomes.len() < OUTCOMES_MAX.min(room) {
            let Some(mut letter) = self.outbox.pop_front() else { break };
            bytes += prost::Message::encoded_len(&letter.outcome);
            items += follow_ups(&letter.outcome);
            if (bytes > OUTCOMES_BYTES_MAX || items > FOLLOW_UPS_MAX) && !outcomes.is_empty() {
                self.outbox.push_front(letter);
                break;
            }
            letter.sent += 1;
            outcomes.push(letter.outcome.clone());
            self.sent.insert(letter.outcome.seq, (now, letter));
        }
        outcomes
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let later = self.later.first_key_value().map(|((at, _), _)| *at);
        timer.into_iter().chain(later).min()
    }

    /// Does what is due.
    pub(crate) fn due(&mut self, now: Instant) {
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            let letter = entry.remove();
            self.outbox.push_back(letter);
        }
        while let Some((at, number)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, number));
            let Some(held) = self.held.get_mut(&number) else { continue };
            held.timer = None;
            if held.until <= now {
                held.running.tell(Cancelled::Deadline);
            }
            if held.extends && held.extending.is_none() && held.extend_at <= now {
                let hold = held.hold;
                self.extend(number, hold);
            }
            self.set_timer(number);
        }
    }

    /// Asks for a new deadline. One that is under way is not waited for: the last one counts.
    fn extend(&mut self, number: u64, hold: Duration) {
        let seq = self.say(number, Said::Extend(grpc::Extension { hold_ms: Some(millis(hold)) }));
        self.held.entry(number).and_modify(|held| held.extending = Some((seq, hold)));
    }

    /// Something to be sent about a claim. Its number.
    fn say(&mut self, number: u64, said: Said) -> u64 {
        self.seq += 1;
        let token = self.held.get(&number).map(|held| held.token.clone()).unwrap_or_default();
        let outcome = grpc::Outcome { seq: self.seq, token, outcome: Some(said) };
        self.outbox.push_back(Letter { number, outcome, sent: 0, put_off: 0 });
        self.seq
    }

    /// The claim is over, and answered.
    fn forget(&mut self, number: u64) {
        let Some(held) = self.held.remove(&number) else { return };
        self.by_task.remove(&(held.running.id.clone(), held.running.fence));
        if let Some(at) = held.timer {
            self.timers.remove(&(at, number));
        }
    }

    fn find(&self, id: &str, fence: u64) -> Option<u64> {
        self.by_task.get(&(TaskId::from(id), fence)).copied()
    }

    /// Sets when to look at a claim next.
    fn set_timer(&mut self, number: u64) {
        let Some(held) = self.held.get_mut(&number) else { return };
        let runs = held.handler == HandlerIs::Running && !held.is_lost;
        let extend = (held.extends && held.extending.is_none()).then_some(held.extend_at);
        let until = (held.running.told().is_none()).then_some(held.until);
        let at = extend.into_iter().chain(until).min().filter(|_| runs);
        if let Some(before) = std::mem::replace(&mut held.timer, at) {
            self.timers.remove(&(before, number));
        }
        if let Some(at) = at {
            self.timers.insert((at, number));
        }
    }
}

fn lost() -> Error {
    Error::refused(grpc::Error {
        code: "stale_token".into(),
        message: "the task is this worker's no more".into(),
        ..grpc::Error::default()
    })
}

#[cfg(test)]
mod tests;
