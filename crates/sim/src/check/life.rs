//! A task's story as far as it is certain: when it was born, how long it lived for sure, who held it.

use model::StateKind;

use super::Context;
use super::births::Birth;
use super::facts::{QueueFacts, Wide};
use super::hold::{self, Hold};
use super::task::{Act, NEVER, Task, What, When};

/// Clocks are read in whole milliseconds on both sides.
const SLACK_US: u64 = 2_000;

/// Attempts and lost claims of a queue that says nothing.
const ATTEMPTS_DEFAULT: u32 = 20;
const POISON_AFTER_DEFAULT: u32 = 5;

/// A task's story.
pub(super) struct Life<'a> {
    pub task: &'a Task,
    /// What was done without a token, or seen.
    pub others: &'a [Act],
    /// The claims, by fence: the order in which they were.
    pub holds: Vec<Hold<'a>>,
    /// Its queue, if that has rules.
    pub queue: Option<&'a QueueFacts>,
    /// Not born before this.
    pub born_from: u64,
    /// Born by then; [`NEVER`] if nobody saw it.
    pub born_by: u64,
    /// In its first life, it had surely not ended before this.
    pub alive_until: u64,
    /// Its keys and rules, from the calls that may have made it.
    pub birth: Option<&'a Birth>,
    pub attempts_max: Option<u32>,
    /// What it surely ended as, by which call.
    pub ends: Vec<(&'a Act, StateKind)>,
}

impl<'a> Life<'a> {
    pub(super) fn of(context: &Context<'a>, task: &'a mut Task) -> Life<'a> {
        task.acts.sort_by_key(|act| {
            let is_claim = matches!(act.what, What::Claimed { .. });
            (act.what.fence().unwrap_or(NEVER), !is_claim, act.when.start, act.when.line)
        });
        let task: &Task = task;
        let with_fence = task.acts.partition_point(|act| act.what.fence().is_some());
        let (held, others) = task.acts.split_at(with_fence);
        let births = births_of(context, task);
        let queue = context.facts.queue(task.queue);
        let birth = births.clone().next();
        let attempts = births.clone().filter_map(|birth| birth.attempts).max();
        let born_from = births.map(|birth| birth.when.start).min().unwrap_or(0);
        let answered = task.acts.iter().filter(|act| act.when.is_ok());
        let born_by = answered.map(|act| act.when.end).min().unwrap_or(NEVER);
        let requeued_from = requeues(context, task, 0).map(|when| when.start).min().unwrap_or(NEVER);
        let holds = hold::all(context, task, held, others, born_from);
        Life {
            task,
            others,
            alive_until: alive_until(context, task, born_from, requeued_from),
            holds,
            queue,
            born_from,
            born_by,
            birth,
            ends: ends(task, requeued_from != NEVER),
            attempts_max: attempts.or_else(|| queue.and_then(|queue| queue.rules.attempts)),
        }
    }

    /// The calls that may have made it.
    pub(super) fn births(&self, context: &Context<'a>) -> impl Iterator<Item = &'a Birth> + Clone {
        births_of(context, self.task)
    }

    /// Whether a requeue may lie between these two.
    pub(super) fn may_be_requeued(&self, context: &Context<'_>, after: &When, before: &When) -> bool {
        requeues(context, self.task, after.start).any(|when| when.start < before.end)
    }

    /// So many lost claims may end it without anybody's word.
    pub(super) fn lost_claims_max(&self) -> u64 {
        let rules = self.queue.map(|queue| &queue.rules);
        let attempts = self.attempts_max.unwrap_or(ATTEMPTS_DEFAULT);
        attempts.min(rules.and_then(|rules| rules.poison_after).unwrap_or(POISON_AFTER_DEFAULT)).into()
    }

    /// Its claims that were answered.
    pub(super) fn claims(&self) -> impl Iterator<Item = &'a Act> {
        self.holds.iter().flat_map(|hold| hold.claims)
    }

    /// "task …" for people.
    pub(super) fn name(&self) -> String {
        format!("task {}", self.task.id)
    }
}

