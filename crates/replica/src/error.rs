//! What can go wrong in a replica, and what the caller does about it.

use model::{GroupId, NodeId};

/// Why a replica could not do what was asked. A command's own "no" is a [`model::Rejection`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Another node leads. Nothing happened.
    #[error("this node does not lead the group: {}", match leader {
        Some(leader) => format!("ask node {leader}"),
        None => "no leader is known, retry".to_owned(),
    })]
    NotLeader {
        /// Who leads, if known.
        leader: Option<NodeId>,
    },
    /// The group has no leader with a quorum. Nothing happened.
    #[error("the group has no leader: retry later")]
    Unavailable,
    /// The answer did not come in time: it may have happened, and may still happen.
    #[error("no answer in time, the outcome is unknown: ask again with the same key, token or request id")]
    Timeout,
    /// The replica is stopping or has stopped. Nothing happened.
    #[error("the replica has stopped: restart the node or ask another one")]
    Stopped,
    /// More is waiting than can be taken in. Nothing happened.
    #[error("too much is waiting for the log: retry later")]
    Full,
    /// A command is larger than the log takes. Nothing happened.
    #[error("a command of {bytes} bytes is too large: at most {bytes_max} are allowed")]
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The members asked for cannot be the group's. Nothing happened.
    #[error("group {group}: {what}")]
    Members {
        /// Which group.
        group: GroupId,
        /// Why not.
        what: String,
    },
    /// A message of another member cannot be understood. Nothing happened.
    #[error("a message of another member cannot be understood ({what}): it may run another version")]
    Malformed {
        /// What is wrong with it.
        what: String,
    },
    /// The disk failed, or what is on it is not what was written.
    #[error("group {group}: {what}")]
    Storage {
        /// Which group.
        group: GroupId,
        /// What failed, and what to do.
        what: String,
    },
}

impl Error {
    pub(crate) fn malformed(what: impl std::fmt::Display) -> Error {
        Error::Malformed { what: what.to_string() }
    }
}

/// What this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
