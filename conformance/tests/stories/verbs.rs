//! What each verb takes: how many words, and which fields. A runner that passes by what it does not know would tell a
//! story that nobody wrote, so every step is looked at before it is taken.

use serde_json::Value;

use crate::story::Step;

/// Whether a step has this many words and no field that its verb does not take.
pub(crate) fn check(step: &Step) -> Result<(), String> {
    let (words, fields): (usize, Fields) = match step.verb.as_str() {
        "enqueue" => (1, Fields::OfTheFace),
        "enqueue-many" => (1, Fields::OfTheFace),
        "claim" => (2, Fields::These(&["hold_ms"])),
        "ack" => (1, Fields::These(&["output", "then"])),
        // `then` is what a handler wanted to follow, which an attempt that failed has not.
        "fail" => (1, Fields::These(&["error", "detail", "retry_in_ms", "fatal", "then"])),
        "release" => (1, Fields::These(&["delay_ms"])),
        "extend" => (1, Fields::These(&["hold_ms"])),
        "progress" => (1, Fields::These(&["percent", "note"])),
        "told" | "session" | "leave" | "vanish" | "requeue" | "look" | "result" => (1, Fields::These(&[])),
        "cancel" => (1, Fields::These(&["reason"])),
        "expect" => (1, Fields::These(TASK)),
        "expect-queue" => (1, Fields::These(QUEUE)),
        "find" => (3, Fields::These(&[])),
        "name" | "newer" => (2, Fields::These(&[])),
        "pause" | "resume" | "advance" => (1, Fields::These(&[])),
        "set-queue" => (1, Fields::OfTheFace),
        other => return Err(format!("no such verb: {other}")),
    };
    if step.words.len() != words {
        return Err(format!("{} takes {words} words, not {}", step.verb, step.words.len()));
    }
    match (fields, &step.body) {
        (Fields::OfTheFace, _) | (_, Value::Null) => Ok(()),
        (Fields::These(known), Value::Object(body)) => {
            match body.keys().find(|name| !known.contains(&name.as_str())) {
                Some(name) => Err(format!("{} takes no field {name}", step.verb)),
                None => Ok(()),
            }
        }
        (Fields::These(_), _) => Err(format!("{} takes an object", step.verb)),
    }
}

/// Which fields a verb takes.
enum Fields {
    These(&'static [&'static str]),
    /// Those that every face carries over or refuses (`proto.rs`, `sdk.rs`, the HTTP face itself).
    OfTheFace,
}

/// What a task has, as `GET /v1/tasks/{id}` shows it, and the two times as stories write them.
const TASK: &[&str] = &[
    "id",
    "queue",
    "kind",
    "state",
    "attempt",
    "attempts_max",
    "priority",
    "order_key",
    "dedup_key",
    "payload",
    "headers",
    "output",
    "error",
    "progress",
    "worker",
    "fence",
    "history",
    "due_in_ms",
    "deadline_in_ms",
];

/// What a queue has, as `GET /v1/queues/{q}` shows it.
const QUEUE: &[&str] =
    &["name", "paused", "depth", "oldest_ready_ms", "oldest_claimed_ms", "totals", "rates", "policy"];
