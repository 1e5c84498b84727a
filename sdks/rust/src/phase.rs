//! Where a worker is in its life, and what holds for one of its streams only.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::Grpc;

/// Where the worker is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// Claims nothing more and waits for what runs, at most until then.
    Draining {
        cancel_at: Option<Instant>,
    },
    /// Has told the handlers to stop.
    Cancelling {
        release_at: Instant,
    },
    /// Nothing runs any more: what is left to say is said.
    Leaving {
        give_up_at: Instant,
    },
}

/// What holds for one stream only.
#[derive(Default)]
pub(crate) struct OnStream {
    /// Tasks that it brought.
    pub(crate) received: u64,
    /// Credit that is open.
    pub(crate) credit: u32,
    pub(crate) outcomes_max: usize,
    pub(crate) beat: Duration,
    pub(crate) idle_beat: Duration,
    pub(crate) beat_at: Option<Instant>,
    /// Since when a beat waits for its answer.
    pub(crate) unanswered_since: Option<Instant>,
    pub(crate) said_goodbye: bool,
    /// Other calls to the same server.
    pub(crate) grpc: Option<Grpc>,
    /// Whether the server knows that nothing more is wanted.
    pub(crate) is_drain_known: bool,
    /// Since when the server says that something does not work.
    pub(crate) unavailable_since: Option<Instant>,
}

impl Phase {
    /// Its word, for people.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Phase::Running => "running",
            Phase::Draining { .. } => "draining",
            Phase::Cancelling { .. } | Phase::Leaving { .. } => "stopping",
        }
    }

    /// When it ends by itself.
    pub(crate) fn ends_at(self) -> Option<Instant> {
        match self {
            Phase::Running => None,
            Phase::Draining { cancel_at } => cancel_at,
            Phase::Cancelling { release_at } => Some(release_at),
            Phase::Leaving { give_up_at } => Some(give_up_at),
        }
    }
}
