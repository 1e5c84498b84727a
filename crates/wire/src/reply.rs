//! What a leader answers to another node: replies and rejections as bytes, and the messages that ask for
//! them.
//!
//! Only between nodes, never on disk. Field numbers are for ever all the same, since nodes of two versions
//! talk to each other during an upgrade: a field may be added, never reused, and one that is not known is
//! passed over. See `docs/formats/forward.md`.

use bytes::Bytes;
use model::catalog::CatalogReply;
use model::{Claimed, Elapsed, Enqueued, Fence, MemberId, Millis, Rejection, Reply, Settled, WallTime};
use prost::{Message, Oneof};

use crate::catalog::InitMessage;
use crate::entry::Malformed;
use crate::new_task::{Bits128, queue_name, task_id};
use crate::rejection::{RejectionMessage, name, state_kind, state_number};

/// Commands for the leader of a group, as many as one call has.
#[derive(Clone, PartialEq, Message)]
pub struct Propose {
    /// In the order in which they shall happen.
    #[prost(message, repeated, tag = "1")]
    pub pieces: Vec<PieceMessage>,
    /// How long the asking node waits for the answer.
    #[prost(uint64, tag = "2")]
    pub patience_ms: u64,
    /// Set when this is a claim that makes no entry if nothing is free.
    #[prost(message, optional, tag = "3")]
    pub claim: Option<ClaimHead>,
}

/// Commands that stand in one entry.
#[derive(Clone, PartialEq, Message)]
pub struct PieceMessage {
    /// The part of an entry that they make.
    #[prost(bytes = "bytes", tag = "1")]
    pub bytes: Bytes,
    /// How many they are.
    #[prost(uint32, tag = "2")]
    pub commands: u32,
    /// They are nothing but new work, which is refused first.
    #[prost(bool, tag = "3")]
    pub is_new_work: bool,
}

/// What a leader must know of a claim to see whether something is free for it.
#[derive(Clone, PartialEq, Message)]
pub struct ClaimHead {
    /// The names of the queues, best first.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub queues: Vec<Bytes>,
    /// So many tasks at most.
    #[prost(uint32, tag = "2")]
    pub max: u32,
}

impl ClaimHead {
    /// A claim on `queues`, best first.
    pub fn new<'a>(queues: impl Iterator<Item = &'a model::QueueName>, max: u32) -> ClaimHead {
        ClaimHead { queues: queues.map(|queue| name(queue.as_str())).collect(), max }
    }

    /// The names of the queues.
    pub fn names(&self) -> Result<Vec<model::QueueName>, Malformed> {
        self.queues.iter().map(|name| queue_name(name)).collect()
    }
}

/// What became of a [`Propose`].
#[derive(Clone, PartialEq, Message)]
pub struct ProposeAnswer {
    /// The commands that are done, from the first on.
    #[prost(message, repeated, tag = "1")]
    pub done: Vec<AppliedMessage>,
    /// Why the next one is not.
    #[prost(message, optional, tag = "2")]
    refusal: Option<RefusalMessage>,
    /// What the leader has applied of its log.
    #[prost(uint64, tag = "3")]
    pub applied: u64,
}

impl ProposeAnswer {
    /// An answer.
    pub fn new(done: Vec<AppliedMessage>, refusal: Option<&Refusal>, applied: u64) -> ProposeAnswer {
        ProposeAnswer { done, refusal: refusal.map(RefusalMessage::from), applied }
    }

    /// Why the next one is not done.
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal.as_ref().map(Refusal::from)
    }
}

/// Asks a leader which index a read must have seen.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ReadIndex {
    /// How long the asking node waits for the answer.
    #[prost(uint64, tag = "1")]
    pub patience_ms: u64,
    /// What the leader has applied is enough, whether or not others still take it for the leader.
    #[prost(bool, tag = "2")]
    pub is_hint: bool,
}

/// The index, or why there is none.
#[derive(Clone, PartialEq, Message)]
pub struct ReadIndexAnswer {
    #[prost(uint64, tag = "1")]
    index: u64,
    #[prost(message, optional, tag = "2")]
    refusal: Option<RefusalMessage>,
}

impl ReadIndexAnswer {
    /// An answer.
    pub fn new(outcome: Result<u64, Refusal>) -> ReadIndexAnswer {
        match outcome {
            Ok(index) => ReadIndexAnswer { index, refusal: None },
            Err(refusal) => ReadIndexAnswer { index: 0, refusal: Some(RefusalMessage::from(&refusal)) },
        }
    }

