//! What nodes say to each other while a cluster is made or grows, and what a node writes down about itself.

use bytes::Bytes;
use model::catalog::{ClusterFacts, NodeAddresses};
use model::{GroupId, MemberId, NodeId};
use prost::{Message, Oneof};

use crate::catalog::{FoundMessage, InitMessage, NodeMessage, node_id};
use crate::entry::Malformed;
use crate::new_task::Bits128;

/// What a new cluster is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founding {
    /// What never changes.
    pub facts: ClusterFacts,
    /// Who founds it, by number.
    pub nodes: Vec<(NodeId, NodeAddresses)>,
}

/// What a node knows of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing: its disk is empty.
    Empty,
    /// It will be part of this cluster if all founders say so. It has no copy of any group yet.
    Prepared(Founding),
    /// It is part of it.
    Member {
        /// Who it is.
        member: MemberId,
        /// What never changes.
        facts: ClusterFacts,
        /// The founders, on one of them.
        founders: Vec<(NodeId, NodeAddresses)>,
    },
}

/// What a node writes down about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number.
    pub node: NodeId,
    /// What it knows of its cluster.
    pub standing: Standing,
    /// It has made its log: without one it has forgotten what it promised.
    pub has_log: bool,
}

/// Asks a node what it knows of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Who the asker is, if it is part of a cluster.
    pub member: Option<MemberId>,
    /// The asker gives up a promise if nobody is a member: whoever says so must not become one by what it heard
    /// before.
    pub is_promising: bool,
}

/// What a node answers to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeAnswer {
    /// What it knows.
    pub kind: StandingKind,
    /// The cluster that it is prepared for, or part of.
    pub cluster_id: u128,
    /// The nodes that it was told to be in a cluster with, itself included.
    pub listed: Vec<NodeId>,
    /// Which life of the asker it knows; nothing when it knows no such node, or cannot say.
    pub your_incarnation: Option<u64>,
    /// It knows all nodes of the cluster, and the asker is none of them.
    pub you_were_removed: bool,
}

/// [`Standing`] in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandingKind {
    /// Its disk is empty.
    Empty,
    /// It waits for its founders.
    Prepared,
    /// It is part of a cluster.
    Member,
    /// It has data that it has not opened yet, and cannot say.
    Unopened,
}

/// A node with an empty disk asks to be taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Which.
    pub node: NodeId,
    /// Tells this try from another.
    pub nonce: u128,
    /// Where it is.
    pub addresses: NodeAddresses,
}

/// It was taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Who it is from now on.
    pub member: MemberId,
    /// What never changes.
    pub facts: ClusterFacts,
}

/// What a person asks of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Hand the leadership of a group over.
    Transfer {
        /// The group.
        group: GroupId,
        /// To this node; nothing lets the leader choose.
        to: Option<NodeId>,
    },
    /// Hand all leaderships that belong elsewhere over, now.
    Rebalance,
}

#[derive(Clone, PartialEq, Message)]
struct IdentityMessage {
    #[prost(uint64, tag = "1")]
    node: u64,
    #[prost(message, optional, tag = "2")]
    prepared: Option<FoundMessage>,
    #[prost(message, optional, tag = "3")]
    member: Option<MemberMessage>,
    #[prost(bool, tag = "4")]
    has_log: bool,
}

#[derive(Clone, PartialEq, Message)]
struct MemberMessage {
    #[prost(uint64, tag = "1")]
    member: u64,
    /// With the founders, on one of them.
    #[prost(message, optional, tag = "2")]
    founding: Option<FoundMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ProbeMessage {
    #[prost(uint64, optional, tag = "1")]
    member: Option<u64>,
    #[prost(bool, tag = "2")]
    is_promising: bool,
}

#[derive(Clone, PartialEq, Message)]
struct ProbeAnswerMessage {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(message, optional, tag = "2")]
    cluster_id: Option<Bits128>,
    #[prost(uint64, repeated, tag = "3")]
    listed: Vec<u64>,
    #[prost(uint64, optional, tag = "4")]
    your_incarnation: Option<u64>,
    #[prost(bool, tag = "5")]
    you_were_removed: bool,
}

