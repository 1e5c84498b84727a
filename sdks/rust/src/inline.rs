//! Runs one handler here and now, without a server: what a unit test of a handler needs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use wire::grpc;

use crate::context::{Cancelled, Context, Line, Running, Said, States};
use crate::error::{Error, TaskError};
use crate::handler::IntoHandler;
use crate::middleware::{self, NoMetrics};
use crate::producer::NewTask;
use crate::task::{Progress, RawTask, Task};

/// Runs a handler on a task, here and now, without a server.
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # use windlass::{Context, Inline, Task, TaskError};
/// # #[derive(Serialize, Deserialize)] struct Double(u32);
/// # impl Task for Double { const KIND: &'static str = "double"; const QUEUE: &'static str = "numbers"; type Output = u32; }
/// async fn double(task: Double, cx: Context) -> Result<u32, TaskError> {
///     cx.progress(50);
///     if cx.attempt() < 2 {
///         return Err("not at the first attempt".into());
///     }
///     Ok(task.0 * 2)
/// }
///
/// # #[tokio::main] async fn main() {
/// assert!(Inline::run(double, Double(21)).await.error().is_some());
/// let run = Inline::new().attempt(2).run_task(double, Double(21)).await;
/// assert_eq!(run.output::<u32>().unwrap(), 42);
/// assert_eq!(run.progress[0].percent, 50);
/// # }
/// ```
#[derive(Default)]
pub struct Inline {
    states: States,
    attempt: Option<u32>,
    fence: Option<u64>,
    cancelled: Option<Cancelled>,
}

impl Inline {
    /// Runs a handler on the first attempt of a task.
    pub async fn run<T: Task, M>(handler: impl IntoHandler<M>, task: T) -> InlineRun {
        Inline::new().run_task(handler, task).await
    }

    /// To say more before it runs.
    pub fn new() -> Inline {
        Inline::default()
    }

    /// A value that the handler takes as [`State`](crate::State).
    pub fn state<S: Clone + Send + Sync + 'static>(mut self, state: S) -> Inline {
        self.states.insert(state);
        self
    }

    /// Which attempt it is.
    pub fn attempt(mut self, attempt: u32) -> Inline {
        self.attempt = Some(attempt);
        self
    }

    /// The fence of its claim.
    pub fn fence(mut self, fence: u64) -> Inline {
        self.fence = Some(fence);
        self
    }

    /// The handler is told to stop from the beginning.
    pub fn cancelled(mut self, why: Cancelled) -> Inline {
        self.cancelled = Some(why);
        self
    }

    /// Runs a handler on a task.
    pub async fn run_task<T: Task, M>(self, handler: impl IntoHandler<M>, task: T) -> InlineRun {
        let new = NewTask::of(&task);
        if let Some(error) = new.failure {
            return InlineRun::of(Err(error.into()), Said::default(), Vec::new());
        }
        let mut raw = RawTask::made_up(T::QUEUE, T::KIND, new.task.payload);
        raw.attempt = self.attempt.unwrap_or(raw.attempt);
        raw.fence = self.fence.unwrap_or(raw.fence);
        let line = Line::Alone(Mutex::default());
        let running = Arc::new(Running::new(1, &raw, Arc::new(self.states), line));
        if let Some(why) = self.cancelled {
            running.tell(why);
        }
        let handler = handler.into_handler();
        let cx = Context(running.clone());
        let outcome = middleware::run(&[], &NoMetrics, &handler, raw, cx).await;
        let then = running.take_then().into_iter().map(|new| new.task).collect();
        InlineRun::of(outcome, running.said(), then)
    }
}

/// What a handler did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InlineRun {
    /// Its output as JSON, empty for nothing; or why there is none. A panic is an error too.
    pub outcome: Result<Bytes, TaskError>,
    /// What it said of its progress.
    pub progress: Vec<Progress>,
    /// For how long it wanted to hold on.
    pub extends: Vec<Duration>,
    /// What would be enqueued with its ack; nothing is when it is not done.
    pub then: Vec<grpc::Task>,
}

impl InlineRun {
    fn of(outcome: Result<Bytes, TaskError>, said: Said, then: Vec<grpc::Task>) -> InlineRun {
        InlineRun { outcome, progress: said.progress, extends: said.extends, then }
    }

    /// The output, if it is done.
    pub fn output<O: DeserializeOwned>(&self) -> Result<O, Error> {
        let no = |reason: String| Error::Json { what: "the output".into(), reason };
        let bytes = self.outcome.as_ref().map_err(|error| no(error.to_string()))?;
        let bytes = if bytes.is_empty() { b"null" } else { &bytes[..] };
        serde_json::from_slice(bytes).map_err(|error| no(error.to_string()))
    }

    /// Why it is not done, if it is not.
    pub fn error(&self) -> Option<&TaskError> {
        self.outcome.as_ref().err()
    }
}
