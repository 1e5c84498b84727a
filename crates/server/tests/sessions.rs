//! Workers, their sessions, and streams of events.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};
use support::{Harness, start};

/// A stream of server-sent events as it is read.
struct Stream {
    body: Incoming,
    text: String,
}

impl Stream {
    async fn open(harness: &Harness, path: &str, headers: &[(&str, &str)]) -> Stream {
        let mut request = Request::builder().uri(path).header("host", "x");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = harness.open(request.body(Full::new(Bytes::new())).unwrap()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Stream { body: response.into_body(), text: String::new() }
    }

    /// The next event: its id, its kind and its data. Nothing when the stream has ended.
    async fn next(&mut self) -> Option<(Option<u64>, String, Value)> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let event: String = self.text.drain(..end + 2).collect();
                let field =
                    |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                if let Some(kind) = field("event: ") {
                    let data = serde_json::from_str(&field("data: ").unwrap()).unwrap();
                    return Some((field("id: ").map(|id| id.parse().unwrap()), kind, data));
                }
                continue;
            }
            let frame =
                tokio::time::timeout(Duration::from_secs(20), self.body.frame()).await.expect("an event");
            let data = frame?.ok()?.into_data().unwrap_or_default();
            self.text.push_str(std::str::from_utf8(&data).unwrap());
        }
    }

    /// Reads until an event of this kind.
    async fn until(&mut self, kind: &str) -> Value {
        loop {
            let (_, found, data) = self.next().await.expect("the stream goes on");
            if found == kind {
                return data;
            }
        }
    }
}

async fn register(harness: &Harness, id: &str) -> String {
    let body = format!(
        r#"{{"id":"{id}","host":"h","pid":1,"slots":4,"queues":["mail"],"labels":{{"a":"b"}},"version":"1","beat_ms":1000}}"#
    );
    let reply = harness.post("/v1/workers", body).await.expect(200).json;
    assert_eq!(reply["state"], "running");
    reply["session"].as_str().unwrap().to_owned()
}

