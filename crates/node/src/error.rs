//! Why a node did not do what it was asked to.

use model::{Millis, Rejection, StateKind, TaskId, WorkerName};

/// Why a node said no, or could not say.
///
/// Cloned where one failed write is the answer to many calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request does not fit the state.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Nothing of that name.
    #[error("{0}")]
    NotFound(String),
    /// A token that this cluster never made.
    #[error("this token was not made by this cluster: use the one that came with the claim, unchanged")]
    InvalidToken,
    /// No such worker, or its session is over.
    #[error("worker {worker:?} has no such session: register it again with POST /v1/workers")]
    UnknownWorker {
        /// Who.
        worker: WorkerName,
    },
    /// Another process works under this name.
    #[error(
        "worker {worker:?} is connected already from host {host}, process {pid}: give each process a name of its own, or wait until that one has ended",
        host = host.as_deref().unwrap_or("unknown"),
        pid = pid.map_or("unknown".to_owned(), |pid| pid.to_string())
    )]
    NameTaken {
        /// Who.
        worker: WorkerName,
        /// Where the other one runs, if it said so.
        host: Option<String>,
        /// The other process, if it said so.
        pid: Option<u32>,
    },
    /// A task to be put back that nobody holds.
    #[error("task {id} is {state}: only a claimed task can be put back, and nobody holds this one")]
    NothingToPutBack {
        /// Which.
        id: TaskId,
        /// What it is.
        state: StateKind,
    },
    /// An atomic enqueue whose tasks have different places.
    #[error("these tasks live in different shards: give them one order key, or a queue with shards = 1")]
    NotOneShard,
    /// A payload larger than its queue allows.
    #[error("the payload has {bytes} bytes, its queue takes at most {bytes_max}: raise payload_bytes_max")]
    PayloadTooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// More in one request than a log entry takes.
    #[error(
        "what this request writes has {bytes} bytes, a log entry takes at most {bytes_max}: send fewer tasks in one request"
    )]
    EntryTooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// More at once than a named limit allows.
    #[error("too many {what}{}: retry later", match max {
        Some(max) => format!(" (at most {max})"),
        None => String::new(),
    })]
    TooManyRequests {
        /// Of what.
        what: &'static str,
        /// The limit, if it is a number of them.
        max: Option<usize>,
    },
    /// No new tasks while the state takes more memory than it may.
    #[error(
        "the tasks take {bytes} bytes of memory, at most {bytes_max} are allowed: let workers catch up or raise memory_bytes_max"
    )]
    MemoryFull {
        /// What they take.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// No new tasks while the disk is short of room.
    #[error("the disk has no room for new tasks: free some, it goes on by itself")]
    DiskFull,
    /// No leader could be reached. Nothing was changed.
    #[error("no leader answers for this shard: retry")]
    Unavailable,
    /// Nobody knows whether it was done.
    #[error(
        "no answer in time, it may have been done or not: retry with the same dedup key, token or request id"
    )]
    Timeout,
    /// The node cannot start, or cannot go on.
    #[error("{0}")]
    Broken(String),
}

impl Error {
    /// The stable code that programs read.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Rejected(rejection) => rejection.code(),
            Error::Invalid(_) => "invalid_request",
            Error::NotFound(_) => "not_found",
            Error::InvalidToken => "invalid_token",
            Error::UnknownWorker { .. } => "unknown_worker",
            Error::NameTaken { .. } => "not_unique",
            Error::NothingToPutBack { .. } => "not_claimed",
            Error::NotOneShard => "not_one_shard",
            Error::PayloadTooLarge { .. } | Error::EntryTooLarge { .. } => "payload_too_large",
            Error::TooManyRequests { .. } => "too_many_requests",
            Error::MemoryFull { .. } => "memory_full",
            Error::DiskFull => "disk_full",
            Error::Unavailable => "unavailable",
            Error::Timeout => "timeout",
            Error::Broken(_) => "internal",
        }
    }

    /// When it is worth trying again, where that is known.
    pub fn retry_after(&self) -> Option<Millis> {
        match self {
            Error::Rejected(Rejection::QueueFull { .. }) => Some(Millis::secs(2)),
            Error::TooManyRequests { .. } | Error::Unavailable | Error::NameTaken { .. } => {
                Some(Millis::secs(1))
            }
            Error::Rejected(Rejection::Moved { .. }) => Some(Millis(100)),
            Error::MemoryFull { .. } => Some(Millis::secs(5)),
            _ => None,
        }
    }
}
