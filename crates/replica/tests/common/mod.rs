//! A small machine and a node's worth of storage for it.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use model::{
    Claimed, Command, Elapsed, Enqueued, Event, Fence, GroupId, MemberId, NodeId, Position, QueueName,
    Rejection, Reply, Settled, ShardId, Stand, Start, StateKind, TaskId, WallTime,
};
use replica::{Codec, NoPeers, Replica, ReplicaConfig, SystemClock};
use state_machine::{Change, Damaged, Effect, Effects, Machine, NextDue, Slot, Table};
use storage::{CheckpointStore, Disk, Log, LogOptions, ThreadExecutor, checkpoint_path};
use wire::command::CommandMessage;
use wire::entry::Malformed;

/// What a task of the toy is: due at a time, ready, claimed or done with a fence.
type Record = (StateKind, u64);

fn stand((state, number): Record) -> Stand {
    let fence = if state >= StateKind::Claimed { number } else { 0 };
    Stand { state, fence: Fence(fence), attempts: 0 }
}

/// Tasks that are enqueued, become ready at their time, are claimed oldest first, acked, and purged.
#[derive(Default)]
pub(crate) struct Toy {
    tasks: BTreeMap<TaskId, Record>,
    slots: BTreeMap<TaskId, Slot>,
    next_slot: Slot,
    stamps: (Elapsed, WallTime),
    hash: u128,
    changed: BTreeSet<TaskId>,
    cut: Vec<Change>,
    broken: bool,
}

impl Toy {
    pub(crate) fn states(&self) -> Vec<StateKind> {
        self.tasks.values().map(|(state, _)| *state).collect()
    }

    /// The same on every replica at the same index.
    pub(crate) fn digest(&self) -> u128 {
        self.hash ^ u128::from(self.stamps.0.0) << 64 ^ u128::from(self.stamps.1.millis())
    }

    pub(crate) fn state(&self, task: TaskId) -> Option<StateKind> {
        self.tasks.get(&task).map(|(state, _)| *state)
    }

    fn set(&mut self, task: TaskId, record: Option<Record>) {
        let old = match record {
            Some(record) => self.tasks.insert(task, record),
            None => self.tasks.remove(&task),
        };
        if let Some(old) = old {
            self.hash = self.hash.wrapping_sub(weigh(task, old));
        }
        if let Some(new) = record {
            self.hash = self.hash.wrapping_add(weigh(task, new));
        }
        self.changed.insert(task);
        if !self.slots.contains_key(&task) {
            self.slots.insert(task, self.next_slot);
            self.next_slot += 1;
        }
    }

    /// Tells something of a task.
    fn tell(&self, task: TaskId, effect: Effect, effects: &mut Effects) {
        effects.push_of(self.slots[&task], effect);
    }
}

