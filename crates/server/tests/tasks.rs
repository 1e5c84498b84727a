//! Enqueue, claim, ack and the rest of a task's life, each over HTTP.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use http::Method;
use serde_json::json;
use support::start;

#[tokio::test]
async fn a_task_goes_from_enqueue_to_ack_with_its_payload_byte_for_byte() {
    let harness = start().await;
    let body = r#"{"kind":"welcome","payload":{"b" : 1.50, "a":"\u00e9"},"headers":{"trace":"1"},"priority":2,"dedup_key":"d 1"}"#;
    let reply = harness.post("/v1/queues/mail/tasks", body).await.expect(201);
    assert_eq!(reply.json["status"], "enqueued");
    assert_eq!(reply.json["state"], "ready");
    let (shard, index) = reply.index().split_once(':').unwrap();
    assert!(shard.parse::<u16>().unwrap() >= 1 && index.parse::<u64>().unwrap() >= 1);
    let id = reply.json["id"].as_str().unwrap();

    let claimed = harness.post("/v1/claims", r#"{"queues":["mail"],"worker":"w"}"#).await.expect(200);
    assert!(!claimed.index().is_empty());
    let text = String::from_utf8(claimed.bytes.to_vec()).unwrap();
    assert!(text.contains(r#""payload":{"b" : 1.50, "a":"\u00e9"}"#), "{text}");
    let claim = &claimed.json["claims"][0];
    assert_eq!(
        (&claim["id"], &claim["queue"], &claim["kind"]),
        (&json!(id), &json!("mail"), &json!("welcome"))
    );
    assert_eq!((&claim["attempt"], &claim["headers"]), (&json!(1), &json!({"trace": "1"})));
    assert!(claim["deadline"].as_str().unwrap().ends_with('Z'));

    let token = claim["token"].as_str().unwrap();
    let ack = format!(r#"{{"token":"{token}","output":{{"sent" : true}}}}"#);
    let acked = harness.post("/v1/claims/ack", ack.clone()).await.expect(200);
    assert_eq!(acked.json, json!({"id": id, "state": "done"}));
    assert!(!acked.index().is_empty());
    // The same ack again gets the same answer.
    assert_eq!(
        harness.post("/v1/claims/ack", ack).await.expect(200).json,
        json!({"id": id, "state": "done"})
    );

    let task = harness.get(&format!("/v1/tasks/{id}")).await.expect(200);
    assert!(String::from_utf8_lossy(&task.bytes).contains(r#""output":{"sent" : true}"#));
    assert_eq!(task.json["state"], "done");
    assert_eq!(task.json["attempt"], 1);
    assert_eq!(task.json["history"][0]["event"], "enqueued");
    let events: Vec<&str> =
        task.json["history"].as_array().unwrap().iter().map(|h| h["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["enqueued", "claimed", "acked"]);
    let by_key = harness.get("/v1/queues/mail/tasks/d%201").await.expect(200);
    assert_eq!(by_key.json["id"], id);
    harness.stop().await;
}

#[tokio::test]
async fn a_repeat_of_a_dedup_key_is_a_duplicate_and_another_payload_a_mismatch() {
    let harness = start().await;
    let path = "/v1/queues/mail/tasks";
    let key = [("idempotency-key", "k1")];
    let first = harness.send(Method::POST, path, &key, r#"{"kind":"k","payload":1}"#).await.expect(201);
    let again = harness.send(Method::POST, path, &key, r#"{"kind":"k","payload":1}"#).await.expect(200);
    assert_eq!(again.json, json!({"id": first.json["id"], "status": "duplicate", "state": "ready"}));
    let field = harness.post(path, r#"{"kind":"k","payload":1,"dedup_key":"k1"}"#).await.expect(200);
    assert_eq!(field.json["id"], first.json["id"]);
    let other = harness.send(Method::POST, path, &key, r#"{"kind":"k","payload":2}"#).await;
    other.expect_problem(422, "dedup_mismatch");
    assert_eq!(other.json["id"], first.json["id"]);
    let both = harness.send(Method::POST, path, &key, r#"{"kind":"k","dedup_key":"k2"}"#).await;
    both.expect_problem(400, "invalid_request");
    let many = harness.send(Method::POST, path, &key, r#"{"tasks":[{"kind":"k"}]}"#).await;
    many.expect_problem(400, "invalid_request");
    harness.stop().await;
}

#[tokio::test]
async fn many_tasks_are_answered_in_the_order_given() {
    let harness = start().await;
    let path = "/v1/queues/mail/tasks";
    let unique = r#"{"kind":"k","unique":{"key":"u","until":"final"}}"#;
    let body = format!(r#"{{"tasks":[{{"kind":"a"}},{unique},{unique},{{"kind":"b","delay_ms":60000}}]}}"#);
    let reply = harness.post(path, body).await.expect(200);
    let results = reply.json["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    assert_eq!((&results[0]["state"], &results[3]["state"]), (&json!("ready"), &json!("delayed")));
    assert_eq!(results[2]["error"]["code"], "not_unique");
    assert_eq!(results[2]["error"]["id"], results[1]["id"], "the holder is named");
    assert!(reply.index().split(',').count() >= 1);
    let one = harness.post(path, unique).await;
    one.expect_problem(409, "not_unique");
    // All or none, where all have one place.
    let atomic = |kind: &str| {
        format!(
            r#"{{"tasks":[{{"kind":"{kind}","order_key":"o"}},{{"kind":"{kind}","order_key":"o"}}],"atomic":true}}"#
        )
    };
    harness.post(path, atomic("x")).await.expect(200);
    let apart = r#"{"tasks":[{"kind":"a","order_key":"1"},{"kind":"a","order_key":"2"},{"kind":"a","order_key":"3"},{"kind":"a","order_key":"4"},{"kind":"a","order_key":"5"},{"kind":"a","order_key":"6"},{"kind":"a","order_key":"7"},{"kind":"a","order_key":"8"}],"atomic":true}"#;
    harness.post(path, apart).await.expect_problem(422, "not_one_shard");
    harness.stop().await;
}

#[tokio::test]
async fn bytes_go_in_and_come_out_as_base64_with_their_content_type() {
    let harness = start().await;
    let id =
        harness.enqueue("bin", r#"{"kind":"k","payload_base64":"AP8=","content_type":"image/png"}"#).await;
    let claim = harness.claim("bin").await;
    assert_eq!(claim["payload_base64"], "AP8=");
    assert_eq!(claim["content_type"], "image/png");
    assert!(claim.get("payload").is_none());
    let task = harness.get(&format!("/v1/tasks/{id}")).await.expect(200);
    assert_eq!(task.json["payload_base64"], "AP8=");
    harness.enqueue("bare", r#"{"kind":"k"}"#).await;
    assert_eq!(harness.claim("bare").await["payload"], json!(null));
    harness.stop().await;
}

#[tokio::test]
async fn run_at_in_the_past_is_ready_now_and_in_the_future_delayed() {
    let harness = start().await;
    let path = "/v1/queues/mail/tasks";
    for past in ["1912-06-23T00:00:00Z", "2020-01-01T00:00:00+02:00"] {
        let reply = harness.post(path, format!(r#"{{"kind":"k","run_at":"{past}"}}"#)).await.expect(201);
        assert_eq!(reply.json["state"], "ready", "{past}");
    }
    let reply = harness.post(path, r#"{"kind":"k","run_at":"9999-12-30T00:00:00Z"}"#).await.expect(201);
    assert_eq!(reply.json["state"], "delayed");
    let task = harness.get(&format!("/v1/tasks/{}", reply.json["id"].as_str().unwrap())).await.expect(200);
    assert_eq!(task.json["due"], "9999-12-30T00:00:00.000Z");
    let soon = harness.enqueue("soon", r#"{"kind":"k","delay_ms":300}"#).await;
    let early = harness.post("/v1/claims", r#"{"queues":["soon"],"worker":"w"}"#).await.expect(200);
    assert_eq!(early.json, json!({"claims": []}));
    assert_eq!(harness.claim("soon").await["id"], soon.as_str());
    harness.stop().await;
}

#[tokio::test]
async fn a_fail_is_retried_until_its_attempts_are_used_up() {
    let harness = start().await;
    let id = harness.enqueue("mail", r#"{"kind":"k","retry":{"attempts":2,"base_ms":1,"cap_ms":1}}"#).await;
    let token = harness.claim("mail").await["token"].as_str().unwrap().to_owned();
    let fail = format!(r#"{{"token":"{token}","error":"SMTP 451","detail":"back\ntrace","retry_in_ms":50}}"#);
    let failed = harness.post("/v1/claims/fail", fail).await.expect(200);
    assert_eq!((&failed.json["state"], &failed.json["attempt"]), (&json!("retrying"), &json!(1)));
    assert!(failed.json["due"].is_string());
    let second = harness.claim("mail").await;
    assert_eq!((&second["id"], &second["attempt"]), (&json!(id), &json!(2)));
    let stale = harness.post("/v1/claims/ack", format!(r#"{{"token":"{token}"}}"#)).await;
    stale.expect_problem(409, "stale_token");
    let token = second["token"].as_str().unwrap();
    let failed = harness
        .post("/v1/claims/fail", format!(r#"{{"token":"{token}","error":"again"}}"#))
        .await
        .expect(200);
    assert_eq!((&failed.json["state"], &failed.json["attempt"]), (&json!("dead"), &json!(2)));
    let task = harness.get(&format!("/v1/tasks/{id}")).await.expect(200).json;
    assert_eq!((&task["state"], &task["error"]), (&json!("dead"), &json!("again")));
    let requeued = harness.post(&format!("/v1/tasks/{id}/requeue"), "").await.expect(200);
    assert_eq!(requeued.json["state"], "ready");
    assert!(!requeued.index().is_empty());
    harness.stop().await;
}

#[tokio::test]
async fn extend_progress_and_release_keep_or_give_back_a_claim() {
    let harness = start().await;
    let id = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let claim = harness.claim("mail").await;
    let token = claim["token"].as_str().unwrap();
    let body = format!(r#"{{"token":"{token}","hold_ms":3600000}}"#);
    let extended = harness.post("/v1/claims/extend", body).await.expect(200);
    assert!(extended.json["deadline"].as_str() > claim["deadline"].as_str());
    assert_eq!(extended.json["cancel_requested"], false);
    let body = format!(r#"{{"token":"{token}","percent":40,"note":"page 4 of 10"}}"#);
    harness.post("/v1/claims/progress", body).await.expect(200);
    let task = harness.get(&format!("/v1/tasks/{id}")).await.expect(200).json;
    assert_eq!(task["progress"], json!({"percent": 40, "note": "page 4 of 10"}));
    assert_eq!((&task["worker"], &task["state"]), (&json!("w"), &json!("claimed")));
    let held = harness.get("/v1/claims?queue=mail&worker=w").await.expect(200).json;
    assert_eq!(held["claims"][0]["id"], id.as_str());
    let why = harness.get(&format!("/v1/tasks/{id}/why")).await.expect(200).json;
    assert_eq!(why["state"], "claimed");
    assert!(why["reasons"][0]["code"].is_string() && why["reasons"][0]["text"].is_string());
    let released = harness.post("/v1/claims/release", format!(r#"{{"token":"{token}"}}"#)).await.expect(200);
    assert_eq!(released.json["state"], "ready");
    harness
        .post("/v1/claims/ack", format!(r#"{{"token":"{token}"}}"#))
        .await
        .expect_problem(409, "not_claimed");
    harness.stop().await;
}

#[tokio::test]
async fn many_are_settled_at_once_each_with_its_own_outcome() {
    let harness = start().await;
    harness
        .post("/v1/queues/mail/tasks", r#"{"tasks":[{"kind":"a"},{"kind":"b"},{"kind":"c"},{"kind":"d"}]}"#)
        .await
        .expect(200);
    let claims =
        harness.post("/v1/claims", r#"{"queues":["mail"],"worker":"w","max":4}"#).await.expect(200).json;
    let tokens: Vec<&str> =
        claims["claims"].as_array().unwrap().iter().map(|c| c["token"].as_str().unwrap()).collect();
    assert_eq!(tokens.len(), 4);
    let items =
        |list: &[&str]| list.iter().map(|t| format!(r#"{{"token":"{t}"}}"#)).collect::<Vec<_>>().join(",");
    let reply =
        harness.post("/v1/claims/extend", format!(r#"{{"extends":[{}]}}"#, items(&tokens))).await.expect(200);
    assert!(reply.json["results"].as_array().unwrap().iter().all(|r| r["deadline"].is_string()));
    let acks = format!(r#"{{"acks":[{},{{"token":"bad"}}]}}"#, items(&tokens[..2]));
    let reply = harness.post("/v1/claims/ack", acks).await.expect(200);
    assert_eq!(reply.json["results"][1]["state"], "done");
    assert_eq!(reply.json["results"][2]["error"]["code"], "invalid_token");
    assert!(!reply.index().is_empty());
    let reply = harness
        .post("/v1/claims/release", format!(r#"{{"releases":[{}]}}"#, items(&tokens[2..3])))
        .await
        .expect(200);
    assert_eq!(reply.json["results"][0]["state"], "ready");
    let fails = format!(r#"{{"fails":[{{"token":"{}","error":"e","fatal":true}}]}}"#, tokens[3]);
    let reply = harness.post("/v1/claims/fail", fails).await.expect(200);
    assert_eq!(reply.json["results"][0]["state"], "dead");
    let notes = format!(r#"{{"progress":[{{"token":"{}","percent":1}}]}}"#, tokens[0]);
    let reply = harness.post("/v1/claims/progress", notes).await.expect(200);
    assert!(reply.json["results"][0]["error"]["code"].is_string());
    harness.stop().await;
}

#[tokio::test]
async fn an_ack_claims_the_next_and_enqueues_what_follows() {
    let harness = start().await;
    let first = harness.enqueue("mail", r#"{"kind":"a"}"#).await;
    let second = harness.enqueue("mail", r#"{"kind":"b"}"#).await;
    let token = harness.claim("mail").await["token"].as_str().unwrap().to_owned();
    let ask = r#""claim":{"queues":["mail"],"worker":"w"}"#;
    let then = r#""then":[{"queue":"audit","kind":"log","payload":{"n" :1}}]"#;
    let reply =
        harness.post("/v1/claims/ack", format!(r#"{{"token":"{token}",{then},{ask}}}"#)).await.expect(200);
    assert_eq!((&reply.json["id"], &reply.json["state"]), (&json!(first), &json!("done")));
    assert_eq!(reply.json["claims"][0]["id"], second.as_str());
    let log = harness.claim("audit").await;
    assert_eq!((&log["kind"], &log["payload"]), (&json!("log"), &json!({"n": 1})));
    // A refused ack does not keep the claim from being made, nor the other way round.
    let third = harness.enqueue("mail", r#"{"kind":"c"}"#).await;
    let reply = harness.post("/v1/claims/ack", format!(r#"{{"token":"bad",{ask}}}"#)).await.expect(200);
    assert_eq!(reply.json["error"]["code"], "invalid_token");
    assert_eq!(reply.json["claims"][0]["id"], third.as_str());
    let token = reply.json["claims"][0]["token"].as_str().unwrap();
    let gone = r#""claim":{"queues":["mail"],"worker":"w","session":"00000000000000000000000000000001"}"#;
    let reply = harness
        .post("/v1/claims/ack", format!(r#"{{"acks":[{{"token":"{token}"}}],{gone}}}"#))
        .await
        .expect(200);
    assert_eq!(reply.json["results"][0]["state"], "done");
    assert_eq!(reply.json["claim_error"]["code"], "unknown_worker");
    harness.stop().await;
}

#[tokio::test]
async fn a_claim_by_id_takes_that_task_or_says_what_it_is() {
    let harness = start().await;
    let id = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let body = format!(r#"{{"id":"{id}","worker":"w"}}"#);
    let claimed = harness.post("/v1/claims", body.clone()).await.expect(200);
    assert_eq!(claimed.json["claims"][0]["id"], id.as_str());
    let again = harness.post("/v1/claims", body).await;
    again.expect_problem(409, "not_ready");
    assert_eq!((&again.json["state"], &again.json["id"]), (&json!("claimed"), &json!(id)));
    // The same request id gets the same claim, again and again.
    harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let body = r#"{"queues":["mail"],"worker":"w","request_id":"r1"}"#;
    let first = harness.post("/v1/claims", body).await.expect(200).json;
    assert_eq!(
        harness.post("/v1/claims", body).await.expect(200).json["claims"][0]["token"],
        first["claims"][0]["token"]
    );
    harness.stop().await;
}

#[tokio::test]
async fn people_cancel_discard_and_put_back_one_or_many() {
    let harness = start().await;
    let id = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let cancelled = harness.delete(&format!("/v1/tasks/{id}?reason=mistake")).await.expect(200);
    assert_eq!(cancelled.json["state"], "cancelled");
    harness.delete(&format!("/v1/tasks/{id}")).await.expect_problem(409, "already_ended");
    let held = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let claim = harness.claim("mail").await;
    let asked = harness.delete(&format!("/v1/tasks/{held}")).await.expect(200);
    assert_eq!(asked.json["state"], "claimed");
    let token = claim["token"].as_str().unwrap();
    let extended = harness.post("/v1/claims/extend", format!(r#"{{"token":"{token}"}}"#)).await.expect(200);
    assert_eq!(extended.json["cancel_requested"], true);
    let back = harness.enqueue("back", r#"{"kind":"k"}"#).await;
    harness.claim("back").await;
    assert_eq!(
        harness.post(&format!("/v1/tasks/{back}/put-back"), "").await.expect(200).json["state"],
        "ready"
    );
    assert_eq!(
        harness.post(&format!("/v1/tasks/{back}/discard"), "").await.expect(200).json["state"],
        "cancelled"
    );

    let tasks = vec![r#"{"kind":"x"}"#; 30].join(",");
    harness.post("/v1/queues/bulk/tasks", format!(r#"{{"tasks":[{tasks}]}}"#)).await.expect(200);
    let dry = harness.post("/v1/tasks:cancel", r#"{"queue":"bulk","dry_run":true}"#).await.expect(200).json;
    assert_eq!((&dry["matched"], &dry["changed"]), (&json!(30), &json!(0)));
    let acted =
        harness.post("/v1/tasks:cancel", r#"{"queue":"bulk","state":"ready","kind":"x"}"#).await.expect(200);
    assert_eq!((&acted.json["matched"], &acted.json["changed"]), (&json!(30), &json!(30)));
    assert!(!acted.index().is_empty());
    let back =
        harness.post("/v1/tasks:requeue", r#"{"queue":"bulk","state":"cancelled"}"#).await.expect(200).json;
    assert_eq!(back["changed"], 30);
    harness.stop().await;
}

#[tokio::test]
async fn a_list_goes_on_from_its_cursor_and_a_look_waits_for_the_end() {
    let harness = start().await;
    let tasks = vec![r#"{"kind":"x"}"#; 25].join(",");
    harness.post("/v1/queues/bulk/tasks", format!(r#"{{"tasks":[{tasks}]}}"#)).await.expect(200);
    let (mut seen, mut path) =
        (std::collections::BTreeSet::new(), "/v1/tasks?queue=bulk&state=ready&limit=7".to_owned());
    loop {
        let page = harness.get(&path).await.expect(200).json;
        assert!(page["looked_at"].is_u64());
        for task in page["tasks"].as_array().unwrap() {
            assert!(seen.insert(task["id"].as_str().unwrap().to_owned()), "seen twice");
        }
        match page["cursor"].as_str() {
            Some(cursor) => path = format!("/v1/tasks?queue=bulk&state=ready&limit=7&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 25);
    let id = harness.enqueue("one", r#"{"kind":"needle"}"#).await;
    let found = harness.get("/v1/tasks?queue=one&q=needle").await.expect(200).json;
    assert_eq!(found["tasks"][0]["id"], id.as_str());
    let path = format!("/v1/tasks/{id}?wait_ms=20000");
    let (waited, ()) = tokio::join!(harness.get(&path), async {
        let token = harness.claim("one").await["token"].as_str().unwrap().to_owned();
        harness.post("/v1/claims/ack", format!(r#"{{"token":"{token}"}}"#)).await.expect(200);
    });
    assert_eq!(waited.expect(200).json["state"], "done");
    harness.stop().await;
}

#[tokio::test]
async fn a_task_may_wait_until_the_last_moment_and_is_found_by_its_keys() {
    let harness = start().await;
    let body = r#"{"kind":"k","run_at":"9999-12-31T23:59:59.999Z","dedup_key":"d","unique":{"key":"u","until":"final"}}"#;
    let id = harness.enqueue("mail", body).await;
    let missing = harness.get("/v1/queues/mail/tasks/d").await;
    missing.expect_problem(404, "not_found");
    let missing = missing.json;
    assert!(missing["detail"].as_str().unwrap().contains("unique_key"), "{missing}");
    let found = harness.get("/v1/queues/mail/tasks/d?unique_key=u").await.expect(200).json;
    assert_eq!(
        (&found["id"], &found["due"]),
        (&serde_json::Value::from(id.as_str()), &"9999-12-31T23:59:59.999Z".into())
    );
    let held = harness.post(&format!("/v1/tasks/{id}/put-back"), "").await;
    held.expect_problem(409, "not_claimed");
    let held = held.json;
    assert!(held["detail"].as_str().unwrap().contains("nobody holds"), "{held}");
    harness.stop().await;
}

#[tokio::test]
async fn an_atomic_refusal_says_which_task_and_who_is_in_the_way() {
    let harness = start().await;
    let id =
        harness.enqueue("mail", r#"{"kind":"k","order_key":"o","unique":{"key":"u","until":"final"}}"#).await;
    let body = r#"{"tasks":[{"kind":"a","order_key":"o"},{"kind":"b","order_key":"o","unique":{"key":"u","until":"final"}}],"atomic":true}"#;
    let refused = harness.post("/v1/queues/mail/tasks", body).await;
    refused.expect_problem(409, "not_unique");
    let refused = refused.json;
    assert_eq!(refused["id"], id.as_str());
    assert!(refused["detail"].as_str().unwrap().contains("task 1 "), "{refused}");
    harness.stop().await;
}
