//! Lists, actions, reasons, events.

use std::collections::HashSet;

use bytes::Bytes;
use model::{KindName, Millis, StateKind};
use node::call::{Action, FailCall, Freshness, TaskFilter, TaskSpec};

use crate::support::*;

#[tokio::test]
async fn a_list_pages_over_all_shards_and_shows_each_task_once() {
    let node = node().await;
    node.enqueue(vec![task("mail"); 1_500], false).await.unwrap();
    let (mut found, mut pages, mut cursor) = (HashSet::new(), 0, None);
    loop {
        let filter = TaskFilter { queue: Some(queue("mail")), ..TaskFilter::default() };
        let page = node.list(filter, cursor, 400, Freshness::Linearizable).await.unwrap();
        assert!(page.tasks.len() <= 400);
        assert!(page.tasks.iter().all(|task| found.insert(task.view.id)));
        pages += 1;
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((found.len(), pages), (1_500, 4));
    let bad = node
        .list(TaskFilter::default(), Some("nonsense".to_owned()), 10, Freshness::Linearizable)
        .await
        .unwrap_err();
    assert_eq!(bad.code(), "invalid_request");
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_list_is_filtered_by_what_a_task_is_and_what_is_in_it() {
    let node = node().await;
    node.enqueue(vec![task("mail"); 20], false).await.unwrap();
    let odd = TaskSpec {
        kind: KindName::new("goodbye").unwrap(),
        payload: Bytes::from_static(br#"{"to":"grace@example.com"}"#),
        headers: vec![("trace".to_owned(), "abc-123".to_owned())],
        order_key: Some("user-7".to_owned()),
        ..task("mail")
    };
    let id = enqueue(&node, odd).await;
    let mail = || TaskFilter { queue: Some(queue("mail")), ..TaskFilter::default() };
    for (what, filter) in [
        ("kind", TaskFilter { kind: Some(KindName::new("goodbye").unwrap()), ..mail() }),
        ("payload", TaskFilter { text: Some("grace@".to_owned()), ..mail() }),
        ("header", TaskFilter { text: Some("abc-123".to_owned()), ..mail() }),
        ("id", TaskFilter { text: Some(id.to_string()), ..TaskFilter::default() }),
        ("order key", TaskFilter { order_key: Some("user-7".to_owned()), ..mail() }),
    ] {
        let page = node.list(filter, None, 100, Freshness::Linearizable).await.unwrap();
        let ids: Vec<_> = page.tasks.iter().map(|task| task.view.id).collect();
        assert_eq!(ids, [id], "{what}");
    }
    let keyed = TaskFilter { order_key: Some("user-7".to_owned()), ..TaskFilter::default() };
    assert_eq!(
        node.list(keyed, None, 10, Freshness::Linearizable).await.unwrap_err().code(),
        "invalid_request"
    );
    let claimed = TaskFilter { state: Some(StateKind::Claimed), worker: Some(worker("w1")), ..mail() };
    assert!(node.list(claimed.clone(), None, 10, Freshness::Linearizable).await.unwrap().tasks.is_empty());
    claim(&node, "mail", 5).await;
    assert_eq!(node.list(claimed, None, 10, Freshness::Linearizable).await.unwrap().tasks.len(), 5);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn dead_tasks_are_requeued_by_filter_and_a_dry_run_changes_nothing() {
    let node = node().await;
    node.enqueue(vec![task("mail"); 30], false).await.unwrap();
    let claims = claim(&node, "mail", 30).await;
    let fails = claims.iter().map(|claim| FailCall { fatal: true, ..fail_call(claim) }).collect();
    assert!(node.fail(fails).await.iter().all(Result::is_ok));
    assert_eq!(depth(&node, "mail", StateKind::Dead).await, 30);
    let filter = || TaskFilter { queue: Some(queue("mail")), ..TaskFilter::default() };
    let dry = node.act(Action::Requeue, filter(), true, None).await.unwrap();
    assert_eq!((dry.matched, dry.changed), (30, 0));
    assert_eq!(depth(&node, "mail", StateKind::Dead).await, 30);
    let done = node.act(Action::Requeue, filter(), false, None).await.unwrap();
    assert_eq!((done.matched, done.changed, done.cursor), (30, 30, None));
    assert_eq!(depth(&node, "mail", StateKind::Ready).await, 30);
    let cancelled = node.act(Action::Cancel, filter(), false, None).await.unwrap();
    assert_eq!(cancelled.changed, 30);
    assert_eq!(depth(&node, "mail", StateKind::Ready).await, 0);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn claims_are_put_back_and_discarded_by_hand() {
    let node = node().await;
    node.enqueue(vec![task("mail"); 2], false).await.unwrap();
    let held = claim(&node, "mail", 2).await;
    assert_eq!(node.put_back(held[0].id).await.unwrap().value.state, StateKind::Ready);
    assert_eq!(node.discard(held[1].id).await.unwrap().value.state, StateKind::Cancelled);
    assert_eq!(ack(&node, &held[0]).await.unwrap_err().code(), "not_claimed");
    assert_eq!(ack(&node, &held[1]).await.unwrap_err().code(), "already_ended");
    assert_eq!(node.requeue(held[1].id).await.unwrap().value.state, StateKind::Ready);
    assert_eq!(node.requeue(held[1].id).await.unwrap_err().code(), "not_ready");
    let held = claim(&node, "mail", 2).await;
    let put_back = node.act(Action::PutBack, TaskFilter::default(), false, None).await.unwrap();
    assert_eq!((put_back.matched, put_back.changed), (2, 2));
    assert_eq!(held.len(), 2);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn an_unknown_id_is_not_found_whatever_shard_it_names() {
    let node = node().await;
    for text in ["01994c2e-8f00-7001-8000-000000000000", "01994c2e-8f00-7400-8000-000000000000"] {
        let id = text.parse().unwrap();
        assert_eq!(
            node.task(id, Millis(0), Freshness::Linearizable).await.unwrap_err().code(),
            "not_found",
            "{text}"
        );
        assert_eq!(
            node.task(id, Millis(50), Freshness::Linearizable).await.unwrap_err().code(),
            "not_found",
            "{text}"
        );
        assert_eq!(node.why(id, Freshness::Linearizable).await.unwrap_err().code(), "not_found", "{text}");
        assert_eq!(node.cancel(id, String::new()).await.unwrap_err().code(), "not_found", "{text}");
    }
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_that_waits_is_answered_at_the_end() {
    let node = node().await;
    let id = enqueue(&node, task("mail")).await;
    let early = node.task(id, Millis(50), Freshness::Linearizable).await.unwrap();
    assert_eq!(early.view.state, StateKind::Ready, "the time was over before the task");
    let waiting = tokio::spawn({
        let node = node.clone();
        async move { node.task(id, Millis::secs(60), Freshness::Linearizable).await.unwrap() }
    });
    let held = claim_one(&node, "mail").await;
    ack(&node, &held).await.unwrap();
    assert_eq!(waiting.await.unwrap().view.state, StateKind::Done);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn why_says_who_comes_first_who_holds_and_that_nobody_asks() {
    let node = node().await;
    let id = enqueue(&node, task("mail")).await;
    let code = |reasons: Vec<node::WhyLine>| reasons.iter().map(|line| line.code).collect::<Vec<_>>();
    assert_eq!(code(node.why(id, Freshness::Linearizable).await.unwrap().1), ["no_worker"]);
    register(&node, "w1").await;
    assert_eq!(code(node.why(id, Freshness::Linearizable).await.unwrap().1), ["next"]);
    let held = claim_one(&node, "mail").await;
    let (state, reasons) = node.why(id, Freshness::Linearizable).await.unwrap();
    assert_eq!(state, StateKind::Claimed);
    assert!(reasons[0].text.contains("w1"), "{}", reasons[0].text);
    node.fail(vec![fail_call(&held)]).await.pop().unwrap().unwrap();
    assert_eq!(code(node.why(id, Freshness::Linearizable).await.unwrap().1), ["backing_off"]);
    node.cancel(id, "enough".to_owned()).await.unwrap();
    assert_eq!(code(node.why(id, Freshness::Linearizable).await.unwrap().1), ["ended"]);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn events_tell_a_tasks_story_in_order() {
    let node = node().await;
    let mut events = node.events(None);
    let id = enqueue(&node, task("mail")).await;
    let held = claim_one(&node, "mail").await;
    ack(&node, &held).await.unwrap();
    let mut kinds = Vec::new();
    let mut last = 0;
    while kinds.len() < 3 {
        let event = events.next().await.unwrap();
        assert!(event.id > last);
        last = event.id;
        if event.task == Some(id) {
            kinds.push(event.kind);
        }
    }
    assert_eq!(kinds, ["enqueued", "claimed", "acked"]);
    node.stop().await.unwrap();
    while let Some(event) = events.next().await {
        assert!(event.id > last);
    }
}
