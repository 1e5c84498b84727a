//! Attempts are counted: none too many, none forgotten, and a task ends when they are used up, not before.

use model::StateKind;

use super::Context;
use super::facts::Wide;
use super::hold::Hold;
use super::life::Life;
use super::report::{Findings, Promise};
use super::task::{Act, What};

pub(super) fn check(context: &Context<'_>, life: &Life<'_>, findings: &mut Findings) {
    let mut found = |act: &Act, what: String| {
        findings
            .add(Promise::Attempts, || format!("{}: {}: {what}", life.name(), act.when.tell(context.names)));
    };
    let mut before: Option<(&Act, u32, Used)> = None;
    for hold in &life.holds {
        let (Some(claim), Some(attempt)) = (hold.claim(), hold.attempt()) else { continue };
        if let Some(max) = life.attempts_max.filter(|&max| attempt > max) {
            found(claim, format!("attempt {attempt} of {max}"));
        }
        if let Some((earlier, used, failed)) = before {
            let least = used + u32::from(failed != Used::Nothing);
            if attempt < least && !life.may_be_requeued(context, &earlier.when, &claim.when) {
                let earlier = earlier.when.tell(context.names);
                found(
                    claim,
                    format!("attempt {attempt}, after {earlier} had got attempt {used}{}", failed.as_str()),
                );
            }
        }
        let failed = hold.acts.iter().filter(|act| act.when.is_ok());
        let failed = failed.filter(|act| matches!(act.what, What::Failed { .. }));
        for fail in failed.clone() {
            if let Some(what) = wrong_fail(life, fail, attempt) {
                found(fail, what);
            }
        }
        let released = hold.acts.iter().filter(|act| act.when.is_ok());
        for release in released {
            if let What::Released { attempt: Some(used), .. } = release.what
                && used + 1 != attempt
            {
                let what = format!("used up {used} attempts, and the claim was attempt {attempt}");
                found(release, what);
            }
        }
        let used = match failed.count() {
            0 if surely_ran_out(context, life, hold) => Used::Late,
            0 => Used::Nothing,
            _ => Used::Failed,
        };
        before = Some((claim, attempt, used));
    }
}

/// How a claim surely used up its attempt, if another one follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Used {
    Nothing,
    Failed,
    Late,
}

impl Used {
    fn as_str(self) -> &'static str {
        match self {
            Used::Nothing => "",
            Used::Failed => " and failed",
            Used::Late => " and let its deadline pass",
        }
    }
}

/// Whether nothing but its deadline can have freed a claim. One with a session may have been given back by its node,
/// and so may one whose request was made twice: an answer of it may have found nobody.
fn surely_ran_out(context: &Context<'_>, life: &Life<'_>, hold: &Hold<'_>) -> bool {
    let [Act { what: What::Claimed { session: None, request: None, .. }, .. }] = hold.claims else {
        return false;
    };
    let by_hand =
        life.others.iter().filter(|act| !matches!(act.what, What::Seen { .. } | What::Enqueued { .. }));
    let mut by_hand = by_hand.filter(|act| act.when.may_be() && act.when.end >= hold.from);
    let all = [Wide::PutBack, Wide::Discard, Wide::Cancel, Wide::Requeue, Wide::Purge];
    let mut settles = hold.acts.iter().filter(|act| act.what.settles() && act.when.may_be());
    settles.next().is_none()
        && by_hand.next().is_none()
        && context.facts.wide(life.task.queue, &all, hold.from).next().is_none()
}

/// What is wrong with the answer to a fail, if anything is.
fn wrong_fail(life: &Life<'_>, fail: &Act, attempt: u32) -> Option<String> {
    let What::Failed { fatal, state, attempt: used, .. } = fail.what else { return None };
    if let Some(used) = used.filter(|&used| used != attempt) {
        return Some(format!("answered attempt {used}, the claim was attempt {attempt}"));
    }
    let max = life.attempts_max?;
    let of_age =
        life.birth.is_none_or(|birth| birth.age_max) || life.queue.is_some_and(|queue| queue.rules.age_max);
    match state? {
        StateKind::Retrying if attempt >= max => Some(format!("retrying after attempt {attempt} of {max}")),
        state @ (StateKind::Dead | StateKind::Failed) if attempt < max && !fatal && !of_age => {
            Some(format!("{state} after attempt {attempt} of {max}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    fn with_attempts(attempts: u32) -> Story {
        let mut story = Story::new();
        story.enqueue_with(1, |task| task.attempts = Some(attempts));
        story
    }

    #[test]
    fn attempts_that_are_counted_are_fine() {
        let mut story = with_attempts(3);
        story.claim(1, 1);
        story.fail(1, 1, "retrying");
        story.claim(1, 2).attempt(2);
        story.release(1, 2);
        story.claim(1, 3).attempt(2);
        // A claim without an answer may have used one up.
        story.claim(1, 5).attempt(3).at(60_000, 60_010);
        story.fail(1, 5, "dead").attempt(3);
        story.requeue(1);
        story.claim(1, 6).attempt(1);
        story.fail(1, 6, "dead").fatal();
        held(&story);
    }

    #[test]
    fn a_wrong_count_is_found() {
        type Tell = fn(&mut Story);
        let cases: [(&str, Tell, &str); 8] = [
            (
                "too many",
                |s| {
                    s.claim(1, 1).attempt(4);
                },
                "attempt 4 of 3",
            ),
            (
                "forgotten",
                |s| {
                    s.claim(1, 1);
                    s.fail(1, 1, "retrying");
                    s.claim(1, 2).attempt(1);
                },
                "had got attempt 1 and failed",
            ),
            (
                "gone back",
                |s| {
                    s.claim(1, 1).attempt(2);
                    s.release(1, 1);
                    s.claim(1, 2).attempt(1);
                },
                "attempt 1, after",
            ),
            (
                "not counted",
                |s| {
                    s.claim(1, 1);
                    s.claim(1, 2).attempt(1).at(60_000, 60_010);
                },
                "had got attempt 1 and let its deadline pass",
            ),
            (
                "counted for nothing",
                |s| {
                    s.claim(1, 1);
                    s.release(1, 1).attempt(1);
                },
                "used up 1 attempts, and the claim was attempt 1",
            ),
            (
                "goes on",
                |s| {
                    s.claim(1, 1).attempt(3);
                    s.fail(1, 1, "retrying");
                },
                "retrying after attempt 3 of 3",
            ),
            (
                "ends too soon",
                |s| {
                    s.claim(1, 1);
                    s.fail(1, 1, "dead");
                },
                "dead after attempt 1 of 3",
            ),
            (
                "another number",
                |s| {
                    s.claim(1, 1);
                    s.fail(1, 1, "retrying").attempt(2);
                },
                "answered attempt 2, the claim was",
            ),
        ];
        for (what, tell, expected) in cases {
            let mut story = with_attempts(3);
            tell(&mut story);
            let text = broken(&story, Promise::Attempts);
            assert!(text.contains(expected), "{what}: {text}");
        }
    }
}
