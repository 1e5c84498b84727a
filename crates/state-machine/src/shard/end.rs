//! How a task ends, how long it stays readable, and what is left of it after that.

use model::{
    Event, Fence, Mutant, OnExhausted, Position, Rejection, Reply, Settled, StateKind, TaskId, WallTime,
    limits, mutant,
};

use super::Shard;
use super::execution::{Flags, Last, QueueNo, Slot};
use super::journal::{execution_key, hash_outcome};
use super::lists::{DEAD, ENDED, ENDED_OWN};
use super::outcomes::Outcome;
use super::record::Read;
use super::shift::Side;
use super::timers::Timer;
use crate::effects::{Effect, Effects};
use crate::machine::Table;

/// Whose retention a timer is about.
pub(super) const RETAINED: [usize; 2] = [ENDED, DEAD];

/// Ended tasks forgotten by one end, when a policy's bounds were lowered. The next ends go on.
const PRUNED_AT_ONCE_MAX: usize = 64;

/// Outcomes in one record of a checkpoint, a little less than what fills a page of 16 KiB there: all since the last one are many
/// megabytes under load.
const OUTCOMES_BYTES: usize = 15 * 1024;

/// A call with a token: it holds the task, or its answer is known.
pub(super) enum Held {
    /// The claim is current.
    Yes(Slot),
    /// The call was made before, with this answer.
    Answered(Settled),
}

/// Which call asks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Ack,
    Fail,
    Other,
}

impl Shard {
    /// Whether `fence` holds the task, was answered before, or why not.
    pub(super) fn held(&self, id: TaskId, given: Fence, verb: Verb) -> Result<Held, Rejection> {
        let Some(slot) = self.tasks.find(id) else { return self.held_outcome(id, given, verb) };
        let task = &self.tasks[slot];
        let state = task.state;
        let is_planted = mutant::planted(Mutant::AckWithoutFence) && verb == Verb::Ack;
        if given != task.fence && !is_planted {
            return Err(Rejection::StaleToken { id, given, current: task.fence });
        }
        if state == StateKind::Claimed {
            return Ok(Held::Yes(slot));
        }
        let attempt = u32::from(task.attempts);
        let settled = match (verb, task.last) {
            (Verb::Ack, Last::Acked) | (Verb::Fail, Last::FailedForGood) => {
                Settled { id, state, attempt, due: None }
            }
            (Verb::Fail, Last::FailedForNow) if !state.is_ended() => {
                let due = Some(WallTime::from_millis(task.since));
                Settled { id, state: StateKind::Retrying, attempt, due }
            }
            _ if state.is_ended() => return Err(Rejection::AlreadyEnded { id, state }),
            _ => return Err(Rejection::NotClaimed { id, state }),
        };
        Ok(Held::Answered(settled))
    }

    /// The task that `fence` holds, or why it does not.
    pub(super) fn holding(&self, id: TaskId, fence: Fence) -> Result<Slot, Rejection> {
        match self.held(id, fence, Verb::Other)? {
            Held::Yes(slot) => Ok(slot),
            Held::Answered(_) => unreachable!("only an ack or a fail is answered again"),
        }
    }

    fn held_outcome(&self, id: TaskId, given: Fence, verb: Verb) -> Result<Held, Rejection> {
        let outcome = self.outcomes.find(id).ok_or(Rejection::NotFound { id })?;
        if outcome.fence != given {
            return Err(Rejection::StaleToken { id, given, current: outcome.fence });
        }
        match (verb, outcome.last) {
            (Verb::Ack, Last::Acked) | (Verb::Fail, Last::FailedForGood) => Ok(Held::Answered(Settled {
                id,
                state: outcome.state,
                attempt: outcome.attempts.into(),
                due: None,
            })),
            _ => Err(Rejection::AlreadyEnded { id, state: outcome.state }),
        }
    }

