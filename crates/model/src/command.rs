//! What can be asked of a shard. A log entry carries many of these.

use bytes::Bytes;

use crate::id::{Fence, SessionId, ShardId, TaskId};
use crate::key::{Digest, KeyHash};
use crate::name::{QueueName, WorkerName};
use crate::policy::{QueueSettings, RetryOverride};
use crate::state::FreedReason;
use crate::time::{Elapsed, Millis, WallTime};

/// Where in the log a command stands, and when its leader stamped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The entry's index.
    pub index: u64,
    /// The command's place in its entry.
    pub n: u32,
    /// The time that never jumps.
    pub elapsed: Elapsed,
    /// The time that people read.
    pub wall: WallTime,
}

/// When a new task may first be claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At once.
    #[default]
    Now,
    /// So long after the enqueue.
    After(Millis),
    /// At this time; one that has passed means at once.
    At(WallTime),
}

/// How long a unique key is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniqueUntil {
    /// Until the first claim.
    Claimed,
    /// Until the task has ended.
    Final,
}

/// A dedup key and how long it is remembered after the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dedup {
    /// The key.
    pub key: KeyHash,
    /// How long after the task's end a repeat is still one.
    pub window: Millis,
}

/// A unique key and how long it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unique {
    /// The key.
    pub key: KeyHash,
    /// How long.
    pub until: UniqueUntil,
}

/// A task to be enqueued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTask {
    /// Its id; the shard in it is the shard that gets the command.
    pub id: TaskId,
    /// Its queue.
    pub queue: QueueName,
    /// 32 bits of its kind, for filters.
    pub kind_hash: u32,
    /// What it is.
    pub digest: Digest,
    /// 0 is served first.
    pub priority: u8,
    /// What it asks for beside that. See [`Wishes::boxed`].
    pub wishes: Option<Box<Wishes>>,
    /// The envelope's bytes. The state machine hands them to whoever keeps them and reads nothing.
    pub envelope: Bytes,
}

impl NewTask {
    /// What it asks for.
    pub fn wishes(&self) -> &Wishes {
        self.wishes.as_deref().unwrap_or(&Wishes::NONE)
    }
}

/// What a task asks for. Most ask for nothing: a task on its way is small, and is moved often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// When it may first be claimed.
    pub start: Start,
    /// Tasks of one order key run one after the other.
    pub order_key: Option<KeyHash>,
    /// Tasks of one dedup key are one task.
    pub dedup: Option<Dedup>,
    /// Only one task at a time has this key.
    pub unique: Option<Unique>,
    /// How long a claim of it holds.
    pub hold: Option<Millis>,
    /// What it says of its retries.
    pub retry: RetryOverride,
    /// Not claimed later than this after the enqueue.
    pub expires_in: Option<Millis>,
    /// How long it stays readable after its end.
    pub retention: Option<Millis>,
}

impl Wishes {
    /// None at all.
    pub const NONE: Wishes = Wishes {
        start: Start::Now,
        order_key: None,
        dedup: None,
        unique: None,
        hold: None,
        retry: RetryOverride { attempts: None, base: None, cap: None, age_max: None },
        expires_in: None,
        retention: None,
    };

    /// In the one form in which a task has them: nothing where it asks for nothing.
    pub fn boxed(self) -> Option<Box<Wishes>> {
        (self != Wishes::NONE).then(|| Box::new(self))
    }
}

/// A task to be enqueued when another is acked. Its id is made by `apply`: the one in `task` only
/// names the shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowUp {
    /// Where it goes.
    pub shard: ShardId,
    /// What it is.
    pub task: NewTask,
}

/// A queue to claim from, with its weight; 0 for all means: in the given order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimQueue {
    /// Which.
    pub name: QueueName,
    /// How often, compared with the others.
    pub weight: u32,
}

/// Asks for ready tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// From which queues.
    pub queues: Vec<ClaimQueue>,
    /// For whom.
    pub worker: WorkerName,
    /// In which session, if any.
    pub session: Option<SessionId>,
    /// At most so many.
    pub max: u32,
    /// How long the claims hold; else the task's, else the queue's.
    pub hold: Option<Millis>,
    /// The same again within 60 s gets the same claims.
    pub request: Option<KeyHash>,
}

