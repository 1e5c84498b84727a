//! The rules of the catalog's nodes and votes, as one table of stories; and its bytes.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

use model::catalog::{CatalogCommand, CatalogReply, ClusterFacts, NodeAddresses};
use model::{Elapsed, GroupId, MemberId, NodeId, Position, Rejection, WallTime, limits};
use state_machine::{Catalog, Effects, Machine, Table};

fn facts() -> ClusterFacts {
    ClusterFacts { cluster_id: 7, shards: 4, token_key: [1; 32] }
}

fn addresses(text: &str) -> NodeAddresses {
    NodeAddresses { peer: format!("{text}:7421"), http: format!("{text}:7420") }
}

fn found(nodes: &[u64]) -> CatalogCommand {
    let nodes = nodes.iter().map(|&n| (NodeId(n), addresses("founder"))).collect();
    CatalogCommand::Found { facts: facts(), nodes }
}

fn add(node: u64, nonce: u128) -> CatalogCommand {
    CatalogCommand::AddNode { node: NodeId(node), nonce, addresses: addresses("joined") }
}

fn set(node: u64, incarnation: u64) -> CatalogCommand {
    CatalogCommand::SetNode { node: NodeId(node), incarnation, addresses: addresses("moved") }
}

fn leave(node: u64) -> CatalogCommand {
    CatalogCommand::Leave { node: NodeId(node) }
}

fn remove(node: u64, incarnation: u64) -> CatalogCommand {
    CatalogCommand::RemoveNode { node: NodeId(node), incarnation }
}

fn voters(nodes: &[u64], version: u64) -> CatalogCommand {
    let nodes = nodes.iter().copied().map(NodeId).collect();
    CatalogCommand::SetVoters { group: GroupId(1), nodes, version }
}

fn apply(catalog: &mut Catalog, command: CatalogCommand) -> Result<CatalogReply, Rejection> {
    let at = Position { index: 1, n: 0, elapsed: Elapsed(5), wall: WallTime::from_millis(6) };
    catalog.apply(at, command, &mut Effects::default())
}

