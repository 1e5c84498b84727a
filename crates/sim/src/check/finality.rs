//! A task that was answered as done is never claimed again; one that ended otherwise, only after a requeue.

use model::StateKind;

use super::Context;
use super::life::Life;
use super::report::{Findings, Promise};
use super::task::Act;

pub(super) fn check(context: &Context<'_>, life: &Life<'_>, findings: &mut Findings) {
    for &(end, state) in &life.ends {
        let again = life.holds.iter().filter(|hold| match end.what.shown() {
            // By its fence the claim comes after the one that ended the task. When it was answered before the
            // end was asked for, an old token counted: that is told elsewhere.
            Some(fence) => hold.fence > fence && hold.by >= end.when.start,
            None => hold.from > end.when.end,
        });
        let broken = again
            .filter_map(|hold| hold.claim())
            .find(|claim| !may_come_back(context, life, end, state, claim));
        if let Some(claim) = broken {
            findings.add(Promise::Final, || {
                let (end, claim) = (end.when.tell(context.names), claim.when.tell(context.names));
                format!("{}: {state} by {end}, and yet {claim} got it", life.name())
            });
            return;
        }
    }
}

/// Whether a task that ended in this way may be live at a later call.
pub(super) fn may_come_back(
    context: &Context<'_>,
    life: &Life<'_>,
    end: &Act,
    state: StateKind,
    later: &Act,
) -> bool {
    !matches!(state, StateKind::Done | StateKind::Expired)
        && life.may_be_requeued(context, &end.when, &later.when)
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    #[test]
    fn a_dead_task_comes_back_by_a_requeue_known_or_not() {
        for answered in [true, false] {
            let mut story = Story::new();
            story.enqueue(1);
            story.claim(1, 1);
            story.fail(1, 1, "dead");
            let requeue = story.requeue(1);
            if !answered {
                requeue.unknown();
            }
            story.claim(1, 2);
            held(&story);
        }
    }

    #[test]
    fn an_ack_without_an_answer_may_not_have_been() {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.ack(1, 1).unknown();
        story.claim(1, 2).at(40_000, 40_010);
        story.ack(1, 2);
        held(&story);
    }

    #[test]
    fn a_claim_after_an_answered_ack_is_found_whatever_was_requeued() {
        for requeued in [false, true] {
            let mut story = Story::new();
            story.enqueue(1);
            story.claim(1, 1);
            story.ack(1, 1);
            if requeued {
                story.requeue(1).unknown();
            }
            story.claim(1, 2).at(40_000, 40_010);
            let text = broken(&story, Promise::Final);
            assert!(text.contains("done by ack by w (line 4") && text.contains("claim by w (line"), "{text}");
        }
    }

    #[test]
    fn a_claim_after_another_end_and_no_requeue_is_found() {
        for what in ["dead", "discard", "cancel", "seen"] {
            let mut story = Story::new();
            story.enqueue(1);
            story.claim(1, 1);
            // Over before the end: this one brought nothing back.
            story.requeue(1).rejected("not_ready");
            match what {
                "dead" => story.fail(1, 1, "dead"),
                "discard" => story.discard(1),
                "cancel" => story.cancel(1, "cancelled"),
                _ => story.get(1, "expired"),
            };
            story.claim(1, 2).at(40_000, 40_010);
            let text = broken(&story, Promise::Final);
            assert!(text.contains("line 5") && text.contains("line 6"), "{what}: {text}");
        }
    }
}
