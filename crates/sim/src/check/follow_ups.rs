//! The follow-ups of an answered ack come, each exactly once. That none comes twice is seen in `invented.rs`.

use hashbrown::HashSet;

use super::Context;
use super::births::Birth;
use super::facts::Wide;
use super::invented::Seen;
use super::report::{Findings, Promise};

/// Attempts and lost claims of a queue that says nothing.
const LOST_CLAIMS_DEFAULT: u32 = 5;

pub(super) fn check(context: &Context<'_>, seen: &Seen, findings: &mut Findings) {
    let Some(end) = context.end.filter(|end| end.drained) else { return };
    let mut told: HashSet<u128> = HashSet::new();
    for birth in context.births.iter() {
        let Some((source, n)) = birth.source.filter(|_| birth.when.is_ok() && !birth.keyed) else { continue };
        let due = birth.when.end.saturating_add(birth.delay_ms.unwrap_or(0).saturating_mul(1000));
        let missing =
            !seen.is_seen(birth.payload) && due < end.at_us && !may_be_over(context, birth, end.listed);
        if missing && told.insert(birth.payload) {
            findings.add(Promise::FollowUpsOnce, || {
                let ack = birth.when.tell(context.names);
                format!(
                    "task {source}: follow-up {n} of {ack} into {:?} was never seen",
                    context.names.text(birth.queue)
                )
            });
        }
    }
}

/// Whether it may have come and gone without anybody seeing it.
fn may_be_over(context: &Context<'_>, birth: &Birth, listed: bool) -> bool {
    let ends_all = [Wide::Discard, Wide::Cancel, Wide::Purge];
    let queue = context.facts.queue(Some(birth.queue));
    let rules = queue.map(|queue| &queue.rules);
    let attempts = birth.attempts.or(rules.and_then(|rules| rules.attempts)).unwrap_or(LOST_CLAIMS_DEFAULT);
    let poison = rules.and_then(|rules| rules.poison_after).unwrap_or(LOST_CLAIMS_DEFAULT);
    let hidden_claims = queue.map_or(0, |queue| queue.hidden_claims(context.run.shards));
    let by_filter = context.facts.wide(Some(birth.queue), &ends_all, birth.when.start).next().is_some();
    // Among all tasks that were left it would stand as dead.
    !listed && (by_filter || hidden_claims >= u64::from(attempts.min(poison)))
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    /// Task 1 was acked with a follow-up whose payload is "p2".
    fn acked() -> Story {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.ack(1, 1).then(2);
        story
    }

    #[test]
    fn a_follow_up_that_comes_once_is_fine() {
        let mut story = acked();
        story.claim(2, 2);
        story.ack(2, 2);
        story.end(true, false);
        held(&story);
    }

    #[test]
    fn the_same_follow_up_of_two_attempts_comes_once() {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.ack(1, 1).then(2).unknown();
        story.claim(1, 2).at(40_000, 40_010);
        story.ack(1, 2).then(2);
        story.claim(2, 3);
        story.ack(2, 3);
        story.end(true, false);
        held(&story);
        story.claim_with(3, 4, |claim| claim.got[0].payload = "p2".to_owned());
        let text = broken(&story, Promise::FollowUpsOnce);
        assert!(text.contains("2 tasks with one payload") && text.contains("ack by w (line 4"), "{text}");
    }

    #[test]
    fn a_follow_up_that_never_comes_is_found() {
        let mut story = acked();
        story.end(true, false);
        let text = broken(&story, Promise::FollowUpsOnce);
        assert!(text.contains("follow-up 0 of ack by w (line 4") && text.contains("never seen"), "{text}");
    }

    #[test]
    fn an_ack_without_an_answer_owes_no_follow_up() {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 1);
        story.ack(1, 1).then(2).unknown();
        story.end(true, false);
        held(&story);
    }
}
