//! What nodes say to each other, and how it is framed.
//!
//! A connection opens with one greeting each way, [`Hello`] and [`HelloAnswer`], each behind [`MAGIC`] and its
//! length. Then come frames, both ways: a [`FrameHeader`] and the body that it tells the length of. What a body
//! means depends on its [`PeerKind`] and is in the file of that name.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use model::{GroupId, NodeId, limits};
use prost::Message;

use crate::append;

/// What a greeting begins with: tells a node from a stranger.
pub const MAGIC: [u8; 8] = *b"windlass";
/// The oldest protocol that this version speaks.
pub const PROTOCOL_MIN: u32 = 1;
/// The newest protocol that this version speaks.
pub const PROTOCOL_MAX: u32 = 1;
/// A whole greeting, its magic and length included.
pub const HELLO_BYTES_MAX: usize = 4 * 1024;
/// What comes before a greeting's message: the magic and the length.
pub const HELLO_HEAD_BYTES: usize = MAGIC.len() + 4;
/// The largest frame: what its length may say.
pub const FRAME_BYTES_MAX: usize = 48 * 1024 * 1024;
/// The largest body.
pub const BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - (FrameHeader::BYTES - FrameHeader::LENGTH_BYTES);

/// What a message between nodes is about. The numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PeerKind {
    /// The link's own: is somebody there?
    Ping = 0,
    /// Entries of a group's log.
    Append = 1,
    /// Asks for a vote.
    Vote = 2,
    /// Asks whether a vote would be given.
    PreVote = 3,
    /// Hands leadership over.
    Transfer = 4,
    /// A piece of a checkpoint.
    Snapshot = 5,
    /// What is kept of a task, for a member whose own copy of it is damaged.
    Record = 6,
    /// Commands for the leader.
    Propose = 10,
    /// Which index a read must have seen.
    ReadIndex = 11,
    /// News of sessions.
    SessionNews = 20,
    /// Who knows this session?
    SessionAsk = 21,
    /// Who are you, and do you know a cluster?
    Probe = 30,
    /// A cluster is being made.
    Found = 31,
    /// A node wants to be part of the cluster.
    Join = 32,
    /// What a node says of its groups and its clock.
    Status = 33,
    /// What a person asks of a group's leader.
    Ask = 34,
    /// What a leader says of its groups in which nothing happens.
    Quiet = 35,
}

impl PeerKind {
    /// A kind from its number; nothing for one that this version does not know.
    pub fn from_number(number: u8) -> Option<PeerKind> {
        Some(match number {
            0 => PeerKind::Ping,
            1 => PeerKind::Append,
            2 => PeerKind::Vote,
            3 => PeerKind::PreVote,
            4 => PeerKind::Transfer,
            5 => PeerKind::Snapshot,
            6 => PeerKind::Record,
            10 => PeerKind::Propose,
            11 => PeerKind::ReadIndex,
            20 => PeerKind::SessionNews,
            21 => PeerKind::SessionAsk,
            30 => PeerKind::Probe,
            31 => PeerKind::Found,
            32 => PeerKind::Join,
            33 => PeerKind::Status,
            34 => PeerKind::Ask,
            35 => PeerKind::Quiet,
            _ => return None,
        })
    }

    /// Whether a node may say this to one that does not know yet that both are of one cluster.
    pub fn is_before_cluster(self) -> bool {
        matches!(self, PeerKind::Ping | PeerKind::Probe | PeerKind::Found | PeerKind::Join)
    }

    /// Whether it moves much and can wait: such frames do not hold up others.
    pub fn is_bulk(self) -> bool {
        self == PeerKind::Snapshot
    }
}

/// What a frame is to the one that gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameRole {
    /// Wants an answer with the same number.
    Request = 0,
    /// Answers a request.
    Answer = 1,
    /// Answers a request by why not, as text.
    Refusal = 2,
    /// Wants no answer.
    Tell = 3,
}

impl FrameRole {
    fn from_number(number: u8) -> Option<FrameRole> {
        Some(match number {
            0 => FrameRole::Request,
            1 => FrameRole::Answer,
            2 => FrameRole::Refusal,
            3 => FrameRole::Tell,
            _ => return None,
        })
    }
}

