//! Around the handlers: middleware, and a hook for metrics. Each task also runs in a span of `tracing`.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tracing::Instrument as _;

use crate::context::Context;
use crate::error::{TaskError, Verdict};
use crate::handler::Handler;
use crate::hub::Outcome;
use crate::task::RawTask;

/// Something that happens around every handler, such as setting up a transaction.
///
/// ```
/// use futures::future::BoxFuture;
/// use windlass::{Context, Middleware, Next, Outcome, RawTask};
///
/// struct Announce;
///
/// impl Middleware for Announce {
///     fn handle<'a>(&'a self, task: RawTask, cx: Context, next: Next<'a>) -> BoxFuture<'a, Outcome> {
///         Box::pin(async move {
///             println!("{} begins", task.kind);
///             let outcome = next.run(task, cx).await;
///             println!("it {}", if outcome.is_ok() { "is done" } else { "is not done" });
///             outcome
///         })
///     }
/// }
/// ```
pub trait Middleware: Send + Sync + 'static {
    /// Does what it does and, if it wants to, goes on with `next`.
    fn handle<'a>(&'a self, task: RawTask, cx: Context, next: Next<'a>) -> BoxFuture<'a, Outcome>;
}

/// The rest of the way to the handler.
pub struct Next<'a> {
    rest: &'a [Arc<dyn Middleware>],
    handler: &'a Handler,
}

impl<'a> Next<'a> {
    /// Goes on.
    pub fn run(self, task: RawTask, cx: Context) -> BoxFuture<'a, Outcome> {
        match self.rest.split_first() {
            None => self.handler.run(task, cx),
            Some((first, rest)) => first.handle(task, cx, Next { rest, handler: self.handler }),
        }
    }
}

/// How an attempt ended, for whoever counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndedAs {
    /// Its handler is done.
    Done,
    /// It will be tried again.
    Failed,
    /// It will not be tried again.
    Fatal,
    /// It was given back.
    Released,
}

/// A hook for whatever counts things here.
pub trait Metrics: Send + Sync + 'static {
    /// A handler begins.
    fn started(&self, queue: &str, kind: &str) {
        let _ = (queue, kind);
    }

    /// A handler ended.
    fn ended(&self, queue: &str, kind: &str, ended: EndedAs, took: Duration) {
        let _ = (queue, kind, ended, took);
    }

    /// A task's claim was lost while its handler ran.
    fn lost(&self, queue: &str, kind: &str) {
        let _ = (queue, kind);
    }

    /// The worker is connected to this server.
    fn connected(&self, address: &str) {
        let _ = address;
    }
}

/// Counts nothing.
pub(crate) struct NoMetrics;

impl Metrics for NoMetrics {}

/// Runs one task through all middleware. A panic is a failed attempt.
pub(crate) async fn run(
    middleware: &[Arc<dyn Middleware>],
    metrics: &dyn Metrics,
    handler: &Handler,
    task: RawTask,
    cx: Context,
) -> Outcome {
    let span = tracing::info_span!("task", kind = %task.kind, id = %task.id, attempt = task.attempt);
    metrics.started(cx.queue(), cx.kind());
    let begun = std::time::Instant::now();
    let next = Next { rest: middleware, handler };
    // A handler may panic before its first await, so it is begun inside.
    let told = cx.clone();
    let work = async move { next.run(task, told).await };
    let caught = AssertUnwindSafe(work.instrument(span.clone())).catch_unwind().await;
    let outcome = caught.unwrap_or_else(|panic| Err(panicked(&*panic)));
    let ended = match &outcome {
        Ok(_) => EndedAs::Done,
        Err(error) => match error.verdict() {
            Verdict::Retry | Verdict::RetryAfter(_) => EndedAs::Failed,
            Verdict::Fatal => EndedAs::Fatal,
            Verdict::Release(_) => EndedAs::Released,
        },
    };
    let took = begun.elapsed();
    metrics.ended(cx.queue(), cx.kind(), ended, took);
    span.in_scope(|| match &outcome {
        Ok(_) => tracing::debug!(took_ms = took.as_millis() as u64, "done"),
        // No failure, and a handler may do it often.
        Err(error) if ended == EndedAs::Released => {
            tracing::debug!(took_ms = took.as_millis() as u64, %error, "given back");
        }
        Err(error) => tracing::warn!(took_ms = took.as_millis() as u64, %error, "not done"),
    });
    outcome
}

/// What a panic said.
fn panicked(panic: &(dyn Any + Send)) -> TaskError {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    TaskError::retry(format!("panicked: {}", said.unwrap_or("without words")))
}
