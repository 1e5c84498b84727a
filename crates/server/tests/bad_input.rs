//! Bad input gets a clear problem+json, and nothing changed.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod support;

use http::Method;
use support::{Harness, start};

const TASKS: &str = "/v1/queues/mail/tasks";

struct Case {
    what: &'static str,
    method: Method,
    path: String,
    body: Vec<u8>,
    status: u16,
    code: &'static str,
}

fn post(what: &'static str, path: &str, body: impl Into<Vec<u8>>) -> Case {
    Case {
        what,
        method: Method::POST,
        path: path.to_owned(),
        body: body.into(),
        status: 400,
        code: "invalid_request",
    }
}

impl Case {
    fn answers(self, status: u16, code: &'static str) -> Case {
        Case { status, code, ..self }
    }

    fn by(self, method: Method) -> Case {
        Case { method, ..self }
    }
}

async fn check(harness: &Harness, cases: Vec<Case>) {
    let before = harness.state().await;
    for case in cases {
        let reply = harness.send(case.method.clone(), &case.path, &[], case.body).await;
        println!("{}: {}", case.what, reply.json["detail"]);
        assert!(reply.status.is_client_error(), "{} was answered {}", case.what, reply.status);
        reply.expect_problem(case.status, case.code);
        assert_eq!(harness.state().await, before, "{} changed something", case.what);
    }
}

