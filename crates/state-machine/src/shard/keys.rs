//! Order, dedup and unique keys.

use model::{
    Digest, Elapsed, Event, KeyHash, Mutant, NewTask, Position, StateKind, TaskId, WallTime, mutant,
};

use super::Shard;
use super::execution::{Flags, NONE, QueueNo, Slot};
use super::record::Writer;
use super::shift::Side;
use super::timers::Timer;
use crate::effects::Effects;
use crate::machine::Table;

/// The live tasks of one order key, in enqueue order. All but the first are blocked.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderLine {
    pub head: Slot,
    pub tail: Slot,
}

/// Which task a dedup key refers to.
#[derive(Clone, Debug)]
pub(super) struct DedupEntry {
    pub task: TaskId,
    pub digest: Digest,
    /// Set when the task itself has gone before its window was over.
    pub gone: Option<Gone>,
}

/// What is left of a task whose dedup window is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone {
    pub queue: QueueNo,
    pub state: StateKind,
    pub until: WallTime,
}

impl DedupEntry {
    pub(super) fn write(&self, gone: Gone) -> Vec<u8> {
        let mut w = Writer::default();
        super::record::version(&mut w);
        w.u128(self.task.bits());
        w.u128(self.digest.0);
        w.u32(gone.queue);
        w.u8(gone.state as u8);
        w.u64(gone.until.millis());
        w.0
    }
}

/// The keys of a task inside its place: the later ones hold within the place of the first.
pub(super) struct Scoped {
    pub unique: Option<KeyHash>,
    pub dedup: Option<KeyHash>,
}

impl Scoped {
    pub(super) fn of(task: &NewTask, pinned: bool) -> Scoped {
        let wishes = task.wishes();
        let unique = wishes.unique.map(|unique| unique.key);
        let dedup = wishes.dedup.map(|dedup| dedup.key);
        if pinned {
            return Scoped { unique, dedup };
        }
        let within = |key: KeyHash, place: Option<KeyHash>| place.map_or(key, |place| key.within(place));
        Scoped {
            unique: unique.map(|key| within(key, wishes.order_key)),
            dedup: dedup.map(|key| within(key, wishes.order_key.or(unique))),
        }
    }
}

impl Shard {
    /// Puts a task at the end of its order key's line. Whether others are before it.
    pub(super) fn line_up(&mut self, slot: Slot) -> bool {
        let Some(key) = self.tasks[slot].order_key() else { return false };
        let seq = self.counters.back as u64;
        self.counters.back += 1;
        let tail = self.order.get(&key).map_or(NONE, |line| line.tail);
        self.place_mut(slot).expect("it has an order key").seq = seq;
        self.append_to_line(key, tail, slot);
        tail != NONE
    }

    /// Links a task behind the last one of its line.
    pub(super) fn append_to_line(&mut self, key: KeyHash, tail: Slot, slot: Slot) {
        self.link_order(slot, tail, NONE);
        if tail != NONE {
            self.place_mut(tail).expect("it is in a line").next = slot;
        }
        let line = self.order.entry(key).or_insert(OrderLine { head: slot, tail: slot });
        line.tail = slot;
    }

    fn link_order(&mut self, slot: Slot, prev: Slot, next: Slot) {
        let place = self.place_mut(slot).expect("it has an order key");
        (place.prev, place.next) = (prev, next);
    }

    fn place_mut(&mut self, slot: Slot) -> Option<&mut super::execution::OrderPlace> {
        self.tasks[slot].extra.as_mut()?.order.as_mut()
    }

    /// Takes an ended task from its line and lets the next one go on.
    pub(super) fn leave_line(&mut self, at: Position, slot: Slot, effects: &mut Effects) {
        let Some(place) = self.tasks[slot].extra.as_ref().and_then(|extra| extra.order) else { return };
        match place.prev {
            NONE => {}
            prev => self.place_mut(prev).expect("it is in a line").next = place.next,
        }
        match place.next {
            NONE => {}
            next => self.place_mut(next).expect("it is in a line").prev = place.prev,
        }
        // An ended task stays readable: it must not point at slots that others take over.
        self.link_order(slot, NONE, NONE);
        let line = self.order.get_mut(&place.key).expect("a line stays while tasks are in it");
        let was_head = line.head == slot;
        if was_head {
            line.head = place.next;
        }
        if line.tail == slot {
            line.tail = place.prev;
        }
        let head = line.head;
        if head == NONE {
            self.order.remove(&place.key);
        } else if was_head {
            self.unblock(at, head, effects);
        }
    }

