//! Who is connected, who should be, and what was seen of them.
//!
//! All changes of a link's state and all events come from here, under one lock, so that what is told is in
//! the order of what happened.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::{Millis, NodeId, limits};
use parking_lot::Mutex;
use replica::Clock;
use tokio::sync::{Notify, broadcast, watch};
use wire::peer::RefusalCode;

use super::complaints::Complaints;
use super::connection::{Cause, Connection, Other};
use super::counters::Counters;
use super::handler::Handler;
use super::links::{Identity, LinkEvent, LinkState, LinkStats, Membership};
use super::places::Host;

/// Events that a slow listener may be behind by.
const EVENTS_KEPT: usize = 1024;
/// Connections of nodes that are no peers of ours and do not know the cluster, such as those that want to join.
const UNLISTED_MAX: usize = 64;
/// Connections of nodes that are no peers of ours and know the cluster: what is known here of it may be old.
const UNLISTED_MEMBERS_MAX: usize = limits::NODES_MAX;
/// How long a connection has to answer when another one wants its place.
const ALIVE_WITHIN: Duration = Duration::from_millis(300);

/// Why a connection ends that was open to a life of a node that is over.
const OVER: Cause = Cause::Here("the other side is not of this cluster any more");

/// What all links share.
pub(super) struct Shared {
    pub(super) me: Identity,
    pub(super) complaints: Complaints,
    clock: Arc<dyn Clock>,
    started: Millis,
    events: broadcast::Sender<LinkEvent>,
    table: Mutex<Table>,
    /// With whom to keep links, and where they are.
    wanted: watch::Sender<BTreeMap<NodeId, String>>,
}

#[derive(Default)]
struct Table {
    ours: Membership,
    peers: BTreeMap<NodeId, Peer>,
    /// Of each node the last life that is over.
    over: BTreeMap<NodeId, u64>,
    connections: u64,
    is_stopped: bool,
}

struct Peer {
    connection: Option<Arc<Connection>>,
    is_wanted: bool,
    /// Whether it was told that it is up, and since when it is or is not.
    is_up: bool,
    since: Millis,
    /// The process that was up last, and whether it was seen to end.
    process: Option<u64>,
    is_gone: bool,
    /// The process whose connection the other side closed, until somebody looks into it.
    lost: Option<u64>,
    /// Where it dialled from last.
    host: Option<Host>,
    counters: Arc<Counters>,
    /// Rings for who keeps this link, when a connection came or went.
    changed: Arc<Notify>,
}

impl Peer {
    fn new(since: Millis) -> Peer {
        Peer {
            connection: None,
            is_wanted: false,
            is_up: false,
            since,
            process: None,
            is_gone: false,
            lost: None,
            host: None,
            counters: Arc::default(),
            changed: Arc::default(),
        }
    }

    fn live(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref().filter(|connection| !connection.is_closed())
    }

    /// Whether there is no connection to the process that counts. One to another life of the node, or to one that
    /// does not know the cluster, says nothing of it. One to that very process may be about to carry everything.
    fn is_vacant(&self) -> bool {
        let is_its = |connection: &Arc<Connection>| Some(connection.other.process) == self.process;
        self.connection.as_ref().is_none_or(|connection| !connection.is_full() && !is_its(connection))
    }
}

impl Table {
    /// Whether this life of a node has no place in the cluster any more.
    fn is_over(&self, other: &Other) -> bool {
        let Some(last) = self.over.get(&other.node) else { return false };
        match other.incarnation {
            Some(incarnation) => incarnation <= *last,
            // One that does not say it is taken for the last one.
            None => self.peers.get(&other.node).is_none_or(|peer| !peer.is_wanted),
        }
    }

    /// Whether everything may go through a connection to this one.
    fn opens_to(&self, other: &Other) -> bool {
        other.knows_cluster && !self.is_over(other)
    }

