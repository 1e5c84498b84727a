//! How the cluster is: from what is seen of nodes and groups to one word and the reasons for it.
//!
//! Pure: `cluster.rs` gathers what is seen. Every reason has a code for programs and a sentence that says what
//! a person can do; groups with the same trouble share one reason.

use std::collections::BTreeMap;

use model::{GroupId, Millis, NodeId};

use crate::info::{Health, NodeState, WhyLine};

/// A copy that is so many entries behind needs a look.
const LAG_MAX: u64 = 10_000;
/// A clock that is so far off needs one, too.
const CLOCK_OFF_MAX_MS: u64 = crate::held_clock::HOLD.0;
/// With fewer copies the loss of one node may stop everything.
const COPIES_MIN: usize = 3;

/// What a node says that is no part of its cluster any more.
pub(crate) const REMOVED: &str = "this node was removed from the cluster: stop it; to join again, start it with an \
                                  empty data directory";

/// All that is seen of the cluster from one node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The node that looks was removed from the cluster.
    pub(crate) is_removed: bool,
    pub(crate) nodes: Vec<SeenNode>,
    pub(crate) groups: Vec<SeenGroup>,
    /// How far each clock is ahead of the median.
    pub(crate) clocks_ms: BTreeMap<NodeId, i64>,
    /// Whether there is a median; else the clocks are compared with this node's own.
    pub(crate) is_median_known: bool,
}

/// A node as it is seen.
#[derive(Clone, Debug)]
pub(crate) struct SeenNode {
    pub(crate) node: NodeId,
    pub(crate) state: NodeState,
    /// For how long it has been down.
    pub(crate) down_for: Option<Millis>,
    pub(crate) disk_full: bool,
    /// Bytes taken and allowed, when there is no room.
    pub(crate) memory_full: Option<(u64, u64)>,
}

impl SeenNode {
    fn is_up(&self) -> bool {
        self.state != NodeState::Down
    }
}

/// A group as it is seen.
#[derive(Clone, Debug)]
pub(crate) struct SeenGroup {
    pub(crate) group: GroupId,
    /// Who leads and is reached.
    pub(crate) leader: Option<NodeId>,
    /// What was committed five seconds ago, as far as that is known.
    pub(crate) committed_before: Option<u64>,
    pub(crate) committed: u64,
    pub(crate) copies: Vec<SeenCopy>,
}

/// A copy of a group as it is seen.
#[derive(Clone, Debug)]
pub(crate) struct SeenCopy {
    pub(crate) node: NodeId,
    pub(crate) is_voter: bool,
    /// Nothing when its node was never heard.
    pub(crate) applied: Option<u64>,
    /// Why it stopped.
    pub(crate) failure: Option<String>,
    pub(crate) is_diverged: bool,
}

/// The word for it, and the reasons: what makes it unavailable first.
pub(crate) fn judge(seen: &Seen) -> (Health, Vec<WhyLine>) {
    let mut lines = Lines::default();
    if seen.is_removed {
        // What it sees is old, and nobody's.
        lines.add("removed", REMOVED.to_owned());
        return (Health::Unavailable, lines.into_reasons());
    }
    let nodes: BTreeMap<NodeId, &SeenNode> = seen.nodes.iter().map(|node| (node.node, node)).collect();
    let is_up = |node: NodeId| nodes.get(&node).is_some_and(|node| node.is_up());
    for group in &seen.groups {
        judge_leader(group, &is_up, &mut lines);
    }
    let is_unavailable = !lines.0.is_empty();
    for group in &seen.groups {
        judge_copies(group, seen.nodes.len(), &is_up, &mut lines);
    }
    seen.nodes.iter().for_each(|node| judge_node(node, &mut lines));
    judge_clocks(seen, &mut lines);
    let reasons = lines.into_reasons();
    let health = match (is_unavailable, reasons.is_empty()) {
        (true, _) => Health::Unavailable,
        (false, true) => Health::Healthy,
        (false, false) => Health::Degraded,
    };
    (health, reasons)
}

