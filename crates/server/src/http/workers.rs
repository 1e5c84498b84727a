//! `/v1/workers`: sessions, beats, and what people do to workers. Next: `node/src/sessions.rs`.

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use model::{Fence, WorkerName, limits};
use node::SessionStream;
use node::call::{Answer, BeatAnswer, WorkerFacts, WorkerInfo, WorkerState};
use serde::Deserialize;
use utoipa::IntoParams;
use wire::http::event::SessionEventReply;
use wire::http::worker::{
    BeatReply, BeatRequest, RegisterReply, RegisterRequest, RunningTask, SlotsReply, WORKERS_PAGE_MAX,
    WorkerActionReply, WorkerReply, WorkerStateWord, WorkersQuery, WorkersReply,
};
use wire::http::{Id, Invalid, Problem, Session, Time, parse};

use super::Reply;
use super::events::{SESSION_PULSE, Source, sse, sse_event};
use crate::app::App;
use crate::body::{Asked, At, Whole};
use crate::problem::Refusal;
use crate::reply::{json, written};

/// Registers a worker and begins its session.
#[utoipa::path(
    post, path = "/v1/workers", tag = "workers",
    request_body = RegisterRequest<'static>,
    responses(
        (status = 200, description = "its session", body = RegisterReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn register(State(app): State<App>, whole: Whole) -> Reply {
    let request: RegisterRequest<'_> = parse::one(whole.text()?)?;
    let (session, state) = app.node.register(facts(&request)?).await?;
    Ok(json(StatusCode::OK, &RegisterReply { session: Session(session), state: word(state) }))
}

/// What a worker says of itself, checked.
pub(crate) fn facts(request: &RegisterRequest<'_>) -> Result<WorkerFacts, Invalid> {
    Ok(WorkerFacts {
        name: request.name()?,
        host: request.host()?,
        pid: request.pid,
        instance: None,
        slots: request.slots()?,
        queues: request.queues()?,
        labels: request.labels()?,
        version: request.version()?,
        beat: request.beat()?,
        session: request.session.map(|session| session.0),
    })
}

/// All that a worker shall stop: what is to be cancelled, and what it lost.
pub(crate) fn to_stop(answer: &BeatAnswer) -> Vec<(model::TaskId, Fence)> {
    let mut stop = [&answer.cancel[..], &answer.lost[..]].concat();
    stop.sort_unstable();
    stop
}

/// A sign of life; tells the worker what to do and which tasks to stop.
#[utoipa::path(
    post, path = "/v1/workers/{id}/beat", tag = "workers",
    params(("id" = String, Path, description = "the worker")),
    request_body = BeatRequest,
    responses(
        (status = 200, description = "what to do", body = BeatReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn beat(State(app): State<App>, At(id): At<String>, whole: Whole) -> Reply {
    let request: BeatRequest = parse::one(whole.text()?)?;
    let running = request.running.iter().map(|task| (task.id.0, Fence(task.fence))).collect();
    let answer = app.node.beat(&WorkerName::new(&id)?, request.session.0, running).await?;
    let cancel = tasks(&to_stop(&answer));
    Ok(json(StatusCode::OK, &BeatReply { state: word(answer.state), cancel }))
}

/// Which session is held.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SessionQuery {
    /// As POST /v1/workers answered it.
    session: String,
}

/// Holds a session: when this stream ends, the worker has ended.
///
/// Each event carries what a beat answers. Beats go on beside it.
#[utoipa::path(
    get, path = "/v1/workers/{id}/session", tag = "workers",
    params(("id" = String, Path, description = "the worker"), SessionQuery),
    responses(
        (status = 200, description = "server-sent events", body = SessionEventReply, content_type = "text/event-stream"),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn session(
    State(app): State<App>,
    At(id): At<String>,
    Asked(query): Asked<SessionQuery>,
) -> Reply {
    let session = query.session.parse().map_err(|error| Refusal::invalid(format!("session: {error}")))?;
    let worker = WorkerName::new(&id)?;
    let stream = app.node.hold_session(&worker, session).await?;
    Ok(sse(stream, SESSION_PULSE, app.stopping().clone()))
}

impl Source for SessionStream {
    async fn next(&mut self) -> Option<Bytes> {
        let answer = SessionStream::next(self).await?;
        let reply = SessionEventReply { state: word(answer.state), cancel: tasks(&answer.cancel) };
        Some(sse_event(None, "session", &reply))
    }

    /// The worker has not gone, we have: it is held until the node itself has stopped, so that its claims
    /// are still its own when it comes back.
    fn stopped(mut self) {
        tokio::spawn(async move { while SessionStream::next(&mut self).await.is_some() {} });
    }
}

/// All workers, by name and page by page: go on with `cursor` until there is none.
#[utoipa::path(
    get, path = "/v1/workers", tag = "workers",
    params(WorkersQuery),
    responses(
        (status = 200, description = "one page", body = WorkersReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(State(app): State<App>, Asked(query): Asked<WorkersQuery>) -> Reply {
    Ok(json(StatusCode::OK, &page(&app, &query)?))
}

pub(crate) fn page(app: &App, query: &WorkersQuery) -> Result<WorkersReply, Refusal> {
    let (limit, max) = (query.limit.unwrap_or(WORKERS_PAGE_MAX as u64), WORKERS_PAGE_MAX as u64);
    if !(1..=max).contains(&limit) {
        return Err(Refusal::invalid(format!("limit is {limit}: give a number from 1 to {max}")));
    }
    let page = app.node.workers_page(query.cursor.as_deref(), limit as usize)?;
    Ok(WorkersReply {
        slots: SlotsReply { open: page.slots.open, total: page.slots.total },
        workers: page.workers.iter().map(reply).collect(),
        cursor: page.cursor,
    })
}

/// One worker.
#[utoipa::path(
    get, path = "/v1/workers/{id}", tag = "workers",
    params(("id" = String, Path, description = "the worker")),
    responses(
        (status = 200, description = "the worker", body = WorkerReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(State(app): State<App>, At(id): At<String>) -> Reply {
    let worker = app.node.worker(&WorkerName::new(&id)?)?;
    Ok(json(StatusCode::OK, &reply(&worker)))
}

/// Ends a worker's session in order and releases its claims.
#[utoipa::path(
    delete, path = "/v1/workers/{id}", tag = "workers",
    params(("id" = String, Path, description = "the worker")),
    responses(
        (status = 200, description = "it is gone", body = WorkerActionReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn end(State(app): State<App>, At(id): At<String>) -> Reply {
    let ended = app.node.end_session(&WorkerName::new(&id)?).await?;
    Ok(parted(id, WorkerStateWord::Stopping, ended))
}

/// Asks a worker to claim nothing more and to finish what runs.
#[utoipa::path(
    post, path = "/v1/workers/{id}/drain", tag = "workers",
    params(("id" = String, Path, description = "the worker")),
    responses(
        (status = 200, description = "it is asked", body = WorkerActionReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn drain(State(app): State<App>, At(id): At<String>) -> Reply {
    app.node.drain(&WorkerName::new(&id)?).await?;
    Ok(acted(id, WorkerStateWord::Draining))
}

/// Asks a worker to stop now and to release what runs.
#[utoipa::path(
    post, path = "/v1/workers/{id}/stop", tag = "workers",
    params(("id" = String, Path, description = "the worker")),
    responses(
        (status = 200, description = "it is asked", body = WorkerActionReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn stop(State(app): State<App>, At(id): At<String>) -> Reply {
    app.node.stop_worker(&WorkerName::new(&id)?).await?;
    Ok(acted(id, WorkerStateWord::Stopping))
}

/// Removes a worker: its claims are freed at once and it is fenced.
#[utoipa::path(
    post, path = "/v1/workers/{id}/remove", tag = "workers",
    params(("id" = String, Path, description = "the worker")),
    responses(
        (status = 200, description = "it is gone", body = WorkerActionReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn remove(State(app): State<App>, At(id): At<String>) -> Reply {
    let removed = app.node.remove_worker(&WorkerName::new(&id)?).await?;
    Ok(parted(id, WorkerStateWord::Lost, removed))
}

/// The reply for a worker that is gone: it stands on the freeing of its claims, if it had some.
fn parted(id: String, state: WorkerStateWord, freed: Answer<u64>) -> Response {
    written(StatusCode::OK, &WorkerActionReply { id, state }, &freed.indexes.into())
}

fn acted(id: String, state: WorkerStateWord) -> Response {
    json(StatusCode::OK, &WorkerActionReply { id, state })
}

/// A worker's state in the words of the wire.
fn word(state: WorkerState) -> WorkerStateWord {
    match state {
        WorkerState::Running => WorkerStateWord::Running,
        WorkerState::Draining => WorkerStateWord::Draining,
        WorkerState::Stopping => WorkerStateWord::Stopping,
        WorkerState::Lost => WorkerStateWord::Lost,
    }
}

fn tasks(claims: &[(model::TaskId, Fence)]) -> Vec<RunningTask> {
    claims.iter().map(|&(id, fence)| RunningTask { id: Id(id), fence: fence.0 }).collect()
}

pub(crate) fn reply(worker: &WorkerInfo) -> WorkerReply {
    let facts = &worker.facts;
    WorkerReply {
        id: facts.name.as_str().to_owned(),
        host: facts.host.clone(),
        pid: facts.pid,
        slots: facts.slots,
        running: worker.claims.len() as u64,
        state: word(worker.state),
        last_beat: Time(worker.last_beat),
        claims: tasks(&worker.claims[..worker.claims.len().min(limits::LIST_MAX)]),
        queues: facts.queues.iter().map(|queue| queue.as_str().to_owned()).collect(),
        labels: facts.labels.iter().cloned().collect(),
        version: facts.version.clone(),
    }
}