fn weigh(task: TaskId, (state, due): Record) -> u128 {
    task.bits()
        .wrapping_mul(state as u128 * 7 + 1)
        .wrapping_add(u128::from(due))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(crate) fn mail() -> QueueName {
    QueueName::new("mail").unwrap()
}

fn happened(task: TaskId, event: Event) -> Effect {
    Effect::Happened { task, queue: mail(), event }
}

impl Machine for Toy {
    type Command = Command;
    type Reply = Reply;

    fn apply(&mut self, at: Position, command: Command, effects: &mut Effects) -> Result<Reply, Rejection> {
        self.stamps = (self.stamps.0.max(at.elapsed), self.stamps.1.max(at.wall));
        match command {
            Command::Enqueue { tasks, .. } => {
                let mut replies = Vec::new();
                for task in tasks {
                    let (state, due) = match task.wishes().start {
                        Start::After(delay) => (StateKind::Delayed, self.stamps.1.after(delay).millis()),
                        _ => (StateKind::Ready, 0),
                    };
                    self.set(task.id, Some((state, due)));
                    self.tell(task.id, Effect::Keep { task: task.id, envelope: task.envelope }, effects);
                    self.tell(task.id, happened(task.id, Event::Enqueued { state }), effects);
                    replies.push(Ok(Enqueued { id: task.id, duplicate: false, state }));
                }
                effects.push(Effect::Ready { queue: mail() });
                Ok(Reply::Enqueued(replies))
            }
            Command::Claim(claim) => {
                let ready = self.tasks.iter().filter(|(_, (state, _))| *state == StateKind::Ready);
                let ready: Vec<_> = ready.map(|(task, _)| *task).take(claim.max as usize).collect();
                let mut claims = Vec::new();
                for (n, task) in ready.into_iter().enumerate() {
                    let fence = Fence(at.index << 16 | u64::from(at.n) << 8 | n as u64);
                    self.set(task, Some((StateKind::Claimed, fence.0)));
                    let worker = claim.worker.clone();
                    self.tell(task, happened(task, Event::Claimed { worker, attempt: 1, fence }), effects);
                    claims.push(Claimed {
                        id: task,
                        queue: mail(),
                        priority: 5,
                        attempt: 1,
                        fence,
                        deadline: self.stamps.0,
                        deadline_wall: self.stamps.1,
                        hold: model::Millis(0),
                        enqueued_at: self.stamps.1,
                        ready_since: self.stamps.1,
                        envelope: Bytes::new(),
                    });
                }
                Ok(Reply::Claimed(claims))
            }
            Command::Ack(ack) => {
                let Some((StateKind::Claimed, fence)) = self.tasks.get(&ack.task).copied() else {
                    return Err(Rejection::NotFound { id: ack.task });
                };
                self.set(ack.task, Some((StateKind::Done, fence)));
                self.tell(ack.task, Effect::Output { task: ack.task, output: ack.output }, effects);
                let worker = model::WorkerName::new("w").unwrap();
                self.tell(ack.task, happened(ack.task, Event::Acked { worker }), effects);
                Ok(Reply::Settled(Settled { id: ack.task, state: StateKind::Done, attempt: 1, due: None }))
            }
            Command::Discard(on) => {
                self.broken |= on.task == breaks_checkpoints();
                self.set(on.task, None);
                self.tell(on.task, Effect::Forget { task: on.task }, effects);
                self.slots.remove(&on.task);
                Ok(Reply::Done)
            }
            Command::Pulse { limit } => {
                let now = self.stamps.1.millis();
                let due =
                    self.tasks.iter().filter(|(_, (state, due))| *state == StateKind::Delayed && *due <= now);
                let due: Vec<_> = due.map(|(task, _)| *task).take(limit as usize).collect();
                for task in &due {
                    self.set(*task, Some((StateKind::Ready, 0)));
                    self.tell(*task, happened(*task, Event::BecameReady), effects);
                }
                Ok(Reply::Count(due.len() as u64))
            }
            _ => Ok(Reply::Done),
        }
    }

    fn stamps(&self) -> (Elapsed, WallTime) {
        self.stamps
    }

    fn next_due(&self) -> NextDue {
        let delayed = self.tasks.values().filter(|(state, _)| *state == StateKind::Delayed);
        NextDue { elapsed: None, wall: delayed.map(|(_, due)| WallTime::from_millis(*due)).min() }
    }

    fn hash(&mut self) -> u128 {
        self.digest()
    }

    fn changed(&self) -> usize {
        self.changed.len()
    }

    fn cut(&mut self) {
        assert!(self.cut.is_empty(), "the cut before was not drained");
        assert!(!self.broken, "a bug");
        let stamps = [self.stamps.0.0.to_be_bytes(), self.stamps.1.millis().to_be_bytes()].concat();
        self.cut.push(Change { table: Table::Meta, key: vec![0], value: Some(stamps) });
        for task in std::mem::take(&mut self.changed) {
            let value = self.tasks.get(&task).map(|(state, due)| {
                let mut value = vec![*state as u8];
                value.extend(due.to_be_bytes());
                value
            });
            self.cut.push(Change { table: Table::Executions, key: task.bits().to_be_bytes().into(), value });
        }
    }

    fn cut_some(&mut self, limit: usize, out: &mut Vec<Change>) -> bool {
        let rest = self.cut.split_off(limit.min(self.cut.len()));
        out.append(&mut self.cut);
        self.cut = rest;
        !self.cut.is_empty()
    }

    fn load(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        let damaged = |what| Damaged { table, what };
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes).map_err(|_| damaged("length"));
        match table {
            Table::Meta => {
                let (elapsed, wall) = value.split_at_checked(8).ok_or(damaged("stamps"))?;
                self.stamps = (Elapsed(number(elapsed)?), WallTime::from_millis(number(wall)?));
            }
            _ => {
                let bits = key.try_into().map(u128::from_be_bytes).map_err(|_| damaged("key"))?;
                let task = TaskId::from_bits(bits).ok_or(damaged("task id"))?;
                let (state, due) = value.split_first().ok_or(damaged("value"))?;
                let state = StateKind::from_number(*state).ok_or(damaged("state"))?;
                self.set(task, Some((state, number(due)?)));
            }
        }
        Ok(())
    }

    fn loaded(&mut self) -> Result<(), Damaged> {
        self.changed.clear();
        Ok(())
    }
}

impl Codec for Toy {
    fn encode(command: &Command, part: &mut BytesMut) {
        wire::entry::push_command(&CommandMessage::from(command), part);
    }

    fn decode(bytes: Bytes) -> Result<Command, Malformed> {
        wire::command::decode(bytes)
    }