    /// What [`Mutant::OrderFreedOnRetry`] does: the next one of the line does not wait for this one.
    pub(super) fn pass(&mut self, at: Position, slot: Slot, effects: &mut Effects) {
        let place = self.tasks[slot].extra.as_ref().and_then(|extra| extra.order);
        if let Some(next) = place.map(|place| place.next).filter(|next| *next != NONE) {
            self.unblock(at, next, effects);
        }
    }

    fn unblock(&mut self, at: Position, slot: Slot, effects: &mut Effects) {
        let task = &self.tasks[slot];
        if mutant::planted(Mutant::OrderFreedOnRetry) && task.state != StateKind::Blocked {
            return;
        }
        debug_assert_eq!(task.state, StateKind::Blocked);
        if self.queues[task.queue].purged(task) {
            // Its end is decided; a pulse brings it.
            return;
        }
        match task.extra.as_ref().and_then(|extra| extra.not_before) {
            Some(due) if due > at.wall => {
                self.shift(slot, StateKind::Delayed, due.millis(), Side::Back);
                self.happened(slot, Event::BecameDelayed, effects);
            }
            _ => self.become_ready(at, slot, effects),
        }
    }

    /// A claimed or ended task gives up its unique key.
    pub(super) fn free_unique(&mut self, slot: Slot) {
        if let Some(unique) = self.tasks[slot].unique() {
            self.touch(slot);
            self.unique.remove(&unique.key);
            self.tasks[slot].flags.set(Flags::UNIQUE_FREED);
        }
    }

    /// An ended task's dedup key is remembered for its window.
    pub(super) fn begin_window(&mut self, at: Position, slot: Slot) {
        let Some(dedup) = self.tasks[slot].dedup() else { return };
        if dedup.window.0 == 0 {
            self.free_dedup(slot);
        } else {
            let until = at.wall.after(dedup.window).millis();
            self.wall_timers.add(until, Timer::Window(dedup.key.into()));
        }
    }

    pub(super) fn free_dedup(&mut self, slot: Slot) {
        if let Some(dedup) = self.tasks[slot].dedup() {
            self.touch(slot);
            self.dedup.remove(&dedup.key);
            self.tasks[slot].flags.set(Flags::DEDUP_FREED);
            self.queues.at_mut(self.tasks[slot].queue).dedup_keys -= 1;
        }
    }

    /// An ended task goes before its window is over: the key stays.
    pub(super) fn keep_dedup(&mut self, slot: Slot) {
        let task = &self.tasks[slot];
        let Some(dedup) = task.dedup() else { return };
        let gone = Gone { queue: task.queue, state: task.state, until: task.ended_at().after(dedup.window) };
        let entry = self.dedup.get_mut(&dedup.key).expect("the key refers to this task");
        entry.gone = Some(gone);
        let value = entry.write(gone);
        self.journal.put(Table::Keys, dedup.key.0.to_be_bytes().to_vec(), value);
    }

    /// A window is over.
    pub(super) fn end_window(&mut self, key: KeyHash) {
        let entry = self.dedup.get(&key).expect("a window's timer is taken back before its key goes");
        match entry.gone {
            None => {
                let slot = self.tasks.find(entry.task).expect("a key that is not gone has its task");
                self.free_dedup(slot);
            }
            Some(gone) => {
                let value = entry.write(gone);
                self.journal.delete(Table::Keys, key.0.to_be_bytes().to_vec(), &value);
                self.dedup.remove(&key);
                self.queues.at_mut(gone.queue).dedup_keys -= 1;
                self.remove_if_dropped(gone.queue);
            }
        }
    }

    /// Forgets a request id.
    pub(super) fn end_request(&mut self, key: KeyHash) {
        let request = self.requests.remove(&key).expect("a request goes by its timer alone");
        self.journal.delete(Table::Requests, key.0.to_be_bytes().to_vec(), &request.write());
    }
}

impl super::Request {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut w = Writer::default();
        super::record::version(&mut w);
        w.u64(self.until.0);
        w.u32(self.claims.len() as u32);
        for (task, fence) in &self.claims {
            w.u128(task.bits());
            w.u64(fence.0);
        }
        w.0
    }

    pub(super) fn read(bytes: &[u8]) -> super::record::Read<super::Request> {
        let r = &mut super::record::Reader(bytes);
        r.version()?;
        let until = Elapsed(r.u64()?);
        let count = r.u32()?;
        let claims = (0..count).map(|_| Ok((r.task()?, model::Fence(r.u64()?)))).collect::<Result<_, _>>()?;
        r.end()?;
        Ok(super::Request { claims, until })
    }
}
