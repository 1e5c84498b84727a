//! How the consensus engine sees our log: entries of bytes, members as numbers, one leader per term.
//!
//! The engine's types end in this crate; nobody above knows them. Next: `log_store`, `machine_store`.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use model::{MemberId, NodeId};
use openraft::impls::{BasicNode, leader_id_std};
use openraft::raft::responder::Responder;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use wire::entry::{
    LogId as LogIdMessage, Member, Membership as MembershipMessage, Vote as VoteMessage, Voters,
};

// Deprecated in favour of the crate that it comes from: one dependency less to pin.
#[allow(deprecated)]
type Runtime = openraft::impls::TokioRuntime;

/// The types of every group, shard or catalog.
#[derive(Debug, Clone, Copy, Default, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) struct Types;

impl openraft::RaftTypeConfig for Types {
    type D = EntryBytes;
    type R = Outcome;
    type NodeId = u64;
    type Node = BasicNode;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<EntryBytes, u64, BasicNode>;
    type Entry = openraft::Entry<<Self::LeaderId as openraft::vote::RaftLeaderId>::Committed, Self::Payload>;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = OnDone<T>
    where
        T: Send + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: Send + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub(crate) type LogId = openraft::alias::LogIdOf<Types>;
pub(crate) type Vote = openraft::alias::VoteOf<Types>;
pub(crate) type RaftEntry = openraft::alias::EntryOf<Types>;
pub(crate) type Payload = openraft::alias::PayloadOf<Types>;
pub(crate) type Membership = openraft::Membership<u64, BasicNode>;
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<Types>;

/// An entry of commands as it is stored and sent: encoded once, never looked into by the engine.
#[derive(Clone)]
pub(crate) struct EntryBytes(pub(crate) Bytes);

// Neither prints payloads: the engine's debug logs must not hold what users stored.
impl fmt::Debug for EntryBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for EntryBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What applying an entry brought, on its way through the engine to whoever proposed it.
///
/// The engine carries it for every machine alike, so its type is hidden; the proposer, which knows
/// the machine, takes it out again.
pub(crate) struct Outcome(Mutex<Option<Box<dyn Any + Send>>>);

impl Outcome {
    /// Wraps it.
    pub(crate) fn new(value: impl Any + Send) -> Outcome {
        Outcome(Mutex::new(Some(Box::new(value))))
    }

    /// For entries that nobody waits for.
    pub(crate) fn nothing() -> Outcome {
        Outcome(Mutex::new(None))
    }

    /// Unwraps it, if it is a `T`.
    pub(crate) fn take<T: Any>(self) -> Option<T> {
        let value = self.0.into_inner()?;
        value.downcast::<T>().ok().map(|value| *value)
    }
}

/// Tells a proposer what became of its entry. Dropped unsent, the entry's fate is unknown.
pub(crate) struct OnDone<T> {
    /// Room in the pipeline: given back at commit, so that a slow apply does not hold up the disk.
    pub(crate) room: Option<OwnedSemaphorePermit>,
    /// What to do with the result.
    pub(crate) done: Box<dyn FnOnce(T) + Send>,
}

impl<T: Send + 'static> Responder<Types, T> for OnDone<T> {
    fn on_commit(&mut self, _log_id: LogId) {
        self.room = None;
    }

    fn on_complete(self, result: T) {
        drop(self.room);
        (self.done)(result);
    }
}

/// The node of a member, from the engine's number for it.
pub(crate) fn node_of(member: u64) -> NodeId {
    MemberId::from_bits(member).node()
}

/// A log id from its parts.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(term.into(), index)
}

/// A log id as it is stored and sent.
pub(crate) fn log_id_to_message(id: LogId) -> LogIdMessage {
    LogIdMessage { term: id.leader_id.term, index: id.index }
}

/// A log id from what was stored or sent.
pub(crate) fn log_id_from_message(id: LogIdMessage) -> LogId {
    log_id(id.term, id.index)
}

/// A vote as it is stored and sent.
pub(crate) fn vote_to_message(vote: &Vote) -> VoteMessage {
    VoteMessage { term: vote.leader_id.term, member: vote.leader_id.voted_for, committed: vote.committed }
}

/// A vote from what was stored or sent.
pub(crate) fn vote_from_message(vote: VoteMessage) -> Vote {
    let leader_id = leader_id_std::LeaderId { term: vote.term, voted_for: vote.member };
    Vote { leader_id, committed: vote.committed }
}

/// Members as they are stored.
pub(crate) fn membership_to_message(membership: &Membership) -> MembershipMessage {
    let sets = membership.get_joint_config().iter();
    MembershipMessage {
        voters: sets.map(|set| Voters { ids: set.iter().copied().collect() }).collect(),
        members: membership
            .nodes()
            .map(|(id, node)| Member { id: *id, address: node.addr.clone() })
            .collect(),
    }
}

/// Members from what was stored. Fails when a voter is not a member.
pub(crate) fn membership_from_message(message: &MembershipMessage) -> Option<Membership> {
    let sets = message.voters.iter().map(|set| set.ids.iter().copied().collect::<BTreeSet<u64>>());
    let members = message.members.iter().map(|member| (member.id, BasicNode::new(&member.address)));
    Membership::new(sets.collect(), members.collect::<BTreeMap<_, _>>()).ok()
}