    /// Ends a task that nobody holds any more: keys, line, retention.
    /// The answer is made before the bounds may take the task itself.
    pub(super) fn end(&mut self, at: Position, slot: Slot, state: StateKind, effects: &mut Effects) -> Reply {
        debug_assert!(state.is_ended() && !self.claims.contains_key(&slot));
        self.shift(slot, state, at.wall.millis(), Side::Back);
        self.tasks[slot].flags.clear(Flags::CANCEL);
        self.tasks[slot].since = at.elapsed.0;
        self.free_unique(slot);
        self.begin_window(at, slot);
        self.leave_line(at, slot, effects);
        let no = self.tasks[slot].queue;
        if state == StateKind::Dead {
            self.touch_queue(no);
            self.queues.at_mut(no).totals.dead += 1;
        }
        let settled = self.settled(slot);
        self.retain(at, slot, effects);
        settled
    }

    /// Sees to it that an ended task stays as long as it may, and no longer.
    pub(super) fn retain(&mut self, at: Position, slot: Slot, effects: &mut Effects) {
        let task = &self.tasks[slot];
        let no = task.queue;
        match task.own_retention_end() {
            Some(until) => self.wall_timers.add(until.millis(), Timer::OwnRetention(task.id.into())),
            None => self.arm_retention(no),
        }
        self.prune(at, no, effects);
    }

    /// Ends a task without a worker's word.
    pub(super) fn end_because(
        &mut self,
        at: Position,
        slot: Slot,
        state: StateKind,
        reason: String,
        effects: &mut Effects,
    ) -> Reply {
        self.happened(slot, Event::Ended { state, reason }, effects);
        self.end(at, slot, state, effects)
    }

    /// A waiting task's time has passed.
    pub(super) fn expire(&mut self, at: Position, slot: Slot, effects: &mut Effects) {
        let reason = "its time passed before it was claimed".to_owned();
        self.end_because(at, slot, StateKind::Expired, reason, effects);
    }

    /// The end of a task whose attempts are used up.
    pub(super) fn exhausted(&self, slot: Slot) -> StateKind {
        match self.queues[self.tasks[slot].queue].policy().on_exhausted {
            OnExhausted::Dead => StateKind::Dead,
            OnExhausted::Discard => StateKind::Failed,
        }
    }

    /// Forgets the oldest ended and dead tasks over the queue's bounds.
    fn prune(&mut self, at: Position, no: QueueNo, effects: &mut Effects) {
        let queue = &self.queues[no];
        let retained_max = queue.share(queue.policy().retained_max, self.shards);
        let dead_max = queue.share(queue.policy().dead_max, self.shards);
        for _ in 0..PRUNED_AT_ONCE_MAX {
            let queue = &self.queues[no];
            let oldest = if queue.lists[ENDED].len + queue.lists[ENDED_OWN].len > retained_max {
                let heads = [self.first(ENDED, no), self.first(ENDED_OWN, no)].into_iter().flatten();
                heads.min_by_key(|&slot| self.tasks[slot].rank)
            } else if queue.lists[DEAD].len > dead_max {
                self.first(DEAD, no)
            } else {
                return;
            };
            self.forget(at, oldest.expect("the line is not empty"), effects);
        }
    }

    /// Removes an ended task; its final fence's outcome stays for its time.
    pub(super) fn forget(&mut self, at: Position, slot: Slot, effects: &mut Effects) {
        self.touch_last(slot);
        self.keep_dedup(slot);
        self.keep_outcome(at, slot);
        self.end_retention(slot);
        self.leave(slot);
        let task = self.tasks.remove(slot);
        self.extras -= u64::from(task.extra.is_some());
        effects.push_of(slot, Effect::Forget { task: task.id });
        self.remove_if_dropped(task.queue);
    }

    /// An ended task goes, or comes back: its own retention no longer counts.
    pub(super) fn end_retention(&mut self, slot: Slot) {
        let task = &self.tasks[slot];
        if let Some(until) = task.own_retention_end() {
            self.wall_timers.remove(until.millis(), Timer::OwnRetention(task.id.into()));
        }
    }

