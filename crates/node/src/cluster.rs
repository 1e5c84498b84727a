//! What a node says of itself, of its groups and of the cluster.
//!
//! `/v1/node` is what this node knows by itself; `/v1/cluster` is what it and the others told (`status.rs`), put
//! together here and judged in `health.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::catalog::NodeRecord;
use model::{GroupId, MemberId, Millis, NodeId, ShardId};
use replica::{Role, Status};

use crate::call::Freshness;
use crate::error::Error;
use crate::health::{self, Seen, SeenCopy, SeenGroup, SeenNode};
use crate::info::{
    ClusterInfo, GroupLine, GroupStats, LinkStats, LinkWord, NodeInfo, NodeLine, NodeState, PeerLine,
    ReplicaLine, ReplicationStats, ShardLine,
};
use crate::inner::{Inner, Node};
use crate::link::LinkState;
use crate::stats::{ShardStats, Stats};
use crate::status::{GroupStatus, NodeStatus, STALE};

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A leader that a quorum has not answered for so long leads nobody.
const QUORUM_SILENCE: Millis = Millis::secs(2);
/// A copy that has not what was committed so long ago is behind.
const LATE: Millis = Millis::secs(5);
/// A node that has not what was committed so long ago is not ready.
const READY_LATE: Millis = Millis::secs(1);

/// What this node and the others said last.
struct Picture {
    now: Millis,
    statuses: Vec<Status>,
    nodes: BTreeMap<NodeId, PictureNode>,
}

struct PictureNode {
    record: Option<NodeRecord>,
    state: NodeState,
    down_for: Option<Millis>,
    /// The last word, however old; of this node, how it is now.
    last: Option<Arc<NodeStatus>>,
}

impl Node {
    /// The whole cluster, as this node sees it.
    pub fn cluster(&self) -> ClusterInfo {
        let inner = &self.inner;
        let picture = inner.picture();
        let seen = inner.seen(&picture);
        let (status, reasons) = health::judge(&seen);
        let leads = |node: NodeId| seen.groups.iter().filter(|group| group.leader == Some(node)).count();
        ClusterInfo {
            cluster_id: inner.cluster.cluster_id,
            version: VERSION,
            status,
            reasons,
            slots: inner.slots(),
            nodes: picture.nodes.iter().map(|(id, node)| node_line(*id, node, leads(*id))).collect(),
            shards: seen
                .groups
                .iter()
                .filter_map(|group| shard_line(group, picture.term(group.group)))
                .collect(),
        }
    }

    /// This node alone.
    pub fn info(&self) -> NodeInfo {
        let inner = &self.inner;
        let (now, wall) = (inner.now(), inner.clock.wall());
        let group = |status: Status| {
            let members = status.voters.iter().chain(&status.learners).map(|member| member.node());
            GroupLine {
                group: status.group,
                role: status.role.as_str(),
                term: status.term,
                voted_for: status.voted_for.map(MemberId::node),
                leader: status.leader.map(MemberId::node),
                last_heartbeat: status.heard.map(|ago| {
                    model::WallTime::from_millis(wall.millis().saturating_sub(ago.as_millis() as u64))
                }),
                last_election: inner.elections.last(status.group),
                commit: status.committed.unwrap_or(0),
                applied: status.applied.unwrap_or(0),
                last_checkpoint: status.checkpointed.unwrap_or(0),
                hash: status.hash_points.last().map(|point| (point.index, point.hash)),
                peers: members.filter(|node| *node != inner.node).collect(),
            }
        };
        let peers = inner.records().into_iter().filter(|(node, _)| *node != inner.node);
        NodeInfo {
            node: inner.node,
            version: VERSION,
            started_at: inner.started.1,
            uptime: inner.uptime(),
            groups: inner.statuses().into_iter().map(group).collect(),
            peers: peers.map(|(node, record)| inner.peer_line(node, record, now)).collect(),
            clock: inner.held.info(inner.node),
        }
    }

    /// For every group, the catalog included, an index at or behind all that this node was told as written.
    pub fn written(&self) -> Vec<(GroupId, u64)> {
        let inner = &self.inner;
        let upto = |status: Status| {
            let committed = status.committed.unwrap_or(0);
            (status.group, committed.max(inner.groups.written(status.group)))
        };
        inner.statuses().into_iter().map(upto).collect()
    }

