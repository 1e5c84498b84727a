//! Clients of the peers. Each is told what to do by the same plan as `windlass bench`, and counted by the same code.

pub(crate) mod beanstalkd;
#[cfg(feature = "peers")]
pub(crate) mod nats;
#[cfg(feature = "peers")]
pub(crate) mod postgres;
#[cfg(feature = "peers")]
pub(crate) mod rabbitmq;
pub(crate) mod redis;
pub(crate) mod script;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use tokio::task::{JoinSet, LocalSet};

use crate::load::{Load, Plan, Summary};
use crate::pace::Pace;

/// One of those who enqueue: a message at a time.
pub(crate) trait Producer {
    /// Enqueues so many tasks with this payload; returns when each was answered.
    async fn enqueue(&mut self, payload: &[u8], count: u64) -> Result<()>;
}

/// One of those who work: a message at a time.
pub(crate) trait Worker {
    /// What a task is acked by.
    type Job;

    /// Waits for tasks and takes up to `max` of them; may come back with none.
    async fn take(&mut self, max: u64) -> Result<Vec<(Self::Job, Vec<u8>)>>;

    /// Says that they are done.
    async fn ack(&mut self, jobs: Vec<Self::Job>) -> Result<()>;
}

/// Runs a plan, in one thread.
pub(crate) async fn drive<P, W>(plan: Plan, producers: Vec<P>, workers: Vec<W>) -> Result<Summary>
where
    P: Producer + 'static,
    W: Worker + 'static,
{
    let load = Arc::new(Load::new(plan, producers.len()));
    let local = LocalSet::new();
    let mut running = JoinSet::new();
    for worker in workers {
        running.spawn_local_on(work(worker, load.clone()), &local);
    }
    for producer in producers {
        running.spawn_local_on(produce(producer, load.clone()), &local);
    }
    local
        .run_until(async {
            // Producers end, workers only when something is wrong.
            let wrong = async {
                while let Some(ended) = running.join_next().await {
                    ended??;
                }
                if load.plan.workers > 0 {
                    bail!("every worker has ended");
                }
                std::future::pending().await
            };
            tokio::select! {
                wrong = wrong => wrong,
                () = load.until_over() => Ok(()),
            }
        })
        .await?;
    Ok(load.summary())
}

async fn produce(mut producer: impl Producer, load: Arc<Load>) -> Result<()> {
    let mut pace = Pace::default();
    while let Some(next) = load.next() {
        let from = pace.until(next.due).await;
        load.sent(next, from);
        producer.enqueue(&load.payload(from), next.tasks).await?;
        load.enqueued_many(from, next.tasks);
    }
    load.producer_ended();
    Ok(())
}

async fn work(mut worker: impl Worker, load: Arc<Load>) -> Result<()> {
    loop {
        let taken = worker.take(load.plan.batch).await?;
        if taken.is_empty() {
            continue;
        }
        load.received(taken.iter().map(|(_, payload)| payload.as_slice()));
        let count = taken.len();
        let sent = Instant::now();
        worker.ack(taken.into_iter().map(|(job, _)| job).collect()).await?;
        load.acked(std::iter::repeat_n(sent, count));
    }
}
