//! Three nodes tell each other how they are and what time it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use model::command::Start;
use model::{Millis, NodeId, WallTime};
use node::call::{ClaimCall, TaskSpec};
use node::info::{ClusterInfo, LinkWord, NodeState};
use node::{Clock, Error, Health, MemDisk, Node, NodeConfig, SystemClock, ThreadExecutor};

use crate::net::Net;
use crate::support::*;

/// A clock on the wall that is wrong by so much.
struct WrongClock {
    right: SystemClock,
    off_ms: i64,
}

impl Clock for WrongClock {
    fn elapsed(&self) -> Millis {
        self.right.elapsed()
    }

    fn wall(&self) -> WallTime {
        WallTime::from_millis(self.right.wall().millis().saturating_add_signed(self.off_ms))
    }
}

/// One node for each clock, numbered from 1, and a cluster that is ready.
async fn cluster(clocks_off_ms: &[i64]) -> Vec<Node> {
    let configs: Vec<_> = clocks_off_ms.iter().map(|_| config(&MemDisk::new())).collect();
    cluster_of(configs, clocks_off_ms).await
}

async fn cluster_of(configs: Vec<NodeConfig>, clocks_off_ms: &[i64]) -> Vec<Node> {
    let net = Net::default();
    let peers: BTreeMap<NodeId, String> =
        (1..).take(configs.len()).map(|n| (NodeId(n), format!("node-{n}:7421"))).collect();
    let starts = peers.iter().zip(configs).zip(clocks_off_ms).map(|(((node, address), config), off_ms)| {
        let config = NodeConfig {
            node: *node,
            peers: peers.clone(),
            peer_address: address.clone(),
            http_address: format!("10.0.0.{node}:7420"),
            network: Some(net.at(address)),
            ..config
        };
        let clock = WrongClock { right: SystemClock::new(), off_ms: *off_ms };
        Node::start(config, Arc::new(clock), Arc::new(ThreadExecutor))
    });
    let nodes: Vec<Node> = join_all(starts).await.into_iter().map(Result::unwrap).collect();
    for node in &nodes {
        eventually("all are ready", || async { node.ready().is_ok() }).await;
    }
    nodes
}

fn codes(cluster: &ClusterInfo) -> Vec<&'static str> {
    cluster.reasons.iter().map(|reason| reason.code).collect()
}

fn states(cluster: &ClusterInfo) -> Vec<NodeState> {
    cluster.nodes.iter().map(|node| node.state).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_sees_all_of_them_and_who_is_missing() {
    let nodes = cluster(&[0, 0, 0]).await;
    for node in &nodes {
        eventually("it sees a healthy cluster", || async {
            let seen = node.cluster();
            let is_whole = seen.shards.iter().all(|shard| {
                shard.replicas.len() == 3 && shard.replicas.iter().all(|replica| replica.is_voter)
            });
            let addresses = seen.nodes.iter().all(|node| node.address == format!("10.0.0.{}:7420", node.id));
            seen.status == Health::Healthy && is_whole && addresses && states(&seen) == [NodeState::Up; 3]
        })
        .await;
        let seen = node.cluster();
        assert_eq!(seen.nodes.iter().map(|node| node.leads).sum::<usize>(), 5);
        let info = node.info();
        assert!(
            info.peers.iter().all(|peer| peer.link == LinkWord::Up && peer.round_trip.is_some()),
            "{info:?}"
        );
        assert_eq!((info.peers.len(), info.clock.is_median_known, info.clock.is_held), (2, true, false));
        assert!(info.groups.iter().all(|group| group.leader.is_some() && group.peers.len() == 2), "{info:?}");
    }
    let stats = nodes[0].stats().await.unwrap().replication;
    assert!(stats.groups.iter().all(|group| group.lags.len() == 3), "{stats:?}");
    assert_eq!((stats.links.len(), stats.diverged, stats.clock.jumps), (2, 0, 0));

    nodes[2].stop().await.unwrap();
    eventually("a node is missed", || async {
        let seen = nodes[0].cluster();
        codes(&seen) == ["few_copies", "node_down"] && states(&seen)[2] == NodeState::Down
    })
    .await;
    assert_eq!(nodes[0].cluster().status, Health::Degraded);
    eventually("two of three serve on", || async { nodes[0].ready().is_ok() }).await;

    nodes[1].stop().await.unwrap();
    eventually("one of three serves nobody", || async {
        let seen = nodes[0].cluster();
        seen.status == Health::Unavailable && codes(&seen)[0] == "no_quorum" && nodes[0].ready().is_err()
    })
    .await;
    let refused = nodes[0].enqueue(vec![task("mail")], false).await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable | Error::Timeout), "{refused:?}");
    nodes[0].stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_full_disk_refuses_nothing_and_two_refuse_new_tasks_only() {
    let disks = [MemDisk::new(), MemDisk::new(), MemDisk::new()];
    let reserve = 32 * 1024 * 1024;
    let configs = disks.iter().map(|disk| NodeConfig { disk_reserve_bytes: reserve, ..config(disk) });
    let nodes = cluster_of(configs.collect(), &[0, 0, 0]).await;
    enqueue(&nodes[0], task("mail")).await;
    let held = claim(&nodes[0], "mail", 1).await;
    let is_full = |node: &Node, count: usize| {
        codes(&node.cluster()).iter().filter(|code| **code == "disk_full").count() == count
    };

    disks[2].set_capacity(Some(disks[2].used_bytes()));
    eventually("its full disk is told", || async { is_full(&nodes[0], 1) }).await;
    eventually("it leads nothing", || async {
        nodes[2].info().groups.iter().all(|group| group.leader.is_some_and(|leader| leader != nodes[2].id()))
    })
    .await;
    for node in &nodes {
        for _ in 0..8 {
            enqueue(node, task("mail")).await;
        }
    }

    disks[1].set_capacity(Some(disks[1].used_bytes()));
    eventually("two full disks are told", || async { nodes.iter().all(|node| is_full(node, 2)) }).await;
    for node in &nodes {
        eventually("new tasks are refused", || async {
            node.enqueue(vec![task("mail")], false).await.err() == Some(Error::DiskFull)
        })
        .await;
    }
    ack(&nodes[0], &held[0]).await.unwrap();

    disks[1].set_capacity(None);
    for node in &nodes {
        eventually("new tasks are taken again", || async {
            node.enqueue(vec![task("mail")], false).await.is_ok()
        })
        .await;
    }
    disks[2].set_capacity(None);
    join_all(nodes.iter().map(Node::stop)).await;
}