    /// Whether every group has a leader that this node reaches and its own log is applied, or why not.
    pub fn ready(&self) -> Result<(), String> {
        let inner = &self.inner;
        if inner.stopping.is_cancelled() {
            return Err("the node is stopping".to_owned());
        }
        if self.is_removed() {
            return Err(health::REMOVED.to_owned());
        }
        let now = inner.now();
        inner.statuses().iter().try_for_each(|status| inner.group_ready(status, now))
    }

    /// All that `/metrics` shows.
    pub async fn stats(&self) -> Result<Stats, Error> {
        let inner = &self.inner;
        let mut stats = Stats {
            waiting_claims: inner.lines.waiting(),
            sessions: inner.sessions.count(),
            events: inner.events.count(),
            outbox_messages: inner
                .groups
                .all()
                .map(|shard| inner.groups.look(shard, |state| state.outbox_len()))
                .sum(),
            queues: self.queues(Freshness::Stale).await?,
            shards: inner.groups.all().map(|shard| inner.shard_stats(shard)).collect(),
            memory_bytes: inner.room.memory_bytes(),
            memory_bytes_max: inner.room.memory_bytes_max(),
            memory_full: inner.room.is_memory_full(),
            disk_full: inner.room.is_disk_full(),
            log: inner.log.stats(),
            uptime: inner.uptime(),
            replication: inner.replication(),
            ..Stats::default()
        };
        inner.counters.read(&mut stats);
        Ok(stats)
    }
}

impl Inner {
    fn uptime(&self) -> Millis {
        Millis(self.now().0.saturating_sub(self.started.0.0))
    }

    /// What the catalog knows of the nodes. This one is among them, unless it was removed.
    fn records(&self) -> BTreeMap<NodeId, Option<NodeRecord>> {
        let records = |catalog: &state_machine::Catalog| {
            catalog.nodes().map(|(node, record)| (node, Some(record.clone()))).collect()
        };
        let mut records: BTreeMap<_, _> = self.groups.catalog.read_stale(records);
        if self.is_removed.load(Ordering::Relaxed) {
            // What the catalog has under this number now is another life of the node.
            records.remove(&self.node);
        } else {
            records.entry(self.node).or_insert(None);
        }
        records
    }

    fn picture(&self) -> Picture {
        let (now, statuses) = (self.now(), self.statuses());
        let own = Arc::new(self.own_status(&statuses));
        let nodes = self.records().into_iter().map(|(node, record)| {
            let is_me = node == self.node;
            let last =
                if is_me { Some(own.clone()) } else { self.statuses.last(node).map(|heard| heard.status) };
            let down_for = if is_me { None } else { self.down_for(node, now) };
            let is_leaving = record.as_ref().is_some_and(|record| record.is_leaving)
                || last.as_ref().is_some_and(|status| status.is_stopping);
            let state = match down_for {
                Some(_) => NodeState::Down,
                None if is_leaving => NodeState::Leaving,
                None if statuses.iter().all(|status| is_member(status, node)) => NodeState::Up,
                None => NodeState::Joining,
            };
            (node, PictureNode { record, state, down_for, last })
        });
        let nodes = nodes.collect();
        Picture { now, statuses, nodes }
    }

    /// For how long a node has not been reached; nothing while it is.
    fn down_for(&self, node: NodeId, now: Millis) -> Option<Millis> {
        let since = |since: Millis| Millis(now.0.saturating_sub(since.0));
        match self.links.state(node) {
            LinkState::Down { since: at, .. } => Some(since(at)),
            LinkState::Up { since: at, .. } => {
                // A link that carries nothing is as good as none.
                let silent = self.statuses.last(node).map_or(at, |heard| heard.at.max(at));
                Some(since(silent)).filter(|silent| *silent > STALE)
            }
        }
    }

