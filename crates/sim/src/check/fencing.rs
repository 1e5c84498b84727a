//! After a claim with a greater fence was answered, a smaller one counts no more.

use super::Context;
use super::life::Life;
use super::report::{Findings, Promise};
use super::task::Act;

pub(super) fn check(context: &Context<'_>, life: &Life<'_>, findings: &mut Findings) {
    // Of the claims after the one at hand, the one that was answered first.
    let mut later: Option<&Act> = None;
    for hold in life.holds.iter().rev() {
        if let Some(claim) = later {
            for act in hold.acts.iter().filter(|act| act.when.is_ok() && claim.when.before(&act.when)) {
                findings.add(Promise::Fenced, || {
                    let (act, claim) = (act.when.tell(context.names), claim.when.tell(context.names));
                    let greater = claim_fence(later);
                    format!(
                        "{}: {act} counted with fence {}, after {claim} got {greater}",
                        life.name(),
                        hold.fence
                    )
                });
            }
        }
        let claim = hold.claim();
        if claim.is_some_and(|claim| later.is_none_or(|known| claim.when.end < known.when.end)) {
            later = claim;
        }
    }
}

fn claim_fence(claim: Option<&Act>) -> u64 {
    claim.and_then(|claim| claim.what.fence()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    #[test]
    fn an_old_token_that_is_refused_is_fine() {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.claim(1, 2).attempt(2).at(40_000, 40_010);
        story.ack(1, 1).rejected("stale_token");
        story.ack(1, 2);
        held(&story);
    }

    #[test]
    fn an_old_token_may_count_while_the_next_claim_is_on_its_way() {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.release(1, 1).at(1_000, 1_500);
        story.claim(1, 2).at(990, 1_400);
        held(&story);
    }

    #[test]
    fn an_old_token_that_counts_is_found() {
        for what in ["ack", "fail", "release", "extend", "progress"] {
            let mut story = Story::new();
            story.enqueue(1);
            story.claim(1, 1);
            story.claim(1, 2).at(40_000, 40_010);
            match what {
                "ack" => story.ack(1, 1),
                "fail" => story.fail(1, 1, "retrying"),
                "release" => story.release(1, 1),
                "extend" => story.extend(1, 1, 1000),
                _ => story.progress(1, 1),
            };
            let text = broken(&story, Promise::Fenced);
            let call = format!("{what} by w (line 5, 40.020000 s to 40.030000 s) counted with fence 1");
            assert!(text.contains(&call) && text.contains("line 4") && text.contains("got 2"), "{text}");
        }
    }
}
