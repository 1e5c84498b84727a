//! `/v1/tasks`: looking at tasks and acting on them without a token. Next: `node/src/look.rs` and `act.rs`.

use axum::extract::State;
use http::StatusCode;
use model::{GroupId, KindName, Millis, QueueName, Settled, StateKind, TaskId, WorkerName, limits};
use node::call::{Action, Answer, Freshness, TaskDetail, TaskFilter, TaskPage};
use wire::http::claim::{HeldClaim, HeldClaims};
use wire::http::fresh::StaleQuery;
use wire::http::settle::SettleReply;
use wire::http::task::{
    ActionReply, ActionRequest, CancelQuery, ClaimsQuery, DedupQuery, ProgressReply, ReasonReply, TaskQuery,
    TaskReply, TasksQuery, TasksReply, WhyReply,
};
use wire::http::{Id, Problem, Session, State as TaskState, Time, parse};

use super::redirect::Redirect;
use super::settle::released;
use super::task_reply::{attempt, detail, summary};
use super::{Reply, freshness};
use crate::app::App;
use crate::body::{Asked, At, Whole};
use crate::problem::Refusal;
use crate::reply::{Indexes, json, written};

/// One task, with its history; waits for its end if asked to.
#[utoipa::path(
    get, path = "/v1/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "the task"), TaskQuery),
    responses(
        (status = 200, description = "the task", body = TaskReply<'static>),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(
    State(app): State<App>,
    At(id): At<String>,
    Asked(query): Asked<TaskQuery>,
    redirect: Redirect,
) -> Reply {
    let (id, fresh) = (task_id(&id)?, freshness(query.stale));
    let wait = check_wait(query.wait_ms)?;
    if fresh == Freshness::Linearizable
        && let Some(elsewhere) = redirect.elsewhere(&app, Some(id.shard()))?
    {
        return Ok(elsewhere);
    }
    Ok(json(StatusCode::OK, &detail(&one(&app, id, wait, fresh).await?)))
}

/// How long to wait for a task's end.
pub(crate) fn check_wait(wait_ms: Option<u64>) -> Result<Millis, Refusal> {
    let wait = Millis(wait_ms.unwrap_or(0));
    if wait > limits::CLAIM_WAIT_MAX {
        let max = limits::CLAIM_WAIT_MAX.0;
        return Err(Refusal::invalid(format!("wait_ms is {}: give at most {max} and ask again", wait.0)));
    }
    Ok(wait)
}

/// One task, at its end or after `wait`.
pub(crate) async fn one(
    app: &App,
    id: TaskId,
    wait: Millis,
    fresh: Freshness,
) -> Result<TaskDetail, Refusal> {
    tokio::select! {
        biased;
        task = app.node.task(id, wait, fresh) => Ok(task?),
        // A stop answers with what the task is now.
        () = app.stopping().cancelled(), if wait.0 > 0 => Ok(app.node.task(id, Millis(0), fresh).await?),
    }
}

/// One task by its dedup key.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/tasks/{dedup_key}", tag = "tasks",
    params(
        ("queue" = String, Path, description = "its queue"),
        ("dedup_key" = String, Path, description = "its dedup key, percent-encoded"),
        DedupQuery,
    ),
    responses(
        (status = 200, description = "the task", body = TaskReply<'static>),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show_by_dedup(
    State(app): State<App>,
    At((queue, key)): At<(String, String)>,
    Asked(query): Asked<DedupQuery>,
    redirect: Redirect,
) -> Reply {
    let (queue, fresh) = (QueueName::new(&queue)?, freshness(query.stale));
    let (order_key, unique_key) = (query.order_key.as_deref(), query.unique_key.as_deref());
    let shard = app.node.shard_of_dedup(&queue, &key, order_key, unique_key);
    if fresh == Freshness::Linearizable
        && let Some(elsewhere) = redirect.elsewhere(&app, Some(shard))?
    {
        return Ok(elsewhere);
    }
    let task = app.node.task_by_dedup(&queue, &key, order_key, unique_key, fresh).await?;
    Ok(json(StatusCode::OK, &detail(&task)))
}

/// Tasks that fit a filter, in bounded steps: go on with `cursor` until there is none.
#[utoipa::path(
    get, path = "/v1/tasks", tag = "tasks",
    params(TasksQuery),
    responses(
        (status = 200, description = "one step", body = TasksReply<'static>),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(State(app): State<App>, Asked(query): Asked<TasksQuery>) -> Reply {
    let page = find(&app, query).await?;
    let tasks = page.tasks.iter().map(|task| summary(&task.view, &task.envelope)).collect();
    let reply = TasksReply { tasks, looked_at: page.looked_at as u64, cursor: page.cursor.clone() };
    Ok(json(StatusCode::OK, &reply))
}

pub(crate) async fn find(app: &App, query: TasksQuery) -> Result<TaskPage, Refusal> {
    let state = query.state.as_deref().map(state_kind).transpose()?;
    let filter = TaskFilter {
        queue: queue_name(query.queue.as_deref())?,
        state,
        kind: kind_name(query.kind.as_deref())?,
        order_key: query.order_key,
        worker: None,
        claimed_for: None,
        text: query.q.filter(|text| !text.is_empty()),
    };
    check_filter(&filter)?;
    let (limit, fresh) = (page_limit(query.limit)?, freshness(query.stale));
    Ok(app.node.list(filter, query.cursor, limit, fresh).await?)
}

/// What is in progress.
#[utoipa::path(
    get, path = "/v1/claims", tag = "claims",
    params(ClaimsQuery),
    responses(
        (status = 200, description = "one step", body = HeldClaims),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn claims(State(app): State<App>, Asked(query): Asked<ClaimsQuery>) -> Reply {
    Ok(json(StatusCode::OK, &held_claims(&app, query).await?))
}

pub(crate) async fn held_claims(app: &App, query: ClaimsQuery) -> Result<HeldClaims, Refusal> {
    let filter = TaskFilter {
        queue: queue_name(query.queue.as_deref())?,
        state: Some(StateKind::Claimed),
        worker: query.worker.as_deref().map(WorkerName::new).transpose()?,
        claimed_for: query.older_than_ms.map(Millis),
        ..TaskFilter::default()
    };
    let (limit, fresh) = (page_limit(query.limit)?, freshness(query.stale));
    let page = app.node.list(filter, query.cursor, limit, fresh).await?;
    let held = page.tasks.iter().filter_map(|task| {
        let (view, claim) = (&task.view, task.view.claim.as_ref()?);
        Some(HeldClaim {
            id: Id(view.id),
            queue: view.queue.as_str().to_owned(),
            kind: task.envelope.kind.clone(),
            worker: claim.worker.as_str().to_owned(),
            session: claim.session.map(Session),
            attempt: attempt(view),
            fence: view.fence.0,
            since: Time(claim.since),
            deadline: Time(claim.deadline),
            cancel_requested: claim.cancel_requested,
            progress: claim
                .progress
                .as_ref()
                .map(|(percent, note)| ProgressReply { percent: *percent, note: note.clone() }),
        })
    });
    Ok(HeldClaims { claims: held.collect(), looked_at: page.looked_at as u64, cursor: page.cursor.clone() })
}

/// Why a task is not being worked on.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/why", tag = "tasks",
    params(("id" = String, Path, description = "the task"), StaleQuery),
    responses(
        (status = 200, description = "every reason", body = WhyReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn why(
    State(app): State<App>,
    At(id): At<String>,
    Asked(query): Asked<StaleQuery>,
    redirect: Redirect,
) -> Reply {
    let (id, fresh) = (task_id(&id)?, freshness(query.stale));
    if fresh == Freshness::Linearizable
        && let Some(elsewhere) = redirect.elsewhere(&app, Some(id.shard()))?
    {
        return Ok(elsewhere);
    }
    let (state, lines) = app.node.why(id, fresh).await?;
    let reasons =
        lines.into_iter().map(|line| ReasonReply { code: line.code.to_owned(), text: line.text }).collect();
    Ok(json(StatusCode::OK, &WhyReply { state: TaskState(state), reasons }))
}

/// Cancels a task: at once when it waits, by request to its worker when it is claimed.
#[utoipa::path(
    delete, path = "/v1/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "the task"), CancelQuery),
    responses(
        (status = 200, description = "what it is now", body = SettleReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    At(id): At<String>,
    Asked(query): Asked<CancelQuery>,
    redirect: Redirect,
) -> Reply {
    let id = task_id(&id)?;
    let reason = query.reason.unwrap_or_default();
    check_reason(&reason)?;
    match redirect.elsewhere(&app, Some(id.shard()))? {
        Some(elsewhere) => Ok(elsewhere),
        None => settled(app.node.cancel(id, reason).await?),
    }
}

/// Brings a dead, failed or cancelled task back, at the tail of its queue.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/requeue", tag = "tasks",
    params(("id" = String, Path, description = "the task")),
    responses(
        (status = 200, description = "what it is now", body = SettleReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn requeue(State(app): State<App>, At(id): At<String>, redirect: Redirect) -> Reply {
    let id = task_id(&id)?;
    match redirect.elsewhere(&app, Some(id.shard()))? {
        Some(elsewhere) => Ok(elsewhere),
        None => settled(app.node.requeue(id).await?),
    }
}

/// Ends a task as cancelled, whoever holds it.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/discard", tag = "tasks",
    params(("id" = String, Path, description = "the task")),
    responses(
        (status = 200, description = "what it is now", body = SettleReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn discard(State(app): State<App>, At(id): At<String>, redirect: Redirect) -> Reply {
    let id = task_id(&id)?;
    match redirect.elsewhere(&app, Some(id.shard()))? {
        Some(elsewhere) => Ok(elsewhere),
        None => settled(app.node.discard(id).await?),
    }
}

/// Takes a claimed task from its holder; it waits again.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/put-back", tag = "tasks",
    params(("id" = String, Path, description = "the task")),
    responses(
        (status = 200, description = "what it is now", body = SettleReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn put_back(State(app): State<App>, At(id): At<String>, redirect: Redirect) -> Reply {
    let id = task_id(&id)?;
    match redirect.elsewhere(&app, Some(id.shard()))? {
        Some(elsewhere) => Ok(elsewhere),
        None => settled(app.node.put_back(id).await?),
    }
}

/// Brings back all that fit a filter, in bounded steps: go on with `cursor` until there is none.
#[utoipa::path(
    post, path = "/v1/tasks:requeue", tag = "tasks",
    request_body = ActionRequest,
    responses(
        (status = 200, description = "one step", body = ActionReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn requeue_all(State(app): State<App>, whole: Whole) -> Reply {
    act(app, Action::Requeue, whole).await
}

/// Ends all that fit a filter, in bounded steps: go on with `cursor` until there is none.
#[utoipa::path(
    post, path = "/v1/tasks:discard", tag = "tasks",
    request_body = ActionRequest,
    responses(
        (status = 200, description = "one step", body = ActionReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn discard_all(State(app): State<App>, whole: Whole) -> Reply {
    act(app, Action::Discard, whole).await
}

/// Cancels all that fit a filter, in bounded steps: go on with `cursor` until there is none.
#[utoipa::path(
    post, path = "/v1/tasks:cancel", tag = "tasks",
    request_body = ActionRequest,
    responses(
        (status = 200, description = "one step", body = ActionReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn cancel_all(State(app): State<App>, whole: Whole) -> Reply {
    act(app, Action::Cancel, whole).await
}

/// Takes all that fit a filter from their holders, in bounded steps: go on with `cursor` until there is none.
#[utoipa::path(
    post, path = "/v1/tasks:put-back", tag = "tasks",
    request_body = ActionRequest,
    responses(
        (status = 200, description = "one step", body = ActionReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn put_back_all(State(app): State<App>, whole: Whole) -> Reply {
    act(app, Action::PutBack, whole).await
}

async fn act(app: App, action: Action, whole: Whole) -> Reply {
    // An empty body would mean "everything": whoever means it says so with {}.
    let request: ActionRequest = parse::one(whole.text()?)?;
    let (reply, indexes) = act_on(&app, action, request).await?;
    Ok(written(StatusCode::OK, &reply, &indexes))
}

/// One step of an action by filter.
pub(crate) async fn act_on(
    app: &App,
    action: Action,
    request: ActionRequest,
) -> Result<(ActionReply, Indexes), Refusal> {
    let filter = TaskFilter {
        queue: queue_name(request.queue.as_deref())?,
        state: request.state.map(|state| state.0),
        kind: kind_name(request.kind.as_deref())?,
        order_key: request.order_key,
        worker: request.worker.as_deref().map(WorkerName::new).transpose()?,
        claimed_for: request.older_than_ms.map(Millis::from),
        text: request.q.filter(|text| !text.is_empty()),
    };
    check_filter(&filter)?;
    let acted = app.node.act(action, filter, request.dry_run, request.cursor).await?;
    let reply = ActionReply { matched: acted.matched, changed: acted.changed, cursor: acted.cursor };
    if acted.changed == 0 {
        return Ok((reply, Indexes::default()));
    }
    Ok((reply, Indexes::committed(app, |group| group != GroupId::CATALOG)))
}

fn settled(answer: Answer<Settled>) -> Reply {
    Ok(written(StatusCode::OK, &released(&answer.value), &answer.indexes.into()))
}

pub(crate) fn task_id(text: &str) -> Result<TaskId, Refusal> {
    text.parse().map_err(|error: model::id::InvalidTaskId| Refusal::invalid(error.to_string()))
}

pub(crate) fn state_kind(word: &str) -> Result<StateKind, Refusal> {
    StateKind::from_word(word).ok_or_else(|| {
        let words: Vec<&str> = StateKind::ALL.iter().map(|state| state.as_str()).collect();
        Refusal::invalid(format!("there is no state of this name: give one of {}", words.join(", ")))
    })
}

pub(crate) fn check_reason(reason: &str) -> Result<(), Refusal> {
    if reason.len() > limits::REASON_BYTES_MAX {
        let max = limits::REASON_BYTES_MAX;
        return Err(Refusal::invalid(format!("reason is longer than {max} bytes: shorten it")));
    }
    Ok(())
}

fn queue_name(text: Option<&str>) -> Result<Option<QueueName>, Refusal> {
    Ok(text.map(QueueName::new).transpose()?)
}

fn kind_name(text: Option<&str>) -> Result<Option<KindName>, Refusal> {
    Ok(text.map(KindName::new).transpose()?)
}

fn check_filter(filter: &TaskFilter) -> Result<(), Refusal> {
    if filter.order_key.is_some() && filter.queue.is_none() {
        return Err(Refusal::invalid("order_key is given without queue: name the queue too"));
    }
    if filter.text.as_ref().is_some_and(|text| text.len() > limits::KEY_BYTES_MAX) {
        let max = limits::KEY_BYTES_MAX;
        return Err(Refusal::invalid(format!("q is longer than {max} bytes: shorten it")));
    }
    Ok(())
}

fn page_limit(limit: Option<u64>) -> Result<usize, Refusal> {
    let limit = limit.unwrap_or(limits::LIST_DEFAULT as u64);
    let max = limits::LIST_MAX as u64;
    if !(1..=max).contains(&limit) {
        return Err(Refusal::invalid(format!("limit is {limit}: give a number from 1 to {max}")));
    }
    Ok(limit as usize)
}