/// What comes before each body: `length u32 | kind u8 | role u8 | group u16 | request u64`, big-endian. The
/// length counts what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The number of a [`PeerKind`], which this version may not know.
    pub kind: u8,
    /// Request, answer, …
    pub role: FrameRole,
    /// Which group it is about; 0 where that says nothing.
    pub group: GroupId,
    /// Tells requests of one connection apart; each side counts its own.
    pub request: u64,
    /// Length of the body.
    pub body_bytes: usize,
}

/// Bytes that no node of ours sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// A length that cannot be.
    #[error("a frame of {0} bytes: between 12 and {FRAME_BYTES_MAX} are allowed")]
    Length(usize),
    /// A role that this version does not know.
    #[error("a frame with the unknown role {0}")]
    Role(u8),
}

impl FrameHeader {
    /// Its bytes, the length included.
    pub const BYTES: usize = 16;
    const LENGTH_BYTES: usize = 4;

    /// Puts its bytes; the body goes behind them.
    pub fn put(&self, out: &mut BytesMut) {
        debug_assert!(self.body_bytes <= BODY_BYTES_MAX);
        out.put_u32((Self::BYTES - Self::LENGTH_BYTES + self.body_bytes) as u32);
        out.put_u8(self.kind);
        out.put_u8(self.role as u8);
        out.put_u16(self.group.0);
        out.put_u64(self.request);
    }

    /// The header that these bytes begin with; nothing while there are too few of them.
    pub fn peek(mut bytes: &[u8]) -> Result<Option<FrameHeader>, BadFrame> {
        if bytes.len() < Self::BYTES {
            return Ok(None);
        }
        let length = bytes.get_u32() as usize;
        if !(Self::BYTES - Self::LENGTH_BYTES..=FRAME_BYTES_MAX).contains(&length) {
            return Err(BadFrame::Length(length));
        }
        let (kind, role) = (bytes.get_u8(), bytes.get_u8());
        Ok(Some(FrameHeader {
            kind,
            role: FrameRole::from_number(role).ok_or(BadFrame::Role(role))?,
            group: GroupId(bytes.get_u16()),
            request: bytes.get_u64(),
            body_bytes: length - (Self::BYTES - Self::LENGTH_BYTES),
        }))
    }
}

/// The first words of the one that dialled.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// The oldest protocol that it speaks.
    #[prost(uint32, tag = "1")]
    pub version_min: u32,
    /// The newest.
    #[prost(uint32, tag = "2")]
    pub version_max: u32,
    /// The cluster's id in 16 bytes, big-endian; nothing while it knows none.
    #[prost(bytes = "bytes", tag = "3")]
    pub cluster: Bytes,
    /// Its number.
    #[prost(uint64, tag = "4")]
    pub node: u64,
    /// A random number that is new in each process.
    #[prost(fixed64, tag = "5")]
    pub process: u64,
    /// Where others reach it.
    #[prost(string, tag = "6")]
    pub address: String,
    /// Whom it wants to talk to.
    #[prost(uint64, tag = "7")]
    pub to: u64,
    /// Which of its lives it is in the cluster; nothing while it knows none.
    #[prost(uint64, optional, tag = "8")]
    pub incarnation: Option<u64>,
}

/// What the other side says to a [`Hello`].
#[derive(Clone, PartialEq, Message)]
pub struct HelloAnswer {
    /// The protocol that both go on with.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// As in [`Hello::cluster`].
    #[prost(bytes = "bytes", tag = "2")]
    pub cluster: Bytes,
    /// Its number.
    #[prost(uint64, tag = "3")]
    pub node: u64,
    /// As in [`Hello::process`].
    #[prost(fixed64, tag = "4")]
    pub process: u64,
    /// Where others reach it.
    #[prost(string, tag = "5")]
    pub address: String,
    /// Why it does not want to talk; nothing means welcome.
    #[prost(message, optional, tag = "6")]
    pub refusal: Option<Refusal>,
    /// As in [`Hello::incarnation`].
    #[prost(uint64, optional, tag = "7")]
    pub incarnation: Option<u64>,
}

