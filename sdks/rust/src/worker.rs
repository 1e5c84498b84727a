//! A worker: its handlers and how it is set up, and its life from start to stop. Next: `stream.rs`, its thread.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime;
use tokio::sync::{oneshot, watch};
use wire::grpc;

use crate::client::Client;
use crate::context::{Context, States};
use crate::error::{Error, TaskError};
use crate::handler::{Handler, IntoHandler};
use crate::hub::Hub;
use crate::middleware::{self, Metrics, Middleware, NoMetrics};
use crate::running::{RunningWorker, Wish, heed_signals};
use crate::status;
use crate::stream::Stream;
use crate::task::RawTask;

/// How long handlers that were told to stop may take, unless said.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// How often a worker that holds tasks beats, unless said.
const BEAT: Duration = Duration::from_millis(500);

/// Claims tasks and runs their handlers.
///
/// ```no_run
/// # use serde::{Deserialize, Serialize};
/// # use windlass::{Client, Context, Task, TaskError, Worker};
/// # #[derive(Serialize, Deserialize)] struct Welcome { to: String }
/// # impl Task for Welcome { const KIND: &'static str = "welcome"; const QUEUE: &'static str = "mail"; type Output = (); }
/// async fn welcome(task: Welcome, cx: Context) -> Result<(), TaskError> {
///     println!("attempt {}: hello, {}", cx.attempt(), task.to);
///     Ok(())
/// }
///
/// # async fn example() -> Result<(), windlass::Error> {
/// let client = Client::connect("http://127.0.0.1:7420").await?;
/// Worker::new(client).slots(32).handle(welcome).run_until_signal().await?;
/// # Ok(())
/// # }
/// ```
///
/// While a handler runs, its claim is extended and beats are sent by a thread of the worker's own, so that a handler
/// that blocks its thread keeps its task. On a stop the worker claims nothing more, lets handlers finish for the
/// grace (25 s), tells the rest to stop ([`Context::cancelled`]), and gives back what is left without using up an
/// attempt.
#[must_use = "a worker does nothing before it is run"]
pub struct Worker {
    client: Client,
    name: Option<String>,
    slots: u32,
    queues: Vec<grpc::QueueChoice>,
    handlers: BTreeMap<String, Handler>,
    any: Option<Handler>,
    states: States,
    middleware: Vec<Arc<dyn Middleware>>,
    metrics: Arc<dyn Metrics>,
    labels: BTreeMap<String, String>,
    version: String,
    grace: Duration,
    cancel_grace: Duration,
    beat: Duration,
    hold: Option<Duration>,
    status: Option<SocketAddr>,
}

/// A queue to claim from, with or without a weight: `"mail"` or `("mail", 3)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueChoice {
    name: String,
    weight: Option<u32>,
}

impl From<&str> for QueueChoice {
    fn from(name: &str) -> QueueChoice {
        QueueChoice { name: name.to_owned(), weight: None }
    }
}

impl From<String> for QueueChoice {
    fn from(name: String) -> QueueChoice {
        QueueChoice { name, weight: None }
    }
}

impl<N: Into<String>> From<(N, u32)> for QueueChoice {
    fn from((name, weight): (N, u32)) -> QueueChoice {
        QueueChoice { name: name.into(), weight: Some(weight) }
    }
}

impl Worker {
    /// How long a stop lets handlers finish, unless said: with what follows it, within the 30 s that most who start
    /// programs wait before they kill them.
    pub const GRACE: Duration = Duration::from_secs(25);

    /// A worker with one slot per processor and no handlers yet.
    pub fn new(client: Client) -> Worker {
        let slots = std::thread::available_parallelism().map_or(1, |count| count.get());
        Worker {
            client,
            name: None,
            slots: u32::try_from(slots).unwrap_or(1),
            queues: Vec::new(),
            handlers: BTreeMap::new(),
            any: None,
            states: States::default(),
            middleware: Vec::new(),
            metrics: Arc::new(NoMetrics),
            labels: BTreeMap::new(),
            version: String::new(),
            grace: Worker::GRACE,
            cancel_grace: CANCEL_GRACE,
            beat: BEAT,
            hold: None,
            status: None,
        }
    }

    /// Its name, which no other worker that runs may have; `host:pid-` and a random number unless said.
    pub fn name(mut self, name: impl Into<String>) -> Worker {
        self.name = Some(name.into());
        self
    }

    /// How many tasks it runs at once: 1 to 10000.
    pub fn slots(mut self, slots: u32) -> Worker {
        self.slots = slots;
        self
    }

    /// The queues to claim from, tried in this order, or by weight when they carry weights. Unless said: those of
    /// the handlers' tasks.
    pub fn queues<I>(mut self, queues: I) -> Worker
    where
        I: IntoIterator<Item: Into<QueueChoice>>,
    {
        let choice = |QueueChoice { name, weight }| grpc::QueueChoice { name, weight };
        self.queues = queues.into_iter().map(|queue| choice(queue.into())).collect();
        self
    }

