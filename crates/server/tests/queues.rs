//! Queues, the cluster and what machines read.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use serde_json::json;
use support::{start, start_with};

#[tokio::test]
async fn a_queue_is_set_field_by_field_paused_resumed_purged_and_deleted() {
    let harness = start().await;
    let set = harness
        .put("/v1/queues/mail", r#"{"hold_ms":60000,"retry":{"attempts":5},"tasks_max":100}"#)
        .await
        .expect(200);
    assert!(!set.index().is_empty());
    let policy = &set.json["policy"];
    assert_eq!((&policy["hold_ms"], &policy["retry"]["attempts"]), (&json!(60000), &json!(5)));
    let set =
        harness.put("/v1/queues/mail", r#"{"tasks_max":null,"freed_to":"back"}"#).await.expect(200).json;
    assert_eq!((&set["policy"]["tasks_max"], &set["policy"]["hold_ms"]), (&json!(null), &json!(60000)));
    assert_eq!((&set["policy"]["freed_to"], &set["policy"]["shards"]), (&json!("back"), &json!("all")));

    harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let paused = harness.post("/v1/queues/mail/pause", "").await.expect(200).json;
    assert_eq!(paused["paused"], true);
    let none = harness.post("/v1/claims", r#"{"queues":["mail"],"worker":"w"}"#).await.expect(200).json;
    assert_eq!(none, json!({"claims": []}));
    let shown = harness.get("/v1/queues/mail").await.expect(200).json;
    assert_eq!(
        (&shown["paused"], &shown["depth"]["ready"], &shown["totals"]["enqueued"]),
        (&json!(true), &json!(1), &json!(1))
    );
    assert_eq!(harness.post("/v1/queues/mail/resume", "").await.expect(200).json["paused"], false);
    let list = harness.get("/v1/queues").await.expect(200).json;
    assert_eq!(list["queues"][0]["name"], "mail");
    assert!(list["queues"][0].get("policy").is_none());
    assert!(list["queues"][0]["rates"]["enqueued_per_s"].is_number());

    harness.delete("/v1/queues/mail").await.expect_problem(409, "not_ready");
    assert_eq!(harness.post("/v1/queues/mail/purge", "").await.expect(200).json["purged"], 1);
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let depth = harness.get("/v1/queues/mail").await.expect(200).json["depth"]["ready"].clone();
        if depth == 0 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the purge does not end: {depth} ready");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    harness.stop().await;
}

#[tokio::test]
async fn an_empty_queue_is_deleted_and_then_unknown() {
    let harness = start().await;
    harness.put("/v1/queues/tmp", "{}").await.expect(200);
    harness.get("/v1/queues/tmp").await.expect(200);
    assert_eq!(
        harness.delete("/v1/queues/tmp").await.expect(200).json,
        json!({"name": "tmp", "deleted": true})
    );
    harness.get("/v1/queues/tmp").await.expect_problem(404, "unknown_queue");
    harness.stop().await;
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back() {
    let harness = start().await;
    harness.put("/v1/queues/small", r#"{"tasks_max":1,"shards":1}"#).await.expect(200);
    harness.enqueue("small", r#"{"kind":"k"}"#).await;
    let full = harness.post("/v1/queues/small/tasks", r#"{"kind":"k"}"#).await;
    full.expect_problem(429, "queue_full");
    assert!(full.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    harness.put("/v1/queues/small", r#"{"shards":"all"}"#).await.expect_problem(409, "not_ready");
    harness.stop().await;
}

#[tokio::test]
async fn without_auto_create_a_queue_must_be_made_first() {
    let harness = start_with(|node| node.auto_create = false, |_| {}).await;
    harness.post("/v1/queues/mail/tasks", r#"{"kind":"k"}"#).await.expect_problem(404, "unknown_queue");
    harness.put("/v1/queues/mail", "{}").await.expect(200);
    harness.post("/v1/queues/mail/tasks", r#"{"kind":"k"}"#).await.expect(201);
    harness.stop().await;
}

#[tokio::test]
async fn the_cluster_the_node_and_its_health_can_be_read() {
    let harness = start().await;
    let cluster = harness.get("/v1/cluster").await.expect(200).json;
    assert_eq!(cluster["status"], "healthy", "{cluster}");
    assert_eq!(cluster["shards"].as_array().unwrap().len(), 4);
    assert_eq!(cluster["shards"][0]["replicas"][0]["node"], 1);
    assert_eq!(cluster["nodes"][0]["id"], 1);
    assert_eq!(cluster["nodes"][0]["address"], harness.addr.to_string());
    let node = harness.get("/v1/node").await.expect(200).json;
    assert_eq!((&node["id"], &node["ready"]), (&json!(1), &json!(true)));
    assert_eq!(node["groups"].as_array().unwrap().len(), 5);
    assert_eq!(harness.get("/livez").await.expect(200).json["status"], "ok");
    assert_eq!(harness.get("/readyz").await.expect(200).json["status"], "ok");
    harness.stop().await;
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let harness = start().await;
    harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let token = harness.claim("mail").await["token"].as_str().unwrap().to_owned();
    harness.post("/v1/claims/release", format!(r#"{{"token":"{token}"}}"#)).await.expect(200);
    let page = harness.get("/metrics").await.expect(200);
    assert!(page.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    let text = String::from_utf8(page.bytes.to_vec()).unwrap();
    for line in [
        "windlass_tasks{queue=\"mail\",state=\"ready\"} 1",
        "windlass_tasks_enqueued_total{queue=\"mail\"} 1",
        "windlass_claims_freed_total{reason=\"released\"} 1",
        "windlass_claims_freed_total{reason=\"silent\"} 0",
        "windlass_http_requests_total{operation=\"enqueue\",status=\"2xx\"} 1",
        "windlass_http_request_seconds_count{operation=\"claim\"} 1",
        "windlass_operation_seconds_count{operation=\"enqueue\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
    // Every line is a comment or a sample, and no family is begun twice.
    let mut families = std::collections::BTreeSet::new();
    for line in text.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(family) => assert!(families.insert(family.to_owned()), "{family} twice"),
            None => assert!(
                line.starts_with("# HELP ") || line.rsplit_once(' ').unwrap().1.parse::<f64>().is_ok(),
                "{line}"
            ),
        }
    }
    harness.stop().await;
}

#[tokio::test]
async fn the_pages_need_nothing_from_elsewhere() {
    let harness = start().await;
    for path in ["/", "/docs", "/pages.css"] {
        let page = harness.get(path).await.expect(200);
        let policy = page.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        let text = String::from_utf8(page.bytes.to_vec()).unwrap();
        assert!(!text.contains("<script") && !text.contains("https://"), "{path}");
    }
    let docs = String::from_utf8(harness.get("/docs").await.bytes.to_vec()).unwrap();
    for word in ["/v1/queues/{queue}/tasks", "/v1/tasks:requeue", "id=\"TaskRequest\"", "dedup_window_ms"] {
        assert!(docs.contains(word), "{word} is missing");
    }
    harness.stop().await;
}
