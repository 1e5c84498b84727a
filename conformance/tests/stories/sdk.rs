//! The Rust SDK: a client, and a worker for each claim, whose handlers do what the story says.
//!
//! A worker claims by itself as long as it has room. So each claim of a story has a worker of its own with as many
//! slots as the claim shall get tasks, and it is asked to stop before the first of its handlers ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use windlass::{
    Cancelled, Client, Context, Error, Metrics, NewTask, RawTask, Retry, RunningWorker, Task, TaskError,
    TaskId, Until, Worker, proto,
};

use crate::face::{Claimed, Enqueued, Face, LOST, Outcome, Refused, Says, broken};
use crate::proto::{bytes_of, json_of, known, policy_of, queue_view, text, view_of};

/// How long something that is expected may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a claim that should get nothing looks.
const MOMENT: Duration = Duration::from_millis(300);
/// Longer than a story lasts: its handlers end when the story says so.
const GRACE: Duration = Duration::from_secs(600);

pub(crate) struct Sdk {
    client: Client,
    workers: BTreeMap<String, Crew>,
}

/// The worker of one claim, with its handlers.
struct Crew {
    worker: RunningWorker,
    jobs: Vec<Job>,
    watch: Watch,
}

/// A handler that waits for the story to go on.
struct Job {
    task: RawTask,
    cx: Context,
    end: oneshot::Sender<windlass::Outcome>,
}

/// What the worker says of itself.
#[derive(Clone, Default)]
struct Watch(Arc<Seen>);

#[derive(Default)]
struct Seen {
    lost: AtomicU32,
    connected: tokio::sync::Notify,
}

impl Metrics for Watch {
    fn lost(&self, _: &str, _: &str) {
        self.0.lost.fetch_add(1, Ordering::SeqCst);
    }

    fn connected(&self, _: &str) {
        self.0.connected.notify_one();
    }
}

/// A task of any kind, whose result is asked for.
#[derive(Serialize, Deserialize)]
struct Any;

impl Task for Any {
    const KIND: &'static str = "any";
    const QUEUE: &'static str = "any";
    type Output = Value;
}

impl Sdk {
    pub(crate) fn new(client: Client) -> Sdk {
        Sdk { client, workers: BTreeMap::new() }
    }

    /// The handler of a claim.
    fn job(&mut self, claim: &Claimed) -> Outcome<&mut Job> {
        let crew = self.workers.get_mut(&claim.worker).ok_or_else(|| broken("it has no worker"))?;
        let is_it = |job: &Job| job.task.id.as_str() == claim.id && job.task.fence == claim.fence;
        crew.jobs.iter_mut().find(|job| is_it(job)).ok_or_else(|| broken("it has no handler"))
    }

    /// Lets a handler end. When it was the last of its worker, that leaves, and says whether the claim was lost.
    async fn end(&mut self, claim: &Claimed, outcome: windlass::Outcome) -> Outcome<Option<String>> {
        self.job(claim)?;
        let crew = self.workers.get_mut(&claim.worker).ok_or_else(|| broken("it has no worker"))?;
        crew.worker.stop();
        let is_it = |job: &Job| job.task.id.as_str() == claim.id && job.task.fence == claim.fence;
        let at = crew.jobs.iter().position(is_it).ok_or_else(|| broken("it has no handler"))?;
        let _ = crew.jobs.remove(at).end.send(outcome);
        if !crew.jobs.is_empty() {
            return Ok(None);
        }
        let crew = self.workers.remove(&claim.worker).ok_or_else(|| broken("it has no worker"))?;
        timeout(PATIENCE, crew.worker.join()).await.map_err(broken)?.map_err(|error| code(&error))?;
        if crew.watch.0.lost.load(Ordering::SeqCst) > 0 { Err(Refused(LOST.to_owned())) } else { Ok(None) }
    }
}

/// A refusal's code.
fn code(error: &Error) -> Refused {
    error.code().map_or_else(|| broken(error), |code| Refused(code.to_owned()))
}

fn enqueued(enqueued: windlass::Enqueued) -> Enqueued {
    Enqueued {
        id: enqueued.id.to_string(),
        state: enqueued.state.to_string(),
        is_duplicate: enqueued.is_duplicate,
    }
}

fn ms(value: &Value) -> Option<Duration> {
    value.as_u64().map(Duration::from_millis)
}

