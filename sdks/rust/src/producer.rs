//! Enqueueing: what a producer says of a task, and the handle it gets. Next: `enqueue_stream.rs`, the way in.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use wire::grpc;
use wire::grpc::enqueue_outcome::Outcome;

use crate::client::{CALL_TIMEOUT, Client, Repeat};
use crate::enqueue_stream::is_repeatable;
use crate::error::Error;
use crate::task::{Progress, Task, TaskId, TaskState, millis};

/// Tasks in one message of `enqueue_many`, and their bytes, but for a single larger one.
const MANY_MAX: usize = 5_000;
const MANY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The most that a server takes in one message, less what is around a task. It would end the whole stream for a
/// larger one.
const TASK_BYTES_MAX: usize = 32 * 1024 * 1024 - 64;
/// How long one question for a result waits at the server.
const RESULT_WAIT: Duration = Duration::from_secs(30);

/// A task that is about to be enqueued: its payload and what its producer says of it.
///
/// Any [`Task`] becomes one by `into()`; [`NewTask::raw`] is for payloads that have no type here.
#[derive(Clone, Debug)]
pub struct NewTask {
    pub(crate) task: grpc::Task,
    /// A payload that could not be written down is told where the task is used.
    pub(crate) failure: Option<Error>,
}

impl NewTask {
    /// A typed task.
    pub fn of<T: Task>(task: &T) -> NewTask {
        let mut new = NewTask::raw(T::QUEUE, T::KIND, Bytes::new());
        match serde_json::to_vec(task) {
            Ok(payload) => new.task.payload = payload.into(),
            Err(error) => {
                let what = format!("the payload of {}", T::KIND);
                new.failure = Some(Error::Json { what, reason: error.to_string() });
            }
        }
        new
    }

    /// A task of any kind: the payload is JSON, unless a content type is said.
    pub fn raw(queue: impl Into<String>, kind: impl Into<String>, payload: impl Into<Bytes>) -> NewTask {
        let task = grpc::Task {
            queue: queue.into(),
            kind: kind.into(),
            payload: payload.into(),
            ..grpc::Task::default()
        };
        NewTask { task, failure: None }
    }

    /// What is sent, and how many bytes it has.
    fn into_message(self) -> Result<(grpc::Task, usize), Error> {
        let task = self.into_wire()?;
        match prost::Message::encoded_len(&task) {
            bytes @ ..=TASK_BYTES_MAX => Ok((task, bytes)),
            bytes => Err(Error::too_large("the task", bytes, TASK_BYTES_MAX)),
        }
    }

    /// The task as it is written down.
    pub(crate) fn into_wire(self) -> Result<grpc::Task, Error> {
        match self.failure {
            None => Ok(self.task),
            Some(error) => Err(error),
        }
    }
}

impl<T: Task> From<T> for NewTask {
    fn from(task: T) -> NewTask {
        NewTask::of(&task)
    }
}