#[derive(Clone, PartialEq, Message)]
struct FoundRequest {
    #[prost(message, optional, tag = "1")]
    founding: Option<FoundMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct JoinMessage {
    #[prost(message, optional, tag = "1")]
    node: Option<NodeMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct JoinedMessage {
    #[prost(uint64, tag = "1")]
    member: u64,
    #[prost(message, optional, tag = "2")]
    facts: Option<InitMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct AskMessage {
    #[prost(oneof = "AskKind", tags = "1, 2")]
    kind: Option<AskKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum AskKind {
    #[prost(message, tag = "1")]
    Transfer(TransferMessage),
    #[prost(bool, tag = "2")]
    Rebalance(bool),
}

#[derive(Clone, Copy, PartialEq, Message)]
struct TransferMessage {
    #[prost(uint32, tag = "1")]
    group: u32,
    #[prost(uint64, optional, tag = "2")]
    to: Option<u64>,
}

fn bytes_of(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

impl Founding {
    /// As bytes.
    pub fn encode(&self) -> Bytes {
        bytes_of(&FoundRequest { founding: Some(FoundMessage::new(&self.facts, &self.nodes)) })
    }

    /// From its bytes.
    pub fn decode(bytes: Bytes) -> Result<Founding, Malformed> {
        read_founding(FoundRequest::decode(bytes)?.founding.ok_or(Malformed::Missing("founding"))?)
    }
}

fn read_founding(message: FoundMessage) -> Result<Founding, Malformed> {
    let (facts, nodes) = message.read()?;
    Ok(Founding { facts, nodes })
}

impl Identity {
    /// As bytes.
    pub fn encode(&self) -> Bytes {
        let (prepared, member) = match &self.standing {
            Standing::Empty => (None, None),
            Standing::Prepared(founding) => (Some(FoundMessage::new(&founding.facts, &founding.nodes)), None),
            Standing::Member { member, facts, founders } => {
                let founding = Some(FoundMessage::new(facts, founders));
                (None, Some(MemberMessage { member: member.bits(), founding }))
            }
        };
        bytes_of(&IdentityMessage { node: self.node.0, prepared, member, has_log: self.has_log })
    }

    /// From its bytes.
    pub fn decode(bytes: Bytes) -> Result<Identity, Malformed> {
        let message = IdentityMessage::decode(bytes)?;
        let node = node_id(message.node)?;
        let standing = match (message.prepared, message.member) {
            (None, None) => Standing::Empty,
            (Some(founding), None) => Standing::Prepared(read_founding(founding)?),
            (_, Some(member)) => {
                let founding = member.founding.ok_or(Malformed::Missing("facts of the cluster"))?;
                let Founding { facts, nodes } = read_founding(founding)?;
                Standing::Member { member: MemberId::from_bits(member.member), facts, founders: nodes }
            }
        };
        Ok(Identity { node, standing, has_log: message.has_log })
    }
}

impl Probe {
    /// As bytes.
    pub fn encode(&self) -> Bytes {
        let Probe { member, is_promising } = *self;
        bytes_of(&ProbeMessage { member: member.map(MemberId::bits), is_promising })
    }

    /// From its bytes.
    pub fn decode(bytes: Bytes) -> Result<Probe, Malformed> {
        let ProbeMessage { member, is_promising } = ProbeMessage::decode(bytes)?;
        Ok(Probe { member: member.map(MemberId::from_bits), is_promising })
    }
}

impl ProbeAnswer {
    /// As bytes.
    pub fn encode(&self) -> Bytes {
        bytes_of(&ProbeAnswerMessage {
            kind: match self.kind {
                StandingKind::Empty => 0,
                StandingKind::Prepared => 1,
                StandingKind::Member => 2,
                StandingKind::Unopened => 3,
            },
            cluster_id: Some(self.cluster_id.into()),
            listed: self.listed.iter().map(|node| node.0).collect(),
            your_incarnation: self.your_incarnation,
            you_were_removed: self.you_were_removed,
        })
    }

    /// From its bytes.
    pub fn decode(bytes: Bytes) -> Result<ProbeAnswer, Malformed> {
        let message = ProbeAnswerMessage::decode(bytes)?;
        Ok(ProbeAnswer {
            kind: match message.kind {
                0 => StandingKind::Empty,
                1 => StandingKind::Prepared,
                2 => StandingKind::Member,
                3 => StandingKind::Unopened,
                _ => return Err(Malformed::Value("what a node knows")),
            },
            cluster_id: message.cluster_id.map_or(0, u128::from),
            listed: message.listed.into_iter().map(node_id).collect::<Result<_, _>>()?,
            your_incarnation: message.your_incarnation,
            you_were_removed: message.you_were_removed,
        })
    }
}

impl Join {
    /// As bytes.
    pub fn encode(&self) -> Bytes {
        let node = NodeMessage::of(self.node).with_nonce(self.nonce).with_addresses(&self.addresses);
        bytes_of(&JoinMessage { node: Some(node) })
    }

    /// From its bytes.
    pub fn decode(bytes: Bytes) -> Result<Join, Malformed> {
        let node = JoinMessage::decode(bytes)?.node.ok_or(Malformed::Missing("node"))?;
        Ok(Join { node: node.node()?, nonce: node.nonce(), addresses: node.addresses()? })
    }
}

impl Joined {
    /// As bytes.
    pub fn encode(&self) -> Bytes {
        bytes_of(&JoinedMessage { member: self.member.bits(), facts: Some((&self.facts).into()) })
    }

    /// From its bytes.
    pub fn decode(bytes: Bytes) -> Result<Joined, Malformed> {
        let message = JoinedMessage::decode(bytes)?;
        let facts = message.facts.ok_or(Malformed::Missing("facts of the cluster"))?;
        Ok(Joined { member: MemberId::from_bits(message.member), facts: facts.try_into()? })
    }
}

impl Ask {
    /// As bytes.
    pub fn encode(&self) -> Bytes {
        let kind = match self {
            Ask::Transfer { group, to } => {
                AskKind::Transfer(TransferMessage { group: u32::from(group.0), to: to.map(|node| node.0) })
            }
            Ask::Rebalance => AskKind::Rebalance(true),
        };
        bytes_of(&AskMessage { kind: Some(kind) })
    }

    /// From its bytes.
    pub fn decode(bytes: Bytes) -> Result<Ask, Malformed> {
        Ok(match AskMessage::decode(bytes)?.kind.ok_or(Malformed::Unknown("thing asked"))? {
            AskKind::Transfer(transfer) => Ask::Transfer {
                group: u16::try_from(transfer.group).map(GroupId).map_err(|_| Malformed::Value("group"))?,
                to: transfer.to.map(node_id).transpose()?,
            },
            AskKind::Rebalance(_) => Ask::Rebalance,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn founding() -> Founding {
        let addresses =
            |n| NodeAddresses { peer: format!("10.0.0.{n}:7421"), http: format!("10.0.0.{n}:7420") };
        let facts = ClusterFacts { cluster_id: 5 << 100 | 7, shards: 4, token_key: [0xab; 32] };
        Founding { facts, nodes: [1, 2, 3].map(|n| (NodeId(n), addresses(n))).to_vec() }
    }

    fn identities() -> Vec<Identity> {
        let Founding { facts, nodes } = founding();
        let member = MemberId::new(NodeId(2), 3);
        let joined = Standing::Member { member, facts: facts.clone(), founders: Vec::new() };
        [
            (Standing::Empty, false),
            (Standing::Prepared(founding()), false),
            (Standing::Member { member, facts, founders: nodes }, false),
            (joined.clone(), false),
            (joined, true),
        ]
        .map(|(standing, has_log)| Identity { node: NodeId(2), standing, has_log })
        .to_vec()
    }

    #[test]
    fn what_nodes_say_comes_out_as_it_went_in() {
        for identity in identities() {
            assert_eq!(Identity::decode(identity.encode()), Ok(identity));
        }
        assert_eq!(Founding::decode(founding().encode()), Ok(founding()));
        for (member, is_promising) in [(None, true), (Some(MemberId::new(NodeId(1), 1)), false)] {
            let probe = Probe { member, is_promising };
            assert_eq!(Probe::decode(probe.encode()), Ok(probe));
        }
        let kinds =
            [StandingKind::Empty, StandingKind::Prepared, StandingKind::Member, StandingKind::Unopened];
        for kind in kinds {
            let answer = ProbeAnswer {
                kind,
                cluster_id: u128::MAX,
                listed: vec![NodeId(1), NodeId(65_535)],
                your_incarnation: Some(0),
                you_were_removed: true,
            };
            assert_eq!(ProbeAnswer::decode(answer.encode()), Ok(answer));
        }
        let join = Join { node: NodeId(4), nonce: 1 << 80, addresses: founding().nodes[0].1.clone() };
        assert_eq!(Join::decode(join.encode()), Ok(join));
        let joined = Joined { member: MemberId::new(NodeId(4), 1), facts: founding().facts };
        assert_eq!(Joined::decode(joined.encode()), Ok(joined));
        let transfer = |to| Ask::Transfer { group: GroupId(3), to };
        for ask in [transfer(None), transfer(Some(NodeId(2))), Ask::Rebalance] {
            assert_eq!(Ask::decode(ask.encode()), Ok(ask));
        }
    }

    #[test]
    fn an_identity_of_the_first_version_opens_for_ever() {
        // One line for each of `identities`, as they were first written.
        let lines: Vec<&str> = include_str!("../tests/fixtures/identity-v1.txt").lines().collect();
        let hex = |bytes: Bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let today: Vec<String> = identities().iter().map(|identity| hex(identity.encode())).collect();
        assert_eq!(today, lines);
        for (line, identity) in lines.into_iter().zip(identities()) {
            let byte = |n| u8::from_str_radix(&line[n..n + 2], 16).expect("hex");
            let bytes: Vec<u8> = (0..line.len()).step_by(2).map(byte).collect();
            assert_eq!(Identity::decode(bytes.into()), Ok(identity));
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let facts = ClusterFacts { shards: 4, ..founding().facts };
        for (what, bytes) in [
            ("empty", Bytes::new()),
            ("not a message", Bytes::from_static(&[0xff; 9])),
            (
                "node 0",
                Founding { facts: facts.clone(), nodes: vec![(NodeId(0), NodeAddresses::default())] }
                    .encode(),
            ),
            (
                "node too large",
                Founding { facts, nodes: vec![(NodeId(65_536), NodeAddresses::default())] }.encode(),
            ),
        ] {
            assert!(Founding::decode(bytes).is_err(), "{what}");
        }
    }
}
