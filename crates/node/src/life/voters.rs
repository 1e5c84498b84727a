//! Which nodes vote in which group: a rule without a clock or a network.
//!
//! As few changes as possible. A node that is down keeps its votes: only a person knows whether it comes
//! back, and takes them away with `cluster leave` or `cluster promote`. It is given none either. A group that
//! has its majority does not need another voter to go on, and one that has lost it cannot take one.

use std::collections::{BTreeMap, BTreeSet};

use model::limits::VOTERS_MAX;
use model::{GroupId, NodeId};

/// What the rule needs to know of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// It shall have no votes.
    pub(crate) is_leaving: bool,
    /// It is heard: only such a node is given a vote that it does not have.
    pub(crate) is_up: bool,
}

/// Who votes in a group that is made by these nodes.
pub(crate) fn first(group: GroupId, founders: &[NodeId]) -> Vec<NodeId> {
    let count = founders.len();
    let begin = usize::from(group.0) * VOTERS_MAX;
    let mut voters: Vec<NodeId> = (0..count.min(VOTERS_MAX)).map(|n| founders[(begin + n) % count]).collect();
    voters.sort_unstable();
    voters
}

/// Who should lead a group of these voters.
pub(crate) fn preferred(group: GroupId, voters: &[NodeId]) -> Option<NodeId> {
    voters.get(usize::from(group.0) % voters.len().max(1)).copied()
}

/// The next change of votes, if one is due: first those that a group needs, then those that spread the work.
/// `votes` has an entry for every group; `written` says which groups have theirs in the catalog already.
pub(crate) fn next_change(
    votes: &BTreeMap<GroupId, Vec<NodeId>>,
    written: &BTreeSet<GroupId>,
    nodes: &BTreeMap<NodeId, Candidate>,
) -> Option<(GroupId, Vec<NodeId>)> {
    let stays = |node: &NodeId| nodes.get(node).is_some_and(|candidate| !candidate.is_leaving);
    let eligible: Vec<NodeId> = nodes.keys().copied().filter(stays).collect();
    let wanted = eligible.len().min(VOTERS_MAX);
    let mut loads: BTreeMap<NodeId, usize> = eligible.iter().map(|node| (*node, 0)).collect();
    for node in votes.values().flatten() {
        if let Some(load) = loads.get_mut(node) {
            *load += 1;
        }
    }
    for (group, now) in votes {
        let mut next: Vec<NodeId> = now.iter().copied().filter(stays).take(wanted).collect();
        while next.len() < wanted {
            let free = eligible.iter().filter(|node| !next.contains(node) && nodes[*node].is_up);
            let Some(&node) = free.min_by_key(|node| (loads[*node], **node)) else { break };
            *loads.entry(node).or_default() += 1;
            next.push(node);
        }
        next.sort_unstable();
        // With nobody to take over, those that leave stay.
        if !next.is_empty() && (next != *now || !written.contains(group)) {
            return Some((*group, next));
        }
    }
    // Every node has a copy of every group. While one is down, a vote that moves may be the one that is missed
    // when the next node goes.
    if nodes.values().all(|node| node.is_up) { balance(votes, &loads) } else { None }
}