/// A task as a producer says it.
fn new_task(task: &Value) -> NewTask {
    let said = |name: &str| text(&task[name]);
    let (queue, kind) = (said("queue").unwrap_or_default(), said("kind").unwrap_or_default());
    let mut new = NewTask::raw(queue, kind, bytes_of(&task["payload"]));
    for (name, value) in task.as_object().into_iter().flatten() {
        let time = ms(value).unwrap_or_default();
        new = match name.as_str() {
            "queue" | "kind" | "payload" => new,
            "headers" => value
                .as_object()
                .into_iter()
                .flatten()
                .fold(new, |new, (name, value)| new.header(name.clone(), text(value).unwrap_or_default())),
            "dedup_key" => new.dedup_key(text(value).unwrap_or_default()),
            "dedup_window_ms" => new.dedup_window(time),
            "delay_ms" => new.delay(time),
            "priority" => new.priority(u32::try_from(value.as_u64().unwrap_or_default()).unwrap_or(u32::MAX)),
            "order_key" => new.order_key(text(value).unwrap_or_default()),
            "hold_ms" => new.hold(time),
            "retry" => new.retry(retry_of(value)),
            "expires_in_ms" => new.expires_in(time),
            "unique" => {
                let until = if value["until"] == "final" { Until::Final } else { Until::Claimed };
                new.unique(text(&value["key"]).unwrap_or_default(), until)
            }
            other => panic!("{other} is not carried over: add it to this face"),
        };
    }
    new
}

fn retry_of(value: &Value) -> Retry {
    known(value, &["attempts", "base_ms", "cap_ms", "age_max_ms"]);
    let mut retry = value["attempts"].as_u64().map_or_else(Retry::default, Retry::attempts);
    if let Some(base) = ms(&value["base_ms"]) {
        retry = retry.base(base);
    }
    if let Some(cap) = ms(&value["cap_ms"]) {
        retry = retry.cap(cap);
    }
    match ms(&value["age_max_ms"]) {
        Some(age_max) => retry.age_max(age_max),
        None => retry,
    }
}

/// Why a handler's task is not done.
fn task_error(body: &Value) -> TaskError {
    known(body, &["error", "retry_in_ms", "fatal", "then"]);
    let error = text(&body["error"]).unwrap_or_default();
    match ms(&body["retry_in_ms"]) {
        _ if body["fatal"] == true => TaskError::fatal(error),
        Some(after) => TaskError::retry_after(after, error),
        None => TaskError::retry(error),
    }
}

impl Face for Sdk {
    const NAME: &'static str = "sdk";

    async fn enqueue(&mut self, task: &Value) -> Outcome<Enqueued> {
        self.client.enqueue_raw(new_task(task)).await.map(enqueued).map_err(|error| code(&error))
    }

    async fn enqueue_many(&mut self, tasks: &[Value]) -> Outcome<Vec<Outcome<Enqueued>>> {
        let outcomes = self.client.enqueue_many(tasks.iter().map(new_task)).await;
        let outcomes = outcomes.map_err(|error| code(&error))?.into_iter();
        Ok(outcomes.map(|outcome| outcome.map(enqueued).map_err(|error| code(&error))).collect())
    }

    async fn session(&mut self, _: &str) -> Outcome<()> {
        // Every worker has one.
        Ok(())
    }

    async fn claim(
        &mut self,
        worker: &str,
        queue: &str,
        hold_ms: Option<u64>,
        count: usize,
    ) -> Outcome<Vec<Claimed>> {
        let slots = u32::try_from(count.max(1)).unwrap_or(1);
        let (begin, mut begun) = mpsc::channel::<Job>(count.max(1));
        let watch = Watch::default();
        let mut setup = Worker::new(self.client.clone())
            .name(worker)
            .slots(slots)
            .queues([queue])
            .grace(GRACE)
            .metrics(watch.clone())
            .handle_any(move |task: RawTask, cx: Context| {
                let begin = begin.clone();
                async move {
                    let (end, ended) = oneshot::channel();
                    let gone = || TaskError::release("the story is over");
                    begin.send(Job { task, cx, end }).await.map_err(|_| gone())?;
                    ended.await.unwrap_or_else(|_| Err(gone()))
                }
            });
        if let Some(hold_ms) = hold_ms {
            setup = setup.hold(Duration::from_millis(hold_ms));
        }
        let running = setup.start().map_err(|error| code(&error))?;
        timeout(PATIENCE, watch.0.connected.notified()).await.map_err(broken)?;
        let mut jobs = Vec::new();
        let within = if count == 0 { MOMENT } else { PATIENCE };
        while jobs.len() < count.max(1)
            && let Ok(Some(job)) = timeout(within, begun.recv()).await
        {
            jobs.push(job);
        }
        let claimed = |job: &Job| Claimed {
            id: job.task.id.to_string(),
            worker: worker.to_owned(),
            fence: job.cx.fence(),
            attempt: u64::from(job.cx.attempt()),
            payload: json_of(&job.task.payload),
            token: String::new(),
        };
        let claims: Vec<Claimed> = jobs.iter().map(claimed).collect();
        if jobs.is_empty() {
            running.stop();
            timeout(PATIENCE, running.join()).await.map_err(broken)?.map_err(|error| code(&error))?;
        } else {
            self.workers.insert(worker.to_owned(), Crew { worker: running, jobs, watch });
        }
        Ok(claims)
    }

