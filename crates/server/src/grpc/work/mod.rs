//! `Work`: one stream for a worker's whole life.
//!
//! The worker grants credit and gets tasks pushed, never more than that; what it says of its claims is gathered and
//! handed to the node in one call for all that has arrived, many calls at a time. Reading waits for no answer, but
//! stops while too many outcomes are unanswered. The stream holds the worker's session (`node/src/sessions.rs`): when
//! it breaks, the session ends within a second unless another stream takes its place, at whichever node; when the
//! server stops, the session is held until the node is gone, so that the worker keeps its claims.
//!
//! Start at `Work::serve`, the loop. `hello.rs` is how a worker comes in, `idle.rs` how often one beats that holds nothing,
//! `out.rs` what goes to it (by `handover.rs`), `sizes.rs` how much of that may wait.

mod handover;
mod hello;
mod idle;
mod out;
mod sizes;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use model::{Fence, SessionId, TaskId, WorkerName, limits};
use node::call::{Answer, BeatAnswer, Claim, ClaimCall, WorkerState};
use node::{SessionBell, SessionStream};
use tokio::time::Sleep;
use tonic::{Response, Status, Streaming};
use wire::grpc;
use wire::grpc::outcome_result::Result as Told;
use wire::grpc::server_message::Message as ServerSays;
use wire::grpc::streams::Written;
use wire::grpc::worker_message::Message as WorkerSays;
use wire::http::parse::check_at_most;
use wire::http::{Code, Problem};

use self::handover::Closed;
use self::hello::{Comer, over};
use self::idle::Counted;
use self::out::{Out, Outbox, WayOut, bytes, way_out};
use self::sizes::{Sizes, fitting};
use super::settle::Sorted;
use super::under_way::UnderWay;
use super::{read, status, tell};
use crate::app::App;
use crate::problem::Refusal;

pub(crate) use self::out::Outgoing;

/// Outcomes of one stream that may wait for their results, or for the worker to take them.
const OUTCOMES_MAX: usize = 4_096;
/// Outcomes in one call of the node.
const BATCH_MAX: usize = 1_000;
/// Messages read in one go.
const READ_MAX: usize = 256;
/// Credit that one worker may have open.
const CREDIT_MAX: u32 = limits::SLOTS_MAX;
/// Claims of one stream that wait at once: credit that comes while one waits need not wait for it.
const CLAIMS_MAX: usize = 4;
/// After a claim that failed, before the next.
const CLAIM_PAUSE: Duration = Duration::from_millis(200);
/// How long an ending stream may take to answer what was asked.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes a worker in and begins to serve it.
pub(super) async fn begin(
    app: &App,
    mut incoming: Streaming<grpc::WorkerMessage>,
) -> Result<Response<Outgoing>, Status> {
    let comer = hello::take_in(app, &mut incoming).await?;
    let (way, outgoing) = way_out(app.node.clone());
    // Boxed: a task would keep room for it twice.
    tokio::spawn(Box::new(Work::new(app.clone(), comer, incoming, way)).run());
    Ok(Response::new(outgoing))
}

/// One worker's stream.
struct Work {
    app: App,
    worker: WorkerName,
    session: SessionId,
    held: SessionStream,
    counted: Counted,
    state: WorkerState,
    /// How it claims; nothing for one that wants no tasks.
    claim: Option<ClaimCall>,
    incoming: Streaming<grpc::WorkerMessage>,
    way: WayOut,
    outbox: Outbox,
    /// Room that no claim has taken up yet.
    credit: u32,
    /// Room that claims under way have taken up.
    credit_asked: u32,
    sizes: Sizes,
    claims: UnderWay<Claimed>,
    /// No claim before its end.
    pause: Option<Pin<Box<Sleep>>>,
    /// Outcomes that were read and not handed to the node.
    batch: Sorted,
    /// Calls under way, and what is waited for beside them.
    events: FuturesUnordered<BoxFuture<'static, Event>>,
    calls_under_way: usize,
    outcomes_under_way: usize,
    beats: Beats,
    /// What was pushed and is not known to have arrived, oldest first.
    on_the_way: VecDeque<(TaskId, Fence)>,
    /// How many tasks are known to have arrived.
    arrived: u64,
    /// Which cancels the worker knows of.
    cancels: Vec<(TaskId, Fence)>,
}