    fn keep_outcome(&mut self, at: Position, slot: Slot) {
        let task = &self.tasks[slot];
        let until = model::Elapsed(task.since).after(limits::OUTCOME_KEPT);
        let answered = matches!(task.last, Last::Acked | Last::FailedForGood);
        if !answered || until <= at.elapsed {
            return;
        }
        // Numbers grow with the time of forgetting, and that is the order in which they go: an
        // outcome may stay a little longer than it must, never shorter.
        let until = self.outcomes.last().map_or(until, |last| last.until.max(until));
        let outcome = Outcome {
            seq: self.counters.outcome,
            task: task.id,
            fence: task.fence,
            last: task.last,
            state: task.state,
            attempts: task.attempts,
            until,
        };
        self.counters.outcome += 1;
        let fresh = &mut self.outcomes.fresh_bytes;
        if fresh.0.is_empty() {
            super::record::version(fresh);
        }
        let start = fresh.0.len();
        outcome.write(fresh);
        self.journal.add_hash(hash_outcome(&fresh.0[start..]));
        let is_full = fresh.0.len() >= OUTCOMES_BYTES;
        self.outcomes.push(outcome);
        if is_full {
            self.store_outcomes();
        }
    }

    /// Lets the oldest outcome go, if its time has come.
    pub(super) fn forget_outcome(&mut self, at: Position) -> bool {
        if self.outcomes.first().is_none_or(|outcome| outcome.until > at.elapsed) {
            return false;
        }
        let outcome = self.outcomes.pop().expect("it was just seen");
        self.counters.first_outcome = outcome.seq + 1;
        self.journal.subtract_outcome(&outcome);
        if let Some(&(first, last)) = self.outcomes.chunks.front()
            && last <= outcome.seq
        {
            self.outcomes.chunks.pop_front();
            self.journal.store(Table::Outcomes, first.to_be_bytes().to_vec(), None);
        }
        true
    }

    /// Writes the outcomes that no record has yet as one.
    pub(super) fn store_outcomes(&mut self) {
        let (first, last) = (self.outcomes.fresh, self.counters.outcome - 1);
        self.outcomes.fresh = self.counters.outcome;
        let bytes = std::mem::take(&mut self.outcomes.fresh_bytes).0;
        // Where none is left all of them have gone already, and nobody would remove the record.
        if !bytes.is_empty() && self.outcomes.len() > 0 {
            self.outcomes.chunks.push_back((first, last));
            self.journal.store(Table::Outcomes, first.to_be_bytes().to_vec(), Some(bytes));
        }
    }

    /// Sees to it that the retention of a queue's ended and dead tasks is looked at in time.
    pub(super) fn arm_retention(&mut self, no: QueueNo) {
        for (which, list) in RETAINED.into_iter().enumerate() {
            let queue = &self.queues[no];
            if queue.retention_armed[which].is_none() && queue.lists[list].len > 0 {
                let due = self.retention_due(no, which).expect("the line is not empty").millis();
                self.retention.insert((due, no, which));
                self.queues.at_mut(no).retention_armed[which] = Some(due);
            }
        }
    }

    /// As [`Shard::arm_retention`], after the policy changed.
    pub(super) fn rearm_retention(&mut self, no: QueueNo) {
        for which in 0..RETAINED.len() {
            if let Some(due) = self.queues.at_mut(no).retention_armed[which].take() {
                self.retention.remove(&(due, no, which));
            }
        }
        self.arm_retention(no);
    }

    /// When the first of a queue's ended, or dead, tasks may go.
    pub(super) fn retention_due(&self, no: QueueNo, which: usize) -> Option<WallTime> {
        let head = self.first(RETAINED[which], no)?;
        let policy = self.queues[no].policy();
        let retention = if which == 0 { policy.retention } else { policy.dead_retention };
        Some(self.tasks[head].ended_at().after(retention))
    }

    /// What a settled task looks like to its caller.
    pub(super) fn settled(&self, slot: Slot) -> Reply {
        let task = &self.tasks[slot];
        let due = match task.state {
            StateKind::Delayed => Some(WallTime::from_millis(task.when)),
            StateKind::Retrying => Some(WallTime::from_millis(task.since)),
            _ => None,
        };
        let attempt = u32::from(task.attempts);
        Reply::Settled(Settled { id: task.id, state: task.state, attempt, due })
    }
}

/// Kept beside the writer so that both agree on the key's form.
pub(super) fn id_of_key(key: &[u8]) -> Read<TaskId> {
    let bits: [u8; 16] = key.try_into().map_err(|_| "a key is not 16 bytes long")?;
    let id = TaskId::from_bits(u128::from_be_bytes(bits)).ok_or("a task id is none")?;
    debug_assert_eq!(execution_key(id), key);
    Ok(id)
}
