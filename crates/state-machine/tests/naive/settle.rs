//! What a worker or a person does to one task, in the naive model.

use model::command::{Ack, Fail, OnTask};
use model::{
    Fence, FreedReason, FreedTo, Millis, OnExhausted, QueueName, Recovery, Rejection, Reply, SessionId,
    Settled, StateKind, TaskId,
};

use super::{GoneKey, KEPT, Naive, Outcome, St, Task, Verb};

/// What a fence is good for.
enum Checked {
    /// The task is claimed under it.
    Holds(usize),
    /// This very call was answered before.
    Again(Settled),
}

impl Naive {
    fn check(&self, id: TaskId, given: Fence, verb: Option<Verb>) -> Result<Checked, Rejection> {
        let Some(i) = self.find(id) else { return self.check_gone(id, given, verb) };
        let task = &self.tasks[i];
        if task.fence != given {
            return Err(Rejection::StaleToken { id, given, current: task.fence });
        }
        let same = task.answer.filter(|(answered, _)| Some(*answered) == verb).map(|(_, settled)| settled);
        let state = task.kind();
        match (&task.st, same) {
            (St::Claimed(_), _) => Ok(Checked::Holds(i)),
            (_, Some(settled)) => Ok(Checked::Again(settled)),
            (St::Ended { .. }, None) => Err(Rejection::AlreadyEnded { id, state }),
            (_, None) => Err(Rejection::NotClaimed { id, state }),
        }
    }

    fn check_gone(&self, id: TaskId, given: Fence, verb: Option<Verb>) -> Result<Checked, Rejection> {
        let of_task = |outcome: &&Outcome| outcome.settled.id == id;
        let Some(outcome) = self.outcomes.iter().find(of_task) else {
            return Err(Rejection::NotFound { id });
        };
        if outcome.fence != given {
            return Err(Rejection::StaleToken { id, given, current: outcome.fence });
        }
        if Some(outcome.verb) == verb {
            return Ok(Checked::Again(outcome.settled));
        }
        Err(Rejection::AlreadyEnded { id, state: outcome.settled.state })
    }

    fn check_hold(&self, id: TaskId, given: Fence) -> Result<usize, Rejection> {
        match self.check(id, given, None)? {
            Checked::Holds(i) => Ok(i),
            Checked::Again(_) => unreachable!("only an ack or a fail has a stored answer"),
        }
    }

    fn check_on(&self, on: OnTask) -> Result<usize, Rejection> {
        let i = self.find(on.task).ok_or(Rejection::NotFound { id: on.task })?;
        let current = self.tasks[i].fence;
        match on.fence.filter(|given| *given != current) {
            Some(given) => Err(Rejection::StaleToken { id: on.task, given, current }),
            None => Ok(i),
        }
    }

    pub(crate) fn settled(&self, i: usize) -> Settled {
        let task = &self.tasks[i];
        let due = match task.st {
            St::Delayed { due } => Some(due),
            St::Retrying { .. } => Some(task.since),
            _ => None,
        };
        Settled { id: task.id, state: task.kind(), attempt: task.attempts, due }
    }

    // ---- by token ----

    pub(super) fn ack(&mut self, ack: &Ack) -> Result<Settled, Rejection> {
        let i = match self.check(ack.task, ack.fence, Some(Verb::Ack))? {
            Checked::Holds(i) => i,
            Checked::Again(settled) => return Ok(settled),
        };
        let queue = self.tasks[i].queue.clone();
        self.queue_mut(&queue).totals.done += 1;
        let settled = self.end(i, StateKind::Done, Some(Verb::Ack));
        for (n, follow_up) in ack.then.iter().enumerate() {
            self.follow_up(ack.task, ack.fence, n as u32, follow_up);
        }
        Ok(settled)
    }

