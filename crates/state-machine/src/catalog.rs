//! The catalog: facts about the cluster, its nodes and their votes, and the queues' settings.

mod nodes;

use std::collections::BTreeMap;

use model::catalog::{CatalogCommand, CatalogReply, ClusterFacts, NodeAddresses, NodeRecord};
use model::{Elapsed, GroupId, NodeId, Position, QueueName, QueueSettings, Rejection, WallTime, limits};

use self::nodes::Nodes;
use crate::effects::Effects;
use crate::machine::{Change, Damaged, Machine, NextDue, Table};
use crate::shard::record::{Read, Reader, Writer, read_settings, write_settings};

/// The version of the record of a catalog that knows no nodes: bytes and hash of such a one never change.
const VERSION_WITHOUT_NODES: u8 = 1;
/// The version that is written.
const VERSION: u8 = 2;

/// Group 0's state. Small: it is checkpointed and hashed as a whole.
#[derive(Debug, Default)]
pub struct Catalog {
    elapsed: Elapsed,
    wall: WallTime,
    cluster: Option<ClusterFacts>,
    queues: BTreeMap<QueueName, QueueSettings>,
    /// Deleted queues and the version of their deletion, so that shards that were away learn of it.
    deleted: BTreeMap<QueueName, u64>,
    /// The next version, for all queues: never used twice, even by a queue that was deleted.
    version: u64,
    nodes: Nodes,
    changed: usize,
    cut: Vec<Change>,
}

impl Catalog {
    /// An empty one.
    pub fn new() -> Catalog {
        Catalog::default()
    }

    /// What never changes, once the cluster was made.
    pub fn cluster(&self) -> Option<&ClusterFacts> {
        self.cluster.as_ref()
    }

    /// A queue's settings, if anybody set them.
    pub fn queue(&self, name: &QueueName) -> Option<&QueueSettings> {
        self.queues.get(name)
    }

    /// All settings, by name.
    pub fn queues(&self) -> impl Iterator<Item = (&QueueName, &QueueSettings)> {
        self.queues.iter()
    }

    /// Deleted queues and the version of their deletion.
    pub fn deleted(&self) -> impl Iterator<Item = (&QueueName, u64)> {
        self.deleted.iter().map(|(name, &version)| (name, version))
    }

    /// Grows with every change of queues; 0 before the first.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A node's record.
    pub fn node(&self, node: NodeId) -> Option<&NodeRecord> {
        self.nodes.known.get(&node)
    }

    /// All nodes, by number. None in a cluster of one that was made before nodes had records.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &NodeRecord)> {
        self.nodes.known.iter().map(|(node, record)| (*node, record))
    }

    /// The last life of a node that was removed.
    pub fn removed(&self, node: NodeId) -> Option<u64> {
        self.nodes.removed.get(&node).copied()
    }

    /// All nodes that were removed and did not come back, each with its last life.
    pub fn removed_nodes(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.nodes.removed.iter().map(|(node, incarnation)| (*node, *incarnation))
    }

    /// Who shall vote in a group; nothing when nobody has said so yet.
    pub fn voters(&self, group: GroupId) -> Option<&[NodeId]> {
        self.nodes.voters.get(&group).map(Vec::as_slice)
    }

    /// Grows with every change of nodes and votes; 0 before the first.
    pub fn nodes_version(&self) -> u64 {
        self.nodes.version
    }

    fn set_queue(
        &mut self,
        queue: QueueName,
        mut settings: QueueSettings,
    ) -> Result<CatalogReply, Rejection> {
        let current = self.queues.get(&queue).map_or(0, |settings| settings.version);
        if settings.version != current {
            return Err(Rejection::StaleVersion { given: settings.version, current });
        }
        let count = self.queues.len() as u64;
        if current == 0 && count >= limits::QUEUES_MAX {
            return Err(Rejection::TooManyQueues { queue, count });
        }
        self.version += 1;
        settings.version = self.version;
        self.deleted.remove(&queue);
        self.queues.insert(queue, settings);
        Ok(CatalogReply::Version(self.version))
    }

    fn delete_queue(&mut self, queue: QueueName) -> CatalogReply {
        self.version += 1;
        self.queues.remove(&queue);
        self.deleted.insert(queue, self.version);
        // Shards that were away longer than this keep the queue's empty record: harmless.
        while self.deleted.len() as u64 > limits::QUEUES_MAX {
            let oldest =
                self.deleted.iter().min_by_key(|(_, version)| **version).map(|(name, _)| name.clone());
            self.deleted.remove(&oldest.expect("there are some"));
        }
        CatalogReply::Version(self.version)
    }

    fn found(&mut self, facts: ClusterFacts, nodes: Vec<(NodeId, NodeAddresses)>) -> CatalogReply {
        let known = self.cluster.get_or_insert_with(|| {
            self.nodes.found(nodes);
            facts
        });
        CatalogReply::Cluster(known.clone())
    }

    /// Before there is a cluster, nobody can join it.
    fn founded(&mut self) -> Result<&mut Nodes, Rejection> {
        if self.cluster.is_none() {
            return Err(Rejection::NoCluster);
        }
        Ok(&mut self.nodes)
    }

    fn write(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u8(if self.nodes.is_unknown() { VERSION_WITHOUT_NODES } else { VERSION });
        w.u64(self.version);
        w.option(self.cluster.as_ref(), |w, facts| {
            w.u128(facts.cluster_id);
            w.u16(facts.shards);
            w.bytes(&facts.token_key);
        });
        w.u32(self.queues.len() as u32);
        for (name, settings) in &self.queues {
            w.str(name.as_str());
            write_settings(&mut w, settings);
        }
        w.u32(self.deleted.len() as u32);
        for (name, version) in &self.deleted {
            w.str(name.as_str());
            w.u64(*version);
        }
        if !self.nodes.is_unknown() {
            self.nodes.write(&mut w);
        }
        w.0
    }

    fn read(&mut self, value: &[u8]) -> Read<()> {
        let r = &mut Reader(value);
        self.elapsed = Elapsed(r.u64()?);
        self.wall = WallTime::from_millis(r.u64()?);
        let version = r.u8()?;
        if !(VERSION_WITHOUT_NODES..=VERSION).contains(&version) {
            return Err("its version is newer than this program: upgrade");
        }
        self.version = r.u64()?;
        self.cluster = r.option(|r| {
            let (cluster_id, shards) = (r.u128()?, r.u16()?);
            let token_key = r.bytes()?.try_into().map_err(|_| "a key is not 32 bytes long")?;
            Ok(ClusterFacts { cluster_id, shards, token_key })
        })?;
        for _ in 0..r.u32()? {
            let name = QueueName::new(r.str()?).map_err(|_| "a queue name is none")?;
            self.queues.insert(name, read_settings(r)?);
        }
        for _ in 0..r.u32()? {
            let name = QueueName::new(r.str()?).map_err(|_| "a queue name is none")?;
            self.deleted.insert(name, r.u64()?);
        }
        if version == VERSION {
            self.nodes = Nodes::read(r)?;
        }
        r.end()
    }
}

