//! Answers and the log: whoever was answered before another asked, stands before it in the log.
//!
//! An answer's entry was proposed after the call began and applied before it ended. So along the log no
//! entry may have been answered before an earlier one was asked for: a claim answered before its commit, an
//! answer of a leader that is none any more, or a log that was cut show up here.

use std::collections::BTreeMap;

use model::GroupId;

use super::Context;
use super::report::{Findings, Promise};
use super::task::When;

/// Whether a call made the entry, or only saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Write,
    Read,
}

/// Where in the logs the answers stand.
#[derive(Default)]
pub(super) struct Timeline {
    groups: BTreeMap<GroupId, Vec<(u64, Kind, When)>>,
}

impl Timeline {
    pub(super) fn add(&mut self, group: GroupId, index: u64, kind: Kind, when: When) {
        self.groups.entry(group).or_default().push((index, kind, when));
    }

    pub(super) fn check(self, context: &Context<'_>, findings: &mut Findings) {
        for (group, mut answers) in self.groups {
            answers.sort_unstable_by_key(|&(index, kind, when)| (index, kind, when.line));
            check_group(context, group, &answers, findings);
        }
    }
}

fn check_group(
    context: &Context<'_>,
    group: GroupId,
    answers: &[(u64, Kind, When)],
    findings: &mut Findings,
) {
    // The call that began last among those that stand before, or in the same entry.
    let mut last: Option<(u64, When)> = None;
    for alike in answers.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let (index, kind, _) = alike[0];
        let latest = alike.iter().map(|&(_, _, when)| when).max_by_key(|when| when.start);
        let newer = latest.filter(|when| last.is_none_or(|(_, known)| known.start < when.start));
        // Calls that wrote in one entry were all asked before it was answered; two reads may see the same entry.
        if kind == Kind::Write
            && let Some(when) = newer
        {
            last = Some((index, when));
        }
        for (_, _, when) in alike {
            if let Some((earlier, asked)) = last.filter(|(_, asked)| when.before(asked)) {
                findings.add(Promise::Linearizable, || {
                    let names = context.names;
                    let (first, second) = (when.tell(names), asked.tell(names));
                    format!(
                        "group {group}: {first} was answered with index {index}, then {second} with {earlier}"
                    )
                });
            }
        }
        if kind == Kind::Read
            && let Some(when) = newer
        {
            last = Some((index, when));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    #[test]
    fn answers_stand_in_the_log_as_they_were_given() {
        let mut story = Story::new();
        story.enqueue(1).index(10);
        story.enqueue(2).index(11);
        // At the same time, in any order; and together in one entry.
        story.enqueue(3).at(100, 200).index(14);
        story.enqueue(4).at(110, 150).index(13);
        story.enqueue(5).at(120, 150).index(13);
        held(&story);
    }

    #[test]
    fn an_answer_from_before_what_was_answered_already_is_found() {
        let mut story = Story::new();
        story.enqueue(1).index(10);
        story.enqueue(2).index(10);
        let text = broken(&story, Promise::Linearizable);
        assert!(text.contains("group 1") && text.contains("index 10"), "{text}");
        let mut story = Story::new();
        story.enqueue(1).index(10);
        story.enqueue(2).index(9);
        let text = broken(&story, Promise::Linearizable);
        assert!(text.contains("line 2") && text.contains("line 3"), "{text}");
    }

    #[test]
    fn a_read_may_see_the_entry_of_another_and_not_less_than_what_was_answered() {
        let mut story = Story::new();
        story.enqueue(1).index(10);
        story.get(1, "ready").index(10);
        story.get(1, "ready").index(10);
        story.enqueue(2).index(11);
        held(&story);
        story.get(1, "ready").index(10);
        broken(&story, Promise::Linearizable);
    }
}
