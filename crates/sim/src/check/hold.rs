//! One claim of a task, and how long it surely held.

use super::Context;
use super::facts::Wide;
use super::task::{Act, NEVER, Task, What, When};

/// One claim of a task: everything that was said with its fence.
pub(super) struct Hold<'a> {
    pub fence: u64,
    /// The calls that answered it: several if a request was repeated, none if no answer was seen.
    pub claims: &'a [Act],
    /// What its holder did with it.
    pub acts: &'a [Act],
    /// It began no earlier.
    pub from: u64,
    /// It had begun by then; [`NEVER`] if no answer was seen.
    pub by: u64,
    /// It surely held from `by` until then, by the history's clock.
    pub until: u64,
}

impl Hold<'_> {
    /// The first answer that gave it.
    pub(super) fn claim(&self) -> Option<&Act> {
        self.claims.iter().min_by_key(|act| act.when.end)
    }

    /// Whether a call lay wholly within the time in which it surely held.
    pub(super) fn surely_holds_during(&self, when: &When) -> bool {
        self.by < when.start && when.end < self.until
    }

    /// Which attempt it was.
    pub(super) fn attempt(&self) -> Option<u32> {
        self.claims.iter().find_map(|act| match act.what {
            What::Claimed { attempt, .. } => Some(attempt),
            _ => None,
        })
    }

    /// Answered calls that let go of it.
    pub(super) fn settles(&self) -> impl Iterator<Item = &Act> {
        self.acts.iter().filter(|act| act.when.is_ok() && act.what.settles())
    }
}

/// The claims of a task, by fence. `held` is sorted by fence, claims first.
pub(super) fn all<'a>(
    context: &Context<'_>,
    task: &Task,
    held: &'a [Act],
    others: &[Act],
    born_from: u64,
) -> Vec<Hold<'a>> {
    let mut from = born_from;
    let one = |acts: &'a [Act]| {
        let is_claim = |act: &Act| matches!(act.what, What::Claimed { .. });
        let (claims, acts) = acts.split_at(acts.partition_point(is_claim));
        let begin = claims.iter().map(|act| match act.what {
            What::Claimed { request, .. } => context.facts.first_start(request, act.when.start),
            _ => act.when.start,
        });
        // Each claim comes after the one before it.
        from = begin.min().unwrap_or(0).max(from);
        let by = claims.iter().map(|act| act.when.end).min().unwrap_or(NEVER);
        let fence = claims.iter().chain(acts).find_map(|act| act.what.fence()).unwrap_or(0);
        let until = surely_until(context, task, claims, acts, others, from);
        Hold { fence, claims, acts, from, by, until }
    };
    held.chunk_by(|a, b| a.what.fence() == b.what.fence()).map(one).collect()
}

/// Until when a claim that began at `from` or later surely held.
fn surely_until(
    context: &Context<'_>,
    task: &Task,
    claims: &[Act],
    acts: &[Act],
    others: &[Act],
    from: u64,
) -> u64 {
    let Some(What::Claimed { hold_ms, worker, session, .. }) = claims.first().map(|act| act.what) else {
        return 0;
    };
    let Some(deadline) = earliest_deadline(context, hold_ms, acts, from) else { return 0 };
    let settled = acts.iter().filter(|act| act.what.settles() && act.when.may_be()).map(|act| act.when.start);
    // Without the token: what was over before the claim began did not touch it.
    let by_hand = others.iter().filter(|act| matches!(act.what, What::PutBack | What::Discarded));
    let by_hand = by_hand.map(|act| &act.when).filter(|when| when.may_be() && when.end >= from);
    let wide = context.facts.wide(task.queue, &[Wide::PutBack, Wide::Discard], from);
    let removed = context.facts.worker_ends(worker).iter().filter(|when| when.end >= from);
    let without_token = by_hand.chain(wide).chain(removed).map(|when| when.start);
    let mut until = settled.chain(without_token).min().unwrap_or(NEVER).min(deadline);
    if let Some(session) = session {
        let ended = context.facts.session_ends(session).iter().filter(|when| when.end >= from);
        until = until.min(ended.map(|when| when.start).min().unwrap_or(NEVER));
        // Nobody sees a beat get lost between two nodes: only whoever made the faults can vouch for a session.
        until = until.min(context.facts.steady_until(session, from).unwrap_or(0));
    }
    until
}

/// The earliest moment at which the deadline may pass; nothing if it is not known how long it holds.
fn earliest_deadline(context: &Context<'_>, hold_ms: Option<u64>, acts: &[Act], from: u64) -> Option<u64> {
    let mut deadline = None;
    let mut add = |start: u64, hold_ms: Option<u64>| {
        let this = start.saturating_add(context.least_us(hold_ms?));
        deadline = Some(deadline.map_or(this, |known: u64| known.min(this)));
        Some(())
    };
    let extends = acts.iter().filter(|act| matches!(act.what, What::Extended { .. }));
    let answered = extends.clone().filter(|act| act.when.is_ok());
    // An extend that was answered has moved the deadline; so has each one after it.
    let last_start = answered.map(|act| act.when.start).max();
    if last_start.is_none() {
        add(from, hold_ms)?;
    }
    for act in extends {
        let What::Extended { hold_ms: own, .. } = act.what else { continue };
        let moved_again = last_start.is_some_and(|last| act.when.end < last);
        if act.when.may_be() && !moved_again {
            add(act.when.start, own.or(hold_ms))?;
        }
    }
    deadline
}