    /// What there is to judge.
    fn seen(&self, picture: &Picture) -> Seen {
        let clock = self.held.info(self.node);
        let node = |(id, node): (&NodeId, &PictureNode)| {
            let fresh = node.last.as_ref().filter(|_| node.state != NodeState::Down);
            SeenNode {
                node: *id,
                state: node.state,
                down_for: node.down_for,
                disk_full: fresh.is_some_and(|status| status.disk_full),
                memory_full: fresh
                    .filter(|status| status.memory_full)
                    .map(|status| (status.memory_bytes, status.memory_bytes_max)),
            }
        };
        Seen {
            is_removed: self.is_removed.load(Ordering::Relaxed),
            nodes: picture.nodes.iter().map(node).collect(),
            groups: picture.statuses.iter().map(|status| self.seen_group(picture, status)).collect(),
            clocks_ms: clock.offsets_ms,
            is_median_known: clock.is_median_known,
        }
    }

    fn seen_group(&self, picture: &Picture, status: &Status) -> SeenGroup {
        let group = status.group;
        let odd = self.statuses.agreement.odd(group);
        let copy = |member: &MemberId, is_voter: bool| {
            let node = member.node();
            let said = picture.said(node, group);
            SeenCopy {
                node,
                is_voter,
                applied: said.map(|said| said.applied),
                failure: said.and_then(|said| said.failure.clone()),
                is_diverged: said.is_some_and(|said| said.is_diverged)
                    || odd.iter().any(|odd| odd.member == *member),
            }
        };
        let voters = status.voters.iter().map(|member| copy(member, true));
        let learners = status.learners.iter().map(|member| copy(member, false));
        let mut copies: Vec<SeenCopy> = voters.chain(learners).collect();
        copies.sort_by_key(|copy| copy.node);
        let leader = picture.leader(group).filter(|leader| self.is_reached(*leader, || status.clone()));
        SeenGroup {
            group,
            leader: leader.filter(|leader| !picture.is_down(*leader)),
            committed_before: self.statuses.committed_before(group, picture.now, LATE),
            committed: self.committed(group, status.committed.unwrap_or(0), picture.now),
            copies,
        }
    }

    /// Whether a leader can do something for callers of this node.
    pub(crate) fn is_reached(&self, leader: NodeId, own: impl FnOnce() -> Status) -> bool {
        if leader == self.node {
            let own = own();
            let silence = own.heard.map_or(0, |heard| heard.as_millis() as u64);
            return own.role == Role::Leader && (own.voters.len() <= 1 || silence <= QUORUM_SILENCE.0);
        }
        matches!(self.links.state(leader), LinkState::Up { .. })
    }

    fn group_ready(&self, status: &Status, now: Millis) -> Result<(), String> {
        let group = status.group;
        if let Some(failure) = &status.failure {
            return Err(format!("group {group} has stopped: {failure}"));
        }
        let Some(leader) = status.leader.map(MemberId::node) else {
            return Err(format!("group {group} has no leader"));
        };
        if !self.is_reached(leader, || status.clone()) {
            return Err(if leader == self.node {
                format!("no quorum of group {group} answers this node, its leader")
            } else {
                format!("node {leader}, which leads group {group}, cannot be reached")
            });
        }
        let committed = self
            .statuses
            .committed_before(group, now, READY_LATE)
            .unwrap_or_else(|| self.committed(group, status.committed.unwrap_or(0), now));
        let applied = status.applied.unwrap_or(0);
        if applied < committed {
            return Err(format!("group {group} has applied {applied} of {committed} entries"));
        }
        Ok(())
    }

    fn peer_line(&self, node: NodeId, record: Option<NodeRecord>, now: Millis) -> PeerLine {
        let ago = |since: Millis| Millis(now.0.saturating_sub(since.0));
        let (link, since, round_trip) = match self.links.state(node) {
            LinkState::Up { since, round_trip } => (LinkWord::Up, since, Some(round_trip)),
            LinkState::Down { since, gone: true } => (LinkWord::Gone, since, None),
            LinkState::Down { since, gone: false } => (LinkWord::Down, since, None),
        };
        PeerLine {
            node,
            address: record.map_or_else(String::new, |record| record.addresses.peer),
            link,
            since: ago(since),
            round_trip,
            last_status: self.statuses.last(node).map(|heard| ago(heard.at)),
        }
    }

