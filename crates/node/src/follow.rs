//! Follows the catalog's word on where the other nodes are, and the links' word on whether they are there.
//!
//! A node knows the catalog by its own copy, which may be a moment behind its leader's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::NodeId;
use state_machine::Catalog;
use tokio::sync::broadcast::error::RecvError;

use crate::inner::Inner;
use crate::link::LinkEvent;

/// How often it looks when it is not told of a change.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Keeps the links with the nodes that the catalog knows, until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let catalog = &inner.groups.catalog;
    let mut seen = 0;
    loop {
        let index = catalog.applied();
        let version = catalog.read_stale(Catalog::nodes_version);
        if version != seen {
            seen = version;
            inner.take_nodes();
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
    fn take_nodes(&self) {
        let look = |catalog: &Catalog| -> BTreeMap<NodeId, String> {
            catalog.nodes().map(|(node, record)| (node, record.addresses.peer.clone())).collect()
        };
        let mut peers = self.groups.catalog.read_stale(look);
        for (node, address) in &mut peers {
            // One that has not said where it is yet is where the list says.
            if address.is_empty() {
                self.listed.get(node).cloned().unwrap_or_default().clone_into(address);
            }
        }
        peers.retain(|_, address| !address.is_empty());
        self.links.set_peers(peers);
    }
}
