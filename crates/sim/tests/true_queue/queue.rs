//! A queue that keeps every promise: one list of tasks in memory, every deed at one moment.

use std::collections::BTreeMap;

use model::{ShardId, StateKind, TaskId, WallTime};

/// Lost claims in a row that end a task.
const POISON_AFTER: u32 = 5;
/// How long a dedup key is remembered after the end.
pub(crate) const WINDOW_US: u64 = 20_000_000;
pub(crate) const SHARDS: u16 = 2;

/// What a new task is.
#[derive(Clone, Debug)]
pub(crate) struct New {
    pub(crate) payload: u64,
    pub(crate) order: Option<u64>,
    pub(crate) dedup: Option<u64>,
    pub(crate) delay_us: u64,
    pub(crate) attempts_max: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) new: New,
    pub(crate) state: StateKind,
    pub(crate) attempts: u32,
    pub(crate) fence: u64,
    due: u64,
    lost_in_row: u32,
    cancel: bool,
    place: u64,
    ended_at: u64,
    /// How its last fence was settled, for the same again.
    settled: Option<(&'static str, StateKind, u32)>,
    /// Whose session holds it.
    session: Option<usize>,
}

/// A refusal, by its code.
pub(crate) type Code = &'static str;

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) tasks: BTreeMap<TaskId, Task>,
    pub(crate) fences: [u64; SHARDS as usize + 1],
    pub(crate) places: u64,
    pub(crate) enqueued: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) dead: u64,
    pub(crate) freed: u64,
    /// How much faster its clock runs, in millionths, and how far its wall clock may jump ahead.
    pub(crate) drift_ppm: u64,
    pub(crate) skew_us: u64,
}

pub(crate) struct Given {
    pub(crate) task: TaskId,
    pub(crate) payload: u64,
    pub(crate) fence: u64,
    pub(crate) attempt: u32,
}

impl Queue {
    /// What is due by now.
    pub(crate) fn pulse(&mut self, now: u64) {
        let due: Vec<TaskId> =
            self.tasks.values().filter(|task| task.due <= now).map(|task| task.id).collect();
        for id in due {
            match self.tasks[&id].state {
                StateKind::Claimed => self.free(id, now, true),
                StateKind::Delayed | StateKind::Retrying => self.become_ready(id),
                _ => {}
            }
        }
    }

    /// How long so many microseconds of a node's clock take.
    fn elapsed(&self, us: u64) -> u64 {
        us - us * self.drift_ppm / 1_000_000
    }

    /// The same by its wall clock, which jumps ahead meanwhile.
    fn by_wall(&self, us: u64) -> u64 {
        self.elapsed(us).saturating_sub(self.skew_us)
    }

    fn task(&mut self, id: TaskId) -> &mut Task {
        self.tasks.get_mut(&id).expect("it is never forgotten")
    }

    fn become_ready(&mut self, id: TaskId) {
        let task = self.task(id);
        task.state = StateKind::Ready;
        task.due = u64::MAX;
    }

    fn end(&mut self, id: TaskId, now: u64, state: StateKind) {
        self.dead += u64::from(state == StateKind::Dead);
        let task = self.task(id);
        task.state = state;
        task.due = u64::MAX;
        task.ended_at = now;
        task.cancel = false;
    }

    fn free(&mut self, id: TaskId, now: u64, is_lost: bool) {
        self.freed += 1;
        let task = self.task(id);
        task.attempts += u32::from(is_lost);
        task.lost_in_row += u32::from(is_lost);
        let used_up = task.attempts >= task.new.attempts_max || task.lost_in_row >= POISON_AFTER;
        if task.cancel {
            self.end(id, now, StateKind::Cancelled);
        } else if is_lost && used_up {
            self.end(id, now, StateKind::Dead);
        } else {
            self.become_ready(id);
        }
    }