/// Moves a vote from the node with the most to the one with the fewest, if that makes them more alike.
fn balance(
    votes: &BTreeMap<GroupId, Vec<NodeId>>,
    loads: &BTreeMap<NodeId, usize>,
) -> Option<(GroupId, Vec<NodeId>)> {
    let (most, most_load) = loads.iter().max_by_key(|(node, load)| (**load, **node))?;
    let (least, least_load) = loads.iter().min_by_key(|(_, load)| **load)?;
    if *most_load < least_load + 2 {
        return None;
    }
    // The catalog last: it is what all else leans on.
    let movable = |(_, now): &(&GroupId, &Vec<NodeId>)| now.contains(most) && !now.contains(least);
    let (group, now) = votes.iter().rev().find(movable)?;
    let mut next: Vec<NodeId> = now.iter().copied().filter(|node| node != most).chain([*least]).collect();
    next.sort_unstable();
    Some((*group, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: Candidate = Candidate { is_leaving: false, is_up: true };
    const DOWN: Candidate = Candidate { is_leaving: false, is_up: false };
    const LEAVING: Candidate = Candidate { is_leaving: true, is_up: true };
    const DEAD_LEAVING: Candidate = Candidate { is_leaving: true, is_up: false };

    fn ids(nodes: &[u64]) -> Vec<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    /// Changes until there are none; how many, and what is then.
    fn settle(votes: &[&[u64]], nodes: &[(u64, Candidate)]) -> (usize, Vec<Vec<u64>>) {
        let nodes = nodes.iter().map(|(node, candidate)| (NodeId(*node), *candidate)).collect();
        let mut votes: BTreeMap<GroupId, Vec<NodeId>> =
            votes.iter().zip(0..).map(|(voters, group)| (GroupId(group), ids(voters))).collect();
        let written = votes.keys().copied().collect();
        let mut changes = 0;
        while let Some((group, voters)) = next_change(&votes, &written, &nodes) {
            votes.insert(group, voters);
            changes += 1;
            assert!(changes < 1_000, "it goes on for ever: {votes:?}");
        }
        (changes, votes.into_values().map(|voters| voters.iter().map(|node| node.0).collect()).collect())
    }

    #[test]
    fn votes_change_as_little_as_they_can() {
        let trio: &[u64] = &[1, 2, 3];
        for (what, votes, nodes, changes, expected) in [
            ("one node", vec![&[1][..]], vec![(1, UP)], 0, vec![vec![1]]),
            ("a second comes", vec![&[1]], vec![(1, UP), (2, UP)], 1, vec![vec![1, 2]]),
            ("a second that is not heard yet", vec![&[1]], vec![(1, UP), (2, DOWN)], 0, vec![vec![1]]),
            ("three", vec![trio, trio], vec![(1, UP), (2, UP), (3, UP)], 0, vec![vec![1, 2, 3]; 2]),
            ("one is down", vec![trio, trio], vec![(1, UP), (2, UP), (3, DOWN)], 0, vec![vec![1, 2, 3]; 2]),
            ("one leaves", vec![trio], vec![(1, UP), (2, UP), (3, LEAVING)], 1, vec![vec![1, 2]]),
            ("one has gone", vec![trio], vec![(1, UP), (2, UP)], 1, vec![vec![1, 2]]),
            (
                "a dead one leaves, a spare takes its place",
                vec![trio],
                vec![(1, UP), (2, UP), (3, LEAVING), (4, UP)],
                1,
                vec![vec![1, 2, 4]],
            ),
            (
                "a spare that is down gets nothing",
                vec![trio],
                vec![(1, UP), (2, UP), (3, LEAVING), (4, DOWN)],
                1,
                vec![vec![1, 2]],
            ),
            (
                "a fourth takes its share",
                vec![trio; 4],
                vec![(1, UP), (2, UP), (3, UP), (4, UP)],
                3,
                vec![vec![1, 2, 3], vec![2, 3, 4], vec![1, 3, 4], vec![1, 2, 4]],
            ),
            (
                "all voters leave",
                vec![&[1], &[1]],
                vec![(1, LEAVING), (2, UP), (3, DOWN)],
                2,
                vec![vec![2]; 2],
            ),
            (
                "all voters leave and nobody else is heard",
                vec![&[1], &[1]],
                vec![(1, LEAVING), (2, DOWN), (3, DOWN)],
                0,
                vec![vec![1]; 2],
            ),
            (
                "the share of a fourth waits for a spare that is down",
                vec![trio; 4],
                vec![(1, UP), (2, UP), (3, UP), (4, UP), (5, DOWN)],
                0,
                vec![vec![1, 2, 3]; 4],
            ),
            (
                "and for one that leaves and is down",
                vec![trio; 4],
                vec![(1, UP), (2, UP), (3, UP), (4, UP), (5, DEAD_LEAVING)],
                0,
                vec![vec![1, 2, 3]; 4],
            ),
        ] {
            assert_eq!(settle(&votes, &nodes), (changes, expected), "{what}");
        }
    }

    /// `"1 3- 2>"`: node 1 is up, node 3 down, node 2 leaves.
    fn candidates(text: &str) -> Vec<(u64, Candidate)> {
        let candidate = |word: &str| {
            let number = word.trim_end_matches(['-', '>']);
            let candidate = Candidate { is_leaving: word.contains('>'), is_up: !word.contains('-') };
            (number.parse().unwrap(), candidate)
        };
        text.split_whitespace().map(candidate).collect()
    }

    #[test]
    fn nobody_gains_or_loses_a_vote_by_being_down_while_others_come_and_go() {
        /// Who is there, and who votes in each group when nothing is left to do.
        type Looks = &'static [(&'static str, &'static [&'static str])];
        let sequences: [(&str, &[&str], Looks); 6] = [
            (
                "one is down, a fourth joins, another leaves",
                &["1 2 3"; 5],
                &[
                    ("1 2 3-", &["1 2 3"; 5]),
                    ("1 2 3- 4-", &["1 2 3"; 5]),
                    ("1 2 3- 4", &["1 2 3"; 5]),
                    ("1 2> 3- 4", &["1 3 4"; 5]),
                    ("1 3- 4", &["1 3 4"; 5]),
                    ("1 3 4", &["1 3 4"; 5]),
                ],
            ),
            (
                "one is down, another leaves, a fourth joins",
                &["1 2 3"; 5],
                &[("1 2> 3-", &["1 3"; 5]), ("1 2> 3- 4", &["1 3 4"; 5]), ("1 3 4", &["1 3 4"; 5])],
            ),
            (
                "a fourth joins, one goes down before it has its share, another leaves",
                &["1 2 3", "1 2 3", "1 2 4"],
                &[
                    ("1 2 3- 4", &["1 2 3", "1 2 3", "1 2 4"]),
                    ("1 2> 3- 4", &["1 3 4", "1 3 4", "1 4"]),
                    // The third vote as soon as there is somebody to have it.
                    ("1 2> 3 4", &["1 3 4"; 3]),
                ],
            ),
            (
                "each of four restarts, and has its votes when it is back",
                &["1 2 3"; 4],
                &[
                    ("1- 2 3 4", &["1 2 3"; 4]),
                    ("1 2- 3 4", &["1 2 3"; 4]),
                    ("1 2 3- 4", &["1 2 3"; 4]),
                    ("1 2 3 4-", &["1 2 3"; 4]),
                    ("1 2 3 4", &["1 2 3", "2 3 4", "1 3 4", "1 2 4"]),
                ],
            ),
            (
                "one is down, another leaves, two spares share what is free, then the first leaves too",
                &["1 2 3"; 4],
                &[
                    ("1 2 3- 4 5", &["1 2 3"; 4]),
                    ("1 2> 3- 4 5", &["1 3 4", "1 3 5", "1 3 4", "1 3 5"]),
                    ("1 3>- 4 5", &["1 4 5"; 4]),
                ],
            ),
            (
                "the only voter leaves, and whoever is heard first takes over",
                &["1"; 2],
                &[("1> 2- 3-", &["1"; 2]), ("1> 2- 3", &["3"; 2]), ("1> 2 3", &["2 3"; 2])],
            ),
        ];
        let numbers = |text: &&str| -> Vec<u64> { candidates(text).iter().map(|(node, _)| *node).collect() };
        for (what, votes, looks) in sequences {
            let mut votes: Vec<Vec<u64>> = votes.iter().map(numbers).collect();
            for (nodes, expected) in looks {
                let before: Vec<&[u64]> = votes.iter().map(Vec::as_slice).collect();
                let (_, after) = settle(&before, &candidates(nodes));
                assert_eq!(after, expected.iter().map(numbers).collect::<Vec<_>>(), "{what}: {nodes}");
                votes = after;
            }
        }
    }

    #[test]
    fn what_is_not_written_yet_is_written_first() {
        let votes = BTreeMap::from([(GroupId(0), ids(&[1, 2, 3]))]);
        let nodes = [1, 2, 3].map(|node| (NodeId(node), UP)).into();
        let change = next_change(&votes, &BTreeSet::new(), &nodes);
        assert_eq!(change, Some((GroupId(0), ids(&[1, 2, 3]))));
    }

    #[test]
    fn first_votes_and_leaders_are_spread() {
        assert_eq!(first(GroupId(3), &ids(&[1, 2])), ids(&[1, 2]));
        let founders = ids(&[1, 2, 3, 4, 5]);
        let mut loads = BTreeMap::new();
        for group in 0..5 {
            for node in first(GroupId(group), &founders) {
                *loads.entry(node).or_insert(0) += 1;
            }
        }
        assert_eq!(loads.into_values().collect::<Vec<_>>(), [3; 5]);
        let leaders: Vec<_> =
            (0..3).filter_map(|group| preferred(GroupId(group), &ids(&[1, 2, 3]))).collect();
        assert_eq!(leaders, ids(&[1, 2, 3]));
        assert_eq!(preferred(GroupId(0), &[]), None);
    }
}
