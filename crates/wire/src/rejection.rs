//! A rejection as bytes: why a shard or the catalog said no, with the same facts on the other side.
//!
//! One number per kind, for ever; what a rejection says in words of ours is sent as a number too. Next:
//! `reply`, which carries these.

use bytes::Bytes;
use model::{Fence, NodeId, Rejection, StateKind};
use prost::Message;

use crate::entry::Malformed;
use crate::new_task::{Bits128, queue_name, task_id};

/// A rejection: its kind, and those of the facts that its kind has.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RejectionMessage {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(message, optional, tag = "2")]
    task: Option<Bits128>,
    #[prost(bytes = "bytes", tag = "3")]
    queue: Bytes,
    #[prost(uint32, tag = "4")]
    state: u32,
    #[prost(uint64, tag = "5")]
    given: u64,
    #[prost(uint64, tag = "6")]
    current: u64,
    #[prost(uint64, tag = "7")]
    count: u64,
    /// A number in [`FULL_OF`] or [`EMPTY_HINTS`].
    #[prost(uint32, tag = "8")]
    words: u32,
    #[prost(message, optional, boxed, tag = "9")]
    because: Option<Box<RejectionMessage>>,
    #[prost(uint64, tag = "10")]
    node: u64,
}

const NOT_FOUND: u32 = 1;
const UNKNOWN_QUEUE: u32 = 2;
const NOT_CLAIMED: u32 = 3;
const STALE_TOKEN: u32 = 4;
const NOT_READY: u32 = 5;
const ALREADY_ENDED: u32 = 6;
const NOT_ENDED: u32 = 7;
const NOT_UNIQUE: u32 = 8;
const DEDUP_MISMATCH: u32 = 9;
const QUEUE_FULL: u32 = 10;
const NOT_ATOMIC: u32 = 11;
const TOO_MANY_QUEUES: u32 = 12;
const STALE_VERSION: u32 = 13;
const NOT_EMPTY: u32 = 14;
const NO_CLUSTER: u32 = 15;
const UNKNOWN_NODE: u32 = 16;
const NODE_NEEDED: u32 = 17;
const TOO_MANY_NODES: u32 = 18;
const MOVED: u32 = 19;

/// Of what a queue is full, and which field of its policy says so. By number: only add.
const FULL_OF: [(&str, &str); 3] =
    [("of them", "its limit"), ("tasks", "tasks_max"), ("dedup keys", "dedup_keys_max")];
/// What to do about a queue that is not empty. By number: only add.
const EMPTY_HINTS: [&str; 3] = [
    "empty it first",
    "purge it, discard its dead tasks, then delete it",
    "shards changes only while a queue has no tasks, ended ones included",
];

/// The number of words in a closed list; 0, which is said of all, for those that are not in it.
fn number_of<T: PartialEq>(list: &[T], words: T) -> u32 {
    list.iter().position(|known| *known == words).unwrap_or(0) as u32
}

/// The words of a number; those that are said of all for one that this version does not know.
fn words_of<T: Copy>(list: &[T], number: u32) -> T {
    list.get(number as usize).copied().unwrap_or(list[0])
}

