//! One shard: a slice of the tasks, and what commands do to it.
//!
//! [`Shard::apply`] is the table of contents; each verb has its own file. Reads are in `look.rs`,
//! what a checkpoint takes and gives back in `journal.rs` and `load.rs`. Nothing here knows a clock,
//! a leader or a payload.

mod ack;
mod cancel;
mod claim;
mod deadlines;
mod deliver;
mod end;
mod enqueue;
mod execution;
mod extend;
mod fail;
mod free;
mod holders;
mod journal;
mod keys;
mod lists;
mod load;
mod look;
mod outcomes;
mod pulse;
mod purge;
mod queue;
mod queues;
pub(crate) mod record;
mod release;
mod requeue;
mod session;
mod shift;
mod tasks;
mod timers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use model::{
    Command, Elapsed, Event, Fence, KeyHash, OutboxMessage, Position, Rejection, Reply, ShardId, TaskId,
    WallTime,
};

use crate::effects::{Effect, Effects};
use crate::machine::{Change, Damaged, Machine, NextDue, Table};
use deadlines::Deadlines;
use execution::{ClaimRecord, Last, QueueNo, Slot};
pub use fail::backoff;
use holders::Holders;
use journal::Journal;
use keys::{DedupEntry, OrderLine};
use outcomes::Outcomes;
use queues::Queues;
use record::Writer;
use tasks::Tasks;
use timers::Timers;

/// The stamps at the head of the meta record.
const META_STAMPS_BYTES: usize = 16;

/// A slice of the tasks.
pub struct Shard {
    id: ShardId,
    /// How many shards the cluster has: limits of a queue are split over them.
    shards: u16,
    elapsed: Elapsed,
    wall: WallTime,
    counters: Counters,
    tasks: Tasks,
    queues: Queues,
    claims: HashMap<Slot, ClaimRecord, Fixed>,
    sessions: Holders,
    order: HashMap<KeyHash, OrderLine, Fixed>,
    dedup: HashMap<KeyHash, DedupEntry, Fixed>,
    unique: HashMap<KeyHash, TaskId, Fixed>,
    requests: HashMap<KeyHash, Request, Fixed>,
    outcomes: Outcomes,
    outbox: BTreeMap<ShardId, OutboxLine>,
    /// What the messages in the outbox weigh. Rebuilt on load.
    outbox_bytes: u64,
    /// Tasks with an [`execution::Extra`]. Rebuilt on load.
    extras: u64,
    /// How far each other shard's messages have come in.
    delivered: BTreeMap<ShardId, u64>,
    deadlines: Deadlines,
    elapsed_timers: Timers,
    wall_timers: Timers,
    /// When the first ended or dead task of a queue may go, at the earliest.
    retention: BTreeSet<(u64, QueueNo, usize)>,
    /// Queues in which something became ready during this command.
    became_ready: Vec<QueueNo>,
    journal: Journal,
}

/// Numbers that are given once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counters {
    fence: u64,
    /// The next rank at the back of a list, and the next place in an order key's line.
    back: i64,
    /// The next rank at the front.
    front: i64,
    queue: QueueNo,
    outcome: u64,
    /// The oldest outcome that is still kept, if any is.
    first_outcome: u64,
}

/// The claims that a request id got.
#[derive(Clone, Debug)]
struct Request {
    claims: Vec<(TaskId, Fence)>,
    until: Elapsed,
}

/// Messages to one other shard.
#[derive(Clone, Debug, Default)]
struct OutboxLine {
    last_seq: u64,
    messages: VecDeque<OutboxMessage>,
}

impl Shard {
    /// An empty shard, one of `shards`.
    pub fn new(id: ShardId, shards: u16) -> Shard {
        Shard {
            id,
            shards,
            elapsed: Elapsed::default(),
            wall: WallTime::default(),
            counters: Counters { fence: 1, back: 1, front: 0, queue: 1, outcome: 1, first_outcome: 1 },
            tasks: Tasks::new(),
            queues: Queues::default(),
            claims: HashMap::default(),
            sessions: Holders::default(),
            order: HashMap::default(),
            dedup: HashMap::default(),
            unique: HashMap::default(),
            requests: HashMap::default(),
            outcomes: Outcomes::new(),
            outbox: BTreeMap::new(),
            outbox_bytes: 0,
            extras: 0,
            delivered: BTreeMap::new(),
            deadlines: Deadlines::default(),
            elapsed_timers: Timers::default(),
            wall_timers: Timers::default(),
            retention: BTreeSet::new(),
            became_ready: Vec::new(),
            journal: Journal::default(),
        }
    }

    /// Which shard this is.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Applies one committed command.
    ///
    /// Runs on every replica: the result may depend only on the shard, `at` and `command`.
    /// `at` (index, elapsed, wall) comes from the log entry, never from a clock.
    pub fn apply(
        &mut self,
        mut at: Position,
        command: Command,
        effects: &mut Effects,
    ) -> Result<Reply, Rejection> {
        // Time never goes back, whatever a new leader's clock says.
        at.elapsed = at.elapsed.max(self.elapsed);
        at.wall = at.wall.max(self.wall);
        let outcome = match command {
            Command::Enqueue { tasks, atomic } => self.enqueue(at, tasks, atomic, effects),
            Command::Claim(claim) => Ok(self.claim(at, claim, effects)),
            Command::ClaimById(claim) => self.claim_by_id(at, claim, effects),
            Command::Ack(ack) => self.ack(at, ack, effects),
            Command::Fail(fail) => self.fail(at, fail, effects),
            Command::Extend { task, fence, hold } => self.extend(at, task, fence, hold),
            Command::Release { task, fence, delay } => self.release(at, task, fence, delay, effects),
            Command::Progress { task, fence, percent, note } => self.progress(at, task, fence, percent, note),
            Command::PutBack(on) => self.put_back(at, on, effects),
            Command::Discard(on) => self.discard(at, on, effects),
            Command::Cancel { task, reason } => self.cancel(at, task, reason, effects),
            Command::Requeue(on) => self.requeue(at, on, effects),
            Command::Purge { queue } => self.purge(queue),
            Command::EndSession { session, reason, .. } => Ok(self.end_session(at, session, reason, effects)),
            Command::SetQueue { queue, settings } => self.set_queue(queue, settings),
            Command::DropQueue { queue, version } => self.drop_queue(&queue, version),
            Command::Deliver { source, messages } => Ok(self.deliver(at, source, messages, effects)),
            Command::Delivered { target, upto } => Ok(self.delivered(target, upto)),
            Command::Pulse { limit } => Ok(self.pulse(at, limit, effects)),
        };
        if outcome.is_ok() {
            self.elapsed = at.elapsed;
            self.wall = at.wall;
        }
        self.tell_ready(effects);
        self.hash_some();
        outcome
    }

