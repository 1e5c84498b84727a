//! A queue's numbers agree with what was done: not fewer than was answered before, not more than was asked.

use hashbrown::HashMap;

use super::Context;
use super::facts::Name;
use super::facts::Wide;
use super::life::{Life, end_of};
use super::report::{Findings, Promise};
use super::task::{Act, NEVER, What, When};
use crate::history::Counts;

/// Numbers that somebody looked at.
#[derive(Default)]
pub(super) struct Looks(Vec<(Name, When, Counts)>);

impl Looks {
    pub(super) fn add(&mut self, queue: Name, when: When, counts: Counts) {
        self.0.push((queue, when, counts));
    }
}

/// Something that happens to tasks: moments by which it surely had, and from which it may have.
#[derive(Default)]
struct Bounds {
    by: Vec<u64>,
    from: Vec<u64>,
}

impl Bounds {
    fn add(&mut self, by: u64, from: u64) {
        if by != NEVER {
            self.by.push(by);
        }
        self.from.push(from);
    }

    fn sort(&mut self) {
        self.by.sort_unstable();
        self.from.sort_unstable();
    }

    /// How many for certain before `when` began, and how many at most until it ended.
    fn around(&self, when: &When) -> (u64, u64) {
        let least = self.by.partition_point(|&by| by < when.start);
        (least as u64, self.from.partition_point(|&from| from <= when.end) as u64)
    }
}

/// What was done in one queue.
#[derive(Default)]
struct Done {
    enqueued: Bounds,
    done: Bounds,
    failed: Bounds,
    dead: Bounds,
    freed: Bounds,
    /// Lives that somebody may have begun anew.
    requeued: Bounds,
    /// Tasks that surely lived until then.
    alive_until: Vec<u64>,
    /// Tasks that had ended for good by then.
    over_by: Vec<u64>,
}

/// What was done in all queues.
#[derive(Default)]
pub(super) struct Numbers(HashMap<Name, Done>);

impl Numbers {
    pub(super) fn add(&mut self, life: &Life<'_>) {
        let (Some(queue), false) = (life.task.queue, life.born_by == NEVER) else { return };
        let numbers = self.0.entry(queue).or_default();
        let acts = &life.task.acts;
        let named = acts.iter().any(|act| act.when.is_ok() && matches!(act.what, What::Enqueued { .. }));
        // One that no answer named is counted with the call that may have made it.
        numbers.enqueued.add(life.born_by, if named { life.born_from } else { NEVER });
        numbers.alive_until.push(life.alive_until);
        if let Some((by, from)) = bounds_of(acts, |act| matches!(act.what, What::Acked { .. })) {
            numbers.done.add(by, from);
        }
        for hold in &life.holds {
            if let Some((by, from)) = bounds_of(hold.acts, |act| matches!(act.what, What::Failed { .. })) {
                numbers.failed.add(by, from);
            }
            let dead = |act: &Act| {
                matches!(act.what, What::Failed { .. }) && end_of(act) == Some(model::StateKind::Dead)
            };
            if let Some((by, _)) = bounds_of(hold.acts, dead) {
                numbers.dead.add(by, NEVER);
            }
            if let Some((by, _)) = bounds_of(hold.acts, |act| matches!(act.what, What::Released { .. })) {
                numbers.freed.add(by, NEVER);
            }
        }
        for act in life.others.iter().filter(|act| act.when.is_ok() && matches!(act.what, What::PutBack)) {
            numbers.freed.add(act.when.end, NEVER);
        }
        for act in life.others.iter().filter(|act| act.when.may_be() && matches!(act.what, What::Requeued)) {
            numbers.requeued.add(NEVER, act.when.start);
        }
        let requeued = life.others.iter().any(|act| matches!(act.what, What::Requeued) && act.when.may_be());
        let over = life.ends.iter().filter(|(_, state)| *state == model::StateKind::Done || !requeued);
        if let Some(by) = over.map(|(act, _)| act.when.end).min() {
            numbers.over_by.push(by);
        }
    }

    pub(super) fn check(mut self, context: &Context<'_>, looks: &Looks, findings: &mut Findings) {
        if looks.0.is_empty() {
            return;
        }
        for birth in context.births.iter().filter(|birth| birth.task.is_none()) {
            self.0.entry(birth.queue).or_default().enqueued.add(NEVER, birth.when.start);
        }
        for numbers in self.0.values_mut() {
            numbers.sort();
        }
        let nothing = Done::default();
        for (queue, when, counts) in &looks.0 {
            let numbers = self.0.get(queue).unwrap_or(&nothing);
            for (what, count, (least, most)) in numbers.expect(context, *queue, when, counts) {
                if count < least || count > most {
                    findings.add(Promise::CountsConserved, || {
                        let (name, look) = (context.names.text(*queue), when.tell(context.names));
                        let most = if most == NEVER { "any".to_owned() } else { most.to_string() };
                        format!("queue {name:?}: {look} saw {count} {what}; it must be {least} to {most}")
                    });
                }
            }
        }
    }
}

