//! A command to the catalog as bytes.

use bytes::Bytes;
use model::catalog::{CatalogCommand, ClusterFacts, NodeAddresses};
use model::{GroupId, NodeId, limits};
use prost::{Message, Oneof};

use crate::entry::Malformed;
use crate::new_task::{Bits128, queue_name};
use crate::settings::SettingsMessage;

/// [`CatalogCommand`] as a message.
#[derive(Clone, PartialEq, Message)]
pub struct CatalogMessage {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    Init(InitMessage),
    #[prost(message, tag = "2")]
    SetQueue(SetQueueMessage),
    #[prost(bytes = "bytes", tag = "3")]
    DeleteQueue(Bytes),
    #[prost(message, tag = "4")]
    Found(FoundMessage),
    #[prost(message, tag = "5")]
    AddNode(NodeMessage),
    #[prost(message, tag = "6")]
    SetNode(NodeMessage),
    #[prost(message, tag = "7")]
    Leave(NodeMessage),
    #[prost(message, tag = "8")]
    RemoveNode(NodeMessage),
    #[prost(message, tag = "9")]
    SetVoters(SetVotersMessage),
}

/// A new cluster; also what founders tell each other and write down.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FoundMessage {
    #[prost(message, optional, tag = "1")]
    facts: Option<InitMessage>,
    #[prost(message, repeated, tag = "2")]
    nodes: Vec<NodeMessage>,
}

/// A node, and what is said of it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeMessage {
    #[prost(uint64, tag = "1")]
    pub(crate) node: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) incarnation: u64,
    #[prost(message, optional, tag = "3")]
    nonce: Option<Bits128>,
    #[prost(string, tag = "4")]
    peer: String,
    #[prost(string, tag = "5")]
    http: String,
}

impl NodeMessage {
    pub(crate) fn of(node: NodeId) -> NodeMessage {
        NodeMessage { node: node.0, ..NodeMessage::default() }
    }

    pub(crate) fn with_addresses(self, addresses: &NodeAddresses) -> NodeMessage {
        NodeMessage { peer: addresses.peer.clone(), http: addresses.http.clone(), ..self }
    }

    pub(crate) fn with_incarnation(self, incarnation: u64) -> NodeMessage {
        NodeMessage { incarnation, ..self }
    }

    pub(crate) fn with_nonce(self, nonce: u128) -> NodeMessage {
        NodeMessage { nonce: Some(nonce.into()), ..self }
    }

    pub(crate) fn node(&self) -> Result<NodeId, Malformed> {
        node_id(self.node)
    }

    pub(crate) fn nonce(&self) -> u128 {
        self.nonce.map_or(0, u128::from)
    }

    pub(crate) fn addresses(self) -> Result<NodeAddresses, Malformed> {
        if self.peer.len() > limits::ADDRESS_BYTES_MAX || self.http.len() > limits::ADDRESS_BYTES_MAX {
            return Err(Malformed::Value("address"));
        }
        Ok(NodeAddresses { peer: self.peer, http: self.http })
    }
}

pub(crate) fn node_id(node: u64) -> Result<NodeId, Malformed> {
    if (1..=limits::NODE_MAX).contains(&node) { Ok(NodeId(node)) } else { Err(Malformed::Value("node")) }
}

impl FoundMessage {
    pub(crate) fn new(facts: &ClusterFacts, nodes: &[(NodeId, NodeAddresses)]) -> FoundMessage {
        let nodes = nodes.iter().map(|(node, addresses)| NodeMessage::of(*node).with_addresses(addresses));
        FoundMessage { facts: Some(facts.into()), nodes: nodes.collect() }
    }

    pub(crate) fn read(self) -> Result<(ClusterFacts, Vec<(NodeId, NodeAddresses)>), Malformed> {
        let facts = self.facts.ok_or(Malformed::Missing("facts of the cluster"))?.try_into()?;
        let nodes = self.nodes.into_iter().map(|node| Ok((node.node()?, node.addresses()?)));
        Ok((facts, nodes.collect::<Result<_, Malformed>>()?))
    }
}

#[derive(Clone, PartialEq, Message)]
struct SetVotersMessage {
    #[prost(uint32, tag = "1")]
    group: u32,
    #[prost(uint64, repeated, tag = "2")]
    nodes: Vec<u64>,
    #[prost(uint64, tag = "3")]
    version: u64,
}

/// What never changes of a cluster.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InitMessage {
    #[prost(message, optional, tag = "1")]
    cluster_id: Option<Bits128>,
    #[prost(uint32, tag = "2")]
    shards: u32,
    #[prost(bytes = "bytes", tag = "3")]
    token_key: Bytes,
}