    pub(super) fn fail(&mut self, fail: &Fail) -> Result<Settled, Rejection> {
        let i = match self.check(fail.task, fail.fence, Some(Verb::Fail))? {
            Checked::Holds(i) => i,
            Checked::Again(settled) => return Ok(settled),
        };
        let queue = self.tasks[i].queue.clone();
        self.queue_mut(&queue).totals.failed += 1;
        let policy = self.retry_policy(i);
        let wall = self.wall;
        let cancelled = self.tasks[i].held().cancel;
        let task = &mut self.tasks[i];
        task.attempts += 1;
        task.lost = 0;
        let age = wall.since(task.enqueued_at);
        let exhausted =
            fail.fatal || task.attempts >= policy.attempts || policy.age_max.is_some_and(|max| age >= max);
        if cancelled {
            return Ok(self.end(i, StateKind::Cancelled, Some(Verb::Fail)));
        }
        if exhausted {
            let end = self.exhausted_end(i);
            return Ok(self.end(i, end, Some(Verb::Fail)));
        }
        if self.tasks[i].has_expired(wall) {
            return Ok(self.end(i, StateKind::Expired, Some(Verb::Fail)));
        }
        let task = &self.tasks[i];
        let delay = fail.retry_in.unwrap_or(state_machine::backoff(&policy, task.id, task.attempts));
        self.enter(i, St::Retrying { due: self.elapsed.after(delay) });
        self.tasks[i].since = wall.after(delay);
        let settled = self.settled(i);
        self.tasks[i].answer = Some((Verb::Fail, settled));
        Ok(settled)
    }

    fn exhausted_end(&self, i: usize) -> StateKind {
        match self.settings(&self.tasks[i].queue).policy.on_exhausted {
            OnExhausted::Dead => StateKind::Dead,
            OnExhausted::Discard => StateKind::Failed,
        }
    }

    pub(super) fn extend(
        &mut self,
        id: TaskId,
        fence: Fence,
        hold: Option<Millis>,
    ) -> Result<Reply, Rejection> {
        let i = self.check_hold(id, fence)?;
        let elapsed = self.elapsed;
        let held = self.tasks[i].held();
        held.deadline = elapsed.after(hold.unwrap_or(held.hold));
        Ok(self.held_reply(i))
    }

    fn held_reply(&mut self, i: usize) -> Reply {
        let held = self.tasks[i].held().clone();
        Reply::Held { deadline: self.wall_of(held.deadline), cancel_requested: held.cancel }
    }

    pub(super) fn progress(
        &mut self,
        id: TaskId,
        fence: Fence,
        percent: u8,
        note: &str,
    ) -> Result<Reply, Rejection> {
        let i = self.check_hold(id, fence)?;
        self.tasks[i].held().progress = Some((percent, note.to_owned()));
        Ok(self.held_reply(i))
    }

    pub(super) fn release(&mut self, id: TaskId, fence: Fence, delay: Millis) -> Result<Settled, Rejection> {
        let i = self.check_hold(id, fence)?;
        if let Some(ended) = self.free(i, FreedReason::Released) {
            return Ok(ended);
        }
        if delay > Millis(0) {
            self.enter(i, St::Delayed { due: self.wall.after(delay) });
        } else {
            self.line_up(i);
        }
        Ok(self.settled(i))
    }

    // ---- by hand ----

    pub(super) fn put_back(&mut self, on: OnTask) -> Result<Settled, Rejection> {
        let i = self.check_on(on)?;
        let state = self.tasks[i].kind();
        if state != StateKind::Claimed {
            return Err(Rejection::NotClaimed { id: on.task, state });
        }
        if let Some(ended) = self.free(i, FreedReason::PutBack) {
            return Ok(ended);
        }
        self.line_up(i);
        Ok(self.settled(i))
    }

    pub(super) fn discard(&mut self, on: OnTask) -> Result<Settled, Rejection> {
        let i = self.check_on(on)?;
        let state = self.tasks[i].kind();
        if state.is_ended() && state != StateKind::Dead {
            return Err(Rejection::AlreadyEnded { id: on.task, state });
        }
        if state == StateKind::Dead {
            return Ok(self.relabel(i));
        }
        Ok(self.end(i, StateKind::Cancelled, None))
    }

    /// A dead letter that is thrown away ends anew: it can be brought back for its retention.
    fn relabel(&mut self, i: usize) -> Settled {
        self.ended += 1;
        let (kind, at, at_elapsed, nth) = (StateKind::Cancelled, self.wall, self.elapsed, self.ended);
        let task = &mut self.tasks[i];
        task.st = St::Ended { kind, at, at_elapsed, nth };
        task.answer = None;
        if let (Some(dedup), true) = (task.dedup, task.dedup_held) {
            task.dedup_until = Some(at.after(dedup.window));
        }
        let queue = task.queue.clone();
        let settled = self.settled(i);
        self.keep_within_bounds(&queue);
        settled
    }

    pub(super) fn cancel(&mut self, id: TaskId) -> Result<Settled, Rejection> {
        let i = self.find(id).ok_or(Rejection::NotFound { id })?;
        let state = self.tasks[i].kind();
        if state.is_ended() {
            return Err(Rejection::AlreadyEnded { id, state });
        }
        if state == StateKind::Claimed {
            self.tasks[i].held().cancel = true;
            return Ok(self.settled(i));
        }
        Ok(self.end(i, StateKind::Cancelled, None))
    }