fn judge_leader(group: &SeenGroup, is_up: &dyn Fn(NodeId) -> bool, lines: &mut Lines) {
    let voters: Vec<NodeId> =
        group.copies.iter().filter(|copy| copy.is_voter).map(|copy| copy.node).collect();
    let up = voters.iter().filter(|node| is_up(**node)).count();
    if 2 * up <= voters.len() && !voters.is_empty() {
        let text = format!(
            "only {up} of {} voters can be reached from here, and more than half are needed: \
             bring the nodes back that are down, or look at the network",
            voters.len()
        );
        lines.group("no_quorum", group.group, text);
    } else if group.leader.is_none() {
        let text = "no leader that can be reached from here: an election takes a second, \
                    after that look at the nodes that vote";
        lines.group("no_leader", group.group, text.to_owned());
    }
}

fn judge_copies(group: &SeenGroup, nodes: usize, is_up: &dyn Fn(NodeId) -> bool, lines: &mut Lines) {
    for copy in &group.copies {
        let node = copy.node;
        if copy.is_diverged {
            let text = format!(
                "the copy on node {node} differs from the majority's and was stopped: keep that node's data \
                 directory for inspection, and start the node again with an empty one"
            );
            lines.group("diverged", group.group, text);
        } else if let Some(failure) = &copy.failure {
            let text = format!("the copy on node {node} has stopped ({failure}): look at that node's log");
            lines.group("group_stopped", group.group, text);
        } else if is_up(node) && is_lagging(group, copy) {
            let text = format!("the copy on node {node} is far behind: look at that node's disk and load");
            lines.group("replica_lagging", group.group, text);
        }
    }
    let voters = group.copies.iter().filter(|copy| copy.is_voter).count();
    if voters > 0 && voters % 2 == 0 {
        let text = format!(
            "{voters} voters, an even number, survive the loss of no more nodes than {} would: \
             run an odd number of nodes",
            voters - 1
        );
        lines.group("even_voters", group.group, text);
    }
    let is_good = |copy: &&SeenCopy| is_up(copy.node) && copy.failure.is_none() && !copy.is_diverged;
    let good = group.copies.iter().filter(is_good).count();
    // A lone node is what its owner wanted.
    if nodes > 1 && good < COPIES_MIN {
        let text = format!("{good} good copies, {COPIES_MIN} are wanted: bring nodes back or add one");
        lines.group("few_copies", group.group, text);
    }
}

/// Behind what was committed seconds ago, or by very much.
fn is_lagging(group: &SeenGroup, copy: &SeenCopy) -> bool {
    let Some(applied) = copy.applied else { return false };
    let is_late = group.committed_before.is_some_and(|before| applied < before);
    is_late || group.committed.saturating_sub(applied) > LAG_MAX
}

fn judge_node(node: &SeenNode, lines: &mut Lines) {
    let id = node.node;
    if let (NodeState::Down, Some(since)) = (node.state, node.down_for) {
        let secs = since.0 / 1000;
        lines.add(
            "node_down",
            format!("node {id} has been down for {secs} s: start it, or look at its network"),
        );
    }
    if node.disk_full {
        let text =
            format!("the disk of node {id} has no room for new tasks: free some, it goes on by itself");
        lines.add("disk_full", text);
    }
    if let Some((bytes, bytes_max)) = node.memory_full {
        let text = format!(
            "the tasks take {bytes} bytes of memory on node {id}, at most {bytes_max} are allowed: \
             let workers catch up or raise memory_bytes_max"
        );
        lines.add("memory_full", text);
    }
}

