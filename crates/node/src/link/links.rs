//! The handle to all links of this node.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use model::{GroupId, MemberId, Millis, NodeId};
use replica::{Clock, Pace, PeerAnswer, Peers, SystemClock, Unreached};
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::peer::PeerKind;

use super::accept::{self, Maker};
use super::connection::{Answer, Connection};
use super::handler::Handler;
use super::network::Network;
use super::table::Shared;

/// Who this node is to the others.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) node: NodeId,
    /// A random number, new at each start: tells a process from the one before it.
    pub(crate) process: u64,
    /// Where others reach this node.
    pub(crate) address: String,
}

/// What this node is in its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Membership {
    /// The cluster's id; 0 while none is known.
    pub(super) cluster: u128,
    /// Which of its lives this is; nothing while no cluster is known.
    pub(super) incarnation: Option<u64>,
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkError {
    /// Never handed to the other side: nothing happened.
    #[error("{0}")]
    Unreached(String),
    /// Handed over, but no answer came: it may have happened or not.
    #[error("the link was lost before the answer came")]
    Lost,
    /// The other side said no.
    #[error("{0}")]
    Refused(String),
}

/// Whether a node can be talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// It can, since this moment of [`Clock::elapsed`].
    Up { since: Millis, round_trip: Duration },
    /// It cannot. `gone`: its process was seen to end, and no new one answered since.
    Down { since: Millis, gone: bool },
}

/// What happens to links to nodes of this cluster, whether they are peers or came by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// It can be talked to.
    Up(NodeId),
    /// It cannot any more, whatever the reason.
    Down(NodeId),
    /// The process that we talked to has ended. Comes after `Down`; before `Up` if a new process answers.
    Gone(NodeId),
}

/// What went through the link to one node since this process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkStats {
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) frames_in: u64,
    pub(crate) frames_out: u64,
    /// Connections made, the first included.
    pub(crate) connections: u64,
    /// Bytes that wait to be written.
    pub(crate) queued_bytes: u64,
    pub(crate) round_trip: Duration,
}

/// All links of this node. Clones are the same links.
#[derive(Clone)]
pub(crate) struct Links {
    shared: Arc<Shared>,
}

impl Links {
    /// Begins to listen, and to keep links with whom [`Links::set_peers`] names, until `stopping`. The
    /// network and the handler are given back when all `tasks` have ended.
    pub(crate) fn start(
        network: Arc<dyn Network>,
        me: Identity,
        handler: Arc<dyn Handler>,
        clock: Arc<dyn Clock>,
        stopping: CancellationToken,
        tasks: TaskTracker,
    ) -> Links {
        let shared = Arc::new(Shared::new(me, clock));
        let maker = Maker { shared: shared.clone(), network, handler, stopping, tasks: tasks.clone() };
        tasks.spawn(accept::run(maker));
        Links { shared }
    }

    /// The links of a lone node: nobody is ever reached.
    pub(crate) fn alone() -> Links {
        let me = Identity { node: NodeId(0), process: 0, address: String::new() };
        Links { shared: Arc::new(Shared::new(me, Arc::new(SystemClock::new()))) }
    }

    /// The cluster is known now, and which life of this node is part of it. Connections made before are made
    /// again.
    pub(crate) fn set_cluster(&self, cluster_id: u128, incarnation: u64) {
        self.shared.set_membership(Membership { cluster: cluster_id, incarnation: Some(incarnation) });
    }

    /// With whom to keep links, and where they are; this node itself is passed over. Others that prove to be of
    /// this cluster are welcome too, for what is known here may be old. `over` has of a node the last life that
    /// has no place in the cluster any more: whoever is that one or an older one may only ask what became of
    /// it, or to join.
    pub(crate) fn set_peers(&self, peers: BTreeMap<NodeId, String>, over: BTreeMap<NodeId, u64>) {
        self.shared.set_peers(peers, over);
    }

    /// Asks, and waits for the answer at most so long. Without a link it is unreached at once.
    pub(crate) async fn call(
        &self,
        to: NodeId,
        kind: PeerKind,
        group: GroupId,
        body: Bytes,
        within: Duration,
    ) -> Result<Bytes, LinkError> {
        let deadline = Instant::now() + within;
        let placed = self.connection(to)?.place(kind, group, body, Pace::Now)?;
        let mut answer = match tokio::time::timeout_at(deadline, placed.taken()).await {
            Ok(taken) => taken?,
            Err(_) => {
                return Err(LinkError::Unreached(format!("the link to node {to} is full: not sent in time")));
            }
        };
        match tokio::time::timeout_at(deadline, &mut answer).await {
            Ok(answered) => answered,
            Err(_) => Err(answer.give_up()),
        }
    }

    /// Asks, in two steps: ready when the link has taken the request, then the answer. Its place among
    /// other requests is that of this call, not of the first poll.
    pub(crate) fn send(
        &self,
        to: NodeId,
        kind: PeerKind,
        group: GroupId,
        body: Bytes,
        pace: Pace,
    ) -> impl Future<Output = Result<Answer, LinkError>> + Send + use<> {
        let placed = self.connection(to).and_then(|connection| connection.place(kind, group, body, pace));
        async move { placed?.taken().await }
    }

    /// Tells something that needs no answer. False when there is no link or no room: nothing was told.
    pub(crate) fn tell(&self, to: NodeId, kind: PeerKind, group: GroupId, body: Bytes) -> bool {
        self.shared.connection(to).is_some_and(|connection| connection.tell(kind, group, body))
    }

    fn connection(&self, to: NodeId) -> Result<Arc<Connection>, LinkError> {
        let connection = self.shared.connection(to);
        connection.ok_or_else(|| LinkError::Unreached(format!("there is no link to node {to}")))
    }

    /// The nodes that can be talked to.
    pub(crate) fn up(&self) -> Vec<NodeId> {
        self.shared.up()
    }

    /// Whether this node can be talked to.
    pub(crate) fn state(&self, node: NodeId) -> LinkState {
        self.shared.state(node)
    }

    /// What happens from now on. Whoever is too slow misses some, is told so, and looks at [`Links::state`].
    pub(crate) fn events(&self) -> broadcast::Receiver<LinkEvent> {
        self.shared.events()
    }

    /// What went through the link to each peer.
    pub(crate) fn stats(&self) -> BTreeMap<NodeId, LinkStats> {
        self.shared.stats()
    }
}

impl Peers for Links {
    fn send(
        &self,
        to: MemberId,
        group: GroupId,
        kind: PeerKind,
        body: Bytes,
        pace: Pace,
    ) -> BoxFuture<'static, Result<PeerAnswer, Unreached>> {
        let sent = Links::send(self, to.node(), kind, group, body, pace);
        Box::pin(async move {
            let answer = sent.await.map_err(unreached)?;
            Ok(Box::pin(async move { answer.await.map_err(unreached) }) as PeerAnswer)
        })
    }

    fn is_gone(&self, node: NodeId) -> bool {
        matches!(self.state(node), LinkState::Down { gone: true, .. })
    }
}

fn unreached(error: LinkError) -> Unreached {
    Unreached(error.to_string())
}
