//! Nodes come, go, lose their disks; votes and leaders follow.

use std::time::Duration;

use model::{GroupId, NodeId};
use node::{Health, Node};

use crate::support::{World, address, enqueue, eventually, groups, has_task, is_voted_by, members};

const TRIO: [u64; 3] = [1, 2, 3];

async fn trio() -> (World, Node) {
    let mut world = World::new();
    world.start(&TRIO, &TRIO).await;
    let node = world.node(1).await;
    eventually("all three vote everywhere", || is_voted_by(&node, "1 2 3", "")).await;
    (world, node)
}

fn leader(node: &Node, group: GroupId) -> Option<NodeId> {
    node.info().groups.iter().find(|line| line.group == group)?.leader
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_comes_back_as_another_member() {
    let (mut world, first) = trio().await;
    let before = enqueue(&first, "mail").await;
    world.kill(3);
    world.wipe(3);
    world.launch(3, &TRIO);
    let third = world.node(3).await;
    assert_eq!(third.member(), *members("3.1").first().unwrap());
    eventually("its new life votes, its old one is gone", || is_voted_by(&first, "1 2 3.1", "")).await;
    eventually("and it knows", || is_voted_by(&third, "1 2 3.1", "")).await;
    assert!(has_task(&third, before).await);
    // With its vote the cluster survives another node.
    world.kill(2);
    enqueue(&third, "mail").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fourth_node_joins_one_leaves_and_the_votes_follow() {
    let (mut world, first) = trio().await;
    eventually("the catalog knows all three", || first.join_hint().cluster.len() == 3).await;
    assert_eq!(first.join_hint().node, NodeId(4));
    world.launch(4, &[1, 2, 3, 4]);
    let fourth = world.node(4).await;
    assert_eq!(fourth.member().incarnation(), 0);
    eventually("it has a copy of every group", || {
        groups().all(|group| {
            let now = first.members(group).unwrap();
            now.voters.len() == 3 && now.voters.len() + now.learners.len() == 4
        })
    })
    .await;
    // Asked of any node.
    let second = world.node(2).await;
    fourth.leave(NodeId(2)).await.unwrap();
    eventually("the others have its votes", || is_voted_by(&first, "1 3 4", "")).await;
    enqueue(&fourth, "mail").await;
    eventually("the catalog knows it no more", || first.join_hint().cluster.len() == 3).await;
    eventually("and it knows that itself", || second.is_removed()).await;
    assert!(!first.is_removed());
    let why = second.ready().unwrap_err();
    assert!(why.contains("was removed from the cluster: stop it"), "{why}");
    let seen = second.cluster();
    assert_eq!((seen.status, seen.reasons[0].code), (Health::Unavailable, "removed"));
    assert!(seen.nodes.iter().all(|node| node.id != NodeId(2)), "{seen:?}");
    // With an empty disk it may come again, as somebody else.
    drop(second);
    world.kill(2);
    world.wipe(2);
    world.launch(2, &[1, 2, 3, 4]);
    assert_eq!(world.node(2).await.member(), *members("2.1").first().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_forgotten_only_when_every_group_has_said_that_it_has_no_vote() {
    const FIVE: [u64; 5] = [1, 2, 3, 4, 5];
    let mut world = World::new();
    world.start(&FIVE, &FIVE).await;
    let first = world.node(1).await;
    let voters = |group: u16| first.members(GroupId(group)).unwrap();
    // Group 1 is that of nodes 1, 4 and 5; without two of them nobody can say who votes in it. Nor can node 1 hear
    // any more that this is settled.
    eventually("votes are spread", || {
        voters(0).voters == members("1 2 3") && voters(1).voters == members("1 4 5") && voters(1).committed
    })
    .await;
    eventually("the catalog knows all five", || first.join_hint().cluster.len() == 5).await;
    world.kill(4);
    world.kill(5);
    first.leave(NodeId(3)).await.unwrap();
    let third = *members("3").first().unwrap();
    eventually("it votes nowhere", || {
        groups().all(|group| {
            let now = first.members(group).unwrap();
            now.committed && !now.is_joint && !now.voters.contains(&third)
        })
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(first.join_hint().cluster.len(), 5, "it was forgotten while group 1 could not be asked");
    world.launch(4, &FIVE);
    eventually("now it is", || first.join_hint().cluster.len() == 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_is_replaced_by_hand() {
    let (mut world, first) = trio().await;
    world.kill(2);
    world.launch(4, &[1, 2, 3, 4]);
    world.node(4).await;
    first.leave(NodeId(2)).await.unwrap();
    eventually("the new one votes in its place", || is_voted_by(&first, "1 3 4", "")).await;
    enqueue(&first, "mail").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spare_is_promoted_in_place_of_a_node_that_is_down() {
    let (mut world, first) = trio().await;
    world.launch(4, &[1, 2, 3, 4]);
    world.node(4).await;
    world.kill(3);
    eventually("node 3 is not heard", || {
        first.cluster().nodes.iter().any(|node| node.id == NodeId(3) && node.state.as_str() == "down")
    })
    .await;
    first.promote(NodeId(4), None).await.unwrap();
    let voter = *members("4").first().unwrap();
    eventually("it votes everywhere", || {
        groups().all(|group| {
            let now = first.members(group).unwrap();
            now.committed && !now.is_joint && now.voters.len() == 3 && now.voters.contains(&voter)
        })
    })
    .await;
    enqueue(&first, "mail").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_goes_where_a_person_wants_it() {
    let (mut world, first) = trio().await;
    for (asked, to) in [(1, 2), (1, 3), (2, 1)] {
        let asked = world.node(asked).await;
        asked.transfer(GroupId(1), Some(NodeId(to))).await.unwrap();
        eventually("it is there", || leader(&first, GroupId(1)) == Some(NodeId(to))).await;
    }
    assert!(first.transfer(GroupId(1), Some(NodeId(9))).await.is_err());
    assert!(first.transfer(GroupId(99), None).await.is_err());
    first.rebalance().await.unwrap();
    eventually("each group is led by the node that it belongs to", || {
        groups().all(|group| leader(&first, group) == Some(NodeId(1 + u64::from(group.0) % 3)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stops_hands_its_leaderships_over_first() {
    let (mut world, first) = trio().await;
    for group in groups() {
        first.transfer(group, Some(NodeId(1))).await.unwrap();
    }
    eventually("it leads all", || groups().all(|group| leader(&first, group) == Some(NodeId(1)))).await;
    let second = world.node(2).await;
    eventually("the others know", || groups().all(|group| leader(&second, group) == Some(NodeId(1)))).await;
    drop(first);
    world.stop(1).await;
    // It was handed over before the node was gone; the second only has to hear of it.
    let led_by_others =
        || groups().all(|group| leader(&second, group).is_some_and(|leader| leader != NodeId(1)));
    eventually("others lead", led_by_others).await;
    enqueue(&second, "mail").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_cut_off_follows_again() {
    let (mut world, first) = trio().await;
    world.net.cut(&address(1), &address(3));
    world.net.cut(&address(2), &address(3));
    let task = enqueue(&first, "mail").await;
    world.net.heal();
    let third = world.node(3).await;
    world.settled().await;
    assert!(has_task(&third, task).await);
}