fn judge_clocks(seen: &Seen, lines: &mut Lines) {
    for (node, off) in seen.clocks_ms.iter().filter(|(_, off)| off.unsigned_abs() > CLOCK_OFF_MAX_MS) {
        let (secs, side) = (off.unsigned_abs() / 1000, if *off > 0 { "ahead of" } else { "behind" });
        let text = if seen.is_median_known {
            format!("the clock of node {node} is {secs} s {side} the others' median: set it")
        } else {
            format!(
                "the clock of node {node} is {secs} s {side} this node's, nobody knows which is right: set both"
            )
        };
        lines.add("clock_off", text);
    }
}

/// Reasons as they come, and the groups that share one.
#[derive(Default)]
struct Lines(Vec<(&'static str, String, Vec<GroupId>)>);

impl Lines {
    fn add(&mut self, code: &'static str, text: String) {
        self.0.push((code, text, Vec::new()));
    }

    fn group(&mut self, code: &'static str, group: GroupId, text: String) {
        match self.0.iter_mut().find(|(other, same, _)| *other == code && *same == text) {
            Some((_, _, groups)) => groups.push(group),
            None => self.0.push((code, text, vec![group])),
        }
    }

    fn into_reasons(self) -> Vec<WhyLine> {
        let reason = |(code, text, groups): (&'static str, String, Vec<GroupId>)| {
            let text = if groups.is_empty() { text } else { format!("{}: {text}", named(&groups)) };
            WhyLine { code, text }
        };
        self.0.into_iter().map(reason).collect()
    }
}

/// Groups as people read them: runs of neighbours drawn together.
fn named(groups: &[GroupId]) -> String {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for group in groups {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == group.0 => *last = group.0,
            _ => runs.push((group.0, group.0)),
        }
    }
    let run = |(first, last): &(u16, u16)| {
        if first == last { first.to_string() } else { format!("{first} to {last}") }
    };
    let word = if groups.len() == 1 { "group" } else { "groups" };
    format!("{word} {}", runs.iter().map(run).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(node: u64) -> SeenNode {
        SeenNode {
            node: NodeId(node),
            state: NodeState::Up,
            down_for: None,
            disk_full: false,
            memory_full: None,
        }
    }

    /// Healthy: so many nodes, the first three of them vote.
    fn cluster(count: u64) -> Seen {
        let copy = |node| SeenCopy {
            node: NodeId(node),
            is_voter: node <= 3,
            applied: Some(100_000),
            failure: None,
            is_diverged: false,
        };
        let group = |group| SeenGroup {
            group: GroupId(group),
            leader: Some(NodeId(1)),
            committed_before: Some(99_000),
            committed: 100_000,
            copies: (1..=count).map(copy).collect(),
        };
        Seen {
            is_removed: false,
            nodes: (1..=count).map(node).collect(),
            groups: (0..=2).map(group).collect(),
            clocks_ms: (1..=count).map(|node| (NodeId(node), 0)).collect(),
            is_median_known: count > 2,
        }
    }

    fn down(seen: &mut Seen, node: usize) {
        seen.nodes[node - 1].state = NodeState::Down;
        seen.nodes[node - 1].down_for = Some(Millis(12_300));
    }

    fn clock(seen: &mut Seen, off_ms: i64) {
        seen.clocks_ms.insert(NodeId(2), off_ms);
    }

    #[test]
    fn every_trouble_has_its_word_and_its_reason() {
        type Row = (&'static str, u64, fn(&mut Seen), Health, &'static [&'static str]);
        let rows: &[Row] = &[
            ("three nodes", 3, |_| {}, Health::Healthy, &[]),
            ("a lone node", 1, |_| {}, Health::Healthy, &[]),
            ("five nodes", 5, |_| {}, Health::Healthy, &[]),
            ("two nodes", 2, |_| {}, Health::Degraded, &["even_voters", "few_copies"]),
            ("one of three is down", 3, |seen| down(seen, 3), Health::Degraded, &["few_copies", "node_down"]),
            ("one of four is down", 4, |seen| down(seen, 4), Health::Degraded, &["node_down"]),
            (
                "two of three are down",
                3,
                |seen| {
                    down(seen, 2);
                    down(seen, 3);
                },
                Health::Unavailable,
                &["no_quorum", "few_copies", "node_down", "node_down"],
            ),
            (
                "the node that looks was removed",
                3,
                |seen| {
                    seen.is_removed = true;
                    down(seen, 2);
                },
                Health::Unavailable,
                &["removed"],
            ),
            ("no leader", 3, |seen| seen.groups[1].leader = None, Health::Unavailable, &["no_leader"]),
            (
                "a joining node counts as up",
                3,
                |seen| seen.nodes[2].state = NodeState::Joining,
                Health::Healthy,
                &[],
            ),
            (
                "many entries behind",
                3,
                |seen| {
                    seen.groups[1].copies[2].applied = Some(89_999);
                    seen.groups[1].committed_before = None;
                },
                Health::Degraded,
                &["replica_lagging"],
            ),
            (
                "a few entries behind",
                3,
                |seen| seen.groups[1].copies[2].applied = Some(99_000),
                Health::Healthy,
                &[],
            ),
            (
                "behind for long",
                3,
                |seen| seen.groups[1].copies[2].applied = Some(98_999),
                Health::Degraded,
                &["replica_lagging"],
            ),
            (
                "never heard is not behind",
                3,
                |seen| seen.groups[1].copies[2].applied = None,
                Health::Healthy,
                &[],
            ),
            (
                "a copy differs",
                3,
                |seen| {
                    seen.groups[1].copies[2].is_diverged = true;
                    seen.groups[1].copies[2].failure = Some("it differs".to_owned());
                },
                Health::Degraded,
                &["diverged", "few_copies"],
            ),
            (
                "a copy stopped",
                3,
                |seen| seen.groups[1].copies[2].failure = Some("disk".to_owned()),
                Health::Degraded,
                &["group_stopped", "few_copies"],
            ),
            ("a full disk", 3, |seen| seen.nodes[0].disk_full = true, Health::Degraded, &["disk_full"]),
            (
                "full memory",
                3,
                |seen| seen.nodes[0].memory_full = Some((5, 4)),
                Health::Degraded,
                &["memory_full"],
            ),
            ("a clock at the edge", 3, |seen| clock(seen, 5_000), Health::Healthy, &[]),
            ("a clock off", 3, |seen| clock(seen, -5_001), Health::Degraded, &["clock_off"]),
            (
                "a group that has no members yet",
                1,
                |seen| {
                    seen.groups[1].copies.clear();
                    seen.groups[1].leader = None;
                },
                Health::Unavailable,
                &["no_leader"],
            ),
        ];
        for (what, count, change, health, codes) in rows {
            let mut seen = cluster(*count);
            change(&mut seen);
            let (word, reasons) = judge(&seen);
            let found: Vec<_> = reasons.iter().map(|reason| reason.code).collect();
            assert_eq!((word, &found[..]), (*health, *codes), "{what}: {reasons:?}");
        }
    }

    #[test]
    fn groups_with_the_same_trouble_share_a_reason() {
        let mut seen = cluster(3);
        seen.groups.iter_mut().for_each(|group| group.leader = None);
        let (_, reasons) = judge(&seen);
        assert_eq!(reasons.len(), 1);
        assert!(reasons[0].text.starts_with("groups 0 to 2: no leader"), "{}", reasons[0].text);
        assert_eq!(named(&[GroupId(0), GroupId(1), GroupId(4)]), "groups 0 to 1, 4");
        assert_eq!(named(&[GroupId(7)]), "group 7");
    }

    #[test]
    fn a_clock_is_told_by_what_it_was_compared_with() {
        for (is_median_known, words) in [(true, "the others' median"), (false, "nobody knows which is right")]
        {
            let mut seen = cluster(3);
            seen.is_median_known = is_median_known;
            seen.clocks_ms.insert(NodeId(2), 3_600_000);
            let text = judge(&seen).1.remove(0).text;
            assert!(text.contains("node 2 is 3600 s ahead of") && text.contains(words), "{text}");
        }
    }
}
