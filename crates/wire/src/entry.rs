//! A log entry as bytes: which kind it is, the leader's two stamps, and many commands.
//!
//! A command is encoded once, where it is proposed; an entry is put together from those bytes, and
//! the same bytes are replicated and stored. Whatever was written once must decode for ever, see
//! `docs/formats/entry.md`. Next: `command`, what one command looks like.

use bytes::{BufMut, Bytes, BytesMut};
use model::{Elapsed, WallTime};
use prost::Message;
use prost::encoding::{
    WireType, decode_key, decode_varint, encode_key, encode_varint, encoded_len_varint, key_len,
};

use crate::append;

/// Bytes that are no entry, command or record of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They are not the encoding of any message.
    #[error("malformed bytes ({0}): they were damaged, or written by a newer version")]
    Encoding(#[from] prost::DecodeError),
    /// A field that must be there is not.
    #[error("malformed bytes: {0} is missing")]
    Missing(&'static str),
    /// A field holds what it cannot hold.
    #[error("malformed bytes: invalid {0}")]
    Value(&'static str),
    /// A kind of entry or command that this version does not know.
    #[error("unknown {0}: it was written by a newer version, start that one")]
    Unknown(&'static str),
}

/// The first byte of an entry: nothing follows.
pub const KIND_BLANK: u8 = 0;
/// The first byte of an entry: [`Commands`] follow.
pub const KIND_COMMANDS: u8 = 1;
/// The first byte of an entry: a [`Membership`] follows.
pub const KIND_MEMBERSHIP: u8 = 2;

const TAG_ELAPSED: u32 = 1;
const TAG_WALL: u32 = 2;
pub(crate) const TAG_COMMAND: u32 = 3;

/// The content of an entry that carries commands.
#[derive(Clone, PartialEq, Message)]
pub struct Commands {
    #[prost(uint64, tag = "1")]
    elapsed_ms: u64,
    #[prost(uint64, tag = "2")]
    wall_ms: u64,
    /// Each command's own bytes, sharing memory with the entry.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub commands: Vec<Bytes>,
}

impl Commands {
    /// The leader's stamp of the time that never jumps.
    pub fn elapsed(&self) -> Elapsed {
        Elapsed(self.elapsed_ms)
    }

    /// The leader's stamp of the time that people read.
    pub fn wall(&self) -> WallTime {
        WallTime::from_millis(self.wall_ms)
    }
}

/// Adds one encoded message to `part` as a command of an entry.
pub fn push_command(message: &impl Message, part: &mut BytesMut) {
    let len = message.encoded_len();
    part.reserve(key_len(TAG_COMMAND) + encoded_len_varint(len as u64) + len);
    encode_key(TAG_COMMAND, WireType::LengthDelimited, part);
    encode_varint(len as u64, part);
    append(message, part);
}

/// How many commands a part of an entry has; nothing if it is not one that [`push_command`] made.
pub fn count_commands(mut part: &[u8]) -> Option<u32> {
    let mut count = 0;
    while !part.is_empty() {
        let key = decode_key(&mut part).ok()?;
        if key != (TAG_COMMAND, WireType::LengthDelimited) {
            return None;
        }
        let len = usize::try_from(decode_varint(&mut part).ok()?).ok()?;
        part = part.get(len..)?;
        count += 1;
    }
    Some(count)
}

/// The commands of a part that [`push_command`] made, sharing memory with it. All of the part must be commands.
pub fn commands(part: Bytes) -> Result<Vec<Bytes>, Malformed> {
    count_commands(&part).ok_or(Malformed::Value("commands"))?;
    Ok(Commands::decode(part)?.commands)
}

/// Puts an entry together from parts that [`push_command`] made.
pub fn assemble<'a>(
    elapsed: Elapsed,
    wall: WallTime,
    parts: impl Iterator<Item = &'a [u8]> + Clone,
) -> Bytes {
    const HEADER_BYTES_MAX: usize = 1 + 2 * (1 + 10);
    let len: usize = parts.clone().map(<[u8]>::len).sum();
    let mut entry = BytesMut::with_capacity(HEADER_BYTES_MAX + len);
    entry.put_u8(KIND_COMMANDS);
    encode_key(TAG_ELAPSED, WireType::Varint, &mut entry);
    encode_varint(elapsed.0, &mut entry);
    encode_key(TAG_WALL, WireType::Varint, &mut entry);
    encode_varint(wall.millis(), &mut entry);
    for part in parts {
        entry.extend_from_slice(part);
    }
    entry.freeze()
}

/// Who votes in a group, and who only listens.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Membership {
    /// The voters; two sets while one replaces the other.
    #[prost(message, repeated, tag = "1")]
    pub voters: Vec<Voters>,
    /// Everybody: voters and those who only listen.
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<Member>,
}

/// A set of voters.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Voters {
    /// Their numbers.
    #[prost(uint64, repeated, tag = "1")]
    pub ids: Vec<u64>,
}

/// A member of a group.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Member {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Where it listens; empty for a group of one.
    #[prost(string, tag = "2")]
    pub address: String,
}

/// What an entry carries.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// Nothing: a new leader's mark.
    Blank,
    /// Commands.
    Commands(Commands),
    /// A change of members.
    Membership(Membership),
}

impl Entry {
    /// An entry from its bytes, sharing the commands' memory with them.
    pub fn decode(mut bytes: Bytes) -> Result<Entry, Malformed> {
        let kind = *bytes.first().ok_or(Malformed::Missing("kind of entry"))?;
        let body = bytes.split_off(1);
        match kind {
            KIND_BLANK if body.is_empty() => Ok(Entry::Blank),
            KIND_BLANK => Err(Malformed::Value("blank entry")),
            KIND_COMMANDS => Ok(Entry::Commands(Commands::decode(body)?)),
            KIND_MEMBERSHIP => Ok(Entry::Membership(Membership::decode(body)?)),
            _ => Err(Malformed::Unknown("kind of entry")),
        }
    }
}

/// The bytes of an entry that carries nothing.
pub fn encode_blank() -> Bytes {
    Bytes::from_static(&[KIND_BLANK])
}

/// The bytes of an entry that changes the members.
pub fn encode_membership(membership: &Membership) -> Bytes {
    let mut entry = BytesMut::with_capacity(1 + membership.encoded_len());
    entry.put_u8(KIND_MEMBERSHIP);
    append(membership, &mut entry);
    entry.freeze()
}

/// A vote: what a member promised, and whether a quorum agreed.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Vote {
    /// In which term.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// For whom.
    #[prost(uint64, tag = "2")]
    pub member: u64,
    /// Whether that member won.
    #[prost(bool, tag = "3")]
    pub committed: bool,
}

/// An entry's place: a term and an index.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LogId {
    /// The leader's term.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// The index.
    #[prost(uint64, tag = "2")]
    pub index: u64,
}

/// What a checkpoint says of itself.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CheckpointHead {
    /// The last entry in it.
    #[prost(message, optional, tag = "1")]
    pub applied: Option<LogId>,
    /// The entry that set the members.
    #[prost(message, optional, tag = "2")]
    pub membership_at: Option<LogId>,
    /// The members.
    #[prost(message, optional, tag = "3")]
    pub membership: Option<Membership>,
    /// The state's hash, upper half.
    #[prost(fixed64, tag = "4")]
    pub hash_high: u64,
    /// The state's hash, lower half.
    #[prost(fixed64, tag = "5")]
    pub hash_low: u64,
}

impl CheckpointHead {
    /// The state's hash.
    pub fn hash(&self) -> u128 {
        u128::from(self.hash_high) << 64 | u128::from(self.hash_low)
    }
}
