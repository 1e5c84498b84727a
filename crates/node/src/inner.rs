//! A node: a cheap handle to what its parts share.
//!
//! Each verb has its own file with an `impl Node`. What runs by itself holds [`Inner`]; when the last
//! [`Node`] goes, or [`Node::stop`] is called, it ends. Next: `start.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use model::catalog::ClusterFacts;
use model::{MemberId, Millis, NodeId, WallTime};
use parking_lot::Mutex;
use replica::Clock;
use storage::{DirLock, Log};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use wire::token::Mint;

use crate::any_replica::AnyReplica;
use crate::elections::Elections;
use crate::ends::Ends;
use crate::events::{EventStream, Events};
use crate::groups::Groups;
use crate::held_clock::HeldClock;
use crate::ids::Ids;
use crate::life::standing::Life;
use crate::lines::Lines;
use crate::link::Links;
use crate::mutes::Mutes;
use crate::policies::Policies;
use crate::rates::Samples;
use crate::reach::Reach;
use crate::registry::Registry;
use crate::requests::Requests;
use crate::room::Room;
use crate::start::Outside;
use crate::stats::Counters;
use crate::status::Statuses;
use crate::taken::Returns;

/// A node. Clones are the same node.
#[derive(Clone)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
    /// Ends what runs by itself when the last handle goes.
    pub(crate) _life: Arc<[DropGuard; 2]>,
}

/// What the parts of a node share.
pub(crate) struct Inner {
    pub(crate) node: NodeId,
    /// Who this node is in every group.
    pub(crate) member: MemberId,
    pub(crate) life: Arc<Life>,
    /// The nodes that it was told of at its start, and where they are.
    pub(crate) listed: BTreeMap<NodeId, String>,
    /// All groups, the catalog first.
    pub(crate) replicas: Vec<Arc<dyn AnyReplica>>,
    pub(crate) auto_create: bool,
    /// Whether the catalog here has once had all that was answered before.
    pub(crate) knows_queues: AtomicBool,
    pub(crate) cluster: ClusterFacts,
    /// What everything goes by: the held clock.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) held: Arc<HeldClock>,
    pub(crate) started: (Millis, WallTime),
    pub(crate) groups: Groups,
    pub(crate) mint: Mint,
    pub(crate) ids: Ids,
    /// Whose turn it is to get a task without keys.
    pub(crate) turn: AtomicU64,
    pub(crate) policies: Policies,
    pub(crate) room: Room,
    pub(crate) lines: Lines,
    pub(crate) mutes: Mutes,
    pub(crate) reach: Reach,
    /// Rings when a shard may not know what the catalog says of queues.
    pub(crate) settings_due: Notify,
    /// To the other nodes.
    pub(crate) links: Links,
    pub(crate) outside: Outside,
    pub(crate) requests: Requests,
    pub(crate) returns: Returns,
    pub(crate) sessions: Registry,
    /// One for each shard: rings when it owes something to another.
    pub(crate) outboxes: Vec<Notify>,
    pub(crate) events: Events,
    pub(crate) ends: Ends,
    pub(crate) counters: Counters,
    pub(crate) samples: Samples,
    pub(crate) elections: Elections,
    /// What the other nodes say of themselves.
    pub(crate) statuses: Statuses,
    /// The cluster does not count on this node any more.
    pub(crate) is_removed: AtomicBool,
    /// It is about to stop: nobody should hand it anything any more.
    pub(crate) is_going: AtomicBool,
    pub(crate) stopping: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) log: Log,
    /// Given back when the node has stopped.
    pub(crate) lock: Mutex<Option<DirLock>>,
}

impl Inner {
    /// Where a node is reached by everybody who is no node.
    pub(crate) fn http_address(&self, node: NodeId) -> Option<String> {
        // What it said itself is newer than what the catalog knows.
        let told = self.statuses.last(node).map(|heard| heard.status.address.clone());
        let known =
            || self.groups.catalog.read_stale(|catalog| Some(catalog.node(node)?.addresses.http.clone()));
        let is_known = |address: &String| !address.is_empty();
        told.filter(is_known).or_else(known).filter(is_known)
    }

    /// Whether this node stops, or is about to.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_going.load(Ordering::Relaxed) || self.stopping.is_cancelled()
    }

    /// The time that never jumps.
    pub(crate) fn now(&self) -> Millis {
        self.clock.elapsed()
    }
}

impl Node {
    /// Which node this is.
    pub fn id(&self) -> NodeId {
        self.inner.node
    }

    /// How many shards the cluster has.
    pub fn shards(&self) -> u16 {
        self.inner.groups.count()
    }

    /// What happens: after the event `after`, as far as it is remembered, or from now on.
    pub fn events(&self, after: Option<u64>) -> EventStream {
        self.inner.events.stream(after)
    }
}
