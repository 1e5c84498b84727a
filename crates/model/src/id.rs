//! Ids: each its own type, none a bare number.

use std::fmt;
use std::str::FromStr;

use crate::key::KeyHash;
use crate::limits;
use crate::name::QueueName;
use crate::time::WallTime;

/// A group of replicas that share one Raft log. Group 0 is the catalog; group `n` is shard `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

impl GroupId {
    /// The group that keeps facts about the cluster.
    pub const CATALOG: GroupId = GroupId(0);
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A slice of the tasks, numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(u16);

impl ShardId {
    /// A shard by its number, 1 to [`limits::SHARDS_MAX`].
    pub fn new(number: u16) -> Option<ShardId> {
        (1..=limits::SHARDS_MAX).contains(&number).then_some(ShardId(number))
    }

    /// All shards of a cluster that has `count` of them.
    pub fn all(count: u16) -> impl DoubleEndedIterator<Item = ShardId> + Clone {
        (1..=count).map(ShardId)
    }

    /// The shard, of `count`, that a placing hash falls into.
    pub fn of_hash(hash: u64, count: u16) -> ShardId {
        // Multiply-shift maps the whole range evenly and needs no division.
        ShardId(1 + ((u128::from(hash) * u128::from(count)) >> 64) as u16)
    }

    /// The shard, of `count`, that a pinned queue lives in.
    pub fn of_queue(queue: &QueueName, count: u16) -> ShardId {
        ShardId::of_hash(KeyHash::new(queue, "").place(), count)
    }

    /// Its number, from 1.
    pub fn number(self) -> u16 {
        self.0
    }

    /// The group that replicates it.
    pub fn group(self) -> GroupId {
        GroupId(self.0)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A task's id: a UUIDv7 whose 12 bits after the version are the shard, so that every later call
/// finds the shard without a look-up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(u128);

impl TaskId {
    /// An id in `shard`, made at `wall`, told apart by 62 bits of `random`.
    pub fn new(shard: ShardId, wall: WallTime, random: u64) -> TaskId {
        let millis = u128::from(wall.millis() & 0xffff_ffff_ffff);
        let random = u128::from(random & 0x3fff_ffff_ffff_ffff);
        TaskId(millis << 80 | 0x7 << 76 | u128::from(shard.number()) << 64 | 0x2 << 62 | random)
    }

    /// The id of the `n`th follow-up of an ack: a hash, so that every replica makes the same one.
    pub fn follow_up(source: TaskId, fence: Fence, n: u32, shard: ShardId, wall: WallTime) -> TaskId {
        let mut bytes = [0u8; 28];
        bytes[..16].copy_from_slice(&source.0.to_be_bytes());
        bytes[16..24].copy_from_slice(&fence.0.to_be_bytes());
        bytes[24..].copy_from_slice(&n.to_be_bytes());
        TaskId::new(shard, wall, xxhash_rust::xxh3::xxh3_64(&bytes))
    }

    /// An id from its 128 bits, if they are a UUIDv7 with a shard in it.
    pub fn from_bits(bits: u128) -> Option<TaskId> {
        let id = TaskId(bits);
        let version = (bits >> 76) & 0xf;
        let variant = (bits >> 62) & 0x3;
        (version == 7 && variant == 2 && ShardId::new(id.shard_bits()).is_some()).then_some(id)
    }

    /// All 128 bits.
    pub fn bits(self) -> u128 {
        self.0
    }

    /// The shard that the task lives in.
    pub fn shard(self) -> ShardId {
        ShardId(self.shard_bits())
    }

    /// Its text, as it is displayed. By hand: every answer has one, and the formatting of numbers costs as much as encoding
    /// the answer.
    pub fn text(self) -> [u8; 36] {
        let mut text = [b'-'; 36];
        for (byte, place) in self.0.to_be_bytes().into_iter().zip(PLACES) {
            [text[place], text[place + 1]] = DIGITS[usize::from(byte)];
        }
        text
    }

    fn shard_bits(self) -> u16 {
        ((self.0 >> 64) & 0xfff) as u16
    }
}

/// Two digits for each byte.
const DIGITS: [[u8; 2]; 256] = {
    let (digits, mut pairs, mut byte) = (b"0123456789abcdef", [[0; 2]; 256], 0);
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 0xf]];
        byte += 1;
    }
    pairs
};