    pub(super) fn requeue(&mut self, on: OnTask) -> Result<Settled, Rejection> {
        let i = self.check_on(on)?;
        let task = &self.tasks[i];
        let state = task.kind();
        match state {
            StateKind::Dead | StateKind::Failed | StateKind::Cancelled => {}
            StateKind::Done | StateKind::Expired => {
                return Err(Rejection::AlreadyEnded { id: on.task, state });
            }
            _ => return Err(Rejection::NotEnded { id: on.task, state }),
        }
        let dedup = task.dedup.and_then(|dedup| self.dedup_holder(dedup.key)).map(|(holder, _, _)| holder);
        let unique = task.unique.and_then(|unique| self.unique_holder(unique.key));
        if let Some(holder) = unique.or(dedup.filter(|holder| *holder != on.task)) {
            return Err(Rejection::NotUnique { holder });
        }
        let queue = task.queue.clone();
        self.use_queue(&queue);
        self.seq += 1;
        let seq = self.seq;
        let task = &mut self.tasks[i];
        task.seq = seq;
        task.start = None;
        task.attempts = 0;
        task.lost = 0;
        task.answer = None;
        task.dedup_held = task.dedup.is_some();
        task.dedup_until = None;
        task.unique_held = task.unique.is_some();
        // A person brings it back: it runs, however late.
        task.expires_at = None;
        task.st = St::Blocked;
        self.take_turn(i);
        Ok(self.settled(i))
    }

    /// Marks all that waits now: the ready ones as they would be claimed, then the others, state by
    /// state, as they came.
    pub(super) fn purge(&mut self, name: &QueueName) -> Result<u64, Rejection> {
        if self.queue(name).is_none() {
            return Err(Rejection::UnknownQueue { queue: name.clone() });
        }
        let place = |task: &Task| match task.st {
            St::Ready => Some((task.priority, task.line)),
            St::Delayed { .. } => Some((10, task.line)),
            St::Retrying { .. } => Some((11, task.line)),
            St::Blocked => Some((12, task.line)),
            _ => None,
        };
        let mut waiting: Vec<_> = (0..self.tasks.len())
            .filter(|i| self.tasks[*i].queue == *name && self.tasks[*i].marked.is_none())
            .filter_map(|i| Some((place(&self.tasks[i])?, i)))
            .collect();
        waiting.sort();
        for (_, i) in waiting {
            self.marked += 1;
            self.tasks[i].marked = Some(self.marked);
        }
        let marked = |task: &&Task| task.queue == *name && task.marked.is_some();
        Ok(self.tasks.iter().filter(marked).count() as u64)
    }

    pub(super) fn end_session(&mut self, session: SessionId, reason: FreedReason) -> u64 {
        let of_session = |i: &usize| match &self.tasks[*i].st {
            St::Claimed(held) => held.session == Some(session),
            _ => false,
        };
        let freed: Vec<_> = (0..self.tasks.len())
            .filter(of_session)
            .filter(|i| !reason.uses_attempt() || self.recovery(*i) == Recovery::Auto)
            .map(|i| self.tasks[i].id)
            .collect();
        self.free_many(&freed, reason);
        freed.len() as u64
    }

    pub(crate) fn recovery(&self, i: usize) -> Recovery {
        self.settings(&self.tasks[i].queue).policy.recovery
    }

    // ---- what all of these share ----

