//! What a node says of itself, of its groups and of the cluster.

use model::{GroupId, NodeId, ShardId};
use replica::{Role, Status};

use crate::error::Error;
use crate::info::{ClusterInfo, GroupLine, Health, NodeInfo, NodeLine, ReplicaLine, ShardLine, WhyLine};
use crate::inner::{Inner, Node};
use crate::stats::{ShardStats, Stats};

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

impl Node {
    /// The whole cluster, as this node sees it.
    pub fn cluster(&self) -> ClusterInfo {
        let inner = &self.inner;
        let statuses = inner.statuses();
        let reasons = inner.reasons(&statuses);
        let unavailable = statuses.iter().any(|status| status.leader.is_none());
        let leads = statuses.iter().filter(|status| status.role == Role::Leader).count();
        let shards = statuses.iter().filter(|status| status.group != GroupId::CATALOG);
        ClusterInfo {
            cluster_id: inner.cluster.cluster_id,
            version: VERSION,
            status: match (unavailable, reasons.is_empty()) {
                (true, _) => Health::Unavailable,
                (false, true) => Health::Healthy,
                (false, false) => Health::Degraded,
            },
            reasons,
            slots: inner.slots(&inner.sessions.all()),
            nodes: vec![NodeLine { id: inner.node, state: "up", leads }],
            shards: shards.filter_map(|status| shard_line(inner.node, status)).collect(),
        }
    }

    /// This node alone.
    pub fn info(&self) -> NodeInfo {
        let inner = &self.inner;
        let group = |status: Status| GroupLine {
            group: status.group,
            role: status.role.as_str(),
            term: status.term,
            // Whoever leads a term has this node's vote in it, or its own was enough.
            voted_for: status.leader,
            leader: status.leader,
            last_heartbeat: (status.role == Role::Leader).then(|| inner.clock.wall()),
            last_election: inner.elections.last(status.group),
            commit: status.committed.unwrap_or(0),
            applied: status.applied.unwrap_or(0),
            last_checkpoint: status.checkpointed.unwrap_or(0),
            peers: status.voters.into_iter().filter(|node| *node != inner.node).collect(),
        };
        NodeInfo {
            node: inner.node,
            version: VERSION,
            started_at: inner.started.1,
            uptime: inner.uptime(),
            groups: inner.statuses().into_iter().map(group).collect(),
        }
    }

    /// Whether every group has a leader that this node reaches and its own log is applied, or why not.
    pub fn ready(&self) -> Result<(), String> {
        let inner = &self.inner;
        if inner.stopping.is_cancelled() {
            return Err("the node is stopping".to_owned());
        }
        for status in inner.statuses() {
            if let Some(failure) = status.failure {
                return Err(format!("group {} has stopped: {failure}", status.group));
            }
            if status.leader.is_none() {
                return Err(format!("group {} has no leader", status.group));
            }
        }
        Ok(())
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
            queues: self.queues().await?,
            shards: inner.groups.all().map(|shard| inner.shard_stats(shard)).collect(),
            memory_bytes: inner.room.memory_bytes(),
            memory_bytes_max: inner.room.memory_bytes_max(),
            memory_full: inner.room.is_memory_full(),
            disk_full: inner.room.is_disk_full(),
            log: inner.log.stats(),
            uptime: inner.uptime(),
            ..Stats::default()
        };
        inner.counters.read(&mut stats);
        Ok(stats)
    }
}

impl Inner {
    /// The catalog first.
    fn statuses(&self) -> Vec<Status> {
        let shards = self.groups.all().map(|shard| self.groups.shard(shard).status());
        std::iter::once(self.groups.catalog.status()).chain(shards).collect()
    }

    fn uptime(&self) -> model::Millis {
        model::Millis(self.now().0.saturating_sub(self.started.0.0))
    }

    fn reasons(&self, statuses: &[Status]) -> Vec<WhyLine> {
        let mut reasons = Vec::new();
        for status in statuses {
            if let Some(failure) = &status.failure {
                let text = format!("group {} has stopped on node {}: {failure}", status.group, self.node);
                reasons.push(WhyLine { code: "group_stopped", text });
            } else if status.leader.is_none() {
                let text = format!("group {} has no leader", status.group);
                reasons.push(WhyLine { code: "no_leader", text });
            }
        }
        match self.room.check() {
            Err(error @ Error::MemoryFull { .. }) => {
                reasons.push(WhyLine { code: "memory_full", text: error.to_string() });
            }
            Err(error) => reasons.push(WhyLine { code: "disk_full", text: error.to_string() }),
            Ok(()) => {}
        }
        reasons
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

fn shard_line(node: NodeId, status: &Status) -> Option<ShardLine> {
    let (last, applied) = (status.last.unwrap_or(0), status.applied.unwrap_or(0));
    Some(ShardLine {
        id: ShardId::new(status.group.0)?,
        leader: status.leader,
        term: status.term,
        commit: status.committed.unwrap_or(0),
        replicas: vec![ReplicaLine { node, applied, lag: last.saturating_sub(applied) }],
    })
}
