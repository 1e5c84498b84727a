//! Looking at tasks and acting on them without a token. Next: `node/src/look.rs` and `act.rs`.

use model::{QueueName, TaskId};
use node::call::{Action, Answer, TaskDetail};
use tonic::Response;
use wire::grpc;
use wire::http::State;
use wire::http::task::{ActionRequest, ReasonReply, TasksQuery};

use super::{Answered, read, stale_word, tell};
use crate::app::App;
use crate::http::task_reply::{detail, summary};
use crate::http::tasks;
use crate::problem::Refusal;

pub(super) async fn get(app: &App, request: grpc::GetTaskRequest) -> Answered<grpc::TaskInfo> {
    let (id, wait) = (read::task_id(&request.id)?, tasks::check_wait(request.wait_ms)?);
    let task = tasks::one(app, id, wait, read::freshness(request.stale)).await?;
    Ok(Response::new(whole(&task)))
}

pub(super) async fn find(app: &App, request: grpc::FindTaskRequest) -> Answered<grpc::TaskInfo> {
    let queue = QueueName::new(&request.queue)?;
    let (order_key, unique_key) = (request.order_key.as_deref(), request.unique_key.as_deref());
    let fresh = read::freshness(request.stale);
    let task = app.node.task_by_dedup(&queue, &request.dedup_key, order_key, unique_key, fresh).await?;
    Ok(Response::new(whole(&task)))
}

fn whole(task: &TaskDetail) -> grpc::TaskInfo {
    let output = task.output.clone().filter(|output| !output.is_empty());
    tell::task(detail(task), &task.envelope, output)
}

pub(super) async fn list(app: &App, request: grpc::ListTasksRequest) -> Answered<grpc::ListTasksReply> {
    let query = TasksQuery {
        queue: request.queue,
        state: request.state,
        kind: request.kind,
        order_key: request.order_key,
        q: request.q,
        limit: request.limit.map(u64::from),
        cursor: request.cursor,
        stale: stale_word(request.stale),
    };
    let page = tasks::find(app, query).await?;
    let tasks = page.tasks.iter();
    let tasks = tasks.map(|task| tell::task(summary(&task.view, &task.envelope), &task.envelope, None));
    Ok(Response::new(grpc::ListTasksReply {
        tasks: tasks.collect(),
        looked_at: page.looked_at as u64,
        cursor: page.cursor.clone(),
    }))
}

pub(super) async fn why(app: &App, request: grpc::WhyTaskRequest) -> Answered<grpc::WhyTaskReply> {
    let id = read::task_id(&request.id)?;
    let (state, lines) = app.node.why(id, read::freshness(request.stale)).await?;
    let reasons = lines.into_iter();
    let reasons = reasons.map(|line| ReasonReply { code: line.code.to_owned(), text: line.text });
    Ok(Response::new(grpc::WhyTaskReply {
        state: state.as_str().to_owned(),
        reasons: reasons.map(tell::reason).collect(),
    }))
}

pub(super) async fn cancel(app: &App, request: grpc::CancelTaskRequest) -> Answered<grpc::Settled> {
    let id = read::task_id(&request.id)?;
    tasks::check_reason(&request.reason)?;
    settled(app.node.cancel(id, request.reason).await?)
}

pub(super) async fn requeue(app: &App, request: grpc::TaskIdRequest) -> Answered<grpc::Settled> {
    settled(app.node.requeue(id(&request)?).await?)
}

pub(super) async fn discard(app: &App, request: grpc::TaskIdRequest) -> Answered<grpc::Settled> {
    settled(app.node.discard(id(&request)?).await?)
}

pub(super) async fn put_back(app: &App, request: grpc::TaskIdRequest) -> Answered<grpc::Settled> {
    settled(app.node.put_back(id(&request)?).await?)
}

fn id(request: &grpc::TaskIdRequest) -> Result<TaskId, Refusal> {
    Ok(read::task_id(&request.id)?)
}

fn settled(answer: Answer<model::Settled>) -> Answered<grpc::Settled> {
    Ok(tell::written(tell::released(&answer.value), &answer.indexes.into()))
}

pub(super) async fn act(app: &App, request: grpc::ActOnTasksRequest) -> Answered<grpc::ActOnTasksReply> {
    let action = match &*request.action {
        "requeue" => Action::Requeue,
        "discard" => Action::Discard,
        "cancel" => Action::Cancel,
        "put-back" => Action::PutBack,
        _ => {
            return Err(Refusal::invalid(
                "there is no action of this name: give requeue, discard, cancel or put-back",
            ));
        }
    };
    let filter = ActionRequest {
        queue: request.queue,
        state: request.state.as_deref().map(tasks::state_kind).transpose()?.map(State),
        kind: request.kind,
        order_key: request.order_key,
        worker: request.worker,
        older_than_ms: read::ms("older_than_ms", request.older_than_ms)?,
        q: request.q,
        dry_run: request.dry_run,
        cursor: request.cursor,
    };
    let (reply, indexes) = tasks::act_on(app, action, filter).await?;
    let reply =
        grpc::ActOnTasksReply { matched: reply.matched, changed: reply.changed, cursor: reply.cursor };
    Ok(tell::written(reply, &indexes))
}
