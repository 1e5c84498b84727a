//! `windlass work`: runs a program for each task.
//!
//! The loop claims as many tasks as there are free slots and hands each to its own tokio task
//! (`work/handle.rs`). Beside it run the session (`work/session.rs`), which tells the server that we are
//! alive and tells us what to stop, and the signals, which only ever move the phase forward. Never acks
//! what a program did not end well.

pub(crate) mod child;
mod handle;
mod program;
mod running;
mod session;
mod status;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::claim::{default_worker, request_id, weighted};
use crate::client::{Call, Client, Repeat, escaped};
use crate::connection::Connection;
use crate::exit::Failure;
use crate::log::LogFormat;
use crate::span::Span;
use crate::stdin_end;
use running::{Kill, Running};
use session::Session;

/// How long one claim waits at the server.
const CLAIM_WAIT: Duration = Duration::from_secs(20);
/// How long programs that were killed and claims that are released may take at the very end.
const GOODBYE: Duration = Duration::from_secs(10);

/// Run a program for each task of some queues
///
/// The program gets the payload on stdin and the task's facts in WINDLASS_* variables: TASK_ID, QUEUE, KIND,
/// ATTEMPT, FENCE, TOKEN, DEADLINE, ENQUEUED_AT, HEADERS (JSON), CONTENT_TYPE, WORKER, SERVER.
/// Exit code 0 acks with stdout as the output: as JSON if it is JSON, else as a string.
/// Any other code fails the attempt, with the tail of stderr as the error.
#[derive(Args, Debug)]
#[command(
    after_help = "SIGTERM drains: no new claims, programs finish, the rest is given back. A second one stops now."
)]
pub(crate) struct Work {
    /// Queues to claim from, the first one first; NAME:WEIGHT shares by weight
    #[arg(long = "queue", value_name = "QUEUE", required = true, value_delimiter = ',')]
    queues: Vec<String>,
    /// The command, run by sh
    #[arg(long, value_name = "COMMAND")]
    exec: String,
    /// How many tasks run at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    slots: u32,
    /// The worker's name; else host and process
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How long a claim holds without a word from us; it is extended while the program runs
    #[arg(long, value_name = "TIME", default_value = "30s")]
    hold: Span,
    /// How long programs may take to finish after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s")]
    drain_timeout: Span,
    /// Serve the worker's own status on this address
    #[arg(long, value_name = "ADDR")]
    status_listen: Option<SocketAddr>,
    /// The form of the log on stderr
    #[arg(long, value_enum, default_value_t)]
    log: LogFormat,
    /// Stop when stdin ends: whoever started us has gone
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
    #[command(flatten)]
    connection: Connection,
}

/// What a worker was asked to do. It only ever goes down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    /// Claim nothing more, finish what runs.
    Draining,
    /// Kill what runs and give it back.
    Stopping,
}

/// What all parts of a worker share.
struct Worker {
    name: String,
    queues: Vec<String>,
    exec: String,
    slots: u32,
    hold: Duration,
    client: Client,
    servers: String,
    session: Session,
    running: Running,
    phase: watch::Sender<Phase>,
}

impl Worker {
    /// Moves on to `phase`, never back.
    fn advance(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let moved = phase > *current;
            if moved {
                tracing::info!(worker = self.name, "{phase:?}: {} tasks run", self.running.len());
                *current = phase;
            }
            moved
        });
    }

    /// Returns when `phase` or a later one is reached.
    async fn reaches(&self, phase: Phase) {
        let mut changes = self.phase.subscribe();
        // The sender lives in `self`, so this cannot fail before it is reached.
        let _ = changes.wait_for(|current| *current >= phase).await;
    }
}