/// What became of a claim for so many.
type Claimed = (u32, Result<Answer<Vec<Claim>>, node::Error>);

/// What happens beside reading, claiming and sending. Each is waited for once, so that a turn of the loop costs nothing
/// for what seldom happens.
enum Event {
    /// What became of outcomes.
    Settled(Written<grpc::OutcomeResults>),
    /// What a beat is answered.
    Beat(Result<BeatAnswer, node::Error>),
    /// Something else may be asked of the worker.
    Asked(SessionBell),
    /// The server stops.
    Stopping,
}

/// One beat is looked into at a time; of those that come meanwhile the last counts.
enum Beats {
    Idle,
    UnderWay { next: Option<Vec<(TaskId, Fence)>> },
}

/// Why a stream ends.
enum End {
    /// The worker said goodbye.
    Left,
    /// The connection is gone.
    Gone,
    /// The session is, or another stream has it.
    Over,
    /// The server stops.
    Stopping,
    /// The worker said what makes no sense.
    Refused(Refusal),
}

type Flow = ControlFlow<End>;

impl Work {
    fn new(app: App, comer: Comer, incoming: Streaming<grpc::WorkerMessage>, way: WayOut) -> Work {
        let Comer { worker, session, held, asked, claim, welcome } = comer;
        let (mut outbox, counted) = (Outbox::new(app.node.clone()), Counted::new(app.clone()));
        outbox.tell(ServerSays::Welcome(welcome));
        let mut work = Work {
            app,
            worker,
            session,
            held,
            counted,
            state: WorkerState::Running,
            claim,
            incoming,
            way,
            outbox,
            credit: 0,
            credit_asked: 0,
            sizes: Sizes::default(),
            claims: UnderWay::default(),
            pause: None,
            batch: Sorted::default(),
            events: FuturesUnordered::new(),
            calls_under_way: 0,
            outcomes_under_way: 0,
            beats: Beats::Idle,
            on_the_way: VecDeque::new(),
            arrived: 0,
            cancels: Vec::new(),
        };
        work.asked(asked);
        work.wait_for(work.held.bell());
        work
    }

    async fn run(mut self: Box<Work>) {
        let end = self.serve().await;
        // Apart, so that thousands of idle streams do not keep room for their end.
        Box::pin(self.finish(end)).await;
    }

    /// The loop.
    async fn serve(&mut self) -> End {
        loop {
            // What came goes out before more is claimed.
            if self.outbox.is_empty() {
                self.claim_more();
            }
            tokio::select! {
                biased;
                Some(event) = self.events.next() => match self.happened(event) {
                    Flow::Continue(()) => {}
                    Flow::Break(end) => return end,
                },
                claimed = self.claims.next(), if !self.claims.is_empty() => self.claimed(claimed),
                // Also with nothing to send: it tells when nobody reads any more.
                sent = self.outbox.send(&self.way) => match sent {
                    // Whoever carries it has its turn before the next claim.
                    Ok(()) if self.credit > 0 => tokio::task::yield_now().await,
                    Ok(()) => {}
                    Err(Closed) => return End::Gone,
                },
                said = self.incoming.message(), if self.may_read() => match self.read(said) {
                    Flow::Continue(()) => {}
                    Flow::Break(end) => return end,
                },
                () = over_with(&mut self.pause), if self.pause.is_some() => self.pause = None,
            }
        }
    }

    /// Waits for the end of the server, and for the bell.
    fn wait_for(&self, bell: SessionBell) {
        let stopping = self.app.stopping().clone();
        let event = async move {
            tokio::select! {
                biased;
                () = stopping.cancelled() => Event::Stopping,
                bell = bell.rung() => Event::Asked(bell),
            }
        };
        self.events.push(event.boxed());
    }