    /// Does the tasks of one kind: an async function of a task and what it needs beside it, or a [`Handler`].
    pub fn handle<M>(mut self, handler: impl IntoHandler<M>) -> Worker {
        let handler = handler.into_handler();
        match handler.kind.clone() {
            Some(kind) => drop(self.handlers.insert(kind, handler)),
            None => self.any = Some(handler),
        }
        self
    }

    /// Does the tasks of this kind, whatever their payload. What the handler gives back is JSON, or empty.
    pub fn handle_raw<F, Fut, B, E>(self, kind: impl Into<String>, handler: F) -> Worker
    where
        F: Fn(RawTask, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<B, E>> + Send + 'static,
        B: Into<Bytes>,
        E: Into<TaskError>,
    {
        self.handle(Handler::raw(kind, handler))
    }

    /// Does the tasks of every kind that has no handler of its own. Say which queues with [`Worker::queues`].
    pub fn handle_any<F, Fut, B, E>(self, handler: F) -> Worker
    where
        F: Fn(RawTask, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<B, E>> + Send + 'static,
        B: Into<Bytes>,
        E: Into<TaskError>,
    {
        self.handle(Handler::any(handler))
    }

    /// A value that handlers take as [`State`](crate::State), one of each type.
    pub fn state<S: Clone + Send + Sync + 'static>(mut self, state: S) -> Worker {
        self.states.insert(state);
        self
    }

    /// Something that happens around every handler; the first one is outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Worker {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Whatever counts things here.
    pub fn metrics(mut self, metrics: impl Metrics) -> Worker {
        self.metrics = Arc::new(metrics);
        self
    }

    /// What people want to know of it.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Worker {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Which version of the program it is.
    pub fn version(mut self, version: impl Into<String>) -> Worker {
        self.version = version.into();
        self
    }

    /// How long a stop lets handlers finish: 25 s unless said.
    pub fn grace(mut self, grace: Duration) -> Worker {
        self.grace = grace;
        self
    }

    /// How long handlers that were told to stop may take before their tasks are given back: 2 s unless said.
    pub fn cancel_grace(mut self, cancel_grace: Duration) -> Worker {
        self.cancel_grace = cancel_grace;
        self
    }

    /// How often it beats while it holds tasks: 500 ms unless said, at most a second.
    pub fn beat(mut self, beat: Duration) -> Worker {
        self.beat = beat;
        self
    }

    /// How long claims hold before they must be extended, which the worker does; else the task's, else the queue's.
    pub fn hold(mut self, hold: Duration) -> Worker {
        self.hold = Some(hold);
        self
    }

    /// Serves `/livez` and `/` (slots, running tasks, as JSON) on this port of the loopback address; 0 for any.
    pub fn status_port(self, port: u16) -> Worker {
        self.status_listen(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Serves `/livez` and `/` (slots, running tasks, as JSON) on this address.
    pub fn status_listen(mut self, address: SocketAddr) -> Worker {
        self.status = Some(address);
        self
    }

    /// Works until SIGTERM or SIGINT, then stops in order; a second signal stops it at once.
    pub async fn run_until_signal(self) -> Result<(), Error> {
        self.begin(Signals::Heed)?.join().await
    }

    /// Works until `stop` is ready, then stops in order.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        self.start()?.stop_when(stop).await
    }

    /// Begins to work and goes on beside the caller, on the caller's runtime.
    pub fn start(self) -> Result<RunningWorker, Error> {
        self.begin(Signals::Ignore)
    }

    fn begin(self, signals: Signals) -> Result<RunningWorker, Error> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = self.name.clone().unwrap_or_else(|| name(&host));
        let address = self.status;
        let setup = Arc::new(self.set_up(&name, host)?);
        let listener = address.map(status::bind).transpose()?;
        let status_addr = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let (wish, wished) = watch::channel(Wish::Run);
        let (report, reported) = watch::channel(Report::default());
        let (end, ended) = oneshot::channel();
        let hub = Arc::new(Hub::default());
        let stream = Stream::new(setup.clone(), hub.clone(), wished, report);
        let own = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::Setup(format!("the worker's own runtime cannot begin: {error}")))?;
        let signalled = wish.clone();
        let work = async move {
            if let Some(listener) = listener {
                tokio::spawn(status::serve(listener, setup, hub, reported));
            }
            if signals == Signals::Heed {
                tokio::spawn(heed_signals(signalled));
            }
            stream.run().await
        };
        std::thread::Builder::new()
            .name("windlass-stream".into())
            .spawn(move || {
                // A task like the connection's: what it wakes runs next, without a look at the sockets between.
                if let Ok(ended) = own.block_on(async { tokio::spawn(work).await }) {
                    drop(end.send(ended));
                }
            })
            .map_err(|error| Error::Setup(format!("the worker's own thread cannot begin: {error}")))?;
        Ok(RunningWorker { name, status_addr, wish, ended })
    }

