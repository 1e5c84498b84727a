//! Queues and their policies.

use std::collections::HashSet;

use model::{Millis, OnExhausted, QueuePolicy, RetryPolicy, Spread, StateKind};
use node::MemDisk;
use node::NodeConfig;
use node::call::{AckCall, Freshness, TaskSpec};

use crate::support::*;

fn pinned() -> QueuePolicy {
    QueuePolicy { spread: Spread::Pinned, ..QueuePolicy::default() }
}

#[tokio::test]
async fn a_policy_reaches_every_shard_and_gets_a_new_version_each_time() {
    let node = node().await;
    let policy = QueuePolicy {
        retry: RetryPolicy { attempts: 1, ..RetryPolicy::default() },
        on_exhausted: OnExhausted::Discard,
        ..QueuePolicy::default()
    };
    let first = node.set_queue(&queue("mail"), |_| Ok(policy.clone())).await.unwrap();
    assert_eq!(first.policy, policy);
    for n in 0..8 {
        enqueue(&node, TaskSpec { order_key: Some(format!("user-{n}")), ..task("mail") }).await;
    }
    for claim in claim(&node, "mail", 8).await {
        let failed = node.fail(vec![fail_call(&claim)]).await.pop().unwrap().unwrap();
        assert_eq!(failed.value.state, StateKind::Failed);
    }
    let second = node.set_queue(&queue("mail"), |_| Ok(QueuePolicy::default())).await.unwrap();
    assert!(second.version > first.version);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_pinned_queue_lives_in_one_shard_in_order() {
    let node = node().await;
    node.set_queue(&queue("mail"), |_| Ok(pinned())).await.unwrap();
    let mut ids = Vec::new();
    for n in 0..20 {
        let order_key = (n % 3 == 0).then(|| format!("user-{n}"));
        ids.push(enqueue(&node, TaskSpec { order_key, ..task("mail") }).await);
    }
    assert_eq!(ids.iter().map(|id| id.shard()).collect::<HashSet<_>>().len(), 1);
    let claimed: Vec<_> = claim(&node, "mail", 20).await.into_iter().map(|claim| claim.id).collect();
    assert_eq!(claimed, ids);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn shards_change_only_while_a_queue_is_empty() {
    let node = node().await;
    enqueue(&node, task("mail")).await;
    let refused = node.set_queue(&queue("mail"), |_| Ok(pinned())).await.unwrap_err();
    assert!(refused.to_string().contains("not empty"), "{refused}");
    node.set_queue(&queue("fresh"), |_| Ok(pinned())).await.unwrap();
    node.set_queue(&queue("fresh"), |_| Ok(QueuePolicy::default())).await.unwrap();
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_queue_is_deleted_only_when_empty() {
    let node = node().await;
    let unknown = node.delete_queue(&queue("mail")).await.unwrap_err();
    assert_eq!(unknown.code(), "unknown_queue");
    node.set_queue(&queue("mail"), |_| Ok(QueuePolicy { hold: Millis::secs(7), ..QueuePolicy::default() }))
        .await
        .unwrap();
    enqueue(&node, task("mail")).await;
    assert!(node.delete_queue(&queue("mail")).await.unwrap_err().to_string().contains("not empty"));
    let held = claim_one(&node, "mail").await;
    ack(&node, &held).await.unwrap();
    node.delete_queue(&queue("mail")).await.unwrap();
    assert!(node.queues(Freshness::Linearizable).await.unwrap().is_empty());
    // On its next use it is made anew.
    enqueue(&node, task("mail")).await;
    assert_eq!(
        node.queue(&queue("mail"), Freshness::Linearizable).await.unwrap().policy,
        QueuePolicy::default()
    );
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_purge_cancels_what_waits_and_nothing_else() {
    let node = node().await;
    node.enqueue(vec![task("mail"); 500], false).await.unwrap();
    let held = claim_one(&node, "mail").await;
    assert_eq!(node.purge(&queue("mail")).await.unwrap(), 499);
    eventually("all is cancelled", || async { depth(&node, "mail", StateKind::Cancelled).await == 499 })
        .await;
    ack(&node, &held).await.unwrap();
    assert_eq!(node.purge(&queue("none")).await.unwrap_err().code(), "unknown_queue");
    node.stop().await.unwrap();
}

#[tokio::test]
async fn queues_are_added_up_over_the_shards() {
    let node = node().await;
    node.enqueue(vec![task("mail"); 1_200], false).await.unwrap();
    enqueue(&node, task("audit")).await;
    let queues = node.queues(Freshness::Linearizable).await.unwrap();
    assert_eq!(queues.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["audit", "mail"]);
    assert_eq!(queues[1].depth.of(StateKind::Ready), 1_200);
    assert_eq!(queues[1].totals.enqueued, 1_200);
    assert!(queues[1].oldest_ready.is_some() && queues[1].oldest_claimed.is_none());
    node.stop().await.unwrap();
}

#[tokio::test]
async fn without_auto_create_an_unknown_queue_is_refused_but_a_follow_up_is_not() {
    let node = start_with(NodeConfig { auto_create: false, ..config(&MemDisk::new()) }).await.unwrap();
    let refused = node.enqueue(vec![task("mail")], false).await.unwrap().value.pop().unwrap();
    assert_eq!(refused.unwrap_err().code(), "unknown_queue");
    node.set_queue(&queue("mail"), |_| Ok(QueuePolicy::default())).await.unwrap();
    enqueue(&node, task("mail")).await;
    let held = claim_one(&node, "mail").await;
    let call = AckCall { then: vec![task("audit")], ..ack_call(&held.token) };
    node.ack(vec![call]).await.pop().unwrap().unwrap();
    let follow_up = claim_one(&node, "audit").await;
    assert_eq!(follow_up.id.shard(), held.id.shard(), "without keys it stays in its source's shard");
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_set_a_queue_at_once_none_is_lost() {
    let node = node().await;
    let before = QueuePolicy::default().hold;
    let longer = |policy: &QueuePolicy| Ok(QueuePolicy { hold: Millis(policy.hold.0 + 1), ..policy.clone() });
    let name = queue("mail");
    let (a, b, c, d) = tokio::join!(
        node.set_queue(&name, longer),
        node.set_queue(&name, longer),
        node.set_queue(&name, longer),
        node.set_queue(&name, longer),
    );
    for set in [a, b, c, d] {
        set.unwrap();
    }
    assert_eq!(node.queue(&name, Freshness::Linearizable).await.unwrap().policy.hold, Millis(before.0 + 4));
    node.stop().await.unwrap();
}
