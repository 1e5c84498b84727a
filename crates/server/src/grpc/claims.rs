//! `Claim`, `ClaimById`, `Ack` and its neighbours, `Settle`, `ListClaims`: one call at a time.
//!
//! Workers that can hold a stream use `Work`. Next: `node/src/waiting.rs` and `node/src/settle.rs`.

use futures::future::OptionFuture;
use model::limits;
use node::call::Claim;
use tonic::Response;
use wire::grpc;
use wire::http::parse::check_at_most;
use wire::http::settle::check_not_empty;
use wire::http::task::ClaimsQuery;

use super::delivered::Undelivered;
use super::settle::{self, Sorted};
use super::{Answered, read, status, tell};
use crate::app::App;
use crate::http::claim::Ask;
use crate::http::claims_body::Undelivered as Fate;
use crate::http::enqueue::nth;
use crate::http::settle::{Answers, ack_and_claim, told};
use crate::http::tasks;
use crate::reply::Indexes;

pub(super) async fn claim(app: &App, request: grpc::ClaimRequest) -> Answered<grpc::ClaimReply> {
    let ask = read::claim(&request)?;
    drop(request);
    claimed(app, ask).await
}

pub(super) async fn claim_by_id(app: &App, request: grpc::ClaimByIdRequest) -> Answered<grpc::ClaimReply> {
    claimed(app, read::claim_by_id(&request)?).await
}

async fn claimed(app: &App, ask: Ask) -> Answered<grpc::ClaimReply> {
    let fate = ask.undelivered();
    let answer = ask.call(app).await?;
    let reply = |claims| grpc::ClaimReply { claims };
    Ok(with_claims(app, answer.value, fate, reply, &answer.indexes.into()))
}

/// An answer that carries claims: they are given back when nobody is there to take it.
fn with_claims<T>(
    app: &App,
    claims: Vec<Claim>,
    fate: Fate,
    reply: impl FnOnce(Vec<grpc::Claim>) -> T,
    indexes: &Indexes,
) -> Response<T> {
    let undelivered =
        (fate == Fate::GiveBack && !claims.is_empty()).then(|| Undelivered::new(&app.node, claims.clone()));
    let mut response = tell::written(reply(tell::claims(claims)), indexes);
    if let Some(undelivered) = undelivered {
        response.extensions_mut().insert(undelivered);
    }
    response
}

pub(super) async fn ack(app: &App, request: grpc::AckRequest) -> Answered<grpc::AckReply> {
    let ask = request.claim.as_ref().map(read::claim).transpose()?;
    let call = settle::ack(request.token, request.output, request.then)?;
    let Some(ask) = ask else {
        let acked = one(app.node.ack(vec![call]).await)?;
        let reply = grpc::AckReply { settled: Some(tell::acked(&acked.value)), ..grpc::AckReply::default() };
        return Ok(tell::written(reply, &acked.indexes.into()));
    };
    let fate = ask.undelivered();
    let (acked, claimed) = ack_and_claim(app, vec![call], ask).await;
    let mut indexes = Indexes::default();
    let (settled, error) = match one(acked) {
        Ok(acked) => {
            indexes.add(&acked.indexes);
            (Some(tell::acked(&acked.value)), None)
        }
        Err(refused) => (None, Some(tell::refused(&refused))),
    };
    let (claims, claim_error) = told(claimed, &mut indexes);
    let claim_error = claim_error.map(status::error);
    let reply = |claims| grpc::AckReply { settled, error, claims, claim_error };
    Ok(with_claims(app, claims, fate, reply, &indexes))
}

pub(super) async fn fail(app: &App, request: grpc::FailRequest) -> Answered<grpc::Settled> {
    let grpc::FailRequest { token, error, detail, retry_in_ms, fatal } = request;
    let call = settle::fail(&token, &grpc::Failed { error, detail, retry_in_ms, fatal })?;
    let failed = one(app.node.fail(vec![call]).await)?;
    Ok(tell::written(tell::failed(&failed.value), &failed.indexes.into()))
}

pub(super) async fn extend(app: &App, request: grpc::ExtendRequest) -> Answered<grpc::Held> {
    let call = settle::extend(&request.token, request.hold_ms)?;
    let held = one(app.node.extend(vec![call]).await)?;
    Ok(tell::written(tell::held(&held.value), &held.indexes.into()))
}

pub(super) async fn release(app: &App, request: grpc::ReleaseRequest) -> Answered<grpc::Settled> {
    let call = settle::release(&request.token, request.delay_ms)?;
    let released = one(app.node.release(vec![call]).await)?;
    Ok(tell::written(tell::released(&released.value), &released.indexes.into()))
}

pub(super) async fn progress(app: &App, request: grpc::ProgressRequest) -> Answered<grpc::Held> {
    let grpc::ProgressRequest { token, percent, note } = request;
    let call = settle::progress(&token, &grpc::ProgressNote { percent, note })?;
    let held = one(app.node.progress(vec![call]).await)?;
    Ok(tell::written(tell::held(&held.value), &held.indexes.into()))
}

/// Many outcomes: all are checked before any of them is done.
pub(super) async fn settle(app: &App, request: grpc::SettleRequest) -> Answered<grpc::SettleReply> {
    check_not_empty("outcomes", &request.outcomes)?;
    check_at_most("outcomes", &request.outcomes, limits::SETTLE_MAX)?;
    let ask = request.claim.as_ref().map(read::claim).transpose()?;
    let mut sorted = Sorted::default();
    let mut seqs = Vec::with_capacity(request.outcomes.len());
    for (n, outcome) in request.outcomes.into_iter().enumerate() {
        seqs.push(outcome.seq);
        sorted.add(n as u64, outcome).map_err(|error| nth("outcomes", n, error))?;
    }
    let fate = ask.as_ref().map_or(Fate::Keep, Ask::undelivered);
    let settling = sorted.settle::<Vec<_>>(&app.node);
    // One that waits is made at the same time: what the acks free reaches it while it waits.
    let ((mut results, mut indexes), claimed) = match ask {
        Some(ask) if ask.waits() => {
            let (settled, claimed) = futures::join!(settling, ask.call(app));
            (settled, Some(claimed))
        }
        ask => {
            let settled = settling.await;
            (settled, OptionFuture::from(ask.map(|ask| ask.call(app))).await)
        }
    };
    results.sort_unstable_by_key(|result| result.seq);
    for (result, seq) in results.iter_mut().zip(seqs) {
        result.seq = seq;
    }
    let (claims, claim_error) = match claimed {
        Some(claimed) => told(claimed, &mut indexes),
        None => (Vec::new(), None),
    };
    let claim_error = claim_error.map(status::error);
    let reply = |claims| grpc::SettleReply { results, claims, claim_error };
    Ok(with_claims(app, claims, fate, reply, &indexes))
}

fn one<T>(mut answers: Answers<T>) -> Result<node::call::Answer<T>, node::Error> {
    answers.pop().expect("one call has one outcome")
}

pub(super) async fn list(app: &App, request: grpc::ListClaimsRequest) -> Answered<grpc::ListClaimsReply> {
    let query = ClaimsQuery {
        queue: request.queue,
        worker: request.worker,
        older_than_ms: request.older_than_ms,
        limit: request.limit.map(u64::from),
        cursor: request.cursor,
        stale: super::stale_word(request.stale),
    };
    let held = tasks::held_claims(app, query).await?;
    Ok(Response::new(grpc::ListClaimsReply {
        claims: held.claims.into_iter().map(tell::held_claim).collect(),
        looked_at: held.looked_at,
        cursor: held.cursor,
    }))
}
