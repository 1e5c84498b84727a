//! A claim holds until its deadline, unless somebody gave it up: nobody else gets the task before.

use super::Context;
use super::life::Life;
use super::report::{Findings, Promise};
use super::task::{Act, at};

pub(super) fn check(context: &Context<'_>, life: &Life<'_>, findings: &mut Findings) {
    let mut later: Option<&Act> = None;
    for hold in life.holds.iter().rev() {
        let claim = hold.claim();
        if let (Some(earlier), Some(next)) = (claim, later)
            && next.when.end < hold.until
        {
            findings.add(Promise::Held, || {
                let (next, earlier) = (next.when.tell(context.names), earlier.when.tell(context.names));
                format!("{}: {next} got it, {earlier} held it until {} at least", life.name(), at(hold.until))
            });
        }
        if claim.is_some_and(|claim| later.is_none_or(|known| claim.when.end < known.when.end)) {
            later = claim;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    #[test]
    fn a_claim_that_was_given_up_may_be_followed_at_once() {
        for answered in [true, false] {
            for what in ["fail", "release", "put back", "put back by filter", "discard and requeue", "remove"]
            {
                let mut story = Story::claimed();
                let call = match what {
                    "fail" => story.fail(1, 1, "retrying"),
                    "release" => story.release(1, 1),
                    "put back" => story.put_back(1),
                    "put back by filter" => story.put_back_all(),
                    "discard and requeue" => {
                        story.requeue(1).at(200, 300);
                        story.discard(1).at(100, 150)
                    }
                    _ => story.remove_worker(),
                };
                if !answered {
                    call.unknown();
                }
                story.claim(1, 2).attempt(2).at(400, 410);
                held(&story);
            }
        }
    }

    #[test]
    fn a_claim_may_follow_at_the_deadline_and_a_shorter_one_may_be_in_force() {
        let mut story = Story::claimed();
        story.claim(1, 2).attempt(2).at(30_025, 30_030);
        held(&story);
        // Whether the extend was done nobody knows; if so, the deadline came sooner.
        let mut story = Story::claimed();
        story.extend(1, 1, 1_000).unknown();
        story.claim(1, 2).attempt(2).at(1_100, 1_110);
        held(&story);
    }

    #[test]
    fn a_session_may_be_lost_without_anybody_seeing_it() {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim_with(1, 1, |claim| claim.session = Some("s1".to_owned()));
        story.claim(1, 2).at(3_000, 3_010);
        held(&story);
        // Unless the recorder vouches for it.
        story.steady("s1", 0, 10_000);
        let text = broken(&story, Promise::Held);
        assert!(text.contains("held it until 10.000000 s at least"), "{text}");
    }

    #[test]
    fn a_claim_before_the_deadline_is_found() {
        let mut story = Story::claimed();
        story.claim(1, 2).at(29_000, 29_010);
        let text = broken(&story, Promise::Held);
        assert!(text.contains("(line 4, 29.000000 s to 29.010000 s) got it"), "{text}");
        assert!(text.contains("(line 3, 0.020000 s to 0.030000 s) held it until 30.018000 s"), "{text}");
    }

    #[test]
    fn a_claim_before_an_extended_deadline_is_found() {
        let mut story = Story::claimed();
        story.extend(1, 1, 60_000).at(20_000, 20_010);
        story.claim(1, 2).at(40_000, 40_010);
        broken(&story, Promise::Held);
    }

    #[test]
    fn a_fail_that_was_refused_gave_nothing_up() {
        let mut story = Story::claimed();
        story.fail(1, 1, "retrying").rejected("unavailable");
        story.claim(1, 2);
        broken(&story, Promise::Held);
    }
}
