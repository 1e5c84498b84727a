//! Bounds that random sequences are too short to reach, and cursors that outlive their task.

#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use model::command::{Ack, Claim, ClaimQueue, OnTask};
use model::{
    Command, Digest, Elapsed, Event, FollowUp, KeyHash, Millis, NewTask, Position, QueueName, QueuePolicy,
    QueueSettings, Rejection, Reply, ShardId, Spread, TaskId, WallTime, Wishes, WorkerName, limits,
};
use state_machine::view::Filter;
use state_machine::{Effect, Effects, Shard};

struct Driver {
    shard: Shard,
    index: u64,
}

impl Driver {
    fn new() -> Driver {
        Driver { shard: Shard::new(shard(1), 4), index: 0 }
    }

    fn apply(&mut self, command: Command) -> Result<Reply, Rejection> {
        self.index += 1;
        let wall = WallTime::from_millis(1_000_000 + self.index);
        let at = Position { index: self.index, n: 0, elapsed: Elapsed(self.index), wall };
        self.shard.apply(at, command, &mut Effects::default())
    }

    fn enqueue(&mut self, tasks: Vec<NewTask>) {
        self.apply(Command::Enqueue { tasks, atomic: false }).unwrap();
    }

    fn claim_and_ack(&mut self, then: Vec<FollowUp>) -> TaskId {
        let queues = vec![ClaimQueue { name: queue("mail"), weight: 0 }];
        let worker = WorkerName::new("w").unwrap();
        let claim = Claim { queues, worker, session: None, max: 1, hold: None, request: None };
        let Reply::Claimed(claims) = self.apply(Command::Claim(claim)).unwrap() else { panic!("a claim") };
        let (task, fence) = (claims[0].id, claims[0].fence);
        self.apply(Command::Ack(Ack { task, fence, output: Bytes::new(), then })).unwrap();
        task
    }
}