#[tokio::test]
async fn an_enqueue_that_is_wrong_changes_nothing() {
    let harness = start().await;
    harness.enqueue("mail", r#"{"kind":"k","payload":1}"#).await;
    let tasks = |count: usize| format!(r#"{{"tasks":[{}]}}"#, vec![r#"{"kind":"k"}"#; count].join(","));
    let deep = format!(r#"{{"kind":"k","payload":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    let long = "k".repeat(129);
    let key = "k".repeat(513);
    let payload = format!(r#"{{"kind":"k","payload":"{}"}}"#, "x".repeat(1024 * 1024 + 1));
    let headers: Vec<String> = (0..65).map(|n| format!("\"h{n}\":\"v\"")).collect();
    check(
        &harness,
        vec![
            post("an empty body", TASKS, ""),
            post("malformed JSON", TASKS, "{\"kind\":"),
            post("trailing bytes", TASKS, "{\"kind\":\"k\"} x"),
            post("a list for an object", TASKS, "[]"),
            post("a bare string", TASKS, "\"kind\""),
            post("an unknown field", TASKS, r#"{"kind":"k","nope":1}"#),
            post("an unknown field of retry", TASKS, r#"{"kind":"k","retry":{"nope":1}}"#),
            post("a wrong type", TASKS, r#"{"kind":7}"#),
            post("a number as text", TASKS, r#"{"kind":"k","priority":"5"}"#),
            post("no kind", TASKS, r#"{"payload":{}}"#),
            post("an empty kind", TASKS, r#"{"kind":""}"#),
            post("a kind over its limit", TASKS, format!(r#"{{"kind":"{long}"}}"#)),
            post("a kind with a control character", TASKS, r#"{"kind":"a\u0000b"}"#),
            post("a queue name over its limit", &format!("/v1/queues/{long}/tasks"), r#"{"kind":"k"}"#),
            post("a queue name with a space", "/v1/queues/a%20b/tasks", r#"{"kind":"k"}"#),
            post("a queue name with a control character", "/v1/queues/a%0Ab/tasks", r#"{"kind":"k"}"#),
            post("a queue name that is not UTF-8", "/v1/queues/a%FF/tasks", r#"{"kind":"k"}"#),
            post("another queue than the path's", TASKS, r#"{"kind":"k","queue":"other"}"#),
            post("a dedup key over its limit", TASKS, format!(r#"{{"kind":"k","dedup_key":"{key}"}}"#)),
            post("an order key with a control character", TASKS, r#"{"kind":"k","order_key":"a\nb"}"#),
            post("an empty unique key", TASKS, r#"{"kind":"k","unique":{"key":"","until":"final"}}"#),
            post("65 headers", TASKS, format!(r#"{{"kind":"k","headers":{{{}}}}}"#, headers.join(","))),
            post("a payload over the limit", TASKS, payload).answers(413, "payload_too_large"),
            post("10,001 tasks", TASKS, tasks(10_001)),
            post("no tasks", TASKS, tasks(0)),
            post("one bad task of many", TASKS, r#"{"tasks":[{"kind":"k"},{"kind":"k","priority":10}]}"#),
            post("a negative delay", TASKS, r#"{"kind":"k","delay_ms":-1}"#),
            post("an absurd delay", TASKS, r#"{"kind":"k","delay_ms":1e300}"#),
            post("a delay of 292 million years", TASKS, r#"{"kind":"k","delay_ms":9223372036854775807}"#),
            post("a fraction of a millisecond", TASKS, r#"{"kind":"k","hold_ms":1000.5}"#),
            post("a negative expiry", TASKS, r#"{"kind":"k","expires_in_ms":-5}"#),
            post("an absurd retention", TASKS, r#"{"kind":"k","retention_ms":99999999999999}"#),
            post(
                "an absurd dedup window",
                TASKS,
                r#"{"kind":"k","dedup_key":"d","dedup_window_ms":99999999999999}"#,
            ),
            post("a hold too long", TASKS, r#"{"kind":"k","hold_ms":86400001}"#),
            post("a hold too short", TASKS, r#"{"kind":"k","hold_ms":99}"#),
            post("no attempts", TASKS, r#"{"kind":"k","retry":{"attempts":0}}"#),
            post("a backoff of nothing", TASKS, r#"{"kind":"k","retry":{"base_ms":0}}"#),
            post("run_at beyond the year 9999", TASKS, r#"{"kind":"k","run_at":"+010000-01-01T00:00:00Z"}"#),
            post("run_at that is no time", TASKS, r#"{"kind":"k","run_at":"tomorrow"}"#),
            post("run_at and delay", TASKS, r#"{"kind":"k","delay_ms":1,"run_at":"2030-01-01T00:00:00Z"}"#),
            post("priority 10", TASKS, r#"{"kind":"k","priority":10}"#),
            post("a negative priority", TASKS, r#"{"kind":"k","priority":-1}"#),
            post("deep JSON", TASKS, deep),
            post("very deep JSON", TASKS, "[".repeat(1_000_000)),
            post("invalid UTF-8", TASKS, b"{\"kind\":\"\xff\xfe\"}".to_vec()),
            post("base64 that is none", TASKS, r#"{"kind":"k","payload_base64":"%%%"}"#),
            post("two payloads", TASKS, r#"{"kind":"k","payload":1,"payload_base64":"AA=="}"#),
            post("a wrong method", TASKS, "").by(Method::PATCH).answers(405, "method_not_allowed"),
            post("an unknown path", "/v1/nope", "{}").answers(404, "not_found"),
            post("a path too long", &format!("/v1/{}", "x".repeat(5000)), "{}").answers(404, "not_found"),
        ],
    )
    .await;
    harness.stop().await;
}

#[tokio::test]
async fn a_claim_that_is_wrong_changes_nothing() {
    let harness = start().await;
    let id = harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let names: Vec<String> = (0..65).map(|n| format!("\"q{n}\"")).collect();
    let unknown = "01994c2e-8f00-7001-8000-000000000000";
    check(
        &harness,
        vec![
            post("no queues", "/v1/claims", r#"{"worker":"w"}"#),
            post("an empty list of queues", "/v1/claims", r#"{"queues":[],"worker":"w"}"#),
            post("65 queues", "/v1/claims", format!(r#"{{"queues":[{}],"worker":"w"}}"#, names.join(","))),
            post("a bad queue name", "/v1/claims", r#"{"queues":["a b"],"worker":"w"}"#),
            post("no worker", "/v1/claims", r#"{"queues":["mail"]}"#),
            post(
                "a worker with a control character",
                "/v1/claims",
                r#"{"queues":["mail"],"worker":"a\u0001"}"#,
            ),
            post("max 0", "/v1/claims", r#"{"queues":["mail"],"worker":"w","max":0}"#),
            post("max 1001", "/v1/claims", r#"{"queues":["mail"],"worker":"w","max":1001}"#),
            post(
                "a wait over the limit",
                "/v1/claims",
                r#"{"queues":["mail"],"worker":"w","wait_ms":60001}"#,
            ),
            post("a negative wait", "/v1/claims", r#"{"queues":["mail"],"worker":"w","wait_ms":-1}"#),
            post(
                "a hold over the limit",
                "/v1/claims",
                r#"{"queues":["mail"],"worker":"w","hold_ms":86400001}"#,
            ),
            post("weight 0", "/v1/claims", r#"{"queues":[{"name":"mail","weight":0}],"worker":"w"}"#),
            post("an id that is none", "/v1/claims", r#"{"id":"x","worker":"w"}"#),
            post("id and queues", "/v1/claims", format!(r#"{{"id":"{id}","queues":["mail"],"worker":"w"}}"#)),
            post("an unknown id", "/v1/claims", format!(r#"{{"id":"{unknown}","worker":"w"}}"#))
                .answers(404, "not_found"),
            post(
                "an unknown session",
                "/v1/claims",
                r#"{"queues":["mail"],"worker":"w","session":"00000000000000000000000000000001"}"#,
            )
            .answers(404, "unknown_worker"),
            post("a session that is none", "/v1/claims", r#"{"queues":["mail"],"worker":"w","session":"x"}"#),
        ],
    )
    .await;
    harness.stop().await;
}

#[tokio::test]
async fn a_forged_truncated_or_foreign_token_touches_no_task() {
    let harness = start().await;
    harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let (first, second) = (harness.claim("mail").await, harness.claim("mail").await);
    let (token, other) = (first["token"].as_str().unwrap(), second["token"].as_str().unwrap());
    let forged = {
        let last = if token.ends_with('A') { 'B' } else { 'A' };
        format!("{}{last}", &token[..token.len() - 1])
    };
    let spliced = format!("{}{}", &token[..token.len() / 2], &other[other.len() / 2..]);
    let mut cases = Vec::new();
    for verb in ["ack", "fail", "extend", "release", "progress"] {
        let path = format!("/v1/claims/{verb}");
        let more = match verb {
            "fail" => r#","error":"e""#,
            "progress" => r#","percent":1"#,
            _ => "",
        };
        for (what, bad) in [
            ("an empty token", ""),
            ("a truncated token", &token[..token.len() - 1]),
            ("a longer token", &format!("{token}A")),
            ("a forged token", &forged),
            ("two tokens spliced", &spliced),
            ("a token of other letters", &"é".repeat(token.len() / 2)),
        ] {
            let body = format!(r#"{{"token":"{bad}"{more}}}"#);
            cases.push(post(what, &path, body).answers(400, "invalid_token"));
        }
        cases.push(post("no token", &path, "{}"));
        cases.push(post("a token that is a number", &path, format!(r#"{{"token":1{more}}}"#)));
        cases.push(post("an unknown field", &path, format!(r#"{{"token":"{token}","nope":1{more}}}"#)));
        cases.push(post("a wrong method", &path, "").by(Method::GET).answers(405, "method_not_allowed"));
    }
    cases.push(post("no acks", "/v1/claims/ack", r#"{"acks":[]}"#));
    cases.push(post("percent 101", "/v1/claims/progress", format!(r#"{{"token":"{token}","percent":101}}"#)));
    cases.push(post("a short hold", "/v1/claims/extend", format!(r#"{{"token":"{token}","hold_ms":1}}"#)));
    cases.push(post(
        "a negative retry",
        "/v1/claims/fail",
        format!(r#"{{"token":"{token}","error":"e","retry_in_ms":-1}}"#),
    ));
    cases.push(post(
        "a follow-up without a queue",
        "/v1/claims/ack",
        format!(r#"{{"token":"{token}","then":[{{"kind":"k"}}]}}"#),
    ));
    cases.push(post(
        "an ack whose claim is wrong",
        "/v1/claims/ack",
        format!(r#"{{"token":"{token}","claim":{{"queues":[],"worker":"w"}}}}"#),
    ));
    let many: Vec<&str> = vec![r#"{"token":"x"}"#; 10_001];
    cases.push(post("10,001 acks", "/v1/claims/ack", format!(r#"{{"acks":[{}]}}"#, many.join(","))));
    check(&harness, cases).await;
    // Both are still held by the tokens that were given out.
    for token in [token, other] {
        harness.post("/v1/claims/ack", format!(r#"{{"token":"{token}"}}"#)).await.expect(200);
    }
    harness.stop().await;
}

#[tokio::test]
async fn looking_and_acting_with_bad_input_changes_nothing() {
    let harness = start().await;
    harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let unknown = "01994c2e-8f00-7001-8000-000000000000";
    let far = "01994c2e-8f00-73ff-8000-000000000000";
    let get = |what, path: &str| post(what, path, "").by(Method::GET);
    let mut cases = vec![
        get("an unknown id", &format!("/v1/tasks/{unknown}")).answers(404, "not_found"),
        get("an id of a shard that is not there", &format!("/v1/tasks/{far}")).answers(404, "not_found"),
        get("an id that is none", "/v1/tasks/42"),
        get("a wait over the limit", &format!("/v1/tasks/{unknown}?wait_ms=60001")),
        get("an unknown parameter", "/v1/tasks?nope=1"),
        get("a state that is none", "/v1/tasks?state=asleep"),
        get("a limit over the limit", "/v1/tasks?limit=1001"),
        get("limit 0", "/v1/tasks?limit=0"),
        get("a cursor that is none", "/v1/tasks?cursor=%00%ff"),
        get("an order key without a queue", "/v1/tasks?order_key=k"),
        get("a negative age", "/v1/claims?older_than_ms=-1"),
        get("an unknown queue", "/v1/queues/nope").answers(404, "unknown_queue"),
        get("an unknown dedup key", "/v1/queues/mail/tasks/nope").answers(404, "not_found"),
        get("an unknown worker", "/v1/workers/nope").answers(404, "unknown_worker"),
        get("a held session that is none", "/v1/workers/w/session?session=x"),
        get("a held session without a session", "/v1/workers/w/session"),
        get("why an unknown task waits", &format!("/v1/tasks/{unknown}/why")).answers(404, "not_found"),
        post("cancel an unknown id", &format!("/v1/tasks/{unknown}"), "")
            .by(Method::DELETE)
            .answers(404, "not_found"),
        post("an action without a body", "/v1/tasks:discard", ""),
        post("an action with an unknown field", "/v1/tasks:discard", r#"{"queues":"mail"}"#),
        post("an action on a state that is none", "/v1/tasks:cancel", r#"{"state":"asleep"}"#),
        post("an unknown action", "/v1/tasks:explode", "{}").answers(404, "not_found"),
        post("delete a queue with tasks", "/v1/queues/mail", "").by(Method::DELETE).answers(409, "not_ready"),
        post("drain an unknown worker", "/v1/workers/nope/drain", "").answers(404, "unknown_worker"),
        post(
            "a beat of an unknown worker",
            "/v1/workers/nope/beat",
            r#"{"session":"00000000000000000000000000000001"}"#,
        )
        .answers(404, "unknown_worker"),
        post("a beat without a session", "/v1/workers/nope/beat", "{}"),
        post("a worker without an id", "/v1/workers", "{}"),
        post("a worker with a slow beat", "/v1/workers", r#"{"id":"w","beat_ms":1001}"#),
        post("a worker without slots", "/v1/workers", r#"{"id":"w","slots":0}"#),
    ];
    for verb in ["requeue", "discard", "put-back"] {
        let path = format!("/v1/tasks/{unknown}/{verb}");
        cases.push(post("an unknown id", &path, "").answers(404, "not_found"));
    }
    for (what, body) in [
        ("an unknown field", r#"{"holdms":1}"#),
        ("concurrency", r#"{"concurrency":5}"#),
        ("rate", r#"{"rate":{"per_s":5,"burst":5}}"#),
        ("limit_key", r#"{"limit_key":{"concurrency":1}}"#),
        ("fair_by", r#"{"fair_by":"tenant"}"#),
        ("a negative hold", r#"{"hold_ms":-1}"#),
        ("no attempts", r#"{"retry":{"attempts":0}}"#),
        ("2 shards", r#"{"shards":2}"#),
    ] {
        cases.push(post(what, "/v1/queues/mail", body).by(Method::PUT));
    }
    cases.push(post("a queue name that is none", "/v1/queues/a%2Fb", "{}").by(Method::PUT));
    check(&harness, cases).await;
    harness.stop().await;
}
