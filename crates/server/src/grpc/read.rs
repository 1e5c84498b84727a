//! From messages to the requests of the HTTP face, which say what is right and what is not: one rule for both.

use std::collections::BTreeMap;

use bytes::Bytes;
use model::{Fence, SessionId, TaskId, WallTime, limits};
use node::call::{Freshness, Given, PlainTask, TaskSpec};
use prost_types::Timestamp;
use serde_json::value::RawValue;
use wire::grpc;
use wire::grpc::streams::{ItemTask, Plain};
use wire::http::claim::{ClaimRequest, QueueChoice};
use wire::http::enqueue::{RetryRequest, TaskRequest, UniqueRequest, UniqueUntilWord, check_content_type};
use wire::http::{Id, Invalid, Ms, Pairs, Session, Text, Time, parse};

use crate::http::claim::Ask;
use crate::http::enqueue::{nth, spec};
use crate::problem::Refusal;

/// The last second of the year 9999.
const SECONDS_MAX: i64 = 253_402_300_799;

/// A task as the node takes it. Its payload is not copied.
pub(crate) fn task(task: grpc::Task) -> Result<TaskSpec, Invalid> {
    let request = TaskRequest {
        queue: Some(task.queue.as_str().into()),
        kind: task.kind.as_str().into(),
        headers: pairs(&task.headers),
        dedup_key: task.dedup_key.as_deref().map(Text::from),
        dedup_window_ms: ms("dedup_window_ms", task.dedup_window_ms)?,
        delay_ms: ms("delay_ms", task.delay_ms)?,
        run_at: task.run_at.map(time).transpose()?,
        priority: task.priority.map(u64::from),
        order_key: task.order_key.as_deref().map(Text::from),
        hold_ms: ms("hold_ms", task.hold_ms)?,
        retry: task.retry.map(retry).transpose()?,
        expires_in_ms: ms("expires_in_ms", task.expires_in_ms)?,
        retention_ms: ms("retention_ms", task.retention_ms)?,
        unique: task.unique.as_ref().map(unique).transpose()?,
        ..TaskRequest::default()
    };
    let mut spec = spec(&request, request.queue()?, &Bytes::new(), None)?;
    drop(request);
    if task.content_type.is_empty() {
        if !task.payload.is_empty() {
            spec.payload = json("payload", &task.payload)?;
        }
    } else {
        check_content_type(&task.content_type)?;
        (spec.payload, spec.content_type) = (task.payload, Some(task.content_type));
    }
    Ok(spec)
}

/// The same, as a stream brings it.
pub(crate) fn item(item: ItemTask) -> Result<Given, Invalid> {
    match item {
        ItemTask::Plain(Plain { queue, kind, payload }) => {
            let payload = match payload.is_empty() {
                true => Bytes::from_static(b"null"),
                false => json("payload", &payload)?,
            };
            Ok(Given::Plain(PlainTask { queue, kind, payload, priority: limits::PRIORITY_DEFAULT }))
        }
        ItemTask::Any(any) => task(*any).map(Given::from),
    }
}

/// Tasks under the name of the list that they stand in.
pub(crate) fn tasks(what: &str, list: Vec<grpc::Task>) -> Result<Vec<TaskSpec>, Invalid> {
    let specs = list.into_iter().enumerate();
    specs.map(|(n, one)| task(one).map_err(|error| nth(what, n, error))).collect()
}

/// JSON as it came, without the blanks around it.
pub(crate) fn json(what: &str, bytes: &Bytes) -> Result<Bytes, Invalid> {
    let text = parse::text(bytes).map_err(|error| Invalid(format!("{what}: {error}")))?;
    let raw: &RawValue = serde_json::from_str(text)
        .map_err(|error| Invalid(format!("{what} is not JSON: {error}; other bytes need a content_type")))?;
    Ok(bytes.slice_ref(raw.get().as_bytes()))
}