impl From<&Rejection> for RejectionMessage {
    fn from(rejection: &Rejection) -> RejectionMessage {
        let of = |kind| RejectionMessage { kind, ..RejectionMessage::default() };
        let on = |kind, id: &model::TaskId| RejectionMessage { task: Some(id.bits().into()), ..of(kind) };
        let is =
            |kind, id, state: &StateKind| RejectionMessage { state: state_number(*state), ..on(kind, id) };
        let in_queue =
            |kind, queue: &model::QueueName| RejectionMessage { queue: name(queue.as_str()), ..of(kind) };
        let at = |kind, node: &NodeId| RejectionMessage { node: node.0, ..of(kind) };
        match rejection {
            Rejection::NotFound { id } => on(NOT_FOUND, id),
            Rejection::UnknownQueue { queue } => in_queue(UNKNOWN_QUEUE, queue),
            Rejection::NotClaimed { id, state } => is(NOT_CLAIMED, id, state),
            Rejection::StaleToken { id, given, current } => {
                RejectionMessage { given: given.0, current: current.0, ..on(STALE_TOKEN, id) }
            }
            Rejection::NotReady { id, state } => is(NOT_READY, id, state),
            Rejection::AlreadyEnded { id, state } => is(ALREADY_ENDED, id, state),
            Rejection::NotEnded { id, state } => is(NOT_ENDED, id, state),
            Rejection::NotUnique { holder } => on(NOT_UNIQUE, holder),
            Rejection::DedupMismatch { holder } => on(DEDUP_MISMATCH, holder),
            Rejection::QueueFull { queue, count, what, limit } => RejectionMessage {
                count: *count,
                words: number_of(&FULL_OF, (*what, *limit)),
                ..in_queue(QUEUE_FULL, queue)
            },
            Rejection::NotAtomic { n, because } => RejectionMessage {
                count: *n as u64,
                because: Some(Box::new((&**because).into())),
                ..of(NOT_ATOMIC)
            },
            Rejection::TooManyQueues { queue, count } => {
                RejectionMessage { count: *count, ..in_queue(TOO_MANY_QUEUES, queue) }
            }
            Rejection::StaleVersion { given, current } => {
                RejectionMessage { given: *given, current: *current, ..of(STALE_VERSION) }
            }
            Rejection::NotEmpty { queue, count, hint } => RejectionMessage {
                count: *count,
                words: number_of(&EMPTY_HINTS, *hint),
                ..in_queue(NOT_EMPTY, queue)
            },
            Rejection::Moved { queue } => in_queue(MOVED, queue),
            Rejection::NoCluster => of(NO_CLUSTER),
            Rejection::UnknownNode { node } => at(UNKNOWN_NODE, node),
            Rejection::NodeNeeded { node } => at(NODE_NEEDED, node),
            Rejection::TooManyNodes { node, count } => {
                RejectionMessage { count: *count, ..at(TOO_MANY_NODES, node) }
            }
        }
    }
}

impl TryFrom<RejectionMessage> for Rejection {
    type Error = Malformed;

    fn try_from(message: RejectionMessage) -> Result<Rejection, Malformed> {
        let id = || task_id(message.task);
        let queue = || queue_name(&message.queue);
        let state = || state_kind(message.state);
        let count = message.count;
        Ok(match message.kind {
            NOT_FOUND => Rejection::NotFound { id: id()? },
            UNKNOWN_QUEUE => Rejection::UnknownQueue { queue: queue()? },
            NOT_CLAIMED => Rejection::NotClaimed { id: id()?, state: state()? },
            STALE_TOKEN => Rejection::StaleToken {
                id: id()?,
                given: Fence(message.given),
                current: Fence(message.current),
            },
            NOT_READY => Rejection::NotReady { id: id()?, state: state()? },
            ALREADY_ENDED => Rejection::AlreadyEnded { id: id()?, state: state()? },
            NOT_ENDED => Rejection::NotEnded { id: id()?, state: state()? },
            NOT_UNIQUE => Rejection::NotUnique { holder: id()? },
            DEDUP_MISMATCH => Rejection::DedupMismatch { holder: id()? },
            QUEUE_FULL => {
                let (what, limit) = words_of(&FULL_OF, message.words);
                Rejection::QueueFull { queue: queue()?, count, what, limit }
            }
            NOT_ATOMIC => Rejection::NotAtomic {
                n: usize::try_from(count).map_err(|_| Malformed::Value("number of a task"))?,
                because: Box::new((*message.because.ok_or(Malformed::Missing("reason"))?).try_into()?),
            },
            TOO_MANY_QUEUES => Rejection::TooManyQueues { queue: queue()?, count },
            STALE_VERSION => Rejection::StaleVersion { given: message.given, current: message.current },
            NOT_EMPTY => {
                Rejection::NotEmpty { queue: queue()?, count, hint: words_of(&EMPTY_HINTS, message.words) }
            }
            MOVED => Rejection::Moved { queue: queue()? },
            NO_CLUSTER => Rejection::NoCluster,
            UNKNOWN_NODE => Rejection::UnknownNode { node: NodeId(message.node) },
            NODE_NEEDED => Rejection::NodeNeeded { node: NodeId(message.node) },
            TOO_MANY_NODES => Rejection::TooManyNodes { node: NodeId(message.node), count },
            _ => return Err(Malformed::Unknown("rejection")),
        })
    }
}

pub(crate) fn name(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

pub(crate) fn state_number(state: StateKind) -> u32 {
    u32::from(state as u8)
}

pub(crate) fn state_kind(number: u32) -> Result<StateKind, Malformed> {
    u8::try_from(number).ok().and_then(StateKind::from_number).ok_or(Malformed::Value("state"))
}
