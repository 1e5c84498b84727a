//! A worker: claims tasks, works on some at once, and ends each claim in one way or another.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use model::command::ClaimQueue;
use model::{Fence, Millis, SessionId, Settled, TaskId, WorkerName};
use node::Error;
use node::call::{
    AckCall, Answer, Claim, ClaimCall, ExtendCall, FailCall, Held, ProgressCall, ReleaseCall, WorkerFacts,
    WorkerState,
};

use super::super::door::Reply;
use super::super::record::Heard;
use super::tasks::{self, QUEUES};
use super::{Client, Phase, Repeat, Stage, indexes, refused};
use crate::history::{Claim as ClaimDeed, Deed, Got, Hold, Indexes, Line, Outcome, Settle, Steady};

/// How often a call without an answer is made again.
const TRIES: usize = 3;
/// Claims in hand at once.
const SLOTS: usize = 4;
const BEAT_MS_MAX: u64 = 700;

struct Worker {
    client: Rc<Client>,
    name: WorkerName,
    wants_session: bool,
    session: Cell<Option<SessionId>>,
    /// What a beat lists.
    held: RefCell<BTreeSet<(TaskId, Fence)>>,
    running: Cell<usize>,
    requests: Cell<u64>,
    /// Since when all its beats went through and listed all that it held, if they did.
    steady_from: Cell<Option<u64>>,
}

/// Works until the run is over.
pub(crate) async fn run(stage: Rc<Stage>, number: u16) {
    stage.lives.set(stage.lives.get() + 1);
    let name = format!("w{number}.{}", stage.lives.get());
    let client = Rc::new(Client::new(&name, stage.clone()));
    let wants_session = client.percent(stage.plan.session_percent);
    let worker = Rc::new(Worker {
        client,
        name: WorkerName::new(&name).expect("letters and digits"),
        wants_session,
        session: Cell::new(None),
        held: RefCell::default(),
        running: Cell::new(0),
        requests: Cell::new(0),
        steady_from: Cell::new(None),
    });
    if wants_session {
        tokio::task::spawn_local(worker.clone().beat());
    }
    while stage.phase() < Phase::Listing {
        if stage.phase() < Phase::Busy {
            worker.client.rest(50).await;
            continue;
        }
        worker.clone().turn().await;
    }
}

impl Worker {
    async fn turn(self: Rc<Worker>) {
        let client = &self.client;
        if self.wants_session && self.session.get().is_none() {
            self.register().await;
            return;
        }
        let free = SLOTS - self.running.get().min(SLOTS);
        if free == 0 {
            client.rest(20).await;
            return;
        }
        let claims = self.claim(free as u64).await;
        if claims.is_empty() {
            client.rest(60).await;
        }
        for claim in claims {
            self.held.borrow_mut().insert((claim.id, claim.fence));
            self.running.set(self.running.get() + 1);
            tokio::task::spawn_local(self.clone().handle(claim));
        }
        if self.wants_session && client.stage.phase() == Phase::Busy && client.percent(1) {
            self.leave().await;
        }
    }

    async fn register(&self) {
        let mut facts = WorkerFacts::named(self.name.clone());
        facts.slots = SLOTS as u32;
        facts.queues = QUEUES.iter().map(|name| tasks::queue(name)).collect();
        facts.beat = Millis(BEAT_MS_MAX);
        let work = move |node: node::Node| async move { node.register(facts).await };
        match self.client.ask(Duration::ZERO, work).await {
            Reply::Answer(Ok((session, _))) => {
                self.held.borrow_mut().clear();
                self.session.set(Some(session));
                self.steady_from.set(Some(self.client.stage.recorder.now_us()));
                self.client.claimed_twice.set(false);
            }
            _ => self.client.rest(300).await,
        }
    }

    /// Ends its session in order.
    async fn leave(&self) {
        let deed = Deed::EndSession { session: None, worker: Some(self.name.to_string()) };
        let name = self.name.clone();
        let work = move |node: node::Node| {
            let name = name.clone();
            async move { node.end_session(&name).await }
        };
        self.session.set(None);
        self.client.call(vec![deed], Repeat::Harmless, Duration::ZERO, work, told_end).await;
    }

