//! A node that does not hear the catalog's leader: what it serves all the same, and what it does not pretend.

use std::time::{Duration, Instant};

use bytes::Bytes;
use model::command::{ClaimQueue, UniqueUntil};
use model::{
    GroupId, KeyHash, KindName, Millis, NodeId, QueueName, QueuePolicy, ShardId, Spread, WorkerName,
};
use node::Node;
use node::call::{AckCall, Claim, ClaimCall, Freshness, TaskSpec};

use crate::support::{SHARDS, World, address, eventually, groups, is_voted_by};

const TRIO: [u64; 3] = [1, 2, 3];
/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(40);
/// Whoever waits for the catalog's leader in vain does so for two seconds: so often a test tries to see it meanwhile.
const ROUNDS: u32 = 20;

fn shard(number: u16) -> ShardId {
    ShardId::new(number).unwrap()
}

/// Three nodes: the first leads the catalog, the second the first shard, the third the second one.
async fn trio() -> World {
    let mut world = World::new();
    world.start(&TRIO, &TRIO).await;
    let first = world.node(1).await;
    eventually("all three vote everywhere", || is_voted_by(&first, "1 2 3", "")).await;
    first.rebalance().await.unwrap();
    for node in TRIO {
        let node = world.node(node).await;
        let is_led = |group: GroupId| leader(&node, group) == Some(NodeId(1 + u64::from(group.0) % 3));
        eventually("each group is led by the node that it belongs to", || groups().all(is_led)).await;
    }
    world
}

fn leader(node: &Node, group: GroupId) -> Option<NodeId> {
    node.info().groups.iter().find(|line| line.group == group)?.leader
}