    fn tell_ready(&mut self, effects: &mut Effects) {
        for no in self.became_ready.drain(..) {
            if let Some(queue) = self.queues.get(no) {
                effects.push(Effect::Ready { queue: queue.name.clone() });
            }
        }
    }

    fn happened(&self, slot: Slot, event: Event, effects: &mut Effects) {
        let task = &self.tasks[slot];
        let queue = self.queues[task.queue].name.clone();
        effects.push_of(slot, Effect::Happened { task: task.id, queue, event });
    }

    fn find(&self, id: TaskId) -> Result<Slot, Rejection> {
        self.tasks.find(id).ok_or(Rejection::NotFound { id })
    }

    fn write_meta(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.elapsed.0);
        w.u64(self.wall.millis());
        record::version(&mut w);
        w.u64(self.counters.fence);
        w.u64(self.counters.back as u64);
        w.u64(self.counters.front as u64);
        w.u32(self.counters.queue);
        w.u64(self.counters.outcome);
        w.u64(self.counters.first_outcome);
        w.u32(self.outbox.len() as u32);
        for (target, line) in &self.outbox {
            w.u16(target.number());
            w.u64(line.last_seq);
        }
        w.u32(self.delivered.len() as u32);
        for (source, upto) in &self.delivered {
            w.u16(source.number());
            w.u64(*upto);
        }
        w.0
    }
}

impl Machine for Shard {
    type Command = Command;
    type Reply = Reply;

    fn apply(&mut self, at: Position, command: Command, effects: &mut Effects) -> Result<Reply, Rejection> {
        Shard::apply(self, at, command, effects)
    }

    fn foresee(&self, commands: &[Command], slots: &mut Vec<Slot>) {
        // One look-up after the other waits for memory each time; these do not depend on each other, so they wait together.
        let acked = commands.iter().filter_map(|command| match command {
            Command::Ack(ack) => self.tasks.find(ack.task),
            _ => None,
        });
        slots.extend(acked);
        let Some(&first) = slots.first() else { return };
        // As many go as come, where a queue's ended tasks are as many as may be.
        let no = self.tasks[first].queue;
        let queue = &self.queues[no];
        if queue.lists[lists::ENDED].len < queue.share(queue.policy().retained_max, self.shards) {
            return;
        }
        let mut oldest = self.first(lists::ENDED, no);
        for _ in 0..slots.len() {
            let Some(slot) = oldest else { return };
            slots.push(slot);
            oldest = Some(self.tasks[slot].next).filter(|next| *next != execution::NONE);
        }
    }

    fn stamps(&self) -> (Elapsed, WallTime) {
        (self.elapsed, self.wall)
    }

    fn next_due(&self) -> NextDue {
        let purge = self.queues.purging().next().map(|_| self.elapsed.0);
        let outcome = self.outcomes.first().map(|outcome| outcome.until.0);
        let elapsed =
            [purge, outcome, self.deadlines.first(), self.elapsed_timers.first()].into_iter().flatten().min();
        let retention = self.retention.first().map(|&(time, ..)| time);
        let wall = [retention, self.wall_timers.first()].into_iter().flatten().min();
        NextDue { elapsed: elapsed.map(Elapsed), wall: wall.map(WallTime::from_millis) }
    }

    fn hash(&mut self) -> u128 {
        self.hash_now()
    }

    fn changed(&self) -> usize {
        self.journal.changed()
    }

    fn cut(&mut self) {
        self.cut_begin();
    }

    fn cut_some(&mut self, limit: usize, out: &mut Vec<Change>) -> bool {
        self.cut_more(limit, out)
    }

    fn load(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        self.load_record(table, key, value).map_err(|what| Damaged { table, what })
    }

    fn loaded(&mut self) -> Result<(), Damaged> {
        self.rebuild()
    }
}

/// A hasher without a secret: replicas and reloads behave alike. Its keys are hashes or ids already.
#[derive(Default)]
struct FixedHasher(u64);

type Fixed = BuildHasherDefault<FixedHasher>;

impl Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxhash_rust::xxh3::xxh3_64_with_seed(bytes, self.0);
    }

    /// Slots: those of tasks that came together are in a row, and so is what is kept under them. For small tables: where much
    /// comes and goes, full neighbourhoods make one be sorted anew from time to time.
    fn write_u32(&mut self, value: u32) {
        let value = u64::from(value);
        self.0 ^= value ^ value.wrapping_mul(0x9e37_79b9_7f4a_7c15) & tasks::TAG;
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }

    fn write_u128(&mut self, value: u128) {
        self.write_u64(value as u64 ^ ((value >> 64) as u64).rotate_left(23));
    }
}
