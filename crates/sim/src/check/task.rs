//! All that was said about one task, small enough to keep for a million of them.

use std::fmt;

use model::{StateKind, TaskId};

use super::facts::{Name, Names};
use crate::history::Verb;

/// After everything: when a call without an answer may be done at the latest.
pub(super) const NEVER: u64 = u64::MAX;

/// What a client heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Ok,
    /// `not_found`.
    NotFound,
    /// `stale_token`, `not_claimed` or `already_ended`.
    NotHeld,
    /// Any other refusal.
    Refused,
    Unknown,
}

/// When a call was made, by whom, and what it heard.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    pub line: u32,
    pub client: Name,
    pub verb: Verb,
    pub heard: Heard,
    pub start: u64,
    /// When it was over: whatever it did was done. [`NEVER`] without an answer.
    pub end: u64,
}

impl When {
    pub(super) fn is_ok(&self) -> bool {
        self.heard == Heard::Ok
    }

    /// Whether it was done, or may have been.
    pub(super) fn may_be(&self) -> bool {
        matches!(self.heard, Heard::Ok | Heard::Unknown)
    }

    /// Whether it was over before the other began.
    pub(super) fn before(&self, other: &When) -> bool {
        self.end < other.start
    }

    /// For people: verb, who, where and when.
    pub(super) fn tell<'a>(&'a self, names: &'a Names) -> Told<'a> {
        Told(self, names)
    }
}

/// See [`When::tell`].
pub(super) struct Told<'a>(&'a When, &'a Names);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Told(when, names) = self;
        let (verb, client) = (when.verb.as_str(), names.text(when.client));
        write!(f, "{verb} by {client} (line {}, {}", when.line, at(when.start))?;
        match when.end {
            NEVER => f.write_str(", no answer)"),
            end => write!(f, " to {})", at(end)),
        }
    }
}

/// A moment, for people.
pub(super) fn at(us: u64) -> impl fmt::Display {
    struct At(u64);
    impl fmt::Display for At {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}.{:06} s", self.0 / 1_000_000, self.0 % 1_000_000)
        }
    }
    At(us)
}

/// What was done to a task, or seen of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Enqueued {
        duplicate: bool,
    },
    Claimed {
        fence: u64,
        attempt: u32,
        hold_ms: Option<u64>,
        worker: Name,
        session: Option<Name>,
        request: Option<Name>,
    },
    Acked {
        fence: u64,
    },
    Failed {
        fence: u64,
        retry_in_ms: Option<u64>,
        fatal: bool,
        state: Option<StateKind>,
        attempt: Option<u32>,
    },
    Released {
        fence: u64,
        delay_ms: u64,
        state: Option<StateKind>,
        attempt: Option<u32>,
    },
    Extended {
        fence: u64,
        hold_ms: Option<u64>,
    },
    Progressed {
        fence: u64,
    },
    PutBack,
    Discarded,
    Cancelled {
        state: Option<StateKind>,
    },
    Requeued,
    Seen {
        state: Option<StateKind>,
    },
}

impl What {
    /// The fence that the holder showed.
    pub(super) fn shown(&self) -> Option<u64> {
        match *self {
            What::Acked { fence }
            | What::Failed { fence, .. }
            | What::Released { fence, .. }
            | What::Extended { fence, .. }
            | What::Progressed { fence } => Some(fence),
            _ => None,
        }
    }

    /// The fence, shown or given.
    pub(super) fn fence(&self) -> Option<u64> {
        match *self {
            What::Claimed { fence, .. } => Some(fence),
            _ => self.shown(),
        }
    }

    /// Whether the holder let go with it.
    pub(super) fn settles(&self) -> bool {
        matches!(self, What::Acked { .. } | What::Failed { .. } | What::Released { .. })
    }
}

/// One of them, with its call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Act {
    pub when: When,
    pub what: What,
}

/// All that was said about one task.
pub(super) struct Task {
    pub id: TaskId,
    /// Its queue and payload, if anybody said so.
    pub queue: Option<Name>,
    pub payload: Option<u128>,
    pub acts: Vec<Act>,
}

impl Task {
    pub(super) fn new(id: TaskId) -> Task {
        Task { id, queue: None, payload: None, acts: Vec::new() }
    }
}