/// Where each byte's digits stand in an id's text.
const PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A string that is not a task's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a task id: expected the id that enqueue answered, like 01994c2e-8f00-7001-8000-000000000000")]
pub struct InvalidTaskId;

impl FromStr for TaskId {
    type Err = InvalidTaskId;

    fn from_str(text: &str) -> Result<TaskId, InvalidTaskId> {
        let bytes = text.as_bytes();
        if bytes.len() != 36 {
            return Err(InvalidTaskId);
        }
        let mut bits = 0u128;
        for (i, &byte) in bytes.iter().enumerate() {
            let digit = match byte {
                b'-' if matches!(i, 8 | 13 | 18 | 23) => continue,
                _ if matches!(i, 8 | 13 | 18 | 23) => return Err(InvalidTaskId),
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                b'A'..=b'F' => byte - b'A' + 10,
                _ => return Err(InvalidTaskId),
            };
            bits = bits << 4 | u128::from(digit);
        }
        TaskId::from_bits(bits).ok_or(InvalidTaskId)
    }
}

/// Fences a claim: it grows with every claim of a shard, so a worker that lost its claim can never
/// ack the work of the worker that holds the task now. 0 means "never claimed".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One life of a worker's connection; a worker that starts again gets a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u128);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for SessionId {
    type Err = InvalidSessionId;

    fn from_str(text: &str) -> Result<SessionId, InvalidSessionId> {
        let hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let bits = hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        bits.map(SessionId).ok_or(InvalidSessionId)
    }
}

/// A string that is not a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a session: expected the 32 hex digits that POST /v1/workers answered")]
pub struct InvalidSessionId;

/// A server process, as its operator numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One life of a node in a group. A node that lost its disk comes back under a new incarnation: its old
/// promises are not its own any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(u64);

impl MemberId {
    const NODE_BITS: u32 = 16;

    /// The `incarnation`th life of `node`, from 0. Node numbers go up to [`limits::NODE_MAX`].
    pub fn new(node: NodeId, incarnation: u64) -> MemberId {
        debug_assert!(node.0 <= limits::NODE_MAX);
        MemberId(incarnation << Self::NODE_BITS | (node.0 & limits::NODE_MAX))
    }

    /// A member from its number.
    pub fn from_bits(bits: u64) -> MemberId {
        MemberId(bits)
    }

    /// Its number: the first life of a node has the node's own.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Which node.
    pub fn node(self) -> NodeId {
        NodeId(self.0 & limits::NODE_MAX)
    }

    /// Which of its lives, from 0.
    pub fn incarnation(self) -> u64 {
        self.0 >> Self::NODE_BITS
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.incarnation() {
            0 => self.node().fmt(f),
            incarnation => write!(f, "{}.{incarnation}", self.node()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_id_carries_its_shard_through_its_text() {
        for number in [1, 4, limits::SHARDS_MAX] {
            let shard = ShardId::new(number).unwrap();
            let id = TaskId::new(shard, WallTime::from_millis(1_763_208_000_000), u64::MAX);
            assert_eq!(id.shard(), shard);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn what_is_no_task_id_is_refused() {
        for (what, text) in [
            ("empty", ""),
            ("version 4", "01994c2e-8f00-4001-8000-000000000000"),
            ("shard 0", "01994c2e-8f00-7000-8000-000000000000"),
            ("wrong variant", "01994c2e-8f00-7001-c000-000000000000"),
            ("no hyphens", "01994c2e8f007001800000000000000000000"),
            ("not hex", "01994c2e-8f00-7001-8000-00000000000g"),
            ("hyphen misplaced", "01994c2e8-f00-7001-8000-000000000000"),
        ] {
            assert_eq!(text.parse::<TaskId>(), Err(InvalidTaskId), "{what}");
        }
    }

    #[test]
    fn every_hash_falls_into_a_shard() {
        for hash in [0, 1, u64::MAX / 2, u64::MAX] {
            assert!((1..=4).contains(&ShardId::of_hash(hash, 4).number()));
        }
        assert_eq!(ShardId::of_hash(u64::MAX, 1).number(), 1);
    }
}