    fn replication(&self) -> ReplicationStats {
        let picture = self.picture();
        let group = |status: &Status| {
            let commit = self.committed(status.group, status.committed.unwrap_or(0), picture.now);
            let members = status.voters.iter().chain(&status.learners).map(|member| member.node());
            let lag = |node: NodeId| {
                let said = picture.said(node, status.group)?;
                Some((node, commit.saturating_sub(said.applied)))
            };
            GroupStats {
                group: status.group,
                role: status.role.as_str(),
                term: status.term,
                commit,
                lags: members.filter_map(lag).collect(),
            }
        };
        let links = self.links.stats().into_iter().map(|(node, stats)| {
            let is_up = matches!(self.links.state(node), LinkState::Up { .. });
            LinkStats {
                node,
                is_up,
                reconnects: stats.connections.saturating_sub(1),
                bytes_in: stats.bytes_in,
                bytes_out: stats.bytes_out,
                queued_bytes: stats.queued_bytes,
                round_trip: is_up.then_some(stats.round_trip),
            }
        });
        ReplicationStats {
            groups: picture.statuses.iter().map(group).collect(),
            links: links.collect(),
            leader_changes: self.elections.changes(),
            diverged: self.statuses.agreement.odd_count(),
            clock: self.held.info(self.node),
        }
    }

    fn shard_stats(&self, shard: ShardId) -> ShardStats {
        let (tasks, memory_bytes) = self.groups.look(shard, |state| (state.tasks(), state.memory_bytes()));
        let status = self.groups.shard(shard).status();
        ShardStats {
            shard,
            tasks,
            memory_bytes,
            commit: status.committed.unwrap_or(0),
            applied: status.applied.unwrap_or(0),
            last_checkpoint: status.checkpointed.unwrap_or(0),
            leads: status.role == Role::Leader,
            checkpoint_stall_max: status.stall_max,
        }
    }
}

impl Picture {
    /// What a node last said of a group.
    fn said(&self, node: NodeId, group: GroupId) -> Option<&GroupStatus> {
        self.nodes.get(&node)?.last.as_ref()?.groups.get(&group)
    }

    fn is_down(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_none_or(|node| node.state == NodeState::Down)
    }

    /// What those say of a group that are up.
    fn words(&self, group: GroupId) -> impl Iterator<Item = &GroupStatus> {
        let up = self.nodes.values().filter(|node| node.state != NodeState::Down);
        up.filter_map(move |node| node.last.as_ref()?.groups.get(&group))
    }

    /// Who leads by the highest term that anybody knows a leader of.
    fn leader(&self, group: GroupId) -> Option<NodeId> {
        let known = self.words(group).filter_map(|word| Some((word.term, word.leader?)));
        known.max_by_key(|(term, _)| *term).map(|(_, leader)| leader)
    }

    /// The highest term that anybody knows.
    fn term(&self, group: GroupId) -> u64 {
        self.words(group).map(|word| word.term).max().unwrap_or(0)
    }
}

fn is_member(status: &Status, node: NodeId) -> bool {
    status.voters.iter().chain(&status.learners).any(|member| member.node() == node)
}

fn node_line(id: NodeId, node: &PictureNode, leads: usize) -> NodeLine {
    let addresses = node.record.as_ref().map(|record| record.addresses.clone()).unwrap_or_default();
    let said = |read: fn(&NodeStatus) -> &String| node.last.as_ref().map(|last| read(last).clone());
    NodeLine {
        id,
        address: Some(addresses.http)
            .filter(|address| !address.is_empty())
            .or_else(|| said(|status| &status.address))
            .unwrap_or_default(),
        peer_address: addresses.peer,
        version: said(|status| &status.version).unwrap_or_default(),
        state: node.state,
        leads,
    }
}

fn shard_line(group: &SeenGroup, term: u64) -> Option<ShardLine> {
    let replica = |copy: &SeenCopy| {
        let applied = copy.applied.unwrap_or(0);
        let lag = group.committed.saturating_sub(applied);
        ReplicaLine { node: copy.node, applied, lag, is_voter: copy.is_voter }
    };
    Some(ShardLine {
        id: ShardId::new(group.group.0)?,
        leader: group.leader,
        term,
        commit: group.committed,
        replicas: group.copies.iter().map(replica).collect(),
    })
}