/// What a producer can say of a task, for everything that holds one.
macro_rules! said_of_a_task {
    ($type:ty $(, $generic:ident: $bound:ident)?) => {
        impl$(<$generic: $bound>)? $type {
            /// In another queue than its kind's own.
            pub fn queue(mut self, queue: impl Into<String>) -> Self {
                self.task_mut().queue = queue.into();
                self
            }

            /// Not claimed before so long from now.
            pub fn delay(mut self, delay: Duration) -> Self {
                self.task_mut().delay_ms = Some(millis(delay));
                self
            }

            /// Not claimed before this time; one that has passed means now.
            pub fn run_at(mut self, at: SystemTime) -> Self {
                self.task_mut().run_at = Some(at.into());
                self
            }

            /// Tasks of one dedup key are one task: a repeat answers with the task that is there. It also makes a
            /// repeat after a lost connection safe, unless its window is under a minute.
            pub fn dedup_key(mut self, key: impl Into<String>) -> Self {
                self.task_mut().dedup_key = Some(key.into());
                self
            }

            /// How long after the end a repeat of the dedup key is still one: 15 minutes unless said; zero: only
            /// while it lives.
            pub fn dedup_window(mut self, window: Duration) -> Self {
                self.task_mut().dedup_window_ms = Some(millis(window));
                self
            }

            /// 0 is served first, 9 last; 5 unless said.
            pub fn priority(mut self, priority: u32) -> Self {
                self.task_mut().priority = Some(priority);
                self
            }

            /// Tasks of one order key run one after the other, in the order in which they were enqueued.
            pub fn order_key(mut self, key: impl Into<String>) -> Self {
                self.task_mut().order_key = Some(key.into());
                self
            }

            /// Travels beside the payload.
            pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
                self.task_mut().headers.insert(name.into(), value.into());
                self
            }

            /// How often and how fast it is tried again.
            pub fn retry(mut self, retry: Retry) -> Self {
                self.task_mut().retry = Some(retry.into());
                self
            }

            /// How long a claim of it holds before it must be extended.
            pub fn hold(mut self, hold: Duration) -> Self {
                self.task_mut().hold_ms = Some(millis(hold));
                self
            }

            /// Not claimed later than so long from now.
            pub fn expires_in(mut self, expires_in: Duration) -> Self {
                self.task_mut().expires_in_ms = Some(millis(expires_in));
                self
            }

            /// How long it stays readable after its end.
            pub fn retention(mut self, retention: Duration) -> Self {
                self.task_mut().retention_ms = Some(millis(retention));
                self
            }

            /// Only one task at a time has this key: another one is refused while this one counts.
            pub fn unique(mut self, key: impl Into<String>, until: Until) -> Self {
                let until = match until {
                    Until::Claimed => "claimed",
                    Until::Final => "final",
                };
                self.task_mut().unique =
                    Some(grpc::Unique { key: key.into(), until: until.to_owned() });
                self
            }

            /// What the payload is, when it is not JSON.
            pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
                self.task_mut().content_type = content_type.into();
                self
            }
        }
    };
}

said_of_a_task!(NewTask);
said_of_a_task!(Enqueue<T>, T: Task);
said_of_a_task!(EnqueueRaw);

impl NewTask {
    fn task_mut(&mut self) -> &mut grpc::Task {
        &mut self.task
    }
}

/// Until when a unique key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until the first claim of the task.
    Claimed,
    /// Until the task has ended.
    Final,
}

/// How often and how fast a task is tried again; the queue's policy fills in the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    attempts: Option<u64>,
    base: Option<Duration>,
    cap: Option<Duration>,
    age_max: Option<Duration>,
}

impl Retry {
    /// So many attempts in all.
    pub fn attempts(attempts: u64) -> Retry {
        Retry { attempts: Some(attempts), ..Retry::default() }
    }

    /// One attempt, and no other.
    pub fn never() -> Retry {
        Retry::attempts(1)
    }

    /// The first backoff; each one is twice the one before.
    pub fn base(mut self, base: Duration) -> Retry {
        self.base = Some(base);
        self
    }

    /// The longest backoff.
    pub fn cap(mut self, cap: Duration) -> Retry {
        self.cap = Some(cap);
        self
    }

    /// No retry of a task older than this.
    pub fn age_max(mut self, age_max: Duration) -> Retry {
        self.age_max = Some(age_max);
        self
    }
}

impl From<Retry> for grpc::Retry {
    fn from(retry: Retry) -> grpc::Retry {
        grpc::Retry {
            attempts: retry.attempts,
            base_ms: retry.base.map(millis),
            cap_ms: retry.cap.map(millis),
            age_max_ms: retry.age_max.map(millis),
        }
    }
}

/// An enqueue that is sent when it is awaited.
///
/// ```no_run
/// # use serde::{Deserialize, Serialize};
/// # use windlass::{mins, Client, Retry, Task};
/// # #[derive(Serialize, Deserialize)] struct Welcome { to: String }
/// # impl Task for Welcome { const KIND: &'static str = "welcome"; const QUEUE: &'static str = "mail"; type Output = (); }
/// # async fn example(client: Client) -> Result<(), windlass::Error> {
/// let handle = client
///     .enqueue(Welcome { to: "ada@example.com".into() })
///     .delay(mins(5))
///     .dedup_key("welcome:42")
///     .retry(Retry::attempts(3))
///     .await?;
/// println!("{} waits", handle.id());
/// handle.result().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is sent before it is awaited"]
pub struct Enqueue<T> {
    client: Client,
    new: NewTask,
    kind: PhantomData<fn() -> T>,
}

