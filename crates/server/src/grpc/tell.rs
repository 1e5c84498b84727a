//! From the node's answers, and from the replies of the HTTP face, to messages.

use std::time::Duration;

use model::{Enqueued, Fence, Settled, TaskId, WallTime};
use node::call;
use prost_types::Timestamp;
use tonic::Response;
use tonic::metadata::MetadataMap;
use wire::envelope::{Envelope, Header};
use wire::grpc;
use wire::grpc::streams::Push;
use wire::http::claim::HeldClaim;
use wire::http::settle::{HeldReply, SettleReply};
use wire::http::task::{HistoryReply, ProgressReply, ReasonReply, TaskReply};
use wire::http::worker::{RunningTask, WorkerReply, WorkerStateWord};
use wire::http::{Ms, Session, Time};

use crate::http::{enqueue, settle};
use crate::problem::problem_of;
use crate::reply::Indexes;

use super::status::error;

/// The metadata that carries `shard:index` of every shard that a call wrote to.
const WINDLASS_INDEX: &str = "windlass-index";

/// An answer to a write.
pub(crate) fn written<T>(message: T, indexes: &Indexes) -> Response<T> {
    let mut response = Response::new(message);
    if let Some(value) = indexes.header() {
        let mut headers = http::HeaderMap::new();
        headers.insert(WINDLASS_INDEX, value);
        *response.metadata_mut() = MetadataMap::from_headers(headers);
    }
    response
}

/// A moment.
pub(crate) fn timestamp(time: WallTime) -> Timestamp {
    let millis = time.millis();
    Timestamp { seconds: (millis / 1_000) as i64, nanos: (millis % 1_000) as i32 * 1_000_000 }
}

fn at(time: Time) -> Option<Timestamp> {
    Some(timestamp(time.0))
}

pub(crate) fn enqueued(enqueued: &Enqueued) -> grpc::EnqueueReply {
    let (status, state) = words(enqueued);
    grpc::EnqueueReply { id: enqueued.id.to_string(), status: status.to_owned(), state: state.to_owned() }
}

/// How it is there, and what it is.
pub(crate) fn words(enqueued: &Enqueued) -> (&'static str, &'static str) {
    let reply = enqueue::reply(enqueued);
    let status = match reply.status {
        wire::http::enqueue::EnqueueStatus::Enqueued => "enqueued",
        wire::http::enqueue::EnqueueStatus::Duplicate => "duplicate",
    };
    (status, reply.state.0.as_str())
}

/// Claims on their way to a worker. Their payloads are not copied.
pub(crate) fn claims(claims: Vec<call::Claim>) -> Vec<grpc::Claim> {
    claims.into_iter().map(claim).collect()
}

/// A claim on its way to a worker's stream, after it has waited so long.
pub(crate) fn push(claim: &call::Claim, waited: Duration) -> Push<'_> {
    Push {
        id: claim.id,
        queue: &claim.queue,
        envelope: &claim.envelope,
        priority: claim.priority,
        attempt: claim.attempt,
        token: &claim.token,
        fence: claim.fence.0,
        deadline: claim.deadline,
        enqueued_at: claim.enqueued_at,
        hold_ms: claim.hold.0,
        waited_ms: waited.as_millis() as u64,
    }
}

fn claim(claim: call::Claim) -> grpc::Claim {
    let Envelope { kind, payload, content_type, headers, order_key, dedup_key, .. } = claim.envelope;
    grpc::Claim {
        id: claim.id.to_string(),
        queue: claim.queue.as_str().to_owned(),
        kind,
        payload,
        content_type: content_type.unwrap_or_default(),
        headers: headers.into_iter().map(|Header { name, value }| (name, value)).collect(),
        priority: claim.priority.into(),
        attempt: claim.attempt,
        token: claim.token,
        fence: claim.fence.0,
        deadline: Some(timestamp(claim.deadline)),
        enqueued_at: Some(timestamp(claim.enqueued_at)),
        order_key,
        dedup_key,
        hold_ms: claim.hold.0,
        waited_ms: 0,
    }
}

pub(crate) fn acked(settled: &Settled) -> grpc::Settled {
    settled_reply(settle::done(settled))
}

pub(crate) fn failed(settled: &Settled) -> grpc::Settled {
    settled_reply(settle::failed(settled))
}

/// What a release or an action of a person says.
pub(crate) fn released(settled: &Settled) -> grpc::Settled {
    settled_reply(settle::released(settled))
}