    fn pulse(limit: u32) -> Option<Command> {
        Some(Command::Pulse { limit })
    }

    fn is_new_work(command: &Command) -> bool {
        matches!(command, Command::Enqueue { .. })
    }

    fn stand(&self, task: TaskId) -> Option<Stand> {
        self.tasks.get(&task).copied().map(stand)
    }

    fn slot(&self, task: TaskId) -> Option<Slot> {
        self.slots.get(&task).copied()
    }

    fn stored_stand(_key: &[u8], value: &[u8]) -> Option<Stand> {
        let (state, number) = value.split_first()?;
        let number = u64::from_be_bytes(number.try_into().ok()?);
        Some(stand((StateKind::from_number(*state)?, number)))
    }

    fn claims(reply: &mut Reply) -> Option<&mut Vec<Claimed>> {
        match reply {
            Reply::Claimed(claims) => Some(claims),
            _ => None,
        }
    }
}

/// After the discard of this task, a checkpoint panics.
pub(crate) fn breaks_checkpoints() -> TaskId {
    task_id(999_999)
}

pub(crate) const GROUP: GroupId = GroupId(1);

/// A disk with a log and a checkpoint, and the replica on it.
pub(crate) struct Node {
    pub(crate) log: Log,
    pub(crate) replica: Replica<Toy>,
}

pub(crate) fn config() -> ReplicaConfig {
    ReplicaConfig::new(GROUP, MemberId::new(NodeId(1), 0))
}

impl Node {
    pub(crate) async fn start(disk: Arc<dyn Disk>, config: ReplicaConfig) -> Node {
        Node::try_start(disk, config).await.unwrap()
    }

    pub(crate) async fn try_start(disk: Arc<dyn Disk>, config: ReplicaConfig) -> replica::Result<Node> {
        let executor = Arc::new(ThreadExecutor);
        // A disk that crashed under a node of an earlier life must not end the test.
        let options =
            LogOptions { on_fatal: Arc::new(|_| ()), segment_bytes: 4 << 20, ..LogOptions::default() };
        let (log, _) = Log::open(disk.clone(), Path::new("log"), options, executor.clone()).unwrap();
        disk.create_dir_all(Path::new("shards")).unwrap();
        let store = CheckpointStore::open(disk.clone(), &checkpoint_path(config.group), 1 << 20).unwrap();
        let clock = Arc::new(SystemClock::new());
        let group = log.group(config.group);
        let config = ReplicaConfig { founders: vec![(config.member, String::new())], ..config };
        let (make, peers) = (Box::new(Toy::default), Arc::new(NoPeers));
        let replica = Replica::start(config, make, group, store, disk, clock, executor, peers).await;
        match replica {
            Ok(replica) => {
                replica.elect().await.unwrap();
                replica.ready().await.unwrap();
                Ok(Node { log, replica })
            }
            Err(error) => {
                log.close().unwrap();
                Err(error)
            }
        }
    }

    /// In order.
    pub(crate) async fn stop(self) {
        self.replica.stop().await.unwrap();
        self.log.close().unwrap();
    }

    pub(crate) async fn one(&self, command: Command) -> Reply {
        let mut applied = self.replica.propose(vec![command]).await.unwrap();
        applied.pop().unwrap().outcome.unwrap()
    }

    pub(crate) async fn claim(&self, max: u32) -> Vec<Claimed> {
        match self.one(claim(max)).await {
            Reply::Claimed(claims) => claims,
            reply => panic!("{reply:?}"),
        }
    }
}

pub(crate) fn task_id(n: u64) -> TaskId {
    TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1_000 + n), n)
}

pub(crate) fn enqueue(n: u64, start: Start) -> Command {
    enqueue_with(n, start, format!("envelope {n}").into())
}

pub(crate) fn enqueue_with(n: u64, start: Start, envelope: Bytes) -> Command {
    let task = model::NewTask {
        id: task_id(n),
        queue: mail(),
        kind_hash: 0,
        digest: model::Digest(0),
        priority: 5,
        wishes: model::Wishes { start, ..model::Wishes::default() }.boxed(),
        envelope,
    };
    Command::Enqueue { tasks: vec![task], atomic: false }
}

pub(crate) fn claim(max: u32) -> Command {
    Command::Claim(model::command::Claim {
        queues: vec![],
        worker: model::WorkerName::new("w").unwrap(),
        session: None,
        max,
        hold: None,
        request: None,
    })
}

pub(crate) fn ack(claimed: &Claimed) -> Command {
    let output = Bytes::from_static(b"out");
    Command::Ack(model::command::Ack { task: claimed.id, fence: claimed.fence, output, then: vec![] })
}

pub(crate) fn discard(task: TaskId) -> Command {
    Command::Discard(model::command::OnTask { task, fence: None })
}