    /// Says every moment that it lives and what it holds.
    async fn beat(self: Rc<Worker>) {
        let client = &self.client;
        while client.stage.phase() < Phase::Listing {
            client.rest(BEAT_MS_MAX).await;
            if client.stage.phase() == Phase::Busy && client.percent(1) {
                client.stage.recorder.fault("silent_worker");
                self.steady_from.set(None);
                client.rest(6_000).await;
            }
            let Some(session) = self.session.get() else { continue };
            let held: Vec<_> = self.held.borrow().iter().copied().collect();
            let name = self.name.clone();
            let work = move |node: node::Node| async move { node.beat(&name, session, held).await };
            let sent_us = client.stage.recorder.now_us();
            let is_lost = match client.ask(Duration::ZERO, work).await {
                Reply::Answer(Ok(answer)) => answer.state == WorkerState::Lost,
                Reply::Answer(Err(Error::UnknownWorker { .. })) => true,
                _ => false,
            };
            if is_lost && self.session.get() == Some(session) {
                self.session.set(None);
            }
            self.vouch(session, sent_us);
        }
    }

    /// Says that nothing stood between this session and the leaders until then: before the first fault nothing does.
    fn vouch(&self, session: SessionId, until_us: u64) {
        let stage = &self.client.stage;
        let until_us = until_us.min(stage.plan.first_fault_ms * 1_000);
        let from_us = self.steady_from.get().filter(|from| *from < until_us);
        let is_known = self.session.get() == Some(session) && !self.client.claimed_twice.get();
        if let Some(from_us) = from_us.filter(|_| is_known) {
            let session = session.to_string();
            stage.recorder.add(Line::Steady(Steady { session, from_us, until_us }));
        }
    }

    async fn claim(&self, max: u64) -> Vec<Claim> {
        let client = &self.client;
        let plan = &client.stage.plan;
        let is_busy = client.stage.phase() == Phase::Busy;
        let mut hold = Millis(client.between(300, plan.hold_ms_max));
        if self.session.get().is_some() && client.percent(20) {
            // Longer than any run: whoever dies with it is missed by its beats alone.
            hold = Millis::hours(1);
        }
        let wait = if client.percent(50) { Millis(client.between(50, 1_500)) } else { Millis(0) };
        let first = client.between(0, 2) as usize;
        let mut names: Vec<&str> = QUEUES.iter().cycle().skip(first).take(3).copied().collect();
        if is_busy && client.percent(30) {
            names.truncate(1);
        }
        let request_id = client.percent(40).then(|| {
            self.requests.set(self.requests.get() + 1);
            format!("r{}", self.requests.get())
        });
        let call = ClaimCall {
            queues: names.iter().map(|name| ClaimQueue { name: tasks::queue(name), weight: 0 }).collect(),
            worker: self.name.clone(),
            session: self.session.get(),
            max: client.between(1, max) as u32,
            hold: Some(hold),
            wait,
            request_id: request_id.clone(),
        };
        let deed = Deed::Claim(ClaimDeed {
            queues: names.iter().map(|name| (*name).to_owned()).collect(),
            worker: self.name.to_string(),
            session: call.session.map(|session| session.to_string()),
            // A request id is the worker's own.
            request: request_id.as_ref().map(|id| format!("{}/{id}", self.name)),
            hold_ms: Some(hold.0),
            got: Vec::new(),
        });
        let repeat = if request_id.is_some() { Repeat::Harmless } else { Repeat::Never };
        let work = move |node: node::Node| {
            let call = call.clone();
            async move { node.claim(call).await }
        };
        for _ in 0..TRIES {
            let asked = client.call(vec![deed.clone()], repeat, wait.into(), work.clone(), told_claim).await;
            match asked {
                Reply::Answer(Ok(answer)) => return answer.value,
                Reply::Answer(Err(Error::UnknownWorker { .. })) => {
                    self.session.set(None);
                    return Vec::new();
                }
                Reply::Answer(Err(_)) => break,
                Reply::Lost if repeat == Repeat::Harmless => {}
                Reply::Lost | Reply::Unsent => break,
            }
        }
        client.rest(100).await;
        Vec::new()
    }

