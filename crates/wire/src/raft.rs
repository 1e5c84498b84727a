//! What the members of one group say to each other: entries, votes, leadership, checkpoints.
//!
//! An entry travels as the bytes that the log stores, never encoded anew. Fields that this version does not
//! know are skipped: `docs/formats/raft.md`. Next: `peer`, the frame around it.

use bytes::{Bytes, BytesMut};
use prost::Message;

use crate::append;
use crate::entry::{LogId, Membership, Vote};

/// Entries for a follower, or a heartbeat without any.
#[derive(Clone, PartialEq, Message)]
pub struct Append {
    /// The leader's vote.
    #[prost(message, optional, tag = "1")]
    pub vote: Option<Vote>,
    /// What stands before the first entry.
    #[prost(message, optional, tag = "2")]
    pub prev: Option<LogId>,
    /// What a quorum has.
    #[prost(message, optional, tag = "3")]
    pub committed: Option<LogId>,
    /// The entries.
    #[prost(message, repeated, tag = "4")]
    pub entries: Vec<AppendEntry>,
    /// How much time has passed for the group, in milliseconds: whoever leads next goes on from there. 0 when the
    /// leader has not begun to count.
    #[prost(uint64, tag = "5")]
    pub elapsed: u64,
}

/// An entry as the log stores it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AppendEntry {
    /// The leader's term.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// Its index.
    #[prost(uint64, tag = "2")]
    pub index: u64,
    /// The kind's byte and the content ([`crate::entry`]); shares memory with the message.
    #[prost(bytes = "bytes", tag = "3")]
    pub payload: Bytes,
}

/// What became of an append: one of three.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AppendAnswer {
    /// Which.
    #[prost(oneof = "Appended", tags = "1, 2, 3")]
    pub outcome: Option<Appended>,
}

/// What became of an append.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum Appended {
    /// The follower has the log up to here, on its disk.
    #[prost(message, tag = "1")]
    Matched(Matched),
    /// It has no such entry: begin earlier.
    #[prost(message, tag = "2")]
    Conflict(LogId),
    /// It promised to follow this one.
    #[prost(message, tag = "3")]
    HigherVote(Vote),
}

/// How far a follower's log is the leader's.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Matched {
    /// The last such entry; nothing when it has none.
    #[prost(message, optional, tag = "1")]
    pub last: Option<LogId>,
}

/// Asks for a vote, or whether it would be given.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct VoteAsk {
    /// The candidate's vote.
    #[prost(message, optional, tag = "1")]
    pub vote: Option<Vote>,
    /// Its last entry.
    #[prost(message, optional, tag = "2")]
    pub last: Option<LogId>,
    /// The leader asked for this election.
    #[prost(bool, tag = "3")]
    pub leadership_transfer: bool,
}

/// The answer to a [`VoteAsk`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct VoteAnswer {
    /// What the answering member has promised.
    #[prost(message, optional, tag = "1")]
    pub vote: Option<Vote>,
    /// Its last entry.
    #[prost(message, optional, tag = "2")]
    pub last: Option<LogId>,
    /// Whether the vote is given.
    #[prost(bool, tag = "3")]
    pub granted: bool,
}

/// The leader hands over.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Transfer {
    /// The leader's vote.
    #[prost(message, optional, tag = "1")]
    pub from: Option<Vote>,
    /// The member that is to lead.
    #[prost(uint64, tag = "2")]
    pub to: u64,
    /// The last entry of the leader's log.
    #[prost(message, optional, tag = "3")]
    pub last: Option<LogId>,
}

/// The answer to a [`Transfer`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TransferAnswer {
    /// Set when it follows another vote by now.
    #[prost(message, optional, tag = "1")]
    pub vote_changed: Option<Vote>,
    /// Set when its log is not there yet: how far it is.
    #[prost(message, optional, tag = "2")]
    pub not_flushed: Option<Matched>,
}

/// Asks for what is kept of a task.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RecordAsk {
    /// The task's id, its upper half.
    #[prost(fixed64, tag = "1")]
    pub task_high: u64,
    /// Its lower half.
    #[prost(fixed64, tag = "2")]
    pub task_low: u64,
    /// As of this entry or later.
    #[prost(uint64, tag = "3")]
    pub index: u64,
}

/// The answer to a [`RecordAsk`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RecordAnswer {
    /// The record with its checksum ([`crate::seal`]); nothing when the answering member cannot read its envelope.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub record: Option<Bytes>,
    /// Some of what came after the envelope is damaged there, and not in the record.
    #[prost(bool, tag = "2")]
    pub partial: bool,
}

/// A step of the way of a checkpoint to another member.
#[derive(Clone, PartialEq, Message)]
pub struct SnapshotStep {
    /// The leader's vote.
    #[prost(message, optional, tag = "1")]
    pub vote: Option<Vote>,
    /// Names the file: another file has another number.
    #[prost(fixed64, tag = "2")]
    pub spool: u64,
    /// Which step.
    #[prost(oneof = "SnapshotPart", tags = "3, 4, 5")]
    pub part: Option<SnapshotPart>,
}

/// A step of the way of a checkpoint.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum SnapshotPart {
    /// It begins, or goes on after a lost link.
    #[prost(message, tag = "3")]
    Begin(SnapshotBegin),
    /// Some of its bytes.
    #[prost(message, tag = "4")]
    Chunk(SnapshotChunk),
    /// All was sent: check it and take it in.
    #[prost(message, tag = "5")]
    Finish(SnapshotFinish),
}

/// What is to come.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SnapshotBegin {
    /// The file's length.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    /// The last entry in it.
    #[prost(message, optional, tag = "2")]
    pub applied: Option<LogId>,
}

/// Some bytes of the file.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SnapshotChunk {
    /// Where they go.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    /// Their CRC32C.
    #[prost(fixed32, tag = "2")]
    pub crc: u32,
    /// The bytes; they share memory with the message.
    #[prost(bytes = "bytes", tag = "3")]
    pub bytes: Bytes,
}

/// What the whole file is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SnapshotFinish {
    /// The file's length.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    /// The last entry in it.
    #[prost(message, optional, tag = "2")]
    pub applied: Option<LogId>,
    /// The entry that set the members.
    #[prost(message, optional, tag = "3")]
    pub membership_at: Option<LogId>,
    /// The members.
    #[prost(message, optional, tag = "4")]
    pub membership: Option<Membership>,
    /// Tasks of which something is missing in the file, 16 bytes each, big-endian.
    #[prost(bytes = "bytes", tag = "5")]
    pub lacking: Bytes,
}

/// The answer to a [`SnapshotStep`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SnapshotAnswer {
    /// What the answering member has promised.
    #[prost(message, optional, tag = "1")]
    pub vote: Option<Vote>,
    /// So many bytes of the file are there, from the first on.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// It is taken in.
    #[prost(bool, tag = "3")]
    pub installed: bool,
}

/// What stands behind a message's bytes on their way: the number of the member that it is for. There is room for it, so that
/// they need not be copied.
pub const TRAILER_BYTES: usize = 8;

/// The bytes of a message.
pub fn encode(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::with_capacity(message.encoded_len() + TRAILER_BYTES);
    append(message, &mut bytes);
    bytes.freeze()
}
