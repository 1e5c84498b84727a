//! What people ask of the cluster. Any node may be asked; what only a leader can do is sent on to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use model::catalog::{CatalogCommand, CatalogReply};
use model::{GroupId, MemberId, NodeId, Rejection, limits};
use replica::Members;
use tokio::time::Instant;
use wire::life::Ask;
use wire::peer::PeerKind;

use super::spread::MOVE_WAIT;
use crate::error::Error;
use crate::inner::{Inner, Node};
use crate::link::LinkError;

/// How long another node may take for what it is asked.
const ASK_WAIT: Duration = MOVE_WAIT.saturating_add(Duration::from_secs(2));
/// Until it is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Tries when somebody else changes votes at the same time.
const PROMOTE_TRIES: usize = 20;

/// What a new node needs to know to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinHint {
    /// The cluster's nodes, and where they listen for each other.
    pub cluster: BTreeMap<NodeId, String>,
    /// A number that no node has.
    pub node: NodeId,
}

impl Node {
    /// Hands the leadership of a group to a node, or to whoever has most of its log.
    pub async fn transfer(&self, group: GroupId, to: Option<NodeId>) -> Result<(), Error> {
        let inner = &self.inner;
        let replica = inner.replica(group)?;
        let until = Instant::now() + ASK_WAIT;
        loop {
            let moved = match replica.leader().map(|(leader, _)| leader.node()) {
                None => Err(Error::Unavailable),
                Some(node) if node == inner.node => inner.transfer(&**replica, to).await,
                Some(node) if Some(node) == to => Ok(()),
                Some(node) => inner.have_done(node, Ask::Transfer { group, to }).await,
            };
            match moved {
                // Between two leaders, or whom we took for the leader is not: it does no harm to ask again.
                Err(Error::Unavailable) if Instant::now() < until => tokio::time::sleep(ASK_AGAIN).await,
                moved => return moved,
            }
        }
    }

    /// Hands leaderships over to the nodes that they belong to, on all nodes that can be reached.
    pub async fn rebalance(&self) -> Result<(), Error> {
        let inner = &self.inner;
        inner.rebalance().await;
        let asked = inner.links.up().into_iter().map(|node| inner.have_done(node, Ask::Rebalance));
        futures::future::join_all(asked).await.into_iter().collect()
    }

    /// Takes a node out of the cluster, dead or alive: its votes go to others, and then it goes itself.
    pub async fn leave(&self, node: NodeId) -> Result<(), Error> {
        self.inner.groups.propose_catalog(CatalogCommand::Leave { node }).await.map(drop)
    }

    /// Gives a node a vote in a group, or in all: in place of a voter that is down, or else of the one with the
    /// most votes.
    pub async fn promote(&self, node: NodeId, group: Option<GroupId>) -> Result<(), Error> {
        let inner = &self.inner;
        let groups = match group {
            Some(group) => vec![inner.replica(group)?.group()],
            None => inner.replicas.iter().map(|replica| replica.group()).collect(),
        };
        for group in groups {
            inner.promote(node, group).await?;
        }
        Ok(())
    }

    /// Which member of its groups this node is.
    pub fn member(&self) -> MemberId {
        self.inner.member
    }

    /// Whether the cluster does not count on this node any more: it was told to leave, or joined anew with
    /// another disk.
    pub fn is_removed(&self) -> bool {
        self.inner.is_removed.load(Ordering::Relaxed)
    }

    /// Who is in a group, as far as this node knows.
    pub fn members(&self, group: GroupId) -> Result<Members, Error> {
        self.inner.replica(group).map(|replica| replica.members())
    }

    /// What a new node needs to know to join this cluster.
    pub fn join_hint(&self) -> JoinHint {
        let inner = &self.inner;
        let nodes = |catalog: &state_machine::Catalog| {
            catalog.nodes().map(|(node, record)| (node, record.addresses.peer.clone())).collect()
        };
        let cluster: BTreeMap<NodeId, String> = inner.groups.catalog.read_stale(nodes);
        let last = cluster.keys().next_back().copied().unwrap_or(inner.node);
        let free = (1..=limits::NODE_MAX).map(NodeId).find(|node| !cluster.contains_key(node));
        let next = NodeId(last.0 + 1);
        JoinHint { node: if next.0 <= limits::NODE_MAX { next } else { free.unwrap_or(next) }, cluster }
    }
}

impl Inner {
    pub(crate) fn replica(&self, group: GroupId) -> Result<&Arc<dyn crate::any_replica::AnyReplica>, Error> {
        let replica = self.replicas.get(usize::from(group.0));
        replica.ok_or_else(|| Error::NotFound(format!("there is no group {group}")))
    }

    /// Has another node do something.
    async fn have_done(&self, node: NodeId, ask: Ask) -> Result<(), Error> {
        let asked = self.links.call(node, PeerKind::Ask, GroupId::CATALOG, ask.encode(), ASK_WAIT).await;
        match asked {
            Ok(_) => Ok(()),
            Err(LinkError::Refused(why)) if why == Error::Unavailable.to_string() => Err(Error::Unavailable),
            Err(LinkError::Refused(why)) => Err(Error::Invalid(why)),
            Err(LinkError::Unreached(_)) => Err(Error::Unavailable),
            Err(LinkError::Lost) => Err(Error::Timeout),
        }
    }

    async fn promote(&self, node: NodeId, group: GroupId) -> Result<(), Error> {
        for _ in 0..PROMOTE_TRIES {
            let look = |catalog: &state_machine::Catalog| {
                let all = self.replicas.iter().filter_map(|replica| catalog.voters(replica.group()));
                let mut loads = BTreeMap::<NodeId, usize>::new();
                all.flatten().for_each(|node| *loads.entry(*node).or_default() += 1);
                (catalog.nodes_version(), catalog.voters(group).map(<[NodeId]>::to_vec), loads)
            };
            let (version, voters, loads) = self.groups.read_catalog(look).await?;
            let mut nodes = voters.ok_or(Error::Unavailable)?;
            if nodes.contains(&node) {
                return Ok(());
            }
            if nodes.len() >= limits::VOTERS_MAX {
                let worst = nodes.iter().max_by_key(|node| (!self.is_up(**node), loads.get(node), **node));
                let worst = *worst.expect("a group has voters");
                nodes.retain(|other| *other != worst);
            }
            nodes.push(node);
            match self.groups.propose_catalog(CatalogCommand::SetVoters { group, nodes, version }).await {
                Ok(CatalogReply::Version(_)) => return Ok(()),
                Ok(other) => return Err(Error::Broken(format!("votes were answered by {other:?}"))),
                Err(Error::Rejected(Rejection::StaleVersion { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Unavailable)
    }
}

/// Does what another node asks.
pub(crate) async fn answer(inner: &Arc<Inner>, body: Bytes) -> Result<Bytes, String> {
    let ask = Ask::decode(body).map_err(|error| error.to_string())?;
    match ask {
        Ask::Rebalance => {
            inner.rebalance().await;
        }
        Ask::Transfer { group, to } => {
            let replica = inner.replica(group).map_err(|error| error.to_string())?;
            if !replica.leads() {
                return Err(Error::Unavailable.to_string());
            }
            inner.transfer(&**replica, to).await.map_err(|error| error.to_string())?;
        }
    }
    Ok(Bytes::new())
}
