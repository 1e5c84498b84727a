//! Sessions without a stream, and what people do to workers. Next: `node/src/sessions.rs`.

use model::WorkerName;
use node::call::{Answer, WorkerState};
use tonic::Response;
use wire::grpc;
use wire::http::Session;
use wire::http::worker::{RegisterRequest, WorkersQuery};

use super::{Answered, read, tell};
use crate::app::App;
use crate::http::workers::{facts, page, reply, to_stop};
use crate::problem::Refusal;

pub(super) async fn register(app: &App, request: grpc::RegisterRequest) -> Answered<grpc::RegisterReply> {
    let facts = facts(&RegisterRequest {
        id: request.id.as_str().into(),
        host: given(&request.host),
        pid: request.pid,
        slots: request.slots.map(u64::from),
        queues: request.queues.iter().map(|queue| queue.as_str().into()).collect(),
        labels: read::pairs(&request.labels),
        version: given(&request.version),
        beat_ms: read::ms("beat_ms", request.beat_ms)?,
        session: read::session(&request.session)?.map(Session),
    })?;
    let (session, state) = app.node.register(facts).await?;
    let state = state.as_str().to_owned();
    Ok(Response::new(grpc::RegisterReply { session: session.to_string(), state }))
}

/// A text that was given: an empty one was not.
pub(super) fn given(text: &str) -> Option<wire::http::Text<'_>> {
    (!text.is_empty()).then(|| text.into())
}

pub(super) async fn beat(app: &App, request: grpc::BeatRequest) -> Answered<grpc::BeatReply> {
    let worker = WorkerName::new(&request.id)?;
    let Some(session) = read::session(&request.session)? else {
        return Err(Refusal::invalid("session is empty: send the one that Register answered"));
    };
    let answer = app.node.beat(&worker, session, read::held(&request.running)?).await?;
    let cancel = tell::held_tasks(&to_stop(&answer));
    Ok(Response::new(grpc::BeatReply { state: answer.state.as_str().to_owned(), cancel }))
}

pub(super) async fn end(app: &App, request: grpc::WorkerIdRequest) -> Answered<grpc::WorkerActionReply> {
    let ended = app.node.end_session(&WorkerName::new(&request.id)?).await?;
    Ok(parted(request.id, WorkerState::Stopping, ended))
}

pub(super) async fn list(app: &App, request: grpc::ListWorkersRequest) -> Answered<grpc::ListWorkersReply> {
    let query = WorkersQuery { limit: request.limit.map(u64::from), cursor: request.cursor };
    let page = page(app, &query)?;
    Ok(Response::new(grpc::ListWorkersReply {
        slots: Some(grpc::Slots { open: page.slots.open, total: page.slots.total }),
        workers: page.workers.into_iter().map(tell::worker).collect(),
        cursor: page.cursor,
    }))
}

pub(super) async fn get(app: &App, request: grpc::WorkerIdRequest) -> Answered<grpc::Worker> {
    let worker = app.node.worker(&WorkerName::new(&request.id)?)?;
    Ok(Response::new(tell::worker(reply(&worker))))
}

pub(super) async fn drain(app: &App, request: grpc::WorkerIdRequest) -> Answered<grpc::WorkerActionReply> {
    app.node.drain(&WorkerName::new(&request.id)?).await?;
    Ok(Response::new(acted(request.id, WorkerState::Draining)))
}

pub(super) async fn stop(app: &App, request: grpc::WorkerIdRequest) -> Answered<grpc::WorkerActionReply> {
    app.node.stop_worker(&WorkerName::new(&request.id)?).await?;
    Ok(Response::new(acted(request.id, WorkerState::Stopping)))
}

pub(super) async fn remove(app: &App, request: grpc::WorkerIdRequest) -> Answered<grpc::WorkerActionReply> {
    let removed = app.node.remove_worker(&WorkerName::new(&request.id)?).await?;
    Ok(parted(request.id, WorkerState::Lost, removed))
}

/// The reply for a worker that is gone: it stands on the freeing of its claims, if it had some.
fn parted(id: String, state: WorkerState, freed: Answer<u64>) -> Response<grpc::WorkerActionReply> {
    tell::written(acted(id, state), &freed.indexes.into())
}

fn acted(id: String, state: WorkerState) -> grpc::WorkerActionReply {
    grpc::WorkerActionReply { id, state: state.as_str().to_owned() }
}
