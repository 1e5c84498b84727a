//! Every claim of a shard has its own fence, and a later claim has a greater one.

use model::TaskId;

use super::Context;
use super::life::Life;
use super::report::{Findings, Promise};
use super::task::{What, When};

/// A fence that was given.
struct One {
    shard: u16,
    fence: u64,
    task: TaskId,
    /// The claim was made no earlier.
    from: u64,
    /// The answer that gave it.
    when: When,
}

/// Every fence that was given.
#[derive(Default)]
pub(super) struct Given(Vec<One>);

impl Given {
    pub(super) fn check(&mut self, context: &Context<'_>, life: &Life<'_>, findings: &mut Findings) {
        let names = context.names;
        for hold in &life.holds {
            let Some(claim) = hold.claim() else {
                // Nobody can guess a token: whoever shows one was given it.
                if let Some(act) = hold.acts.iter().find(|act| act.when.is_ok()) {
                    findings.add(Promise::FencesRise, || {
                        format!(
                            "{}: {} with fence {}, which no claim was answered with",
                            life.name(),
                            act.when.tell(names),
                            hold.fence
                        )
                    });
                }
                continue;
            };
            let request = |what: &What| match what {
                What::Claimed { request, .. } => *request,
                _ => None,
            };
            let first = request(&claim.what);
            let stranger = hold.claims.iter().find(|other| {
                other.when.line != claim.when.line && (first.is_none() || request(&other.what) != first)
            });
            if let Some(other) = stranger {
                findings.add(Promise::FencesRise, || {
                    let (one, two) = (claim.when.tell(names), other.when.tell(names));
                    format!("{}: fence {} was given to {one} and to {two}", life.name(), hold.fence)
                });
            }
            let (shard, task) = (life.task.id.shard().number(), life.task.id);
            self.0.push(One { shard, fence: hold.fence, task, from: hold.from, when: claim.when });
        }
    }

    pub(super) fn finish(mut self, context: &Context<'_>, findings: &mut Findings) {
        let names = context.names;
        self.0.sort_unstable_by_key(|one| (one.shard, one.fence, one.task));
        for shard in self.0.chunk_by(|a, b| a.shard == b.shard) {
            // The one that began last among the smaller ones.
            let mut last: Option<&One> = None;
            for (n, one) in shard.iter().enumerate() {
                if let Some(other) =
                    n.checked_sub(1).map(|n| &shard[n]).filter(|other| other.fence == one.fence)
                {
                    findings.add(Promise::FencesRise, || {
                        let (first, second) = (other.when.tell(names), one.when.tell(names));
                        let (a, b) = (other.task, one.task);
                        format!(
                            "fence {} of shard {} was given twice: task {a}, {first}; task {b}, {second}",
                            one.fence, one.shard
                        )
                    });
                }
                if let Some(smaller) =
                    last.filter(|smaller| one.when.end < smaller.from && smaller.fence < one.fence)
                {
                    findings.add(Promise::FencesRise, || {
                        let (first, second) = (one.when.tell(names), smaller.when.tell(names));
                        format!(
                            "task {}: {first} got fence {}; task {}: the later {second} got only {}",
                            one.task, one.fence, smaller.task, smaller.fence
                        )
                    });
                }
                if last.is_none_or(|known| known.from < one.from) {
                    last = Some(one);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    #[test]
    fn fences_that_rise_are_fine_and_a_repeated_request_gets_the_same() {
        let mut story = Story::new();
        story.enqueue(1);
        story.enqueue(2);
        story.claim(1, 4);
        story.claim_with(2, 5, |claim| claim.request = Some("r1".to_owned()));
        story.claim_with(2, 5, |claim| claim.request = Some("r1".to_owned()));
        held(&story);
    }

    #[test]
    fn a_lost_answer_lets_a_repeat_come_late_with_an_old_fence() {
        let mut story = Story::new();
        story.enqueue(1);
        story.enqueue(2);
        story.claim_with(1, 4, |claim| {
            claim.request = Some("r1".to_owned());
            claim.got.clear();
        });
        story.last().unknown();
        story.claim(2, 5);
        story.claim_with(1, 4, |claim| claim.request = Some("r1".to_owned()));
        held(&story);
    }

    #[test]
    fn a_fence_given_twice_is_found() {
        let mut story = Story::new();
        story.enqueue(1);
        story.enqueue(2);
        story.claim(1, 4);
        story.claim(2, 4);
        let text = broken(&story, Promise::FencesRise);
        assert!(text.contains("fence 4 of shard 1 was given twice"), "{text}");
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 4);
        story.claim(1, 4);
        let text = broken(&story, Promise::FencesRise);
        assert!(text.contains("line 3") && text.contains("line 4"), "{text}");
    }

    #[test]
    fn a_smaller_fence_after_a_greater_one_is_found() {
        let mut story = Story::new();
        story.enqueue(1);
        story.enqueue(2);
        story.claim(1, 5);
        story.claim(2, 4);
        let text = broken(&story, Promise::FencesRise);
        assert!(text.contains("got fence 5") && text.contains("got only 4"), "{text}");
    }

    #[test]
    fn a_token_that_nobody_was_given_is_found() {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim(1, 4);
        story.ack(1, 5);
        let text = broken(&story, Promise::FencesRise);
        assert!(text.contains("with fence 5, which no claim was answered with"), "{text}");
    }
}
