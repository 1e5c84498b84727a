//! What is said of one task fits one order of what was done to it.
//!
//! The order of its claims is that of their fences; within a claim the holder settles once. What is seen or
//! refused while a claim surely holds, or after an end that is sure, must agree with that. Together with
//! `fencing.rs`, `finality.rs` and `timeline.rs` this makes a task a linearizable register.

use model::StateKind;

use super::Context;
use super::finality::may_come_back;
use super::hold::Hold;
use super::life::{Life, end_of};
use super::report::{Findings, Promise};
use super::task::{Act, Heard, What, When};

pub(super) fn check(context: &Context<'_>, life: &Life<'_>, findings: &mut Findings) {
    let mut found = |first: &When, second: &When, what: &str| {
        findings.add(Promise::Linearizable, || {
            let (first, second) = (first.tell(context.names), second.tell(context.names));
            format!("{}: {first}, and {second}: {what}", life.name())
        });
    };
    for hold in &life.holds {
        if let Some((first, second)) = settled_twice(hold) {
            found(&first.when, &second.when, "both counted with one fence");
        }
        let late = hold.settles().find_map(|settle| {
            let is_late =
                |act: &&Act| act.when.is_ok() && !act.what.settles() && settle.when.before(&act.when);
            hold.acts.iter().find(is_late).map(|act| (settle, act))
        });
        if let Some((settle, act)) = late {
            found(&settle.when, &act.when, "it counted after the claim was given up");
        }
        let Some(claim) = hold.claim() else { continue };
        let refused = |act: &&Act| {
            matches!(act.when.heard, Heard::NotHeld | Heard::NotFound) && hold.surely_holds_during(&act.when)
        };
        if let Some(act) = hold.acts.iter().find(refused) {
            found(&claim.when, &act.when, "it was refused while the claim held");
        }
        let elsewhere = |act: &&Act| {
            let seen = matches!(act.what, What::Seen { state: Some(state) } if state != StateKind::Claimed);
            seen && act.when.is_ok() && hold.surely_holds_during(&act.when)
        };
        if let Some(act) = life.others.iter().find(elsewhere) {
            found(&claim.when, &act.when, "it saw another state while the claim held");
        }
    }
    after_the_end(context, life, &mut found);
    let acked = life.task.acts.iter().any(|act| matches!(act.what, What::Acked { .. }) && act.when.may_be());
    let done =
        |act: &&Act| matches!(act.what, What::Seen { state: Some(StateKind::Done) }) && act.when.is_ok();
    if let Some(act) = life.others.iter().find(done).filter(|_| !acked) {
        found(&act.when, &act.when, "it saw the task done, and nobody acked it");
    }
}

/// Two answers that let go of one claim in two ways.
fn settled_twice<'a>(hold: &'a Hold<'_>) -> Option<(&'a Act, &'a Act)> {
    let mut settles = hold.settles();
    let first = settles.next()?;
    // The same ack or fail again gets the same answer; a second release finds nothing to release.
    let is_release = matches!(first.what, What::Released { .. });
    let second = settles.find(|act| is_release || act.when.verb != first.when.verb)?;
    Some((first, second))
}

/// Signs of life after an end that is sure.
fn after_the_end(context: &Context<'_>, life: &Life<'_>, found: &mut impl FnMut(&When, &When, &str)) {
    for &(end, state) in &life.ends {
        let alive = |act: &&Act| {
            act.when.is_ok()
                && end.when.before(&act.when)
                && is_sign_of_life(act, end, state)
                && !may_come_back(context, life, end, state, act)
        };
        if let Some(act) = life.task.acts.iter().find(alive) {
            found(&end.when, &act.when, "the task had ended");
            return;
        }
    }
}

fn is_sign_of_life(act: &Act, end: &Act, state: StateKind) -> bool {
    match act.what {
        What::Extended { .. } | What::Progressed { .. } | What::Released { .. } | What::PutBack => true,
        What::Cancelled { .. } => true,
        What::Seen { state } => state.is_some_and(|state| !state.is_ended()),
        // The same again gets the stored answer, also when the end was only seen.
        What::Acked { fence } => state != StateKind::Done && end.what.shown() != Some(fence),
        What::Failed { .. } => end_of(act).is_none() && end.what.shown() != act.what.shown(),
        // A claim is told elsewhere; an enqueue may be a repeat; dead tasks may be discarded.
        What::Claimed { .. } | What::Enqueued { .. } | What::Discarded | What::Requeued => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    #[test]
    fn a_task_that_is_seen_as_it_is_is_fine() {
        let mut story = Story::claimed();
        story.get(1, "claimed");
        story.extend(1, 1, 1000);
        story.ack(1, 1);
        story.ack(1, 1);
        story.fail(1, 1, "retrying").rejected("already_ended");
        story.get(1, "done");
        held(&story);
    }

    #[test]
    fn a_look_that_overlaps_a_change_may_see_either() {
        for state in ["claimed", "done"] {
            let mut story = Story::claimed();
            story.ack(1, 1).at(100, 200);
            story.get(1, state).at(150, 160);
            held(&story);
        }
        // The first ack has no answer: from then on the task may be done.
        for state in ["claimed", "done", "ready"] {
            let mut story = Story::claimed();
            story.ack(1, 1).unknown();
            story.get(1, state).at(29_000, 40_000);
            held(&story);
        }
    }

    #[test]
    fn what_fits_no_order_is_found() {
        type Tell = fn(&mut Story);
        let cases: [(&str, Tell, &str); 9] = [
            (
                "acked and failed",
                |s| {
                    s.ack(1, 1);
                    s.fail(1, 1, "retrying");
                },
                "both counted with one fence",
            ),
            (
                "released twice",
                |s| {
                    s.release(1, 1);
                    s.release(1, 1);
                },
                "both counted with one fence",
            ),
            (
                "extended after its ack",
                |s| {
                    s.ack(1, 1);
                    s.extend(1, 1, 5);
                },
                "it counted after the claim was given up",
            ),
            (
                "refused its own token",
                |s| {
                    s.ack(1, 1).rejected("stale_token");
                },
                "refused while the claim held",
            ),
            (
                "seen ready while held",
                |s| {
                    s.get(1, "ready");
                },
                "it saw another state while the claim held",
            ),
            (
                "seen live after its end",
                |s| {
                    s.ack(1, 1);
                    s.get(1, "claimed");
                },
                "the task had ended",
            ),
            (
                "acked after a discard",
                |s| {
                    s.discard(1);
                    s.ack(1, 1);
                },
                "the task had ended",
            ),
            (
                "put back after it was seen dead",
                |s| {
                    s.get(1, "dead").at(40_000, 40_010);
                    s.put_back(1);
                },
                "the task had ended",
            ),
            (
                "done without an ack",
                |s| {
                    s.get(1, "done").at(40_000, 40_010);
                },
                "nobody acked it",
            ),
        ];
        for (what, tell, expected) in cases {
            let mut story = Story::claimed();
            tell(&mut story);
            let text = broken(&story, Promise::Linearizable);
            assert!(text.contains(expected) && text.contains("line 4"), "{what}: {text}");
        }
    }
}
