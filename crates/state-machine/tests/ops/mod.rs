//! Random commands that meet: few ids, few keys, few queues, times that fall due.
//!
//! An `Op` names its task by rank and its fence by its relation to the current one, so that a
//! sequence stays meaningful when proptest takes steps out of it. `Op::command` makes the command,
//! looking at the naive model alone.

// Each test binary uses its own part of these.
#![allow(dead_code)]

mod shapes;

use bytes::Bytes;
use model::command::{Ack, Claim, ClaimById, ClaimQueue, Fail, OnTask, OutboxMessage};
use model::{
    Command, Fence, FollowUp, FreedReason, KeyHash, Millis, QueueName, QueueSettings, SessionId, ShardId,
    StateKind, TaskId, WallTime, WorkerName,
};
use proptest::prelude::*;

use crate::naive::{Naive, Task};
pub(crate) use shapes::{QUEUES, Shape, policy, queue_name, shape};

/// Which task.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pick {
    /// One of all that ever were.
    Any(u8),
    /// One that is claimed, if there is one.
    Claimed(u8),
    /// One that has ended, if there is one.
    Ended(u8),
    /// One that never was.
    Unknown,
}

/// Which fence, seen from the task's last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Given {
    Last,
    Before,
    After,
    Zero,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Enqueue {
        shapes: Vec<Shape>,
        atomic: bool,
    },
    Claim {
        queues: Vec<(u8, u32)>,
        by: u8,
        max: u32,
        hold: Option<u64>,
        request: Option<u8>,
    },
    ClaimById {
        task: Pick,
        by: u8,
        hold: Option<u64>,
        request: Option<u8>,
    },
    Ack {
        task: Pick,
        fence: Given,
        then: Vec<(u16, Shape)>,
    },
    Fail {
        task: Pick,
        fence: Given,
        retry_in: Option<u64>,
        fatal: bool,
    },
    Extend {
        task: Pick,
        fence: Given,
        hold: Option<u64>,
    },
    Release {
        task: Pick,
        fence: Given,
        delay: u64,
    },
    Progress {
        task: Pick,
        fence: Given,
        percent: u8,
    },
    PutBack {
        task: Pick,
        fence: Option<Given>,
    },
    Discard {
        task: Pick,
        fence: Option<Given>,
    },
    Cancel {
        task: Pick,
    },
    Requeue {
        task: Pick,
        fence: Option<Given>,
    },
    Purge {
        queue: u8,
    },
    EndSession {
        by: u8,
        reason: FreedReason,
    },
    SetQueue {
        queue: u8,
        settings: Box<QueueSettings>,
        newer: i8,
    },
    DropQueue {
        queue: u8,
        newer: i8,
    },
    Deliver {
        again: u8,
        shapes: Vec<Shape>,
        gap: bool,
    },
    Delivered {
        target: u16,
        upto: u8,
    },
    Pulse {
        limit: u32,
    },
    /// Begins a checkpoint; the steps after it write it, this many records at a time.
    Checkpoint {
        slice: usize,
    },
    /// Starts again from the last whole checkpoint and the commands after it.
    Crash,
}

/// How time goes on before a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advance {
    pub(crate) elapsed: i64,
    pub(crate) wall: i64,
}

pub(crate) type Step = (Advance, Op);

pub(crate) fn steps(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((advance(), op()), len)
}

/// A policy for the busiest queue, most of the time one with narrow bounds.
pub(crate) fn first_steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::option::weighted(0.6, policy()).prop_map(|policy| {
        let still = Advance { elapsed: 0, wall: 0 };
        let settings = |policy| Box::new(QueueSettings { policy, paused: false, version: 0 });
        let set = |policy| (still, Op::SetQueue { queue: 0, settings: settings(policy), newer: 1 });
        policy.map(set).into_iter().collect()
    })
}

fn advance() -> impl Strategy<Value = Advance> {
    let both = |ms| Advance { elapsed: ms, wall: ms };
    prop_oneof![
        6 => Just(both(0)),
        3 => prop_oneof![Just(1), Just(500), Just(1_000), Just(1_000), Just(2_000)].prop_map(both),
        1 => prop_oneof![Just(10_000), Just(30_000), Just(59_999), Just(60_000)].prop_map(both),
        1 => Just(Advance { elapsed: 1_000, wall: 0 }),
        1 => prop_oneof![Just(2_000i64), Just(900_000), Just(3_600_000)].prop_map(|wall| Advance { elapsed: 0, wall }),
        // A clock that went back: both times stand still.
        1 => Just(Advance { elapsed: -700, wall: -5_000 }),
    ]
}

