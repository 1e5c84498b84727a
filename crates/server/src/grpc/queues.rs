//! Looking at queues and setting how they treat their tasks. Next: `node/src/queues.rs`.

use model::{QueueName, Spread};
use node::call::QueueInfo;
use tonic::Response;
use wire::grpc;
use wire::http::queue::{
    FreedToWord, OnExhaustedWord, PolicyReply, PolicyRequest, QueueReply, RecoveryWord, RetryPolicyRequest,
    Shards,
};
use wire::http::{Invalid, Ms};

use super::{Answered, read, tell};
use crate::app::App;
use crate::http::queues::{everywhere, reply, set_policy, with_policy};

pub(super) async fn list(app: &App, request: grpc::ListQueuesRequest) -> Answered<grpc::ListQueuesReply> {
    let queues = app.node.queues(read::freshness(request.stale)).await?;
    let queues = queues.iter().map(|info| queue(reply(info))).collect();
    Ok(Response::new(grpc::ListQueuesReply { queues }))
}

pub(super) async fn get(app: &App, request: grpc::GetQueueRequest) -> Answered<grpc::Queue> {
    let name = QueueName::new(&request.queue)?;
    let info = app.node.queue(&name, read::freshness(request.stale)).await?;
    Ok(Response::new(queue(with_policy(&info))))
}

pub(super) async fn set(app: &App, request: grpc::SetQueueRequest) -> Answered<grpc::Queue> {
    let name = QueueName::new(&request.queue)?;
    let info = set_policy(app, &name, &policy_request(&request)?).await?;
    Ok(as_it_is(app, &info))
}

pub(super) async fn pause(app: &App, request: grpc::QueueNameRequest) -> Answered<grpc::Queue> {
    let info = app.node.pause(&QueueName::new(&request.queue)?).await?;
    Ok(as_it_is(app, &info))
}

pub(super) async fn resume(app: &App, request: grpc::QueueNameRequest) -> Answered<grpc::Queue> {
    let info = app.node.resume(&QueueName::new(&request.queue)?).await?;
    Ok(as_it_is(app, &info))
}

pub(super) async fn purge(app: &App, request: grpc::QueueNameRequest) -> Answered<grpc::PurgeQueueReply> {
    let purged = app.node.purge(&QueueName::new(&request.queue)?).await?;
    Ok(tell::written(grpc::PurgeQueueReply { purged }, &everywhere(app)))
}

pub(super) async fn delete(app: &App, request: grpc::QueueNameRequest) -> Answered<grpc::DeleteQueueReply> {
    app.node.delete_queue(&QueueName::new(&request.queue)?).await?;
    Ok(tell::written(grpc::DeleteQueueReply { name: request.queue }, &everywhere(app)))
}

fn as_it_is(app: &App, info: &QueueInfo) -> Response<grpc::Queue> {
    tell::written(queue(with_policy(info)), &everywhere(app))
}

fn policy_request(request: &grpc::SetQueueRequest) -> Result<PolicyRequest, Invalid> {
    if request.no_tasks_max && request.tasks_max.is_some() {
        return Err(Invalid::new("tasks_max and no_tasks_max are both given: send one of them"));
    }
    Ok(PolicyRequest {
        hold_ms: read::ms("hold_ms", request.hold_ms)?,
        retry: request.retry.as_ref().map(retry_request).transpose()?,
        retention_ms: read::ms("retention_ms", request.retention_ms)?,
        retained_max: request.retained_max,
        dead_max: request.dead_max,
        dead_retention_ms: read::ms("dead_retention_ms", request.dead_retention_ms)?,
        dedup_keys_max: request.dedup_keys_max,
        tasks_max: if request.no_tasks_max { Some(None) } else { request.tasks_max.map(Some) },
        payload_bytes_max: request.payload_bytes_max,
        recovery: word("recovery", request.recovery.as_deref(), &RECOVERY)?,
        freed_to: word("freed_to", request.freed_to.as_deref(), &FREED_TO)?,
        on_exhausted: word("on_exhausted", request.on_exhausted.as_deref(), &ON_EXHAUSTED)?,
        shards: word("shards", request.shards.as_deref(), &SHARDS)?,
        poison_after: request.poison_after,
        ..PolicyRequest::default()
    })
}