/// Node 1's clock is wrong; node `stopped` stops while tasks are delayed and claims are held.
async fn nothing_is_early_or_late(off_ms: i64, stopped: usize) {
    const DELAY: Duration = Duration::from_secs(3);
    const HOLD: Duration = Duration::from_secs(6);
    const COUNT: usize = 24;
    let nodes = cluster(&[off_ms, 0, 0]).await;
    eventually("the wrong clock is told", || async {
        nodes.iter().all(|node| codes(&node.cluster()) == ["clock_off"])
    })
    .await;
    assert!(nodes[0].info().clock.is_held && !nodes[1].info().clock.is_held);
    let since = Instant::now();
    // Some for every shard, so for every leader.
    let delayed = TaskSpec { start: Start::After(millis(DELAY)), ..task("mail") };
    for node in nodes.iter().cycle().take(COUNT) {
        enqueue(node, delayed.clone()).await;
        enqueue(node, task("held")).await;
    }
    let hold = Some(millis(HOLD));
    let held_since = Instant::now();
    let mut held = Vec::new();
    while held.len() < COUNT {
        let call = ClaimCall { hold, ..claim_call("held", COUNT as u32, Millis(1_000)) };
        held.extend(nodes[2].claim(call).await.unwrap().value);
    }
    nodes[stopped].stop().await.unwrap();

    let mut claimed = 0;
    while claimed < COUNT {
        // While a leader is missing, a claim may be refused.
        let Ok(some) = nodes[2].claim(claim_call("mail", COUNT as u32, Millis(100))).await else { continue };
        let took = since.elapsed();
        assert!(some.value.is_empty() || took >= DELAY, "early by {:?}", DELAY - took);
        assert!(took < DELAY * 3, "{claimed} of {COUNT} after {took:?}");
        claimed += some.value.len();
    }
    let acked = ack(&nodes[2], &held.pop().unwrap()).await;
    assert!(acked.is_ok() || held_since.elapsed() > HOLD, "{acked:?}");
    let mut freed = 0;
    while freed < COUNT - 1 {
        let Ok(some) = nodes[2].claim(claim_call("held", COUNT as u32, Millis(100))).await else { continue };
        let took = held_since.elapsed();
        assert!(some.value.is_empty() || took >= HOLD, "freed early by {:?}", HOLD - took);
        assert!(took < HOLD * 3, "{freed} of {COUNT} after {took:?}");
        freed += some.value.len();
    }
    for node in (0..3).filter(|node| *node != stopped) {
        let _ = nodes[node].stop().await;
    }
}

fn millis(duration: Duration) -> Millis {
    Millis(duration.as_millis() as u64)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_clock_an_hour_ahead_nothing_is_early_or_late_when_it_stops() {
    nothing_is_early_or_late(3_600_000, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_clock_an_hour_ahead_nothing_is_early_or_late_when_another_stops() {
    nothing_is_early_or_late(3_600_000, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_clock_an_hour_behind_nothing_is_early_or_late_when_it_stops() {
    nothing_is_early_or_late(-3_600_000, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_clock_an_hour_behind_nothing_is_early_or_late_when_another_stops() {
    nothing_is_early_or_late(-3_600_000, 1).await;
}
