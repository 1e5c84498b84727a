//! With the Rust SDK: enqueues are calls of it, a task is received when its handler starts. Acks are the SDK's own
//! affair: a task counts as acked when its handler is done, a moment before the server knows.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use tokio::task::JoinSet;
use windlass::{Client, Context, NewTask, RawTask, RunningWorker, TaskError, Worker};

use super::Target;
use super::load::{Load, Next, Plan};
use super::messages::KIND;
use super::pace::Pace;

pub(super) fn producing(plan: &Plan) -> usize {
    plan.producers
}

/// The clients of each side, connected before the run begins.
pub(super) struct Clients {
    workers: Vec<Client>,
    producers: Vec<Client>,
}

/// Connects one client for each worker and each producer.
pub(super) async fn connect(target: &Target, plan: &Plan) -> Result<Clients> {
    let mut clients = Clients { workers: Vec::new(), producers: Vec::new() };
    for n in 0..plan.workers {
        clients.workers.push(Client::connect(target.url(n).to_owned()).await?);
    }
    for n in 0..plan.producers {
        clients.producers.push(Client::connect(target.url(n).to_owned()).await?);
    }
    Ok(clients)
}

/// Starts all. The workers go on until they are stopped.
pub(super) fn run(
    target: &Target,
    clients: Clients,
    load: &Arc<Load>,
    running: &mut JoinSet<Result<()>>,
) -> Result<Vec<RunningWorker>> {
    let mut workers = Vec::new();
    for (n, client) in clients.workers.into_iter().enumerate() {
        let slots = (load.plan.share(load.plan.workers, n) * load.plan.batch) as u32;
        let load = load.clone();
        let worker = Worker::new(client).name(format!("{}-{n}", target.prefix)).slots(slots);
        let worker =
            worker.queues([target.queue.clone()]).handle_raw(KIND, move |task: RawTask, _: Context| {
                let load = load.clone();
                load.received([&task.payload[..]]);
                async move {
                    load.acked_untimed(1);
                    Ok::<_, TaskError>("")
                }
            });
        workers.push(worker.start()?);
    }
    for (n, client) in clients.producers.into_iter().enumerate() {
        let (queue, load) = (target.queue.clone(), load.clone());
        running.spawn_local(async move {
            match load.plan.rate {
                None => one_for_one(&client, &queue, &load, n).await?,
                Some(_) => on_time(&client, &queue, &load).await?,
            }
            load.producer_ended();
            Ok(())
        });
    }
    Ok(workers)
}

/// So many calls at once, each followed by the next.
async fn one_for_one(client: &Client, queue: &str, load: &Arc<Load>, n: usize) -> Result<()> {
    let mut calls = JoinSet::new();
    for _ in 0..load.plan.share(load.plan.producers, n) {
        let (client, queue, load) = (client.clone(), queue.to_owned(), load.clone());
        calls.spawn_local(async move {
            while let Some(next) = load.next() {
                send(&client, &queue, &load, next, Instant::now()).await;
            }
        });
    }
    while let Some(ended) = calls.join_next().await {
        ended?;
    }
    Ok(())
}

/// A call when one is due, whatever became of those before.
async fn on_time(client: &Client, queue: &str, load: &Arc<Load>) -> Result<()> {
    let (mut calls, mut pace) = (JoinSet::new(), Pace::default());
    while let Some(next) = load.next() {
        let from = pace.until(next.due).await;
        let (client, queue, load) = (client.clone(), queue.to_owned(), load.clone());
        calls.spawn_local(async move { send(&client, &queue, &load, next, from).await });
        while let Some(ended) = calls.try_join_next() {
            ended?;
        }
    }
    while let Some(ended) = calls.join_next().await {
        ended?;
    }
    Ok(())
}

/// One call; what is refused is counted.
async fn send(client: &Client, queue: &str, load: &Load, next: Next, from: Instant) {
    load.sent(next, from);
    let task = NewTask::raw(queue, KIND, load.payload(from));
    if next.tasks == 1 {
        match client.enqueue_raw(task).await {
            Ok(_) => load.enqueued([from]),
            Err(error) => refused(load, &error, 1),
        }
        return;
    }
    let outcomes = match client.enqueue_many(vec![task; next.tasks as usize]).await {
        Ok(outcomes) => outcomes,
        Err(error) => return refused(load, &error, next.tasks),
    };
    for outcome in outcomes {
        match outcome {
            Ok(_) => load.enqueued([from]),
            Err(error) => refused(load, &error, 1),
        }
    }
}

fn refused(load: &Load, error: &windlass::Error, count: u64) {
    match error {
        windlass::Error::Refused(refusal) => load.refused(refusal.code.as_ref(), count),
        _ => load.refused("unknown", count),
    }
}