async fn claim_in(harness: &Harness, worker: &str, session: &str) -> Value {
    let body = format!(r#"{{"queues":["mail"],"worker":"{worker}","session":"{session}","wait_ms":5000}}"#);
    let claims = harness.post("/v1/claims", body).await.expect(200).json;
    claims["claims"][0].clone()
}

#[tokio::test]
async fn a_worker_registers_beats_is_listed_and_leaves_in_order() {
    let harness = start().await;
    let session = register(&harness, "host-1:4711").await;
    let id = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let claim = claim_in(&harness, "host-1:4711", &session).await;
    assert_eq!(claim["id"], id.as_str());
    let beat = format!(r#"{{"session":"{session}","running":[{{"id":"{id}","fence":{}}}]}}"#, claim["fence"]);
    let answer = harness.post("/v1/workers/host-1:4711/beat", beat.clone()).await.expect(200).json;
    assert_eq!(answer, json!({"state": "running", "cancel": []}));

    let workers = harness.get("/v1/workers").await.expect(200).json;
    assert_eq!(workers["slots"], json!({"open": 3, "total": 4}));
    let worker = &workers["workers"][0];
    assert_eq!(
        (&worker["id"], &worker["running"], &worker["state"]),
        (&json!("host-1:4711"), &json!(1), &json!("running"))
    );
    assert_eq!(worker["claims"], json!([{"id": id, "fence": claim["fence"]}]));
    assert_eq!(worker["labels"], json!({"a": "b"}));
    assert_eq!(harness.get("/v1/workers/host-1:4711").await.expect(200).json["host"], "h");

    harness.delete(&format!("/v1/tasks/{id}")).await.expect(200);
    let answer = harness.post("/v1/workers/host-1:4711/beat", beat.clone()).await.expect(200).json;
    assert_eq!(answer["cancel"], json!([{"id": id, "fence": claim["fence"]}]));
    assert_eq!(harness.post("/v1/workers/host-1:4711/drain", "").await.expect(200).json["state"], "draining");
    let answer = harness.post("/v1/workers/host-1:4711/beat", beat.clone()).await.expect(200).json;
    assert_eq!(answer["state"], "draining");
    let gone = harness.delete("/v1/workers/host-1:4711").await.expect(200);
    assert_eq!(gone.json["state"], "stopping");
    assert!(gone.headers.contains_key("windlass-index"), "its claim was freed in some shard");
    harness.until_state(&id, "cancelled").await;
    harness.post("/v1/workers/host-1:4711/beat", beat).await.expect_problem(404, "unknown_worker");
    harness.stop().await;
}

#[tokio::test]
async fn a_held_stream_that_breaks_frees_the_claims_within_a_second() {
    let harness = start().await;
    let session = register(&harness, "w").await;
    let mut stream = Stream::open(&harness, &format!("/v1/workers/w/session?session={session}"), &[]).await;
    let (_, kind, data) = stream.next().await.unwrap();
    assert_eq!((kind.as_str(), &data["state"]), ("session", &json!("running")));
    let id = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    claim_in(&harness, "w", &session).await;
    harness.post("/v1/workers/w/stop", "").await.expect(200);
    assert_eq!(stream.until("session").await["state"], "stopping");
    let broke = Instant::now();
    drop(stream);
    let task = harness.until_state(&id, "ready").await;
    assert!(broke.elapsed() < Duration::from_secs(1), "freed after {:?}", broke.elapsed());
    let freed = task["history"].as_array().unwrap().iter().find(|line| line["event"] == "freed").unwrap();
    assert_eq!(freed["reason"], "closed");
    harness.stop().await;
}

#[tokio::test]
async fn a_removed_worker_is_fenced_at_once() {
    let harness = start().await;
    let session = register(&harness, "w").await;
    let id = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let claim = claim_in(&harness, "w", &session).await;
    harness.post("/v1/workers/w/remove", "").await.expect(200);
    harness.until_state(&id, "ready").await;
    let ack = format!(r#"{{"token":"{}"}}"#, claim["token"].as_str().unwrap());
    harness.post("/v1/claims/ack", ack).await.expect_problem(409, "not_claimed");
    harness.stop().await;
}

#[tokio::test]
async fn a_silent_worker_is_lost_and_told_in_one_event() {
    let harness = start().await;
    let mut events = Stream::open(&harness, "/v1/events", &[]).await;
    let session = register(&harness, "quiet").await;
    let id = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    claim_in(&harness, "quiet", &session).await;
    let lost = events.until("worker_lost").await;
    assert_eq!(
        (&lost["worker"], &lost["freed"], &lost["reason"]),
        (&json!("quiet"), &json!(1), &json!("silent"))
    );
    assert!(lost["since_last_beat_ms"].as_u64().unwrap() >= 2_500);
    harness.until_state(&id, "ready").await;
    harness.stop().await;
}

#[tokio::test]
async fn events_go_on_after_the_last_one_seen_and_end_with_the_server() {
    let mut harness = start().await;
    let mut events = Stream::open(&harness, "/v1/events", &[]).await;
    let first = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let second = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let (id, kind, data) = events.next().await.unwrap();
    assert_eq!((kind.as_str(), &data["task"], &data["queue"]), ("enqueued", &json!(first), &json!("mail")));
    assert!(data["index"].as_str().unwrap().contains(':') && data["at"].is_string());
    drop(events);
    let id = id.unwrap().to_string();
    let mut events = Stream::open(&harness, "/v1/events", &[("last-event-id", &id)]).await;
    assert_eq!(events.until("enqueued").await["task"], second.as_str());
    let bad = harness.send(http::Method::GET, "/v1/events", &[("last-event-id", "x")], "").await;
    bad.expect_problem(400, "invalid_request");
    let stopping = Instant::now();
    harness.stop_server().await;
    assert!(stopping.elapsed() < Duration::from_secs(5), "took {:?}", stopping.elapsed());
    assert!(events.next().await.is_none());
    harness.stop().await;
}

#[tokio::test]
async fn workers_come_in_pages_and_their_labels_are_bounded() {
    let harness = start().await;
    for id in ["b", "a", "c"] {
        register(&harness, id).await;
    }
    let first = harness.get("/v1/workers?limit=2").await.expect(200).json;
    assert_eq!((&first["workers"][0]["id"], &first["workers"][1]["id"]), (&json!("a"), &json!("b")));
    assert_eq!(first["slots"]["total"], 12);
    let cursor = first["cursor"].as_str().unwrap();
    let rest = harness.get(&format!("/v1/workers?cursor={cursor}")).await.expect(200).json;
    assert_eq!((&rest["workers"][0]["id"], &rest["cursor"]), (&json!("c"), &Value::Null));
    harness.get("/v1/workers?limit=0").await.expect_problem(400, "invalid_request");
    harness.get("/v1/workers?cursor=!").await.expect_problem(400, "invalid_request");
    let labels: Vec<String> = (0..60).map(|n| format!(r#""l{n}":"{}""#, "x".repeat(200))).collect();
    let body = format!(r#"{{"id":"w","labels":{{{}}}}}"#, labels.join(","));
    harness.post("/v1/workers", body).await.expect_problem(400, "invalid_request");
    harness.stop().await;
}
