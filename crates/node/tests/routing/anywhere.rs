//! Any node serves any request, whoever leads.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::{GroupId, Millis, QueuePolicy, ShardId, Spread, StateKind};
use node::call::{AckCall, Action, ClaimCall, Freshness, TaskFilter, TaskSpec};

use crate::support::{Cluster, SHARDS, ack, claim, claim_call, enqueue, eventually, queue, task, task_in};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_enqueued_claimed_and_acked_at_any_node() {
    let cluster = Cluster::start().await;
    for (n, shard) in (0..).zip((0..3).flat_map(|_| cluster.shards())) {
        let at = |step: u64| cluster.node((n + step) % 3 + 1);
        let id = enqueue(at(0), task_in("mail", shard)).await;
        assert_eq!(id.shard(), shard);
        let view = at(1).task(id, Millis(0), Freshness::Linearizable).await.unwrap().view;
        assert_eq!(view.state, StateKind::Ready, "what one node answered, another knows");
        let claims = claim(at(1), "mail", 10, Millis(0)).await;
        assert_eq!(claims.iter().map(|claim| claim.id).collect::<Vec<_>>(), [id], "shard {shard}");
        assert_eq!(claims[0].envelope.payload, task("mail").payload);
        ack(at(2), &claims[0]).await;
        let view = at(0).task(id, Millis(0), Freshness::Linearizable).await.unwrap().view;
        assert_eq!(view.state, StateKind::Done);
    }
    let infos = cluster.nodes().map(|node| node.queues(Freshness::Linearizable));
    for info in futures::future::join_all(infos).await {
        assert_eq!(info.unwrap()[0].totals.done, 3 * u64::from(SHARDS));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waits_anywhere_gets_a_task_of_any_shard() {
    let cluster = Cluster::start().await;
    for node in cluster.nodes() {
        for shard in cluster.shards() {
            let waiting = tokio::spawn({
                let node = node.clone();
                async move { claim(&node, "mail", 5, Millis::secs(20)).await }
            });
            eventually("it waits", || async { node.waiting_claims() == 1 }).await;
            let since = Instant::now();
            let id = enqueue(cluster.node(1), task_in("mail", shard)).await;
            let claims = waiting.await.unwrap();
            assert_eq!(claims.iter().map(|claim| claim.id).collect::<Vec<_>>(), [id]);
            assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
            ack(node, &claims[0]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_at_one_node_empty_all_shards_and_get_each_task_once() {
    const TASKS: usize = 600;
    let cluster = Cluster::start().await;
    let working: Vec<_> = (0..6)
        .map(|_| {
            let node = cluster.node(2).clone();
            tokio::spawn(async move {
                let mut got = Vec::new();
                loop {
                    let claims = claim(&node, "mail", 7, Millis(1_500)).await;
                    if claims.is_empty() {
                        return got;
                    }
                    for claim in claims {
                        ack(&node, &claim).await;
                        got.push(claim.id);
                    }
                }
            })
        })
        .collect();
    let mut enqueued = HashSet::new();
    for n in 0..TASKS as u64 {
        enqueued.insert(enqueue(cluster.node(n % 3 + 1), task("mail")).await);
    }
    let got = futures::future::join_all(working).await;
    let got: Vec<_> = got.into_iter().flat_map(|got| got.unwrap()).collect();
    assert_eq!(got.len(), TASKS);
    assert_eq!(got.into_iter().collect::<HashSet<_>>(), enqueued);
    let shards: HashSet<_> = enqueued.iter().map(|id| id.shard()).collect();
    assert_eq!(shards.len(), usize::from(SHARDS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_at_all_nodes_share_the_work() {
    const TASKS: usize = 300;
    let cluster = Cluster::start().await;
    let working: Vec<_> = cluster
        .nodes()
        .cloned()
        .map(|node| {
            tokio::spawn(async move {
                let mut got = Vec::new();
                loop {
                    let claims = claim(&node, "mail", 1, Millis(1_500)).await;
                    let Some(claim) = claims.first() else { return got };
                    ack(&node, claim).await;
                    got.push(claim.id);
                }
            })
        })
        .collect();
    let mut enqueued = HashSet::new();
    for _ in 0..TASKS {
        enqueued.insert(enqueue(cluster.node(1), task("mail")).await);
    }
    let got = futures::future::join_all(working).await;
    let got: Vec<_> = got.into_iter().flat_map(|got| got.unwrap()).collect();
    assert_eq!(got.len(), TASKS);
    assert_eq!(got.into_iter().collect::<HashSet<_>>(), enqueued);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_paused_at_one_node_is_paused_at_all() {
    let cluster = Cluster::start().await;
    enqueue(cluster.node(1), task("mail")).await;
    cluster.node(2).pause(&queue("mail")).await.unwrap();
    for node in cluster.nodes() {
        assert!(node.queue(&queue("mail"), Freshness::Linearizable).await.unwrap().paused);
        assert!(claim(node, "mail", 1, Millis(0)).await.is_empty());
    }
    let waiting = tokio::spawn({
        let node = cluster.node(3).clone();
        async move { claim(&node, "mail", 1, Millis::secs(20)).await }
    });
    eventually("it waits", || async { cluster.node(3).waiting_claims() == 1 }).await;
    cluster.node(1).resume(&queue("mail")).await.unwrap();
    assert_eq!(waiting.await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_was_pinned_at_one_node_takes_tasks_in_its_shard_only() {
    let cluster = Cluster::start().await;
    for n in 0..5 {
        let name = format!("pinned-{n}");
        let pin = |policy: &QueuePolicy| Ok(QueuePolicy { spread: Spread::Pinned, ..policy.clone() });
        let at = |node: u64| cluster.node(node % 3 + 1);
        at(n).set_queue(&queue(&name), pin).await.unwrap();
        for node in [n, n + 1, n + 2] {
            // A node that has not heard of it yet is told by the shard, and knows then.
            let id = loop {
                match at(node).enqueue(vec![task(&name)], false).await.unwrap().value.remove(0) {
                    Ok(enqueued) => break enqueued.id,
                    Err(error) => assert_eq!((error.code(), node != n), ("unavailable", true), "{error}"),
                }
            };
            assert_eq!(id.shard(), ShardId::of_queue(&queue(&name), SHARDS));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follow_ups_reach_their_shard_wherever_that_is_led() {
    let cluster = Cluster::start().await;
    for source in cluster.shards() {
        enqueue(cluster.node(1), task_in("mail", source)).await;
        let claims = claim(cluster.node(2), "mail", 1, Millis::secs(5)).await;
        let then: Vec<TaskSpec> = cluster.shards().map(|target| task_in("audit", target)).collect();
        let ack = AckCall { token: claims[0].token.clone(), output: Bytes::new(), then };
        cluster.node(3).ack(vec![ack]).await.remove(0).unwrap();
        let mut shards = HashSet::new();
        while shards.len() < usize::from(SHARDS) {
            let claims = claim(cluster.node(1), "audit", 10, Millis::secs(10)).await;
            assert!(!claims.is_empty(), "from shard {source}, came to {shards:?}");
            for claim in claims {
                assert!(shards.insert(claim.id.shard()), "each once");
                crate::support::ack(cluster.node(2), &claim).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_id_gets_the_same_claims_at_another_node() {
    let cluster = Cluster::start().await;
    for shard in cluster.shards() {
        enqueue(cluster.node(1), task_in("mail", shard)).await;
    }
    let mut call = claim_call("mail", 3, Millis(0));
    call.request_id = Some("request-1".to_owned());
    let ids = |claims: Vec<node::call::Claim>| {
        claims.iter().map(|claim| claim.token.clone()).collect::<HashSet<_>>()
    };
    let first = ids(cluster.node(1).claim(call.clone()).await.unwrap().value);
    assert!(!first.is_empty());
    for node in cluster.nodes() {
        assert_eq!(ids(node.claim(call.clone()).await.unwrap().value), first);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_claims_have_ended_does_not_stand_in_the_way_of_others() {
    let cluster = Cluster::start().await;
    let shard = cluster.shards().next().unwrap();
    let leader = cluster.leader_of(shard).await;
    let here = cluster.node(leader.0).clone();
    let there = cluster.nodes().find(|node| node.id() != leader).unwrap();
    let call = |name: &str| ClaimCall {
        request_id: Some("request-1".to_owned()),
        ..claim_call(name, 1, Millis::secs(60))
    };
    let waiting = tokio::spawn({
        let (here, call) = (here.clone(), call("later"));
        async move { here.claim(call).await }
    });
    eventually("it waits", || async { here.waiting_claims() == 1 }).await;
    // The same request is served at another node, and what it got is done with.
    enqueue(there, task_in("now", shard)).await;
    let served = there.claim(call("now")).await.unwrap().value;
    ack(there, &served[0]).await;
    enqueue(&here, task_in("later", shard)).await;
    let told = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    let told = told.expect("it is not served again and again").unwrap().unwrap();
    assert!(told.value.is_empty());
    assert_eq!(claim(&here, "later", 1, Millis::secs(10)).await.len(), 1, "the task is for others");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_says_was_written_covers_what_others_wrote_for_it() {
    let cluster = Cluster::start().await;
    for node in cluster.nodes() {
        let mut ids = Vec::new();
        for shard in cluster.shards() {
            ids.push(enqueue(cluster.node(1), task_in("mail", shard)).await);
        }
        let filter = TaskFilter { queue: Some(queue("mail")), ..TaskFilter::default() };
        let mut cursor = None;
        loop {
            let acted = node.act(Action::Cancel, filter.clone(), false, cursor).await.unwrap();
            cursor = acted.cursor;
            if cursor.is_none() {
                break;
            }
        }
        let written: BTreeMap<GroupId, u64> = node.written().into_iter().collect();
        for id in ids {
            let task = node.task(id, Millis(0), Freshness::Linearizable).await.unwrap();
            let cancelled = task.history.last().unwrap().index;
            let upto = written[&id.shard().group()];
            assert!(upto >= cancelled, "node {}: {id} ended at {cancelled}, not by {upto}", node.id());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_follows_redirects_is_sent_to_the_leader() {
    let cluster = Cluster::start().await;
    for shard in cluster.shards() {
        let id = enqueue(cluster.node(1), task_in("mail", shard)).await;
        let leader = cluster.leader_of(shard).await;
        for node in cluster.nodes() {
            let expected = (node.id() != leader).then(|| format!("http://node-{leader}"));
            eventually("the nodes know where each other is", || async { node.redirect_for(id) == expected })
                .await;
        }
    }
}
