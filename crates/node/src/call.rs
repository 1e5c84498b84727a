//! What the faces ask of a node, in checked values, and what it answers.

use bytes::Bytes;
use model::command::{ClaimQueue, UniqueUntil};
use model::{
    Fence, KindName, Millis, QueueName, QueuePolicy, RetryOverride, SessionId, ShardId, Start, StateKind,
    TaskId, WallTime, WorkerName,
};
use state_machine::view::{Depth, HistoryLine, TaskView, Totals};
use wire::envelope::Envelope;

/// How fresh what is looked at must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// Has all that was answered before, by any node. Needs the leaders.
    #[default]
    Linearizable,
    /// As the copy on this node is, perhaps a moment behind. Needs nobody.
    Stale,
}

/// A task as a caller describes it.
#[derive(Clone, Debug)]
pub struct TaskSpec {
    /// Its queue.
    pub queue: QueueName,
    /// Which handler it is for.
    pub kind: KindName,
    /// Its payload, as it came.
    pub payload: Bytes,
    /// What the payload is; nothing means JSON.
    pub content_type: Option<String>,
    /// What travels beside the payload.
    pub headers: Vec<(String, String)>,
    /// 0 is served first.
    pub priority: u8,
    /// When it may first be claimed.
    pub start: Start,
    /// Tasks of one order key run one after the other.
    pub order_key: Option<String>,
    /// Tasks of one dedup key are one task, for this long after the end.
    pub dedup: Option<(String, Millis)>,
    /// Only one task at a time has this key.
    pub unique: Option<(String, UniqueUntil)>,
    /// How long a claim of it holds.
    pub hold: Option<Millis>,
    /// What it says of its retries.
    pub retry: RetryOverride,
    /// Not claimed later than this.
    pub expires_in: Option<Millis>,
    /// How long it stays readable after its end.
    pub retention: Option<Millis>,
}

/// A task on its way in. Most ask for nothing, and are moved often: those are small.
#[derive(Clone, Debug)]
pub enum Given {
    /// One that asks for nothing.
    Plain(PlainTask),
    /// Any other.
    Other(Box<TaskSpec>),
}

/// A task that asks for nothing.
#[derive(Clone, Debug)]
pub struct PlainTask {
    /// Its queue.
    pub queue: QueueName,
    /// Which handler it is for.
    pub kind: KindName,
    /// Its payload, which is JSON.
    pub payload: Bytes,
    /// 0 is served first.
    pub priority: u8,
}

impl From<TaskSpec> for Given {
    fn from(task: TaskSpec) -> Given {
        // All fields by name: whoever adds one says here whether it is asked for.
        match task {
            TaskSpec {
                queue,
                kind,
                payload,
                priority,
                content_type: None,
                headers,
                start: Start::Now,
                order_key: None,
                dedup: None,
                unique: None,
                hold: None,
                retry: RetryOverride { attempts: None, base: None, cap: None, age_max: None },
                expires_in: None,
                retention: None,
            } if headers.is_empty() => Given::Plain(PlainTask { queue, kind, payload, priority }),
            task => Given::Other(Box::new(task)),
        }
    }
}

/// What a task's place hangs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    pub(crate) queue: &'a QueueName,
    pub(crate) order: Option<&'a str>,
    pub(crate) unique: Option<&'a str>,
    pub(crate) dedup: Option<&'a str>,
}

impl TaskSpec {
    pub(crate) fn keys(&self) -> Keys<'_> {
        Keys {
            queue: &self.queue,
            order: self.order_key.as_deref(),
            unique: self.unique.as_ref().map(|(key, _)| key.as_str()),
            dedup: self.dedup.as_ref().map(|(key, _)| key.as_str()),
        }
    }
}

impl Given {
    /// Its queue.
    pub fn queue(&self) -> &QueueName {
        match self {
            Given::Plain(task) => &task.queue,
            Given::Other(task) => &task.queue,
        }
    }

    pub(crate) fn keys(&self) -> Keys<'_> {
        match self {
            Given::Plain(task) => Keys { queue: &task.queue, order: None, unique: None, dedup: None },
            Given::Other(task) => task.keys(),
        }
    }

    /// Its payload.
    pub fn payload(&self) -> &Bytes {
        match self {
            Given::Plain(task) => &task.payload,
            Given::Other(task) => &task.payload,
        }
    }
}

/// An answer and the log positions that it stands on.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    /// The answer.
    pub value: T,
    /// The last index of each shard that was written, for `Windlass-Index`.
    pub indexes: Vec<(ShardId, u64)>,
}

