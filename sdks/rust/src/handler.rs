//! What makes an async function a handler.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::context::{Context, FromContext, Need};
use crate::error::TaskError;
use crate::hub::Outcome;
use crate::task::{RawTask, Task};

type Run = dyn Fn(RawTask, Context) -> BoxFuture<'static, Outcome> + Send + Sync;

/// A function that does the tasks of one kind, and how its claims are held.
#[derive(Clone)]
pub struct Handler {
    /// Nothing for any kind.
    pub(crate) kind: Option<String>,
    pub(crate) queue: Option<String>,
    pub(crate) hold: Option<Duration>,
    pub(crate) extends: bool,
    pub(crate) needs: Vec<Need>,
    run: Arc<Run>,
}

impl Handler {
    /// For tasks of this kind whatever their payload. What it gives back is JSON, or empty for nothing.
    pub fn raw<F, Fut, B, E>(kind: impl Into<String>, handler: F) -> Handler
    where
        F: Fn(RawTask, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<B, E>> + Send + 'static,
        B: Into<Bytes>,
        E: Into<TaskError>,
    {
        Handler { kind: Some(kind.into()), ..Handler::any(handler) }
    }

    /// For tasks of every kind that has no handler of its own.
    pub fn any<F, Fut, B, E>(handler: F) -> Handler
    where
        F: Fn(RawTask, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<B, E>> + Send + 'static,
        B: Into<Bytes>,
        E: Into<TaskError>,
    {
        let run = move |task, cx| -> BoxFuture<'static, Outcome> {
            let work = handler(task, cx);
            Box::pin(async move { work.await.map(Into::into).map_err(Into::into) })
        };
        Handler { kind: None, queue: None, hold: None, extends: true, needs: Vec::new(), run: Arc::new(run) }
    }

    /// Runs it on one task.
    pub(crate) fn run(&self, task: RawTask, cx: Context) -> BoxFuture<'static, Outcome> {
        (self.run)(task, cx)
    }
}

/// What [`Worker::handle`](crate::Worker::handle) takes: an async function of a [`Task`] and what it needs beside
/// it ([`Context`], [`State`](crate::State)), in any order; or a [`Handler`].
///
/// ```
/// use windlass::{secs, Context, IntoHandler, TaskError};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)] struct Report;
/// # impl windlass::Task for Report { const KIND: &'static str = "report"; const QUEUE: &'static str = "reports"; type Output = (); }
/// async fn report(_: Report, cx: Context) -> Result<(), TaskError> {
///     cx.extend(secs(60)).await?;
///     Ok(())
/// }
/// // Its claims hold ten seconds and are not extended by the worker.
/// let handler = report.hold(secs(10)).no_extend();
/// ```
pub trait IntoHandler<M>: Sized {
    /// As a handler.
    fn into_handler(self) -> Handler;

    /// Claims of its tasks hold so long, and are extended in time while it runs.
    fn hold(self, hold: Duration) -> Handler {
        Handler { hold: Some(hold), ..self.into_handler() }
    }

    /// Its claims are not extended by the worker: one that takes longer than its hold loses its task, unless it
    /// calls [`Context::extend`].
    fn no_extend(self) -> Handler {
        Handler { extends: false, ..self.into_handler() }
    }
}

/// Marks a handler that is one already.
pub struct Made;

impl IntoHandler<Made> for Handler {
    fn into_handler(self) -> Handler {
        self
    }
}

macro_rules! functions {
    ($($part:ident),*) => {
        impl<F, Fut, T, E, $($part),*> IntoHandler<(T, $($part),*)> for F
        where
            F: Fn(T, $($part),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<T::Output, E>> + Send + 'static,
            T: Task + 'static,
            E: Into<TaskError> + 'static,
            $($part: FromContext + 'static),*
        {
            fn into_handler(self) -> Handler {
                let needs: Vec<Option<Need>> = vec![$($part::need()),*];
                let run = move |task: RawTask, cx: Context| -> BoxFuture<'static, Outcome> {
                    // A function of the task alone has no use for it.
                    let _ = &cx;
                    let begun = (|| {
                        let payload: T = task.parse()?;
                        Ok::<_, TaskError>(self(payload, $($part::from_context(&cx)?),*))
                    })();
                    match begun {
                        Ok(work) => Box::pin(async move { output(work.await.map_err(Into::into)?) }),
                        Err(error) => Box::pin(std::future::ready(Err(error))),
                    }
                };
                Handler {
                    kind: Some(T::KIND.to_owned()),
                    queue: Some(T::QUEUE.to_owned()),
                    hold: None,
                    extends: true,
                    needs: needs.into_iter().flatten().collect(),
                    run: Arc::new(run),
                }
            }
        }
    };
}

functions!();
functions!(A);
functions!(A, B);
functions!(A, B, C);
functions!(A, B, C, D);

/// What a handler gave back, as JSON; nothing for what is `null`.
fn output<O: serde::Serialize>(value: O) -> Outcome {
    let bytes = serde_json::to_vec(&value)?;
    Ok(if bytes == b"null" { Bytes::new() } else { bytes.into() })
}
