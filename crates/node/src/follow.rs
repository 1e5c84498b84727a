//! Follows the catalog's word on where the other nodes are, and the links' word on whether they are there.
//!
//! A node knows the catalog by its own copy, which may be a moment behind its leader's, or a long way if this node
//! was down. So it looks for everybody of whom it has ever heard, and only the word that a node was removed
//! counts against that: an old copy must not keep it from those who have a newer one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::{MemberId, NodeId};
use state_machine::Catalog;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::inner::Inner;
use crate::link::LinkEvent;

/// How often it looks when it is not told of a change.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Keeps the links with the nodes of the cluster, until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let catalog = &inner.groups.catalog;
    let (mut seen, mut looked, mut kept) = (0, None::<Instant>, Known::default());
    loop {
        let index = catalog.applied();
        let version = catalog.read_stale(Catalog::nodes_version);
        // Groups change their members without a word to the catalog.
        if version != seen || looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
            (seen, looked) = (version, Some(Instant::now()));
            let known = inner.known_nodes();
            if known != kept {
                inner.links.set_peers(known.peers.clone(), known.over.clone());
                kept = known;
            }
        }
        tokio::select! {
            _ = catalog.wait_applied(index + 1, LOOK_EVERY) => {}
            () = inner.stopping.cancelled() => return,
        }
    }
}

/// Tells the groups of nodes that are there at last and of processes that have ended, until the node stops.
pub(crate) async fn run_links(inner: Arc<Inner>) {
    let mut events = inner.links.events();
    // Those that have not met enough of their members since the start.
    let mut waiting = inner.replicas.clone();
    let is_up = |node| inner.is_up(node);
    loop {
        waiting.retain(|replica| !replica.meet(&is_up));
        let event = tokio::select! {
            event = events.recv() => event,
            () = inner.stopping.cancelled() => return,
        };
        match event {
            Ok(LinkEvent::Gone(node)) => {
                tracing::info!(%node, "the process of the node has ended");
                inner.replicas.iter().for_each(|replica| replica.node_gone(node));
            }
            Ok(LinkEvent::Up(_) | LinkEvent::Down(_)) => {}
            // An election that is not begun at once begins by its timeout.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

impl Inner {
    fn known_nodes(&self) -> Known {
        let members: BTreeMap<MemberId, String> =
            self.replicas.iter().flat_map(|replica| replica.members().addresses).collect();
        self.groups.catalog.read_stale(|catalog| Known::of(catalog, &members, &self.listed))
    }
}

/// The nodes that this one should look for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    /// Where they are.
    peers: BTreeMap<NodeId, String>,
    /// Of each node the last life that has no place in the cluster any more.
    over: BTreeMap<NodeId, u64>,
}

impl Known {
    /// By the catalog's word, by that of the groups on their members, and by the list of whoever started the
    /// node, in this order.
    fn of(
        catalog: &Catalog,
        members: &BTreeMap<MemberId, String>,
        listed: &BTreeMap<NodeId, String>,
    ) -> Known {
        let mut known = Known { peers: BTreeMap::new(), over: catalog.removed_nodes().collect() };
        for (node, record) in catalog.nodes() {
            known.add(node, &record.addresses.peer);
            if let Some(before) = record.incarnation.checked_sub(1) {
                known.over.insert(node, before);
            }
        }
        // Later lives come first here: what they say is newer.
        for (member, address) in members.iter().rev() {
            let last = known.over.get(&member.node());
            if last.is_none_or(|last| member.incarnation() > *last) {
                known.add(member.node(), address);
            }
        }
        for (node, address) in listed {
            if catalog.removed(*node).is_none() {
                known.add(*node, address);
            }
        }
        known
    }

    /// Unless it is known better, or nowhere.
    fn add(&mut self, node: NodeId, address: &str) {
        if !address.is_empty() {
            self.peers.entry(node).or_insert_with(|| address.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use model::catalog::{CatalogCommand, ClusterFacts, NodeAddresses};
    use model::{Elapsed, Position, WallTime};
    use state_machine::{Effects, Machine as _};

    use super::*;

    fn at(address: &str) -> NodeAddresses {
        NodeAddresses { peer: address.to_owned(), http: String::new() }
    }

    fn peers(text: &str) -> BTreeMap<NodeId, String> {
        let pair = |pair: &str| {
            let (node, address) = pair.split_once('=').unwrap();
            (NodeId(node.parse().unwrap()), address.to_owned())
        };
        text.split_whitespace().map(pair).collect()
    }

    #[test]
    fn everybody_of_whom_something_was_heard_is_looked_for_but_those_that_were_removed() {
        let facts = ClusterFacts { cluster_id: 7, shards: 4, token_key: [1; 32] };
        let nodes = [(1, "c1"), (2, "c2"), (3, ""), (4, "c4"), (5, "c5")];
        let nodes = nodes.map(|(node, address)| (NodeId(node), at(address))).to_vec();
        let mut catalog = Catalog::new();
        let position = Position { index: 1, n: 0, elapsed: Elapsed(5), wall: WallTime::from_millis(6) };
        for command in [
            CatalogCommand::Found { facts, nodes },
            CatalogCommand::RemoveNode { node: NodeId(2), incarnation: 0 },
            CatalogCommand::AddNode { node: NodeId(4), nonce: 9, addresses: at("c4.1") },
            CatalogCommand::RemoveNode { node: NodeId(5), incarnation: 0 },
        ] {
            catalog.apply(position, command, &mut Effects::default()).unwrap();
        }
        let member =
            |node, incarnation, address: &str| (MemberId::new(NodeId(node), incarnation), address.to_owned());
        let members = BTreeMap::from([
            member(1, 0, "m1"),
            member(2, 0, "m2"),
            member(4, 0, "m4"),
            // Came again, of which this copy of the catalog knows nothing.
            member(5, 1, "m5.1"),
            member(6, 0, "m6"),
            member(6, 2, "m6.2"),
        ]);
        let listed = peers("1=l1 2=l2 3=l3 6=l6 8=l8");
        let known = Known::of(&catalog, &members, &listed);
        assert_eq!(known.peers, peers("1=c1 3=l3 4=c4.1 5=m5.1 6=m6.2 8=l8"));
        assert_eq!(known.over, BTreeMap::from([(NodeId(2), 0), (NodeId(4), 0), (NodeId(5), 0)]));
    }
}