fn shard(number: u16) -> ShardId {
    ShardId::new(number).unwrap()
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn task(n: u64, name: &str) -> NewTask {
    NewTask {
        id: TaskId::new(shard(1), WallTime::from_millis(n), n),
        queue: queue(name),
        kind_hash: 0,
        digest: Digest(0),
        priority: 5,
        wishes: None,
        envelope: Bytes::from_static(b"envelope"),
    }
}

/// A pinned queue that lives in another shard than this one.
fn pinned_elsewhere(driver: &mut Driver) -> QueueName {
    let names = (0..).map(|n| queue(&format!("queue-{n}")));
    let queue = names.into_iter().find(|queue| ShardId::of_queue(queue, 4) != shard(1)).unwrap();
    let policy = QueuePolicy { spread: Spread::Pinned, ..QueuePolicy::default() };
    let settings = QueueSettings { policy, version: 1, ..QueueSettings::default() };
    driver.apply(Command::SetQueue { queue: queue.clone(), settings }).unwrap();
    queue
}

#[test]
fn a_pinned_queue_takes_no_task_in_a_shard_that_it_does_not_live_in() {
    let mut driver = Driver::new();
    let queue = pinned_elsewhere(&mut driver);
    let moved = Rejection::Moved { queue: queue.clone() };
    let one = |atomic| Command::Enqueue { tasks: vec![task(1, queue.as_str())], atomic };
    assert_eq!(driver.apply(one(false)), Ok(Reply::Enqueued(vec![Err(moved.clone())])));
    assert_eq!(driver.apply(one(true)), Err(Rejection::NotAtomic { n: 0, because: Box::new(moved) }));
    // A follow-up was promised with its ack: it comes wherever that was placed.
    driver.enqueue(vec![task(2, "mail")]);
    driver.claim_and_ack(vec![FollowUp { shard: shard(1), task: task(3, queue.as_str()) }]);
    assert_eq!(driver.shard.queue(&queue).unwrap().totals.enqueued, 1);
}

#[test]
fn a_list_by_order_key_goes_on_when_the_task_of_its_cursor_has_ended() {
    let mut driver = Driver::new();
    let key = |text| Some(KeyHash::new(&queue("mail"), text));
    let keyed = |n, text, retention| NewTask {
        wishes: Wishes { order_key: key(text), retention, ..Wishes::default() }.boxed(),
        ..task(n, "mail")
    };
    driver.enqueue(vec![
        keyed(1, "k", None),
        keyed(2, "k", Some(Millis(0))),
        keyed(3, "k", None),
        keyed(4, "k", None),
    ]);
    let filter = Filter { order_key: key("k"), ..Filter::default() };
    let page = driver.shard.list(&filter, None, 1, 10);
    assert_eq!(page.tasks[0].id, task(1, "mail").id);
    // The cursor's task ends but stays readable; the one behind it goes, and others take its slot.
    driver.apply(Command::Discard(OnTask { task: page.tasks[0].id, fence: None })).unwrap();
    assert_eq!(driver.claim_and_ack(Vec::new()), task(2, "mail").id);
    driver.apply(Command::Pulse { limit: 100 }).unwrap();
    driver.enqueue(vec![keyed(77, "another", None), keyed(78, "another", None)]);
    let page = driver.shard.list(&filter, page.cursor, 10, 10);
    let ids: Vec<TaskId> = page.tasks.iter().map(|task| task.id).collect();
    assert_eq!(ids, [task(3, "mail").id, task(4, "mail").id]);
}

#[test]
fn of_many_claims_with_one_deadline_those_that_still_hold_end_by_id_and_in_steps() {
    let mut driver = Driver::new();
    // Enqueued, and so claimed, against the order of their ids.
    driver.enqueue((1..=1_000).rev().map(|n| task(n, "mail")).collect());
    let queues = vec![ClaimQueue { name: queue("mail"), weight: 0 }];
    let worker = WorkerName::new("w").unwrap();
    let session = Some(model::SessionId(7));
    let claim = Claim { queues, worker, session, max: 1_000, hold: Some(Millis(5_000)), request: None };
    let Reply::Claimed(claims) = driver.apply(Command::Claim(claim)).unwrap() else { panic!("a claim") };
    assert_eq!(claims.len(), 1_000);
    let holds = |n: u64| n.is_multiple_of(10);
    for claim in claims.iter().filter(|claim| !holds(number(claim.id))) {
        let (task, fence) = (claim.id, claim.fence);
        driver.apply(Command::Ack(Ack { task, fence, output: Bytes::new(), then: Vec::new() })).unwrap();
    }
    assert_eq!(driver.shard.session_claims(model::SessionId(7)).len(), 100);
    driver.index = 10_000;
    let mut freed = Vec::new();
    for step in [30, 30, 40] {
        driver.index += 1;
        let at =
            Position { index: driver.index, n: 0, elapsed: Elapsed(10_000), wall: WallTime::from_millis(1) };
        let mut effects = Effects::default();
        let pulsed = driver.shard.apply(at, Command::Pulse { limit: step }, &mut effects);
        assert_eq!(pulsed, Ok(Reply::Count(step.into())));
        freed.push(effects.as_slice().iter().filter_map(freed_task).map(number).collect::<Vec<_>>());
    }
    let expected: Vec<u64> = (1..=1_000).filter(|&n| holds(n)).collect();
    let mut sorted = freed.clone();
    sorted.iter_mut().for_each(|step| step.sort_unstable());
    assert_eq!(sorted.concat(), expected, "each step has the lowest ids that are left");
    assert!(driver.shard.session_claims(model::SessionId(7)).is_empty());
}

/// The number that its test gave a task.
fn number(task: TaskId) -> u64 {
    (task.bits() >> 80) as u64
}

fn freed_task(effect: &Effect) -> Option<TaskId> {
    match effect {
        Effect::Happened { task, event: Event::Freed { .. }, .. } => Some(*task),
        _ => None,
    }
}

#[test]
fn messages_to_another_shard_come_in_bites_that_fit_an_entry() {
    let mut driver = Driver::new();
    driver.enqueue(vec![task(1, "mail")]);
    let envelope = Bytes::from(vec![0; 1_000]);
    let large =
        |n| FollowUp { shard: shard(2), task: NewTask { envelope: envelope.clone(), ..task(n, "after") } };
    driver.claim_and_ack((10..20).map(large).collect());
    let outbox = |limit, bytes| driver.shard.outbox(shard(2), limit, bytes).len();
    assert_eq!(outbox(500, usize::MAX), 10);
    assert_eq!(outbox(500, 3_500), 3);
    assert_eq!(outbox(2, 3_500), 2);
    assert_eq!(outbox(500, 10), 1, "a single larger one goes alone");
    assert_eq!(driver.shard.outbox_len(), 10);
}

#[test]
fn an_atomic_enqueue_counts_the_queues_that_it_would_make() {
    let mut driver = Driver::new();
    for n in 1..limits::QUEUES_MAX {
        driver.enqueue(vec![task(n, &format!("q{n}"))]);
    }
    let two = vec![task(90_001, "new-1"), task(90_002, "new-2")];
    let refused = driver.apply(Command::Enqueue { tasks: two, atomic: true }).unwrap_err();
    assert!(
        matches!(&refused, Rejection::NotAtomic { n: 1, because }
            if matches!(**because, Rejection::TooManyQueues { .. })),
        "{refused:?}"
    );
    assert_eq!(refused.code(), "queue_full");
    assert_eq!(driver.shard.queues().len() as u64, limits::QUEUES_MAX - 1);
    let same = vec![task(90_001, "new"), task(90_002, "new")];
    driver.apply(Command::Enqueue { tasks: same, atomic: true }).unwrap();
}