pub(crate) async fn run(args: Work) -> Result<()> {
    if args.hold.millis() < 1000 {
        return Err(Failure::usage("--hold must be at least 1s: it is extended three times per hold").into());
    }
    crate::log::init(args.log);
    let worker = Arc::new(Worker {
        name: args.name.unwrap_or_else(default_worker),
        queues: args.queues,
        exec: args.exec,
        slots: args.slots,
        hold: args.hold.duration(),
        client: args.connection.client()?,
        servers: args.connection.servers()?,
        session: Session::default(),
        running: Running::default(),
        phase: watch::Sender::new(Phase::Running),
    });
    if let Some(address) = args.status_listen {
        let address = status::listen(address, worker.clone()).await?;
        tracing::info!("status on http://{address}");
    }
    watch_signals(worker.clone())?;
    if args.until_stdin_ends {
        let worker = worker.clone();
        stdin_end::then(move || worker.advance(Phase::Stopping));
    }
    session::register(&worker, None).await?;
    let beats = tokio::spawn(session::keep(worker.clone()));

    let tasks = TaskTracker::new();
    claim_until_draining(&worker, &tasks).await?;
    drain(&worker, &tasks, args.drain_timeout.duration()).await;

    beats.abort();
    let path = format!("/v1/workers/{}", escaped(&worker.name));
    if let Err(e) = worker.client.call(Call::delete(path).within(Duration::from_secs(2))).await {
        tracing::warn!("could not say goodbye: {e:#}");
    }
    tracing::info!(worker = worker.name, "stopped");
    Ok(())
}

fn watch_signals(worker: Arc<Worker>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
    tokio::spawn(async move {
        for phase in [Phase::Draining, Phase::Stopping] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            worker.advance(phase);
            // For people who watch; the worker drains whether or not anybody hears of it.
            let path = format!("/v1/workers/{}/drain", escaped(&worker.name));
            let call = Call::post(path, &json!({}), Repeat::Safe).within(Duration::from_secs(2));
            if phase == Phase::Draining
                && let Err(e) = worker.client.call(call).await
            {
                tracing::debug!("could not say that we drain: {e:#}");
            }
        }
    });
    Ok(())
}

async fn claim_until_draining(worker: &Arc<Worker>, tasks: &TaskTracker) -> Result<()> {
    let slots = Arc::new(Semaphore::new(worker.slots as usize));
    let mut pause = Duration::from_millis(100);
    loop {
        let claims = tokio::select! {
            () = worker.reaches(Phase::Draining) => return Ok(()),
            claims = claim(worker, &slots) => claims,
        };
        match claims {
            Ok(claims) => {
                pause = Duration::from_millis(100);
                for (claim, slot) in claims {
                    tasks.spawn(handle::run(worker.clone(), claim, slot));
                }
            }
            Err(e) if e.downcast_ref::<Failure>().is_some_and(|f| f.is("invalid_request")) => return Err(e),
            Err(e) => {
                tracing::warn!("cannot claim: {e:#}: trying again");
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        }
    }
}

/// Waits for a free slot, then for tasks to fill it and the others that are free.
async fn claim(
    worker: &Worker,
    slots: &Arc<Semaphore>,
) -> Result<Vec<(handle::Claim, OwnedSemaphorePermit)>> {
    let first = slots.clone().acquire_owned().await.context("the slots are never closed")?;
    let queues: Vec<_> = worker.queues.iter().map(|queue| weighted(queue)).collect();
    let body = json!({
        "queues": queues,
        "worker": worker.name,
        "session": worker.session.id(),
        "max": 1 + slots.available_permits(),
        "hold_ms": worker.hold.as_millis() as u64,
        "wait_ms": CLAIM_WAIT.as_millis() as u64,
        "request_id": request_id(),
    });
    let answer =
        worker.client.call(Call::post("/v1/claims", &body, Repeat::Safe).waiting(CLAIM_WAIT)).await?;
    let claims = handle::Claim::of_answer(&answer)?;
    let mut first = Some(first);
    let mut handed = Vec::with_capacity(claims.len());
    for claim in claims {
        let permit = first.take().or_else(|| slots.clone().try_acquire_owned().ok());
        let Some(permit) = permit else {
            tracing::error!("got more tasks than asked for: {} is left to its deadline", claim.id);
            continue;
        };
        handed.push((claim, permit));
    }
    Ok(handed)
}

/// Waits for what runs, then kills and releases the rest.
async fn drain(worker: &Worker, tasks: &TaskTracker, patience: Duration) {
    tasks.close();
    tokio::select! {
        () = tasks.wait() => return,
        () = worker.reaches(Phase::Stopping) => {}
        () = sleep(patience) => tracing::warn!("{} tasks still run after {patience:?}", worker.running.len()),
    }
    worker.running.kill_all(Kill::Stopping);
    if timeout(GOODBYE, tasks.wait()).await.is_err() {
        tracing::error!(
            "{} tasks could not be given back: their session's end frees them",
            worker.running.len()
        );
    }
}