pub(crate) fn settled_reply(reply: SettleReply) -> grpc::Settled {
    grpc::Settled {
        id: reply.id.0.to_string(),
        state: reply.state.0.as_str().to_owned(),
        attempt: reply.attempt,
        due: reply.due.and_then(at),
    }
}

pub(crate) fn held(held: &call::Held) -> grpc::Held {
    let HeldReply { id, deadline, cancel_requested } = settle::held(held);
    grpc::Held { id: id.0.to_string(), deadline: at(deadline), cancel_requested }
}

/// What was refused by the node, as a part of an answer.
pub(crate) fn refused(refused: &node::Error) -> grpc::Error {
    error(problem_of(refused))
}

pub(crate) fn held_tasks(tasks: &[(TaskId, Fence)]) -> Vec<grpc::HeldTask> {
    tasks.iter().map(|(id, fence)| grpc::HeldTask { id: id.to_string(), fence: fence.0 }).collect()
}

pub(crate) fn held_claim(claim: HeldClaim) -> grpc::HeldClaim {
    grpc::HeldClaim {
        id: claim.id.0.to_string(),
        queue: claim.queue,
        kind: claim.kind,
        worker: claim.worker,
        session: claim.session.map(|Session(session)| session.to_string()),
        attempt: claim.attempt,
        fence: claim.fence,
        since: at(claim.since),
        deadline: at(claim.deadline),
        cancel_requested: claim.cancel_requested,
        progress: claim.progress.map(progress),
    }
}

fn progress(progress: ProgressReply) -> grpc::ProgressNote {
    grpc::ProgressNote { percent: progress.percent.into(), note: progress.note }
}

/// A task. What its bytes are comes from its envelope, whole: JSON has no part in it here.
pub(crate) fn task(
    reply: TaskReply<'_>,
    envelope: &Envelope,
    output: Option<bytes::Bytes>,
) -> grpc::TaskInfo {
    let text = |text: wire::http::Text<'_>| text.into_string();
    grpc::TaskInfo {
        id: reply.id.0.to_string(),
        queue: text(reply.queue),
        kind: text(reply.kind),
        state: reply.state.0.as_str().to_owned(),
        attempt: reply.attempt,
        attempts_max: reply.attempts_max,
        priority: reply.priority.into(),
        order_key: reply.order_key.map(text),
        dedup_key: reply.dedup_key.map(text),
        unique_key: reply.unique_key.map(text),
        payload: envelope.payload.clone(),
        content_type: envelope.content_type.clone().unwrap_or_default(),
        headers: reply.headers.0.into_iter().map(|(name, value)| (text(name), text(value))).collect(),
        output,
        error: reply.error.map(text),
        detail: reply.detail.map(text),
        progress: reply.progress.map(progress),
        enqueued_at: at(reply.enqueued_at),
        due: reply.due.and_then(at),
        deadline: reply.deadline.and_then(at),
        worker: reply.worker.map(text),
        session: reply.session.map(|Session(session)| session.to_string()),
        fence: reply.fence,
        cancel_requested: reply.cancel_requested,
        expires_at: reply.expires_at.and_then(at),
        ended_at: reply.ended_at.and_then(at),
        history: reply.history.unwrap_or_default().into_iter().map(line).collect(),
    }
}

fn line(line: HistoryReply) -> grpc::HistoryLine {
    grpc::HistoryLine {
        at: at(line.at),
        index: line.index,
        event: line.event,
        worker: line.worker,
        error: line.error,
        state: line.state.map(|state| state.0.as_str().to_owned()),
        attempt: line.attempt,
        fence: line.fence,
        reason: line.reason,
        retry_in_ms: line.retry_in_ms.map(|Ms(millis)| millis),
    }
}

pub(crate) fn reason(reason: ReasonReply) -> grpc::Reason {
    grpc::Reason { code: reason.code, text: reason.text }
}

pub(crate) fn worker(worker: WorkerReply) -> grpc::Worker {
    let running = |task: &RunningTask| grpc::HeldTask { id: task.id.0.to_string(), fence: task.fence };
    grpc::Worker {
        id: worker.id,
        host: worker.host,
        pid: worker.pid,
        slots: worker.slots,
        running: worker.running,
        state: state(worker.state).to_owned(),
        last_beat: at(worker.last_beat),
        claims: worker.claims.iter().map(running).collect(),
        queues: worker.queues,
        labels: worker.labels,
        version: worker.version,
    }
}

fn state(word: WorkerStateWord) -> &'static str {
    match word {
        WorkerStateWord::Running => "running",
        WorkerStateWord::Draining => "draining",
        WorkerStateWord::Stopping => "stopping",
        WorkerStateWord::Lost => "lost",
    }
}
