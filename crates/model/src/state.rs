//! What a task can be, and what can happen to it.

use std::fmt;

use crate::id::Fence;
use crate::name::WorkerName;
use crate::time::Millis;

/// A state by its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum StateKind {
    /// Waits until a time the caller asked for.
    Delayed = 1,
    /// Backs off after a failed attempt.
    Retrying = 2,
    /// Waits for the task before it of the same order key.
    Blocked = 3,
    /// May be claimed.
    Ready = 4,
    /// Held by a worker.
    Claimed = 5,
    /// Acked.
    Done = 6,
    /// Attempts used up; browsable, can be requeued.
    Dead = 7,
    /// Attempts used up in a queue that discards.
    Failed = 8,
    /// By a person, a purge or a discard.
    Cancelled = 9,
    /// Its time passed before it was claimed.
    Expired = 10,
}

impl StateKind {
    /// All of them, live ones first.
    pub const ALL: [StateKind; 10] = [
        StateKind::Delayed,
        StateKind::Retrying,
        StateKind::Blocked,
        StateKind::Ready,
        StateKind::Claimed,
        StateKind::Done,
        StateKind::Dead,
        StateKind::Failed,
        StateKind::Cancelled,
        StateKind::Expired,
    ];

    /// The state of a stored number.
    pub fn from_number(number: u8) -> Option<StateKind> {
        StateKind::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            StateKind::Delayed => "delayed",
            StateKind::Retrying => "retrying",
            StateKind::Blocked => "blocked",
            StateKind::Ready => "ready",
            StateKind::Claimed => "claimed",
            StateKind::Done => "done",
            StateKind::Dead => "dead",
            StateKind::Failed => "failed",
            StateKind::Cancelled => "cancelled",
            StateKind::Expired => "expired",
        }
    }

    /// The state of a word.
    pub fn from_word(word: &str) -> Option<StateKind> {
        StateKind::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether the task is over, unless somebody requeues it.
    pub fn is_ended(self) -> bool {
        self >= StateKind::Done
    }

    /// Whether it waits for its turn: live, and no worker holds it.
    pub fn is_waiting(self) -> bool {
        self <= StateKind::Ready
    }
}

impl fmt::Display for StateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a claim ended without ack or fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FreedReason {
    /// Its deadline passed. Uses up an attempt.
    Deadline = 1,
    /// The worker's beats stopped. Uses up an attempt.
    Silent = 2,
    /// The worker's connection closed. Uses up an attempt.
    Closed = 3,
    /// The worker said goodbye. Uses up none.
    Drained = 4,
    /// The worker gave it back. Uses up none.
    Released = 5,
    /// A person put it back, or removed the worker. Uses up none.
    PutBack = 6,
}

impl FreedReason {
    /// All of them.
    pub const ALL: [FreedReason; 6] = [
        FreedReason::Deadline,
        FreedReason::Silent,
        FreedReason::Closed,
        FreedReason::Drained,
        FreedReason::Released,
        FreedReason::PutBack,
    ];

    /// The word for it, in metrics and history.
    pub fn as_str(self) -> &'static str {
        match self {
            FreedReason::Deadline => "deadline",
            FreedReason::Silent => "silent",
            FreedReason::Closed => "closed",
            FreedReason::Drained => "drained",
            FreedReason::Released => "released",
            FreedReason::PutBack => "put_back",
        }
    }

    /// The reason of a stored number.
    pub fn from_number(number: u8) -> Option<FreedReason> {
        FreedReason::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Whether it costs the task an attempt.
    pub fn uses_attempt(self) -> bool {
        matches!(self, FreedReason::Deadline | FreedReason::Silent | FreedReason::Closed)
    }

    /// Whether it counts towards a poison pill. Silence does not: a network may be to blame.
    pub fn is_suspicious(self) -> bool {
        matches!(self, FreedReason::Deadline | FreedReason::Closed)
    }
}

