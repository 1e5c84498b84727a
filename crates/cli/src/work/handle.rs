//! One claimed task: its program runs, its claim is extended meanwhile, its outcome is told.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::Worker;
use super::program::{self, Ended};
use super::running::Kill;
use crate::client::{Call, Client, Repeat};
use crate::exit::{Exit, Failure};
use crate::json::Json;

/// How long one telling of an outcome may take.
const TELL_TIMEOUT: Duration = Duration::from_secs(6);
/// How long one of several servers may take for it: the time it may need for a leader to come, and some more.
const TELL_EACH: Duration = Duration::from_millis(2500);

/// A claim as the server gives it.
#[derive(Debug, Deserialize)]
pub(super) struct Claim {
    pub(super) id: String,
    pub(super) queue: String,
    pub(super) kind: String,
    pub(super) payload: Option<Box<RawValue>>,
    pub(super) payload_base64: Option<String>,
    pub(super) content_type: Option<String>,
    #[serde(default)]
    pub(super) headers: Map<String, Value>,
    pub(super) attempt: u32,
    pub(super) token: String,
    pub(super) fence: u64,
    pub(super) deadline: String,
    pub(super) enqueued_at: String,
}

impl Claim {
    pub(super) fn of_answer(answer: &Json) -> Result<Vec<Claim>> {
        let claims = answer.items("claims");
        claims
            .iter()
            .map(|claim| serde_json::from_str(claim.raw()).context("the server's claim cannot be read"))
            .collect()
    }
}

/// Runs one task to its end. The slot is free again when this returns.
pub(super) async fn run(worker: Arc<Worker>, claim: Claim, slot: OwnedSemaphorePermit) {
    let mut killed = worker.running.insert(&claim);
    let started = Instant::now();
    {
        let keep = keep_claim(&worker, &claim);
        let work = work(&worker, &claim, &mut killed, started);
        tokio::pin!(keep, work);
        tokio::select! {
            () = &mut work => {}
            // The claim is lost and the program is being killed, or cancelled: either way it ends soon.
            () = &mut keep => work.await,
        }
    }
    worker.running.remove(&claim.id, claim.fence);
    drop(slot);
}

async fn work(worker: &Worker, claim: &Claim, killed: &mut watch::Receiver<Option<Kill>>, started: Instant) {
    let ended = program::run(worker, claim, killed).await;
    let took = started.elapsed();
    let id = claim.id.as_str();
    let told = match &ended {
        Ended::Good { output } => ack(worker, claim, output.as_deref(), killed).await,
        Ended::Bad { error, detail } => fail(worker, claim, error, detail, killed).await,
        Ended::Killed(Kill::Cancelled) => {
            fail(worker, claim, "killed: cancellation was asked for", "", killed).await
        }
        Ended::Killed(Kill::Stopping) => {
            let body = json!({"token": claim.token, "delay_ms": 0});
            tell(&worker.client, "/v1/claims/release", &body, killed).await.map(|_| ())
        }
        Ended::Killed(Kill::Lost) => {
            worker.running.lost.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(id, "claim lost after {took:?}: the program was killed");
            return;
        }
    };
    let counters = &worker.running;
    let (counter, word) = match &ended {
        _ if told.is_err() => (&counters.lost, "not told"),
        Ended::Good { .. } => (&counters.done, "done"),
        Ended::Bad { .. } => (&counters.failed, "failed"),
        Ended::Killed(Kill::Cancelled) => (&counters.failed, "cancelled"),
        Ended::Killed(_) => (&counters.given_back, "given back"),
    };
    counter.fetch_add(1, Ordering::Relaxed);
    match (told, &ended) {
        (Err(e), _) => tracing::warn!(id, "the outcome does not count: {e:#}"),
        (Ok(()), Ended::Bad { error, .. }) => {
            tracing::info!(id, attempt = claim.attempt, "{word} in {took:?}: {error}")
        }
        (Ok(()), _) => tracing::info!(id, attempt = claim.attempt, "{word} in {took:?}"),
    }
}

