//! Producers, workers and a person, each on a machine of its own, who use the cluster and write down what they hear.
//!
//! Next: `producer.rs`, `worker.rs`, `person.rs`, and `closing.rs` for how a run ends.

pub(crate) mod closing;
pub(crate) mod person;
pub(crate) mod producer;
pub(crate) mod tasks;
pub(crate) mod worker;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use model::{ShardId, TaskId};
use node::{Error, Node};

use super::dice::Dice;
use super::door::{Desk, Reply};
use super::faults::Orders;
use super::plan::Plan;
use super::record::{Heard, Recorder};
use crate::history::{Deed, Indexes, Outcome};

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The cluster begins, and its queues get their policies.
    Setup,
    /// Everybody is at work.
    Busy,
    /// All is mended; workers go on until nothing waits.
    Closing,
    /// Nobody works any more; what is left is listed.
    Listing,
    /// All is written down.
    Over,
}

/// What all clients share.
pub(crate) struct Stage {
    pub(crate) plan: Rc<Plan>,
    pub(crate) desk: Desk,
    pub(crate) recorder: Recorder,
    pub(crate) orders: Orders,
    pub(crate) phase: Cell<Phase>,
    /// Tasks that somebody heard of.
    pub(crate) known: RefCell<Vec<TaskId>>,
    /// Requests that are under way.
    pub(crate) under_way: Cell<usize>,
    /// How often each worker began.
    pub(crate) lives: Cell<u64>,
}

impl Stage {
    pub(crate) fn new(plan: Rc<Plan>, desk: Desk, recorder: Recorder, orders: Orders) -> Stage {
        Stage {
            plan,
            desk,
            recorder,
            orders,
            phase: Cell::new(Phase::Setup),
            known: RefCell::default(),
            under_way: Cell::default(),
            lives: Cell::default(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.get()
    }
}

/// A client: asks some node, and another one when that does not answer.
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) stage: Rc<Stage>,
    pub(crate) dice: RefCell<Dice>,
    /// A claim was sent twice: what the second one gets it does not know of.
    pub(crate) claimed_twice: Cell<bool>,
    favourite: Cell<u16>,
}

/// Counts a request while it is under way.
struct UnderWay(Rc<Stage>);

impl UnderWay {
    fn new(stage: &Rc<Stage>) -> UnderWay {
        stage.under_way.set(stage.under_way.get() + 1);
        UnderWay(stage.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

/// Whether a request may be sent twice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The same again means the same.
    Harmless,
    /// The same again would be another.
    Never,
}

impl Client {
    pub(crate) fn new(name: &str, stage: Rc<Stage>) -> Client {
        let mut dice = Dice::new(stage.plan.seed, &format!("client {name}"));
        let favourite = Cell::new(dice.between(1, u64::from(stage.plan.nodes)) as u16);
        let claimed_twice = Cell::new(false);
        Client { name: name.to_owned(), stage, dice: RefCell::new(dice), claimed_twice, favourite }
    }

    /// Chance.
    pub(crate) fn percent(&self, percent: u64) -> bool {
        self.dice.borrow_mut().percent(percent)
    }

    /// A number, both ends possible.
    pub(crate) fn between(&self, from: u64, to: u64) -> u64 {
        self.dice.borrow_mut().between(from, to)
    }

    /// Rests for up to so long.
    pub(crate) async fn rest(&self, millis_max: u64) {
        let millis = self.between(1, millis_max.max(1));
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    /// Asks a node without writing anything down.
    pub(crate) async fn ask<R: 'static, F: Future<Output = R> + 'static>(
        &self,
        wait: Duration,
        work: impl FnOnce(Node) -> F + 'static,
    ) -> Reply<R> {
        let _under_way = UnderWay::new(&self.stage);
        let plan = &self.stage.plan;
        if self.percent(5) {
            self.choose();
        }
        let patience = wait + Duration::from_millis(plan.patience_ms);
        let reply = self.stage.desk.ask(self.favourite.get(), patience, work).await;
        if !matches!(reply, Reply::Answer(_)) {
            self.choose();
        }
        reply
    }

    fn choose(&self) {
        self.favourite.set(self.between(1, u64::from(self.stage.plan.machines())) as u16);
    }

    /// Asks a node, and writes down what was asked and what came of it.
    pub(crate) async fn call<R: 'static, F: Future<Output = R> + 'static>(
        self: &Rc<Client>,
        deeds: Vec<Deed>,
        repeat: Repeat,
        wait: Duration,
        work: impl Fn(Node) -> F + Clone + 'static,
        tell: impl Fn(&R, Vec<Deed>) -> Vec<Heard> + Clone + 'static,
    ) -> Reply<R> {
        let stage = &self.stage;
        if repeat == Repeat::Harmless
            && stage.phase() == Phase::Busy
            && self.percent(stage.plan.duplicate_percent)
            && !stage.plan.without.contains("duplicate_request")
        {
            stage.recorder.fault("duplicate_request");
            if deeds.iter().any(|deed| matches!(deed, Deed::Claim(_))) {
                self.claimed_twice.set(true);
            }
            let (client, deeds, work, tell) = (self.clone(), deeds.clone(), work.clone(), tell.clone());
            tokio::task::spawn_local(async move {
                client.rest(300).await;
                client.call_once(deeds, wait, work, tell).await;
            });
        }
        self.call_once(deeds, wait, work, tell).await
    }

    async fn call_once<R: 'static, F: Future<Output = R> + 'static>(
        &self,
        deeds: Vec<Deed>,
        wait: Duration,
        work: impl FnOnce(Node) -> F + 'static,
        tell: impl FnOnce(&R, Vec<Deed>) -> Vec<Heard>,
    ) -> Reply<R> {
        let recording = self.stage.recorder.begin(&self.name, deeds);
        let reply = self.ask(wait, work).await;
        match &reply {
            Reply::Answer(answer) => {
                let deeds = recording.deeds().to_vec();
                recording.end(tell(answer, deeds));
            }
            Reply::Lost => drop(recording),
            Reply::Unsent => recording.forget(),
        }
        reply
    }
}

/// What an error means to whoever asked.
pub(crate) fn outcome_of(error: &Error) -> Outcome {
    match error {
        Error::Timeout | Error::Broken(_) => Outcome::Unknown,
        error => Outcome::Rejected(error.code().to_owned()),
    }
}

/// A refusal, or nothing known.
pub(crate) fn refused(error: &Error, deed: Deed) -> Heard {
    Heard { outcome: outcome_of(error), index: Indexes::default(), deed }
}

/// The positions of an answer.
pub(crate) fn indexes(indexes: &[(ShardId, u64)]) -> Indexes {
    Indexes(indexes.iter().map(|(shard, index)| (shard.group(), *index)).collect())
}