    /// Takes in what happened, and what else did at the same time.
    fn happened(&mut self, first: Event) -> Flow {
        let mut event = first;
        loop {
            match event {
                Event::Settled(results) => {
                    self.calls_under_way -= 1;
                    self.outcomes_under_way -= results.len();
                    self.outbox.add_results(results);
                }
                Event::Beat(answer) => {
                    self.calls_under_way -= 1;
                    self.beaten(answer);
                }
                Event::Asked(bell) => match self.held.now() {
                    Some(asked) => {
                        self.asked(asked);
                        self.wait_for(bell);
                    }
                    None => return Flow::Break(End::Over),
                },
                Event::Stopping => return Flow::Break(End::Stopping),
            }
            match self.events.next().now_or_never().flatten() {
                Some(next) => event = next,
                None => return Flow::Continue(()),
            }
        }
    }

    fn call(&mut self, call: impl Future<Output = Event> + Send + 'static) {
        self.events.push(call.boxed());
        self.calls_under_way += 1;
    }

    /// Whoever has too many outcomes unanswered, or does not take the answers, is not read from.
    fn may_read(&self) -> bool {
        self.outcomes_under_way + self.outbox.results() < OUTCOMES_MAX
    }

    /// Takes in a message and those that came with it, then hands on what they say of claims.
    fn read(&mut self, first: Result<Option<grpc::WorkerMessage>, Status>) -> Flow {
        self.held.heard();
        let mut said = first;
        for _ in 0..READ_MAX {
            let message = match said {
                Ok(Some(message)) => message,
                Ok(None) => {
                    self.hand_on();
                    return Flow::Break(End::Gone);
                }
                Err(status) => {
                    self.hand_on();
                    return Flow::Break(unread(&status));
                }
            };
            if let Flow::Break(end) = self.heard(message) {
                self.hand_on();
                return Flow::Break(end);
            }
            if !self.may_read() {
                break;
            }
            match self.incoming.message().now_or_never() {
                Some(next) => said = next,
                None => break,
            }
        }
        self.hand_on();
        Flow::Continue(())
    }

    fn heard(&mut self, message: grpc::WorkerMessage) -> Flow {
        let taken = match message.message {
            Some(WorkerSays::Credit(credit)) => self.grant(credit.more),
            Some(WorkerSays::Outcomes(said)) => {
                self.outcomes(said.outcomes).and_then(|()| self.grant(said.credit))
            }
            Some(WorkerSays::Beat(beat)) => self.beat(&beat),
            Some(WorkerSays::Draining(grpc::Draining {})) => {
                self.held.drain();
                if let Some(asked) = self.held.now() {
                    self.asked(asked);
                }
                Ok(())
            }
            Some(WorkerSays::Goodbye(grpc::Goodbye {})) => return Flow::Break(End::Left),
            Some(WorkerSays::Hello(_)) => Err(Refusal::invalid("a second hello: one stream, one worker")),
            // A message of a later version.
            None => Ok(()),
        };
        match taken {
            Ok(()) => Flow::Continue(()),
            Err(refusal) => Flow::Break(End::Refused(refusal)),
        }
    }

    fn grant(&mut self, more: u32) -> Result<(), Refusal> {
        let credit = self.credit.saturating_add(more);
        if credit.saturating_add(self.credit_asked) > CREDIT_MAX {
            return Err(Refusal::invalid(format!("credit is over {CREDIT_MAX}: grant as much as is free")));
        }
        self.credit = credit;
        Ok(())
    }

    /// Each has a result, which waits here when the worker takes none: one message must not make too many of them.
    fn outcomes(&mut self, outcomes: Vec<grpc::Outcome>) -> Result<(), Refusal> {
        check_at_most("outcomes", &outcomes, limits::SETTLE_MAX)?;
        for outcome in outcomes {
            let seq = outcome.seq;
            match self.batch.add(seq, outcome) {
                Ok(()) => self.outcomes_under_way += 1,
                Err(invalid) => {
                    let error = Told::Error(status::error(Problem::from(invalid)));
                    self.outbox.refuse(seq, error);
                }
            }
            if self.batch.len() >= BATCH_MAX {
                self.hand_on();
            }
        }
        Ok(())
    }

