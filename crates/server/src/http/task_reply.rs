//! A task as people and programs see it: from the node's views to the wire's words.

use model::{Event, StateKind};
use node::call::TaskDetail;
use node::view::{HistoryLine, TaskView};
use wire::envelope::Envelope;
use wire::http::task::{HistoryReply, ProgressReply, TaskReply};
use wire::http::{Id, Ms, Session, State, Text, Time};

use super::claims_body::{Parts, json, parts};

/// Which attempt runs now, or ran last. An attempt counts as used up only when it failed or was lost.
pub(crate) fn attempt(view: &TaskView) -> u32 {
    match view.state {
        StateKind::Claimed | StateKind::Done => view.attempts + 1,
        _ => view.attempts,
    }
}

/// A task without what is kept of it beside its envelope.
pub(crate) fn summary<'a>(view: &'a TaskView, envelope: &'a Envelope) -> TaskReply<'a> {
    let Parts { payload, payload_base64, content_type, headers } = parts(envelope);
    let claim = view.claim.as_ref();
    TaskReply {
        id: Id(view.id),
        queue: view.queue.as_str().into(),
        kind: envelope.kind.as_str().into(),
        state: State(view.state),
        attempt: attempt(view),
        attempts_max: view.attempts_max,
        priority: view.priority,
        order_key: envelope.order_key.as_deref().map(Text::from),
        dedup_key: envelope.dedup_key.as_deref().map(Text::from),
        unique_key: envelope.unique_key.as_deref().map(Text::from),
        payload,
        payload_base64,
        content_type,
        headers,
        output: None,
        error: None,
        detail: None,
        progress: claim
            .and_then(|claim| claim.progress.as_ref())
            .map(|(percent, note)| ProgressReply { percent: *percent, note: note.clone() }),
        enqueued_at: Time(view.enqueued_at),
        due: view.due.map(Time),
        deadline: claim.map(|claim| Time(claim.deadline)),
        worker: claim.map(|claim| claim.worker.as_str().into()),
        session: claim.and_then(|claim| claim.session).map(Session),
        fence: view.fence.0,
        cancel_requested: claim.is_some_and(|claim| claim.cancel_requested),
        expires_at: view.expires_at.map(Time),
        ended_at: view.ended_at.map(Time),
        history: None,
    }
}

/// A task with all that is kept of it.
pub(crate) fn detail(task: &TaskDetail) -> TaskReply<'_> {
    TaskReply {
        output: task.output.as_deref().and_then(json),
        error: last_error(&task.history).map(Text::from),
        detail: task.detail.as_deref().filter(|detail| !detail.is_empty()).map(Text::from),
        history: Some(task.history.iter().map(line).collect()),
        ..summary(&task.view, &task.envelope)
    }
}

/// What went wrong last: a worker's word, or why the task was ended without one.
fn last_error(history: &[HistoryLine]) -> Option<&str> {
    history.iter().rev().find_map(|line| match &line.event {
        Event::Failed { failure, .. } => Some(failure.error.as_str()),
        Event::Ended { reason, .. } if !reason.is_empty() => Some(reason.as_str()),
        _ => None,
    })
}

fn line(line: &HistoryLine) -> HistoryReply {
    let mut reply = HistoryReply {
        at: Time(line.at),
        index: line.index,
        event: line.event.as_str().to_owned(),
        worker: None,
        error: None,
        state: None,
        attempt: None,
        fence: None,
        reason: None,
        retry_in_ms: None,
    };
    match &line.event {
        Event::Enqueued { state } | Event::Requeued { state } => reply.state = Some(State(*state)),
        Event::BecameReady | Event::BecameDelayed | Event::CancelRequested => {}
        Event::Claimed { worker, attempt, fence } => {
            reply.worker = Some(worker.as_str().to_owned());
            reply.attempt = Some(*attempt);
            reply.fence = Some(fence.0);
        }
        Event::Freed { worker, reason, state } => {
            reply.worker = Some(worker.as_str().to_owned());
            reply.reason = Some(reason.as_str().to_owned());
            reply.state = Some(State(*state));
        }
        Event::Failed { worker, state, failure } => {
            reply.worker = Some(worker.as_str().to_owned());
            reply.error = Some(failure.error.clone());
            reply.state = Some(State(*state));
            reply.retry_in_ms = (*state == StateKind::Retrying).then_some(Ms::from(failure.retry_in));
        }
        Event::Acked { worker } => reply.worker = Some(worker.as_str().to_owned()),
        Event::Ended { state, reason } => {
            reply.state = Some(State(*state));
            reply.reason = (!reason.is_empty()).then(|| reason.clone());
        }
    }
    reply
}