impl Done {
    fn sort(&mut self) {
        let Done { enqueued, done, failed, dead, freed, requeued, .. } = self;
        for bounds in [enqueued, done, failed, dead, freed, requeued] {
            bounds.sort();
        }
        self.alive_until.sort_unstable();
        self.over_by.sort_unstable();
    }

    /// Each number with what it may be at least and at most.
    fn expect(
        &self,
        context: &Context<'_>,
        queue: Name,
        when: &When,
        counts: &Counts,
    ) -> [(&'static str, u64, (u64, u64)); 6] {
        let totals = counts.totals;
        let (least_in, most_in) = self.enqueued.around(when);
        let maybe_over = self.alive_until.partition_point(|&until| until <= when.end) as u64;
        let comes_back = context.facts.wide(Some(queue), &[Wide::Requeue], 0).next().is_some();
        let over = if comes_back { 0 } else { self.over_by.partition_point(|&by| by < when.start) as u64 };
        let live = (least_in.saturating_sub(maybe_over), most_in.saturating_sub(over));
        // Each life ends dead once at most.
        let lives = if comes_back { NEVER } else { most_in + self.requeued.around(when).1 };
        [
            ("enqueued", totals.enqueued, (least_in, most_in)),
            ("done", totals.done, self.done.around(when)),
            ("failed", totals.failed, self.failed.around(when)),
            ("dead", totals.dead, (self.dead.around(when).0, lives)),
            ("freed", totals.freed, (self.freed.around(when).0, NEVER)),
            ("live", counts.depth.live(), live),
        ]
    }
}

/// By when the first of these was surely done, and from when it may have been.
fn bounds_of(acts: &[Act], which: impl Fn(&Act) -> bool) -> Option<(u64, u64)> {
    let alike = acts.iter().filter(|act| act.when.may_be() && which(act));
    let from = alike.clone().map(|act| act.when.start).min()?;
    let by = alike.filter(|act| act.when.is_ok()).map(|act| act.when.end).min().unwrap_or(NEVER);
    Some((by, from))
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};
    use crate::history::{Depth, Totals};

    /// Two enqueued and one that may be; one done, one that may be; one fail.
    fn busy() -> Story {
        let mut story = Story::new();
        story.enqueue(1);
        story.enqueue(2);
        story.enqueue(3).unknown();
        story.claim(1, 1);
        story.claim(2, 2);
        story.fail(2, 2, "retrying");
        story.ack(1, 1);
        story.claim(2, 3).attempt(2);
        story.ack(2, 3).unknown();
        story
    }

    #[test]
    fn numbers_within_what_may_have_been_are_fine() {
        for (enqueued, done, live) in [(2, 1, 1), (2, 2, 0), (3, 1, 2), (3, 2, 1)] {
            let mut story = busy();
            let totals = Totals { enqueued, done, failed: 1, dead: 0, freed: 0 };
            story.counts(totals, Depth { ready: live, ..Depth::default() });
            held(&story);
        }
    }

    #[test]
    fn numbers_that_cannot_be_are_found() {
        let right = Totals { enqueued: 2, done: 1, failed: 1, dead: 0, freed: 0 };
        let cases = [
            ("one enqueue lost", Totals { enqueued: 1, ..right }, 1, "saw 1 enqueued; it must be 2 to 3"),
            ("one enqueued twice", Totals { enqueued: 4, ..right }, 1, "saw 4 enqueued; it must be 2 to 3"),
            ("an ack lost", Totals { done: 0, ..right }, 1, "saw 0 done; it must be 1 to 2"),
            ("a fail counted twice", Totals { failed: 2, ..right }, 1, "saw 2 failed; it must be 1 to 1"),
            ("more dead than lives", Totals { dead: 4, ..right }, 1, "saw 4 dead; it must be 0 to 3"),
            ("too many live", right, 3, "saw 3 live; it must be 0 to 2"),
        ];
        for (what, totals, live, expected) in cases {
            let mut story = busy();
            story.counts(totals, Depth { ready: live, ..Depth::default() });
            let text = broken(&story, Promise::CountsConserved);
            assert!(text.contains(expected) && text.contains("counts by w (line 11"), "{what}: {text}");
        }
    }
}
