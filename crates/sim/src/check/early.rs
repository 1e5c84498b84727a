//! No task is claimed before its time: a delay, a backoff that a worker asked for, a release with a delay.

use model::StateKind;

use super::Context;
use super::hold::Hold;
use super::life::Life;
use super::report::{Findings, Promise};
use super::task::{Act, What, When, at};

pub(super) fn check(context: &Context<'_>, life: &Life<'_>, findings: &mut Findings) {
    let mut found = |claim: &Act, due: u64, because: &When| {
        findings.add(Promise::NeverEarly, || {
            let (claim, because) = (claim.when.tell(context.names), because.tell(context.names));
            format!("{}: {claim} got it, by {because} it was not due before {}", life.name(), at(due))
        });
    };
    for claim in life.claims() {
        let until = claim.when.end;
        let dues = life.births(context).map(|birth| (due(context, birth, until), birth.when));
        let Some((due, because)) = dues.min_by_key(|(due, _)| *due) else { continue };
        // A requeue runs it at once.
        if until < due && !life.may_be_requeued(context, &because, &claim.when) {
            found(claim, due, &because);
            break;
        }
    }
    let mut later: Option<&Act> = None;
    for hold in life.holds.iter().rev() {
        if let Some(next) = later
            && let Some((due, because)) = waits_until(context, hold, next.when.end)
            && next.when.end < due
            && !life.may_be_requeued(context, &because, &next.when)
        {
            found(next, due, &because);
        }
        let claim = hold.claim();
        if claim.is_some_and(|claim| later.is_none_or(|known| claim.when.end < known.when.end)) {
            later = claim;
        }
    }
}

/// The earliest moment at which a task of this birth may be due, as clocks were until then.
fn due(context: &Context<'_>, birth: &super::births::Birth, until: u64) -> u64 {
    let after = birth.delay_ms.map(|delay| context.least_wall_us(delay, until));
    let after = after.map(|after| birth.when.start.saturating_add(after));
    let wall = birth.run_at_ms.zip(context.run.wall_start_ms).map(|(run_at, start)| {
        let millis = run_at.saturating_sub(start).saturating_sub(context.wall_skew_ms(until));
        context.least_us(millis)
    });
    after.unwrap_or(0).max(wall.unwrap_or(0))
}

/// Until when a task waits for certain after its holder let go of it, as clocks were until then, and by which call.
fn waits_until(context: &Context<'_>, hold: &Hold<'_>, until: u64) -> Option<(u64, When)> {
    let settle = hold.settles().next()?;
    let alike = hold.acts.iter().filter(|act| act.when.verb == settle.when.verb && act.when.may_be());
    let waits = alike.map(|act| match act.what {
        What::Failed { retry_in_ms, .. } => {
            (act.when.start, retry_in_ms.map_or(0, |millis| context.least_us(millis)))
        }
        What::Released { delay_ms, .. } => (act.when.start, context.least_wall_us(delay_ms, until)),
        _ => (act.when.start, 0),
    });
    // Which of the calls was the first to be done nobody knows: the first start and the shortest wait.
    let (start, wait) = waits.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)))?;
    let goes_on = match settle.what {
        What::Failed { state, .. } => state == Some(StateKind::Retrying),
        What::Released { .. } => true,
        _ => false,
    };
    (goes_on && wait > 0).then_some((start + wait, settle.when))
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, WALL_START_MS, broken, held};

    #[test]
    fn a_task_that_is_claimed_at_its_time_is_fine() {
        let mut story = Story::new();
        story.enqueue_with(1, |task| task.delay_ms = Some(1_000));
        story.claim(1, 1).at(999, 1_010);
        story.fail(1, 1, "retrying").retry_in(5_000).at(1_020, 1_030);
        story.claim(1, 2).attempt(2).at(6_010, 6_021);
        story.release(1, 2).retry_in(1_000).at(7_000, 7_010);
        story.claim(1, 3).attempt(2).at(7_500, 8_001);
        held(&story);
    }

    #[test]
    fn a_requeued_task_runs_at_once() {
        let mut story = Story::new();
        story.enqueue_with(1, |task| task.delay_ms = Some(60_000));
        story.cancel(1, "cancelled");
        story.requeue(1);
        story.claim(1, 1);
        held(&story);
    }

    #[test]
    fn the_first_of_two_enqueues_without_an_answer_may_have_begun_the_delay() {
        let mut story = Story::new();
        let dedup = |task: &mut crate::history::Enqueue| {
            task.dedup_key = Some("k".to_owned());
            task.delay_ms = Some(1_000);
        };
        story.enqueue_with(1, dedup).unknown();
        story.enqueue_with(1, dedup).at(800, 810);
        story.claim(1, 1).at(1_010, 1_020);
        held(&story);
    }

    #[test]
    fn an_early_claim_is_found() {
        let mut story = Story::new();
        story.enqueue_with(1, |task| task.delay_ms = Some(1_000));
        story.claim(1, 1).at(500, 900);
        let text = broken(&story, Promise::NeverEarly);
        assert!(
            text.contains("enqueue by w (line 2") && text.contains("not due before 0.998000 s"),
            "{text}"
        );
        let mut story = Story::new();
        story.enqueue_with(1, |task| task.run_at_ms = Some(WALL_START_MS + 1_000));
        story.claim(1, 1).at(500, 900);
        broken(&story, Promise::NeverEarly);
    }

    #[test]
    fn only_a_clock_that_is_wrong_by_then_explains_an_early_claim() {
        for (wrong_at, is_early) in [(1_600, true), (500, false)] {
            let mut story = Story::new();
            story.enqueue_with(1, |task| task.delay_ms = Some(2_000));
            story.claim(1, 1).at(1_000, 1_500);
            story.release(1, 1).retry_in(5_000).at(1_510, 1_520);
            story.wrong_clock(wrong_at, 10_000);
            story.claim(1, 2).at(2_000, 2_010);
            match is_early {
                true => assert!(broken(&story, Promise::NeverEarly).contains("not due before 1.998000 s")),
                false => held(&story),
            }
        }
    }

    #[test]
    fn an_early_retry_is_found() {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.fail(1, 1, "retrying").retry_in(5_000).at(100, 110);
        story.claim(1, 2).at(4_000, 4_010);
        let text = broken(&story, Promise::NeverEarly);
        assert!(text.contains("fail by w (line 4") && text.contains("not due before 5.098000 s"), "{text}");
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.release(1, 1).retry_in(5_000);
        story.claim(1, 2).at(4_000, 4_010);
        broken(&story, Promise::NeverEarly);
    }
}