/// What happened to a task: one line of its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It entered the shard.
    Enqueued {
        /// Into which state.
        state: StateKind,
    },
    /// Its delay, backoff or wait for its order key is over.
    BecameReady,
    /// Its turn in its order key came, but its own delay is not over.
    BecameDelayed,
    /// A worker took it.
    Claimed {
        /// Who.
        worker: WorkerName,
        /// Which attempt this is, from 1.
        attempt: u32,
        /// The fence of the claim.
        fence: Fence,
    },
    /// The claim ended without ack or fail.
    Freed {
        /// Who held it.
        worker: WorkerName,
        /// Why.
        reason: FreedReason,
        /// What the task is now.
        state: StateKind,
    },
    /// The worker reported an error.
    Failed {
        /// Who.
        worker: WorkerName,
        /// What the task is now: retrying, or ended.
        state: StateKind,
        /// The rest, in a place of its own: every event takes the room of the largest.
        failure: Box<Failure>,
    },
    /// The worker finished it.
    Acked {
        /// Who.
        worker: WorkerName,
    },
    /// Somebody asked the holder to stop.
    CancelRequested,
    /// It ended without a worker's word: cancelled, expired, dead.
    Ended {
        /// Which end.
        state: StateKind,
        /// Why, for people.
        reason: String,
    },
    /// It was brought back from an end.
    Requeued {
        /// Into which state.
        state: StateKind,
    },
}

/// What a worker said of a failed attempt, and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What it said.
    pub error: String,
    /// The backoff, when the task is retrying.
    pub retry_in: Millis,
}

impl Event {
    /// The word for it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Event::Enqueued { .. } => "enqueued",
            Event::BecameReady => "ready",
            Event::BecameDelayed => "delayed",
            Event::Claimed { .. } => "claimed",
            Event::Freed { .. } => "freed",
            Event::Failed { .. } => "failed",
            Event::Acked { .. } => "acked",
            Event::CancelRequested => "cancel_requested",
            Event::Ended { state, .. } => state.as_str(),
            Event::Requeued { .. } => "requeued",
        }
    }

    /// What the task is after it.
    pub fn state(&self) -> StateKind {
        match self {
            Event::Enqueued { state }
            | Event::Freed { state, .. }
            | Event::Failed { state, .. }
            | Event::Ended { state, .. }
            | Event::Requeued { state } => *state,
            Event::BecameReady => StateKind::Ready,
            Event::BecameDelayed => StateKind::Delayed,
            Event::Claimed { .. } | Event::CancelRequested => StateKind::Claimed,
            Event::Acked { .. } => StateKind::Done,
        }
    }
}

/// How far a task has come: its history leads there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stand {
    /// What it is.
    pub state: StateKind,
    /// Its last fence.
    pub fence: Fence,
    /// Attempts used up.
    pub attempts: u32,
}

impl Stand {
    /// Where a task stands after a line that says all of it: its enqueue, or a claim.
    pub fn at(event: &Event) -> Option<Stand> {
        match event {
            Event::Enqueued { state } => Some(Stand { state: *state, fence: Fence(0), attempts: 0 }),
            Event::Claimed { attempt, fence, .. } => {
                Some(Stand { state: StateKind::Claimed, fence: *fence, attempts: attempt.checked_sub(1)? })
            }
            _ => None,
        }
    }

    /// Where it stands after one more line; nothing if that cannot follow.
    pub fn after(self, event: &Event) -> Option<Stand> {
        let is_claimed = self.state == StateKind::Claimed;
        let (can_follow, attempts) = match event {
            Event::Enqueued { .. } => (false, 0),
            Event::BecameReady => (self.state < StateKind::Ready, self.attempts),
            Event::BecameDelayed => (self.state == StateKind::Blocked, self.attempts),
            Event::Claimed { .. } => {
                let claim = Stand::at(event)?;
                let can_follow = self.state == StateKind::Ready && self.attempts == claim.attempts;
                return can_follow.then_some(claim);
            }
            Event::Freed { reason, .. } => {
                (is_claimed, self.attempts.saturating_add(reason.uses_attempt().into()))
            }
            Event::Failed { .. } => (is_claimed, self.attempts.saturating_add(1)),
            Event::Acked { .. } | Event::CancelRequested => (is_claimed, self.attempts),
            // The line before may have said so too.
            Event::Ended { .. } => (true, self.attempts),
            Event::Requeued { .. } => (self.state.is_ended(), 0),
        };
        can_follow.then_some(Stand { state: event.state(), attempts, ..self })
    }
}
