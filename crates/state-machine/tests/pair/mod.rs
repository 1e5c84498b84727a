//! A shard, its twin that is never interrupted, and the naive model, driven together.

// Each test binary uses its own part of these.
#![allow(dead_code)]

mod agree;
mod store;

use std::collections::BTreeMap;

use model::command::{Claim, ClaimQueue};
use model::{
    Claimed, Command, Elapsed, Position, QueuePolicy, QueueSettings, Rejection, Reply, ShardId, Spread,
    WallTime, WorkerName,
};
use state_machine::{Effect, Effects, Machine, Shard};

use crate::naive::Naive;
use crate::ops::{Maker, Op, QUEUES, Step, queue_name};
use store::Store;

/// Where wall time begins.
pub(crate) const WALL: u64 = 1_000_000_000;

/// After how many commands the checks are made that cost more than all others.
const SLOW_CHECKS_EVERY: u64 = 5;

/// What must have happened at some time, besides every rejection, reply and state.
pub(crate) const MILESTONES: [&str; 14] = [
    "a duplicate",
    "a repeated claim",
    "a repeated ack or fail",
    "an outcome of a task that is gone",
    "a key of a task that is gone",
    "an expiry at a claim",
    "a poison pill",
    "a claim by weight",
    "a task made ready by its order key",
    "a follow-up here",
    "a follow-up elsewhere",
    "a delivered follow-up",
    "a checkpoint with commands in between",
    "a crash",
];

/// What was met, and how often.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) rejections: BTreeMap<&'static str, u64>,
    pub(crate) replies: BTreeMap<&'static str, u64>,
    pub(crate) states: BTreeMap<&'static str, u64>,
    pub(crate) milestones: BTreeMap<&'static str, u64>,
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Seen) {
        let pairs = [
            (&mut self.rejections, &other.rejections),
            (&mut self.replies, &other.replies),
            (&mut self.states, &other.states),
            (&mut self.milestones, &other.milestones),
        ];
        for (sum, part) in pairs {
            part.iter().for_each(|(what, n)| *sum.entry(what).or_default() += n);
        }
    }

    fn rejection(&mut self, rejection: &Rejection) {
        // Some share a code with another: told apart here.
        let code = match rejection {
            Rejection::NotEnded { .. } => "not_ended",
            Rejection::NotEmpty { .. } => "not_empty",
            Rejection::NotAtomic { .. } => "not_atomic",
            other => other.code(),
        };
        *self.rejections.entry(code).or_default() += 1;
    }

    fn reply(&mut self, reply: &Reply) {
        let kind = match reply {
            Reply::Enqueued(_) => "enqueued",
            Reply::Claimed(_) => "claimed",
            Reply::Settled(_) => "settled",
            Reply::Held { .. } => "held",
            Reply::Count(_) => "count",
            Reply::Upto(_) => "upto",
            Reply::Done => "done",
        };
        *self.replies.entry(kind).or_default() += 1;
        if let Reply::Enqueued(results) = reply {
            results.iter().filter_map(|result| result.as_ref().err()).for_each(|no| self.rejection(no));
        }
    }

    pub(crate) fn milestone(&mut self, what: &'static str) {
        assert!(MILESTONES.contains(&what), "{what} is not in the list");
        *self.milestones.entry(what).or_default() += 1;
    }
}

pub(crate) struct Pair {
    pub(crate) model: Naive,
    /// Checkpointed and crashed.
    pub(crate) shard: Shard,
    /// Never interrupted.
    pub(crate) twin: Shard,
    store: Store,
    maker: Maker,
    index: u64,
    elapsed: u64,
    wall: u64,
    pub(crate) seen: Seen,
    /// What the last command asked of the world.
    pub(crate) last_effects: Vec<Effect>,
    /// Where the events so far say that each task stands.
    told: BTreeMap<model::TaskId, model::Stand>,
}

impl Pair {
    pub(crate) fn new(shards: u16) -> Pair {
        let id = ShardId::new(1).expect("a good shard");
        let mut pair = Pair {
            model: Naive::new(id, shards),
            shard: Shard::new(id, shards),
            twin: Shard::new(id, shards),
            store: Store::new(id, shards),
            maker: Maker::default(),
            index: 0,
            elapsed: 0,
            wall: WALL,
            seen: Seen::default(),
            last_effects: Vec::new(),
            told: BTreeMap::new(),
        };
        let policy = QueuePolicy { spread: Spread::Pinned, ..QueuePolicy::default() };
        let settings = QueueSettings { policy, paused: false, version: 1 };
        let _ = pair.apply(Command::SetQueue { queue: queue_name(QUEUES - 1), settings });
        pair
    }

    /// Lets both times go on.
    pub(crate) fn advance(&mut self, millis: u64) {
        self.elapsed += millis;
        self.wall += millis;
    }

    pub(crate) fn step(&mut self, (advance, op): &Step) {
        let add = |time: u64, by: i64| time.saturating_add_signed(by);
        (self.elapsed, self.wall) = (add(self.elapsed, advance.elapsed), add(self.wall, advance.wall));
        match op {
            Op::Checkpoint { slice } => self.store.begin(&mut self.shard, &self.model, *slice),
            Op::Crash => {
                self.crash();
            }
            op => {
                let command = self.maker.command(&self.model, op).expect("all others are commands");
                let _ = self.apply(command);
                self.maker.note(&self.model);
            }
        }
    }