    /// Takes a task in: its id, and whether it was there already.
    pub(crate) fn enqueue(&mut self, now: u64, new: &New) -> (TaskId, bool) {
        if let Some(key) = new.dedup {
            let holder = self.tasks.values().find(|task| {
                let remembered = !task.state.is_ended() || now < task.ended_at + self.by_wall(WINDOW_US);
                task.new.dedup == Some(key) && task.new.order == new.order && remembered
            });
            if let Some(holder) = holder {
                return (holder.id, true);
            }
        }
        self.enqueued += 1;
        self.places += 1;
        let placed = new.order.or(new.dedup).unwrap_or(new.payload);
        let shard = ShardId::new(1 + (placed % u64::from(SHARDS)) as u16).unwrap();
        let id = TaskId::new(shard, WallTime::from_millis(now / 1000), self.places);
        let is_delayed = new.delay_us > 0;
        let task = Task {
            id,
            new: new.clone(),
            state: if is_delayed { StateKind::Delayed } else { StateKind::Ready },
            attempts: 0,
            fence: 0,
            due: if is_delayed { now + self.by_wall(new.delay_us) } else { u64::MAX },
            lost_in_row: 0,
            cancel: false,
            place: self.places,
            ended_at: 0,
            settled: None,
            session: None,
        };
        self.tasks.insert(id, task);
        (id, false)
    }

    fn is_next(&self, task: &Task) -> bool {
        let before = |other: &Task| {
            other.new.order == task.new.order && other.place < task.place && !other.state.is_ended()
        };
        task.state == StateKind::Ready && (task.new.order.is_none() || !self.tasks.values().any(before))
    }

    /// Gives the oldest ready tasks of a shard.
    pub(crate) fn claim(
        &mut self,
        now: u64,
        shard: ShardId,
        max: usize,
        hold_us: u64,
        session: Option<usize>,
    ) -> Vec<Given> {
        let hold_us = self.elapsed(hold_us);
        let ready = self.tasks.values().filter(|task| task.id.shard() == shard && self.is_next(task));
        let mut ready: Vec<(u64, TaskId)> = ready.map(|task| (task.place, task.id)).collect();
        ready.sort_unstable();
        let mut given: Vec<Given> = Vec::new();
        for (_, id) in ready.into_iter().take(max) {
            // The one before it in its line may have been given just now; it has not ended.
            if !self.is_next(&self.tasks[&id]) {
                continue;
            }
            let fence = &mut self.fences[usize::from(shard.number())];
            *fence += 1;
            let fence = *fence;
            let task = self.task(id);
            task.state = StateKind::Claimed;
            task.fence = fence;
            task.due = now + hold_us;
            task.settled = None;
            task.session = session;
            let (payload, attempt) = (task.new.payload, task.attempts + 1);
            given.push(Given { task: id, payload, fence, attempt });
        }
        given
    }

    /// Whether a claim still holds: what a repeated request is told.
    pub(crate) fn holds(&self, id: TaskId, fence: u64) -> bool {
        self.tasks[&id].state == StateKind::Claimed && self.tasks[&id].fence == fence
    }

    fn held(&self, id: TaskId, fence: u64, verb: &str) -> Result<Option<(StateKind, u32)>, Code> {
        let task = &self.tasks[&id];
        if task.fence != fence {
            return Err("stale_token");
        }
        match task.settled {
            _ if task.state == StateKind::Claimed => Ok(None),
            // After a retry the stored answer is good until the task ends in another way.
            Some((by, state, attempt)) if by == verb && (state.is_ended() || !task.state.is_ended()) => {
                Ok(Some((state, attempt)))
            }
            _ if task.state.is_ended() => Err("already_ended"),
            _ => Err("not_claimed"),
        }
    }

    pub(crate) fn ack(&mut self, now: u64, id: TaskId, fence: u64, then: &[New]) -> Result<StateKind, Code> {
        if self.held(id, fence, "ack")?.is_some() {
            return Ok(StateKind::Done);
        }
        self.done += 1;
        self.task(id).settled = Some(("ack", StateKind::Done, 0));
        self.end(id, now, StateKind::Done);
        for new in then {
            self.enqueue(now, new);
        }
        Ok(StateKind::Done)
    }