fn pick() -> impl Strategy<Value = Pick> {
    prop_oneof![
        5 => any::<u8>().prop_map(Pick::Any),
        5 => any::<u8>().prop_map(Pick::Claimed),
        3 => any::<u8>().prop_map(Pick::Ended),
    ]
}

fn pick_or_unknown() -> impl Strategy<Value = Pick> {
    prop_oneof![29 => pick(), 1 => Just(Pick::Unknown)]
}

fn given() -> impl Strategy<Value = Given> {
    prop_oneof![12 => Just(Given::Last), 1 => Just(Given::Before), 1 => Just(Given::After), 1 => Just(Given::Zero)]
}

fn maybe_given() -> impl Strategy<Value = Option<Given>> {
    prop_oneof![2 => Just(None), 2 => given().prop_map(Some)]
}

fn some_hold() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![2 => Just(None), 1 => Just(Some(100)), 2 => Just(Some(2_000)), 1 => Just(Some(60_000))]
}

fn request() -> impl Strategy<Value = Option<u8>> {
    prop_oneof![3 => Just(None), 1 => (0u8..3).prop_map(Some)]
}

fn claim_queues() -> impl Strategy<Value = Vec<(u8, u32)>> {
    let plain = proptest::collection::vec((0..QUEUES, Just(0u32)), 1..4);
    let weighted = proptest::collection::vec((0..QUEUES, 0u32..4), 1..4);
    prop_oneof![3 => Just(vec![(0, 0), (1, 0), (2, 0)]), 3 => plain, 1 => weighted]
}

fn claim_op() -> impl Strategy<Value = Op> {
    let max = prop_oneof![3 => Just(1u32), 2 => Just(2), 1 => Just(10)];
    (claim_queues(), 0u8..4, max, some_hold(), request())
        .prop_map(|(queues, by, max, hold, request)| Op::Claim { queues, by, max, hold, request })
}

fn token_op() -> impl Strategy<Value = Op> {
    let then = prop_oneof![
        3 => Just(vec![]),
        1 => proptest::collection::vec((1u16..4, shape()), 1..3),
    ];
    let retry_in = prop_oneof![2 => Just(None), 1 => Just(Some(0)), 1 => Just(Some(2_000))];
    let delay = prop_oneof![2 => Just(0u64), 1 => Just(2_000)];
    prop_oneof![
        4 => (pick_or_unknown(), given(), then).prop_map(|(task, fence, then)| Op::Ack { task, fence, then }),
        4 => (pick_or_unknown(), given(), retry_in, prop::bool::weighted(0.2))
            .prop_map(|(task, fence, retry_in, fatal)| Op::Fail { task, fence, retry_in, fatal }),
        1 => (pick(), given(), some_hold()).prop_map(|(task, fence, hold)| Op::Extend { task, fence, hold }),
        2 => (pick(), given(), delay).prop_map(|(task, fence, delay)| Op::Release { task, fence, delay }),
        1 => (pick(), given(), 0u8..=100).prop_map(|(task, fence, percent)| Op::Progress { task, fence, percent }),
    ]
}

fn hand_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (pick(), 0u8..4, some_hold(), request())
            .prop_map(|(task, by, hold, request)| Op::ClaimById { task, by, hold, request }),
        2 => (pick(), maybe_given()).prop_map(|(task, fence)| Op::PutBack { task, fence }),
        2 => (pick(), maybe_given()).prop_map(|(task, fence)| Op::Discard { task, fence }),
        2 => pick().prop_map(|task| Op::Cancel { task }),
        3 => (pick(), maybe_given()).prop_map(|(task, fence)| Op::Requeue { task, fence }),
    ]
}

