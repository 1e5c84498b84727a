//! A node ends without a word, and the others go on.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use model::{Millis, NodeId, ShardId};
use node::call::{ClaimCall, FailCall, Freshness, TaskSpec};
use node::{Error, Node};

use crate::support::{Cluster, ack, claim, claim_call, enqueue, eventually, task, task_in};

/// A shard that is not led by `not_by`, and who leads it.
async fn led_elsewhere(cluster: &Cluster, not_by: NodeId) -> (ShardId, NodeId) {
    for shard in cluster.shards() {
        let leader = cluster.leader_of(shard).await;
        if leader != not_by {
            return (shard, leader);
        }
    }
    panic!("node {not_by} leads all shards");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_claim_survives_the_end_of_the_leader() {
    let mut cluster = Cluster::start().await;
    let mut here = cluster.node(1).clone();
    if cluster.shards().all(|shard| here.leader_of(shard) == Some(NodeId(1))) {
        here = cluster.node(2).clone();
    }
    let (shard, leader) = led_elsewhere(&cluster, here.id()).await;
    let waiting = tokio::spawn({
        let node = here.clone();
        async move { claim(&node, "mail", 1, Millis::secs(30)).await }
    });
    eventually("it waits", || async { here.waiting_claims() == 1 }).await;
    cluster.kill(leader);
    let since = Instant::now();
    // With a dedup key it is asked again if the leader ends with the answer in its hands.
    let dedup = Some(("key-1".to_owned(), Millis::mins(15)));
    let id = until_enqueued(&here, TaskSpec { dedup, ..task_in("mail", shard) }).await;
    let claims = waiting.await.unwrap();
    assert_eq!(claims[0].id, id);
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    ack(&here, &claims[0]).await;
}

async fn until_enqueued(node: &Node, task: TaskSpec) -> model::TaskId {
    loop {
        match node.enqueue(vec![task.clone()], false).await {
            Ok(answer) => return answer.value.into_iter().next().unwrap().unwrap().id,
            Err(Error::Unavailable) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyed_enqueues_through_the_end_of_a_leader_are_kept_once_and_called_new() {
    const TASKS: usize = 200;
    let mut cluster = Cluster::start().await;
    let (_, leader) = led_elsewhere(&cluster, NodeId(0)).await;
    let node = cluster.nodes().find(|node| node.id() != leader).unwrap().clone();
    let enqueueing = tokio::spawn({
        let node = node.clone();
        async move {
            let mut ids = HashSet::new();
            for n in 0..TASKS {
                let dedup = Some((format!("key-{n}"), Millis::mins(15)));
                let keyed = TaskSpec { dedup, ..task("mail") };
                let answer = node.enqueue(vec![keyed], false).await.unwrap();
                let enqueued = answer.value.into_iter().next().unwrap().unwrap();
                assert!(!enqueued.duplicate, "task {n} was new");
                ids.insert(enqueued.id);
            }
            ids
        }
    });
    eventually("some are in", || async {
        let info = node.queue(&crate::support::queue("mail"), Freshness::Stale).await;
        info.is_ok_and(|info| info.totals.enqueued > 20)
    })
    .await;
    cluster.kill(leader);
    let ids = enqueueing.await.unwrap();
    assert_eq!(ids.len(), TASKS);
    let mut got = HashSet::new();
    while got.len() < TASKS {
        let claims = claim(&node, "mail", 50, Millis::secs(10)).await;
        assert!(!claims.is_empty(), "{} of {TASKS}", got.len());
        for claim in claims {
            assert!(got.insert(claim.id), "each once");
        }
    }
    assert_eq!(got, ids);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_a_node_says_so_in_time_and_still_shows_what_it_has() {
    let mut cluster = Cluster::start().await;
    let id = enqueue(cluster.node(1), task("mail")).await;
    let node = cluster.node(1).clone();
    node.task(id, Millis(0), Freshness::Linearizable).await.unwrap();
    cluster.kill(NodeId(2));
    cluster.kill(NodeId(3));
    eventually("it is noticed", || async {
        let since = Instant::now();
        let refused = node.task(id, Millis(0), Freshness::Linearizable).await;
        assert!(since.elapsed() < Duration::from_secs(6), "{:?}", since.elapsed());
        refused.is_err_and(|error| error == Error::Unavailable)
    })
    .await;
    let since = Instant::now();
    let refused = node.enqueue(vec![task_in("mail", id.shard())], false).await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable), "{refused}");
    assert!(since.elapsed() < Duration::from_secs(6), "{:?}", since.elapsed());
    node.task(id, Millis(0), Freshness::Stale).await.unwrap();
    let refused = node.claim(claim_call("mail", 1, Millis(500))).await.unwrap_err();
    assert_eq!(refused, Error::Unavailable, "nobody here knows that there is nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_at_a_node_that_is_cut_off_is_sent_elsewhere_and_served_when_the_node_is_back() {
    let cluster = Cluster::start().await;
    for node in cluster.nodes() {
        assert!(claim(node, "mail", 1, Millis(0)).await.is_empty(), "nothing is ready, and all know");
        let waiting = tokio::spawn({
            let node = node.clone();
            async move { node.claim(claim_call("mail", 1, Millis::secs(60))).await }
        });
        eventually("it waits", || async { node.waiting_claims() == 1 }).await;
        cluster.isolate(node.id());
        let since = Instant::now();
        assert_eq!(waiting.await.unwrap().unwrap_err(), Error::Unavailable);
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
        let since = Instant::now();
        assert_eq!(node.claim(claim_call("mail", 1, Millis(0))).await.unwrap_err(), Error::Unavailable);
        assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
        let since = Instant::now();
        let refused = node.claim(claim_call("mail", 1, Millis::secs(60))).await.unwrap_err();
        assert_eq!(refused, Error::Unavailable);
        let (not_at_once, soon) = (Duration::from_millis(1_700), Duration::from_secs(10));
        assert!((not_at_once..soon).contains(&since.elapsed()), "{:?}", since.elapsed());

        cluster.heal();
        eventually("it can say again that there is nothing", || async {
            let answer = node.claim(claim_call("mail", 1, Millis(0))).await;
            answer.is_ok_and(|answer| answer.value.is_empty())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_claim_with_a_request_id_outlasts_a_leader_that_is_not_reached() {
    let cluster = Cluster::start().await;
    let leaders = || cluster.shards().map(|shard| cluster.node(1).leader_of(shard)).collect::<HashSet<_>>();
    eventually("more than one leads", || async { leaders().len() > 1 && !leaders().contains(&None) }).await;
    let (_, leader) = led_elsewhere(&cluster, NodeId(0)).await;
    let node = cluster.nodes().find(|node| node.id() != leader).unwrap();
    cluster.cut(node.id(), leader);
    let call = ClaimCall { request_id: Some("once".to_owned()), ..claim_call("mail", 1, Millis::secs(60)) };
    let mut waiting = tokio::spawn({
        let node = node.clone();
        async move { node.claim(call).await }
    });
    // Longer than anybody waits for a leader.
    let early = tokio::time::timeout(Duration::from_secs(4), &mut waiting).await;
    assert!(early.is_err(), "{early:?}");
    cluster.heal();
    let third = cluster.nodes().find(|other| ![node.id(), leader].contains(&other.id())).unwrap();
    let id = enqueue(third, task("mail")).await;
    assert_eq!(waiting.await.unwrap().unwrap().value[0].id, id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_that_counted_is_not_called_undone_when_its_answer_was_lost() {
    let cluster = Cluster::start().await;
    let (shard, leader) = led_elsewhere(&cluster, NodeId(0)).await;
    let mut others = cluster.nodes().filter(|node| node.id() != leader);
    let (node, third) = (others.next().unwrap(), others.next().unwrap());
    enqueue(third, task_in("mail", shard)).await;
    let held = claim(third, "mail", 1, Millis::secs(30)).await.remove(0);
    // The leader hears the fail, and its answer is lost on the way.
    cluster.mute(leader, node.id());
    let failing = tokio::spawn({
        let node = node.clone();
        let fail = FailCall {
            token: held.token.clone(),
            error: "no".to_owned(),
            detail: String::new(),
            retry_in: Some(Millis(0)),
            fatal: false,
        };
        async move { node.fail(vec![fail]).await.remove(0) }
    });
    let again = claim(third, "mail", 1, Millis::secs(30)).await.remove(0);
    assert_eq!((again.id, again.attempt), (held.id, 2), "it counted");
    // The answer is lost with its link; the next one may be asked.
    cluster.cut(node.id(), leader);
    cluster.heal();
    assert_eq!(failing.await.unwrap().unwrap_err(), Error::Timeout, "and nobody is told that it did not");
    ack(third, &again).await;
}