fn retry_request(retry: &grpc::RetryPolicyChange) -> Result<RetryPolicyRequest, Invalid> {
    if retry.no_age_max && retry.age_max_ms.is_some() {
        return Err(Invalid::new("age_max_ms and no_age_max are both given: send one of them"));
    }
    let age_max_ms = read::ms("retry.age_max_ms", retry.age_max_ms)?;
    Ok(RetryPolicyRequest {
        attempts: retry.attempts,
        base_ms: read::ms("retry.base_ms", retry.base_ms)?,
        cap_ms: read::ms("retry.cap_ms", retry.cap_ms)?,
        age_max_ms: if retry.no_age_max { Some(None) } else { age_max_ms.map(Some) },
    })
}

/// The words of a field, each with what it means.
type Words<T, const N: usize> = [(&'static str, T); N];

const RECOVERY: Words<RecoveryWord, 2> = [("auto", RecoveryWord::Auto), ("manual", RecoveryWord::Manual)];
const FREED_TO: Words<FreedToWord, 2> = [("front", FreedToWord::Front), ("back", FreedToWord::Back)];
const ON_EXHAUSTED: Words<OnExhaustedWord, 2> =
    [("dead", OnExhaustedWord::Dead), ("discard", OnExhaustedWord::Discard)];
const SHARDS: Words<Shards, 2> = [("all", Shards(Spread::All)), ("1", Shards(Spread::Pinned))];

/// What a word means.
fn word<T: Copy, const N: usize>(
    what: &str,
    given: Option<&str>,
    words: &Words<T, N>,
) -> Result<Option<T>, Invalid> {
    let Some(given) = given else { return Ok(None) };
    match words.iter().find(|(word, _)| *word == given) {
        Some((_, value)) => Ok(Some(*value)),
        None => {
            let words = words.each_ref().map(|(word, _)| *word).join(" or ");
            Err(Invalid(format!("{what} is {given:?}: give {words}")))
        }
    }
}

/// The word for a value.
fn said<T: Copy + PartialEq, const N: usize>(value: T, words: &Words<T, N>) -> String {
    let found = words.iter().find(|(_, known)| *known == value);
    found.map(|(word, _)| (*word).to_owned()).unwrap_or_default()
}

fn queue(reply: QueueReply) -> grpc::Queue {
    grpc::Queue {
        name: reply.name,
        paused: reply.paused,
        depth: Some(grpc::Depth {
            ready: reply.depth.ready,
            claimed: reply.depth.claimed,
            delayed: reply.depth.delayed,
            retrying: reply.depth.retrying,
            blocked: reply.depth.blocked,
            dead: reply.depth.dead,
        }),
        oldest_ready_ms: reply.oldest_ready_ms.map(|Ms(millis)| millis),
        oldest_claimed_ms: reply.oldest_claimed_ms.map(|Ms(millis)| millis),
        totals: Some(grpc::Totals {
            enqueued: reply.totals.enqueued,
            done: reply.totals.done,
            failed: reply.totals.failed,
            dead: reply.totals.dead,
            freed: reply.totals.freed,
        }),
        rates: Some(grpc::Rates {
            enqueued_per_s: reply.rates.enqueued_per_s,
            done_per_s: reply.rates.done_per_s,
            failed_per_s: reply.rates.failed_per_s,
        }),
        policy: reply.policy.map(policy),
    }
}

fn policy(policy: PolicyReply) -> grpc::Policy {
    grpc::Policy {
        hold_ms: policy.hold_ms.0,
        retry: Some(grpc::RetryPolicy {
            attempts: policy.retry.attempts,
            base_ms: policy.retry.base_ms.0,
            cap_ms: policy.retry.cap_ms.0,
            age_max_ms: policy.retry.age_max_ms.map(|Ms(millis)| millis),
        }),
        retention_ms: policy.retention_ms.0,
        retained_max: policy.retained_max,
        dead_max: policy.dead_max,
        dead_retention_ms: policy.dead_retention_ms.0,
        dedup_keys_max: policy.dedup_keys_max,
        tasks_max: policy.tasks_max,
        payload_bytes_max: policy.payload_bytes_max,
        recovery: said(policy.recovery, &RECOVERY),
        freed_to: said(policy.freed_to, &FREED_TO),
        on_exhausted: said(policy.on_exhausted, &ON_EXHAUSTED),
        shards: said(policy.shards, &SHARDS),
        poison_after: policy.poison_after,
    }
}
