//! `/openapi.json` lists every route, and its field names are those of the replies.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;

use http::Method;
use serde_json::Value;
use support::{Harness, start};

/// The contract's routes.
const ROUTES: &[(&str, &str)] = &[
    ("post", "/v1/queues/{queue}/tasks"),
    ("get", "/v1/queues/{queue}/tasks/{dedup_key}"),
    ("post", "/v1/claims"),
    ("get", "/v1/claims"),
    ("post", "/v1/claims/ack"),
    ("post", "/v1/claims/fail"),
    ("post", "/v1/claims/extend"),
    ("post", "/v1/claims/release"),
    ("post", "/v1/claims/progress"),
    ("post", "/v1/workers"),
    ("get", "/v1/workers"),
    ("get", "/v1/workers/{id}"),
    ("delete", "/v1/workers/{id}"),
    ("post", "/v1/workers/{id}/beat"),
    ("get", "/v1/workers/{id}/session"),
    ("post", "/v1/workers/{id}/drain"),
    ("post", "/v1/workers/{id}/stop"),
    ("post", "/v1/workers/{id}/remove"),
    ("get", "/v1/tasks"),
    ("get", "/v1/tasks/{id}"),
    ("delete", "/v1/tasks/{id}"),
    ("get", "/v1/tasks/{id}/why"),
    ("post", "/v1/tasks/{id}/requeue"),
    ("post", "/v1/tasks/{id}/discard"),
    ("post", "/v1/tasks/{id}/put-back"),
    ("post", "/v1/tasks:requeue"),
    ("post", "/v1/tasks:discard"),
    ("post", "/v1/tasks:cancel"),
    ("post", "/v1/tasks:put-back"),
    ("get", "/v1/queues"),
    ("get", "/v1/queues/{queue}"),
    ("put", "/v1/queues/{queue}"),
    ("delete", "/v1/queues/{queue}"),
    ("post", "/v1/queues/{queue}/pause"),
    ("post", "/v1/queues/{queue}/resume"),
    ("post", "/v1/queues/{queue}/purge"),
    ("get", "/v1/cluster"),
    ("get", "/v1/node"),
    ("post", "/v1/cluster/transfer"),
    ("post", "/v1/cluster/rebalance"),
    ("post", "/v1/cluster/leave"),
    ("post", "/v1/cluster/promote"),
    ("get", "/v1/events"),
    ("get", "/livez"),
    ("get", "/readyz"),
    ("get", "/metrics"),
    ("get", "/openapi.json"),
];

async fn api(harness: &Harness) -> Value {
    harness.get("/openapi.json").await.expect(200).json
}

#[tokio::test]
async fn the_description_lists_every_route_and_no_other() {
    let harness = start().await;
    let api = api(&harness).await;
    assert!(api["openapi"].as_str().unwrap().starts_with("3.1"), "{}", api["openapi"]);
    let mut listed = BTreeSet::new();
    for (path, methods) in api["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            listed.insert((method.as_str(), path.as_str()));
        }
    }
    let expected: BTreeSet<_> = ROUTES.iter().copied().collect();
    assert_eq!(listed, expected);
    // Each is really served: whatever it answers, it is not "no such path" or "no such method".
    for (method, path) in ROUTES {
        if path.ends_with("/events") {
            continue;
        }
        let path = path.replace("{queue}", "q").replace("{id}", "w").replace("{dedup_key}", "k");
        let method: Method = method.to_uppercase().parse().unwrap();
        let reply = harness.send(method.clone(), &path, &[], "").await;
        assert_ne!(reply.status, 405, "{method} {path}");
        assert!(
            !reply.json["detail"].as_str().unwrap_or_default().starts_with("there is nothing at"),
            "{method} {path}"
        );
    }
    harness.stop().await;
}

#[tokio::test]
async fn every_reference_in_the_description_leads_somewhere() {
    let harness = start().await;
    let api = api(&harness).await;
    let mut references = BTreeSet::new();
    gather(&api, &mut references);
    assert!(references.len() > 20, "{references:?}");
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(api.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
    harness.stop().await;
}

fn gather(value: &Value, references: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                references.insert(reference.to_owned());
            }
            fields.values().for_each(|field| gather(field, references));
        }
        Value::Array(items) => items.iter().for_each(|item| gather(item, references)),
        _ => {}
    }
}