    async fn settle(&mut self, claim: &Claimed, says: Says, body: &Value) -> Outcome<Option<String>> {
        let cx = self.job(claim)?.cx.clone();
        for task in body["then"].as_array().into_iter().flatten() {
            cx.then(new_task(task));
        }
        match says {
            Says::Ack => self.end(claim, Ok(bytes_of(&body["output"]))).await,
            Says::Fail => self.end(claim, Err(task_error(body))).await,
            Says::Release => {
                let delay = ms(&body["delay_ms"]).unwrap_or_default();
                self.end(claim, Err(TaskError::release_after(delay, "the story says so"))).await
            }
            Says::Extend => {
                let hold = ms(&body["hold_ms"]).ok_or_else(|| broken("the SDK says how long"))?;
                match timeout(PATIENCE, cx.extend(hold)).await.map_err(broken)? {
                    Ok(()) => Ok(Some("held".to_owned())),
                    Err(error) if error.code() == Some("stale_token") => Err(Refused(LOST.to_owned())),
                    Err(error) => Err(code(&error)),
                }
            }
            Says::Progress => {
                let percent = u32::try_from(body["percent"].as_u64().unwrap_or_default()).unwrap_or(u32::MAX);
                cx.progress((percent, text(&body["note"]).unwrap_or_default()));
                Ok(None)
            }
        }
    }

    async fn told(&mut self, claim: &Claimed) -> Outcome<()> {
        let cx = self.job(claim)?.cx.clone();
        match timeout(PATIENCE, cx.cancelled()).await.map_err(broken)? {
            Cancelled::Asked => Ok(()),
            other => Err(broken(format!("{other:?}"))),
        }
    }

    async fn leave(&mut self, worker: &str) -> Outcome<()> {
        let crew = self.workers.remove(worker).ok_or_else(|| broken("it has no worker"))?;
        crew.worker.stop_now();
        timeout(PATIENCE, crew.worker.join()).await.map_err(broken)?.map_err(|error| code(&error))
    }

    async fn vanish(&mut self, _: &str) -> Outcome<()> {
        Err(broken("a worker of this process cannot vanish"))
    }

    async fn cancel(&mut self, id: &str, reason: &str) -> Outcome<String> {
        let state = self.client.admin().cancel(&TaskId::from(id), reason).await;
        state.map(|state| state.to_string()).map_err(|error| code(&error))
    }

    async fn requeue(&mut self, id: &str) -> Outcome<String> {
        let state = self.client.admin().requeue(&TaskId::from(id)).await;
        state.map(|state| state.to_string()).map_err(|error| code(&error))
    }

    async fn pause(&mut self, queue: &str) -> Outcome<()> {
        self.client.admin().pause_queue(queue).await.map(drop).map_err(|error| code(&error))
    }

    async fn resume(&mut self, queue: &str) -> Outcome<()> {
        self.client.admin().resume_queue(queue).await.map(drop).map_err(|error| code(&error))
    }

    async fn set_queue(&mut self, queue: &str, policy: &Value) -> Outcome<()> {
        let change = self.client.admin().set_queue(policy_of(queue, policy)).await;
        change.map(drop).map_err(|error| code(&error))
    }

    async fn task(&mut self, id: &str) -> Outcome<Value> {
        self.client.admin().task(&TaskId::from(id)).await.map(view_of).map_err(|error| code(&error))
    }

    async fn queue(&mut self, queue: &str) -> Outcome<Value> {
        let queue = self.client.admin().queue(queue).await;
        queue.map(|queue| queue_view(&queue)).map_err(|error| code(&error))
    }

    async fn find(&mut self, queue: &str, kind: &str) -> Outcome<Vec<String>> {
        let (queue, kind) = (Some(queue.to_owned()), Some(kind.to_owned()));
        let filter = proto::ListTasksRequest { queue, kind, ..Default::default() };
        let found = self.client.admin().tasks(filter).await.map_err(|error| code(&error))?;
        Ok(found.tasks.into_iter().map(|task| task.id).collect())
    }

    async fn result(&mut self, id: &str) -> Outcome<(String, Value)> {
        let handle = self.client.task::<Any>(id);
        match timeout(PATIENCE, handle.result()).await.map_err(broken)? {
            Ok(output) => Ok(("done".to_owned(), output)),
            Err(Error::NotDone { state, .. }) => Ok((state.to_string(), Value::Null)),
            Err(error) => Err(code(&error)),
        }
    }
}
