//! The built-in worker of `windlass dev`: three kinds on the queue `demo`, so that the first minute shows a
//! result, a retry and a dead letter.
//!
//! It claims through the node's own API, with a session like any other worker. Never touches another queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use model::command::ClaimQueue;
use model::{Fence, Millis, QueueName, SessionId, TaskId, WorkerName};
use node::Node;
use node::call::{AckCall, Claim, ClaimCall, FailCall, WorkerFacts, WorkerState};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The only queue it works on.
const QUEUE: &str = "demo";
/// Its name among the workers.
pub(crate) const WORKER: &str = "windlass-dev";
/// Tasks at once.
const SLOTS: u32 = 4;
/// Longest sleep of the kind `sleep`; claims hold for longer than this.
const SLEEP_MAX: Duration = Duration::from_secs(300);
/// Attempts after which the kind `fail` gives up.
const FAIL_ATTEMPTS: u32 = 3;

/// The running worker.
pub(crate) struct Demo {
    worker: Arc<Worker>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

struct Worker {
    node: Node,
    name: WorkerName,
    facts: WorkerFacts,
    life: watch::Sender<Life>,
    running: Mutex<BTreeMap<TaskId, Fence>>,
}

/// One session of the worker, and what it is asked to do in it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Life {
    session: SessionId,
    state: WorkerState,
}

/// Registers the worker under this name and lets it claim.
pub(crate) async fn start(node: Node, name: &str) -> Result<Demo> {
    let name = WorkerName::new(name).context("the demo's worker name is valid")?;
    let queue = QueueName::new(QUEUE).context("the demo's queue name is valid")?;
    let facts = WorkerFacts {
        name: name.clone(),
        host: Some(crate::claim::host()),
        pid: Some(std::process::id()),
        instance: None,
        slots: SLOTS,
        queues: vec![queue.clone()],
        labels: Vec::new(),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        beat: Millis(1_000),
        session: None,
    };
    let (session, state) = node.register(facts.clone()).await?;
    let life = watch::Sender::new(Life { session, state });
    let worker = Arc::new(Worker { node, name, facts, life, running: Mutex::default() });
    let (stopping, tasks) = (CancellationToken::new(), TaskTracker::new());
    let beats = beat(worker.clone());
    tasks.spawn(stopping.clone().run_until_cancelled_owned(beats));
    let claims = claim(worker.clone(), queue, tasks.clone());
    tasks.spawn(stopping.clone().run_until_cancelled_owned(claims));
    Ok(Demo { worker, stopping, tasks })
}

impl Demo {
    /// Stops claiming, and gives back what runs.
    pub(crate) async fn stop(self) {
        self.stopping.cancel();
        if let Err(e) = self.worker.node.end_session(&self.worker.name).await {
            tracing::debug!("the demo's worker was gone already: {e}");
        }
        self.tasks.close();
        let _ = tokio::time::timeout(Duration::from_secs(1), self.tasks.wait()).await;
    }
}

async fn beat(worker: Arc<Worker>) {
    let mut ticks = interval(Duration::from_millis(800));
    loop {
        ticks.tick().await;
        let running = worker.running().iter().map(|(&id, &fence)| (id, fence)).collect();
        let session = worker.life.borrow().session;
        let life = match worker.node.beat(&worker.name, session, running).await {
            Ok(answer) => Ok(Life { session, state: answer.state }),
            // Somebody removed it, or this process stood still: it starts anew.
            Err(node::Error::UnknownWorker { .. }) => {
                let registered = worker.node.register(worker.facts.clone()).await;
                registered.map(|(session, state)| Life { session, state })
            }
            Err(e) => Err(e),
        };
        match life {
            Ok(life) => drop(worker.life.send_if_modified(|last| std::mem::replace(last, life) != life)),
            Err(e) => tracing::debug!("the demo's beat was not heard: {e}"),
        }
    }
}

async fn claim(worker: Arc<Worker>, queue: QueueName, tasks: TaskTracker) {
    let slots = Arc::new(Semaphore::new(SLOTS as usize));
    let mut life = worker.life.subscribe();
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        // One that drains or stops claims nothing, until it is another.
        let running = life.wait_for(|life| life.state == WorkerState::Running).await;
        let Ok(session) = running.map(|life| life.session) else { return };
        let call = ClaimCall {
            queues: vec![ClaimQueue { name: queue.clone(), weight: 0 }],
            worker: worker.name.clone(),
            session: Some(session),
            max: 1,
            hold: Some(Millis((SLEEP_MAX + Duration::from_secs(60)).as_millis() as u64)),
            wait: Millis::secs(20),
            request_id: None,
        };
        match worker.node.claim(call).await {
            Ok(answer) => {
                // At most one: the slot goes with it.
                let Some(claim) = answer.value.into_iter().next() else { continue };
                worker.running().insert(claim.id, claim.fence);
                let worker = worker.clone();
                tasks.spawn(async move {
                    handle(&worker, &claim).await;
                    worker.running().remove(&claim.id);
                    drop(slot);
                });
            }
            Err(e) => {
                tracing::debug!("the demo's worker cannot claim: {e}");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn handle(worker: &Worker, claim: &Claim) {
    let payload: Value = serde_json::from_slice(&claim.envelope.payload).unwrap_or_default();
    let outcome = match claim.envelope.kind.as_str() {
        "hello" => {
            let name = payload.get("name").and_then(Value::as_str).unwrap_or("world");
            Ok(json!({"greeting": format!("hello, {name}")}))
        }
        "sleep" => {
            let asked = payload
                .get("ms")
                .and_then(Value::as_u64)
                .map_or(Duration::from_secs(1), Duration::from_millis);
            sleep(asked.min(SLEEP_MAX)).await;
            Ok(json!({"slept_ms": asked.min(SLEEP_MAX).as_millis() as u64}))
        }
        "fail" if claim.attempt < FAIL_ATTEMPTS => {
            Err(("this kind always fails; it is tried again in a second", Some(1)))
        }
        "fail" => Err(("this kind always fails, and has now been tried often enough", None)),
        _ => Err(("the built-in worker knows the kinds hello, sleep and fail", None)),
    };
    let token = claim.token.clone();
    let told = match outcome {
        Ok(output) => {
            let call = AckCall { token, output: Bytes::from(output.to_string()), then: Vec::new() };
            worker.node.ack(vec![call]).await
        }
        Err((error, retry_in)) => {
            let call = FailCall {
                token,
                error: error.to_owned(),
                detail: String::new(),
                retry_in: retry_in.map(Millis::secs),
                fatal: retry_in.is_none(),
            };
            worker.node.fail(vec![call]).await
        }
    };
    for error in told.into_iter().filter_map(Result::err) {
        tracing::debug!(task = %claim.id, "the outcome does not count: {error}");
    }
}

impl Worker {
    fn running(&self) -> std::sync::MutexGuard<'_, BTreeMap<TaskId, Fence>> {
        self.running.lock().expect("nobody panics while holding this lock")
    }
}
