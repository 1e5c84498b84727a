//! How the cluster is, what a person asks of its nodes, and what happens. Next: `node/src/life/admin.rs`.

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use model::{GroupId, NodeId};
use tonic::{Response, Status};
use wire::grpc;
use wire::http::cluster::{
    ClusterNodeReply, ClusterStatusWord, GroupReply, NodeReply, PeerReply, ReplicaReply, ShardReply,
};
use wire::http::event::EventReply;
use wire::http::{Invalid, Ms, Time};

use super::{Answered, tell};
use crate::app::App;
use crate::http::{cluster, events};

/// A stream of events.
pub(super) type Events = BoxStream<'static, Result<grpc::Event, Status>>;

pub(super) fn get(app: &App) -> Response<grpc::Cluster> {
    let reply = cluster::reply(app, &app.node.cluster());
    Response::new(grpc::Cluster {
        cluster_id: reply.cluster_id,
        version: reply.version,
        status: match reply.status {
            ClusterStatusWord::Healthy => "healthy",
            ClusterStatusWord::Degraded => "degraded",
            ClusterStatusWord::Unavailable => "unavailable",
        }
        .to_owned(),
        reasons: reply.reasons.into_iter().map(tell::reason).collect(),
        slots: Some(grpc::Slots { open: reply.slots.open, total: reply.slots.total }),
        nodes: reply.nodes.into_iter().map(cluster_node).collect(),
        shards: reply.shards.into_iter().map(shard).collect(),
    })
}

fn cluster_node(node: ClusterNodeReply) -> grpc::ClusterNode {
    let ClusterNodeReply { id, address, state, leads, peer_address, version } = node;
    grpc::ClusterNode { id, address, state, leads, peer_address, version }
}

fn shard(shard: ShardReply) -> grpc::Shard {
    let replica = |ReplicaReply { node, applied, lag, role }| grpc::Replica { node, applied, lag, role };
    grpc::Shard {
        id: shard.id.into(),
        leader: shard.leader,
        term: shard.term,
        commit: shard.commit,
        replicas: shard.replicas.into_iter().map(replica).collect(),
    }
}

pub(super) fn node(app: &App) -> Response<grpc::Node> {
    let reply: NodeReply = cluster::this_node(app);
    Response::new(grpc::Node {
        id: reply.id,
        version: reply.version,
        started_at: Some(tell::timestamp(reply.started_at.0)),
        uptime_ms: reply.uptime_ms.0,
        ready: reply.ready,
        reason: reply.reason,
        groups: reply.groups.into_iter().map(group).collect(),
        peers: reply.peers.into_iter().map(peer).collect(),
        clock: Some(grpc::Clock {
            offset_ms: reply.clock.offset_ms,
            held: reply.clock.held,
            jumps: reply.clock.jumps,
        }),
    })
}

fn group(group: GroupReply) -> grpc::Group {
    let at = |time: Time| tell::timestamp(time.0);
    grpc::Group {
        id: group.id.into(),
        role: group.role,
        term: group.term,
        voted_for: group.voted_for,
        leader: group.leader,
        commit: group.commit,
        applied: group.applied,
        last_checkpoint: group.last_checkpoint,
        hash: group.hash.map(|hash| grpc::Hash { index: hash.index, hash: hash.hash }),
        last_heartbeat: group.last_heartbeat.map(at),
        last_election: group.last_election.map(at),
        peers: group.peers,
    }
}

fn peer(peer: PeerReply) -> grpc::Peer {
    grpc::Peer {
        node: peer.node,
        address: peer.address,
        link: peer.link,
        since_ms: peer.since_ms.0,
        round_trip_ms: peer.round_trip_ms,
        last_status_ms: peer.last_status_ms.map(|Ms(millis)| millis),
    }
}

pub(super) async fn transfer(
    app: &App,
    request: grpc::TransferLeadershipRequest,
) -> Answered<grpc::AskedReply> {
    app.node.transfer(group_id(request.shard)?, request.node.map(NodeId)).await?;
    Ok(asked())
}

pub(super) async fn rebalance(app: &App) -> Answered<grpc::AskedReply> {
    app.node.rebalance().await?;
    Ok(asked())
}

pub(super) async fn leave(app: &App, request: grpc::LeaveNodeRequest) -> Answered<grpc::AskedReply> {
    app.node.leave(NodeId(request.node)).await?;
    Ok(asked())
}

pub(super) async fn promote(app: &App, request: grpc::PromoteNodeRequest) -> Answered<grpc::AskedReply> {
    app.node.promote(NodeId(request.node), request.shard.map(group_id).transpose()?).await?;
    Ok(asked())
}

fn group_id(shard: u32) -> Result<GroupId, Invalid> {
    let number = u16::try_from(shard);
    number.map(GroupId).map_err(|_| Invalid(format!("shard is {shard}: there is none of this number")))
}

fn asked() -> Response<grpc::AskedReply> {
    Response::new(grpc::AskedReply { status: "asked".to_owned() })
}

/// What happens, as it happens. Ends when the server stops.
pub(super) fn events(app: &App, request: grpc::EventsRequest) -> Response<Events> {
    let source = (app.node.events(request.after), app.stopping().clone());
    let events = stream::unfold(source, |(mut events, stopping)| async move {
        let event = tokio::select! {
            biased;
            () = stopping.cancelled() => return None,
            event = events.next() => event?,
        };
        let told = told(event.id, events::reply(&event));
        Some((Ok(told), (events, stopping)))
    });
    Response::new(events.boxed())
}

fn told(id: u64, event: EventReply) -> grpc::Event {
    grpc::Event {
        id,
        at: Some(tell::timestamp(event.at.0)),
        event: event.event,
        index: event.index,
        task: event.task.map(|id| id.0.to_string()),
        queue: event.queue,
        worker: event.worker,
        state: event.state.map(|state| state.0.as_str().to_owned()),
        reason: event.reason,
        freed: event.freed,
        since_last_beat_ms: event.since_last_beat_ms.map(|Ms(millis)| millis),
    }
}