/// Asks for ready tasks.
#[derive(Clone, Debug)]
pub struct ClaimCall {
    /// From which queues.
    pub queues: Vec<ClaimQueue>,
    /// For whom.
    pub worker: WorkerName,
    /// In which session.
    pub session: Option<SessionId>,
    /// At most so many.
    pub max: u32,
    /// How long the claims hold.
    pub hold: Option<Millis>,
    /// How long to wait for the first one.
    pub wait: Millis,
    /// The same again within 60 s gets the same claims.
    pub request_id: Option<String>,
}

/// Asks for one task.
#[derive(Clone, Debug)]
pub struct ClaimByIdCall {
    /// Which.
    pub task: TaskId,
    /// For whom.
    pub worker: WorkerName,
    /// In which session.
    pub session: Option<SessionId>,
    /// How long the claim holds.
    pub hold: Option<Millis>,
    /// The same again within 60 s gets the same claim.
    pub request_id: Option<String>,
}

/// A task in a worker's hands.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Which.
    pub id: TaskId,
    /// Its queue.
    pub queue: QueueName,
    /// What it is.
    pub envelope: Envelope,
    /// Its priority.
    pub priority: u8,
    /// Which attempt this is.
    pub attempt: u32,
    /// What the worker acks with.
    pub token: String,
    /// For handing to other systems.
    pub fence: Fence,
    /// When the claim ends.
    pub deadline: WallTime,
    /// How long it holds, from the claim on; 0 when the shard's leader does not say.
    pub hold: Millis,
    /// When it was enqueued.
    pub enqueued_at: WallTime,
}

/// Says that a task is done.
#[derive(Clone, Debug)]
pub struct AckCall {
    /// By which claim.
    pub token: String,
    /// What came out, as JSON; empty for nothing.
    pub output: Bytes,
    /// What is enqueued with it.
    pub then: Vec<TaskSpec>,
}

/// Says that an attempt failed.
#[derive(Clone, Debug)]
pub struct FailCall {
    /// By which claim.
    pub token: String,
    /// One line.
    pub error: String,
    /// The rest.
    pub detail: String,
    /// A backoff of the worker's choice.
    pub retry_in: Option<Millis>,
    /// No retry.
    pub fatal: bool,
}

/// Moves a claim's deadline.
#[derive(Clone, Debug)]
pub struct ExtendCall {
    /// By which claim.
    pub token: String,
    /// From now; else as at the claim.
    pub hold: Option<Millis>,
}

/// Gives a task back.
#[derive(Clone, Debug)]
pub struct ReleaseCall {
    /// By which claim.
    pub token: String,
    /// Not again before.
    pub delay: Millis,
}

/// Says how far a task is.
#[derive(Clone, Debug)]
pub struct ProgressCall {
    /// By which claim.
    pub token: String,
    /// 0 to 100.
    pub percent: u8,
    /// For people who watch.
    pub note: String,
}

/// What an extend answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which task.
    pub id: TaskId,
    /// When the claim ends.
    pub deadline: WallTime,
    /// Whether the worker should stop.
    pub cancel_requested: bool,
}

/// A task with all that is kept of it.
#[derive(Clone, Debug)]
pub struct TaskDetail {
    /// Its execution.
    pub view: TaskView,
    /// Its envelope.
    pub envelope: Envelope,
    /// What came out.
    pub output: Option<Bytes>,
    /// Its last error's detail.
    pub detail: Option<String>,
    /// What happened, oldest first.
    pub history: Vec<HistoryLine>,
}

/// What a list shows of a task.
#[derive(Clone, Debug)]
pub struct TaskSummary {
    /// Its execution.
    pub view: TaskView,
    /// Its envelope.
    pub envelope: Envelope,
}

/// Which tasks a list or an action is about.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// Of this queue.
    pub queue: Option<QueueName>,
    /// In this state.
    pub state: Option<StateKind>,
    /// Of this kind.
    pub kind: Option<KindName>,
    /// With this order key (needs a queue).
    pub order_key: Option<String>,
    /// Claimed by this worker.
    pub worker: Option<WorkerName>,
    /// Claimed for at least this long.
    pub claimed_for: Option<Millis>,
    /// With this text in id, kind, keys, headers or payload.
    pub text: Option<String>,
}

/// One step of a list.
#[derive(Clone, Debug)]
pub struct TaskPage {
    /// What was found.
    pub tasks: Vec<TaskSummary>,
    /// How many tasks were looked at.
    pub looked_at: usize,
    /// Where to go on; opaque.
    pub cursor: Option<String>,
}

