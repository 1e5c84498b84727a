//! What a node tells of itself and of its cluster.

use std::collections::BTreeMap;
use std::time::Duration;

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
    /// Some group has no leader, or too few voters.
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
    /// Where callers reach it; empty when that is not known.
    pub address: String,
    /// Where other nodes reach it; empty when that is not known.
    pub peer_address: String,
    /// The version of its program, as it last said.
    pub version: String,
    /// How it is.
    pub state: NodeState,
    /// How many groups it leads.
    pub leads: usize,
}

/// How a node is, as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It is heard.
    Up,
    /// It is not.
    Down,
    /// It is heard, and has not yet a copy of every group.
    Joining,
    /// It is stopping, or was told to leave the cluster.
    Leaving,
}

impl NodeState {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            NodeState::Up => "up",
            NodeState::Down => "down",
            NodeState::Joining => "joining",
            NodeState::Leaving => "leaving",
        }
    }
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
    /// Whether its vote counts, or it only learns.
    pub is_voter: bool,
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
    /// The other nodes, as this one reaches them.
    pub peers: Vec<PeerLine>,
    /// Its clock, among the others'.
    pub clock: ClockInfo,
}

/// Another node, as this one reaches it.
#[derive(Clone, Debug)]
pub struct PeerLine {
    /// Which.
    pub node: NodeId,
    /// Where other nodes reach it.
    pub address: String,
    /// The link to it.
    pub link: LinkWord,
    /// For how long it has been so.
    pub since: Millis,
    /// How long a message takes there and back, while it is up.
    pub round_trip: Option<Duration>,
    /// How long ago it last told of itself.
    pub last_status: Option<Millis>,
}

/// How a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkWord {
    /// Messages go through.
    Up,
    /// None do.
    Down,
    /// None do, and its process was seen to end.
    Gone,
}

impl LinkWord {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            LinkWord::Up => "up",
            LinkWord::Down => "down",
            LinkWord::Gone => "gone",
        }
    }
}

/// The clocks of all nodes that were heard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockInfo {
    /// Three or more clocks have a median; of two nobody knows which is right.
    pub is_median_known: bool,
    /// This node's clock is so far off that the median is used in its place.
    pub is_held: bool,
    /// How often this machine's clock jumped by more than a second.
    pub jumps: u64,
    /// How far each clock is ahead of the median; of this node's own, while there is none.
    pub offsets_ms: BTreeMap<NodeId, i64>,
}

/// How replication goes, as seen from this node.
#[derive(Clone, Debug, Default)]
pub struct ReplicationStats {
    /// This node's part in each group, the catalog first.
    pub groups: Vec<GroupStats>,
    /// The links to the other nodes.
    pub links: Vec<LinkStats>,
    /// How often a leader changed, over all groups.
    pub leader_changes: u64,
    /// Copies whose state differs from the majority's.
    pub diverged: usize,
    /// All clocks.
    pub clock: ClockInfo,
}

/// This node's part in one group.
#[derive(Clone, Debug)]
pub struct GroupStats {
    /// Which; 0 is the catalog.
    pub group: GroupId,
    /// leader, follower, learner, candidate or stopped.
    pub role: &'static str,
    /// The current term.
    pub term: u64,
    /// The last committed index.
    pub commit: u64,
    /// How many entries each member is behind, this one included.
    pub lags: Vec<(NodeId, u64)>,
}

/// The link to another node.
#[derive(Clone, Debug)]
pub struct LinkStats {
    /// Which.
    pub node: NodeId,
    /// Whether messages go through.
    pub is_up: bool,
    /// Connections made after the first.
    pub reconnects: u64,
    /// Bytes that came.
    pub bytes_in: u64,
    /// Bytes that went.
    pub bytes_out: u64,
    /// Bytes that wait to go.
    pub queued_bytes: u64,
    /// How long a message takes there and back, while it is up.
    pub round_trip: Option<Duration>,
}

/// This node's part in one group.
#[derive(Clone, Debug)]
pub struct GroupLine {
    /// Which; 0 is the catalog.
    pub group: GroupId,
    /// leader, follower, learner, candidate or stopped.
    pub role: &'static str,
    /// The current term.
    pub term: u64,
    /// Whom it voted for in this term. Nothing if it did not, or if that is not known since a restart.
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
    /// The newest hash of the state, and the index that it belongs to.
    pub hash: Option<(u64, u128)>,
    /// The other members.
    pub peers: Vec<NodeId>,
}