    /// Hands the outcomes that were read to the node.
    fn hand_on(&mut self) {
        if self.batch.len() == 0 {
            return;
        }
        let (batch, node) = (std::mem::take(&mut self.batch), self.app.node.clone());
        self.call(async move { Event::Settled(batch.settle(&node).await.0) });
    }

    /// A beat: what the worker holds, and what it has not got yet.
    fn beat(&mut self, beat: &grpc::HeldTasks) -> Result<(), Refusal> {
        let held = read::held(&beat.held)?;
        match beat.received {
            Some(received) => {
                let news = received.saturating_sub(self.arrived).min(self.on_the_way.len() as u64);
                self.on_the_way.drain(..news as usize);
                self.arrived += news;
            }
            None => {
                self.arrived += self.on_the_way.len() as u64;
                self.on_the_way.clear();
            }
        }
        match &mut self.beats {
            Beats::UnderWay { next } => *next = Some(held),
            Beats::Idle => self.look_into(held),
        }
        Ok(())
    }

    fn look_into(&mut self, held: Vec<(TaskId, Fence)>) {
        let (node, worker, session) = (self.app.node.clone(), self.worker.clone(), self.session);
        let on_the_way = self.on_the_way.iter().copied().collect();
        self.call(async move { Event::Beat(node.beat_on_stream(&worker, session, held, on_the_way).await) });
        self.beats = Beats::UnderWay { next: None };
    }

    fn beaten(&mut self, answer: Result<BeatAnswer, node::Error>) {
        match answer {
            Ok(answer) => self.outbox.answer_beat(grpc::BeatAnswer {
                state: answer.state.as_str().to_owned(),
                cancel: tell::held_tasks(&answer.cancel),
                lost: tell::held_tasks(&answer.lost),
                idle_beat_ms: self.counted.beat_ms(self.session),
            }),
            Err(error) => self.outbox.complain(tell::refused(&error)),
        }
        let beats = std::mem::replace(&mut self.beats, Beats::Idle);
        if let Beats::UnderWay { next: Some(held) } = beats {
            self.look_into(held);
        }
    }

    /// Claims for the credit that there is, as far as there is room for what comes.
    fn claim_more(&mut self) {
        let Some(call) = &self.claim else { return };
        while self.credit > 0
            && self.state == WorkerState::Running
            && self.claims.len() < CLAIMS_MAX
            && self.pause.is_none()
        {
            let room = self.sizes.room(self.outbox.tasks_bytes(), self.credit_asked);
            let max = self.credit.min(limits::CLAIM_MAX).min(room);
            if max == 0 {
                // Some of it is sent first, or comes first.
                return;
            }
            self.credit -= max;
            self.credit_asked += max;
            let claim = self.app.node.claim(ClaimCall { max, ..call.clone() });
            self.claims.push(claim.map(move |claimed| (max, claimed)));
        }
    }

    /// Takes in what a claim brought, and what others brought at the same time.
    fn claimed(&mut self, first: Claimed) {
        let mut claimed = first;
        loop {
            self.take_in(claimed);
            match self.claims.ended() {
                Some(next) => claimed = next,
                None => return,
            }
        }
    }

    fn take_in(&mut self, (asked, claimed): Claimed) {
        self.credit_asked -= asked;
        match claimed {
            Ok(Answer { value: mut claims, .. }) => {
                self.sizes.saw(&claims);
                let fitting = fitting(self.outbox.tasks_bytes(), claims.iter().map(bytes));
                let over = claims.split_off(fitting);
                if !over.is_empty() {
                    self.app.node.give_back(&over);
                }
                let got = u32::try_from(claims.len()).unwrap_or(asked);
                self.credit += asked.saturating_sub(got);
                self.on_the_way.extend(claims.iter().map(|claim| (claim.id, claim.fence)));
                self.outbox.push(claims);
            }
            Err(error) => {
                self.credit += asked;
                self.pause = Some(Box::pin(tokio::time::sleep(CLAIM_PAUSE)));
                self.outbox.complain(tell::refused(&error));
            }
        }
    }

