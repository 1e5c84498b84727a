//! Makes the members of a group what the catalog says: the next step, as a rule without a clock.
//!
//! A copy first follows without a vote. It gets its vote when it has caught up, in the same change that takes
//! the vote of the member whose place it has: an old life of the same node before all others. So a group never
//! has fewer members that can answer than it had. Every step can be taken again.

use std::collections::{BTreeMap, BTreeSet};

use model::MemberId;
use replica::Members;

/// What a leader does next for its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All is as it should be, or somebody has to catch up first.
    Nothing,
    /// Lets a new copy follow.
    AddLearner(MemberId),
    /// Lets another lead: this one is to lose its vote.
    HandOver(MemberId),
    /// Makes these the voters, and the others that are wanted learners, each where it is now.
    SetMembers(BTreeSet<MemberId>),
}

/// What the catalog wants of a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// They shall vote.
    pub(crate) voters: BTreeSet<MemberId>,
    /// All that shall have a copy, voters included, and where they are.
    pub(crate) copies: BTreeMap<MemberId, String>,
}

/// The next step of the leader `me`; `ready` are the members that have caught up.
pub(crate) fn next_step(
    me: MemberId,
    members: &Members,
    wanted: &Wanted,
    ready: &BTreeSet<MemberId>,
) -> Step {
    if wanted.voters.is_empty() || !members.committed {
        return Step::Nothing;
    }
    let is_in = |member: &MemberId| members.voters.contains(member) || members.learners.contains(member);
    if let Some(missing) = wanted.copies.keys().find(|member| !is_in(member)) {
        return Step::AddLearner(*missing);
    }
    let mut next = next_voters(members, wanted, ready);
    if !next.contains(&me) && members.voters.contains(&me) {
        let heir = next.iter().find(|member| members.voters.contains(member) && ready.contains(member));
        if let Some(heir) = heir {
            return Step::HandOver(*heir);
        }
        // With nobody to hand over to, it stays until one of the new has its vote.
        next.insert(me);
    }
    let is_extra = |member: &MemberId| !next.contains(member) && !wanted.copies.contains_key(member);
    let has_extra = members.learners.iter().any(is_extra);
    let has_moved = |(member, address)| members.addresses.get(member).is_some_and(|known| known != address);
    let has_moved = wanted.copies.iter().any(has_moved);
    if next == members.voters && !members.is_joint && !has_extra && !has_moved {
        return Step::Nothing;
    }
    // The change itself needs a majority of the new voters: without one it would stop the group.
    if next.intersection(ready).count() <= next.len() / 2 {
        return Step::Nothing;
    }
    Step::SetMembers(next)
}

fn next_voters(members: &Members, wanted: &Wanted, ready: &BTreeSet<MemberId>) -> BTreeSet<MemberId> {
    let has_vote_or_may = |member: &&MemberId| members.voters.contains(member) || ready.contains(member);
    let mut next: BTreeSet<MemberId> = wanted.voters.iter().filter(has_vote_or_may).copied().collect();
    // For each that has to catch up yet, one that is to go stays: best an old life of the same node.
    let mut late: Vec<MemberId> = wanted.voters.iter().filter(|m| !next.contains(m)).copied().collect();
    let mut going: Vec<MemberId> =
        members.voters.iter().filter(|m| !wanted.voters.contains(m)).copied().collect();
    late.retain(|late| match going.iter().position(|old| old.node() == late.node()) {
        Some(place) => {
            next.insert(going.remove(place));
            false
        }
        None => true,
    });
    // An old life whose successor votes already is gone for good; any other voter can stand in.
    let has_successor = |old: &MemberId| next.iter().any(|member| member.node() == old.node());
    let stand_ins: Vec<MemberId> =
        going.into_iter().filter(|old| !has_successor(old)).take(late.len()).collect();
    next.extend(stand_ins);
    next
}

#[cfg(test)]
mod tests {
    use model::NodeId;

    use super::*;

    /// `"2.1"` is the second life of node 2.
    fn member(text: &str) -> MemberId {
        let (node, incarnation) = text.split_once('.').unwrap_or((text, "0"));
        MemberId::new(NodeId(node.parse().unwrap()), incarnation.parse().unwrap())
    }

    fn set(text: &str) -> BTreeSet<MemberId> {
        text.split_whitespace().map(member).collect()
    }

    fn step(me: &str, voters: &str, learners: &str, wanted: &str, copies: &str, ready: &str) -> String {
        let (voters, learners) = (set(voters), set(learners));
        let members = Members { voters, learners, committed: true, ..Members::default() };
        let copies = set(copies).into_iter().map(|member| (member, String::new())).collect();
        let wanted = Wanted { voters: set(wanted), copies };
        match next_step(member(me), &members, &wanted, &set(ready)) {
            Step::Nothing => "nothing".to_owned(),
            Step::AddLearner(member) => format!("add {member}"),
            Step::HandOver(member) => format!("hand over {member}"),
            Step::SetMembers(voters) => {
                let voters: Vec<String> = voters.iter().map(ToString::to_string).collect();
                format!("set {}", voters.join(" "))
            }
        }
    }

