//! What a handler holds beside its task: who it is, and its line to the server.

use std::any::Any;
use std::any::TypeId;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::error::{Error, TaskError};
use crate::hub::{ExtendWish, Hub};
use crate::producer::NewTask;
use crate::task::{Progress, RawTask, TaskId};

/// The worker of a handler that runs without one.
const ALONE: &str = "inline";

/// A running task's own line to the server.
///
/// ```
/// use windlass::{secs, Context, TaskError};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)] struct Resize { pages: u32 }
/// # #[derive(Serialize, Deserialize)] struct Notify;
/// # impl windlass::Task for Resize { const KIND: &'static str = "resize"; const QUEUE: &'static str = "images"; type Output = u32; }
/// # impl windlass::Task for Notify { const KIND: &'static str = "notify"; const QUEUE: &'static str = "mail"; type Output = (); }
///
/// async fn resize(task: Resize, cx: Context) -> Result<u32, TaskError> {
///     for page in 0..task.pages {
///         if cx.is_cancelled() {
///             return Err(TaskError::release("somebody wants this stopped"));
///         }
///         // … resize one page, handing `cx.fence()` to the storage …
///         cx.progress((100 * page / task.pages, format!("page {page} of {}", task.pages)));
///     }
///     cx.then(Notify); // enqueued with the ack, in one step
///     Ok(task.pages)
/// }
/// ```
#[derive(Clone)]
pub struct Context(pub(crate) Arc<Running>);

/// Why a handler should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// Somebody cancelled the task. It is still this worker's, to end as the handler finds best.
    Asked,
    /// The task is this worker's no more: another one may run it now, and the outcome will not count.
    Lost,
    /// The claim's time is over: another worker may run the task any moment.
    Deadline,
    /// This worker stops, and its grace is used up: what is not done now is given back without an attempt.
    Stopping,
}

/// One task that runs.
pub(crate) struct Running {
    /// The worker's own number for it.
    pub(crate) number: u64,
    pub(crate) id: TaskId,
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) attempt: u32,
    pub(crate) fence: u64,
    pub(crate) since: Instant,
    worker: Arc<str>,
    states: Arc<States>,
    told: watch::Sender<Option<Cancelled>>,
    /// Whether it was told that the worker stops, whatever was said since.
    is_stopping: AtomicBool,
    then: Mutex<Vec<NewTask>>,
    pub(crate) progress: Mutex<ProgressNote>,
    extending: tokio::sync::Mutex<()>,
    line: Line,
}

/// The newest progress, until it is sent.
#[derive(Default)]
pub(crate) struct ProgressNote {
    pub(crate) latest: Option<Progress>,
    /// Whether the stream knows that there is news.
    pub(crate) is_told: bool,
    /// What was said last, for the status port.
    pub(crate) last: Option<Progress>,
}

/// Whom a handler speaks to.
pub(crate) enum Line {
    /// The stream of its worker.
    Worker(Arc<Hub>),
    /// Nobody: it runs in a test, and what it says is written down.
    Alone(Mutex<Said>),
}

/// What a handler said that runs alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) progress: Vec<Progress>,
    pub(crate) extends: Vec<Duration>,
}

impl Running {
    pub(crate) fn new(number: u64, task: &RawTask, states: Arc<States>, line: Line) -> Running {
        Running {
            number,
            id: task.id.clone(),
            queue: task.queue.clone(),
            kind: task.kind.clone(),
            attempt: task.attempt,
            fence: task.fence,
            since: Instant::now(),
            worker: Arc::from(ALONE),
            states,
            told: watch::Sender::new(None),
            is_stopping: AtomicBool::new(false),
            then: Mutex::default(),
            progress: Mutex::default(),
            extending: tokio::sync::Mutex::default(),
            line,
        }
    }

    /// The same, in the hands of this worker.
    pub(crate) fn of_worker(self, worker: Arc<str>) -> Running {
        Running { worker, ..self }
    }

    /// Tells the handler to stop. A claim that is lost stays lost, whatever is said later.
    pub(crate) fn tell(&self, why: Cancelled) {
        if why == Cancelled::Stopping {
            self.is_stopping.store(true, Ordering::Relaxed);
        }
        self.told.send_if_modified(|told| {
            let is_news = *told != Some(why) && *told != Some(Cancelled::Lost);
            if is_news {
                *told = Some(why);
            }
            is_news
        });
    }

    /// What the handler was told.
    pub(crate) fn told(&self) -> Option<Cancelled> {
        *self.told.borrow()
    }

    /// Whether the handler was told that the worker stops.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// What shall be enqueued with the ack.
    pub(crate) fn take_then(&self) -> Vec<NewTask> {
        std::mem::take(&mut self.then.lock())
    }

    /// What was said alone.
    pub(crate) fn said(&self) -> Said {
        match &self.line {
            Line::Alone(said) => said.lock().clone(),
            Line::Worker(_) => Said::default(),
        }
    }
}

impl Context {
    /// The task's id.
    pub fn id(&self) -> &TaskId {
        &self.0.id
    }

    /// The queue in which it waited.
    pub fn queue(&self) -> &str {
        &self.0.queue
    }