    /// The index, or why there is none.
    pub fn outcome(&self) -> Result<u64, Refusal> {
        match &self.refusal {
            None => Ok(self.index),
            Some(refusal) => Err(refusal.into()),
        }
    }
}

/// Why a node did not do what another asked of one of its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It does not lead the group. Nothing happened.
    NotLeader {
        /// The number of the node that does, if it knows.
        leader: Option<u64>,
    },
    /// It has no quorum, or the group is not open there. Nothing happened.
    Unavailable,
    /// Too much is waiting for the log. Nothing happened.
    Full,
    /// More than an entry takes. Nothing happened.
    TooLarge {
        /// Its bytes.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// It takes no new tasks: they take too much memory. Nothing happened.
    MemoryFull {
        /// What they take.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// It takes no new tasks: its disk is short of room. Nothing happened.
    DiskFull,
    /// It may have happened and may still happen.
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct RefusalMessage {
    #[prost(uint32, tag = "1")]
    code: u32,
    #[prost(uint64, optional, tag = "2")]
    leader: Option<u64>,
    #[prost(uint64, tag = "3")]
    bytes: u64,
    #[prost(uint64, tag = "4")]
    bytes_max: u64,
}

const UNKNOWN: u32 = 0;
const NOT_LEADER: u32 = 1;
const UNAVAILABLE: u32 = 2;
const FULL: u32 = 3;
const TOO_LARGE: u32 = 4;
const MEMORY_FULL: u32 = 5;
const DISK_FULL: u32 = 6;

impl From<&Refusal> for RefusalMessage {
    fn from(refusal: &Refusal) -> RefusalMessage {
        let of = |code| RefusalMessage { code, ..RefusalMessage::default() };
        match *refusal {
            Refusal::NotLeader { leader } => RefusalMessage { leader, ..of(NOT_LEADER) },
            Refusal::Unavailable => of(UNAVAILABLE),
            Refusal::Full => of(FULL),
            Refusal::TooLarge { bytes, bytes_max } => RefusalMessage { bytes, bytes_max, ..of(TOO_LARGE) },
            Refusal::MemoryFull { bytes, bytes_max } => {
                RefusalMessage { bytes, bytes_max, ..of(MEMORY_FULL) }
            }
            Refusal::DiskFull => of(DISK_FULL),
            Refusal::Unknown => of(UNKNOWN),
        }
    }
}

impl From<&RefusalMessage> for Refusal {
    fn from(message: &RefusalMessage) -> Refusal {
        match message.code {
            NOT_LEADER => Refusal::NotLeader { leader: message.leader },
            UNAVAILABLE => Refusal::Unavailable,
            FULL => Refusal::Full,
            TOO_LARGE => Refusal::TooLarge { bytes: message.bytes, bytes_max: message.bytes_max },
            MEMORY_FULL => Refusal::MemoryFull { bytes: message.bytes, bytes_max: message.bytes_max },
            DISK_FULL => Refusal::DiskFull,
            // A refusal that this version does not know says nothing of what happened.
            _ => Refusal::Unknown,
        }
    }
}

/// What became of one command: the index of its entry, and the machine's word.
#[derive(Clone, PartialEq, Message)]
pub struct AppliedMessage {
    /// The entry's index.
    #[prost(uint64, tag = "1")]
    pub index: u64,
    #[prost(oneof = "Outcome", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12")]
    outcome: Option<Outcome>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Outcome {
    #[prost(message, tag = "2")]
    Rejected(RejectionMessage),
    #[prost(message, tag = "3")]
    Enqueued(EnqueuedList),
    #[prost(message, tag = "4")]
    Claimed(ClaimedList),
    #[prost(message, tag = "5")]
    Settled(SettledMessage),
    #[prost(message, tag = "6")]
    Held(HeldMessage),
    #[prost(uint64, tag = "7")]
    Count(u64),
    #[prost(uint64, tag = "8")]
    Upto(u64),
    #[prost(bool, tag = "9")]
    Done(bool),
    #[prost(message, tag = "10")]
    Cluster(InitMessage),
    #[prost(uint64, tag = "11")]
    Version(u64),
    #[prost(uint64, tag = "12")]
    Member(u64),
}

#[derive(Clone, PartialEq, Message)]
struct EnqueuedList {
    #[prost(message, repeated, tag = "1")]
    list: Vec<EnqueuedMessage>,
}

/// One of the two: what became of it, or why not.
#[derive(Clone, PartialEq, Message)]
struct EnqueuedMessage {
    #[prost(message, optional, tag = "1")]
    id: Option<Bits128>,
    #[prost(bool, tag = "2")]
    duplicate: bool,
    #[prost(uint32, tag = "3")]
    state: u32,
    #[prost(message, optional, tag = "4")]
    rejection: Option<RejectionMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ClaimedList {
    #[prost(message, repeated, tag = "1")]
    list: Vec<ClaimedMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ClaimedMessage {
    #[prost(message, optional, tag = "1")]
    id: Option<Bits128>,
    #[prost(bytes = "bytes", tag = "2")]
    queue: Bytes,
    #[prost(uint32, tag = "3")]
    priority: u32,
    #[prost(uint32, tag = "4")]
    attempt: u32,
    #[prost(uint64, tag = "5")]
    fence: u64,
    #[prost(uint64, tag = "6")]
    deadline_elapsed_ms: u64,
    #[prost(uint64, tag = "7")]
    deadline_wall_ms: u64,
    #[prost(uint64, tag = "8")]
    enqueued_at_ms: u64,
    #[prost(uint64, tag = "9")]
    ready_since_ms: u64,
    #[prost(bytes = "bytes", tag = "10")]
    envelope: Bytes,
    #[prost(uint64, tag = "11")]
    hold_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
struct SettledMessage {
    #[prost(message, optional, tag = "1")]
    id: Option<Bits128>,
    #[prost(uint32, tag = "2")]
    state: u32,
    #[prost(uint32, tag = "3")]
    attempt: u32,
    #[prost(uint64, optional, tag = "4")]
    due_ms: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct HeldMessage {
    #[prost(uint64, tag = "1")]
    deadline_ms: u64,
    #[prost(bool, tag = "2")]
    cancel_requested: bool,
}

impl From<&Result<Enqueued, Rejection>> for EnqueuedMessage {
    fn from(outcome: &Result<Enqueued, Rejection>) -> EnqueuedMessage {
        match outcome {
            Ok(enqueued) => EnqueuedMessage {
                id: Some(enqueued.id.bits().into()),
                duplicate: enqueued.duplicate,
                state: state_number(enqueued.state),
                rejection: None,
            },
            Err(rejection) => {
                EnqueuedMessage { rejection: Some(rejection.into()), ..EnqueuedMessage::default() }
            }
        }
    }
}

impl EnqueuedMessage {
    fn outcome(self) -> Result<Result<Enqueued, Rejection>, Malformed> {
        if let Some(rejection) = self.rejection {
            return Ok(Err(rejection.try_into()?));
        }
        let state = state_kind(self.state)?;
        Ok(Ok(Enqueued { id: task_id(self.id)?, duplicate: self.duplicate, state }))
    }
}

impl From<&Claimed> for ClaimedMessage {
    fn from(claim: &Claimed) -> ClaimedMessage {
        ClaimedMessage {
            id: Some(claim.id.bits().into()),
            queue: name(claim.queue.as_str()),
            priority: u32::from(claim.priority),
            attempt: claim.attempt,
            fence: claim.fence.0,
            deadline_elapsed_ms: claim.deadline.0,
            deadline_wall_ms: claim.deadline_wall.millis(),
            enqueued_at_ms: claim.enqueued_at.millis(),
            ready_since_ms: claim.ready_since.millis(),
            envelope: claim.envelope.clone(),
            hold_ms: claim.hold.0,
        }
    }
}

impl TryFrom<ClaimedMessage> for Claimed {
    type Error = Malformed;

    fn try_from(message: ClaimedMessage) -> Result<Claimed, Malformed> {
        Ok(Claimed {
            id: task_id(message.id)?,
            queue: queue_name(&message.queue)?,
            priority: u8::try_from(message.priority).map_err(|_| Malformed::Value("priority"))?,
            attempt: message.attempt,
            fence: Fence(message.fence),
            deadline: Elapsed(message.deadline_elapsed_ms),
            deadline_wall: WallTime::from_millis(message.deadline_wall_ms),
            hold: Millis(message.hold_ms),
            enqueued_at: WallTime::from_millis(message.enqueued_at_ms),
            ready_since: WallTime::from_millis(message.ready_since_ms),
            envelope: message.envelope,
        })
    }
}

impl AppliedMessage {
    /// What became of a command to a shard.
    pub fn of_shard(index: u64, outcome: &Result<Reply, Rejection>) -> AppliedMessage {
        let outcome = match outcome {
            Err(rejection) => Outcome::Rejected(rejection.into()),
            Ok(Reply::Enqueued(list)) => {
                Outcome::Enqueued(EnqueuedList { list: list.iter().map(EnqueuedMessage::from).collect() })
            }
            Ok(Reply::Claimed(list)) => {
                Outcome::Claimed(ClaimedList { list: list.iter().map(ClaimedMessage::from).collect() })
            }
            Ok(Reply::Settled(settled)) => Outcome::Settled(SettledMessage {
                id: Some(settled.id.bits().into()),
                state: state_number(settled.state),
                attempt: settled.attempt,
                due_ms: settled.due.map(WallTime::millis),
            }),
            Ok(Reply::Held { deadline, cancel_requested }) => Outcome::Held(HeldMessage {
                deadline_ms: deadline.millis(),
                cancel_requested: *cancel_requested,
            }),
            Ok(Reply::Count(count)) => Outcome::Count(*count),
            Ok(Reply::Upto(upto)) => Outcome::Upto(*upto),
            Ok(Reply::Done) => Outcome::Done(true),
        };
        AppliedMessage { index, outcome: Some(outcome) }
    }

    /// What became of a command to the catalog.
    pub fn of_catalog(index: u64, outcome: &Result<CatalogReply, Rejection>) -> AppliedMessage {
        let outcome = match outcome {
            Err(rejection) => Outcome::Rejected(rejection.into()),
            Ok(CatalogReply::Cluster(facts)) => Outcome::Cluster(facts.into()),
            Ok(CatalogReply::Version(version)) => Outcome::Version(*version),
            Ok(CatalogReply::Member(member)) => Outcome::Member(member.bits()),
        };
        AppliedMessage { index, outcome: Some(outcome) }
    }

    /// A shard's word.
    pub fn shard(self) -> Result<Result<Reply, Rejection>, Malformed> {
        Ok(Ok(match self.outcome.ok_or(Malformed::Unknown("reply of a shard"))? {
            Outcome::Rejected(rejection) => return Ok(Err(rejection.try_into()?)),
            Outcome::Enqueued(EnqueuedList { list }) => {
                Reply::Enqueued(list.into_iter().map(EnqueuedMessage::outcome).collect::<Result<_, _>>()?)
            }
            Outcome::Claimed(ClaimedList { list }) => {
                Reply::Claimed(list.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?)
            }
            Outcome::Settled(settled) => Reply::Settled(Settled {
                id: task_id(settled.id)?,
                state: state_kind(settled.state)?,
                attempt: settled.attempt,
                due: settled.due_ms.map(WallTime::from_millis),
            }),
            Outcome::Held(held) => Reply::Held {
                deadline: WallTime::from_millis(held.deadline_ms),
                cancel_requested: held.cancel_requested,
            },
            Outcome::Count(count) => Reply::Count(count),
            Outcome::Upto(upto) => Reply::Upto(upto),
            Outcome::Done(_) => Reply::Done,
            Outcome::Cluster(_) | Outcome::Version(_) | Outcome::Member(_) => {
                return Err(Malformed::Value("reply of a shard"));
            }
        }))
    }

    /// The catalog's word.
    pub fn catalog(self) -> Result<Result<CatalogReply, Rejection>, Malformed> {
        Ok(Ok(match self.outcome.ok_or(Malformed::Unknown("reply of the catalog"))? {
            Outcome::Rejected(rejection) => return Ok(Err(rejection.try_into()?)),
            Outcome::Cluster(facts) => CatalogReply::Cluster(facts.try_into()?),
            Outcome::Version(version) => CatalogReply::Version(version),
            Outcome::Member(bits) => CatalogReply::Member(MemberId::from_bits(bits)),
            _ => return Err(Malformed::Value("reply of the catalog")),
        }))
    }
}

impl Propose {
    /// How long the asking node waits.
    pub fn patience(&self) -> Millis {
        Millis(self.patience_ms)
    }
}