    pub(crate) fn fail(
        &mut self,
        now: u64,
        id: TaskId,
        fence: u64,
        retry_us: u64,
        fatal: bool,
    ) -> Result<(StateKind, u32), Code> {
        if let Some(stored) = self.held(id, fence, "fail")? {
            return Ok(stored);
        }
        self.failed += 1;
        let retry_us = self.elapsed(retry_us);
        let task = self.task(id);
        task.attempts += 1;
        task.lost_in_row = 0;
        let attempts = task.attempts;
        let end = if task.cancel {
            Some(StateKind::Cancelled)
        } else {
            (fatal || attempts >= task.new.attempts_max).then_some(StateKind::Dead)
        };
        match end {
            Some(end) => self.end(id, now, end),
            None => {
                task.state = StateKind::Retrying;
                task.due = now + retry_us;
            }
        }
        let state = end.unwrap_or(StateKind::Retrying);
        self.task(id).settled = Some(("fail", state, attempts));
        Ok((state, attempts))
    }

    pub(crate) fn release(
        &mut self,
        now: u64,
        id: TaskId,
        fence: u64,
        delay_us: u64,
    ) -> Result<StateKind, Code> {
        self.held(id, fence, "release")?;
        self.free(id, now, false);
        let delay_us = self.by_wall(delay_us);
        let task = self.task(id);
        if task.state == StateKind::Ready && delay_us > 0 {
            task.state = StateKind::Delayed;
            task.due = now + delay_us;
        }
        Ok(task.state)
    }

    pub(crate) fn extend(&mut self, now: u64, id: TaskId, fence: u64, hold_us: u64) -> Result<(), Code> {
        self.held(id, fence, "extend")?;
        let hold_us = self.elapsed(hold_us);
        self.task(id).due = now + hold_us;
        Ok(())
    }

    pub(crate) fn put_back(&mut self, now: u64, id: TaskId) -> Result<StateKind, Code> {
        if self.tasks[&id].state != StateKind::Claimed {
            return Err("not_claimed");
        }
        self.free(id, now, false);
        Ok(self.tasks[&id].state)
    }

    fn in_state(&self, which: impl Fn(&Task) -> bool) -> Vec<TaskId> {
        self.tasks.values().filter(|task| which(task)).map(|task| task.id).collect()
    }

    /// A session is lost: its claims are free.
    pub(crate) fn lose(&mut self, now: u64, session: usize) {
        for id in self.in_state(|task| task.state == StateKind::Claimed && task.session == Some(session)) {
            self.free(id, now, true);
        }
    }

    pub(crate) fn put_back_all(&mut self, now: u64) {
        for id in self.in_state(|task| task.state == StateKind::Claimed) {
            self.free(id, now, false);
        }
    }

    pub(crate) fn requeue_all(&mut self) {
        for id in self.in_state(|task| task.state == StateKind::Dead) {
            let _ = self.requeue(id);
        }
    }

    /// Cancels what waits.
    pub(crate) fn purge(&mut self, now: u64) {
        for id in self.in_state(|task| task.state.is_waiting()) {
            self.end(id, now, StateKind::Cancelled);
        }
    }

    pub(crate) fn discard(&mut self, now: u64, id: TaskId) -> Result<StateKind, Code> {
        let state = self.tasks[&id].state;
        if state.is_ended() && state != StateKind::Dead {
            return Err("already_ended");
        }
        self.end(id, now, StateKind::Cancelled);
        Ok(StateKind::Cancelled)
    }

    pub(crate) fn cancel(&mut self, now: u64, id: TaskId) -> Result<StateKind, Code> {
        match self.tasks[&id].state {
            state if state.is_ended() => return Err("already_ended"),
            StateKind::Claimed => self.task(id).cancel = true,
            _ => self.end(id, now, StateKind::Cancelled),
        }
        Ok(self.tasks[&id].state)
    }

    pub(crate) fn requeue(&mut self, id: TaskId) -> Result<StateKind, Code> {
        if !matches!(self.tasks[&id].state, StateKind::Dead | StateKind::Cancelled) {
            return Err("not_ready");
        }
        let (dedup, order) = (self.tasks[&id].new.dedup, self.tasks[&id].new.order);
        let taken = |other: &Task| other.id != id && other.new.dedup == dedup && other.new.order == order;
        // The newest task of a key has it.
        if dedup.is_some() && self.tasks.values().any(|other| taken(other) && other.id > id) {
            return Err("not_unique");
        }
        self.places += 1;
        let place = self.places;
        let task = self.task(id);
        (task.attempts, task.lost_in_row, task.place, task.settled) = (0, 0, place, None);
        self.become_ready(id);
        Ok(StateKind::Ready)
    }
}