/// A queue and its settings; shared with the shard's command.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SetQueueMessage {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) queue: Bytes,
    #[prost(message, optional, tag = "2")]
    pub(crate) settings: Option<SettingsMessage>,
}

impl From<&ClusterFacts> for InitMessage {
    fn from(facts: &ClusterFacts) -> InitMessage {
        InitMessage {
            cluster_id: Some(facts.cluster_id.into()),
            shards: u32::from(facts.shards),
            token_key: Bytes::copy_from_slice(&facts.token_key),
        }
    }
}

impl TryFrom<InitMessage> for ClusterFacts {
    type Error = Malformed;

    fn try_from(init: InitMessage) -> Result<ClusterFacts, Malformed> {
        Ok(ClusterFacts {
            cluster_id: init.cluster_id.ok_or(Malformed::Missing("cluster id"))?.into(),
            shards: u16::try_from(init.shards).map_err(|_| Malformed::Value("number of shards"))?,
            token_key: init.token_key[..].try_into().map_err(|_| Malformed::Value("token key"))?,
        })
    }
}

impl From<&CatalogCommand> for CatalogMessage {
    fn from(command: &CatalogCommand) -> CatalogMessage {
        let kind = match command {
            CatalogCommand::Init(facts) => Kind::Init(facts.into()),
            CatalogCommand::SetQueue { queue, settings } => Kind::SetQueue(SetQueueMessage {
                queue: Bytes::copy_from_slice(queue.as_str().as_bytes()),
                settings: Some(settings.into()),
            }),
            CatalogCommand::DeleteQueue { queue } => {
                Kind::DeleteQueue(Bytes::copy_from_slice(queue.as_str().as_bytes()))
            }
            CatalogCommand::Found { facts, nodes } => Kind::Found(FoundMessage::new(facts, nodes)),
            CatalogCommand::AddNode { node, nonce, addresses } => {
                Kind::AddNode(NodeMessage::of(*node).with_nonce(*nonce).with_addresses(addresses))
            }
            CatalogCommand::SetNode { node, incarnation, addresses } => {
                let message = NodeMessage::of(*node).with_incarnation(*incarnation);
                Kind::SetNode(message.with_addresses(addresses))
            }
            CatalogCommand::Leave { node } => Kind::Leave(NodeMessage::of(*node)),
            CatalogCommand::RemoveNode { node, incarnation } => {
                Kind::RemoveNode(NodeMessage::of(*node).with_incarnation(*incarnation))
            }
            CatalogCommand::SetVoters { group, nodes, version } => Kind::SetVoters(SetVotersMessage {
                group: u32::from(group.0),
                nodes: nodes.iter().map(|node| node.0).collect(),
                version: *version,
            }),
        };
        CatalogMessage { kind: Some(kind) }
    }
}

/// A command from its bytes.
pub fn decode(bytes: Bytes) -> Result<CatalogCommand, Malformed> {
    let kind = CatalogMessage::decode(bytes)?.kind.ok_or(Malformed::Unknown("command to the catalog"))?;
    Ok(match kind {
        Kind::Init(init) => CatalogCommand::Init(init.try_into()?),
        Kind::SetQueue(set) => CatalogCommand::SetQueue {
            queue: queue_name(&set.queue)?,
            settings: set.settings.ok_or(Malformed::Missing("settings"))?.try_into()?,
        },
        Kind::DeleteQueue(queue) => CatalogCommand::DeleteQueue { queue: queue_name(&queue)? },
        Kind::Found(found) => {
            let (facts, nodes) = found.read()?;
            CatalogCommand::Found { facts, nodes }
        }
        Kind::AddNode(node) => {
            CatalogCommand::AddNode { node: node.node()?, nonce: node.nonce(), addresses: node.addresses()? }
        }
        Kind::SetNode(node) => CatalogCommand::SetNode {
            node: node.node()?,
            incarnation: node.incarnation,
            addresses: node.addresses()?,
        },
        Kind::Leave(node) => CatalogCommand::Leave { node: node.node()? },
        Kind::RemoveNode(node) => {
            CatalogCommand::RemoveNode { node: node.node()?, incarnation: node.incarnation }
        }
        Kind::SetVoters(set) => CatalogCommand::SetVoters {
            group: u16::try_from(set.group).map(GroupId).map_err(|_| Malformed::Value("group"))?,
            nodes: set.nodes.into_iter().map(node_id).collect::<Result<_, _>>()?,
            version: set.version,
        },
    })
}
