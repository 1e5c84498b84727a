//! Ends an attempt: a backoff, or the end when attempts or age are used up.

use model::command::Fail;
use model::{
    Event, Failure, Millis, Mutant, Position, Rejection, Reply, RetryPolicy, StateKind, TaskId, limits,
    mutant,
};

use super::Shard;
use super::end::{Held, Verb};
use super::execution::{Flags, Last, Slot};
use super::shift::Side;
use crate::effects::{Effect, Effects};

impl Shard {
    pub(super) fn fail(
        &mut self,
        at: Position,
        fail: Fail,
        effects: &mut Effects,
    ) -> Result<Reply, Rejection> {
        let slot = match self.held(fail.task, fail.fence, Verb::Fail)? {
            Held::Yes(slot) => slot,
            Held::Answered(settled) => return Ok(Reply::Settled(settled)),
        };
        let claim = self.drop_claim(slot);
        let task = &mut self.tasks[slot];
        task.attempts = task.attempts.saturating_add(1);
        task.lost_in_row = 0;
        let attempt = u32::from(task.attempts);
        let no = task.queue;
        self.touch_queue(no);
        self.queues.at_mut(no).totals.failed += 1;
        if !fail.detail.is_empty() {
            effects.push_of(slot, Effect::Detail { task: fail.task, detail: fail.detail });
        }
        let end = self.end_of_fail(at, slot, fail.fatal);
        let retry_in = match end {
            Some(_) => Millis(0),
            None => fail.retry_in.unwrap_or_else(|| backoff(&self.retry_policy(slot), fail.task, attempt)),
        };
        let state = end.unwrap_or(StateKind::Retrying);
        let failure = Box::new(Failure { error: fail.error, retry_in });
        let event = Event::Failed { worker: claim.worker, state, failure };
        self.happened(slot, event, effects);
        let Some(end) = end else {
            if mutant::planted(Mutant::OrderFreedOnRetry) {
                self.pass(at, slot, effects);
            }
            let due = at.elapsed.after(retry_in);
            self.shift(slot, StateKind::Retrying, due.0, Side::Back);
            let task = &mut self.tasks[slot];
            task.last = Last::FailedForNow;
            task.since = at.wall.after(retry_in).millis();
            return Ok(self.settled(slot));
        };
        self.tasks[slot].last = Last::FailedForGood;
        self.end(at, slot, end, effects);
        Ok(Reply::Settled(model::Settled { id: fail.task, state: end, attempt, due: None }))
    }

    /// The end that a failed attempt means, if it means one.
    fn end_of_fail(&self, at: Position, slot: Slot, fatal: bool) -> Option<StateKind> {
        let task = &self.tasks[slot];
        let policy = self.retry_policy(slot);
        let too_old = policy.age_max.is_some_and(|age_max| at.wall.since(task.enqueued_at) >= age_max);
        if task.flags.has(Flags::CANCEL) {
            Some(StateKind::Cancelled)
        } else if fatal || too_old || u32::from(task.attempts) >= policy.attempts {
            Some(self.exhausted(slot))
        } else if task.expires_at().is_some_and(|expires| expires <= at.wall) {
            Some(StateKind::Expired)
        } else {
            None
        }
    }

    /// What the task says of its retries, and the queue of the rest.
    pub(super) fn retry_policy(&self, slot: Slot) -> RetryPolicy {
        let task = &self.tasks[slot];
        let queue = self.queues[task.queue].policy().retry;
        task.extra.as_ref().map_or(queue, |extra| extra.retry.over(queue))
    }
}

/// How long a task backs off after its `attempt`th failure: doubling up to the cap, with a jitter from a
/// hash of task and attempt, so that all replicas agree and a herd spreads.
pub fn backoff(policy: &RetryPolicy, task: TaskId, attempt: u32) -> Millis {
    let doublings = attempt.saturating_sub(1).min(62);
    let doubled = u128::from(policy.base.0) << doublings;
    let whole = doubled.min(u128::from(policy.cap.0)) as u64;
    let mut bytes = [0u8; 20];
    bytes[..16].copy_from_slice(&task.bits().to_le_bytes());
    bytes[16..].copy_from_slice(&attempt.to_le_bytes());
    if mutant::planted(Mutant::LocalJitter) {
        bytes[..8].copy_from_slice(&mutant::local_number().to_le_bytes());
    }
    let spread = u128::from(whole) * u128::from(2 * limits::JITTER_PERCENT) / 100;
    let part = (u128::from(xxhash_rust::xxh3::xxh3_64(&bytes)) * (spread + 1)) >> 64;
    let least = whole - (spread / 2) as u64;
    Millis(least + part as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{ShardId, WallTime};

    #[test]
    fn a_backoff_doubles_up_to_its_cap_within_its_jitter() {
        let policy = RetryPolicy { base: Millis(1000), cap: Millis(60_000), ..RetryPolicy::default() };
        let shard = ShardId::new(1).unwrap();
        for random in 0..200 {
            let task = TaskId::new(shard, WallTime::from_millis(1), random);
            for (attempt, whole) in
                [(1, 1000), (2, 2000), (3, 4000), (7, 60_000), (200, 60_000), (u32::MAX, 60_000)]
            {
                let Millis(millis) = backoff(&policy, task, attempt);
                assert!((whole * 8 / 10..=whole * 12 / 10).contains(&millis), "{attempt}: {millis}");
            }
        }
    }

    #[test]
    fn the_longest_backoff_does_not_overflow() {
        let policy =
            RetryPolicy { base: limits::DURATION_MAX, cap: limits::DURATION_MAX, ..RetryPolicy::default() };
        let task = TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1), 1);
        assert!(backoff(&policy, task, u32::MAX).0 > 0);
    }
}