impl Machine for Catalog {
    type Command = CatalogCommand;
    type Reply = CatalogReply;

    fn apply(
        &mut self,
        at: Position,
        command: CatalogCommand,
        _effects: &mut Effects,
    ) -> Result<CatalogReply, Rejection> {
        let reply = match command {
            CatalogCommand::Init(facts) => CatalogReply::Cluster(self.cluster.get_or_insert(facts).clone()),
            CatalogCommand::SetQueue { queue, settings } => self.set_queue(queue, settings)?,
            CatalogCommand::DeleteQueue { queue } => self.delete_queue(queue),
            CatalogCommand::Found { facts, nodes } => self.found(facts, nodes),
            CatalogCommand::AddNode { node, nonce, addresses } => {
                self.founded()?.add(node, nonce, addresses)?
            }
            CatalogCommand::SetNode { node, incarnation, addresses } => {
                self.founded()?.set(node, incarnation, addresses)?
            }
            CatalogCommand::Leave { node } => self.founded()?.leave(node)?,
            CatalogCommand::RemoveNode { node, incarnation } => self.founded()?.remove(node, incarnation)?,
            CatalogCommand::SetVoters { group, nodes, version } => {
                self.founded()?.set_voters(group, nodes, version)?
            }
        };
        self.elapsed = self.elapsed.max(at.elapsed);
        self.wall = self.wall.max(at.wall);
        self.changed += 1;
        Ok(reply)
    }

    fn stamps(&self) -> (Elapsed, WallTime) {
        (self.elapsed, self.wall)
    }

    fn next_due(&self) -> NextDue {
        NextDue::default()
    }

    fn hash(&mut self) -> u128 {
        xxhash_rust::xxh3::xxh3_128(&self.write())
    }

    fn changed(&self) -> usize {
        self.changed
    }

    fn cut(&mut self) {
        assert!(self.cut.is_empty(), "a cut begins when the one before was read to its end");
        let mut value = self.elapsed.0.to_le_bytes().to_vec();
        value.extend_from_slice(&self.wall.millis().to_le_bytes());
        value.extend_from_slice(&self.write());
        self.cut.push(Change { table: Table::Meta, key: Vec::new(), value: Some(value) });
        self.changed = 0;
    }

    fn cut_some(&mut self, _limit: usize, out: &mut Vec<Change>) -> bool {
        out.append(&mut self.cut);
        false
    }

    fn load(&mut self, table: Table, _key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        match table {
            Table::Meta => self.read(value).map_err(|what| Damaged { table, what }),
            _ => Err(Damaged { table, what: "the catalog has one record only" }),
        }
    }

    fn loaded(&mut self) -> Result<(), Damaged> {
        Ok(())
    }
}
