//! `/v1/queues`: looking at queues and setting how they treat their tasks. Next: `node/src/queues.rs`.

use axum::extract::State;
use http::StatusCode;
use model::{QueueName, QueuePolicy, StateKind};
use node::call::QueueInfo;
use wire::http::fresh::StaleQuery;
use wire::http::queue::{
    DeleteQueueReply, DepthReply, PolicyReply, PolicyRequest, PurgeReply, QueueReply, QueuesReply,
    RatesReply, TotalsReply,
};
use wire::http::{Ms, Problem, parse};

use super::{Reply, freshness};
use crate::app::App;
use crate::body::{Asked, At, Whole};
use crate::problem::Refusal;
use crate::reply::{Indexes, json, written};

/// All queues.
#[utoipa::path(
    get, path = "/v1/queues", tag = "queues",
    params(StaleQuery),
    responses(
        (status = 200, description = "all queues, by name", body = QueuesReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(State(app): State<App>, Asked(query): Asked<StaleQuery>) -> Reply {
    let queues = app.node.queues(freshness(query.stale)).await?;
    Ok(json(StatusCode::OK, &QueuesReply { queues: queues.iter().map(reply).collect() }))
}

/// One queue, with its policy.
#[utoipa::path(
    get, path = "/v1/queues/{queue}", tag = "queues",
    params(("queue" = String, Path, description = "the queue"), StaleQuery),
    responses(
        (status = 200, description = "the queue", body = QueueReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(
    State(app): State<App>,
    At(queue): At<String>,
    Asked(query): Asked<StaleQuery>,
) -> Reply {
    let info = app.node.queue(&QueueName::new(&queue)?, freshness(query.stale)).await?;
    Ok(json(StatusCode::OK, &with_policy(&info)))
}

/// Sets how a queue treats its tasks; makes the queue if there is none.
///
/// The fields that are given replace those of the policy, the others stay.
#[utoipa::path(
    put, path = "/v1/queues/{queue}", tag = "queues",
    params(("queue" = String, Path, description = "the queue")),
    request_body = PolicyRequest,
    responses(
        (status = 200, description = "the queue as it is now", body = QueueReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn set(State(app): State<App>, At(queue): At<String>, whole: Whole) -> Reply {
    let queue = QueueName::new(&queue)?;
    let request: PolicyRequest = parse::one(whole.text_or_empty()?)?;
    let info = set_policy(&app, &queue, &request).await?;
    Ok(written(StatusCode::OK, &with_policy(&info), &everywhere(&app)))
}

/// Lays the fields that are given over a queue's policy.
pub(crate) async fn set_policy(
    app: &App,
    queue: &QueueName,
    request: &PolicyRequest,
) -> Result<QueueInfo, Refusal> {
    // Checked on its own first: a request that is wrong is refused whatever the queue is.
    request.over(&QueuePolicy::default())?;
    let merge = |current: &QueuePolicy| {
        request.over(current).map_err(|invalid| node::Error::Invalid(invalid.to_string()))
    };
    Ok(app.node.set_queue(queue, merge).await?)
}

/// Forgets a queue that is empty.
#[utoipa::path(
    delete, path = "/v1/queues/{queue}", tag = "queues",
    params(("queue" = String, Path, description = "the queue")),
    responses(
        (status = 200, description = "it is gone", body = DeleteQueueReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn delete(State(app): State<App>, At(queue): At<String>) -> Reply {
    app.node.delete_queue(&QueueName::new(&queue)?).await?;
    Ok(written(StatusCode::OK, &DeleteQueueReply { name: queue, deleted: true }, &everywhere(&app)))
}

/// Makes claims pass a queue by. What is claimed goes on.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/pause", tag = "queues",
    params(("queue" = String, Path, description = "the queue")),
    responses(
        (status = 200, description = "the queue as it is now", body = QueueReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn pause(State(app): State<App>, At(queue): At<String>) -> Reply {
    let info = app.node.pause(&QueueName::new(&queue)?).await?;
    Ok(written(StatusCode::OK, &with_policy(&info), &everywhere(&app)))
}

/// Ends a pause.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/resume", tag = "queues",
    params(("queue" = String, Path, description = "the queue")),
    responses(
        (status = 200, description = "the queue as it is now", body = QueueReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn resume(State(app): State<App>, At(queue): At<String>) -> Reply {
    let info = app.node.resume(&QueueName::new(&queue)?).await?;
    Ok(written(StatusCode::OK, &with_policy(&info), &everywhere(&app)))
}

/// Cancels all that waits in a queue now.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/purge", tag = "queues",
    params(("queue" = String, Path, description = "the queue")),
    responses(
        (status = 200, description = "how many", body = PurgeReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn purge(State(app): State<App>, At(queue): At<String>) -> Reply {
    let purged = app.node.purge(&QueueName::new(&queue)?).await?;
    Ok(written(StatusCode::OK, &PurgeReply { purged }, &everywhere(&app)))
}

/// A queue's settings go to the catalog and from there to every shard.
pub(crate) fn everywhere(app: &App) -> Indexes {
    Indexes::committed(app, |_| true)
}

pub(crate) fn with_policy(info: &QueueInfo) -> QueueReply {
    QueueReply { policy: Some(PolicyReply::from(&info.policy)), ..reply(info) }
}

pub(crate) fn reply(info: &QueueInfo) -> QueueReply {
    QueueReply {
        name: info.name.as_str().to_owned(),
        paused: info.paused,
        depth: DepthReply {
            ready: info.depth.of(StateKind::Ready),
            claimed: info.depth.of(StateKind::Claimed),
            delayed: info.depth.of(StateKind::Delayed),
            retrying: info.depth.of(StateKind::Retrying),
            blocked: info.depth.of(StateKind::Blocked),
            dead: info.depth.of(StateKind::Dead),
        },
        oldest_ready_ms: info.oldest_ready.map(Ms::from),
        oldest_claimed_ms: info.oldest_claimed.map(Ms::from),
        totals: TotalsReply {
            enqueued: info.totals.enqueued,
            done: info.totals.done,
            failed: info.totals.failed,
            dead: info.totals.dead,
            freed: info.totals.freed,
        },
        rates: RatesReply {
            enqueued_per_s: info.rates.enqueued_per_s,
            done_per_s: info.rates.done_per_s,
            failed_per_s: info.rates.failed_per_s,
        },
        policy: None,
    }
}