/// The last answer of a story, in short.
fn told(answer: Result<CatalogReply, Rejection>) -> String {
    match answer {
        Ok(CatalogReply::Cluster(facts)) => format!("cluster {}", facts.cluster_id),
        Ok(CatalogReply::Version(version)) => format!("version {version}"),
        Ok(CatalogReply::Member(member)) => format!("member {member}"),
        Err(Rejection::NoCluster) => "no cluster".into(),
        Err(Rejection::UnknownNode { node }) => format!("unknown {node}"),
        Err(Rejection::NodeNeeded { node }) => format!("needed {node}"),
        Err(Rejection::TooManyNodes { node, .. }) => format!("too many {node}"),
        Err(Rejection::StaleVersion { current, .. }) => format!("stale {current}"),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn nodes_come_go_and_vote_by_these_rules() {
    let stories: Vec<(&str, Vec<CatalogCommand>, &str)> = vec![
        ("the first founding counts", vec![found(&[1]), found(&[1, 2])], "cluster 7"),
        ("nobody joins what is not there", vec![add(1, 9)], "no cluster"),
        ("a new node begins its first life", vec![found(&[1]), add(2, 9)], "member 2"),
        ("a repeat gets the same answer", vec![found(&[1]), add(2, 9), add(2, 9)], "member 2"),
        ("another try is another life", vec![found(&[1]), add(2, 9), add(2, 10)], "member 2.1"),
        ("a founder that lost its disk gets a new life", vec![found(&[1, 2]), add(2, 9)], "member 2.1"),
        ("a nonce of 0 is no repeat of the founding", vec![found(&[1, 2]), add(2, 0)], "member 2.1"),
        (
            "a node that was removed never has its old life again",
            vec![found(&[1]), add(2, 9), leave(2), remove(2, 0), add(2, 9)],
            "member 2.1",
        ),
        ("a node moves", vec![found(&[1]), set(1, 0)], "version 2"),
        ("and stays there", vec![found(&[1]), set(1, 0), set(1, 0)], "version 2"),
        ("an old life cannot move it", vec![found(&[1, 2]), add(2, 9), set(2, 0)], "unknown 2"),
        ("the last node cannot leave", vec![found(&[1]), leave(1)], "needed 1"),
        ("nor the last that stays", vec![found(&[1, 2]), leave(1), leave(2)], "needed 2"),
        ("leaving twice is leaving once", vec![found(&[1, 2]), leave(1), leave(1)], "version 2"),
        ("who joins anew stays", vec![found(&[1, 2]), leave(1), add(1, 9), leave(2)], "version 4"),
        ("nobody leaves who is not there", vec![found(&[1]), leave(2)], "unknown 2"),
        ("a voter is not removed", vec![found(&[1, 2]), voters(&[1, 2], 1), remove(2, 0)], "needed 2"),
        (
            "an old life does not remove the new one",
            vec![found(&[1, 2]), add(2, 9), remove(2, 0)],
            "unknown 2",
        ),
        ("the last node is not removed", vec![found(&[1]), remove(1, 0)], "needed 1"),
        ("votes are given", vec![found(&[1, 2]), voters(&[2, 1], 1)], "version 2"),
        (
            "the same votes change nothing",
            vec![found(&[1, 2]), voters(&[1], 1), voters(&[1], 2)],
            "version 2",
        ),
        ("votes go by the version that was read", vec![found(&[1, 2]), leave(2), voters(&[1], 1)], "stale 2"),
        ("a stranger has no vote", vec![found(&[1]), voters(&[1, 2], 1)], "unknown 2"),
        ("who leaves gets no vote", vec![found(&[1, 2]), leave(2), voters(&[1, 2], 2)], "unknown 2"),
        ("a group has voters", vec![found(&[1]), voters(&[], 1)], "unknown 0"),
        ("but not too many", vec![found(&[1, 2, 3, 4]), voters(&[1, 2, 3, 4], 1)], "too many 1"),
    ];
    for (what, commands, expected) in stories {
        let mut catalog = Catalog::new();
        let mut last = None;
        for command in commands {
            let (before, version) = (catalog.hash(), catalog.nodes_version());
            let answer = apply(&mut catalog, command);
            if answer.is_err() {
                assert_eq!((catalog.hash(), catalog.nodes_version()), (before, version), "{what}");
            }
            last = Some(answer);
        }
        assert_eq!(told(last.unwrap()), expected, "{what}");
    }
}

#[test]
fn a_cluster_has_so_many_nodes_and_no_more() {
    let mut catalog = Catalog::new();
    apply(&mut catalog, found(&[1])).unwrap();
    for n in 2..=limits::NODES_MAX as u64 {
        apply(&mut catalog, add(n, n.into())).unwrap();
    }
    assert!(matches!(apply(&mut catalog, add(1_000, 1)), Err(Rejection::TooManyNodes { .. })));
    // One that is there already may come back.
    assert_eq!(apply(&mut catalog, add(5, 1_000)), Ok(CatalogReply::Member(MemberId::new(NodeId(5), 1))));
}

fn reload(catalog: &mut Catalog) -> Catalog {
    catalog.cut();
    let mut changes = Vec::new();
    catalog.cut_some(1, &mut changes);
    let mut again = Catalog::new();
    again.load(Table::Meta, &[], changes[0].value.as_ref().unwrap()).unwrap();
    again
}

#[test]
fn a_checkpoint_brings_nodes_and_votes_back() {
    let mut catalog = Catalog::new();
    let story = [found(&[1, 2, 3]), add(2, 9), add(4, 9), voters(&[1, 2], 3), leave(3), remove(3, 0)];
    for command in story {
        apply(&mut catalog, command).unwrap();
    }
    let mut again = reload(&mut catalog);
    assert_eq!(again.hash(), catalog.hash());
    assert_eq!(again.nodes_version(), catalog.nodes_version());
    assert_eq!(again.nodes().collect::<Vec<_>>(), catalog.nodes().collect::<Vec<_>>());
    assert_eq!(again.voters(GroupId(1)), Some(&[NodeId(1), NodeId(2)][..]));
    assert_eq!(again.voters(GroupId(2)), None);
    // The number of a life that is over is still known.
    assert_eq!(apply(&mut again, add(3, 9)), Ok(CatalogReply::Member(MemberId::new(NodeId(3), 1))));
}

#[test]
fn a_catalog_from_before_nodes_had_records_opens_with_its_old_hash() {
    let line = include_str!("fixtures/catalog-v1.txt").trim();
    let byte = |n| u8::from_str_radix(&line[n..n + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..line.len()).step_by(2).map(byte).collect();
    let mut catalog = Catalog::new();
    catalog.load(Table::Meta, &[], &bytes).unwrap();
    assert_eq!(catalog.cluster().map(|facts| (facts.cluster_id, facts.shards)), Some((5, 4)));
    assert_eq!((catalog.nodes().count(), catalog.nodes_version()), (0, 0));
    assert_eq!(catalog.deleted().count(), 1);
    // The stamps are no part of the hash.
    assert_eq!(catalog.hash(), xxhash_rust::xxh3::xxh3_128(&bytes[16..]));
    // Its one node takes its place as the life that it always was.
    assert_eq!(apply(&mut catalog, add(1, 9)), Ok(CatalogReply::Member(MemberId::new(NodeId(1), 0))));
}
