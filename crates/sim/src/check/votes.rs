//! A member's term never goes back, its vote of a term is never given twice, and a term has one leader.

use hashbrown::HashMap;

use super::report::{Findings, Promise};
use super::task::at;
use crate::history::{Leader, Vote};

/// What each member has promised, and who led.
#[derive(Default)]
pub(super) struct Votes {
    /// By node, incarnation and group: the newest promise and its line.
    promised: HashMap<(u64, u64, u16), (u32, Vote)>,
    /// By group and term.
    leaders: HashMap<(u16, u64), (u32, u64)>,
}

impl Votes {
    pub(super) fn take_vote(&mut self, line: u32, vote: &Vote, findings: &mut Findings) {
        let key = (vote.node, vote.incarnation, vote.group);
        let Some((first, known)) = self.promised.insert(key, (line, vote.clone())) else { return };
        let member = || format!("node {} (life {}) in group {}", vote.node, vote.incarnation, vote.group);
        if vote.term < known.term {
            findings.add(Promise::VotesKept, || {
                let (before, after) = (at(known.at_us), at(vote.at_us));
                let terms = format!(
                    "term {} (line {first}, {before}) to {} (line {line}, {after})",
                    known.term, vote.term
                );
                format!("{}: went back from {terms}", member())
            });
        } else if vote.term == known.term
            && let Some(before) = known.voted_for
            && vote.voted_for != Some(before)
        {
            findings.add(Promise::VotesKept, || {
                let now = vote.voted_for.map_or_else(|| "nobody".to_owned(), |node| format!("node {node}"));
                let term = vote.term;
                format!(
                    "{}: in term {term} voted for node {before} (line {first}), then for {now} (line {line})",
                    member()
                )
            });
        }
    }

    pub(super) fn take_leader(&mut self, line: u32, leader: &Leader, findings: &mut Findings) {
        let (group, term) = (leader.group, leader.term);
        let &mut (first, node) = self.leaders.entry((group, term)).or_insert((line, leader.node));
        if node != leader.node {
            findings.add(Promise::VotesKept, || {
                let now = leader.node;
                format!("group {group}, term {term}: led by node {node} (line {first}) and by node {now} (line {line})")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    #[test]
    fn terms_that_rise_and_votes_that_stay_are_fine() {
        let mut story = Story::new();
        story.vote(1, 0, 1, None).vote(1, 0, 1, Some(2)).vote(1, 0, 1, Some(2)).vote(1, 0, 3, None);
        // A node that lost its disk has promised nothing in its new life.
        story.vote(1, 1, 1, Some(3));
        story.leader(2, 1).leader(2, 1).leader(3, 2);
        held(&story);
    }

    #[test]
    fn a_promise_that_is_taken_back_is_found() {
        let cases = [
            ("a term", (5, None), (4, None), "went back from term 5 (line 2"),
            (
                "a vote",
                (5, Some(2)),
                (5, Some(3)),
                "in term 5 voted for node 2 (line 2), then for node 3 (line 3)",
            ),
            ("forgotten", (5, Some(2)), (5, None), "then for nobody"),
        ];
        for (what, before, after, expected) in cases {
            let mut story = Story::new();
            story.vote(1, 0, before.0, before.1).vote(1, 0, after.0, after.1);
            let text = broken(&story, Promise::VotesKept);
            assert!(text.contains("node 1 (life 0) in group 1") && text.contains(expected), "{what}: {text}");
        }
        let mut story = Story::new();
        story.leader(1, 7).leader(2, 7);
        let text = broken(&story, Promise::VotesKept);
        assert!(text.contains("term 7: led by node 1 (line 2) and by node 2 (line 3)"), "{text}");
    }
}
