//! What a replica says of itself.

use std::time::Duration;

use model::{GroupId, MemberId};

use crate::hash_points::HashPoint;

/// What a replica is to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It decides the order of entries.
    Leader,
    /// It follows the leader.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It follows without a vote.
    Learner,
    /// It has stopped.
    Stopped,
}

impl Role {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Learner => "learner",
            Role::Stopped => "stopped",
        }
    }
}

/// What a replica says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its group.
    pub group: GroupId,
    /// Which member it is.
    pub member: MemberId,
    /// What it is.
    pub role: Role,
    /// The term it knows.
    pub term: u64,
    /// Who leads, if known.
    pub leader: Option<MemberId>,
    /// Whom it voted for in this term. Nothing if it did not, or if that is not known since a restart.
    pub voted_for: Option<MemberId>,
    /// How long ago the leader was last heard; for a leader, a quorum.
    pub heard: Option<Duration>,
    /// Who votes.
    pub voters: Vec<MemberId>,
    /// Who follows without a vote.
    pub learners: Vec<MemberId>,
    /// The last entry in its log.
    pub last: Option<u64>,
    /// The last entry that is safe.
    pub committed: Option<u64>,
    /// The last entry that is applied.
    pub applied: Option<u64>,
    /// The last entry in its checkpoint.
    pub checkpointed: Option<u64>,
    /// The last entry that has gone from its log.
    pub purged: Option<u64>,
    /// Bytes of entries applied since the checkpoint began.
    pub log_bytes: u64,
    /// Bytes of envelopes in the cache.
    pub envelope_cache_bytes: u64,
    /// The longest time that a checkpoint kept the machine from working.
    pub stall_max: Duration,
    /// The state's hash at certain indexes, oldest first.
    pub hash_points: Vec<HashPoint>,
    /// Why it stopped, if it did.
    pub failure: Option<String>,
}
