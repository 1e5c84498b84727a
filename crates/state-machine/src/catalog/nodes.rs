//! The nodes of the cluster, and which of them vote in which group.
//!
//! A node that comes with an empty disk gets an incarnation that it never had, whatever became of it
//! before: what its old self promised is not its own any more. Who votes is written down here first; the
//! leader of each group then makes it so.

use std::collections::BTreeMap;

use model::catalog::{CatalogReply, NodeAddresses, NodeRecord};
use model::{GroupId, MemberId, NodeId, Rejection, limits};

use crate::shard::record::{Read, Reader, Writer};

/// Who is part of the cluster, and who votes.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// Grows with every change of what is here.
    pub(super) version: u64,
    pub(super) known: BTreeMap<NodeId, NodeRecord>,
    /// Nodes that went, and the number of their last life.
    pub(super) removed: BTreeMap<NodeId, u64>,
    pub(super) voters: BTreeMap<GroupId, Vec<NodeId>>,
}

impl Nodes {
    /// A cluster of one that was made before nodes had records has none of this.
    pub(super) fn is_unknown(&self) -> bool {
        self.version == 0
    }

    fn changed(&mut self) -> CatalogReply {
        self.version += 1;
        CatalogReply::Version(self.version)
    }

    fn find(&mut self, node: NodeId) -> Result<&mut NodeRecord, Rejection> {
        self.known.get_mut(&node).ok_or(Rejection::UnknownNode { node })
    }

    pub(super) fn found(&mut self, nodes: Vec<(NodeId, NodeAddresses)>) {
        for (node, addresses) in nodes {
            let record = NodeRecord { incarnation: 0, addresses, is_leaving: false, nonce: 0 };
            self.known.insert(node, record);
        }
        self.changed();
    }

    pub(super) fn add(
        &mut self,
        node: NodeId,
        nonce: u128,
        addresses: NodeAddresses,
    ) -> Result<CatalogReply, Rejection> {
        let known = self.known.get(&node);
        if let Some(record) = known.filter(|record| record.nonce == nonce && nonce != 0) {
            return Ok(CatalogReply::Member(record.member(node)));
        }
        let count = self.known.len();
        if known.is_none() && count >= limits::NODES_MAX {
            return Err(Rejection::TooManyNodes { node, count: count as u64 });
        }
        let last = known.map(|record| record.incarnation).or_else(|| self.removed.get(&node).copied());
        let incarnation = last.map_or(0, |last| last + 1);
        // Whoever comes anew means to stay.
        self.known.insert(node, NodeRecord { incarnation, addresses, is_leaving: false, nonce });
        self.removed.remove(&node);
        self.changed();
        Ok(CatalogReply::Member(MemberId::new(node, incarnation)))
    }

    pub(super) fn set(
        &mut self,
        node: NodeId,
        incarnation: u64,
        addresses: NodeAddresses,
    ) -> Result<CatalogReply, Rejection> {
        let version = self.version;
        let record = self.find(node)?;
        if record.incarnation != incarnation {
            return Err(Rejection::UnknownNode { node });
        }
        if record.addresses == addresses {
            return Ok(CatalogReply::Version(version));
        }
        record.addresses = addresses;
        Ok(self.changed())
    }

    pub(super) fn leave(&mut self, node: NodeId) -> Result<CatalogReply, Rejection> {
        let others = self.known.iter().any(|(other, record)| *other != node && !record.is_leaving);
        let version = self.version;
        let record = self.find(node)?;
        if record.is_leaving {
            return Ok(CatalogReply::Version(version));
        }
        if !others {
            return Err(Rejection::NodeNeeded { node });
        }
        record.is_leaving = true;
        Ok(self.changed())
    }

    pub(super) fn remove(&mut self, node: NodeId, incarnation: u64) -> Result<CatalogReply, Rejection> {
        if self.find(node)?.incarnation != incarnation {
            return Err(Rejection::UnknownNode { node });
        }
        let votes = self.voters.values().any(|voters| voters.contains(&node));
        if votes || self.known.len() == 1 {
            return Err(Rejection::NodeNeeded { node });
        }
        self.known.remove(&node);
        self.removed.insert(node, incarnation);
        Ok(self.changed())
    }

    pub(super) fn set_voters(
        &mut self,
        group: GroupId,
        mut nodes: Vec<NodeId>,
        version: u64,
    ) -> Result<CatalogReply, Rejection> {
        if version != self.version {
            return Err(Rejection::StaleVersion { given: version, current: self.version });
        }
        nodes.sort_unstable();
        nodes.dedup();
        // A group without voters, or with too many, was asked for by a program that is wrong.
        let Some(&first) = nodes.first() else { return Err(Rejection::UnknownNode { node: NodeId(0) }) };
        if nodes.len() > limits::VOTERS_MAX {
            return Err(Rejection::TooManyNodes { node: first, count: nodes.len() as u64 });
        }
        let stays = |node: &&NodeId| self.known.get(node).is_some_and(|record| !record.is_leaving);
        if let Some(&node) = nodes.iter().find(|node| !stays(node)) {
            return Err(Rejection::UnknownNode { node });
        }
        if self.voters.get(&group) == Some(&nodes) {
            return Ok(CatalogReply::Version(self.version));
        }
        self.voters.insert(group, nodes);
        Ok(self.changed())
    }

    pub(super) fn write(&self, w: &mut Writer) {
        w.u64(self.version);
        w.u32(self.known.len() as u32);
        for (node, record) in &self.known {
            w.u64(record.member(*node).bits());
            w.str(&record.addresses.peer);
            w.str(&record.addresses.http);
            w.u8(u8::from(record.is_leaving));
            w.u128(record.nonce);
        }
        w.u32(self.removed.len() as u32);
        for (node, incarnation) in &self.removed {
            w.u64(MemberId::new(*node, *incarnation).bits());
        }
        w.u32(self.voters.len() as u32);
        for (group, nodes) in &self.voters {
            w.u16(group.0);
            w.u32(nodes.len() as u32);
            nodes.iter().for_each(|node| w.u64(node.0));
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Read<Nodes> {
        let mut nodes = Nodes { version: r.u64()?, ..Nodes::default() };
        for _ in 0..r.u32()? {
            let member = MemberId::from_bits(r.u64()?);
            let addresses = NodeAddresses { peer: r.str()?.to_owned(), http: r.str()?.to_owned() };
            let is_leaving = r.u8()? == 1;
            let nonce = r.u128()?;
            let record = NodeRecord { incarnation: member.incarnation(), addresses, is_leaving, nonce };
            nodes.known.insert(member.node(), record);
        }
        for _ in 0..r.u32()? {
            let member = MemberId::from_bits(r.u64()?);
            nodes.removed.insert(member.node(), member.incarnation());
        }
        for _ in 0..r.u32()? {
            let group = GroupId(r.u16()?);
            let voters = (0..r.u32()?).map(|_| r.u64().map(NodeId)).collect::<Read<Vec<_>>>()?;
            nodes.voters.insert(group, voters);
        }
        Ok(nodes)
    }
}