/// What is done by filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Bring back from an end.
    Requeue,
    /// End, fencing the holder.
    Discard,
    /// End when waiting, ask the holder when claimed.
    Cancel,
    /// Take from the holder.
    PutBack,
}

/// What one step of an action by filter did.
#[derive(Clone, Debug)]
pub struct Acted {
    /// How many fit the filter.
    pub matched: u64,
    /// How many were changed.
    pub changed: u64,
    /// Where to go on; nothing when this was the last step.
    pub cursor: Option<String>,
}

/// A queue over all shards.
#[derive(Clone, Debug)]
pub struct QueueInfo {
    /// Which.
    pub name: QueueName,
    /// Whether claims pass it by.
    pub paused: bool,
    /// Its policy.
    pub policy: QueuePolicy,
    /// Which edition of the policy.
    pub version: u64,
    /// Tasks by state.
    pub depth: Depth,
    /// How long the oldest ready task has waited.
    pub oldest_ready: Option<Millis>,
    /// How long the oldest claim has run.
    pub oldest_claimed: Option<Millis>,
    /// What it has seen.
    pub totals: Totals,
    /// Per second, over the last ten.
    pub rates: Rates,
}

/// How fast a queue moves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Tasks taken in.
    pub enqueued_per_s: f64,
    /// Tasks acked.
    pub done_per_s: f64,
    /// Attempts failed.
    pub failed_per_s: f64,
}

/// What a worker says of itself.
#[derive(Clone, Debug)]
pub struct WorkerFacts {
    /// Its name.
    pub name: WorkerName,
    /// Where it runs.
    pub host: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
    /// A random number of its own, which tells it from others of the same name, host and process.
    pub instance: Option<u64>,
    /// How many tasks it runs at once.
    pub slots: u32,
    /// Which queues it claims from.
    pub queues: Vec<QueueName>,
    /// What people want to know of it.
    pub labels: Vec<(String, String)>,
    /// Which version it is.
    pub version: Option<String>,
    /// How often it beats.
    pub beat: Millis,
    /// A session to go on with, after a lost connection.
    pub session: Option<SessionId>,
}

/// What a worker is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// Go on.
    Running,
    /// Claim nothing more, finish what runs.
    Draining,
    /// Stop now, releasing what runs.
    Stopping,
    /// It is gone.
    Lost,
}

/// What a beat answers.
#[derive(Clone, Debug)]
pub struct BeatAnswer {
    /// What the worker shall do.
    pub state: WorkerState,
    /// Which tasks somebody wants stopped; they are still the worker's.
    pub cancel: Vec<(TaskId, Fence)>,
    /// Which tasks are the worker's no more.
    pub lost: Vec<(TaskId, Fence)>,
}

/// A worker in the registry.
#[derive(Clone, Debug)]
pub struct WorkerInfo {
    /// What it said.
    pub facts: WorkerFacts,
    /// Its session.
    pub session: SessionId,
    /// What it was asked to do.
    pub state: WorkerState,
    /// When it last beat.
    pub last_beat: WallTime,
    /// What it holds.
    pub claims: Vec<(TaskId, Fence)>,
}

/// One page of the workers.
#[derive(Clone, Debug)]
pub struct WorkerPage {
    /// Room for running tasks over all workers.
    pub slots: crate::info::Slots,
    /// Those of this page, by name.
    pub workers: Vec<WorkerInfo>,
    /// Where to go on, if there are more.
    pub cursor: Option<String>,
}

impl TaskSpec {
    /// A task with a kind and an empty JSON payload, and no wishes.
    pub fn new(queue: QueueName, kind: KindName) -> TaskSpec {
        TaskSpec {
            queue,
            kind,
            payload: Bytes::from_static(b"null"),
            content_type: None,
            headers: Vec::new(),
            priority: model::limits::PRIORITY_DEFAULT,
            start: Start::Now,
            order_key: None,
            dedup: None,
            unique: None,
            hold: None,
            retry: RetryOverride::default(),
            expires_in: None,
            retention: None,
        }
    }
}

impl WorkerFacts {
    /// A worker of which nothing is known but its name.
    pub fn named(name: WorkerName) -> WorkerFacts {
        WorkerFacts {
            name,
            host: None,
            pid: None,
            instance: None,
            slots: 0,
            queues: Vec::new(),
            labels: Vec::new(),
            version: None,
            beat: model::limits::BEAT_MAX,
            session: None,
        }
    }
}

impl WorkerState {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            WorkerState::Running => "running",
            WorkerState::Draining => "draining",
            WorkerState::Stopping => "stopping",
            WorkerState::Lost => "lost",
        }
    }
}
