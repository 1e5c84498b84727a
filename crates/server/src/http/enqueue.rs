//! `POST /v1/queues/{queue}/tasks`. Next: `node/src/router.rs`, which finds the task's shard.

use axum::extract::State;
use bytes::Bytes;
use http::StatusCode;
use model::{Enqueued, Millis, QueueName};
use node::call::TaskSpec;
use wire::http::enqueue::{
    EnqueueManyRequest, EnqueueReply, EnqueueStatus, Payload, TaskRequest, check_hold,
};
use wire::http::settle::check_not_empty;
use wire::http::{Id, Invalid, OneOrMany, Outcome, Problem, Results, State as TaskState, parse};

use super::Reply;
use super::redirect::Redirect;
use crate::app::App;
use crate::body::{At, IdempotencyKey, Whole};
use crate::problem::{Refusal, problem_of};
use crate::reply::{Indexes, written, written_many};

/// Enqueues a task, or many.
///
/// The queue is made on first use. A repeat of a dedup key is answered 200 `duplicate` with the id of the
/// task that has it.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/tasks", tag = "tasks",
    params(
        ("queue" = String, Path, description = "letters, digits and . _ - :"),
        ("Idempotency-Key" = Option<String>, Header, description = "the dedup key of a single task"),
    ),
    request_body = OneOrMany<TaskRequest<'static>, EnqueueManyRequest<'static>>,
    responses(
        (status = 201, description = "one task, enqueued", body = EnqueueReply),
        (status = 200, description = "a duplicate, or the results of many", body = OneOrMany<EnqueueReply, Results<EnqueueReply>>),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn enqueue(
    State(app): State<App>,
    At(queue): At<String>,
    IdempotencyKey(key): IdempotencyKey,
    redirect: Redirect,
    body: Whole,
) -> Reply {
    let queue = QueueName::new(&queue)?;
    match parse::one_or_many::<TaskRequest<'_>, EnqueueManyRequest<'_>>(body.text()?, "tasks")? {
        OneOrMany::One(task) => {
            let spec = spec_in(&task, &queue, &body.0, key.as_deref())?;
            drop(task);
            match redirect.elsewhere(&app, app.node.shard_of_spec(&spec))? {
                Some(elsewhere) => Ok(elsewhere),
                None => one(&app, spec).await,
            }
        }
        OneOrMany::Many(request) => {
            if key.is_some() {
                return Err(Refusal::invalid(
                    "Idempotency-Key is for a single task: give each of many its own dedup_key",
                ));
            }
            check_not_empty("tasks", &request.tasks)?;
            let mut specs = Vec::with_capacity(request.tasks.len());
            for (n, task) in request.tasks.iter().enumerate() {
                specs.push(spec_in(task, &queue, &body.0, None).map_err(|error| nth("tasks", n, error))?);
            }
            let atomic = request.atomic;
            drop(request);
            many(&app, specs, atomic).await
        }
    }
}

async fn one(app: &App, spec: TaskSpec) -> Reply {
    let mut answer = app.node.enqueue(vec![spec], false).await?;
    let enqueued = answer.value.pop().expect("one task has one outcome")?;
    let status = if enqueued.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    Ok(written(status, &reply(&enqueued), &Indexes::from(answer.indexes)))
}

async fn many(app: &App, specs: Vec<TaskSpec>, atomic: bool) -> Reply {
    let answer = app.node.enqueue(specs, atomic).await?;
    let outcome = |result: &Result<Enqueued, node::Error>| match result {
        Ok(enqueued) => Outcome::Done(reply(enqueued)),
        Err(error) => Outcome::Refused { error: problem_of(error) },
    };
    let results = answer.value.iter().map(outcome).collect();
    Ok(written_many(results, &Indexes::from(answer.indexes)))
}

pub(crate) fn reply(enqueued: &Enqueued) -> EnqueueReply {
    EnqueueReply {
        id: Id(enqueued.id),
        status: if enqueued.duplicate { EnqueueStatus::Duplicate } else { EnqueueStatus::Enqueued },
        state: TaskState(enqueued.state),
    }
}

/// Says which of many an error is about.
pub(crate) fn nth(what: &str, n: usize, error: Invalid) -> Invalid {
    Invalid(format!("{what}[{n}]: {error}"))
}

/// A task of the queue in the path.
fn spec_in(
    task: &TaskRequest<'_>,
    queue: &QueueName,
    body: &Bytes,
    key: Option<&str>,
) -> Result<TaskSpec, Invalid> {
    if task.queue.as_deref().is_some_and(|named| named != queue.as_str()) {
        return Err(Invalid::new("queue differs from the one in the path: leave it out"));
    }
    spec(task, queue.clone(), body, key)
}

/// A task as the node takes it. The payload stays where it is in `body`.
pub(crate) fn spec(
    task: &TaskRequest<'_>,
    queue: QueueName,
    body: &Bytes,
    idempotency_key: Option<&str>,
) -> Result<TaskSpec, Invalid> {
    let (payload, content_type) = match task.payload()? {
        Payload::Json(json) if task.payload.is_some() => (body.slice_ref(json.as_bytes()), None),
        Payload::Json(_) => (Bytes::from_static(b"null"), None),
        Payload::Bytes(bytes, content_type) => (Bytes::from(bytes), Some(content_type)),
    };
    Ok(TaskSpec {
        queue,
        kind: task.kind()?,
        payload,
        content_type,
        headers: task.headers()?,
        priority: task.priority()?,
        start: task.start()?,
        order_key: task.order_key()?,
        dedup: task.dedup(idempotency_key)?,
        unique: task.unique()?,
        hold: check_hold(task.hold_ms)?,
        retry: task.retry()?,
        expires_in: task.expires_in_ms.map(Millis::from),
        retention: task.retention_ms.map(Millis::from),
    })
}