    /// Connections of nodes that are no peers, of those that know the cluster or of the others.
    fn unlisted(&self, knows_cluster: bool) -> usize {
        let is_such = |peer: &&Peer| {
            let is_like = |connection: &Arc<Connection>| connection.other.knows_cluster == knows_cluster;
            !peer.is_wanted && peer.connection.as_ref().is_some_and(is_like)
        };
        self.peers.values().filter(is_such).count()
    }
}

impl Shared {
    pub(super) fn new(me: Identity, clock: Arc<dyn Clock>) -> Shared {
        Shared {
            me,
            complaints: Complaints::default(),
            started: clock.elapsed(),
            clock,
            events: broadcast::Sender::new(EVENTS_KEPT),
            table: Mutex::default(),
            wanted: watch::Sender::new(BTreeMap::new()),
        }
    }

    pub(super) fn events(&self) -> broadcast::Receiver<LinkEvent> {
        self.events.subscribe()
    }

    pub(super) fn wanted(&self) -> watch::Receiver<BTreeMap<NodeId, String>> {
        self.wanted.subscribe()
    }

    pub(super) fn address(&self, node: NodeId) -> Option<String> {
        self.wanted.borrow().get(&node).cloned()
    }

    /// Whether a peer is said to be at this host, or a node of this cluster came from there.
    pub(super) fn is_peers_host(&self, host: &Host) -> bool {
        self.wanted.borrow().values().any(|address| Host::of(address) == *host)
            || self.table.lock().peers.values().any(|peer| peer.host.as_ref() == Some(host))
    }

    pub(super) fn membership(&self) -> Membership {
        self.table.lock().ours
    }

    fn tell(&self, event: LinkEvent) {
        // Nobody needs to listen.
        let _ = self.events.send(event);
    }

    pub(super) fn set_membership(&self, ours: Membership) {
        let mut table = self.table.lock();
        if table.ours == ours {
            return;
        }
        table.ours = ours;
        for connection in table.peers.values().filter_map(Peer::live) {
            connection.close(Cause::Here("the cluster is known now: the two greet again"));
        }
    }

    pub(super) fn set_peers(&self, mut peers: BTreeMap<NodeId, String>, over: BTreeMap<NodeId, u64>) {
        peers.remove(&self.me.node);
        let mut table = self.table.lock();
        table.over = over;
        for node in peers.keys() {
            table.peers.entry(*node).or_insert_with(|| Peer::new(self.started)).is_wanted = true;
        }
        table.peers.retain(|node, peer| {
            peer.is_wanted = peers.contains_key(node);
            // Whoever is of this cluster may stay although it is not named: it may know more than this node.
            peer.is_wanted || peer.connection.is_some()
        });
        let live: Vec<_> = table.peers.values().filter_map(Peer::live).cloned().collect();
        for connection in live.iter().filter(|connection| connection.is_full()) {
            if table.is_over(&connection.other) {
                connection.close(OVER);
            }
        }
        drop(table);
        self.wanted.send_replace(peers);
        live.iter().for_each(|connection| self.open(connection));
    }

    /// The connection to this node.
    pub(super) fn connection(&self, node: NodeId) -> Option<Arc<Connection>> {
        self.table.lock().peers.get(&node)?.live().cloned()
    }