/// Whether the catalog and the first shard are led where they were, as the second node sees it.
fn is_led_as_before(second: &Node) -> bool {
    leader(second, GroupId::CATALOG) == Some(NodeId(1)) && leader(second, GroupId(1)) == Some(NodeId(2))
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn task(name: &str) -> TaskSpec {
    TaskSpec::new(queue(name), KindName::new("welcome").unwrap())
}

/// A key that places a task of this queue in this shard.
fn key_in(name: &str, shard: ShardId) -> String {
    let place = |key: &String| ShardId::of_hash(KeyHash::new(&queue(name), key).place(), SHARDS);
    (0..).map(|n| format!("key-{n}")).find(|key| place(key) == shard).unwrap()
}

async fn claim(node: &Node, max: u32) -> Vec<Claim> {
    let call = ClaimCall {
        queues: vec![ClaimQueue { name: queue("mail"), weight: 0 }],
        worker: WorkerName::new("w1").unwrap(),
        session: None,
        max,
        hold: Some(Millis::hours(1)),
        wait: Millis(0),
        request_id: None,
    };
    node.claim(call).await.unwrap().value
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_without_the_catalogs_leader_takes_tasks_and_plain_acks() {
    let mut world = trio().await;
    world.stop(3).await;
    world.net.cut(&address(1), &address(3));
    world.launch(3, &TRIO);
    let (second, third) = (world.node(2).await, world.node(3).await);
    let keyed = || TaskSpec { dedup: Some((key_in("mail", shard(1)), Millis(0))), ..task("mail") };
    let since = Instant::now();
    while let Err(error) = third.enqueue(vec![keyed()], false).await {
        // A leader may have moved, and may be out of reach; then nothing is shown.
        assert!(!is_led_as_before(&second) || leader(&third, GroupId(1)) != Some(NodeId(2)), "{error}");
        assert!(since.elapsed() < PATIENCE, "{error}");
    }
    assert!(plain_acks_do_not_wait(&second, &third).await);
}

/// Whether the third node acks a task while another ack of the same call still waits for the catalog's leader.
async fn plain_acks_do_not_wait(second: &Node, third: &Node) -> bool {
    for _ in 0..ROUNDS {
        let keyed = |n: u32| TaskSpec { order_key: Some(format!("{n}")), ..task("mail") };
        second.enqueue((0..100).map(keyed).collect(), false).await.unwrap();
        let claims: Vec<Claim> =
            claim(second, 100).await.into_iter().filter(|claim| claim.id.shard() == shard(1)).collect();
        let (plain, with_then) = (&claims[0], &claims[1]);
        let ack = |claim: &Claim, then| AckCall { token: claim.token.clone(), output: Bytes::new(), then };
        let calls = vec![ack(with_then, vec![task("audit")]), ack(plain, Vec::new())];
        let (id, node) = (plain.id, third.clone());
        let acking = tokio::spawn(async move { node.ack(calls).await });
        let since = Instant::now();
        while !second.task(id, Millis(0), Freshness::Linearizable).await.unwrap().view.state.is_ended() {
            assert!(since.elapsed() < PATIENCE, "not acked");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Time for the answer, if there were nothing else to wait for.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let did_not_wait = !acking.is_finished();
        let answers = acking.await.unwrap();
        assert!(answers[1].is_ok(), "each answer at its call's place: {answers:?}");
        if did_not_wait {
            return true;
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_catalog_lags_does_not_say_that_there_is_no_task_with_a_dedup_key() {
    let mut world = trio().await;
    let (second, third) = (world.node(2).await, world.node(3).await);
    world.net.cut(&address(1), &address(3));
    // Pinned to the first shard, which the third node does not know.
    let mut names = (0..).map(|n| format!("pinned-{n}"));
    let name = names.find(|name| ShardId::of_queue(&queue(name), SHARDS) == shard(1)).unwrap();
    let pinned = |policy: &QueuePolicy| Ok(QueuePolicy { spread: Spread::Pinned, ..policy.clone() });
    second.set_queue(&queue(&name), pinned).await.unwrap();
    let key = key_in(&name, shard(2));
    let keyed = TaskSpec { dedup: Some((key.clone(), Millis::hours(1))), ..task(&name) };
    let id = second.enqueue(vec![keyed], false).await.unwrap().value.remove(0).unwrap().id;
    assert_eq!(id.shard(), shard(1));
    let name = queue(&name);
    let look = || third.task_by_dedup(&name, &key, None, None, Freshness::Linearizable);
    if let Err(error) = look().await {
        assert_eq!(error.code(), "unavailable", "{error}");
    }
    world.net.heal();
    let since = Instant::now();
    let found = loop {
        match look().await {
            Ok(found) => break found,
            Err(error) => assert_eq!(error.code(), "unavailable", "{error}"),
        }
        assert!(since.elapsed() < PATIENCE, "not found");
    };
    assert_eq!(found.view.id, id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_missed_the_end_of_a_pin_while_it_was_stopped_places_no_task_by_it() {
    let mut world = trio().await;
    let (second, third) = (world.node(2).await, world.node(3).await);
    let mut names = (0..).map(|n| format!("pinned-{n}"));
    let name = names.find(|name| ShardId::of_queue(&queue(name), SHARDS) == shard(1)).unwrap();
    let set = |spread| move |policy: &QueuePolicy| Ok(QueuePolicy { spread, ..policy.clone() });
    second.set_queue(&queue(&name), set(Spread::Pinned)).await.unwrap();
    third.queue(&queue(&name), Freshness::Linearizable).await.unwrap();
    drop(third);
    world.stop(3).await;
    second.set_queue(&queue(&name), set(QueuePolicy::default().spread)).await.unwrap();
    world.net.cut(&address(1), &address(3));
    world.launch(3, &TRIO);
    let third = world.node(3).await;
    let keyed = || TaskSpec { unique: Some((key_in(&name, shard(2)), UniqueUntil::Final)), ..task(&name) };
    let since = Instant::now();
    let id = loop {
        match third.enqueue(vec![keyed()], false).await {
            Ok(answer) => break answer.value.into_iter().next().unwrap().unwrap().id,
            Err(error) => assert_eq!(error.code(), "unavailable", "{error}"),
        }
        assert!(since.elapsed() < PATIENCE, "not taken in");
        world.net.heal();
    };
    assert_eq!(id.shard(), shard(2), "where its key belongs now");
}