    /// Applies a command to all three, and compares all that can be seen.
    pub(crate) fn apply(&mut self, command: Command) -> Result<Reply, Rejection> {
        let at = self.position();
        let before = self.model.clone();
        let (mut effects, mut twins) = (Effects::default(), Effects::default());
        let hash = self.shard.hash();
        let outcome = self.shard.apply(at, command.clone(), &mut effects);
        let twins_outcome = self.twin.apply(at, command.clone(), &mut twins);
        let expected = self.model.apply(at, &command, weighted(&command, &outcome));
        assert_eq!(outcome, expected, "to {command:?}\nat {at:?}\n{}", before.summary());
        assert_eq!(outcome, twins_outcome, "the shard that was checkpointed answers otherwise");
        assert_eq!(effects.as_slice(), twins.as_slice(), "the shard that was checkpointed tells otherwise");
        let now = self.shard.hash();
        assert_eq!(now, self.twin.hash(), "the state hash depends on checkpoints, after {command:?}");
        agree::hash(&before, &self.model, hash, now);
        if outcome.is_err() {
            assert_eq!(now, hash, "a rejected command changed something: {command:?}");
            assert!(effects.as_slice().is_empty(), "a rejected command had effects: {command:?}");
        }
        self.meet(&before, &command, &outcome, effects.as_slice());
        agree::effects(&before, &self.model, effects.as_slice(), &mut self.told);
        agree::views(&self.shard, &self.model);
        if self.index.is_multiple_of(SLOW_CHECKS_EVERY) {
            agree::lists(&self.shard, &self.model);
            agree::due_later(&self.shard, &self.model);
        }
        agree::due(&self.shard, &self.model, &command, &outcome);
        self.last_effects = effects.drain().map(|(_, effect)| effect).collect();
        self.store.log(at, command);
        self.write_some();
        outcome
    }

    /// Sets both times: elapsed, and wall time counted from [`WALL`].
    pub(crate) fn set_times(&mut self, elapsed: u64, wall: u64) {
        (self.elapsed, self.wall) = (elapsed, WALL + wall);
    }

    /// Elapsed time, and wall time counted from [`WALL`].
    pub(crate) fn times(&self) -> (u64, u64) {
        (self.elapsed, self.wall - WALL)
    }

    /// Writes a whole checkpoint; the index it holds.
    pub(crate) fn checkpoint(&mut self) -> u64 {
        self.store.begin(&mut self.shard, &self.model, usize::MAX);
        self.write_some();
        self.index
    }

    fn position(&mut self) -> Position {
        self.index += 1;
        let (elapsed, wall) = (Elapsed(self.elapsed), WallTime::from_millis(self.wall));
        Position { index: self.index, n: 0, elapsed, wall }
    }

    /// Writes a slice of the checkpoint under way; a finished one must load as what it was cut from.
    fn write_some(&mut self) {
        let Some(cut) = self.store.write_some(&mut self.shard) else { return };
        let mut loaded = self.store.load();
        assert_eq!(loaded.hash(), cut.hash, "a loaded checkpoint has another hash than at its cut");
        agree::views(&loaded, &cut.model);
        if cut.commands > 0 {
            self.seen.milestone("a checkpoint with commands in between");
        }
    }

    /// Starts again from the last whole checkpoint. How many commands came after it.
    pub(crate) fn crash(&mut self) -> usize {
        let mut shard = self.store.load();
        let replayed = self.store.replay(&mut shard);
        assert_eq!(shard.hash(), self.twin.hash(), "after a crash the shard is another");
        self.shard = shard;
        agree::views(&self.shard, &self.model);
        self.seen.milestone("a crash");
        replayed
    }

    /// Claims all that is ready, one by one, so that the order of the lines is compared to the end.
    pub(crate) fn drain(&mut self) {
        for n in 0..QUEUES {
            let queues = vec![ClaimQueue { name: queue_name(n), weight: 0 }];
            let worker = WorkerName::new("last").expect("a good name");
            let claim = Claim { queues, worker, session: None, max: 1, hold: None, request: None };
            let some = |reply| matches!(reply, Ok(Reply::Claimed(claimed)) if !claimed.is_empty());
            while some(self.apply(Command::Claim(claim.clone()))) {}
        }
    }

    fn meet(
        &mut self,
        before: &Naive,
        command: &Command,
        outcome: &Result<Reply, Rejection>,
        effects: &[Effect],
    ) {
        match outcome {
            Ok(reply) => self.seen.reply(reply),
            Err(rejection) => self.seen.rejection(rejection),
        }
        for task in &self.model.tasks {
            *self.seen.states.entry(task.kind().as_str()).or_default() += 1;
        }
        for what in agree::milestones(before, &self.model, command, outcome, effects) {
            self.seen.milestone(what);
        }
    }
}

/// What the shard gave to a claim by weight.
fn weighted<'a>(command: &Command, outcome: &'a Result<Reply, Rejection>) -> Option<&'a [Claimed]> {
    match (command, outcome) {
        (Command::Claim(claim), Ok(Reply::Claimed(claimed))) => {
            claim.queues.iter().any(|queue| queue.weight > 0).then_some(claimed)
        }
        _ => None,
    }
}