fn shard_op() -> impl Strategy<Value = Op> {
    let reason = prop_oneof![
        Just(FreedReason::Silent),
        Just(FreedReason::Closed),
        Just(FreedReason::Drained),
        Just(FreedReason::PutBack)
    ];
    prop_oneof![
        2 => (0..QUEUES).prop_map(|queue| Op::Purge { queue }),
        4 => (0u8..4, reason).prop_map(|(by, reason)| Op::EndSession { by, reason }),
        4 => (0..QUEUES, policy(), prop::bool::weighted(0.2), -1i8..3).prop_map(|(queue, policy, paused, newer)| {
            Op::SetQueue { queue, settings: Box::new(QueueSettings { policy, paused, version: 0 }), newer }
        }),
        1 => (0..QUEUES, -1i8..3).prop_map(|(queue, newer)| Op::DropQueue { queue, newer }),
        2 => (0u8..3, proptest::collection::vec(shape(), 0..3), prop::bool::weighted(0.1))
            .prop_map(|(again, shapes, gap)| Op::Deliver { again, shapes, gap }),
        1 => (2u16..4, 0u8..4).prop_map(|(target, upto)| Op::Delivered { target, upto }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let shapes = prop_oneof![
        3 => proptest::collection::vec(shape(), 1),
        2 => proptest::collection::vec(shape(), 2..5),
    ];
    let limit = prop_oneof![3 => Just(2_000u32), 1 => 1u32..4];
    prop_oneof![
        8 => (shapes, prop::bool::weighted(0.3)).prop_map(|(shapes, atomic)| Op::Enqueue { shapes, atomic }),
        8 => claim_op(),
        8 => token_op(),
        4 => hand_op(),
        3 => shard_op(),
        5 => limit.prop_map(|limit| Op::Pulse { limit }),
        1 => (1usize..4).prop_map(|slice| Op::Checkpoint { slice }),
        1 => Just(Op::Crash),
    ]
}

/// The worker and the session, if it has one, behind a small number.
pub(crate) fn worker(by: u8) -> (WorkerName, Option<SessionId>) {
    let name = WorkerName::new(["w0", "w1", "w2", "w2"][usize::from(by)]).expect("a good name");
    let session = (by > 0).then_some(SessionId(u128::from(by)));
    (name, session)
}

pub(crate) fn request_key(request: u8) -> KeyHash {
    KeyHash(0xfeed_0000 + u128::from(request))
}

/// Makes commands from ops, with ids that do not grow with time.
#[derive(Default)]
pub(crate) struct Maker {
    made: u64,
    pub(crate) ids: Vec<TaskId>,
}

impl Maker {
    fn id(&mut self, shard: ShardId) -> TaskId {
        self.made += 1;
        let id = TaskId::new(shard, WallTime::from_millis(1), self.made.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.ids.push(id);
        id
    }

    /// Takes note of tasks that others made: follow-ups.
    pub(crate) fn note(&mut self, model: &Naive) {
        let new =
            model.tasks.iter().map(|task| task.id).filter(|id| !self.ids.contains(id)).collect::<Vec<_>>();
        self.ids.extend(new);
    }

    fn pick(&self, model: &Naive, pick: Pick) -> TaskId {
        let nowhere = TaskId::new(model.id, WallTime::from_millis(7), 7);
        let nth = |ids: Vec<TaskId>, n: u8| {
            let among = if ids.is_empty() { &self.ids } else { &ids };
            among.get(usize::from(n) % among.len().max(1)).copied().unwrap_or(nowhere)
        };
        let of = |fits: fn(StateKind) -> bool| {
            model.tasks.iter().filter(|task| fits(task.kind())).map(|task| task.id).collect()
        };
        match pick {
            Pick::Any(n) => nth(self.ids.clone(), n),
            Pick::Claimed(n) => nth(of(|state| state == StateKind::Claimed), n),
            Pick::Ended(n) => nth(of(StateKind::is_ended), n),
            Pick::Unknown => nowhere,
        }
    }

    fn fence(&self, model: &Naive, task: TaskId, given: Given) -> Fence {
        let gone =
            || model.outcomes.iter().find(|outcome| outcome.settled.id == task).map(|outcome| outcome.fence);
        let last = model.find(task).map(|i| model.tasks[i].fence).or_else(gone).unwrap_or(Fence(1));
        match given {
            Given::Last => last,
            Given::Before => Fence(last.0.saturating_sub(1)),
            Given::After => Fence(last.0 + 1),
            Given::Zero => Fence(0),
        }
    }

    fn on(&self, model: &Naive, pick: Pick, given: Option<Given>) -> OnTask {
        let task = self.pick(model, pick);
        OnTask { task, fence: given.map(|given| self.fence(model, task, given)) }
    }

    /// The command of an op; none for one that is no command.
    pub(crate) fn command(&mut self, model: &Naive, op: &Op) -> Option<Command> {
        Some(match op {
            Op::Enqueue { shapes, atomic } => {
                let tasks = shapes.iter().map(|shape| shape.task(self.id(model.id))).collect();
                Command::Enqueue { tasks, atomic: *atomic }
            }
            Op::Claim { .. } | Op::ClaimById { .. } => self.claim(model, op),
            Op::Ack { .. }
            | Op::Fail { .. }
            | Op::Extend { .. }
            | Op::Release { .. }
            | Op::Progress { .. } => self.by_token(model, op),
            Op::PutBack { task, fence } => Command::PutBack(self.on(model, *task, *fence)),
            Op::Discard { task, fence } => Command::Discard(self.on(model, *task, *fence)),
            Op::Requeue { task, fence } => Command::Requeue(self.on(model, *task, *fence)),
            Op::Cancel { task } => {
                Command::Cancel { task: self.pick(model, *task), reason: "why not".to_owned() }
            }
            Op::Purge { queue } => Command::Purge { queue: queue_name(*queue) },
            Op::EndSession { by, reason } => {
                let (worker, session) = worker(*by);
                let session = session.unwrap_or(SessionId(99));
                Command::EndSession { worker, session, reason: *reason }
            }
            Op::SetQueue { queue, settings, newer } => {
                let queue = queue_name(*queue);
                let mut settings = (**settings).clone();
                settings.policy.spread = shapes::spread(&queue);
                settings.version = version(model, &queue, *newer);
                Command::SetQueue { queue, settings }
            }
            Op::DropQueue { queue, newer } => {
                let queue = queue_name(*queue);
                let version = version(model, &queue, *newer);
                Command::DropQueue { queue, version }
            }
            Op::Deliver { again, shapes, gap } => self.deliver(model, *again, shapes, *gap),
            Op::Delivered { target, upto } => {
                let target = ShardId::new(*target).expect("a good shard");
                Command::Delivered { target, upto: u64::from(*upto) }
            }
            Op::Pulse { limit } => Command::Pulse { limit: *limit },
            Op::Checkpoint { .. } | Op::Crash => return None,
        })
    }

    fn by_token(&self, model: &Naive, op: &Op) -> Command {
        let token = |pick, given| {
            let task = self.pick(model, pick);
            (task, self.fence(model, task, given))
        };
        match op {
            Op::Ack { task, fence, then } => {
                let (task, fence) = token(*task, *fence);
                let then = then.iter().map(|(shard, shape)| {
                    let shard = ShardId::new(*shard).expect("a good shard");
                    FollowUp { shard, task: shape.task(TaskId::new(shard, WallTime::from_millis(1), 0)) }
                });
                let then = then.collect();
                Command::Ack(Ack { task, fence, output: Bytes::from_static(b"out"), then })
            }
            Op::Fail { task, fence, retry_in, fatal } => {
                let (task, fence) = token(*task, *fence);
                let (error, detail) = ("broke".to_owned(), "at line 1".to_owned());
                Command::Fail(Fail {
                    task,
                    fence,
                    error,
                    detail,
                    retry_in: retry_in.map(Millis),
                    fatal: *fatal,
                })
            }
            Op::Extend { task, fence, hold } => {
                let (task, fence) = token(*task, *fence);
                Command::Extend { task, fence, hold: hold.map(Millis) }
            }
            Op::Release { task, fence, delay } => {
                let (task, fence) = token(*task, *fence);
                Command::Release { task, fence, delay: Millis(*delay) }
            }
            Op::Progress { task, fence, percent } => {
                let (task, fence) = token(*task, *fence);
                Command::Progress { task, fence, percent: *percent, note: "half".to_owned() }
            }
            _ => unreachable!("asked for calls with a token only"),
        }
    }

    fn claim(&self, model: &Naive, op: &Op) -> Command {
        match op {
            Op::Claim { queues, by, max, hold, request } => {
                let (worker, session) = worker(*by);
                // Which queue is asked next by weight is not written down, so what expires on the way
                // is not either: then the given order it is.
                let expires = |task: &Task| task.kind() == StateKind::Ready && task.expires_at.is_some();
                let plain = model.tasks.iter().any(expires);
                let queues = queues.iter().map(|(n, weight)| ClaimQueue {
                    name: queue_name(*n),
                    weight: if plain { 0 } else { *weight },
                });
                let queues = queues.collect();
                let (hold, request) = (hold.map(Millis), request.map(request_key));
                Command::Claim(Claim { queues, worker, session, max: *max, hold, request })
            }
            Op::ClaimById { task, by, hold, request } => {
                let (worker, session) = worker(*by);
                let (hold, request) = (hold.map(Millis), request.map(request_key));
                Command::ClaimById(ClaimById {
                    task: self.pick(model, *task),
                    worker,
                    session,
                    hold,
                    request,
                })
            }
            _ => unreachable!("asked for claims only"),
        }
    }

    /// The last `again` messages once more, then new ones, perhaps with one missing.
    fn deliver(&mut self, model: &Naive, again: u8, shapes: &[Shape], gap: bool) -> Command {
        let source = ShardId::new(2).expect("a good shard");
        let upto = model.received.iter().find(|(shard, _)| *shard == source).map_or(0, |(_, n)| *n);
        let first = upto + 1 - u64::from(again).min(upto) + u64::from(gap);
        let message = |(n, shape): (usize, &Shape)| {
            let task = shape.task(self.id(model.id));
            OutboxMessage { seq: first + n as u64, task }
        };
        Command::Deliver { source, messages: shapes.iter().enumerate().map(message).collect() }
    }
}

fn version(model: &Naive, queue: &QueueName, newer: i8) -> u64 {
    model.settings(queue).version.saturating_add_signed(i64::from(newer))
}