    async fn handle(self: Rc<Worker>, claim: Claim) {
        let client = self.client.clone();
        let plan = &client.stage.plan;
        let is_busy = || client.stage.phase() == Phase::Busy;
        let hold_ms = plan.hold_ms_max;
        if is_busy() && client.percent(plan.zombie_percent) && !plan.without.contains("zombie") {
            client.stage.recorder.fault("zombie");
            tokio::time::sleep(Duration::from_millis(hold_ms)).await;
            client.rest(4_000).await;
        } else {
            client.rest(if is_busy() { 200 } else { 10 }).await;
        }
        match client.between(0, 99) {
            // All of an order key is done one after the other: the end of a run has no time for detours.
            _ if !is_busy() => self.ack(&claim).await,
            0..=14 => self.fail(&claim).await,
            15..=22 => self.release(&claim).await,
            23..=30 => {
                self.extend(&claim).await;
                client.rest(hold_ms / 2).await;
                self.ack(&claim).await;
            }
            31..=35 => {
                self.progress(&claim).await;
                self.ack(&claim).await;
            }
            // It forgets all about it.
            36..=37 => {
                tokio::time::sleep(Duration::from_millis(hold_ms)).await;
                self.steady_from.set(None);
            }
            _ => self.ack(&claim).await,
        }
        self.held.borrow_mut().remove(&(claim.id, claim.fence));
        self.running.set(self.running.get() - 1);
    }

    async fn ack(&self, claim: &Claim) {
        let follow_ups = tasks::follow_ups(&self.client.stage.plan, &tasks::name_of(&claim.envelope.payload));
        let then: Vec<_> = follow_ups.iter().map(|task| task.spec.clone()).collect();
        let call = AckCall { token: claim.token.clone(), output: bytes::Bytes::from_static(b"1"), then };
        let mut settle = Settle::of(claim.id, claim.fence.0);
        settle.then = follow_ups.iter().map(|task| task.then()).collect();
        let work = move |node: node::Node| {
            let call = call.clone();
            async move { one(node.ack(vec![call]).await) }
        };
        self.settle(Deed::Ack(settle), work).await;
    }

    async fn fail(&self, claim: &Claim) {
        let client = &self.client;
        let retry_in = client.percent(50).then(|| Millis(client.between(0, 1_200)));
        let fatal = client.percent(10);
        let call = FailCall {
            token: claim.token.clone(),
            error: "it did not work".to_owned(),
            detail: String::new(),
            retry_in,
            fatal,
        };
        let mut settle = Settle::of(claim.id, claim.fence.0);
        (settle.retry_in_ms, settle.fatal) = (retry_in.map(|millis| millis.0), fatal);
        let work = move |node: node::Node| {
            let call = call.clone();
            async move { one(node.fail(vec![call]).await) }
        };
        self.settle(Deed::Fail(settle), work).await;
    }

    async fn release(&self, claim: &Claim) {
        let delay = if self.client.percent(50) { Millis(self.client.between(1, 900)) } else { Millis(0) };
        let call = ReleaseCall { token: claim.token.clone(), delay };
        let mut settle = Settle::of(claim.id, claim.fence.0);
        settle.retry_in_ms = Some(delay.0);
        let work = move |node: node::Node| {
            let call = call.clone();
            async move { one(node.release(vec![call]).await) }
        };
        self.settle(Deed::Release(settle), work).await;
    }