    /// Whether a connection may come: over which one, which was found dead. Or why not.
    pub(super) async fn admit(&self, other: &Other) -> Result<Option<u64>, (RefusalCode, String)> {
        let node = other.node;
        let (old, gives_way) = {
            let table = self.table.lock();
            let unlisted_max = if other.knows_cluster { UNLISTED_MEMBERS_MAX } else { UNLISTED_MAX };
            if !table.peers.contains_key(&node) && table.unlisted(other.knows_cluster) >= unlisted_max {
                let text =
                    format!("node {} has too many connections of nodes it does not know", self.me.node);
                return Err((RefusalCode::TooMany, text));
            }
            let old = table.peers.get(&node).and_then(Peer::live).cloned();
            let gives_way = |old: &Arc<Connection>| table.opens_to(other) && !table.opens_to(&old.other);
            let gives_way = old.as_ref().is_some_and(gives_way);
            (old, gives_way)
        };
        let Some(old) = old else { return Ok(None) };
        if old.other.process == other.process && self.is_dialled_by_smaller(other) {
            return Ok(None);
        }
        // Anybody may say a node's number: who is of this cluster comes before one that is not, or not any more.
        if gives_way {
            return Ok(Some(old.number));
        }
        if !old.is_alive(ALIVE_WITHIN).await {
            return Ok(Some(old.number));
        }
        if old.other.process == other.process {
            return Err((RefusalCode::Busy, format!("there is a connection to node {node} already")));
        }
        let text =
            format!("two processes say that they are node {node}: give each its own number with --node");
        Err((RefusalCode::SameNumber, text))
    }

    fn is_dialled_by_smaller(&self, other: &Other) -> bool {
        other.is_ours == (self.me.node < other.node)
    }

    /// Puts a connection into its place, if it may have it: over the one found dead, over an older one to
    /// the same process when the smaller node dialled, or over none.
    pub(super) fn install(
        &self,
        other: Other,
        over: Option<u64>,
        handler: Arc<dyn Handler>,
    ) -> Option<Arc<Connection>> {
        let mut table = self.table.lock();
        if table.is_stopped || other.our_cluster != table.ours.cluster {
            return None;
        }
        let opens = table.opens_to(&other);
        table.connections += 1;
        let number = table.connections;
        let peer = table.peers.entry(other.node).or_insert_with(|| Peer::new(self.started));
        if let Some(old) = peer.live() {
            let is_same = old.other.process == other.process;
            if over != Some(old.number) && !(is_same && self.is_dialled_by_smaller(&other)) {
                return None;
            }
            old.close(Cause::Here("another connection took its place"));
        }
        let is_other_process = peer.process.is_some_and(|process| process != other.process);
        if peer.is_up && (is_other_process || !opens) {
            self.down(peer, other.node, "another process has its place");
        }
        // One that is not of this cluster, or not any more, says nothing of the one that is.
        if opens {
            if is_other_process {
                self.gone(peer, other.node);
                peer.process = None;
            }
            peer.is_gone = false;
            peer.lost = None;
        }
        let connection = Connection::new(number, other, handler, peer.counters.clone());
        peer.connection = Some(connection.clone());
        peer.changed.notify_one();
        Some(connection)
    }

    /// Lets everything through, if the other side knows the cluster and is not over.
    pub(super) fn open(&self, connection: &Arc<Connection>) {
        let node = connection.other.node;
        let is_current = |peer: &Peer| peer.live().is_some_and(|current| current.number == connection.number);
        let may_open = {
            let table = self.table.lock();
            if !connection.other.knows_cluster || !table.peers.get(&node).is_some_and(is_current) {
                return;
            }
            !table.is_over(&connection.other)
        };
        connection.set_over(!may_open);
        if !may_open {
            return self.complaints.warn(&node.to_string(), "removed", &connection.other.over());
        }
        // Without the lock: the handler may look at links. Before the event: whoever hears it may send.
        connection.open_fully();
        let mut table = self.table.lock();
        // Those that were not full yet were not closed when it became known.
        if table.is_over(&connection.other) {
            return connection.close(OVER);
        }
        let Some(peer) = table.peers.get_mut(&node).filter(|peer| is_current(peer)) else { return };
        peer.process = Some(connection.other.process);
        if connection.other.host.is_some() {
            peer.host.clone_from(&connection.other.host);
        }
        if !peer.is_up {
            peer.is_up = true;
            peer.since = self.clock.elapsed();
            tracing::info!(node = node.0, connection = connection.number, "a node can be talked to");
            self.tell(LinkEvent::Up(node));
        }
    }

