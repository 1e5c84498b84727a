//! What can be asked of the catalog, and what it knows.

use crate::id::{GroupId, MemberId, NodeId};
use crate::name::QueueName;
use crate::policy::QueueSettings;

/// What can be asked of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogCommand {
    /// Makes a cluster that names no nodes; the first one counts. Only logs of lone nodes have it.
    Init(ClusterFacts),
    /// Sets a queue's policy or pause.
    SetQueue {
        /// Which.
        queue: QueueName,
        /// What it shall be; its `version` is the one that the caller read (0: there was none).
        settings: QueueSettings,
    },
    /// Forgets a queue's settings.
    DeleteQueue {
        /// Which.
        queue: QueueName,
    },
    /// Makes the cluster and its first nodes, all of them in their first life; the first one counts.
    ///
    /// One command for both: a founder that lost its disk must find its record, or it would be taken for a
    /// node that never was, and get the number of its own lost life.
    Found {
        /// What never changes.
        facts: ClusterFacts,
        /// Who founds it.
        nodes: Vec<(NodeId, NodeAddresses)>,
    },
    /// Takes a node with an empty disk in, under an incarnation that it never had.
    AddNode {
        /// Which.
        node: NodeId,
        /// Tells one try to join from another: a repeat gets the same answer.
        nonce: u128,
        /// Where it is.
        addresses: NodeAddresses,
    },
    /// A node has moved.
    SetNode {
        /// Which.
        node: NodeId,
        /// Which of its lives; another one's word does not count.
        incarnation: u64,
        /// Where it is now.
        addresses: NodeAddresses,
    },
    /// A node shall have no votes any more, and go when it has none.
    Leave {
        /// Which.
        node: NodeId,
    },
    /// Forgets a node that has no vote, but for the number of its last life.
    RemoveNode {
        /// Which.
        node: NodeId,
        /// Which of its lives.
        incarnation: u64,
    },
    /// Says which nodes vote in a group.
    SetVoters {
        /// The group.
        group: GroupId,
        /// They vote, at most [`crate::limits::VOTERS_MAX`].
        nodes: Vec<NodeId>,
        /// The version of the nodes and votes that the caller read.
        version: u64,
    },
}

/// Where a node is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    /// By other nodes.
    pub peer: String,
    /// By everybody else.
    pub http: String,
}

/// What the catalog knows of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Which of its lives counts.
    pub incarnation: u64,
    /// Where it is.
    pub addresses: NodeAddresses,
    /// It shall have no votes, and then go.
    pub is_leaving: bool,
    /// Of the try that made this life; 0 for a founder.
    pub nonce: u128,
}

impl NodeRecord {
    /// The member that `node` is in every group.
    pub fn member(&self, node: NodeId) -> MemberId {
        MemberId::new(node, self.incarnation)
    }
}

/// What never changes after the cluster was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Tells clusters apart.
    pub cluster_id: u128,
    /// How many shards there are.
    pub shards: u16,
    /// The key under which tokens are signed.
    pub token_key: [u8; 32],
}

/// What the catalog answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogReply {
    /// To `Init` and `Found`: the facts that count, whoever made them.
    Cluster(ClusterFacts),
    /// To `SetQueue`: the edition that is valid now. To `DeleteQueue`: the version of the deletion. To what
    /// changes nodes and votes: their version now.
    Version(u64),
    /// To `AddNode`: who the node is from now on.
    Member(MemberId),
}
