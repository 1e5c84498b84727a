//! `POST /v1/cluster/…`: what a person asks of the cluster's nodes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/cluster/transfer`: moves the leadership of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"shard": 1, "node": 2}))]
pub struct TransferRequest {
    /// Which; 0 is the catalog.
    pub shard: u16,
    /// Who shall lead it; whoever has most of its log unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u64>,
}

/// `POST /v1/cluster/leave`: takes a node out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"node": 4}))]
pub struct LeaveRequest {
    /// Which, dead or alive.
    pub node: u64,
}

/// `POST /v1/cluster/promote`: gives a node a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"node": 4}))]
pub struct PromoteRequest {
    /// Which.
    pub node: u64,
    /// In this shard only; 0 is the catalog.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<u16>,
}

/// `POST /v1/cluster/rebalance`: nothing to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RebalanceRequest {}

/// What each of them answers: it is asked for; `GET /v1/cluster` shows when it is so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AskedReply {
    /// `asked`.
    pub status: String,
}
