//! Tasks of one order key are claimed in the order in which they were enqueued, the next only when the one
//! before has ended: a retry, a release or a lost worker keeps the place.

use std::collections::BTreeMap;

use model::TaskId;

use super::Context;
use super::facts::Name;
use super::life::Life;
use super::report::{Findings, Promise};
use super::task::{NEVER, When, at};

/// A task in a line.
struct One {
    task: TaskId,
    born_from: u64,
    born_by: u64,
    alive_until: u64,
    /// Each claim that was answered: it was made no earlier than that, and by its call.
    claims: Vec<(u64, When)>,
}

impl One {
    fn first_claim(&self) -> Option<&When> {
        self.claims.iter().map(|(_, when)| when).min_by_key(|when| when.end)
    }
}

/// The lines of all order keys.
#[derive(Default)]
pub(super) struct Lines(BTreeMap<(Name, u128), Vec<One>>);

impl Lines {
    pub(super) fn add(&mut self, life: &Life<'_>) {
        let Some(key) = life.birth.and_then(|birth| birth.order) else { return };
        let (Some(queue), false) = (life.task.queue, life.born_by == NEVER) else { return };
        let claims = life.holds.iter().filter_map(|hold| Some((hold.from, hold.claim()?.when))).collect();
        self.0.entry((queue, key)).or_default().push(One {
            task: life.task.id,
            born_from: life.born_from,
            born_by: life.born_by,
            alive_until: life.alive_until,
            claims,
        });
    }

    pub(super) fn check(self, context: &Context<'_>, findings: &mut Findings) {
        for ((queue, _), line) in self.0 {
            let found = overtaken(&line).or_else(|| at_once(&line));
            if let Some((before, claim, task)) = found {
                findings.add(Promise::InOrder, || {
                    let claim = claim.tell(context.names);
                    let (queue, before, until) = (context.names.text(queue), before.task, at(before.alive_until));
                    format!("queue {queue:?}: task {task}: {claim} got it, while task {before} before it in its order key had not ended at {until}")
                });
            }
        }
    }
}

type Found<'a> = (&'a One, &'a When, TaskId);

/// A claim of a task while one that was surely enqueued before it surely lived.
fn overtaken(line: &[One]) -> Option<Found<'_>> {
    let mut by_birth: Vec<&One> = line.iter().collect();
    by_birth.sort_unstable_by_key(|one| (one.born_by, one.task));
    let mut before = by_birth.into_iter().peekable();
    let mut followers: Vec<&One> = line.iter().collect();
    followers.sort_unstable_by_key(|one| (one.born_from, one.task));
    let mut longest: Option<&One> = None;
    for one in followers {
        while let Some(earlier) = before.next_if(|earlier| earlier.born_by < one.born_from) {
            if longest.is_none_or(|known| known.alive_until < earlier.alive_until) {
                longest = Some(earlier);
            }
        }
        if let (Some(claim), Some(earlier)) = (one.first_claim(), longest)
            && claim.end < earlier.alive_until
        {
            return Some((earlier, claim, one.task));
        }
    }
    None
}

/// A claim of a task while another that had been claimed before surely lived.
fn at_once(line: &[One]) -> Option<Found<'_>> {
    let mut heads: Vec<(&When, &One)> =
        line.iter().filter_map(|one| Some((one.first_claim()?, one))).collect();
    heads.sort_unstable_by_key(|(when, one)| (when.end, one.task));
    let mut heads = heads.into_iter().peekable();
    let mut claims: Vec<(u64, &When, TaskId)> = Vec::new();
    for one in line {
        claims.extend(one.claims.iter().map(|(from, when)| (*from, when, one.task)));
    }
    claims.sort_unstable_by_key(|&(from, when, task)| (from, when.line, task));
    // The two that live longest: one of them may be the task itself.
    let mut longest: [Option<&One>; 2] = [None, None];
    for (from, claim, task) in claims {
        while let Some((_, head)) = heads.next_if(|(when, _)| when.end < from) {
            let lives = |one: Option<&One>| one.map_or(0, |one| one.alive_until);
            if head.alive_until > lives(longest[0]) {
                longest = [Some(head), longest[0]];
            } else if head.alive_until > lives(longest[1]) {
                longest[1] = Some(head);
            }
        }
        let other = longest.into_iter().flatten().find(|one| one.task != task);
        if let Some(other) = other.filter(|other| claim.end < other.alive_until) {
            return Some((other, claim, task));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    fn line_of(tasks: u64) -> Story {
        let mut story = Story::new();
        for n in 1..=tasks {
            story.enqueue_with(n, |task| task.order_key = Some("user-7".to_owned()));
        }
        story
    }

    #[test]
    fn a_line_that_moves_on_is_fine() {
        let mut story = line_of(3);
        story.claim(1, 1);
        story.fail(1, 1, "retrying");
        story.claim(1, 2).attempt(2);
        story.ack(1, 2).at(1_000, 1_100);
        // The ack may have been done before its answer.
        story.claim(2, 3).at(1_010, 1_020);
        story.fail(2, 3, "dead").fatal();
        story.claim(3, 4);
        // Requeued at the tail.
        story.requeue(2);
        story.ack(3, 4);
        story.claim(2, 5);
        held(&story);
    }

    #[test]
    fn enqueued_at_the_same_time_either_may_be_first() {
        let mut story = Story::new();
        story.enqueue_with(1, |task| task.order_key = Some("k".to_owned())).at(0, 50);
        story.enqueue_with(2, |task| task.order_key = Some("k".to_owned())).at(10, 20);
        story.claim(2, 1);
        story.ack(2, 1);
        story.claim(1, 2);
        story.ack(1, 2);
        held(&story);
    }

    #[test]
    fn the_next_may_come_when_an_ack_without_an_answer_was_sent() {
        let mut story = line_of(2);
        story.claim(1, 1);
        story.ack(1, 1).unknown();
        story.claim(2, 2);
        held(&story);
    }

    #[test]
    fn one_that_overtakes_is_found() {
        // While the first waits, while it is held, and while it backs off.
        for held in 0..3 {
            let mut story = line_of(2);
            if held > 0 {
                story.claim(1, 1);
            }
            if held > 1 {
                story.fail(1, 1, "retrying");
            }
            story.claim(2, 2);
            story.claim(1, 3).attempt(2).at(40_000, 40_010);
            story.ack(1, 3);
            let text = broken(&story, Promise::InOrder);
            assert!(
                text.contains("had not ended at 40.020000 s") && text.contains("claim by w (line"),
                "{text}"
            );
        }
    }

    #[test]
    fn two_at_once_are_found_whoever_was_first() {
        let mut story = Story::new();
        story.enqueue_with(1, |task| task.order_key = Some("k".to_owned())).at(0, 50);
        story.enqueue_with(2, |task| task.order_key = Some("k".to_owned())).at(10, 50);
        story.claim(1, 1);
        story.claim(2, 2);
        story.ack(1, 1);
        story.ack(2, 2);
        broken(&story, Promise::InOrder);
    }
}