    /// Tells the worker what is asked of it.
    fn asked(&mut self, asked: BeatAnswer) {
        if asked.state != self.state {
            self.state = asked.state;
            match asked.state {
                WorkerState::Draining => self.outbox.tell(ServerSays::Drain(grpc::Drain {})),
                WorkerState::Stopping => self.outbox.tell(ServerSays::Stop(grpc::Stop {})),
                WorkerState::Running | WorkerState::Lost => {}
            }
            if asked.state != WorkerState::Running {
                // What they had claimed by now is given back. Nothing is claimed any more, so the credit is of no use.
                self.claims.clear();
                let given_back = self.outbox.give_back();
                // The last that were claimed, and so not on their way.
                self.on_the_way.truncate(self.on_the_way.len().saturating_sub(given_back));
            }
        }
        for cancel in asked.cancel.iter().filter(|cancel| !self.cancels.contains(cancel)) {
            let (id, fence) = (cancel.0.to_string(), cancel.1.0);
            self.outbox.tell(ServerSays::Cancel(grpc::Cancel { id, fence, reason: String::new() }));
        }
        self.cancels = asked.cancel;
    }

    /// Ends the stream in order.
    async fn finish(mut self: Box<Work>, end: End) {
        self.claims.clear();
        self.outbox.give_back();
        let status = match end {
            // Whoever looks for lost workers shall know at once; what was said before still counts.
            End::Gone => {
                let (mut events, mut calls) = (std::mem::take(&mut self.events), self.calls_under_way);
                drop(self);
                let answered = async {
                    while calls > 0 {
                        let Some(event) = events.next().await else { break };
                        calls -= usize::from(matches!(event, Event::Settled(_) | Event::Beat(_)));
                    }
                };
                let _ = tokio::time::timeout(FINISH_TIMEOUT, answered).await;
                return;
            }
            End::Left => {
                self.answer_all().await;
                if let Err(error) = self.held.leave().await {
                    tracing::debug!(worker = %self.worker, %error, "claims of a leaving worker not freed yet");
                }
                return;
            }
            End::Over => {
                self.answer_all().await;
                over(&self.held)
            }
            End::Stopping => {
                self.answer_all().await;
                Refusal::new(Code::Unavailable, "this server stops: go on with the session at another")
            }
            End::Refused(refusal) => {
                self.answer_all().await;
                refusal
            }
        };
        let end = Out::End(Box::new(status.into()));
        let _ = tokio::time::timeout(FINISH_TIMEOUT, self.way.send(end)).await;
        if self.app.stopping().is_cancelled() {
            let Work { mut held, incoming, way, .. } = *self;
            // Both ends, so that the connection can close.
            drop((incoming, way));
            // The worker has not gone, we have: it is held until the node itself has stopped, so that its claims
            // are still its own when it comes back.
            while held.next().await.is_some() {}
        }
    }

    /// Answers what was asked, as long as the worker takes it.
    async fn answer_all(&mut self) {
        let answering = async {
            while self.calls_under_way > 0 || !self.outbox.is_empty() {
                tokio::select! {
                    biased;
                    // It ends already, whatever else happens.
                    Some(event) = self.events.next() => drop(self.happened(event)),
                    sent = self.outbox.send(&self.way) => if sent.is_err() {
                        return;
                    },
                }
            }
        };
        let _ = tokio::time::timeout(FINISH_TIMEOUT, answering).await;
    }
}

/// Why a message could not be read.
fn unread(status: &Status) -> End {
    match status.code() {
        tonic::Code::OutOfRange => End::Refused(Refusal::new(
            Code::PayloadTooLarge,
            format!("{}: send less in one message", status.message()),
        )),
        // A connection that broke has a cause beneath, or ended in the middle of a message; what makes no sense has none.
        tonic::Code::Internal
            if std::error::Error::source(status).is_none()
                && !status.message().starts_with("Unexpected EOF") =>
        {
            End::Refused(Refusal::invalid(format!("a message cannot be read: {}", status.message())))
        }
        _ => End::Gone,
    }
}

async fn over_with(pause: &mut Option<Pin<Box<Sleep>>>) {
    match pause {
        Some(pause) => pause.await,
        None => std::future::pending().await,
    }
}