/// Why a node does not want to talk.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Refusal {
    /// A [`RefusalCode`].
    #[prost(enumeration = "RefusalCode", tag = "1")]
    pub code: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// Why a node does not want to talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum RefusalCode {
    /// One that this version does not know.
    Unknown = 0,
    /// There is a connection already. Nothing is wrong.
    Busy = 1,
    /// No protocol that both speak.
    Version = 2,
    /// It is of another cluster.
    OtherCluster = 3,
    /// Another node was looked for at this address.
    WrongNode = 4,
    /// Another process has this node's number.
    SameNumber = 5,
    /// Too many connections of nodes that are not of this cluster.
    TooMany = 6,
}

impl Hello {
    /// Whom it is from, if that is a number that a node can have.
    pub fn from(&self) -> Option<NodeId> {
        node_number(self.node)
    }
}

impl HelloAnswer {
    /// Whom it is from, if that is a number that a node can have.
    pub fn from(&self) -> Option<NodeId> {
        node_number(self.node)
    }
}

fn node_number(number: u64) -> Option<NodeId> {
    (1..=limits::NODE_MAX).contains(&number).then_some(NodeId(number))
}

/// The newest protocol that this version and another speak.
pub fn common_version(version_min: u32, version_max: u32) -> Option<u32> {
    let newest = version_max.min(PROTOCOL_MAX);
    (newest >= version_min.max(PROTOCOL_MIN)).then_some(newest)
}

/// A cluster's id as a greeting has it; 0 is no cluster.
pub fn cluster_bytes(cluster: u128) -> Bytes {
    match cluster {
        0 => Bytes::new(),
        id => Bytes::copy_from_slice(&id.to_be_bytes()),
    }
}

/// A cluster's id from a greeting; 0 is no cluster, nothing is a length that an id does not have.
pub fn cluster_from_bytes(bytes: &[u8]) -> Option<u128> {
    match bytes {
        [] => Some(0),
        bytes => Some(u128::from_be_bytes(bytes.try_into().ok()?)),
    }
}

/// A greeting with what comes before it. Nothing when it is larger than a greeting may be.
pub fn greeting(message: &impl Message) -> Option<Bytes> {
    let length = message.encoded_len();
    if HELLO_HEAD_BYTES + length > HELLO_BYTES_MAX {
        return None;
    }
    let mut out = BytesMut::with_capacity(HELLO_HEAD_BYTES + length);
    out.put_slice(&MAGIC);
    out.put_u32(length as u32);
    append(message, &mut out);
    Some(out.freeze())
}

