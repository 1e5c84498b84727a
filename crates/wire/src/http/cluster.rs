//! `GET /v1/cluster` and `GET /v1/node`: how the cluster is, and how this node sees it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::task::ReasonReply;
use super::time::Time;
use super::value::Ms;
use super::worker::SlotsReply;

/// How the cluster is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClusterReply {
    /// Tells clusters apart.
    pub cluster_id: String,
    /// The version of this node.
    pub version: String,
    /// In one word.
    pub status: ClusterStatusWord,
    /// Why it is not healthy.
    pub reasons: Vec<ReasonReply>,
    /// Room for running tasks.
    pub slots: SlotsReply,
    /// The servers.
    pub nodes: Vec<ClusterNodeReply>,
    /// The shards.
    pub shards: Vec<ShardReply>,
}

/// How the cluster is, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClusterStatusWord {
    /// All is well.
    Healthy,
    /// It works, with less than it should have.
    Degraded,
    /// Some tasks cannot be reached.
    Unavailable,
}

/// A server of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterNodeReply {
    /// Its number.
    pub id: u64,
    /// Where callers reach it; empty when that is not known.
    pub address: String,
    /// `up`, `down`, `joining` or `leaving`.
    pub state: String,
    /// How many groups it leads, the catalog included.
    pub leads: u64,
    /// Where other nodes reach it; empty when that is not known.
    #[serde(default)]
    pub peer_address: String,
    /// The version of its program; empty when it was not heard yet.
    #[serde(default)]
    pub version: String,
}

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShardReply {
    /// Its number.
    pub id: u16,
    /// Which node leads it.
    pub leader: Option<u64>,
    /// The leader's term.
    pub term: u64,
    /// Up to which index its log is committed.
    pub commit: u64,
    /// Its replicas.
    pub replicas: Vec<ReplicaReply>,
}

/// A replica of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaReply {
    /// On which node.
    pub node: u64,
    /// Up to which index it has applied.
    pub applied: u64,
    /// How many entries it is behind.
    pub lag: u64,
    /// `voter` or `learner`.
    #[serde(default)]
    pub role: String,
}

/// This node alone, quorum or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeReply {
    /// Its number.
    pub id: u64,
    /// Its version.
    pub version: String,
    /// Since when it runs.
    pub started_at: Time,
    /// For how long.
    pub uptime_ms: Ms,
    /// Whether it serves everything.
    pub ready: bool,
    /// Why it does not.
    pub reason: Option<String>,
    /// Its groups; 0 is the catalog.
    pub groups: Vec<GroupReply>,
    /// The other nodes, as this one reaches them.
    #[serde(default)]
    pub peers: Vec<PeerReply>,
    /// Its clock among the others'.
    #[serde(default)]
    pub clock: ClockReply,
}

/// Another node, as this one reaches it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PeerReply {
    /// Its number.
    pub node: u64,
    /// Where other nodes reach it.
    pub address: String,
    /// The link to it: `up`, `down`, or `gone` when its process was seen to end.
    pub link: String,
    /// For how long the link has been so.
    pub since_ms: Ms,
    /// How long a message takes there and back, while the link is up.
    pub round_trip_ms: Option<f64>,
    /// How long ago it last told of itself.
    pub last_status_ms: Option<Ms>,
}

/// A node's clock among the others'.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClockReply {
    /// How far this node's clock is ahead of the median; null while fewer than three clocks are known.
    pub offset_ms: Option<i64>,
    /// It is so far off that the median is used in its place.
    pub held: bool,
    /// How often it jumped by more than a second.
    pub jumps: u64,
}

/// A group as this node sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GroupReply {
    /// Its number; 0 is the catalog.
    pub id: u16,
    /// `leader`, `follower`, `candidate`, `learner` or `stopped`.
    pub role: String,
    /// The term.
    pub term: u64,
    /// For whom it voted in this term; null if it did not, or if that is not known since a restart.
    pub voted_for: Option<u64>,
    /// Who leads, as far as it knows.
    pub leader: Option<u64>,
    /// Up to which index its log is committed.
    pub commit: u64,
    /// Up to which index it has applied.
    pub applied: u64,
    /// The index of its last checkpoint.
    pub last_checkpoint: u64,
    /// The newest hash of its state: copies that have the same index have the same hash.
    #[serde(default)]
    pub hash: Option<HashReply>,
    /// When it last heard from the leader.
    pub last_heartbeat: Option<Time>,
    /// When a leader was last elected.
    pub last_election: Option<Time>,
    /// The other members.
    pub peers: Vec<u64>,
}

/// A state's hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HashReply {
    /// After this entry.
    pub index: u64,
    /// The hash, in hexadecimal digits.
    pub hash: String,
}

/// What `/livez` and `/readyz` answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthReply {
    /// `ok`.
    pub status: String,
}
