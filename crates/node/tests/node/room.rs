//! Full memory, full disk, and what a node says of itself.

use model::StateKind;
use node::{Error, Health, MemDisk, NodeConfig};

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_memory_refuses_new_tasks_and_lets_acks_go_on() {
    let disk = MemDisk::new();
    let node = start_with(NodeConfig { memory_bytes_max: 100_000, ..config(&disk) }).await.unwrap();
    let refused = loop {
        match node.enqueue(vec![task("mail"); 500], false).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), "memory_full");
    assert!(refused.retry_after().is_some());
    assert_eq!(node.cluster().status, Health::Degraded);
    let held = claim_one(&node, "mail").await;
    assert_eq!(ack(&node, &held).await.unwrap().state, StateKind::Done);
    assert!(node.stats().await.unwrap().memory_full);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_new_tasks_lets_acks_go_on_and_recovers_by_itself() {
    let disk = MemDisk::new();
    let reserve = 32 * 1024 * 1024;
    let node = start_with(NodeConfig { disk_reserve_bytes: reserve, ..config(&disk) }).await.unwrap();
    node.enqueue(vec![task("mail"); 10], false).await.unwrap();
    let held = claim(&node, "mail", 10).await;
    disk.set_capacity(Some(disk.used_bytes()));
    eventually("new tasks are refused", || async {
        match node.enqueue(vec![task("mail")], false).await {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error, Error::DiskFull);
                true
            }
        }
    })
    .await;
    for claim in &held {
        ack(&node, claim).await.unwrap();
    }
    disk.set_capacity(None);
    eventually("new tasks are taken again", || async {
        node.enqueue(vec![task("mail")], false).await.is_ok()
    })
    .await;
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_tells_of_itself() {
    let node = node().await;
    node.ready().unwrap();
    let cluster = node.cluster();
    assert_eq!((cluster.status, cluster.shards.len(), cluster.nodes.len()), (Health::Healthy, 4, 1));
    assert_eq!(cluster.nodes[0].leads, 5);
    let info = node.info();
    assert_eq!(info.groups.len(), 5);
    assert!(info.groups.iter().all(|group| group.role == "leader" && group.leader == Some(node.id())));
    enqueue(&node, task("mail")).await;
    let stats = node.stats().await.unwrap();
    assert_eq!(stats.shards.iter().map(|shard| shard.tasks).sum::<u64>(), 1);
    let enqueue = stats.operations.iter().find(|stats| stats.operation.as_str() == "enqueue").unwrap();
    assert_eq!((enqueue.items, enqueue.buckets.iter().sum::<u64>()), (1, 1));
    node.stop().await.unwrap();
}