/// Asks for one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimById {
    /// Which.
    pub task: TaskId,
    /// For whom.
    pub worker: WorkerName,
    /// In which session, if any.
    pub session: Option<SessionId>,
    /// How long the claim holds; else the task's, else the queue's.
    pub hold: Option<Millis>,
    /// The same again within 60 s gets the same claim.
    pub request: Option<KeyHash>,
}

/// Says that a task is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Which.
    pub task: TaskId,
    /// By which claim.
    pub fence: Fence,
    /// What came out; empty for nothing.
    pub output: Bytes,
    /// What is enqueued with it.
    pub then: Vec<FollowUp>,
}

/// Says that an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fail {
    /// Which.
    pub task: TaskId,
    /// By which claim.
    pub fence: Fence,
    /// One line.
    pub error: String,
    /// The rest, such as a backtrace.
    pub detail: String,
    /// A backoff of the worker's choice.
    pub retry_in: Option<Millis>,
    /// No retry.
    pub fatal: bool,
}

/// Which tasks an action without a token may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnTask {
    /// Which.
    pub task: TaskId,
    /// Only while this is its last fence. A list that a person looked at may be old by now.
    pub fence: Option<Fence>,
}

/// One message of the outbox, on its way to another shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxMessage {
    /// Its number on the way from this source to this target, without gaps.
    pub seq: u64,
    /// The task, its id final.
    pub task: NewTask,
}

/// What can be asked of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Takes tasks in; with `atomic` all or none.
    Enqueue {
        /// The tasks, all of this shard.
        tasks: Vec<NewTask>,
        /// All or none.
        atomic: bool,
    },
    /// Gives ready tasks to a worker.
    Claim(Claim),
    /// Gives one ready task to a worker.
    ClaimById(ClaimById),
    /// Ends a task as done.
    Ack(Ack),
    /// Ends an attempt.
    Fail(Fail),
    /// Moves a claim's deadline to `hold` from now.
    Extend {
        /// Which task.
        task: TaskId,
        /// By which claim.
        fence: Fence,
        /// From now; else as at the claim.
        hold: Option<Millis>,
    },
    /// Gives a task back without an attempt.
    Release {
        /// Which task.
        task: TaskId,
        /// By which claim.
        fence: Fence,
        /// Not again before.
        delay: Millis,
    },
    /// Says how far a task is.
    Progress {
        /// Which task.
        task: TaskId,
        /// By which claim.
        fence: Fence,
        /// 0 to 100.
        percent: u8,
        /// For people who watch.
        note: String,
    },
    /// Takes a claim from its holder; the task waits again.
    PutBack(OnTask),
    /// Takes a claim from its holder, or a waiting or dead task from its queue; it ends as cancelled.
    Discard(OnTask),
    /// Ends a waiting task; asks the holder of a claimed one to stop.
    Cancel {
        /// Which.
        task: TaskId,
        /// Why, for people.
        reason: String,
    },
    /// Brings an ended task back.
    Requeue(OnTask),
    /// Cancels all that waits in a queue now, worked off by pulses.
    Purge {
        /// Which.
        queue: QueueName,
    },
    /// Frees all claims of a session.
    EndSession {
        /// Whose.
        worker: WorkerName,
        /// Which.
        session: SessionId,
        /// Why.
        reason: FreedReason,
    },
    /// A queue's settings, from the catalog.
    SetQueue {
        /// Which.
        queue: QueueName,
        /// The newest edition; an older one is ignored.
        settings: QueueSettings,
    },
    /// Forgets a queue that is empty; one that is not keeps its tasks under the default policy.
    DropQueue {
        /// Which.
        queue: QueueName,
        /// Newer than the settings it forgets.
        version: u64,
    },
    /// Follow-ups from another shard, in order, each once.
    Deliver {
        /// Where they come from.
        source: ShardId,
        /// In order of their numbers.
        messages: Vec<OutboxMessage>,
    },
    /// The target has these; the source may forget them.
    Delivered {
        /// Where they went.
        target: ShardId,
        /// Up to this number.
        upto: u64,
    },
    /// Does what is due, oldest first.
    Pulse {
        /// At most so many changes.
        limit: u32,
    },
}