fn retry(retry: grpc::Retry) -> Result<RetryRequest, Invalid> {
    Ok(RetryRequest {
        attempts: retry.attempts,
        base_ms: ms("retry.base_ms", retry.base_ms)?,
        cap_ms: ms("retry.cap_ms", retry.cap_ms)?,
        age_max_ms: ms("retry.age_max_ms", retry.age_max_ms)?,
    })
}

fn unique(unique: &grpc::Unique) -> Result<UniqueRequest<'_>, Invalid> {
    let until = match &*unique.until {
        "claimed" => UniqueUntilWord::Claimed,
        "final" => UniqueUntilWord::Final,
        _ => return Err(Invalid::new("unique.until is neither claimed nor final: give one of them")),
    };
    Ok(UniqueRequest { key: unique.key.as_str().into(), until })
}

/// A claim over queues, checked.
pub(crate) fn claim(request: &grpc::ClaimRequest) -> Result<Ask, Invalid> {
    Ask::new(&ClaimRequest {
        queues: Some(choices(&request.queues)),
        worker: request.worker.as_str().into(),
        session: session(&request.session)?.map(Session),
        max: request.max.map(u64::from),
        hold_ms: ms("hold_ms", request.hold_ms)?,
        wait_ms: ms("wait_ms", request.wait_ms)?,
        request_id: request.request_id.as_deref().map(Text::from),
        ..ClaimRequest::default()
    })
}

/// A claim of one task, checked.
pub(crate) fn claim_by_id(request: &grpc::ClaimByIdRequest) -> Result<Ask, Invalid> {
    Ask::new(&ClaimRequest {
        id: Some(Id(task_id(&request.id)?)),
        worker: request.worker.as_str().into(),
        session: session(&request.session)?.map(Session),
        hold_ms: ms("hold_ms", request.hold_ms)?,
        request_id: request.request_id.as_deref().map(Text::from),
        ..ClaimRequest::default()
    })
}

/// Queues to claim from.
pub(crate) fn choices(queues: &[grpc::QueueChoice]) -> Vec<QueueChoice<'_>> {
    let choices = queues.iter();
    choices
        .map(|queue| QueueChoice { name: queue.name.as_str().into(), weight: queue.weight.map(u64::from) })
        .collect()
}

/// A map as the HTTP face has it.
pub(crate) fn pairs(map: &BTreeMap<String, String>) -> Pairs<'_> {
    Pairs(map.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect())
}

/// The field `what`, within the range of a length of time.
pub(crate) fn ms(what: &str, millis: Option<u64>) -> Result<Option<Ms>, Invalid> {
    millis.map(|millis| Ms::check(what, millis)).transpose()
}

/// A moment. One before 1970 counts as 1970, one after 9999 is refused.
fn time(timestamp: Timestamp) -> Result<Time, Invalid> {
    if timestamp.seconds > SECONDS_MAX || !(0..1_000_000_000).contains(&timestamp.nanos) {
        return Err(Invalid::new("run_at is after the year 9999, or has no such nanoseconds: give a time"));
    }
    let millis = timestamp.seconds * 1_000 + i64::from(timestamp.nanos) / 1_000_000;
    Ok(Time(WallTime::from_millis(u64::try_from(millis).unwrap_or(0))))
}

/// A task's id.
pub(crate) fn task_id(text: &str) -> Result<TaskId, Invalid> {
    text.parse().map_err(|error: model::id::InvalidTaskId| Invalid(error.to_string()))
}

/// A session; an empty string is none.
pub(crate) fn session(text: &str) -> Result<Option<SessionId>, Invalid> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| Invalid(format!("session: {error}")))
}

/// Tasks in a worker's hands.
pub(crate) fn held(tasks: &[grpc::HeldTask]) -> Result<Vec<(TaskId, Fence)>, Refusal> {
    parse::check_at_most("a beat", tasks, limits::BEAT_CLAIMS_MAX)?;
    let one = |task: &grpc::HeldTask| Ok((task_id(&task.id)?, Fence(task.fence)));
    tasks.iter().map(one).collect()
}

/// How fresh an answer must be.
pub(crate) fn freshness(stale: bool) -> Freshness {
    if stale { Freshness::Stale } else { Freshness::Linearizable }
}
