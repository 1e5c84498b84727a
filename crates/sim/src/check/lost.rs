//! A task whose enqueue was answered is there until it ended, and readable for its retention after that.

use super::Context;
use super::facts::Wide;
use super::life::Life;
use super::report::{Findings, Promise};
use super::task::{Act, Heard, NEVER, What, at};

/// Retention and number of ended tasks of a queue that says nothing.
const RETENTION_DEFAULT_MS: u64 = 3_600_000;
const RETAINED_MAX_DEFAULT: u64 = 100_000;

pub(super) fn check(context: &Context<'_>, life: &Life<'_>, findings: &mut Findings) {
    if life.born_by == NEVER {
        return;
    }
    let gone = |act: &&Act| {
        act.when.heard == Heard::NotFound
            && act.when.start > life.born_by
            && !may_be_forgotten(context, life, act.when.end)
    };
    if let Some(act) = life.task.acts.iter().find(gone) {
        findings.add(Promise::Kept, || {
            let proof = proof(life).when.tell(context.names);
            format!("{}: {} did not find it, {proof} had", life.name(), act.when.tell(context.names))
        });
        return;
    }
    let Some(end) = context.end else { return };
    let look = last_look(life).filter(|_| end.listed);
    if end.listed && look.is_none() && !may_be_forgotten(context, life, end.at_us) {
        findings.add(Promise::Kept, || {
            let proof = proof(life).when.tell(context.names);
            format!(
                "{}: it was not among all tasks that were left at the end, {proof} had named it",
                life.name()
            )
        });
        return;
    }
    let is_over = match look.map(|act| act.what) {
        // Without a later look it may have ended and been forgotten since.
        Some(What::Seen { state: Some(state) }) => {
            state.is_ended() || may_be_forgotten(context, life, end.at_us)
        }
        Some(_) => true,
        None => end.listed || may_have_ended(context, life),
    };
    if end.drained && !is_over {
        findings.add(Promise::Kept, || {
            let last = life.task.acts.iter().filter(|act| act.when.is_ok()).max_by_key(|act| act.when.end);
            let last = last.unwrap_or(proof(life)).when.tell(context.names);
            format!(
                "{}: it had not ended when all was over at {}; its last sign is {last}",
                life.name(),
                at(end.at_us)
            )
        });
    }
}

/// The first answer that named it.
fn proof<'a>(life: &Life<'a>) -> &'a Act {
    let answered = life.task.acts.iter().filter(|act| act.when.is_ok());
    answered.min_by_key(|act| act.when.end).expect("it was born by an answer")
}

/// Whether it may have ended so long ago, by `now`, that nobody remembers it.
fn may_be_forgotten(context: &Context<'_>, life: &Life<'_>, now: u64) -> bool {
    let rules = life.queue.map(|queue| &queue.rules);
    let own = life.birth.and_then(|birth| birth.retention_ms);
    let retention = own.or(rules.and_then(|rules| rules.retention_ms)).unwrap_or(RETENTION_DEFAULT_MS);
    let retained_max = rules.and_then(|rules| rules.retained_max).unwrap_or(RETAINED_MAX_DEFAULT);
    let is_crowded = context.births.len() as u64 > retained_max / u64::from(context.run.shards.max(1));
    // Whoever knows nothing of its birth does not know its retention either.
    let is_known = life.birth.is_some();
    !is_known
        || now >= life.alive_until.saturating_add(context.least_wall_us(retention, now))
        || is_crowded && now >= life.alive_until
}

/// The look at it that came after all that was done to it: how it stood at the end.
fn last_look<'a>(life: &Life<'a>) -> Option<&'a Act> {
    let is_look = |act: &&Act| matches!(act.what, What::Seen { .. });
    let answered = life.task.acts.iter().filter(|act| act.when.is_ok() && !is_look(act));
    let last_change = answered.map(|act| act.when.end).max().unwrap_or(0);
    let looks = life.others.iter().filter(|act| is_look(act) && act.when.heard != Heard::Unknown);
    looks.max_by_key(|act| act.when.start).filter(|act| act.when.start >= last_change)
}

/// Whether something ended it, or may have.
fn may_have_ended(context: &Context<'_>, life: &Life<'_>) -> bool {
    let ended = !life.ends.is_empty();
    let unknown = life.task.acts.iter().any(|act| {
        let can_end = act.what.settles() || matches!(act.what, What::Discarded | What::Cancelled { .. });
        // A claimed task that was asked to stop ends with its claim.
        can_end
            && (act.when.heard == Heard::Unknown
                || act.when.is_ok() && matches!(act.what, What::Cancelled { .. }))
    });
    let ends_all = [Wide::Discard, Wide::Cancel, Wide::Purge];
    let by_filter = context.facts.wide(life.task.queue, &ends_all, life.born_from).next().is_some();
    let expires = life.birth.is_none_or(|birth| birth.expires);
    let hidden_claims = life.queue.map_or(0, |queue| queue.hidden_claims(context.run.shards));
    let lost_claims = life.holds.len() as u64 + hidden_claims;
    let attempts = u64::from(life.holds.last().and_then(|hold| hold.attempt()).unwrap_or(0)) + hidden_claims;
    let used_up = lost_claims.max(attempts) >= life.lost_claims_max();
    ended || unknown || by_filter || expires || used_up
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    #[test]
    fn a_task_that_ended_is_fine_and_may_be_forgotten_later() {
        let mut story = Story::new();
        story.enqueue_with(1, |task| task.retention_ms = Some(5_000));
        story.claim(1, 1);
        story.ack(1, 1);
        story.get(1, "done");
        story.get(1, "done").rejected("not_found").at(6_000, 6_010);
        story.end(true, false);
        held(&story);
    }

    #[test]
    fn an_enqueue_without_an_answer_owes_nothing() {
        let mut story = Story::new();
        story.enqueue(1).unknown();
        story.end(true, true);
        held(&story);
    }

    #[test]
    fn a_task_that_may_have_ended_unseen_is_not_called_lost() {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.ack(1, 1).unknown();
        story.end(true, false);
        held(&story);
        let mut story = Story::new();
        story.enqueue(1);
        // Five claims without an answer may have made it a poison pill.
        for _ in 0..5 {
            story.claim(1, 1).got_nothing().unknown();
        }
        story.end(true, false);
        held(&story);
    }

    #[test]
    fn a_task_that_is_not_there_is_found() {
        let mut story = Story::new();
        story.enqueue(1);
        story.get(1, "ready").rejected("not_found");
        let text = broken(&story, Promise::Kept);
        assert!(text.contains("get by w (line 3") && text.contains("enqueue by w (line 2"), "{text}");
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.ack(1, 1).rejected("not_found");
        broken(&story, Promise::Kept);
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.ack(1, 1);
        story.end(true, true);
        let text = broken(&story, Promise::Kept);
        assert!(text.contains("not among all tasks that were left"), "{text}");
    }

    #[test]
    fn a_task_that_never_ended_is_found() {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.end(true, false);
        let text = broken(&story, Promise::Kept);
        assert!(
            text.contains("had not ended when all was over") && text.contains("claim by w (line 3"),
            "{text}"
        );
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.ack(1, 1).unknown();
        story.get(1, "ready").at(40_000, 40_010);
        story.end(true, true);
        broken(&story, Promise::Kept);
    }
}