    /// The worker as it is to run, its handlers on the caller's runtime.
    pub(crate) fn set_up(self, name: &str, host: String) -> Result<Setup, Error> {
        Ok(Setup {
            queues: self.all_queues()?,
            client: self.client,
            name: name.into(),
            host,
            instance: rand::random(),
            slots: self.slots,
            handlers: self.handlers.into_iter().map(|(kind, handler)| (kind, Arc::new(handler))).collect(),
            any: self.any.map(Arc::new),
            states: Arc::new(self.states),
            middleware: self.middleware,
            metrics: self.metrics,
            labels: self.labels,
            version: self.version,
            grace: self.grace,
            cancel_grace: self.cancel_grace,
            beat: self.beat,
            hold: self.hold,
            runtime: runtime::Handle::current(),
        })
    }

    /// Where to claim from.
    fn all_queues(&self) -> Result<Vec<grpc::QueueChoice>, Error> {
        for handler in self.handlers.values().chain(&self.any) {
            if let Some(need) = handler.needs.iter().find(|need| !self.states.has(need)) {
                let kind = handler.kind.as_deref().unwrap_or("any");
                let text = format!("the handler of {kind} needs a {}: give it with state()", need.name);
                return Err(Error::Setup(text));
            }
        }
        let mut queues = self.queues.clone();
        if queues.is_empty() {
            let names = self.handlers.values().filter_map(|handler| handler.queue.clone());
            let names: std::collections::BTreeSet<String> = names.collect();
            queues.extend(names.into_iter().map(|name| grpc::QueueChoice { name, weight: None }));
        }
        match (self.handlers.is_empty() && self.any.is_none(), queues.is_empty()) {
            (true, _) => Err(Error::Setup("the worker has no handler: give one with handle()".into())),
            (_, true) => Err(Error::Setup("the worker has no queue: give one with queues()".into())),
            _ => Ok(queues),
        }
    }
}

/// The name of one worker of this process. In containers many programs are process 1, and share a host's name with its
/// network: the rest tells them apart.
fn name(host: &str) -> String {
    format!("{host}:{}-{:06x}", std::process::id(), rand::random_range(0..1u32 << 24))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Signals {
    Heed,
    Ignore,
}

/// How a worker is connected, for the status port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) state: &'static str,
    pub(crate) session: String,
    pub(crate) connected_to: Option<String>,
}

/// A worker as it was set up.
pub(crate) struct Setup {
    pub(crate) client: Client,
    pub(crate) name: Arc<str>,
    pub(crate) host: String,
    /// Tells it from others of the same name.
    pub(crate) instance: u64,
    pub(crate) slots: u32,
    pub(crate) queues: Vec<grpc::QueueChoice>,
    handlers: BTreeMap<String, Arc<Handler>>,
    any: Option<Arc<Handler>>,
    pub(crate) states: Arc<States>,
    middleware: Vec<Arc<dyn Middleware>>,
    pub(crate) metrics: Arc<dyn Metrics>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) version: String,
    pub(crate) grace: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) beat: Duration,
    pub(crate) hold: Option<Duration>,
    /// Where handlers run.
    pub(crate) runtime: runtime::Handle,
}

impl Setup {
    /// Who does tasks of this kind.
    pub(crate) fn handler(&self, kind: &str) -> Option<Arc<Handler>> {
        self.handlers.get(kind).or(self.any.as_ref()).cloned()
    }
}

/// Runs one task and tells the stream what came of it, also when it is dropped before it began.
pub(crate) fn work(
    setup: Arc<Setup>,
    hub: Arc<Hub>,
    handler: Option<Arc<Handler>>,
    task: RawTask,
    cx: Context,
) -> impl Future<Output = ()> + Send + 'static {
    let mut end = EndOnce { hub, number: cx.0.number, is_told: false };
    async move {
        let outcome = match handler {
            Some(handler) => middleware::run(&setup.middleware, &*setup.metrics, &handler, task, cx).await,
            None => {
                let name = &setup.name;
                Err(TaskError::retry(format!("worker {name} has no handler for kind {:?}", task.kind)))
            }
        };
        end.is_told = true;
        end.hub.end(end.number, outcome);
    }
}

/// Tells the stream that a handler is gone, also when its runtime ended under it.
struct EndOnce {
    hub: Arc<Hub>,
    number: u64,
    is_told: bool,
}

impl Drop for EndOnce {
    fn drop(&mut self) {
        if !self.is_told {
            self.hub.end(self.number, Err(TaskError::release("the handler was dropped")));
        }
    }
}