    /// Its kind.
    pub fn kind(&self) -> &str {
        &self.0.kind
    }

    /// The name of the worker that runs it; `inline` in a test without a server.
    pub fn worker(&self) -> &str {
        &self.0.worker
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// A number that grows with each claim of this task. Hand it to the systems that the handler writes to, so that
    /// they refuse a worker that has lost the task.
    pub fn fence(&self) -> u64 {
        self.0.fence
    }

    /// Holds the task for so long from now. A worker extends by itself while a handler runs, so this is for
    /// handlers that asked to be left alone, and for a longer time at once.
    pub async fn extend(&self, hold: Duration) -> Result<(), Error> {
        match &self.0.line {
            Line::Alone(said) => said.lock().extends.push(hold),
            Line::Worker(hub) => {
                // One at a time, so that a handler cannot flood its worker.
                let _turn = self.0.extending.lock().await;
                let (answer, answered) = oneshot::channel();
                hub.extend(ExtendWish { number: self.0.number, hold, answer });
                let ended = Error::Setup("the worker ended before it was answered".into());
                answered.await.unwrap_or(Err(ended))?;
            }
        }
        Ok(())
    }

    /// Says how far the task is: a percentage, or a percentage and a note. The newest is sent, no more often than
    /// the server takes it. It is for those who watch a running task and ends with the claim: what is said just before
    /// the end may never be seen, so say what matters in the output.
    pub fn progress(&self, progress: impl Into<Progress>) {
        let progress = progress.into();
        match &self.0.line {
            Line::Alone(said) => said.lock().progress.push(progress),
            Line::Worker(hub) => {
                let mut note = self.0.progress.lock();
                note.last = Some(progress.clone());
                note.latest = Some(progress);
                let is_news = !std::mem::replace(&mut note.is_told, true);
                drop(note);
                if is_news {
                    hub.progress(self.0.number);
                }
            }
        }
    }

    /// Returns when the handler should stop, and why: somebody cancelled the task, its claim is lost, or the worker
    /// stops. Never, if none of that happens.
    pub async fn cancelled(&self) -> Cancelled {
        let mut told = self.0.told.subscribe();
        let why = told.wait_for(Option::is_some).await.ok().and_then(|why| *why);
        match why {
            Some(why) => why,
            // The sender lives in what this borrows.
            None => std::future::pending().await,
        }
    }

    /// Whether the handler should stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.told().is_some()
    }

    /// Enqueues another task when this one is done: with its ack, in one step, so that it happens exactly if the
    /// ack counts. A typed task, or a [`NewTask`] with more said of it.
    pub fn then(&self, task: impl Into<NewTask>) {
        self.0.then.lock().push(task.into());
    }

    /// What was shared with [`Worker::state`](crate::Worker::state), by its type.
    pub fn state<S: Clone + Send + Sync + 'static>(&self) -> Option<S> {
        self.0.states.get()
    }
}

/// What handlers share, one value of each type.
#[derive(Clone, Default)]
pub(crate) struct States(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<S: Clone + Send + Sync + 'static>(&mut self, state: S) {
        self.0.insert(TypeId::of::<S>(), Arc::new(state));
    }

    pub(crate) fn get<S: Clone + 'static>(&self) -> Option<S> {
        self.0.get(&TypeId::of::<S>())?.downcast_ref::<S>().cloned()
    }

    pub(crate) fn has(&self, need: &Need) -> bool {
        self.0.contains_key(&need.id)
    }
}

/// A shared value that a handler takes.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    id: TypeId,
    pub(crate) name: &'static str,
}

/// What a handler may take beside its task.
pub trait FromContext: Sized {
    /// Makes it from the context of the running task.
    fn from_context(cx: &Context) -> Result<Self, TaskError>;

    /// Which shared value it needs, if it does: a worker without it does not start.
    fn need() -> Option<Need> {
        None
    }
}

impl FromContext for Context {
    fn from_context(cx: &Context) -> Result<Context, TaskError> {
        Ok(cx.clone())
    }
}

/// A value that all handlers share, given to [`Worker::state`](crate::Worker::state).
///
/// ```
/// use windlass::{Context, State, TaskError};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)] struct Welcome { to: String }
/// # impl windlass::Task for Welcome { const KIND: &'static str = "welcome"; const QUEUE: &'static str = "mail"; type Output = (); }
/// #[derive(Clone)]
/// struct Mailer;
///
/// async fn welcome(task: Welcome, State(mailer): State<Mailer>, cx: Context) -> Result<(), TaskError> {
/// #   let _ = (task, mailer, cx);
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct State<S>(pub S);

impl<S> Deref for State<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: Clone + Send + Sync + 'static> FromContext for State<S> {
    fn from_context(cx: &Context) -> Result<State<S>, TaskError> {
        let state = cx.state::<S>();
        state
            .map(State)
            .ok_or_else(|| TaskError::retry(format!("the worker shares no {}", std::any::type_name::<S>())))
    }

    fn need() -> Option<Need> {
        Some(Need { id: TypeId::of::<S>(), name: std::any::type_name::<S>() })
    }
}
