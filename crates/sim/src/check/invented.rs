//! Every task that anybody saw was enqueued by somebody: with this payload, into this queue, before.

use hashbrown::HashMap;
use model::TaskId;

use super::Context;
use super::life::Life;
use super::report::{Findings, Promise};
use super::task::{NEVER, What, When};

/// Tasks of one payload that no answered enqueue named.
struct Unnamed {
    tasks: Vec<(TaskId, When)>,
}

/// Payloads that were seen.
#[derive(Default)]
pub(super) struct Seen {
    unnamed: HashMap<u128, Unnamed>,
    /// Payloads of follow-ups that some task has.
    followed: hashbrown::HashSet<u128>,
}

impl Seen {
    /// Whether some task has this follow-up's payload.
    pub(super) fn is_seen(&self, payload: u128) -> bool {
        self.followed.contains(&payload)
    }

    /// A call without an answer made at most one task, and so did all acks of one task with this follow-up.
    pub(super) fn finish(&self, context: &Context<'_>, findings: &mut Findings) {
        let mut many: Vec<_> = self.unnamed.iter().filter(|(_, unnamed)| unnamed.tasks.len() > 1).collect();
        many.sort_unstable_by_key(|(_, unnamed)| unnamed.tasks[0].0);
        for (&payload, unnamed) in many {
            let unknown =
                context.births.of(payload).filter(|birth| birth.task.is_none() && birth.source.is_none());
            let unknown = unknown.count();
            let mut sources: Vec<_> = context.births.of(payload).filter_map(|birth| birth.source).collect();
            sources.sort_unstable();
            sources.dedup();
            if unnamed.tasks.len() <= unknown + sources.len() {
                continue;
            }
            let promise = if unknown == 0 { Promise::FollowUpsOnce } else { Promise::NotInvented };
            findings.add(promise, || {
                let told =
                    unnamed.tasks.iter().map(|(id, when)| format!("task {id}, {}", when.tell(context.names)));
                let told: Vec<String> = told.take(4).collect();
                let calls =
                    context.births.of(payload).map(|birth| birth.when.tell(context.names).to_string());
                let calls: Vec<String> = calls.take(4).collect();
                format!(
                    "{} tasks with one payload: {}; made by: {}",
                    unnamed.tasks.len(),
                    told.join("; "),
                    calls.join("; ")
                )
            });
        }
    }
}

pub(super) fn check(context: &Context<'_>, life: &Life<'_>, seen: &mut Seen, findings: &mut Findings) {
    let (Some(payload), false) = (life.task.payload, life.born_by == NEVER) else { return };
    let answered = life.task.acts.iter().filter(|act| act.when.is_ok());
    let first = answered.clone().min_by_key(|act| act.when.end).expect("it was born by an answer");
    let mut births = life.births(context).peekable();
    let none = births.peek().is_none();
    if none || life.born_by < life.born_from {
        findings.add(Promise::NotInvented, || {
            let first = first.when.tell(context.names);
            let why = match life.birth {
                None => "nobody enqueued it there with this payload".to_owned(),
                Some(birth) => {
                    format!("the first that may have made it is {}", birth.when.tell(context.names))
                }
            };
            format!("{}: {first} saw it; {why}", life.name())
        });
        return;
    }
    if births.clone().any(|birth| birth.source.is_some()) {
        seen.followed.insert(payload);
    }
    if !answered.clone().any(|act| matches!(act.what, What::Enqueued { .. })) {
        let unnamed = seen.unnamed.entry(payload).or_insert_with(|| Unnamed { tasks: Vec::new() });
        unnamed.tasks.push((life.task.id, first.when));
    }
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    #[test]
    fn a_task_of_an_enqueue_without_an_answer_is_not_invented() {
        let mut story = Story::new();
        story.enqueue(1).unknown();
        story.claim(1, 1);
        held(&story);
    }

    #[test]
    fn a_task_that_nobody_enqueued_is_found() {
        let mut story = Story::new();
        story.claim(1, 1);
        let text = broken(&story, Promise::NotInvented);
        assert!(text.contains("claim by w (line 2") && text.contains("nobody enqueued it"), "{text}");
        // One that was refused was not enqueued either.
        let mut story = Story::new();
        story.enqueue(1).rejected("queue_full");
        story.claim(1, 1);
        broken(&story, Promise::NotInvented);
        // Nor one that nobody had asked for yet.
        let mut story = Story::new();
        story.claim(1, 1);
        story.enqueue(1).unknown();
        let text = broken(&story, Promise::NotInvented);
        assert!(text.contains("the first that may have made it is enqueue by w (line 3"), "{text}");
    }

    #[test]
    fn another_payload_than_was_enqueued_is_found() {
        let mut story = Story::new();
        story.enqueue(1);
        story.claim_with(1, 1, |claim| claim.got[0].payload = "another".to_owned());
        let text = broken(&story, Promise::NotInvented);
        assert!(text.contains("claim by w (line 3") && text.contains("another payload"), "{text}");
    }

    #[test]
    fn two_tasks_of_one_enqueue_are_found() {
        let mut story = Story::new();
        story.enqueue(1).unknown();
        story.claim(1, 1);
        story.claim_with(2, 2, |claim| claim.got[0].payload = "p1".to_owned());
        let text = broken(&story, Promise::NotInvented);
        assert!(text.contains("2 tasks with one payload"), "{text}");
    }
}