    /// The connection has ended.
    pub(super) fn ended(&self, connection: &Connection) {
        let node = connection.other.node;
        let mut table = self.table.lock();
        let Some(peer) = table.peers.get_mut(&node) else { return };
        if peer.connection.as_ref().is_none_or(|current| current.number != connection.number) {
            return;
        }
        peer.connection = None;
        let cause = connection.cause();
        if peer.is_up {
            self.down(peer, node, &cause.text());
        }
        if let Cause::Broken(text) = &cause {
            self.complaints.warn(&node.to_string(), "broken", text);
        }
        peer.lost = matches!(cause, Cause::Other(_)).then_some(connection.other.process);
        peer.changed.notify_one();
        if !peer.is_wanted {
            table.peers.remove(&node);
        }
    }

    fn down(&self, peer: &mut Peer, node: NodeId, why: &str) {
        peer.is_up = false;
        peer.since = self.clock.elapsed();
        tracing::info!(node = node.0, why, "a node cannot be talked to any more");
        self.tell(LinkEvent::Down(node));
    }

    fn gone(&self, peer: &mut Peer, node: NodeId) {
        if !peer.is_gone {
            peer.is_gone = true;
            tracing::info!(node = node.0, "the process of a node has ended");
            self.tell(LinkEvent::Gone(node));
        }
    }

    /// Nobody listens where this process of the node did.
    pub(super) fn ended_there(&self, node: NodeId, process: u64) {
        let mut table = self.table.lock();
        if let Some(peer) = table.peers.get_mut(&node)
            && peer.process == Some(process)
            && peer.is_vacant()
        {
            self.gone(peer, node);
        }
    }

    /// Waits until there is no connection to this node, or only one that hides the end of another. The process that
    /// closed the last one, if nobody looked into that yet.
    pub(super) async fn vacant(&self, node: NodeId) -> Option<u64> {
        loop {
            let changed = {
                let mut table = self.table.lock();
                let peer = table.peers.get_mut(&node)?;
                if peer.connection.is_none() || (peer.lost.is_some() && peer.is_vacant()) {
                    return peer.lost.take();
                }
                peer.changed.clone()
            };
            changed.notified().await;
        }
    }

    /// Waits so long, or until a connection to this node came or went.
    pub(super) async fn changed(&self, node: NodeId, within: Duration) {
        let changed = self.table.lock().peers.get(&node).map(|peer| peer.changed.clone());
        let changed = async {
            match changed {
                Some(changed) => changed.notified().await,
                None => std::future::pending().await,
            }
        };
        let _ = tokio::time::timeout(within, changed).await;
    }

    /// Closes all, for good.
    pub(super) fn stop(&self) {
        let mut table = self.table.lock();
        table.is_stopped = true;
        for connection in table.peers.values().filter_map(Peer::live) {
            connection.close(Cause::Here("this node stops"));
        }
    }

    pub(super) fn up(&self) -> Vec<NodeId> {
        let table = self.table.lock();
        table.peers.iter().filter(|(_, peer)| peer.is_up).map(|(node, _)| *node).collect()
    }

    pub(super) fn state(&self, node: NodeId) -> LinkState {
        match self.table.lock().peers.get(&node) {
            None => LinkState::Down { since: self.started, gone: false },
            Some(Peer { is_up: true, since, counters, .. }) => {
                LinkState::Up { since: *since, round_trip: counters.measured() }
            }
            Some(Peer { since, is_gone, .. }) => LinkState::Down { since: *since, gone: *is_gone },
        }
    }

    pub(super) fn stats(&self) -> BTreeMap<NodeId, LinkStats> {
        let table = self.table.lock();
        let stats = table.peers.iter().filter(|(_, peer)| peer.is_wanted).map(|(node, peer)| {
            let queued = peer.connection.as_ref().map_or(0, |connection| connection.queued_bytes());
            (*node, peer.counters.snapshot(queued))
        });
        stats.collect()
    }
}