/// How long the greeting is that begins so; nothing when no node of ours says that.
pub fn greeting_bytes(head: &[u8; HELLO_HEAD_BYTES]) -> Option<usize> {
    let mut length = head.strip_prefix(&MAGIC)?;
    let length = length.get_u32() as usize;
    (HELLO_HEAD_BYTES + length <= HELLO_BYTES_MAX).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_frame_header_are_these_for_ever() {
        let header = FrameHeader {
            kind: PeerKind::Propose as u8,
            role: FrameRole::Refusal,
            group: GroupId(0x0102),
            request: 0x0a0b_0c0d_0e0f_1011,
            body_bytes: 5,
        };
        let mut bytes = BytesMut::new();
        header.put(&mut bytes);
        assert_eq!(bytes[..], [0, 0, 0, 17, 10, 2, 1, 2, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11]);
        assert_eq!(FrameHeader::peek(&bytes), Ok(Some(header)));
        assert_eq!(FrameHeader::peek(&bytes[..15]), Ok(None));
    }

    #[test]
    fn a_frame_that_no_node_sends_is_refused() {
        let frame = |length: u32, role: u8| {
            let mut bytes = BytesMut::new();
            bytes.put_u32(length);
            bytes.put_slice(&[1, role, 0, 0]);
            bytes.put_u64(7);
            FrameHeader::peek(&bytes)
        };
        assert!(frame(12, 0).unwrap().is_some_and(|header| header.body_bytes == 0));
        assert!(frame(FRAME_BYTES_MAX as u32, 3).unwrap().is_some());
        for (length, role, what) in [
            (11, 0, BadFrame::Length(11)),
            (FRAME_BYTES_MAX as u32 + 1, 0, BadFrame::Length(FRAME_BYTES_MAX + 1)),
            (12, 4, BadFrame::Role(4)),
        ] {
            assert_eq!(frame(length, role), Err(what));
        }
    }

    #[test]
    fn the_bytes_of_a_greeting_are_these_for_ever() {
        let hello = Hello {
            version_min: 1,
            version_max: 2,
            cluster: cluster_bytes(0x0102),
            node: 3,
            process: 4,
            address: "n:1".to_owned(),
            to: 5,
            incarnation: None,
        };
        let bytes = greeting(&hello).unwrap();
        let expected: &[u8] = &[
            b'w', b'i', b'n', b'd', b'l', b'a', b's', b's', 0, 0, 0, 40, 8, 1, 16, 2, 26, 16, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 32, 3, 41, 4, 0, 0, 0, 0, 0, 0, 0, 50, 3, b'n', b':', b'1', 56,
            5,
        ];
        assert_eq!(bytes[..], *expected);
        let head = bytes[..HELLO_HEAD_BYTES].try_into().unwrap();
        assert_eq!(greeting_bytes(head), Some(40));
        assert_eq!(Hello::decode(&bytes[HELLO_HEAD_BYTES..]), Ok(hello.clone()));
        // The first life is not the same as none.
        for (incarnation, tail) in [(0, [64, 0]), (6, [64, 6])] {
            let hello = Hello { incarnation: Some(incarnation), ..hello.clone() };
            let bytes = greeting(&hello).unwrap();
            assert_eq!(bytes[HELLO_HEAD_BYTES..], [&expected[HELLO_HEAD_BYTES..], &tail].concat());
            assert_eq!(Hello::decode(&bytes[HELLO_HEAD_BYTES..]), Ok(hello));
        }
        let answer = HelloAnswer { version: 1, node: 3, incarnation: Some(0), ..HelloAnswer::default() };
        assert_eq!(answer.encode_to_vec(), [8, 1, 24, 3, 56, 0]);
        assert_eq!(cluster_from_bytes(&cluster_bytes(0x0102)), Some(0x0102));
        assert_eq!((cluster_from_bytes(&[]), cluster_from_bytes(&[1])), (Some(0), None));
    }

    #[test]
    fn a_greeting_of_a_later_version_is_understood_as_far_as_it_is_known() {
        let answer = HelloAnswer {
            refusal: Some(Refusal { code: RefusalCode::Busy as i32, text: "busy".to_owned() }),
            ..HelloAnswer::default()
        };
        let mut bytes = answer.encode_to_vec();
        bytes.extend([0xf8, 0x01, 9]);
        assert_eq!(HelloAnswer::decode(&bytes[..]), Ok(answer));
        let later = Refusal { code: 99, text: String::new() };
        assert_eq!(later.code(), RefusalCode::Unknown);
    }

    #[test]
    fn what_is_no_greeting_is_told_apart() {
        assert_eq!(greeting_bytes(b"GET / HTTP/1"), None);
        assert_eq!(greeting_bytes(b"windlass\xff\0\0\0"), None);
        assert_eq!(greeting_bytes(b"windlass\0\0\0\x02"), Some(2));
        let large = Hello { address: "a".repeat(HELLO_BYTES_MAX), ..Hello::default() };
        assert_eq!(greeting(&large), None);
    }

    #[test]
    fn two_versions_agree_on_the_newest_that_both_speak() {
        assert_eq!(common_version(PROTOCOL_MIN, PROTOCOL_MAX + 3), Some(PROTOCOL_MAX));
        assert_eq!(common_version(PROTOCOL_MAX + 1, PROTOCOL_MAX + 3), None);
        assert_eq!(common_version(0, 0), None);
    }

    #[test]
    fn every_kind_comes_back_from_its_number() {
        let kinds: Vec<PeerKind> = (0..=u8::MAX).filter_map(PeerKind::from_number).collect();
        assert_eq!(kinds.len(), 17);
        assert!(kinds.iter().all(|kind| PeerKind::from_number(*kind as u8) == Some(*kind)));
    }
}