    /// Settles a claim, again and again until there is an answer.
    async fn settle<F: Future<Output = Result<Answer<Settled>, Error>> + 'static>(
        &self,
        deed: Deed,
        work: impl Fn(node::Node) -> F + Clone + 'static,
    ) {
        for _ in 0..TRIES {
            let deeds = vec![deed.clone()];
            let told =
                self.client.call(deeds, Repeat::Harmless, Duration::ZERO, work.clone(), told_settled).await;
            match told {
                Reply::Answer(Ok(_)) => return,
                Reply::Answer(Err(Error::Unavailable | Error::Timeout)) | Reply::Lost | Reply::Unsent => {}
                Reply::Answer(Err(_)) => return,
            }
            self.client.rest(400).await;
        }
        // Its beats will not list this one any more.
        self.steady_from.set(None);
    }

    async fn extend(&self, claim: &Claim) {
        let hold = self.client.between(300, self.client.stage.plan.hold_ms_max);
        let call = ExtendCall { token: claim.token.clone(), hold: Some(Millis(hold)) };
        let deed = Deed::Extend(Hold { task: claim.id, fence: claim.fence.0, hold_ms: Some(hold) });
        let work = move |node: node::Node| {
            let call = call.clone();
            async move { one(node.extend(vec![call]).await) }
        };
        self.client.call(vec![deed], Repeat::Harmless, Duration::ZERO, work, told_held).await;
    }

    async fn progress(&self, claim: &Claim) {
        let call = ProgressCall { token: claim.token.clone(), percent: 50, note: "half".to_owned() };
        let deed = Deed::Progress(Hold { task: claim.id, fence: claim.fence.0, hold_ms: None });
        let work = move |node: node::Node| {
            let call = call.clone();
            async move { one(node.progress(vec![call]).await) }
        };
        self.client.call(vec![deed], Repeat::Harmless, Duration::ZERO, work, told_held).await;
    }
}

/// The answer to a request with one call.
fn one<T>(answers: Vec<T>) -> T {
    answers.into_iter().next().expect("one call has one answer")
}

fn told_claim(answer: &Result<Answer<Vec<Claim>>, Error>, deeds: Vec<Deed>) -> Vec<Heard> {
    let told = |deed: Deed| match (answer, deed) {
        (Ok(answer), Deed::Claim(mut claim)) => {
            claim.got = answer.value.iter().map(got).collect();
            Heard { outcome: Outcome::Ok, index: indexes(&answer.indexes), deed: Deed::Claim(claim) }
        }
        (Err(error), deed) => refused(error, deed),
        (Ok(_), deed) => unreachable!("{deed:?} is no claim"),
    };
    deeds.into_iter().map(told).collect()
}

fn got(claim: &Claim) -> Got {
    Got {
        task: claim.id,
        queue: claim.queue.to_string(),
        payload: tasks::payload_hash(&claim.envelope.kind, &claim.envelope.payload),
        fence: claim.fence.0,
        attempt: claim.attempt,
        hold_ms: None,
    }
}

/// What became of a claim.
pub(super) fn told_settled(answer: &Result<Answer<Settled>, Error>, deeds: Vec<Deed>) -> Vec<Heard> {
    let told = |mut deed: Deed| {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return refused(error, deed),
        };
        let state = Some(answer.value.state);
        match &mut deed {
            Deed::Ack(settle) => settle.state = state,
            Deed::Fail(settle) | Deed::Release(settle) => {
                settle.state = state;
                settle.attempt = Some(answer.value.attempt);
            }
            Deed::PutBack(on) | Deed::Discard(on) | Deed::Cancel(on) | Deed::Requeue(on) => on.state = state,
            other => unreachable!("{other:?} settles nothing"),
        }
        Heard { outcome: Outcome::Ok, index: indexes(&answer.indexes), deed }
    };
    deeds.into_iter().map(told).collect()
}

fn told_held(answer: &Result<Answer<Held>, Error>, deeds: Vec<Deed>) -> Vec<Heard> {
    let told = |deed: Deed| match answer {
        Ok(answer) => Heard { outcome: Outcome::Ok, index: indexes(&answer.indexes), deed },
        Err(error) => refused(error, deed),
    };
    deeds.into_iter().map(told).collect()
}

/// What became of a session that somebody ended.
pub(super) fn told_end(answer: &Result<Answer<u64>, Error>, deeds: Vec<Deed>) -> Vec<Heard> {
    let told = |deed: Deed| match answer {
        Ok(_) => Heard { outcome: Outcome::Ok, index: Indexes::default(), deed },
        Err(error) => refused(error, deed),
    };
    deeds.into_iter().map(told).collect()
}
