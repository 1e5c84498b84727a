//! `GET /v1/cluster` and `GET /v1/node`.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use model::NodeId;
use node::info::{ClockInfo, ClusterInfo, GroupLine, Health, NodeLine, PeerLine, ShardLine};
use wire::http::Time;
use wire::http::cluster::{
    ClockReply, ClusterNodeReply, ClusterReply, ClusterStatusWord, GroupReply, HashReply, NodeReply,
    PeerReply, ReplicaReply, ShardReply,
};
use wire::http::task::ReasonReply;
use wire::http::worker::SlotsReply;

use crate::app::App;
use crate::reply::json;

/// How the cluster is.
#[utoipa::path(
    get, path = "/v1/cluster", tag = "cluster",
    responses((status = 200, description = "the cluster, as this node sees it", body = ClusterReply))
)]
pub(crate) async fn cluster(State(app): State<App>) -> Response {
    json(StatusCode::OK, &reply(&app, &app.node.cluster()))
}

pub(crate) fn reply(app: &App, info: &ClusterInfo) -> ClusterReply {
    let reasons = info.reasons.iter();
    ClusterReply {
        cluster_id: format!("{:032x}", info.cluster_id),
        version: info.version.to_owned(),
        status: match info.status {
            Health::Healthy => ClusterStatusWord::Healthy,
            Health::Degraded => ClusterStatusWord::Degraded,
            Health::Unavailable => ClusterStatusWord::Unavailable,
        },
        reasons: reasons
            .map(|line| ReasonReply { code: line.code.to_owned(), text: line.text.clone() })
            .collect(),
        slots: SlotsReply { open: info.slots.open, total: info.slots.total },
        nodes: info.nodes.iter().map(|line| cluster_node(app, line)).collect(),
        shards: info.shards.iter().map(shard).collect(),
    }
}

fn cluster_node(app: &App, line: &NodeLine) -> ClusterNodeReply {
    // Until the catalog knows it, this node still knows where it listens itself.
    let own = line.address.is_empty() && line.id == app.node.id();
    ClusterNodeReply {
        id: line.id.0,
        address: if own { app.config.listen.to_string() } else { line.address.clone() },
        state: line.state.as_str().to_owned(),
        leads: line.leads as u64,
        peer_address: line.peer_address.clone(),
        version: line.version.clone(),
    }
}

fn shard(line: &ShardLine) -> ShardReply {
    let replicas = line.replicas.iter();
    ShardReply {
        id: line.id.number(),
        leader: line.leader.map(|node| node.0),
        term: line.term,
        commit: line.commit,
        replicas: replicas
            .map(|replica| ReplicaReply {
                node: replica.node.0,
                applied: replica.applied,
                lag: replica.lag,
                role: if replica.is_voter { "voter" } else { "learner" }.to_owned(),
            })
            .collect(),
    }
}

/// This node alone, quorum or not.
#[utoipa::path(
    get, path = "/v1/node", tag = "cluster",
    responses((status = 200, description = "this node", body = NodeReply))
)]
pub(crate) async fn node(State(app): State<App>) -> Response {
    json(StatusCode::OK, &this_node(&app))
}

pub(crate) fn this_node(app: &App) -> NodeReply {
    let info = app.node.info();
    let ready = app.node.ready();
    NodeReply {
        id: info.node.0,
        version: info.version.to_owned(),
        started_at: Time(info.started_at),
        uptime_ms: info.uptime.into(),
        ready: ready.is_ok(),
        reason: ready.err(),
        groups: info.groups.iter().map(group).collect(),
        peers: info.peers.iter().map(peer).collect(),
        clock: clock(info.node, &info.clock),
    }
}

fn group(line: &GroupLine) -> GroupReply {
    GroupReply {
        id: line.group.0,
        role: line.role.to_owned(),
        term: line.term,
        voted_for: line.voted_for.map(|node| node.0),
        leader: line.leader.map(|node| node.0),
        commit: line.commit,
        applied: line.applied,
        last_checkpoint: line.last_checkpoint,
        hash: line.hash.map(|(index, hash)| HashReply { index, hash: format!("{hash:032x}") }),
        last_heartbeat: line.last_heartbeat.map(Time),
        last_election: line.last_election.map(Time),
        peers: line.peers.iter().map(|node| node.0).collect(),
    }
}

fn peer(line: &PeerLine) -> PeerReply {
    PeerReply {
        node: line.node.0,
        address: line.address.clone(),
        link: line.link.as_str().to_owned(),
        since_ms: line.since.into(),
        round_trip_ms: line.round_trip.map(|time| time.as_secs_f64() * 1000.0),
        last_status_ms: line.last_status.map(Into::into),
    }
}

fn clock(me: NodeId, info: &ClockInfo) -> ClockReply {
    ClockReply {
        offset_ms: info.offsets_ms.get(&me).copied().filter(|_| info.is_median_known),
        held: info.is_held,
        jumps: info.jumps,
    }
}
