//! Takes tasks in.

use std::collections::{BTreeMap, BTreeSet};

use model::command::UniqueUntil;
use model::{
    Enqueued, Event, Fence, KeyHash, Millis, Mutant, NewTask, Position, QueueName, Rejection, Reply, ShardId,
    Start, StateKind, WallTime, limits, mutant,
};

use super::Shard;
use super::execution::{DedupKey, Execution, Extra, Flags, Last, NONE, OrderPlace, Slot, UniqueKey};
use super::keys::{DedupEntry, Scoped};
use super::queue::Queue;
use super::shift::Side;
use crate::effects::{Effect, Effects};

/// Whether a queue's limits count: they do for callers, not for follow-ups, which an ack has promised.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Limits {
    Count,
    Ignore,
}

/// What becomes of a task that may come in.
enum Verdict {
    New(Scoped),
    Known(Enqueued),
}

/// What the earlier tasks of an atomic request will have changed.
#[derive(Default)]
struct Ahead {
    tasks: BTreeMap<QueueName, u64>,
    dedup: BTreeMap<KeyHash, (model::Digest, model::TaskId)>,
    dedup_counts: BTreeMap<QueueName, u64>,
    unique: BTreeMap<KeyHash, model::TaskId>,
    ids: BTreeSet<model::TaskId>,
}

impl Shard {
    pub(super) fn enqueue(
        &mut self,
        at: Position,
        tasks: Vec<NewTask>,
        atomic: bool,
        effects: &mut Effects,
    ) -> Result<Reply, Rejection> {
        if atomic {
            self.check_all(&tasks)?;
        }
        let mut outcomes = Vec::with_capacity(tasks.len());
        for task in tasks {
            outcomes.push(self.take_in(at, task, Limits::Count, effects));
        }
        Ok(Reply::Enqueued(outcomes))
    }

    /// Takes one task in, or says why not.
    pub(super) fn take_in(
        &mut self,
        at: Position,
        task: NewTask,
        limits: Limits,
        effects: &mut Effects,
    ) -> Result<Enqueued, Rejection> {
        match self.check(&task, limits, None)? {
            Verdict::Known(known) => Ok(known),
            Verdict::New(scoped) => Ok(self.insert(at, task, &scoped, effects)),
        }
    }

    fn check_all(&self, tasks: &[NewTask]) -> Result<(), Rejection> {
        let mut ahead = Ahead::default();
        for (n, task) in tasks.iter().enumerate() {
            match self.check(task, Limits::Count, Some(&ahead)) {
                Ok(Verdict::Known(_)) => {}
                Ok(Verdict::New(scoped)) => ahead.add(task, &scoped),
                Err(because) => return Err(Rejection::NotAtomic { n, because: Box::new(because) }),
            }
        }
        Ok(())
    }

    fn check(&self, task: &NewTask, limits: Limits, ahead: Option<&Ahead>) -> Result<Verdict, Rejection> {
        debug_assert_eq!(task.id.shard(), self.id, "the router sends a task to the shard in its id");
        let queue = self.queues.find(&task.queue).map(|no| &self.queues[no]);
        let scoped = Scoped::of(task, queue.is_some_and(|queue| queue.is_pinned()));
        // The same id again is the same request again: its first reply was lost.
        if let Some(slot) = self.tasks.find(task.id) {
            let state = self.tasks[slot].state;
            return Ok(Verdict::Known(Enqueued { id: task.id, duplicate: true, state }));
        }
        if ahead.is_some_and(|ahead| ahead.ids.contains(&task.id)) {
            return Ok(Verdict::Known(Enqueued { id: task.id, duplicate: true, state: StateKind::Ready }));
        }
        if let Some(key) = scoped.dedup
            && let Some((digest, holder, state)) = self.dedup_holder(key, ahead)
        {
            return match digest == task.digest {
                true => Ok(Verdict::Known(Enqueued { id: holder, duplicate: true, state })),
                false => Err(Rejection::DedupMismatch { holder }),
            };
        }
        if let Some(key) = scoped.unique
            && let Some(&holder) = self.unique.get(&key).or_else(|| ahead?.unique.get(&key))
        {
            return Err(Rejection::NotUnique { holder });
        }
        if limits == Limits::Count {
            self.check_place(task, queue)?;
            self.check_room(task, queue, ahead)?;
        }
        Ok(Verdict::New(scoped))
    }

