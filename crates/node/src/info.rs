//! What a node tells of itself and of its cluster.

use model::{GroupId, Millis, NodeId, ShardId, WallTime};

/// A fact and the sentence for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyLine {
    /// For programs.
    pub code: &'static str,
    /// For people.
    pub text: String,
}

/// How a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// All is as it should be.
    Healthy,
    /// It works, and something needs a look.
    Degraded,
    /// Some shard has no leader.
    Unavailable,
}

impl Health {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Health::Healthy => "healthy",
            Health::Degraded => "degraded",
            Health::Unavailable => "unavailable",
        }
    }
}

/// Room for running tasks over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// Free ones, of running workers.
    pub open: u64,
    /// All of them, of running workers.
    pub total: u64,
}

/// The whole cluster, as this node sees it.
#[derive(Clone, Debug)]
pub struct ClusterInfo {
    /// Tells clusters apart.
    pub cluster_id: u128,
    /// The version of this program.
    pub version: &'static str,
    /// How it is.
    pub status: Health,
    /// What is not as it should be.
    pub reasons: Vec<WhyLine>,
    /// Room for running tasks.
    pub slots: Slots,
    /// Its nodes.
    pub nodes: Vec<NodeLine>,
    /// Its shards.
    pub shards: Vec<ShardLine>,
}

/// A node of a cluster.
#[derive(Clone, Debug)]
pub struct NodeLine {
    /// Which.
    pub id: NodeId,
    /// Whether it is heard: `up` or `down`.
    pub state: &'static str,
    /// How many groups it leads.
    pub leads: usize,
}

/// A shard of a cluster.
#[derive(Clone, Debug)]
pub struct ShardLine {
    /// Which.
    pub id: ShardId,
    /// Who leads it.
    pub leader: Option<NodeId>,
    /// In which term.
    pub term: u64,
    /// The last committed index.
    pub commit: u64,
    /// Its replicas.
    pub replicas: Vec<ReplicaLine>,
}

/// One replica of a shard.
#[derive(Clone, Debug)]
pub struct ReplicaLine {
    /// Where.
    pub node: NodeId,
    /// The last applied index.
    pub applied: u64,
    /// How many entries it is behind.
    pub lag: u64,
}

/// This node alone, quorum or not.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// Which.
    pub node: NodeId,
    /// The version of this program.
    pub version: &'static str,
    /// Since when it runs.
    pub started_at: WallTime,
    /// For how long.
    pub uptime: Millis,
    /// Its groups, the catalog first.
    pub groups: Vec<GroupLine>,
}

/// This node's part in one group.
#[derive(Clone, Debug)]
pub struct GroupLine {
    /// Which; 0 is the catalog.
    pub group: GroupId,
    /// leader, follower, learner or candidate.
    pub role: &'static str,
    /// The current term.
    pub term: u64,
    /// Whom it voted for in this term.
    pub voted_for: Option<NodeId>,
    /// Who leads.
    pub leader: Option<NodeId>,
    /// When the leader was last heard; for a leader, when a quorum last was.
    pub last_heartbeat: Option<WallTime>,
    /// When the leader last changed, as seen here.
    pub last_election: Option<WallTime>,
    /// The last committed index.
    pub commit: u64,
    /// The last applied index.
    pub applied: u64,
    /// The index of the last checkpoint.
    pub last_checkpoint: u64,
    /// The other members.
    pub peers: Vec<NodeId>,
}