/// Checks that every field of `value` is described by `schema`, and every required one is there.
fn check(api: &Value, schema: &Value, value: &Value, at: &str) {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => api.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
        None => schema,
    };
    if let Some(options) = schema["oneOf"].as_array().filter(|_| !value.is_null()) {
        let fits = |option: &&Value| {
            let option = match option["$ref"].as_str() {
                Some(reference) => api.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
                None => option,
            };
            let required = option["required"].as_array().into_iter().flatten();
            option["type"] != "null"
                && required.clone().all(|name| value.get(name.as_str().unwrap()).is_some())
        };
        let option = options.iter().find(fits).unwrap_or_else(|| panic!("{at}: no form fits {value}"));
        return check(api, option, value, at);
    }
    match value {
        Value::Object(fields) if schema["properties"].is_object() => {
            for (name, field) in fields {
                let property = &schema["properties"][name];
                assert!(!property.is_null(), "{at}.{name} is not described");
                check(api, property, field, &format!("{at}.{name}"));
            }
            for name in schema["required"].as_array().into_iter().flatten() {
                assert!(fields.contains_key(name.as_str().unwrap()), "{at}.{name} is required and missing");
            }
        }
        Value::Array(items) => {
            items.iter().for_each(|item| check(api, &schema["items"], item, &format!("{at}[]")));
        }
        _ => {}
    }
}

#[tokio::test]
async fn the_fields_of_replies_are_those_of_the_description() {
    let harness = start().await;
    let api = api(&harness).await;
    let described = |method: &str, path: &str, status: &str| -> Value {
        let responses = &api["paths"][path][method]["responses"];
        let response = if responses[status].is_null() { &responses["default"] } else { &responses[status] };
        let content = response["content"].as_object().unwrap_or_else(|| panic!("{method} {path} {status}"));
        content.values().next().unwrap()["schema"].clone()
    };
    let id = harness
        .enqueue(
            "mail",
            r#"{"kind":"k","payload":{"a":1},"headers":{"h":"v"},"order_key":"o","dedup_key":"d"}"#,
        )
        .await;
    let behind = harness.enqueue("mail", r#"{"kind":"k","order_key":"o"}"#).await;
    harness.post("/v1/workers", r#"{"id":"w"}"#).await.expect(200);
    let token = harness.claim("mail").await["token"].as_str().unwrap().to_owned();
    let fail = format!(r#"{{"token":"{token}","error":"e","retry_in_ms":1}}"#);
    let mut asked: Vec<(&str, &str, String, String)> = vec![
        (
            "post",
            "/v1/claims/progress",
            "/v1/claims/progress".into(),
            format!(r#"{{"token":"{token}","percent":1,"note":"n"}}"#),
        ),
        (
            "post",
            "/v1/claims/extend",
            "/v1/claims/extend".into(),
            format!(r#"{{"extends":[{{"token":"{token}"}},{{"token":"x"}}]}}"#),
        ),
        ("get", "/v1/claims", "/v1/claims".into(), String::new()),
        ("get", "/v1/tasks/{id}", format!("/v1/tasks/{id}"), String::new()),
        ("post", "/v1/claims/fail", "/v1/claims/fail".into(), fail),
        ("get", "/v1/tasks/{id}", format!("/v1/tasks/{id}"), String::new()),
        ("get", "/v1/tasks/{id}/why", format!("/v1/tasks/{behind}/why"), String::new()),
        ("get", "/v1/tasks/{id}", "/v1/tasks/nope".into(), String::new()),
        ("post", "/v1/queues/{queue}/tasks", "/v1/queues/mail/tasks".into(), r#"{"kind":"z"}"#.into()),
        (
            "post",
            "/v1/queues/{queue}/tasks",
            "/v1/queues/mail/tasks".into(),
            r#"{"tasks":[{"kind":"z"}]}"#.into(),
        ),
        ("post", "/v1/claims", "/v1/claims".into(), r#"{"queues":["mail"],"worker":"w","max":9}"#.into()),
        ("post", "/v1/tasks:cancel", "/v1/tasks:cancel".into(), r#"{"queue":"mail","dry_run":true}"#.into()),
        ("get", "/v1/queues/{queue}", "/v1/queues/mail".into(), String::new()),
    ];
    for path in ["/v1/tasks", "/v1/queues", "/v1/workers", "/v1/cluster", "/v1/node", "/livez", "/readyz"] {
        asked.push(("get", path, path.into(), String::new()));
    }
    for (method, route, path, body) in asked {
        let reply = harness.send(method.to_uppercase().parse().unwrap(), &path, &[], body).await;
        let schema = described(method, route, reply.status.as_str());
        check(&api, &schema, &reply.json, &format!("{method} {path}"));
    }
    harness.stop().await;
}
