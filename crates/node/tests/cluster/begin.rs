//! How a cluster is made, in any order and whatever crashes meanwhile.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use model::catalog::{ClusterFacts, NodeAddresses};
use model::{MemberId, NodeId};
use node::{Disk, Error, Node, Stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wire::life::{Founding, Standing};
use wire::peer::{self, FrameHeader, FrameRole, HELLO_HEAD_BYTES, HelloAnswer, PeerKind};

use crate::support::{
    World, address, enqueue, eventually, groups, has_task, is_voted_by, members, read_identity,
    write_identity,
};

const TRIO: [u64; 3] = [1, 2, 3];

fn cluster_id(node: &Node) -> u128 {
    node.cluster().cluster_id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_order_of_starts_makes_one_cluster() {
    for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1], [1, 3, 2]] {
        let mut world = World::new();
        for (n, node) in order.into_iter().enumerate() {
            world.launch(node, &TRIO);
            if n < 2 {
                tokio::time::sleep(Duration::from_millis(150)).await;
                assert!(!world.has_started(node), "{order:?}: node {node} did not wait for the others");
            }
        }
        world.settled().await;
        let mut ids = BTreeSet::new();
        for node in TRIO {
            let node = world.node(node).await;
            ids.insert(cluster_id(&node));
            assert_eq!(node.member().incarnation(), 0);
            eventually("all three vote everywhere", || is_voted_by(&node, "1 2 3", "")).await;
        }
        assert_eq!(ids.len(), 1, "{order:?}");
        enqueue(&world.node(1).await, "mail").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_founders_have_copies_of_all_and_three_of_them_vote() {
    const FIVE: [u64; 5] = [1, 2, 3, 4, 5];
    let mut world = World::new();
    world.start(&FIVE, &FIVE).await;
    for node in FIVE {
        let node = world.node(node).await;
        eventually("three vote and two learn, everywhere", || {
            groups().all(|group| {
                let now = node.members(group).unwrap();
                now.voters.len() == 3 && now.learners.len() == 2
            })
        })
        .await;
    }
    enqueue(&world.node(5).await, "mail").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_says_what_it_waits_for_and_can_be_given_up() {
    let mut world = World::new();
    world.launch(2, &TRIO);
    eventually("it says whom it waits for", || world.progress(2).contains("nodes 1, 3 do not answer")).await;
    world.kill(2);
    world.start(&TRIO, &TRIO).await;
    assert_eq!(world.progress(2), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_that_crashes_anywhere_leaves_one_cluster_or_none() {
    // Node 1 makes the cluster. Its disk loses power after so many writes and syncs: before, while and after
    // it writes down who it is, opens its log and makes the groups.
    for changes in [0, 1, 2, 3, 4, 6, 9, 14, 20, 40] {
        let mut world = World::new();
        world.launch(2, &TRIO);
        world.launch(3, &TRIO);
        let disk = world.disk(1);
        disk.cut_power_after(changes);
        world.launch(1, &TRIO);
        eventually("the power is off", || disk.power_is_off()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.kill(1);
        world.launch(1, &TRIO);
        world.settled().await;
        let mut ids = BTreeSet::new();
        for node in TRIO {
            let node = world.node(node).await;
            ids.insert(cluster_id(&node));
            // A crash is no lost disk.
            assert_eq!(node.member().incarnation(), 0, "{changes}");
        }
        assert_eq!(ids.len(), 1, "{changes}");
        enqueue(&world.node(2).await, "mail").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_that_loses_its_disk_while_the_others_are_prepared_founds_anew() {
    let identity = Path::new("identity");
    let mut tried = 0;
    // Enough to ask the others, not enough to become a member.
    for changes in 1..6 {
        let mut world = World::new();
        world.launch(2, &TRIO);
        world.launch(3, &TRIO);
        let disk = world.disk(1);
        disk.cut_power_after(changes);
        world.launch(1, &TRIO);
        eventually("the power is off", || disk.power_is_off()).await;
        world.kill(1);
        if disk.read(identity).is_ok() || world.disk(2).read(identity).is_err() {
            continue;
        }
        tried += 1;
        world.wipe(1);
        // A prepared one that starts again is still prepared.
        world.kill(2);
        world.launch(2, &TRIO);
        world.launch(1, &TRIO);
        world.settled().await;
        let node = world.node(1).await;
        eventually("all three vote everywhere", || is_voted_by(&node, "1 2 3", "")).await;
    }
    assert!(tried > 0, "the others were never prepared alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_that_is_wiped_when_another_has_followed_joins_and_the_third_follows_too() {
    let facts = ClusterFacts { cluster_id: 77, shards: 2, token_key: [1; 32] };
    let addresses = |node| NodeAddresses { peer: address(node), http: String::new() };
    let nodes: Vec<_> = TRIO.map(|node| (NodeId(node), addresses(node))).to_vec();
    for order in [[1, 2, 3], [1, 3, 2], [3, 2, 1]] {
        let mut world = World::new();
        // Node 1 was a member and has lost its disk.
        let member = MemberId::new(NodeId(2), 0);
        let followed = Standing::Member { member, facts: facts.clone(), founders: nodes.clone() };
        write_identity(&world.disk(2), NodeId(2), followed);
        let prepared = Standing::Prepared(Founding { facts: facts.clone(), nodes: nodes.clone() });
        write_identity(&world.disk(3), NodeId(3), prepared);
        for node in order {
            world.launch(node, &TRIO);
        }
        world.settled().await;
        let first = world.node(1).await;
        assert_eq!(cluster_id(&first), 77);
        assert_eq!(first.member().incarnation(), 1, "its first life may have voted");
        eventually("its old life has no vote", || is_voted_by(&first, "1.1 2 3", "")).await;
        assert_eq!(world.node(3).await.member().incarnation(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_that_start_with_an_old_lone_node_join_it() {
    let mut world = World::new();
    // Not the one that would make a cluster of all.
    world.launch(3, &[]);
    let task = enqueue(&world.node(3).await, "mail").await;
    world.stop(3).await;
    world.disk(3).remove(Path::new("identity")).unwrap();
    world.launch(1, &TRIO);
    world.launch(2, &TRIO);
    world.launch(3, &TRIO);
    world.settled().await;
    let first = world.node(1).await;
    eventually("all three vote everywhere", || is_voted_by(&first, "1 2 3", "")).await;
    assert_eq!(cluster_id(&first), cluster_id(&world.node(3).await));
    assert!(has_task(&first, task).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_its_log_does_not_start() {
    let mut world = World::new();
    world.start(&TRIO, &TRIO).await;
    let first = world.node(1).await;
    eventually("all three vote everywhere", || is_voted_by(&first, "1 2 3", "")).await;
    world.kill(3);
    let (disk, log) = (world.disk(3), Path::new("log"));
    let (standing, has_log) = read_identity(&disk);
    assert!(has_log);
    // A file from before this was written down gets it at the next start.
    write_identity(&disk, NodeId(3), standing);
    assert!(!read_identity(&disk).1);
    world.launch(3, &TRIO);
    world.node(3).await;
    assert!(read_identity(&disk).1);
    world.kill(3);
    for file in disk.list(log).unwrap() {
        disk.remove(&file).unwrap();
    }
    world.launch(3, &TRIO);
    let error = world.try_node(3).await.err().unwrap();
    assert!(matches!(&error, Error::Broken(text) if text.contains("the log is gone")), "{error}");
    world.kill(3);
    world.wipe(3);
    world.launch(3, &TRIO);
    world.node(3).await;
    eventually("it is back in a new life", || is_voted_by(&first, "1 2 3.1", "")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_from_before_nodes_had_identities_is_that_of_a_lone_node() {
    let mut world = World::new();
    world.launch(1, &[]);
    let task = enqueue(&world.node(1).await, "mail").await;
    world.stop(1).await;
    world.disk(1).remove(Path::new("identity")).unwrap();
    world.launch(1, &[]);
    let node = world.node(1).await;
    assert_eq!(node.member().incarnation(), 0);
    assert!(has_task(&node, task).await);
    drop(node);
    world.stop(1).await;
    assert!(world.disk(1).read(Path::new("identity")).is_ok());
    // And not that of another.
    world.disk(1).remove(Path::new("identity")).unwrap();
    let mut config = world.config(1, &[]);
    config.node = NodeId(2);
    world.launch_with(config);
    let error = world.try_node(2).await.err().unwrap();
    assert!(matches!(&error, Error::Broken(text) if text.contains("does not belong to node 2")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_bootstrap_one_node_begins_and_the_others_join() {
    let mut world = World::new();
    let mut config = world.config(1, &TRIO);
    config.bootstrap = true;
    world.launch_with(config);
    let first = world.node(1).await;
    let task = enqueue(&first, "mail").await;
    world.launch(3, &TRIO);
    world.launch(2, &TRIO);
    world.settled().await;
    eventually("all three vote everywhere", || is_voted_by(&first, "1 2 3", "")).await;
    let second = world.node(2).await;
    assert_eq!(cluster_id(&second), cluster_id(&first));
    eventually("the second has the task", || {
        second.cluster().shards.iter().all(|shard| shard.leader.is_some())
    })
    .await;
    assert!(has_task(&second, task).await);
}

/// Speaks as the second node of an old version that still opens its data: it is there, and refuses to answer.
async fn refuse_all(mut stream: Box<dyn Stream>, refused: Arc<AtomicU32>) -> io::Result<()> {
    let mut head = [0; HELLO_HEAD_BYTES];
    stream.read_exact(&mut head).await?;
    let mut hello = vec![0; peer::greeting_bytes(&head).unwrap()];
    stream.read_exact(&mut hello).await?;
    let answer = HelloAnswer { version: 1, node: 2, process: 7, ..HelloAnswer::default() };
    stream.write_all(&peer::greeting(&answer).unwrap()).await?;
    loop {
        let mut header = [0; FrameHeader::BYTES];
        stream.read_exact(&mut header).await?;
        let asked = FrameHeader::peek(&header).unwrap().unwrap();
        stream.read_exact(&mut vec![0; asked.body_bytes]).await?;
        let role = match asked.kind == PeerKind::Ping as u8 {
            true => FrameRole::Answer,
            false => FrameRole::Refusal,
        };
        refused.fetch_add(u32::from(role == FrameRole::Refusal), Ordering::Relaxed);
        let mut bytes = BytesMut::new();
        FrameHeader { role, body_bytes: 0, ..asked }.put(&mut bytes);
        stream.write_all(&bytes).await?;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_bootstrap_nobody_begins_beside_a_node_that_does_not_say_what_it_knows() {
    let mut world = World::new();
    let (second, refused) = (world.net.at(&address(2)), Arc::<AtomicU32>::default());
    let answers = tokio::spawn({
        let refused = refused.clone();
        async move {
            while let Ok((stream, _)) = second.accept().await {
                tokio::spawn(refuse_all(stream, refused.clone()));
            }
        }
    });
    let mut config = world.config(1, &[1, 2]);
    config.bootstrap = true;
    world.launch_with(config);
    // It asks ten times a second at most, and would begin after a second.
    eventually("it asks on and on", || refused.load(Ordering::Relaxed) > 30).await;
    assert!(!world.has_started(1));
    assert!(world.progress(1).contains("--bootstrap does not count"), "{}", world.progress(1));
    // The one that was asked goes away without a word, and a person has said what to do then.
    answers.abort();
    world.net.forget(&address(2));
    world.node(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_node_that_gets_company_is_joined() {
    let mut world = World::new();
    world.launch(1, &[]);
    let first = world.node(1).await;
    enqueue(&first, "mail").await;
    world.stop(1).await;
    world.start(&TRIO, &TRIO).await;
    let first = world.node(1).await;
    eventually("all three vote everywhere", || is_voted_by(&first, "1 2 3", "")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_three_with_data_go_on_without_the_third() {
    let mut world = World::new();
    world.start(&TRIO, &TRIO).await;
    let first = world.node(1).await;
    eventually("all three vote everywhere", || is_voted_by(&first, "1 2 3", "")).await;
    drop(first);
    for node in TRIO {
        world.kill(node);
    }
    world.start(&[2, 3], &TRIO).await;
    enqueue(&world.node(3).await, "mail").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_of_another_node_and_lists_without_the_node_are_refused() {
    let mut world = World::new();
    world.launch(1, &[]);
    world.node(1).await;
    world.stop(1).await;
    let mut config = world.config(1, &[]);
    config.node = NodeId(2);
    world.launch_with(config);
    let error = world.try_node(2).await.err().unwrap();
    assert!(matches!(&error, Error::Broken(text) if text.contains("belongs to node 1")), "{error}");
    let mut config = world.config(4, &TRIO);
    config.node = NodeId(4);
    world.launch_with(config);
    let error = world.try_node(4).await.err().unwrap();
    assert!(matches!(&error, Error::Invalid(text) if text.contains("does not name this node")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_is_no_part_of_this_one() {
    let mut world = World::new();
    // Node 3 has a cluster of its own, and is then told of the others.
    world.launch(3, &[]);
    world.node(3).await;
    world.stop(3).await;
    world.launch(3, &TRIO);
    let stranger = world.node(3).await;
    world.launch(1, &[1, 2]);
    world.launch(2, &[1, 2]);
    let first = world.node(1).await;
    eventually("two vote everywhere", || is_voted_by(&first, "1 2", "")).await;
    assert_ne!(cluster_id(&first), cluster_id(&stranger));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(is_voted_by(&stranger, "3", "") && is_voted_by(&first, "1 2", ""));
    assert!(groups().all(|group| first.members(group).unwrap().voters == members("1 2")));
}
