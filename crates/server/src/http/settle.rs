//! `POST /v1/claims/ack · fail · extend · release · progress`: one, or many. Next: `node/src/settle.rs`.

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use model::{Millis, Settled};
use node::call::{AckCall, Answer, Claim, ExtendCall, FailCall, Held, ProgressCall, ReleaseCall};
use serde::Serialize;
use wire::http::enqueue::check_hold;
use wire::http::settle::{
    AckAndClaimReply, AckManyAndClaimReply, AckManyRequest, AckReply, AckRequest, ExtendManyRequest,
    ExtendRequest, FailManyRequest, FailRequest, HeldReply, ProgressManyRequest, ProgressRequest,
    ReleaseManyRequest, ReleaseRequest, SettleReply, check_not_empty,
};
use wire::http::{Id, Invalid, OneOrMany, Outcome, Problem, Results, State as TaskState, Time, parse};

use super::Reply;
use super::claim::Ask;
use super::claims_body::{Undelivered, body, on_wire, room};
use super::enqueue::{nth, spec};
use super::redirect::Redirect;
use crate::app::App;
use crate::body::Whole;
use crate::problem::{Refusal, problem_of};
use crate::reply::{Indexes, OUTCOME_BYTES, to_bytes_in, with_body, written, written_many};

/// Says that a task is done, or many; may claim the next in the same call.
///
/// With `claim`, the answer is 200 and holds the outcome of both, each of which may be an error.
#[utoipa::path(
    post, path = "/v1/claims/ack", tag = "claims",
    request_body = OneOrMany<AckRequest<'static>, AckManyRequest<'static>>,
    responses(
        (status = 200, description = "done; with `claim` also what was claimed",
            body = AckReply<'static>),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn ack(State(app): State<App>, redirect: Redirect, whole: Whole) -> Reply {
    match parse::one_or_many::<AckRequest<'_>, AckManyRequest<'_>>(whole.text()?, "acks")? {
        OneOrMany::One(request) => {
            let ask = request.claim.as_ref().map(Ask::new).transpose()?;
            let call = ack_call(&request, &whole.0)?;
            drop(request);
            match redirect.elsewhere(&app, app.node.shard_of_token(&call.token))? {
                Some(elsewhere) => Ok(elsewhere),
                None => ack_one(&app, call, ask).await,
            }
        }
        OneOrMany::Many(request) => {
            check_not_empty("acks", &request.acks)?;
            let ask = request.claim.as_ref().map(Ask::new).transpose()?;
            let mut calls = Vec::with_capacity(request.acks.len());
            for (n, ack) in request.acks.iter().enumerate() {
                if ack.claim.is_some() {
                    return Err(Refusal::invalid("claim stands inside acks: put it beside the list, once"));
                }
                calls.push(ack_call(ack, &whole.0).map_err(|error| nth("acks", n, error))?);
            }
            drop(request);
            ack_many(&app, calls, ask).await
        }
    }
}

fn ack_call(request: &AckRequest<'_>, whole: &Bytes) -> Result<AckCall, Invalid> {
    let output = request.output()?;
    let output = if output.is_empty() { Bytes::new() } else { whole.slice_ref(output.as_bytes()) };
    let then = request.then.iter().enumerate().map(|(n, task)| {
        let queue = task.queue().map_err(|error| nth("then", n, error))?;
        spec(task, queue, whole, None).map_err(|error| nth("then", n, error))
    });
    Ok(AckCall { token: request.token.to_string(), output, then: then.collect::<Result<_, _>>()? })
}

async fn ack_one(app: &App, call: AckCall, ask: Option<Ask>) -> Reply {
    let one = |mut acked: Answers<Settled>| acked.pop().expect("one ack has one outcome");
    let Some(ask) = ask else {
        let acked = one(app.node.ack(vec![call]).await)?;
        return Ok(written(StatusCode::OK, &done(&acked.value), &acked.indexes.into()));
    };
    let undelivered = ask.undelivered();
    let (acked, claimed) = ack_and_claim(app, vec![call], ask).await;
    let acked = one(acked);
    let mut indexes = Indexes::default();
    let (mut settled, mut error) = (None, None);
    match acked {
        Ok(acked) => {
            indexes.add(&acked.indexes);
            settled = Some(acked.value);
        }
        Err(refused) => error = Some(problem_of(&refused)),
    }
    let (claims, claim_error) = told(claimed, &mut indexes);
    let bytes = to_bytes_in(
        room(&claims),
        &AckAndClaimReply {
            id: settled.map(|settled| Id(settled.id)),
            state: settled.map(|settled| TaskState(settled.state)),
            error,
            claims: claims.iter().map(on_wire).collect(),
            claim_error,
        },
    );
    Ok(with_claims(app, bytes, claims, undelivered, &indexes))
}

async fn ack_many(app: &App, calls: Vec<AckCall>, ask: Option<Ask>) -> Reply {
    let mut indexes = Indexes::default();
    let Some(ask) = ask else {
        let results = outcomes(app.node.ack(calls).await, done, &mut indexes);
        return Ok(written_many(results, &indexes));
    };
    let undelivered = ask.undelivered();
    let (acked, claimed) = ack_and_claim(app, calls, ask).await;
    let results = outcomes(acked, done, &mut indexes);
    let (claims, claim_error) = told(claimed, &mut indexes);
    let claims_on_wire = claims.iter().map(on_wire).collect();
    let room = room(&claims) + results.len() * OUTCOME_BYTES;
    let bytes = to_bytes_in(room, &AckManyAndClaimReply { results, claims: claims_on_wire, claim_error });
    Ok(with_claims(app, bytes, claims, undelivered, &indexes))
}

pub(crate) type Claimed = Result<Answer<Vec<Claim>>, Refusal>;

/// Acks, and the claim that comes with them. One that waits is made at the same time: what the acks free
/// reaches it while it waits. One that does not wait comes after them, so that it sees what they freed.
pub(crate) async fn ack_and_claim(app: &App, calls: Vec<AckCall>, ask: Ask) -> (Answers<Settled>, Claimed) {
    let acks = app.node.ack(calls);
    if ask.waits() {
        return futures::join!(acks, ask.call(app));
    }
    let acked = acks.await;
    (acked, ask.call(app).await)
}

/// What was claimed; an error is part of the answer.
pub(crate) fn told(claimed: Claimed, indexes: &mut Indexes) -> (Vec<Claim>, Option<Problem>) {
    match claimed {
        Ok(answer) => {
            indexes.add(&answer.indexes);
            (answer.value, None)
        }
        Err(refusal) => (Vec::new(), Some(refusal.into_problem())),
    }
}

fn with_claims(
    app: &App,
    bytes: Vec<u8>,
    claims: Vec<Claim>,
    undelivered: Undelivered,
    indexes: &Indexes,
) -> Response {
    let mut response = with_body(StatusCode::OK, body(bytes, claims, undelivered, &app.node));
    indexes.put(&mut response);
    response
}

/// Says that an attempt failed, or many.
#[utoipa::path(
    post, path = "/v1/claims/fail", tag = "claims",
    request_body = OneOrMany<FailRequest<'static>, FailManyRequest<'static>>,
    responses(
        (status = 200, description = "`retrying`, or the end", body = OneOrMany<SettleReply, Results<SettleReply>>),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn fail(State(app): State<App>, redirect: Redirect, whole: Whole) -> Reply {
    let call = |request: &FailRequest<'_>| Ok(fail_call(request));
    match parse::one_or_many::<FailRequest<'_>, FailManyRequest<'_>>(whole.text()?, "fails")? {
        OneOrMany::One(request) => {
            let call = call(&request)?;
            match redirect.elsewhere(&app, app.node.shard_of_token(&call.token))? {
                Some(elsewhere) => Ok(elsewhere),
                None => one(app.node.fail(vec![call]).await, failed),
            }
        }
        OneOrMany::Many(request) => many(app.node.fail(calls("fails", &request.fails, call)?).await, failed),
    }
}

pub(crate) fn fail_call(request: &FailRequest<'_>) -> FailCall {
    FailCall {
        token: request.token.to_string(),
        error: request.error().to_owned(),
        detail: request.detail().to_owned(),
        retry_in: request.retry_in_ms.map(Millis::from),
        fatal: request.fatal,
    }
}

/// Moves a claim's deadline, or many.
#[utoipa::path(
    post, path = "/v1/claims/extend", tag = "claims",
    request_body = OneOrMany<ExtendRequest<'static>, ExtendManyRequest<'static>>,
    responses(
        (status = 200, description = "until when, and whether to stop", body = OneOrMany<HeldReply, Results<HeldReply>>),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn extend(State(app): State<App>, redirect: Redirect, whole: Whole) -> Reply {
    let call = extend_call;
    match parse::one_or_many::<ExtendRequest<'_>, ExtendManyRequest<'_>>(whole.text()?, "extends")? {
        OneOrMany::One(request) => {
            let call = call(&request)?;
            match redirect.elsewhere(&app, app.node.shard_of_token(&call.token))? {
                Some(elsewhere) => Ok(elsewhere),
                None => one(app.node.extend(vec![call]).await, held),
            }
        }
        OneOrMany::Many(request) => {
            many(app.node.extend(calls("extends", &request.extends, call)?).await, held)
        }
    }
}

pub(crate) fn extend_call(request: &ExtendRequest<'_>) -> Result<ExtendCall, Invalid> {
    Ok(ExtendCall { token: request.token.to_string(), hold: check_hold(request.hold_ms)? })
}

/// Gives a task back without using up an attempt, or many.
#[utoipa::path(
    post, path = "/v1/claims/release", tag = "claims",
    request_body = OneOrMany<ReleaseRequest<'static>, ReleaseManyRequest<'static>>,
    responses(
        (status = 200, description = "what the task is now", body = OneOrMany<SettleReply, Results<SettleReply>>),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn release(State(app): State<App>, redirect: Redirect, whole: Whole) -> Reply {
    let call = |request: &ReleaseRequest<'_>| Ok(release_call(request));
    match parse::one_or_many::<ReleaseRequest<'_>, ReleaseManyRequest<'_>>(whole.text()?, "releases")? {
        OneOrMany::One(request) => {
            let call = call(&request)?;
            match redirect.elsewhere(&app, app.node.shard_of_token(&call.token))? {
                Some(elsewhere) => Ok(elsewhere),
                None => one(app.node.release(vec![call]).await, released),
            }
        }
        OneOrMany::Many(request) => {
            many(app.node.release(calls("releases", &request.releases, call)?).await, released)
        }
    }
}

pub(crate) fn release_call(request: &ReleaseRequest<'_>) -> ReleaseCall {
    let delay = request.delay_ms.unwrap_or_default().into();
    ReleaseCall { token: request.token.to_string(), delay }
}

/// Says how far a task is, or many.
#[utoipa::path(
    post, path = "/v1/claims/progress", tag = "claims",
    request_body = OneOrMany<ProgressRequest<'static>, ProgressManyRequest<'static>>,
    responses(
        (status = 200, description = "until when, and whether to stop", body = OneOrMany<HeldReply, Results<HeldReply>>),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn progress(State(app): State<App>, redirect: Redirect, whole: Whole) -> Reply {
    let call = progress_call;
    match parse::one_or_many::<ProgressRequest<'_>, ProgressManyRequest<'_>>(whole.text()?, "progress")? {
        OneOrMany::One(request) => {
            let call = call(&request)?;
            match redirect.elsewhere(&app, app.node.shard_of_token(&call.token))? {
                Some(elsewhere) => Ok(elsewhere),
                None => one(app.node.progress(vec![call]).await, held),
            }
        }
        OneOrMany::Many(request) => {
            many(app.node.progress(calls("progress", &request.progress, call)?).await, held)
        }
    }
}

pub(crate) fn progress_call(request: &ProgressRequest<'_>) -> Result<ProgressCall, Invalid> {
    let (percent, note) = (request.percent()?, request.note().to_owned());
    Ok(ProgressCall { token: request.token.to_string(), percent, note })
}

/// Checks all of many before any of them is done.
fn calls<R, C>(
    what: &str,
    requests: &[R],
    call: impl Fn(&R) -> Result<C, Invalid>,
) -> Result<Vec<C>, Invalid> {
    check_not_empty(what, requests)?;
    let nth_call = |(n, request)| call(request).map_err(|error| nth(what, n, error));
    requests.iter().enumerate().map(nth_call).collect()
}

pub(crate) type Answers<T> = Vec<Result<Answer<T>, node::Error>>;

fn one<T, R: Serialize>(mut answers: Answers<T>, reply: impl Fn(&T) -> R) -> Reply {
    let answer = answers.pop().expect("one call has one outcome")?;
    Ok(written(StatusCode::OK, &reply(&answer.value), &answer.indexes.into()))
}

fn many<T, R: Serialize>(answers: Answers<T>, reply: impl Fn(&T) -> R) -> Reply {
    let mut indexes = Indexes::default();
    let results = outcomes(answers, reply, &mut indexes);
    Ok(written_many(results, &indexes))
}

fn outcomes<T, R>(answers: Answers<T>, reply: impl Fn(&T) -> R, indexes: &mut Indexes) -> Vec<Outcome<R>> {
    let outcome = |answer: Result<Answer<T>, node::Error>| match answer {
        Ok(answer) => {
            indexes.add(&answer.indexes);
            Outcome::Done(reply(&answer.value))
        }
        Err(error) => Outcome::Refused { error: problem_of(&error) },
    };
    answers.into_iter().map(outcome).collect()
}

/// What an ack says.
pub(crate) fn done(settled: &Settled) -> SettleReply {
    SettleReply { id: Id(settled.id), state: TaskState(settled.state), attempt: None, due: None }
}

/// What a release or an action of a person says.
pub(crate) fn released(settled: &Settled) -> SettleReply {
    SettleReply { due: settled.due.map(Time), ..done(settled) }
}

pub(crate) fn failed(settled: &Settled) -> SettleReply {
    SettleReply { attempt: Some(settled.attempt), ..released(settled) }
}

pub(crate) fn held(held: &Held) -> HeldReply {
    HeldReply { id: Id(held.id), deadline: Time(held.deadline), cancel_requested: held.cancel_requested }
}