impl<T> Enqueue<T> {
    fn task_mut(&mut self) -> &mut grpc::Task {
        &mut self.new.task
    }
}

impl<T: Task> IntoFuture for Enqueue<T> {
    type Output = Result<Handle<T>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Enqueue { client, new, .. } = self;
            let enqueued = client.send(new).await?;
            Ok(Handle { enqueued, client, kind: PhantomData })
        })
    }
}

/// An enqueue of a task without a type here; sent when it is awaited.
#[must_use = "nothing is sent before it is awaited"]
pub struct EnqueueRaw {
    client: Client,
    new: NewTask,
}

impl EnqueueRaw {
    fn task_mut(&mut self) -> &mut grpc::Task {
        &mut self.new.task
    }
}

impl IntoFuture for EnqueueRaw {
    type Output = Result<Enqueued, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.client.send(self.new).await })
    }
}

/// What became of an enqueue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The task: the new one, or the one that has the dedup key.
    pub id: TaskId,
    /// What it was then.
    pub state: TaskState,
    /// Whether its dedup key's task was there already.
    pub is_duplicate: bool,
}

impl Enqueued {
    fn of(reply: grpc::EnqueueReply) -> Result<Enqueued, Error> {
        let is_duplicate = reply.status == "duplicate";
        Ok(Enqueued { id: reply.id.into(), state: reply.state.parse()?, is_duplicate })
    }
}

impl Client {
    /// Enqueues a task when the returned builder is awaited. Many at once share one stream.
    pub fn enqueue<T: Task>(&self, task: T) -> Enqueue<T> {
        Enqueue { client: self.clone(), new: NewTask::of(&task), kind: PhantomData }
    }

    /// Enqueues a task of any kind when the returned builder is awaited.
    pub fn enqueue_raw(&self, task: NewTask) -> EnqueueRaw {
        EnqueueRaw { client: self.clone(), new: task }
    }

    /// Enqueues many, each with its own outcome, in their order. An error of the whole call may come when some of
    /// them are in; with dedup keys, a repeat is safe.
    pub async fn enqueue_many<I>(&self, tasks: I) -> Result<Vec<Result<Enqueued, Error>>, Error>
    where
        I: IntoIterator<Item: Into<NewTask>>,
    {
        let (mut outcomes, mut part) = (Vec::new(), Part::default());
        for task in tasks {
            match task.into().into_message() {
                Ok((task, bytes)) => {
                    if !part.has_room(bytes) {
                        self.enqueue_each(std::mem::take(&mut part), &mut outcomes).await?;
                    }
                    part.tasks.push(task);
                    part.bytes += bytes;
                    part.places.push(outcomes.len());
                    // Stands here until its outcome is known.
                    outcomes.push(Err(Error::Unknown { reason: "it was not answered".to_owned() }));
                }
                Err(error @ Error::Refused(_)) => outcomes.push(Err(error)),
                Err(error) => return Err(error),
            }
        }
        if !part.tasks.is_empty() {
            self.enqueue_each(part, &mut outcomes).await?;
        }
        Ok(outcomes)
    }

    async fn enqueue_each(&self, part: Part, outcomes: &mut [Result<Enqueued, Error>]) -> Result<(), Error> {
        let told = self.enqueue_part(part.tasks, Atomic::No).await?;
        for (place, outcome) in part.places.into_iter().zip(told) {
            outcomes[place] = outcome;
        }
        Ok(())
    }

    /// Enqueues all of them or none. They must belong to one shard: the same order key, or a queue with one shard.
    pub async fn enqueue_atomic<I>(&self, tasks: I) -> Result<Vec<Enqueued>, Error>
    where
        I: IntoIterator<Item: Into<NewTask>>,
    {
        let tasks: Result<Vec<_>, Error> = tasks.into_iter().map(|task| task.into().into_wire()).collect();
        self.enqueue_part(tasks?, Atomic::Yes).await?.into_iter().collect()
    }

