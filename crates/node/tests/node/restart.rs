//! What survives a stop, a kill and a power cut.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use model::{Millis, QueuePolicy, StateKind, TaskId};
use node::MemDisk;
use node::call::{AckCall, Claim, Freshness, TaskFilter, TaskSpec};

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_and_a_start_change_nothing() {
    let disk = MemDisk::new();
    let node = start(&disk).await;
    node.enqueue(vec![task("mail"); 100], false).await.unwrap();
    let held = claim_one(&node, "mail").await;
    node.pause(&queue("mail")).await.unwrap();
    node.stop().await.unwrap();
    drop(node);
    let node = start(&disk).await;
    assert_eq!(depth(&node, "mail", StateKind::Ready).await, 99);
    assert!(node.queue(&queue("mail"), Freshness::Linearizable).await.unwrap().paused);
    assert_eq!(ack(&node, &held).await.unwrap().state, StateKind::Done, "tokens outlive a restart");
    let detail = node.task(held.id, Millis(0), Freshness::Linearizable).await.unwrap();
    assert_eq!(&detail.envelope.payload[..], br#"{"to":"ada@example.com"}"#);
    assert_eq!(detail.history.first().unwrap().event.as_str(), "enqueued");
    node.stop().await.unwrap();
}

#[test]
fn a_kill_loses_nothing_that_was_answered() {
    let disk = MemDisk::new();
    let mut enqueued: HashSet<TaskId> = HashSet::new();
    let mut done: HashSet<TaskId> = HashSet::new();
    let mut held: Vec<Claim> = Vec::new();
    for round in 0..6 {
        let life = Life::begin(&disk);
        let node = &life.node;
        life.run(async {
            for claim in held.drain(..) {
                ack(node, &claim).await.unwrap();
                done.insert(claim.id);
            }
            for _ in 0..20 {
                let tasks: Vec<TaskSpec> = (0..10)
                    .map(|n| TaskSpec {
                        order_key: (n % 2 == 0).then(|| format!("user-{n}")),
                        ..task("mail")
                    })
                    .collect();
                let answer = node.enqueue(tasks, false).await.unwrap();
                enqueued.extend(answer.value.iter().map(|result| result.as_ref().unwrap().id));
                for claim in claim(node, "mail", 4).await {
                    assert!(!done.contains(&claim.id), "a task that was acked is never claimed again");
                    ack(node, &claim).await.unwrap();
                    done.insert(claim.id);
                }
            }
            held = claim(node, "mail", 3).await;
        });
        life.kill(&disk, round);
    }
    let life = Life::begin(&disk);
    let node = &life.node;
    let (found, ended) = life.run(all(node));
    assert_eq!(found, enqueued);
    assert_eq!(ended, done);
    life.run(node.stop()).unwrap();
}

/// All tasks, and those that are done.
async fn all(node: &node::Node) -> (HashSet<TaskId>, HashSet<TaskId>) {
    let (mut found, mut done) = (HashSet::new(), HashSet::new());
    let mut cursor = None;
    loop {
        let page = node.list(TaskFilter::default(), cursor, 100, Freshness::Linearizable).await.unwrap();
        for task in page.tasks {
            assert!(found.insert(task.view.id), "{} is listed twice", task.view.id);
            if task.view.state == StateKind::Done {
                done.insert(task.view.id);
            }
        }
        cursor = page.cursor;
        if cursor.is_none() {
            return (found, done);
        }
    }
}

#[test]
fn follow_ups_come_exactly_once_through_kills() {
    const TASKS: usize = 60;
    let disk = MemDisk::new();
    let life = Life::begin(&disk);
    life.run(async { life.node.enqueue(vec![task("mail"); TASKS], false).await.unwrap() });
    life.kill(&disk, 100);
    let mut acked = 0;
    let mut round = 0;
    while acked < TASKS {
        let life = Life::begin(&disk);
        let node = &life.node;
        life.run(async {
            for claim in claim(node, "mail", 15).await {
                // By its order key each goes to a shard of its own; without one it stays.
                let keyed = TaskSpec { order_key: Some(format!("user-{acked}")), ..task("audit") };
                let then = vec![keyed, task("audit")];
                let call = AckCall { then, ..ack_call(&claim.token) };
                node.ack(vec![call.clone()]).await.pop().unwrap().unwrap();
                // The reply was lost: the same again.
                node.ack(vec![call]).await.pop().unwrap().unwrap();
                acked += 1;
            }
        });
        // Killed while messages are under way.
        life.kill(&disk, round);
        round += 1;
    }
    let life = Life::begin(&disk);
    let node = &life.node;
    life.run(async {
        eventually("all follow-ups are there", || async {
            depth(node, "audit", StateKind::Ready).await == 2 * TASKS as u64
        })
        .await;
        let mut keys = HashSet::new();
        loop {
            let claims = claim(node, "audit", 1_000).await;
            if claims.is_empty() {
                break;
            }
            for claim in &claims {
                if let Some(key) = &claim.envelope.order_key {
                    assert!(keys.insert(key.clone()), "{key} came twice");
                }
                ack(node, claim).await.unwrap();
            }
        }
        assert_eq!(keys.len(), TASKS);
        assert_eq!(
            node.queue(&queue("audit"), Freshness::Linearizable).await.unwrap().totals.enqueued,
            2 * TASKS as u64
        );
    });
    life.run(node.stop()).unwrap();
}

#[test]
fn a_session_that_a_restart_interrupted_is_resumed_by_a_beat_or_ends_in_silence() {
    let disk = MemDisk::new();
    let life = Life::begin(&disk);
    let (kept, silent, idle, held) = life.run(async {
        let node = &life.node;
        node.enqueue(vec![task("mail"); 2], false).await.unwrap();
        let kept = register(node, "kept").await;
        let silent = register(node, "silent").await;
        let idle = register(node, "idle").await;
        let call = |who: &str, session| node::call::ClaimCall {
            worker: worker(who),
            session: Some(session),
            ..claim_call("mail", 1, Millis(0))
        };
        let held = node.claim(call("kept", kept)).await.unwrap().value;
        assert_eq!(node.claim(call("silent", silent)).await.unwrap().value.len(), 1);
        (kept, silent, idle, held)
    });
    life.kill(&disk, 7);
    let life = Life::begin(&disk);
    let node = &life.node;
    life.run(async {
        let running = vec![(held[0].id, held[0].fence)];
        let refused = node.beat(&worker("idle"), idle, Vec::new()).await.unwrap_err();
        assert_eq!(refused.code(), "unknown_worker", "it holds nothing: it registers anew");
        let since = Instant::now();
        eventually("the silent one is lost", || async {
            node.beat(&worker("kept"), kept, running.clone()).await.unwrap();
            depth(node, "mail", StateKind::Ready).await == 1
        })
        .await;
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
        assert!(node.beat(&worker("silent"), silent, Vec::new()).await.is_err());
        assert_eq!(ack(node, &held[0]).await.unwrap().state, StateKind::Done);
        node.stop().await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_shards_is_fixed_when_the_cluster_is_made() {
    let disk = MemDisk::new();
    let node = start(&disk).await;
    node.set_queue(&queue("mail"), |_| Ok(QueuePolicy { hold: Millis::secs(7), ..QueuePolicy::default() }))
        .await
        .unwrap();
    let cluster_id = node.cluster().cluster_id;
    node.stop().await.unwrap();
    drop(node);
    let refused = start_with(node::NodeConfig { shards: Some(8), ..config(&disk) }).await;
    let Err(refused) = refused else { panic!("it started with another number of shards") };
    assert!(refused.to_string().contains("has 4 shards, not 8"), "{refused}");
    let node = start_with(node::NodeConfig { shards: None, ..config(&disk) }).await.unwrap();
    assert_eq!((node.shards(), node.cluster().cluster_id), (4, cluster_id));
    assert_eq!(
        node.queue(&queue("mail"), Freshness::Linearizable).await.unwrap().policy.hold,
        Millis::secs(7)
    );
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_node_on_the_same_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let disk = node::RealDisk::new(dir.path()).unwrap();
        let config =
            node::NodeConfig { disk_reserve_bytes: 0, ..node::NodeConfig::new(std::sync::Arc::new(disk)) };
        start_with(config)
    };
    let node = open().await.unwrap();
    let Err(refused) = open().await else { panic!("two nodes on one directory") };
    assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
    enqueue(&node, task("mail")).await;
    node.stop().await.unwrap();
    let again = open().await.unwrap();
    assert_eq!(depth(&again, "mail", StateKind::Ready).await, 1);
    again.stop().await.unwrap();
}