    fn dedup_holder(
        &self,
        key: KeyHash,
        ahead: Option<&Ahead>,
    ) -> Option<(model::Digest, model::TaskId, StateKind)> {
        if let Some(entry) = self.dedup.get(&key) {
            let state = match entry.gone {
                Some(gone) => gone.state,
                None => self.tasks[self.tasks.find(entry.task).expect("it has not gone")].state,
            };
            return Some((entry.digest, entry.task, state));
        }
        ahead?.dedup.get(&key).map(|&(digest, holder)| (digest, holder, StateKind::Ready))
    }

    /// A pinned queue lives in one shard. Whoever places by older settings is told, not followed.
    fn check_place(&self, task: &NewTask, queue: Option<&Queue>) -> Result<(), Rejection> {
        let is_elsewhere =
            queue.is_some_and(Queue::is_pinned) && ShardId::of_queue(&task.queue, self.shards) != self.id;
        if is_elsewhere { Err(Rejection::Moved { queue: task.queue.clone() }) } else { Ok(()) }
    }

    fn check_room(
        &self,
        task: &NewTask,
        queue: Option<&Queue>,
        ahead: Option<&Ahead>,
    ) -> Result<(), Rejection> {
        let Some(queue) = queue else {
            self.check_queues(&task.queue, ahead)?;
            // As it will be once it is made: an atomic request may bring many of its tasks.
            return self.check_queue(&Queue::new(task.queue.clone(), 0), task, ahead);
        };
        self.check_queue(queue, task, ahead)
    }

    fn check_queue(&self, queue: &Queue, task: &NewTask, ahead: Option<&Ahead>) -> Result<(), Rejection> {
        let policy = queue.policy();
        let count = |of: &BTreeMap<QueueName, u64>| of.get(&task.queue).copied().unwrap_or(0);
        let waiting = queue.live() + ahead.map_or(0, |ahead| count(&ahead.tasks));
        if let Some(max) = policy.tasks_max
            && waiting >= queue.share(max, self.shards)
        {
            let queue = task.queue.clone();
            return Err(Rejection::QueueFull { queue, count: waiting, what: "tasks", limit: "tasks_max" });
        }
        let keys = queue.dedup_keys + ahead.map_or(0, |ahead| count(&ahead.dedup_counts));
        if task.wishes().dedup.is_some() && keys >= queue.share(policy.dedup_keys_max, self.shards) {
            let queue = task.queue.clone();
            let (what, limit) = ("dedup keys", "dedup_keys_max");
            return Err(Rejection::QueueFull { queue, count: keys, what, limit });
        }
        Ok(())
    }

    fn check_queues(&self, queue: &QueueName, ahead: Option<&Ahead>) -> Result<(), Rejection> {
        let ahead = ahead.into_iter().flat_map(|ahead| ahead.tasks.keys());
        let others = ahead.filter(|name| *name != queue && self.queues.find(name).is_none());
        let count = (self.queues.len() + others.count()) as u64;
        if count < limits::QUEUES_MAX {
            return Ok(());
        }
        Err(Rejection::TooManyQueues { queue: queue.clone(), count })
    }