/// Extends the claim until it is lost or cancelled; then says so to the program's side and returns.
async fn keep_claim(worker: &Worker, claim: &Claim) {
    let mut held_until = Instant::now() + worker.hold;
    let mut next = Instant::now() + worker.hold / 3;
    loop {
        sleep_until(next).await;
        let sent = Instant::now();
        let body = json!({"token": claim.token, "hold_ms": worker.hold.as_millis() as u64});
        let call = Call::post("/v1/claims/extend", &body, Repeat::Safe).within(worker.hold / 3);
        let why = match worker.client.call(call).await {
            Ok(answer) if answer.value().get("cancel_requested") == Some(&Value::Bool(true)) => {
                Kill::Cancelled
            }
            Ok(_) => {
                held_until = sent + worker.hold;
                next = sent + worker.hold / 3;
                continue;
            }
            Err(e) if is_final(&e) => Kill::Lost,
            // Nobody heard us for a whole hold: the server has taken the claim back, or soon will.
            Err(_) if Instant::now() >= held_until => Kill::Lost,
            Err(_) => {
                next = Instant::now() + Duration::from_millis(200).min(worker.hold / 10);
                continue;
            }
        };
        worker.running.kill(&claim.id, claim.fence, why);
        return;
    }
}

#[derive(serde::Serialize)]
struct AckBody<'a> {
    token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a RawValue>,
}

async fn ack(
    worker: &Worker,
    claim: &Claim,
    output: Option<&RawValue>,
    killed: &watch::Receiver<Option<Kill>>,
) -> Result<()> {
    let body = AckBody { token: &claim.token, output };
    match tell(&worker.client, "/v1/claims/ack", &body, killed).await {
        Ok(_) => Ok(()),
        // The ack itself was refused, such as for the output's size: the attempt did not work out.
        Err(e) if is_refused(&e) => fail(worker, claim, &format!("{e:#}"), "", killed).await,
        Err(e) => Err(e),
    }
}

async fn fail(
    worker: &Worker,
    claim: &Claim,
    error: &str,
    detail: &str,
    killed: &watch::Receiver<Option<Kill>>,
) -> Result<()> {
    let body = json!({"token": claim.token, "error": error, "detail": detail});
    tell(&worker.client, "/v1/claims/fail", &body, killed).await.map(|_| ())
}

/// Tells an outcome, again and again while nobody answers and the claim may still be ours.
async fn tell(
    client: &Client,
    path: &str,
    body: &impl serde::Serialize,
    killed: &watch::Receiver<Option<Kill>>,
) -> Result<Json> {
    let mut pause = Duration::from_millis(50);
    loop {
        let call = Call::post(path, body, Repeat::Safe).within(TELL_TIMEOUT).each(TELL_EACH);
        match client.call(call).await {
            Ok(answer) => return Ok(answer),
            Err(e) if is_final(&e) || *killed.borrow() == Some(Kill::Lost) => return Err(e),
            Err(e) => {
                tracing::debug!("cannot tell the outcome: {e:#}: trying again");
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        }
    }
}

/// Whether the server wants no such ack while the claim may still be ours. After one that may have counted, or
/// may still, there is nothing more to tell.
fn is_refused(error: &anyhow::Error) -> bool {
    is_final(error) && error.downcast_ref::<Failure>().is_some_and(|failure| failure.exit != Exit::Conflict)
}

/// Whether the server has decided, so that asking again changes nothing.
fn is_final(error: &anyhow::Error) -> bool {
    let Some(failure) = error.downcast_ref::<Failure>() else { return false };
    let passing = ["not_leader", "unavailable", "timeout", "memory_full", "disk_full", "too_many_requests"];
    failure.code.as_deref().is_some_and(|code| !passing.contains(&code) && code != "internal")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::problem_of;

    #[test]
    fn only_an_ack_that_is_refused_for_good_is_followed_by_a_fail() {
        for (status, code, refused) in [
            (413, "payload_too_large", true),
            (400, "invalid_request", true),
            (409, "stale_token", false),
            (503, "unavailable", false),
            (503, "memory_full", false),
            (504, "timeout", false),
            (500, "internal", false),
        ] {
            let error = problem_of(status, &json!({"code": code})).into();
            assert_eq!(is_refused(&error), refused, "{code}");
        }
    }
}
