//! `POST /v1/claims`. Next: `node/src/waiting.rs`, where a claim waits for a task.

use axum::extract::State;
use http::StatusCode;
use model::TaskId;
use node::call::{Answer, Claim, ClaimByIdCall, ClaimCall};
use wire::http::claim::{ClaimReply, ClaimRequest};
use wire::http::enqueue::check_hold;
use wire::http::{Invalid, Problem, parse};

use super::Reply;
use super::claims_body::{Undelivered, body, on_wire, room};
use super::redirect::Redirect;
use crate::app::App;
use crate::body::Whole;
use crate::problem::Refusal;
use crate::reply::{Indexes, to_bytes_in, with_body};

/// Claims ready tasks, waiting for the first one if asked to; or one task by its id.
#[utoipa::path(
    post, path = "/v1/claims", tag = "claims",
    request_body = ClaimRequest<'static>,
    responses(
        (status = 200, description = "the tasks, none when there was none", body = ClaimReply<'static>),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn claim(State(app): State<App>, redirect: Redirect, whole: Whole) -> Reply {
    let ask = Ask::new(&parse::one(whole.text()?)?)?;
    if let Ask::One(call) = &ask
        && let Some(elsewhere) = redirect.elsewhere(&app, Some(call.task.shard()))?
    {
        return Ok(elsewhere);
    }
    // A claim may wait for a minute: its bytes need not.
    drop(whole);
    let undelivered = ask.undelivered();
    let answer = ask.call(&app).await?;
    let claims = ClaimReply { claims: answer.value.iter().map(on_wire).collect() };
    let bytes = to_bytes_in(room(&answer.value), &claims);
    let mut response = with_body(StatusCode::OK, body(bytes, answer.value, undelivered, &app.node));
    Indexes::from(answer.indexes).put(&mut response);
    Ok(response)
}

/// A claim, checked before anything is done.
pub(crate) enum Ask {
    Queues(ClaimCall),
    One(ClaimByIdCall),
}

impl Ask {
    pub(crate) fn new(request: &ClaimRequest<'_>) -> Result<Ask, Invalid> {
        match request.id {
            Some(id) => Ask::one(request, id.0),
            None => Ok(Ask::Queues(ClaimCall {
                queues: request.queues()?,
                worker: request.worker()?,
                session: request.session.map(|session| session.0),
                max: request.max()?,
                hold: check_hold(request.hold_ms)?,
                wait: request.wait()?,
                request_id: request.request_id()?,
            })),
        }
    }

    fn one(request: &ClaimRequest<'_>, task: TaskId) -> Result<Ask, Invalid> {
        if request.queues.is_some() || request.max.is_some() || request.wait_ms.is_some() {
            return Err(Invalid::new("id claims one task at once: leave out queues, max and wait_ms"));
        }
        Ok(Ask::One(ClaimByIdCall {
            task,
            worker: request.worker()?,
            session: request.session.map(|session| session.0),
            hold: check_hold(request.hold_ms)?,
            request_id: request.request_id()?,
        }))
    }

    /// Whether it waits for a task when none is ready.
    pub(crate) fn waits(&self) -> bool {
        matches!(self, Ask::Queues(call) if call.wait.0 > 0)
    }

    /// What becomes of its claims when the worker has gone before the reply.
    pub(crate) fn undelivered(&self) -> Undelivered {
        let request_id = match self {
            Ask::Queues(call) => &call.request_id,
            Ask::One(call) => &call.request_id,
        };
        if request_id.is_some() { Undelivered::Keep } else { Undelivered::GiveBack }
    }

    /// Asks the node. A claim that waits is answered with none when the server stops.
    pub(crate) async fn call(self, app: &App) -> Result<Answer<Vec<Claim>>, Refusal> {
        let call = match self {
            Ask::One(call) => return Ok(app.node.claim_by_id(call).await?),
            Ask::Queues(call) => call,
        };
        if call.wait.0 == 0 {
            return Ok(app.node.claim(call).await?);
        }
        // Dropping the call is safe: what it had claimed by then is given back.
        tokio::select! {
            biased;
            answer = app.node.claim(call) => Ok(answer?),
            () = app.stopping().cancelled() => Ok(Answer { value: Vec::new(), indexes: Vec::new() }),
        }
    }
}
