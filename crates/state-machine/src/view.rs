//! What a shard shows of itself. Reads cost what they return, or a named number of looks.

use model::{
    Event, Fence, KeyHash, Millis, QueueName, QueueSettings, SessionId, StateKind, TaskId, WallTime,
    WorkerName,
};

/// A task without its envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskView {
    /// Which.
    pub id: TaskId,
    /// Its queue.
    pub queue: QueueName,
    /// What it is.
    pub state: StateKind,
    /// 0 is served first.
    pub priority: u8,
    /// Attempts used up; a running one is not, yet.
    pub attempts: u32,
    /// Attempts in all.
    pub attempts_max: u32,
    /// 32 bits of its kind.
    pub kind_hash: u32,
    /// Its last fence.
    pub fence: Fence,
    /// When it was enqueued.
    pub enqueued_at: WallTime,
    /// When it becomes ready, if it waits for a time.
    pub due: Option<WallTime>,
    /// When it expires, if it does.
    pub expires_at: Option<WallTime>,
    /// When it ended, if it has.
    pub ended_at: Option<WallTime>,
    /// Who holds it, if anybody.
    pub claim: Option<ClaimView>,
}

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimView {
    /// Who holds it.
    pub worker: WorkerName,
    /// In which session.
    pub session: Option<SessionId>,
    /// Since when.
    pub since: WallTime,
    /// Until when.
    pub deadline: WallTime,
    /// Whether the holder was asked to stop.
    pub cancel_requested: bool,
    /// How far it is.
    pub progress: Option<(u8, String)>,
}

/// Which tasks a list shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this queue.
    pub queue: Option<QueueName>,
    /// In this state.
    pub state: Option<StateKind>,
    /// With a kind of this hash; the caller compares the kind itself.
    pub kind_hash: Option<u32>,
    /// With this order key.
    pub order_key: Option<KeyHash>,
    /// Claimed by this worker.
    pub worker: Option<WorkerName>,
    /// Claimed for at least this long.
    pub claimed_for: Option<Millis>,
}

/// One step of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// What was found.
    pub tasks: Vec<TaskView>,
    /// How many tasks were looked at.
    pub looked_at: usize,
    /// Where to go on; nothing when this was the last step.
    pub cursor: Option<Cursor>,
}

/// Where a list goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Which of the shard's lists; meaningful to the shard alone.
    pub list: u64,
    /// After this task.
    pub after: Option<TaskId>,
}

/// How many tasks are in each state, in the order of [`StateKind::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth(pub [u64; 10]);

impl Depth {
    /// How many are in `state`.
    pub fn of(&self, state: StateKind) -> u64 {
        self.0[state as usize - 1]
    }
}

/// What a queue has seen, since it was made; survives restart and pruning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tasks taken in.
    pub enqueued: u64,
    /// Tasks acked.
    pub done: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Tasks that became dead.
    pub dead: u64,
    /// Claims freed.
    pub freed: u64,
}

/// A queue, in one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Which.
    pub name: QueueName,
    /// Policy and pause.
    pub settings: QueueSettings,
    /// Tasks by state.
    pub depth: Depth,
    /// Since when the oldest ready task waits.
    pub oldest_ready: Option<WallTime>,
    /// Since when the oldest claim runs.
    pub oldest_claimed: Option<WallTime>,
    /// What it has seen.
    pub totals: Totals,
}

/// What a queue could give a claim now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyHint {
    /// The best priority that is ready.
    pub priority: u8,
    /// Since when its oldest waits.
    pub since: WallTime,
    /// How many are ready, of any priority.
    pub count: u64,
}

/// Why a task is not being worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It waits for a time that the caller asked for.
    Delayed {
        /// Until when.
        due: WallTime,
    },
    /// It backs off.
    BackingOff {
        /// Until when.
        due: WallTime,
        /// Attempts used up.
        attempts: u32,
        /// Attempts in all.
        attempts_max: u32,
    },
    /// An earlier task of its order key has not ended.
    OrderKeyBusy {
        /// The one at the head.
        holder: TaskId,
        /// What that one is.
        holder_state: StateKind,
        /// How many are before it.
        before: u64,
    },
    /// Its queue is paused.
    Paused,
    /// Others of its queue come first.
    InLine {
        /// How many ready ones have a better priority, or the same.
        ahead_max: u64,
    },
    /// Nobody asks for it.
    NoWorker,
    /// A worker holds it.
    Held {
        /// Who.
        worker: WorkerName,
        /// Until when.
        deadline: WallTime,
        /// Whether only a person frees it.
        manual: bool,
    },
    /// It is over.
    Ended {
        /// How.
        state: StateKind,
    },
}

/// A claim of a session, for comparing with what its worker says it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionClaim {
    /// Which task.
    pub task: TaskId,
    /// The claim's fence.
    pub fence: Fence,
    /// Whether the holder was asked to stop.
    pub cancel_requested: bool,
}

/// A line of a task's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryLine {
    /// When.
    pub at: WallTime,
    /// At which index of the log.
    pub index: u64,
    /// What.
    pub event: Event,
}
