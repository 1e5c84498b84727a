//! Enqueue, claim, ack and what is refused.

use std::collections::HashSet;

use bytes::Bytes;
use model::command::UniqueUntil;
use model::{Millis, Rejection, StateKind};
use node::Error;
use node::call::{ClaimByIdCall, ClaimCall, ExtendCall, Freshness, ProgressCall, ReleaseCall, TaskSpec};

use crate::support::*;

#[tokio::test]
async fn a_task_goes_from_enqueue_to_done() {
    let node = node().await;
    let id = enqueue(&node, task("mail")).await;
    let claim = claim_one(&node, "mail").await;
    assert_eq!((claim.id, claim.attempt, claim.envelope.kind.as_str()), (id, 1, "welcome"));
    assert_eq!(&claim.envelope.payload[..], br#"{"to":"ada@example.com"}"#);
    let mut call = ack_call(&claim.token);
    call.output = Bytes::from_static(br#"{"sent":true}"#);
    let answer = node.ack(vec![call]).await.pop().unwrap().unwrap();
    assert_eq!(answer.value.state, StateKind::Done);
    assert_eq!(answer.indexes[0].0, id.shard());
    let detail = node.task(id, Millis(0), Freshness::Linearizable).await.unwrap();
    assert_eq!(detail.view.state, StateKind::Done);
    assert_eq!(detail.output.as_deref(), Some(&br#"{"sent":true}"#[..]));
    let events: Vec<&str> = detail.history.iter().map(|line| line.event.as_str()).collect();
    assert_eq!(events, ["enqueued", "claimed", "acked"]);
    assert!(claim_is_empty(&node).await);
    // The same again gets the same answer.
    assert_eq!(ack(&node, &claim).await.unwrap().state, StateKind::Done);
    node.stop().await.unwrap();
}

async fn claim_is_empty(node: &node::Node) -> bool {
    claim(node, "mail", 10).await.is_empty()
}

#[tokio::test]
async fn a_large_request_is_spread_and_a_small_one_stays_together() {
    let node = node().await;
    for (count, shards) in [(100, 1), (2_000, 4)] {
        let answer = node.enqueue(vec![task("mail"); count], false).await.unwrap();
        let ids: HashSet<_> = answer.value.iter().map(|result| result.as_ref().unwrap().id).collect();
        assert_eq!(ids.len(), count, "every task has its own id");
        let used: HashSet<_> = ids.iter().map(|id| id.shard()).collect();
        assert_eq!(used.len(), shards, "{count} tasks");
        assert_eq!(answer.indexes.len(), shards);
    }
    let mut claimed = HashSet::new();
    while claimed.len() < 2_100 {
        let claims = claim(&node, "mail", 1_000).await;
        assert!(!claims.is_empty(), "{} of 2100", claimed.len());
        assert!(claims.iter().all(|claim| claimed.insert(claim.id)), "no task is given twice");
    }
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_claim_gathers_over_all_shards_in_order_of_priority() {
    let node = node().await;
    for n in 0..20 {
        let task = TaskSpec { priority: (n % 10) as u8, ..task("mail") };
        enqueue(&node, task).await;
    }
    let claims = claim(&node, "mail", 20).await;
    assert_eq!(claims.len(), 20);
    assert!(claims.is_sorted_by_key(|claim| claim.priority));
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_dedup_key_makes_one_task_over_requests() {
    let node = node().await;
    let keyed = |payload: &'static str| TaskSpec {
        dedup: Some(("key-1".to_owned(), Millis::mins(15))),
        payload: Bytes::from_static(payload.as_bytes()),
        ..task("mail")
    };
    let first = node.enqueue(vec![keyed("1")], false).await.unwrap().value.pop().unwrap().unwrap();
    let second = node.enqueue(vec![keyed("1")], false).await.unwrap().value.pop().unwrap().unwrap();
    assert!(!first.duplicate && second.duplicate);
    assert_eq!(first.id, second.id);
    let other = node.enqueue(vec![keyed("2")], false).await.unwrap().value.pop().unwrap();
    assert_eq!(other, Err(Error::Rejected(Rejection::DedupMismatch { holder: first.id })));
    let found =
        node.task_by_dedup(&queue("mail"), "key-1", None, None, Freshness::Linearizable).await.unwrap();
    assert_eq!(found.view.id, first.id);
    let missing =
        node.task_by_dedup(&queue("mail"), "key-2", None, None, Freshness::Linearizable).await.unwrap_err();
    assert_eq!(missing.code(), "not_found");
    // With another order key it is another place.
    let ordered = TaskSpec { order_key: Some("user-7".to_owned()), ..keyed("1") };
    let third = enqueue(&node, ordered).await;
    assert_ne!(third, first.id);
    let found = node
        .task_by_dedup(&queue("mail"), "key-1", Some("user-7"), None, Freshness::Linearizable)
        .await
        .unwrap();
    assert_eq!(found.view.id, third);
    // And so with a unique key.
    let unique = TaskSpec { unique: Some(("u".to_owned(), UniqueUntil::Final)), ..keyed("1") };
    let fourth = enqueue(&node, unique).await;
    let found =
        node.task_by_dedup(&queue("mail"), "key-1", None, Some("u"), Freshness::Linearizable).await.unwrap();
    assert_eq!(found.view.id, fourth);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_unique_key_is_taken_until_its_task_ends() {
    let node = node().await;
    let unique = || TaskSpec { unique: Some(("u".to_owned(), UniqueUntil::Final)), ..task("mail") };
    let id = enqueue(&node, unique()).await;
    let again = node.enqueue(vec![unique()], false).await.unwrap().value.pop().unwrap();
    assert_eq!(again, Err(Error::Rejected(Rejection::NotUnique { holder: id })));
    let held = claim_one(&node, "mail").await;
    ack(&node, &held).await.unwrap();
    assert_ne!(enqueue(&node, unique()).await, id);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn an_atomic_request_is_all_or_none_in_one_shard() {
    let node = node().await;
    // Without keys any shard will do, and it is one.
    let answer = node.enqueue(vec![task("mail"); 500], true).await.unwrap();
    let shards: HashSet<_> = answer.value.iter().map(|result| result.as_ref().unwrap().id.shard()).collect();
    assert_eq!(shards.len(), 1);
    let keyed = |key: String| TaskSpec { order_key: Some(key), ..task("mail") };
    let spread: Vec<_> = (0..20).map(|n| keyed(format!("user-{n}"))).collect();
    assert_eq!(node.enqueue(spread, true).await.unwrap_err(), Error::NotOneShard);
    let unique = || TaskSpec { unique: Some(("u".to_owned(), UniqueUntil::Final)), ..task("reports") };
    let refused = node.enqueue(vec![task("reports"), unique(), unique()], true).await;
    assert_eq!(refused.unwrap_err().code(), "not_unique");
    assert_eq!(depth(&node, "reports", StateKind::Ready).await, 0);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_payload_over_the_limit_is_refused_and_the_others_are_not() {
    let node = node().await;
    let large = TaskSpec { payload: vec![b' '; 1024 * 1024 + 1].into(), ..task("mail") };
    let answer = node.enqueue(vec![task("mail"), large, task("mail")], false).await.unwrap();
    let codes: Vec<_> = answer.value.iter().map(|result| result.as_ref().err().map(Error::code)).collect();
    assert_eq!(codes, [None, Some("payload_too_large"), None]);
    let none = node.enqueue(Vec::<TaskSpec>::new(), false).await.unwrap_err();
    assert_eq!(none.code(), "invalid_request");
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_token_that_was_not_given_is_refused_and_touches_nothing() {
    let (node, other) = (node().await, node().await);
    enqueue(&node, task("mail")).await;
    enqueue(&node, task("mail")).await;
    let held = claim(&node, "mail", 2).await;
    enqueue(&other, task("mail")).await;
    let foreign = claim_one(&other, "mail").await;
    let (a, b) = (&held[0].token, &held[1].token);
    let spliced = format!("{}{}", &a[..32], &b[32..]);
    for (what, token) in [
        ("empty", ""),
        ("truncated", &a[..40]),
        ("of another cluster", &foreign.token),
        ("two spliced", &spliced),
        ("not base64", "ä"),
    ] {
        let refused = node.ack(vec![ack_call(token)]).await.pop().unwrap().unwrap_err();
        assert_eq!(refused, Error::InvalidToken, "{what}");
    }
    assert_eq!(depth(&node, "mail", StateKind::Claimed).await, 2);
    node.stop().await.unwrap();
    other.stop().await.unwrap();
}

#[tokio::test]
async fn a_stale_worker_cannot_ack_the_next_workers_attempt() {
    let node = node().await;
    let id = enqueue(&node, task("mail")).await;
    let first = claim_one(&node, "mail").await;
    node.put_back(id).await.unwrap();
    assert_eq!(ack(&node, &first).await.unwrap_err().code(), "not_claimed");
    let second = claim_one(&node, "mail").await;
    assert!(second.fence > first.fence);
    assert_eq!(ack(&node, &first).await.unwrap_err().code(), "stale_token");
    assert_eq!(ack(&node, &second).await.unwrap().state, StateKind::Done);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn many_are_settled_at_once_each_with_its_own_outcome() {
    let node = node().await;
    node.enqueue(vec![task("mail"); 1_000], false).await.unwrap();
    let claims = claim(&node, "mail", 1_000).await;
    assert_eq!(claims.len(), 1_000);
    let mut calls: Vec<_> = claims.iter().map(|claim| ack_call(&claim.token)).collect();
    calls.insert(1, ack_call("forged"));
    let results = node.ack(calls).await;
    assert_eq!(results.len(), 1_001);
    assert_eq!(results[1].as_ref().unwrap_err(), &Error::InvalidToken);
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1_000);
    assert_eq!(results[2].as_ref().unwrap().value.id, claims[1].id);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_claim_can_be_extended_watched_released_and_failed() {
    let node = node().await;
    let id = enqueue(&node, task("mail")).await;
    let held = claim_one(&node, "mail").await;
    let extend = ExtendCall { token: held.token.clone(), hold: Some(Millis::mins(5)) };
    let answer = node.extend(vec![extend]).await.pop().unwrap().unwrap().value;
    assert!(answer.id == id && answer.deadline > held.deadline && !answer.cancel_requested);
    let progress = ProgressCall { token: held.token.clone(), percent: 40, note: "page 4".to_owned() };
    node.progress(vec![progress]).await.pop().unwrap().unwrap();
    let view = node.task(id, Millis(0), Freshness::Linearizable).await.unwrap().view;
    assert_eq!(view.claim.unwrap().progress, Some((40, "page 4".to_owned())));
    let release = ReleaseCall { token: held.token.clone(), delay: Millis(0) };
    assert_eq!(node.release(vec![release]).await.pop().unwrap().unwrap().value.state, StateKind::Ready);
    let held = claim_one(&node, "mail").await;
    assert_eq!(held.attempt, 1, "a release uses up no attempt");
    let failed = node.fail(vec![fail_call(&held)]).await.pop().unwrap().unwrap().value;
    assert_eq!((failed.state, failed.attempt), (StateKind::Retrying, 1));
    assert!(failed.due.is_some());
    let detail = node.task(id, Millis(0), Freshness::Linearizable).await.unwrap();
    assert_eq!(detail.detail.as_deref(), Some("a backtrace"));
    node.stop().await.unwrap();
}

#[tokio::test]
async fn one_task_can_be_claimed_by_its_id() {
    let node = node().await;
    let ids = [enqueue(&node, task("mail")).await, enqueue(&node, task("mail")).await];
    let call =
        ClaimByIdCall { task: ids[1], worker: worker("w1"), session: None, hold: None, request_id: None };
    let claims = node.claim_by_id(call.clone()).await.unwrap().value;
    assert_eq!(claims[0].id, ids[1]);
    assert_eq!(node.claim_by_id(call).await.unwrap_err().code(), "not_ready");
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_request_id_gets_the_same_claims_again() {
    let node = node().await;
    node.enqueue(vec![task("mail"); 10], false).await.unwrap();
    let call = ClaimCall { request_id: Some("r1".to_owned()), ..claim_call("mail", 3, Millis(0)) };
    let first = node.claim(call.clone()).await.unwrap().value;
    let second = node.claim(call.clone()).await.unwrap().value;
    assert_eq!(first.len(), 3);
    let facts = |claims: &[node::call::Claim]| {
        claims.iter().map(|claim| (claim.id, claim.token.clone())).collect::<Vec<_>>()
    };
    assert_eq!(facts(&first), facts(&second));
    let other = ClaimCall { worker: worker("w2"), ..call };
    let third = node.claim(other).await.unwrap().value;
    assert!(third.iter().all(|claim| first.iter().all(|known| known.id != claim.id)));
    node.stop().await.unwrap();
}

#[tokio::test]
async fn tasks_of_one_order_key_run_one_after_the_other() {
    let node = node().await;
    let keyed = || TaskSpec { order_key: Some("user-7".to_owned()), ..task("mail") };
    let ids = [enqueue(&node, keyed()).await, enqueue(&node, keyed()).await];
    let first = claim(&node, "mail", 10).await;
    assert_eq!(first.iter().map(|claim| claim.id).collect::<Vec<_>>(), [ids[0]]);
    let (state, reasons) = node.why(ids[1], Freshness::Linearizable).await.unwrap();
    assert_eq!((state, reasons[0].code), (StateKind::Blocked, "order_key_busy"));
    assert!(reasons[0].text.contains("user-7"), "{}", reasons[0].text);
    ack(&node, &first[0]).await.unwrap();
    assert_eq!(claim_one(&node, "mail").await.id, ids[1]);
    node.stop().await.unwrap();
}