    #[test]
    fn a_group_becomes_what_the_catalog_says_step_by_step() {
        // voters, learners | wanted voters, copies | caught up | step of member 1
        for (what, voters, learners, wanted, copies, ready, expected) in [
            ("all is well", "1 2 3", "", "1 2 3", "1 2 3", "1 2 3", "nothing"),
            ("nobody said anything yet", "1 2 3", "", "", "", "1 2 3", "nothing"),
            ("a node joins", "1", "", "1 2", "1 2", "1", "add 2"),
            ("it has to catch up", "1", "2", "1 2", "1 2", "1", "nothing"),
            ("it has caught up", "1", "2", "1 2", "1 2", "1 2", "set 1 2"),
            ("a spare stays without a vote", "1 2 3", "4", "1 2 3", "1 2 3 4", "1 2 3 4", "nothing"),
            ("a node lost its disk", "1 2 3", "", "1 2 3.1", "1 2 3.1", "1 2", "add 3.1"),
            ("its old life keeps the vote", "1 2 3", "3.1", "1 2 3.1", "1 2 3.1", "1 2", "nothing"),
            (
                "until the new one has caught up",
                "1 2 3",
                "3.1",
                "1 2 3.1",
                "1 2 3.1",
                "1 2 3.1",
                "set 1 2 3.1",
            ),
            (
                "what is left of the old one goes",
                "1 2 3.1",
                "3",
                "1 2 3.1",
                "1 2 3.1",
                "1 2 3.1",
                "set 1 2 3.1",
            ),
            ("a voter is replaced", "1 2 3", "4", "1 2 4", "1 2 3 4", "1 2 3 4", "set 1 2 4"),
            ("not before its heir is ready", "1 2 3", "4", "1 2 4", "1 2 3 4", "1 2 3", "nothing"),
            (
                "two lost their disks, one is back",
                "1 2 3",
                "2.1 3.1",
                "1 2.1 3.1",
                "1 2.1 3.1",
                "1 2.1",
                "set 1 3 2.1",
            ),
            ("one leaves without a heir", "1 2 3", "", "1 2", "1 2 3", "1 2", "set 1 2"),
            ("a copy that nobody wants goes", "1 2", "3", "1 2", "1 2", "1 2", "set 1 2"),
            ("the leader is to go", "1 2 3", "", "2 3", "1 2 3", "1 2 3", "hand over 2"),
            ("to one that has all", "1 2 3", "", "2 3", "1 2 3", "1 3", "hand over 3"),
            ("nothing that would stop the group", "1 2 3", "", "1 2", "1 2 3", "1 3", "nothing"),
            ("or it waits", "1 2 3", "", "2 3", "1 2 3", "1", "nothing"),
            ("all are replaced", "1 2 3", "4 5 6", "4 5 6", "1 2 3 4 5 6", "1 2 3 4 5 6", "set 1 4 5 6"),
            ("one of the new leads", "1 4 5 6", "2 3", "4 5 6", "1 2 3 4 5 6", "1 4 5 6", "hand over 4"),
            ("a heir that is down", "1 2 3", "4 5", "2 4 5", "1 2 3 4 5", "1 3 4 5", "set 1 2 4 5"),
            ("the only one leaves", "1", "2", "2", "1 2", "1 2", "set 1 2"),
            ("not before the other is ready", "1", "2", "2", "1 2", "1", "nothing"),
            ("then it goes", "1 2", "", "2", "1 2", "1 2", "hand over 2"),
            ("one without a vote gets none", "2 3", "1", "2 3", "1 2 3", "1 2 3", "nothing"),
        ] {
            assert_eq!(step("1", voters, learners, wanted, copies, ready), expected, "{what}");
        }
    }

    #[test]
    fn a_node_that_moved_is_known_at_its_new_address() {
        let at = |addresses: &[(&str, &str)]| -> BTreeMap<MemberId, String> {
            addresses.iter().map(|(who, address)| (member(who), (*address).to_owned())).collect()
        };
        let members = Members {
            voters: set("1 2"),
            learners: set("3"),
            addresses: at(&[("1", "a"), ("2", "b"), ("3", "c")]),
            committed: true,
            ..Members::default()
        };
        for (what, copies, ready, expected) in [
            ("nobody", [("1", "a"), ("2", "b"), ("3", "c")], "1 2 3", Step::Nothing),
            ("a voter", [("1", "a"), ("2", "b2"), ("3", "c")], "1 2 3", Step::SetMembers(set("1 2"))),
            ("a learner", [("1", "a"), ("2", "b"), ("3", "c2")], "1 2 3", Step::SetMembers(set("1 2"))),
            ("too few would hear of it", [("1", "a"), ("2", "b2"), ("3", "c")], "1 3", Step::Nothing),
        ] {
            let wanted = Wanted { voters: set("1 2"), copies: at(&copies) };
            assert_eq!(next_step(member("1"), &members, &wanted, &set(ready)), expected, "{what}");
        }
    }
}
