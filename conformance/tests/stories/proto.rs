//! Between the JSON of a story and the messages of gRPC, for the two faces that speak it.

use bytes::Bytes;
use serde_json::{Value, json};
use wire::grpc;

/// A task to be enqueued.
pub(crate) fn task_of(task: &Value) -> grpc::Task {
    known(
        task,
        &[
            "queue",
            "kind",
            "payload",
            "headers",
            "dedup_key",
            "dedup_window_ms",
            "delay_ms",
            "priority",
            "order_key",
            "hold_ms",
            "retry",
            "expires_in_ms",
            "unique",
        ],
    );
    let retry = &task["retry"];
    known(retry, &["attempts", "base_ms", "cap_ms", "age_max_ms"]);
    let unique = &task["unique"];
    let headers = task["headers"].as_object().into_iter().flatten();
    grpc::Task {
        queue: text(&task["queue"]).unwrap_or_default(),
        kind: text(&task["kind"]).unwrap_or_default(),
        payload: bytes_of(&task["payload"]),
        headers: headers.map(|(name, value)| (name.clone(), text(value).unwrap_or_default())).collect(),
        dedup_key: text(&task["dedup_key"]),
        dedup_window_ms: task["dedup_window_ms"].as_u64(),
        delay_ms: task["delay_ms"].as_u64(),
        priority: task["priority"].as_u64().and_then(|priority| u32::try_from(priority).ok()),
        order_key: text(&task["order_key"]),
        hold_ms: task["hold_ms"].as_u64(),
        retry: (!retry.is_null()).then(|| grpc::Retry {
            attempts: retry["attempts"].as_u64(),
            base_ms: retry["base_ms"].as_u64(),
            cap_ms: retry["cap_ms"].as_u64(),
            age_max_ms: retry["age_max_ms"].as_u64(),
        }),
        expires_in_ms: task["expires_in_ms"].as_u64(),
        unique: (!unique.is_null()).then(|| grpc::Unique {
            key: text(&unique["key"]).unwrap_or_default(),
            until: text(&unique["until"]).unwrap_or_default(),
        }),
        ..Default::default()
    }
}

/// A change of a queue's policy.
pub(crate) fn policy_of(queue: &str, policy: &Value) -> grpc::SetQueueRequest {
    known(policy, &["hold_ms", "retry", "tasks_max", "payload_bytes_max", "on_exhausted", "shards"]);
    let retry = &policy["retry"];
    known(retry, &["attempts", "base_ms", "cap_ms"]);
    grpc::SetQueueRequest {
        queue: queue.to_owned(),
        hold_ms: policy["hold_ms"].as_u64(),
        retry: (!retry.is_null()).then(|| grpc::RetryPolicyChange {
            attempts: retry["attempts"].as_u64(),
            base_ms: retry["base_ms"].as_u64(),
            cap_ms: retry["cap_ms"].as_u64(),
            ..Default::default()
        }),
        tasks_max: policy["tasks_max"].as_u64(),
        payload_bytes_max: policy["payload_bytes_max"].as_u64(),
        on_exhausted: text(&policy["on_exhausted"]),
        shards: policy.get("shards").map(|shards| text(shards).unwrap_or_else(|| shards.to_string())),
        ..Default::default()
    }
}

/// A task, as a story looks at it.
pub(crate) fn view_of(task: grpc::TaskInfo) -> Value {
    let output = task.output.filter(|output| !output.is_empty());
    json!({
        "id": task.id,
        "queue": task.queue,
        "kind": task.kind,
        "state": task.state,
        "attempt": task.attempt,
        "attempts_max": task.attempts_max,
        "priority": task.priority,
        "order_key": task.order_key,
        "dedup_key": task.dedup_key,
        "payload": json_of(&task.payload),
        "headers": task.headers,
        "output": output.map(|output| json_of(&output)),
        "error": task.error,
        "progress": task.progress.map(|note| json!({"percent": note.percent, "note": note.note})),
        "due": task.due.map(millis),
        "deadline": task.deadline.map(millis),
        "worker": task.worker,
        "fence": task.fence,
        "history": task.history.into_iter().map(|line| line.event).collect::<Vec<_>>(),
    })
}

/// A queue, as a story looks at it.
pub(crate) fn queue_view(queue: &grpc::Queue) -> Value {
    let (depth, totals) = (queue.depth.unwrap_or_default(), queue.totals.unwrap_or_default());
    json!({
        "name": queue.name,
        "paused": queue.paused,
        "depth": {
            "ready": depth.ready, "claimed": depth.claimed, "delayed": depth.delayed,
            "retrying": depth.retrying, "blocked": depth.blocked, "dead": depth.dead,
        },
        "totals": {
            "enqueued": totals.enqueued, "done": totals.done, "failed": totals.failed,
            "dead": totals.dead, "freed": totals.freed,
        },
    })
}

/// JSON as bytes; none for nothing.
pub(crate) fn bytes_of(value: &Value) -> Bytes {
    if value.is_null() { Bytes::new() } else { Bytes::from(value.to_string()) }
}

/// Bytes as JSON; null for none.
pub(crate) fn json_of(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or(Value::Null)
}

pub(crate) fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn millis(time: prost_types::Timestamp) -> i64 {
    time.seconds * 1_000 + i64::from(time.nanos) / 1_000_000
}

/// A story that says something which is not carried over here must not pass by chance.
#[track_caller]
pub(crate) fn known(value: &Value, names: &[&str]) {
    for name in value.as_object().into_iter().flat_map(|fields| fields.keys()) {
        assert!(names.contains(&name.as_str()), "{name} is not carried over: add it to this face");
    }
}
