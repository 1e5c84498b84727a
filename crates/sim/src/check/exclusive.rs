//! A dedup or unique key, within its queue and place, belongs to one task at a time.

use model::TaskId;

use super::Context;
use super::facts::Name;
use super::life::Life;
use super::report::{Findings, Promise};
use super::task::{NEVER, When, at};

/// Tasks of one key that are compared with each other, by the order of their births.
const NEIGHBOURS_MAX: usize = 8;

/// Which kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Dedup,
    Unique,
}

/// A task that has a key.
struct Holder {
    scope: (Kind, Name, u128, u128),
    task: TaskId,
    born_by: u64,
    alive_until: u64,
    window_ms: u64,
    proof: When,
}

/// All keys and the tasks that have them.
#[derive(Default)]
pub(super) struct Keys(Vec<Holder>);

impl Keys {
    pub(super) fn add(&mut self, life: &Life<'_>) {
        let (Some(birth), Some(queue)) = (life.birth.filter(|_| life.born_by != NEVER), life.task.queue)
        else {
            return;
        };
        let answered = life.task.acts.iter().filter(|act| act.when.is_ok());
        let Some(proof) = answered.min_by_key(|act| act.when.end) else { return };
        // The later keys hold within the place of the first; a pinned queue is one place.
        let pinned = life.queue.is_some_and(|queue| queue.rules.pinned);
        let within = |place: Option<u128>| place.filter(|_| !pinned).unwrap_or(0);
        let mut add = |kind: Kind, key: u128, place: Option<u128>, window_ms: u64| {
            let scope = (kind, queue, key, within(place));
            let (born_by, alive_until) = (life.born_by, life.alive_until);
            self.0.push(Holder {
                scope,
                task: life.task.id,
                born_by,
                alive_until,
                window_ms,
                proof: proof.when,
            });
        };
        if let Some(key) = birth.dedup {
            add(Kind::Dedup, key, birth.order.or(birth.unique), birth.window_ms);
        }
        if let Some(key) = birth.unique {
            add(Kind::Unique, key, birth.order, 0);
        }
    }

    pub(super) fn check(mut self, context: &Context<'_>, findings: &mut Findings) {
        self.0.sort_unstable_by_key(|holder| (holder.scope, holder.born_by, holder.task));
        for holders in self.0.chunk_by(|a, b| a.scope == b.scope) {
            for (n, one) in holders.iter().enumerate() {
                for other in holders[n + 1..].iter().take(NEIGHBOURS_MAX) {
                    // Whichever of them came first: the other came too soon after it.
                    if other.born_by < free_from(context, one) && one.born_by < free_from(context, other) {
                        tell(context, one, other, findings);
                    }
                }
            }
        }
    }
}

/// The key may be free again from then on, not before.
fn free_from(context: &Context<'_>, holder: &Holder) -> u64 {
    holder.alive_until.saturating_add(context.least_wall_us(holder.window_ms, NEVER))
}

fn tell(context: &Context<'_>, one: &Holder, other: &Holder, findings: &mut Findings) {
    findings.add(Promise::OnceIn, || {
        let what = if one.scope.0 == Kind::Dedup { "dedup" } else { "unique" };
        let (first, second) = (one.proof.tell(context.names), other.proof.tell(context.names));
        let free = at(free_from(context, one));
        let (a, b, queue) = (one.task, other.task, context.names.text(one.scope.1));
        format!("queue {queue:?}: task {a} ({first}) and task {b} ({second}) have one {what} key, not free before {free}")
    });
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};
    use crate::history::Enqueue;

    fn keyed(task: &mut Enqueue) {
        task.dedup_key = Some("k".to_owned());
        task.dedup_window_ms = Some(1_000);
        task.payload = "p".to_owned();
    }

    #[test]
    fn one_task_per_key_and_another_after_its_window_is_fine() {
        let mut story = Story::new();
        story.enqueue_with(1, keyed).unknown();
        story.enqueue_with(1, |task| {
            keyed(task);
            task.duplicate = true;
        });
        story.claim_with(1, 1, |claim| claim.got[0].payload = "p".to_owned());
        story.ack(1, 1).at(100, 200);
        story.enqueue_with(2, keyed).at(1_080, 1_110);
        held(&story);
    }

    #[test]
    fn the_same_key_in_another_place_is_another_key() {
        let mut story = Story::new();
        for (n, order) in [(1, "a"), (2, "b")] {
            story.enqueue_with(n, |task| {
                task.dedup_key = Some("k".to_owned());
                task.order_key = Some(order.to_owned());
            });
        }
        held(&story);
        // In a pinned queue all keys are in one place.
        story.queue(|queue| queue.pinned = true);
        broken(&story, Promise::OnceIn);
    }

    #[test]
    fn two_tasks_of_one_dedup_key_are_found() {
        let mut story = Story::new();
        story.enqueue_with(1, keyed);
        story.enqueue_with(2, keyed);
        let text = broken(&story, Promise::OnceIn);
        assert!(text.contains("enqueue by w (line 2") && text.contains("enqueue by w (line 3"), "{text}");
        // The window is not over.
        let mut story = Story::new();
        story.enqueue_with(1, keyed);
        story.claim_with(1, 1, |claim| claim.got[0].payload = "p".to_owned());
        story.ack(1, 1).at(500, 510);
        story.enqueue_with(2, keyed).at(1_200, 1_210);
        let text = broken(&story, Promise::OnceIn);
        assert!(text.contains("not free before 1.498000 s"), "{text}");
    }

    #[test]
    fn two_live_tasks_of_one_unique_key_are_found() {
        let unique = |task: &mut Enqueue| task.unique_key = Some("u".to_owned());
        let mut story = Story::new();
        story.enqueue_with(1, unique);
        story.claim(1, 1);
        story.ack(1, 1);
        story.enqueue_with(2, unique);
        held(&story);
        story.enqueue_with(3, unique);
        story.claim(2, 2);
        broken(&story, Promise::OnceIn);
    }
}