/// The calls that tell of an end. Of looks that tell the same, the first is enough when nothing brings it back.
fn ends(task: &Task, may_come_back: bool) -> Vec<(&Act, StateKind)> {
    let mut ends: Vec<(&Act, StateKind)> = Vec::new();
    for act in task.acts.iter().filter(|act| act.when.is_ok()) {
        let Some(state) = end_of(act) else { continue };
        let is_look = |act: &Act| matches!(act.what, What::Seen { .. });
        let known = ends.iter_mut().find(|(known, as_known)| is_look(known) && *as_known == state);
        match known.filter(|_| is_look(act) && !may_come_back) {
            Some((known, _)) if act.when.end < known.when.end => *known = act,
            Some(_) => {}
            None => ends.push((act, state)),
        }
    }
    ends
}

/// The end that an answered call tells of.
pub(super) fn end_of(act: &Act) -> Option<StateKind> {
    let state = match act.what {
        What::Acked { .. } => Some(StateKind::Done),
        What::Discarded => Some(StateKind::Cancelled),
        What::Failed { state, .. } | What::Released { state, .. } => state,
        What::Cancelled { state } | What::Seen { state } => state,
        _ => None,
    };
    state.filter(|state| state.is_ended())
}

fn births_of<'a>(context: &Context<'a>, task: &Task) -> impl Iterator<Item = &'a Birth> + Clone + use<'a> {
    let (id, queue) = (task.id, task.queue);
    // Without a payload nobody saw what it was: nothing is known of its birth.
    let all = task.payload.map(|payload| context.births.of(payload));
    let ours = move |birth: &&Birth| Some(birth.queue) == queue && birth.task.is_none_or(|named| named == id);
    all.into_iter().flatten().filter(ours)
}

/// The requeues that were done, or may have been, and were not over before `from`.
fn requeues<'a>(context: &Context<'a>, task: &'a Task, from: u64) -> impl Iterator<Item = &'a When> {
    let own = task.acts.iter().filter(|act| matches!(act.what, What::Requeued)).map(|act| &act.when);
    let own = own.filter(move |when| when.may_be() && when.end >= from);
    own.chain(context.facts.wide(task.queue, &[Wide::Requeue], from))
}

/// Until when the first life surely lasted: the latest moment at which somebody dealt with a live task.
/// What may have ended it without our knowing comes after that.
fn alive_until(context: &Context<'_>, task: &Task, born_from: u64, requeued_from: u64) -> u64 {
    let mut until = born_from;
    // After a requeue, signs of life may be those of another life.
    for act in task.acts.iter().filter(|act| act.when.is_ok() && act.when.end < requeued_from) {
        let start = act.when.start;
        let alive = match act.what {
            What::Enqueued { duplicate } => !duplicate,
            What::Claimed { request, .. } => {
                until = until.max(context.facts.first_start(request, start));
                false
            }
            // The same again gets the stored answer after the end: only the first one was sent to a live task.
            What::Acked { .. } => {
                until = until.max(first_like(task, act));
                false
            }
            What::Failed { state, .. } => {
                until = until.max(first_like(task, act));
                state.is_some_and(|state| !state.is_ended())
            }
            What::Released { .. } | What::Extended { .. } | What::Progressed { .. } => true,
            What::PutBack | What::Cancelled { .. } => true,
            What::Seen { state } => state.is_some_and(|state| !state.is_ended()),
            What::Discarded | What::Requeued => false,
        };
        if alive {
            until = until.max(start);
        }
    }
    until
}

/// When the first call began that may have settled this fence in this way.
fn first_like(task: &Task, act: &Act) -> u64 {
    let alike = |other: &&Act| {
        other.when.verb == act.when.verb && other.what.fence() == act.what.fence() && other.when.may_be()
    };
    task.acts.iter().filter(alike).map(|other| other.when.start).min().unwrap_or(act.when.start)
}

impl Context<'_> {
    /// The least time that passes, by the history's clock, while a node counts so many milliseconds.
    pub(super) fn least_us(&self, millis: u64) -> u64 {
        let us = u128::from(millis) * 1000;
        let shorter = us * u128::from(self.run.drift_ppm.min(1_000_000)) / 1_000_000;
        u64::try_from(us - shorter).unwrap_or(u64::MAX).saturating_sub(SLACK_US)
    }

    /// The same by the wall clocks of the nodes, which may be apart and may jump until then.
    pub(super) fn least_wall_us(&self, millis: u64, until: u64) -> u64 {
        self.least_us(millis).saturating_sub(self.wall_skew_ms(until).saturating_mul(1000))
    }

    /// How far apart wall clocks may be until then.
    pub(super) fn wall_skew_ms(&self, until: u64) -> u64 {
        self.run.wall_skew_ms.max(self.facts.skew_ms(until))
    }
}
