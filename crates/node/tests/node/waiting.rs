//! Claims that wait.

use std::time::{Duration, Instant};

use model::command::ClaimQueue;
use model::{Millis, Start};
use node::call::{ClaimCall, Freshness, TaskSpec};

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_claim_is_woken_by_an_enqueue() {
    let node = node().await;
    let waiting = tokio::spawn({
        let node = node.clone();
        async move { node.claim(claim_call("mail", 5, Millis::secs(20))).await.unwrap().value }
    });
    eventually("it waits", || async { node.waiting_claims() == 1 }).await;
    let since = Instant::now();
    let id = enqueue(&node, task("mail")).await;
    let claims = waiting.await.unwrap();
    assert_eq!(claims[0].id, id);
    assert!(since.elapsed() < Duration::from_secs(10));
    assert_eq!(node.waiting_claims(), 0);
    node.stop().await.unwrap();
}

// One thread: whoever is counted as waiting stands in line.
#[tokio::test]
async fn an_enqueue_and_the_claim_that_waits_for_it_are_one_entry() {
    let node = node().await;
    for _ in 0..20 {
        let waiting = tokio::spawn({
            let node = node.clone();
            async move { node.claim(claim_call("mail", 1, Millis::secs(20))).await.unwrap() }
        });
        eventually("it waits", || async { node.waiting_claims() == 1 }).await;
        let enqueued = node.enqueue(vec![task("mail")], false).await.unwrap();
        let claimed = waiting.await.unwrap();
        assert_eq!(claimed.value.len(), 1);
        assert_eq!(enqueued.indexes, claimed.indexes);
    }
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_claim_keeps_its_place_when_an_enqueue_brings_nothing_for_it() {
    let node = node().await;
    let known = TaskSpec { dedup: Some(("once".to_owned(), Millis::secs(900))), ..task("mail") };
    let first = enqueue(&node, known.clone()).await;
    let claim = node.claim(claim_call("mail", 1, Millis(0))).await.unwrap().value.remove(0);
    assert_eq!(claim.id, first);
    let waiting = tokio::spawn({
        let node = node.clone();
        async move { node.claim(claim_call("mail", 1, Millis::secs(20))).await.unwrap().value }
    });
    eventually("it waits", || async { node.waiting_claims() == 1 }).await;
    for nothing in [known, TaskSpec { start: Start::After(Millis::secs(600)), ..task("mail") }] {
        node.enqueue(vec![nothing], false).await.unwrap();
    }
    assert_eq!(node.waiting_claims(), 1);
    let id = enqueue(&node, task("mail")).await;
    assert_eq!(waiting.await.unwrap()[0].id, id);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_claim_is_woken_when_a_delay_is_over() {
    let node = node().await;
    let late = TaskSpec { start: Start::After(Millis(300)), ..task("mail") };
    let id = enqueue(&node, late).await;
    let since = Instant::now();
    let claims = node.claim(claim_call("mail", 5, Millis::secs(20))).await.unwrap().value;
    assert_eq!(claims[0].id, id);
    assert!(since.elapsed() >= Duration::from_millis(250), "{:?}", since.elapsed());
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waited_in_vain_gets_nothing_in_time() {
    let node = node().await;
    let since = Instant::now();
    let claims = node.claim(claim_call("mail", 5, Millis(200))).await.unwrap().value;
    assert!(claims.is_empty());
    assert!((Duration::from_millis(200)..Duration::from_secs(5)).contains(&since.elapsed()));
    assert_eq!(node.waiting_claims(), 0);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_finds_one_of_many_waiters_and_no_more_are_written() {
    const WAITERS: usize = 200;
    let node = node().await;
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let node = node.clone();
            tokio::spawn(
                async move { node.claim(claim_call("mail", 1, Millis::secs(60))).await.unwrap().value },
            )
        })
        .collect();
    eventually("all wait", || async { node.waiting_claims() == WAITERS }).await;
    let before = claims_written(&node).await;
    for _ in 0..WAITERS / 2 {
        enqueue(&node, task("mail")).await;
    }
    eventually("half of them got one", || async { node.waiting_claims() == WAITERS / 2 }).await;
    let written = claims_written(&node).await - before;
    assert!(written <= WAITERS as u64, "{written} claims were written for {} tasks", WAITERS / 2);
    node.enqueue(vec![task("mail"); WAITERS / 2], false).await.unwrap();
    let mut ids = std::collections::HashSet::new();
    for waiter in waiters {
        let claims = waiter.await.unwrap();
        assert_eq!(claims.len(), 1);
        assert!(ids.insert(claims[0].id));
    }
    node.stop().await.unwrap();
}

async fn claims_written(node: &node::Node) -> u64 {
    let stats = node.stats().await.unwrap();
    let claims = stats.operations.iter().find(|stats| stats.operation == node::Operation::Claim).unwrap();
    claims.buckets.iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_a_queue_are_served_in_the_order_they_came() {
    let node = node().await;
    let mut waiters = Vec::new();
    for n in 0..5 {
        waiters.push(tokio::spawn({
            let node = node.clone();
            async move { node.claim(claim_call("mail", 1, Millis::secs(60))).await.unwrap().value }
        }));
        eventually("it waits", || async { node.waiting_claims() == n + 1 }).await;
    }
    for waiter in waiters {
        let id = enqueue(&node, task("mail")).await;
        assert_eq!(waiter.await.unwrap()[0].id, id);
    }
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_many_queues_is_woken_by_any_of_them() {
    let node = node().await;
    for (n, name) in ["mail", "reports", "audit"].into_iter().enumerate() {
        for weight in [0, 3] {
            let queues = ["mail", "reports", "audit"];
            let queues = queues.map(|name| ClaimQueue { name: queue(name), weight }).to_vec();
            let waiting = tokio::spawn({
                let node = node.clone();
                let call = ClaimCall { queues, ..claim_call("mail", 2, Millis::secs(60)) };
                async move { node.claim(call).await.unwrap().value }
            });
            eventually("it waits", || async { node.waiting_claims() == 1 }).await;
            let id = enqueue(&node, task(name)).await;
            assert_eq!(waiting.await.unwrap()[0].id, id, "queue {n} weight {weight}");
        }
    }
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_caller_went_away_is_given_back_without_an_attempt() {
    let node = node().await;
    for _ in 0..50 {
        enqueue(&node, task("mail")).await;
        let call = tokio::spawn({
            let node = node.clone();
            async move { node.claim(claim_call("mail", 1, Millis::secs(60))).await }
        });
        tokio::task::yield_now().await;
        call.abort();
        // Either nobody claimed it, or it was given back, or the call was through before.
        if let Ok(answer) = call.await {
            node.give_back(&answer.unwrap().value);
        }
        // It may still be on its way to the one who left.
        let held = node.claim(claim_call("mail", 1, Millis::secs(20))).await.unwrap().value;
        assert_eq!(held[0].attempt, 1);
        ack(&node, &held[0]).await.unwrap();
    }
    assert_eq!(node.waiting_claims(), 0);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_queue_gives_nothing_until_it_is_resumed() {
    let node = node().await;
    let id = enqueue(&node, task("mail")).await;
    assert!(node.pause(&queue("mail")).await.unwrap().paused);
    assert!(claim(&node, "mail", 1).await.is_empty());
    let (_, reasons) = node.why(id, Freshness::Linearizable).await.unwrap();
    assert_eq!(reasons[0].code, "paused");
    let waiting = tokio::spawn({
        let node = node.clone();
        async move { node.claim(claim_call("mail", 1, Millis::secs(60))).await.unwrap().value }
    });
    eventually("it waits", || async { node.waiting_claims() == 1 }).await;
    assert!(!node.resume(&queue("mail")).await.unwrap().paused);
    assert_eq!(waiting.await.unwrap()[0].id, id);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_answers_those_who_wait() {
    let node = node().await;
    let waiting = tokio::spawn({
        let node = node.clone();
        async move { node.claim(claim_call("mail", 1, Millis::secs(60))).await }
    });
    eventually("it waits", || async { node.waiting_claims() == 1 }).await;
    node.stop().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().value.is_empty());
    assert!(node.ready().is_err());
    let refused = node.enqueue(vec![task("mail")], false).await.unwrap_err();
    assert_eq!(refused.code(), "unavailable");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_finds_all_that_the_one_before_left() {
    let node = node().await;
    node.enqueue(vec![task("mail"); 300], false).await.unwrap();
    for n in 0..300 {
        assert_eq!(claim(&node, "mail", 1).await.len(), 1, "claim {n}");
    }
    assert!(claim(&node, "mail", 1).await.is_empty());
    node.stop().await.unwrap();
}