    /// Frees claims at once: at the front they keep the order in which they were claimed.
    pub(crate) fn free_many(&mut self, ids: &[TaskId], reason: FreedReason) {
        let mut ids = ids.to_vec();
        ids.sort_by_key(|id| self.tasks[self.find(*id).expect("it is claimed")].fence);
        let to = |this: &Naive, id: &TaskId| this.freed_to(this.find(*id).expect("it is claimed"));
        let (front, back): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| to(self, id) == FreedTo::Front);
        // Whoever goes to the front last stands first.
        for id in front.into_iter().rev().chain(back) {
            let i = self.find(id).expect("freeing one forgets no claimed one");
            if self.free(i, reason).is_none() {
                self.line_up(i);
            }
        }
    }

    fn freed_to(&self, i: usize) -> FreedTo {
        self.settings(&self.tasks[i].queue).policy.freed_to
    }

    fn line_up(&mut self, i: usize) {
        match self.freed_to(i) {
            FreedTo::Front => self.enter_front(i),
            FreedTo::Back => self.enter(i, St::Ready),
        }
    }

    /// Ends a claim without ack or fail. The end of the task, if it was one; else it has no place yet.
    fn free(&mut self, i: usize, reason: FreedReason) -> Option<Settled> {
        let queue = self.tasks[i].queue.clone();
        self.queue_mut(&queue).totals.freed += 1;
        let policy = self.retry_policy(i);
        let poison_after = self.settings(&queue).policy.poison_after;
        let wall = self.wall;
        let cancelled = self.tasks[i].held().cancel;
        let task = &mut self.tasks[i];
        task.attempts += u32::from(reason.uses_attempt());
        task.lost += u32::from(reason.is_suspicious());
        let spent = reason.uses_attempt() && task.attempts >= policy.attempts;
        let poison = reason.is_suspicious() && task.lost >= poison_after;
        let end = if cancelled {
            StateKind::Cancelled
        } else if spent || poison {
            self.exhausted_end(i)
        } else if task.has_expired(wall) {
            StateKind::Expired
        } else {
            return None;
        };
        Some(self.end(i, end, None))
    }

    /// Ends a task: its keys are free, the next of its order key may go, the oldest ended are forgotten.
    pub(crate) fn end(&mut self, i: usize, kind: StateKind, by: Option<Verb>) -> Settled {
        let (wall, elapsed) = (self.wall, self.elapsed);
        self.ended += 1;
        let nth = self.ended;
        let task = &mut self.tasks[i];
        task.st = St::Ended { kind, at: wall, at_elapsed: elapsed, nth };
        task.unique_held = false;
        task.marked = None;
        task.dedup_until = task.dedup.map(|dedup| wall.after(dedup.window));
        task.dedup_held = task.dedup.is_some_and(|dedup| dedup.window > Millis(0));
        let settled = Settled { id: task.id, state: kind, attempt: task.attempts, due: None };
        task.answer = by.map(|verb| (verb, settled));
        let (queue, order) = (task.queue.clone(), task.order);
        if kind == StateKind::Dead {
            self.queue_mut(&queue).totals.dead += 1;
        }
        if let Some(next) = order.and_then(|key| self.head(&queue, key)) {
            // One that a purge has marked waits for its end.
            if self.tasks[next].st == St::Blocked && self.tasks[next].marked.is_none() {
                self.take_turn(next);
            }
        }
        self.keep_within_bounds(&queue);
        settled
    }

    fn keep_within_bounds(&mut self, queue: &QueueName) {
        let settings = self.settings(queue);
        let retained_max = self.share(&settings, settings.policy.retained_max);
        let dead_max = self.share(&settings, settings.policy.dead_max);
        for (dead, max) in [(true, dead_max), (false, retained_max)] {
            loop {
                let nth = |task: &Task| match task.st {
                    St::Ended { kind, nth, .. }
                        if task.queue == *queue && (kind == StateKind::Dead) == dead =>
                    {
                        Some(nth)
                    }
                    _ => None,
                };
                let ended: Vec<_> =
                    (0..self.tasks.len()).filter(|i| nth(&self.tasks[*i]).is_some()).collect();
                if ended.len() as u64 <= max {
                    break;
                }
                let oldest =
                    ended.into_iter().min_by_key(|i| nth(&self.tasks[*i])).expect("there is one too many");
                self.forget(oldest);
            }
        }
    }

    /// Forgets an ended task, but not its dedup key, nor the outcome of its final fence.
    pub(crate) fn forget(&mut self, i: usize) {
        let task = self.tasks.remove(i);
        let St::Ended { kind, at_elapsed, .. } = task.st else { panic!("only an ended task is forgotten") };
        if let (Some(dedup), true) = (task.dedup, task.dedup_held) {
            self.gone_keys.push(GoneKey {
                key: dedup.key,
                queue: task.queue,
                task: task.id,
                digest: task.digest,
                state: kind,
                until: task.dedup_until.expect("it has ended"),
            });
        }
        let until = at_elapsed.after(KEPT);
        if let Some((verb, settled)) = task.answer.filter(|_| until > self.elapsed) {
            // At least its 60 s; they go in the order in which they came.
            let until = self.outcomes.last().map_or(until, |last| last.until.max(until));
            self.outcomes.push(Outcome { fence: task.fence, verb, settled, until });
        }
        self.remove_dropped();
    }
}
