//! `Enqueue` and `EnqueueMany`. Next: `node/src/router.rs`, which finds the task's shard.

use model::limits;
use wire::grpc;
use wire::grpc::enqueue_outcome::Outcome;
use wire::http::parse::check_at_most;
use wire::http::settle::check_not_empty;

use super::{Answered, read, tell};
use crate::app::App;
use crate::problem::Refusal;

pub(super) async fn one(app: &App, request: grpc::EnqueueRequest) -> Answered<grpc::EnqueueReply> {
    let Some(task) = request.task else { return Err(no_task()) };
    let spec = read::task(task)?;
    let mut answer = app.node.enqueue(vec![spec], false).await?;
    let enqueued = answer.value.pop().expect("one task has one outcome")?;
    Ok(tell::written(tell::enqueued(&enqueued), &answer.indexes.into()))
}

pub(super) async fn many(app: &App, request: grpc::EnqueueManyRequest) -> Answered<grpc::EnqueueManyReply> {
    check_not_empty("tasks", &request.tasks)?;
    check_at_most("tasks", &request.tasks, limits::ENQUEUE_TASKS_MAX)?;
    let specs = read::tasks("tasks", request.tasks)?;
    let answer = app.node.enqueue(specs, request.atomic).await?;
    let outcome = |result: &Result<_, node::Error>| grpc::EnqueueOutcome {
        outcome: Some(match result {
            Ok(enqueued) => Outcome::Enqueued(tell::enqueued(enqueued)),
            Err(error) => Outcome::Error(tell::refused(error)),
        }),
    };
    let results = answer.value.iter().map(outcome).collect();
    Ok(tell::written(grpc::EnqueueManyReply { results }, &answer.indexes.into()))
}

/// A message without what it is about.
pub(super) fn no_task() -> Refusal {
    Refusal::invalid("there is no task in the message: give one")
}