    async fn enqueue_part(
        &self,
        tasks: Vec<grpc::Task>,
        atomic: Atomic,
    ) -> Result<Vec<Result<Enqueued, Error>>, Error> {
        let repeat = if tasks.iter().all(is_repeatable) { Repeat::Safe } else { Repeat::Never };
        let request = grpc::EnqueueManyRequest { tasks, atomic: atomic == Atomic::Yes };
        let call = |mut grpc: crate::client::Grpc| {
            let request = request.clone();
            async move { grpc.enqueue_many(request).await }
        };
        let reply: grpc::EnqueueManyReply = self.ask(repeat, CALL_TIMEOUT, call).await?;
        let outcome = |result: grpc::EnqueueOutcome| match result.outcome {
            Some(Outcome::Enqueued(reply)) => Enqueued::of(reply),
            Some(Outcome::Error(error)) => Err(Error::refused(error)),
            None => Err(Error::Unknown { reason: "an outcome that this version does not know".into() }),
        };
        Ok(reply.results.into_iter().map(outcome).collect())
    }

    /// A handle to a task that was enqueued earlier or elsewhere.
    pub fn task<T: Task>(&self, id: impl Into<TaskId>) -> Handle<T> {
        let enqueued = Enqueued { id: id.into(), state: TaskState::Ready, is_duplicate: false };
        Handle { enqueued, client: self.clone(), kind: PhantomData }
    }

    async fn send(&self, new: NewTask) -> Result<Enqueued, Error> {
        let (task, _) = new.into_message()?;
        Enqueued::of(self.enqueues.enqueue(task).await?)
    }
}

/// Tasks that go in one message, and where their outcomes belong.
#[derive(Default)]
struct Part {
    tasks: Vec<grpc::Task>,
    bytes: usize,
    places: Vec<usize>,
}

impl Part {
    fn has_room(&self, bytes: usize) -> bool {
        self.tasks.is_empty() || (self.tasks.len() < MANY_MAX && self.bytes + bytes <= MANY_BYTES_MAX)
    }
}

/// All of them or none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Atomic {
    Yes,
    No,
}

/// A task that was enqueued: ask for its result or how it is.
pub struct Handle<T> {
    enqueued: Enqueued,
    client: Client,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Handle<T> {
        Handle { enqueued: self.enqueued.clone(), client: self.client.clone(), kind: PhantomData }
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.enqueued.id).finish()
    }
}

impl<T> Handle<T> {
    /// The task's id.
    pub fn id(&self) -> &TaskId {
        &self.enqueued.id
    }

    /// Whether a task with the same dedup key was there already: this is its handle.
    pub fn is_duplicate(&self) -> bool {
        self.enqueued.is_duplicate
    }

    /// What the task is now.
    pub async fn state(&self) -> Result<TaskState, Error> {
        self.info().await?.state.parse()
    }

    /// How far the task is, if its handler said so.
    pub async fn progress(&self) -> Result<Option<Progress>, Error> {
        let note = self.info().await?.progress;
        Ok(note.map(|note| Progress { percent: note.percent, note: note.note }))
    }

    /// All that is known of the task, its history included.
    pub async fn info(&self) -> Result<grpc::TaskInfo, Error> {
        self.client.admin().task(self.id()).await
    }

    /// Cancels the task: at once when it waits, by a word to its worker when it runs.
    pub async fn cancel(&self, reason: &str) -> Result<TaskState, Error> {
        self.client.admin().cancel(self.id(), reason).await
    }
}

impl<T: Task> Handle<T> {
    /// Waits until the task has ended, however long that takes. What its handler gave back, or
    /// [`Error::NotDone`] when it ended otherwise.
    pub async fn result(&self) -> Result<T::Output, Error> {
        loop {
            let task = self.client.admin().task_within(self.id(), RESULT_WAIT).await?;
            let state: TaskState = task.state.parse()?;
            if !state.is_ended() {
                continue;
            }
            if state != TaskState::Done {
                let error = task.error.unwrap_or_default();
                return Err(Error::NotDone { id: self.id().clone(), state, error });
            }
            let output = task.output.filter(|output| !output.is_empty());
            let output = output.unwrap_or_else(|| Bytes::from_static(b"null"));
            return serde_json::from_slice(&output).map_err(|error| Error::Json {
                what: format!("the output of {} {}", T::KIND, self.id()),
                reason: error.to_string(),
            });
        }
    }
}