    fn insert(&mut self, at: Position, task: NewTask, scoped: &Scoped, effects: &mut Effects) -> Enqueued {
        let no = self.queue_or_new(&task.queue);
        let due = match task.wishes().start {
            Start::Now => None,
            Start::After(delay) if mutant::planted(Mutant::DelayedEarly) => {
                Some(at.wall.after(Millis(delay.0 / 2)))
            }
            Start::After(delay) => Some(at.wall.after(delay)),
            Start::At(due) => Some(due),
        };
        let due = due.filter(|&due| due > at.wall);
        let extra = extra_of(at, &task, scoped, due);
        let slot = self.tasks.insert(Execution {
            id: task.id,
            digest: task.digest.0 as u64,
            enqueued_at: at.wall,
            since: due.unwrap_or(at.wall).millis(),
            when: 0,
            rank: 0,
            fence: Fence::default(),
            extra,
            queue: no,
            kind_hash: task.kind_hash,
            prev: NONE,
            next: NONE,
            attempts: 0,
            lost_in_row: 0,
            priority: task.priority,
            state: StateKind::Ready,
            last: Last::Open,
            flags: Flags::default(),
        });
        self.extras += u64::from(self.tasks[slot].extra.is_some());
        self.touch_new(slot);
        self.take_keys(slot);
        let state = self.enter(slot, due);
        self.touch_queue(no);
        self.queues.at_mut(no).totals.enqueued += 1;
        effects.push_of(slot, Effect::Keep { task: task.id, envelope: task.envelope });
        self.happened(slot, Event::Enqueued { state }, effects);
        Enqueued { id: task.id, duplicate: false, state }
    }

    /// The task's dedup and unique keys refer to it from now on.
    pub(super) fn take_keys(&mut self, slot: Slot) {
        let task = &self.tasks[slot];
        let id = task.id;
        if let Some(dedup) = task.dedup() {
            self.queues.at_mut(task.queue).dedup_keys += 1;
            self.dedup.insert(dedup.key, DedupEntry { task: id, digest: dedup.digest, gone: None });
        }
        if let Some(unique) = task.unique() {
            self.unique.insert(unique.key, id);
        }
    }

    /// Puts a task that is in no line into the one where it begins.
    pub(super) fn enter(&mut self, slot: Slot, due: Option<WallTime>) -> StateKind {
        let blocked = self.line_up(slot);
        let task = &mut self.tasks[slot];
        (task.state, task.when) = match due {
            _ if blocked => (StateKind::Blocked, 0),
            Some(due) => (StateKind::Delayed, due.millis()),
            None => (StateKind::Ready, 0),
        };
        let state = task.state;
        self.join(slot, Side::Back);
        self.arm(slot);
        state
    }
}

fn extra_of(at: Position, task: &NewTask, scoped: &Scoped, due: Option<WallTime>) -> Option<Box<Extra>> {
    let wishes = task.wishes.as_deref()?;
    let extra = Extra {
        order: wishes.order_key.map(|key| OrderPlace { key, seq: 0, prev: NONE, next: NONE }),
        dedup: wishes.dedup.zip(scoped.dedup).map(|(dedup, key)| DedupKey {
            key,
            window: dedup.window,
            digest: task.digest,
        }),
        unique: wishes.unique.zip(scoped.unique).map(|(unique, key)| UniqueKey { key, until: unique.until }),
        hold: wishes.hold,
        retry: wishes.retry,
        expires_at: wishes.expires_in.map(|after| at.wall.after(after)),
        retention: wishes.retention,
        not_before: due.filter(|_| wishes.order_key.is_some()),
    };
    (extra != Extra::default()).then(|| Box::new(extra))
}

impl Ahead {
    fn add(&mut self, task: &NewTask, scoped: &Scoped) {
        *self.tasks.entry(task.queue.clone()).or_default() += 1;
        self.ids.insert(task.id);
        if let Some(key) = scoped.dedup {
            self.dedup.insert(key, (task.digest, task.id));
            *self.dedup_counts.entry(task.queue.clone()).or_default() += 1;
        }
        if let Some(key) = scoped.unique {
            self.unique.insert(key, task.id);
        }
    }
}

impl UniqueKey {
    /// Whether a claim gives the key up.
    pub(super) fn ends_with_claim(self) -> bool {
        self.until == UniqueUntil::Claimed
    }
}
