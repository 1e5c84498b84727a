//! What a node tells the others of itself, twice a second: its clock, its room, its part in every group.
//!
//! News, not facts: whoever hears it keeps it for a few seconds and decides nothing by it that must be right.
//! Fields that a version does not know are passed by.

use bytes::Bytes;
use prost::Message;

use crate::entry::Malformed;
use crate::new_task::Bits128;

/// What a node says of itself.
#[derive(Clone, PartialEq, Message)]
pub struct StatusMessage {
    /// What its own clock on the wall says, not held to anybody's.
    #[prost(uint64, tag = "1")]
    pub wall_ms: u64,
    /// Which of its lives.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Tells two runs of the same life apart.
    #[prost(fixed64, tag = "3")]
    pub process: u64,
    /// The version of its program.
    #[prost(string, tag = "4")]
    pub version: String,
    /// Where it listens for callers; empty when it does not.
    #[prost(string, tag = "5")]
    pub address: String,
    /// Its disk has no room for new tasks.
    #[prost(bool, tag = "6")]
    pub disk_full: bool,
    /// Its memory has no room for new tasks.
    #[prost(bool, tag = "7")]
    pub memory_full: bool,
    /// What the tasks take of its memory.
    #[prost(uint64, tag = "8")]
    pub memory_bytes: u64,
    /// What they may take.
    #[prost(uint64, tag = "9")]
    pub memory_bytes_max: u64,
    /// It is stopping.
    #[prost(bool, tag = "10")]
    pub stopping: bool,
    /// Its part in each group.
    #[prost(message, repeated, tag = "11")]
    pub groups: Vec<GroupStatusMessage>,
}

/// A node's part in one group.
#[derive(Clone, PartialEq, Message)]
pub struct GroupStatusMessage {
    /// Which; 0 is the catalog.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// What it is to the group.
    #[prost(enumeration = "RoleNumber", tag = "2")]
    pub role: i32,
    /// The term it knows.
    #[prost(uint64, tag = "3")]
    pub term: u64,
    /// The node that leads, as far as it knows; 0 for nobody.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    /// The last entry in its log.
    #[prost(uint64, tag = "5")]
    pub last: u64,
    /// The last entry that is safe.
    #[prost(uint64, tag = "6")]
    pub committed: u64,
    /// The last entry that is applied.
    #[prost(uint64, tag = "7")]
    pub applied: u64,
    /// Hashes of its state, oldest first.
    #[prost(message, repeated, tag = "8")]
    pub points: Vec<HashPointMessage>,
    /// Why it stopped, if it did.
    #[prost(string, optional, tag = "9")]
    pub failure: Option<String>,
    /// It stopped because its state differs from the majority's.
    #[prost(bool, tag = "10")]
    pub diverged: bool,
}

/// A state's hash at an index.
#[derive(Clone, PartialEq, Message)]
pub struct HashPointMessage {
    /// After this entry.
    #[prost(uint64, tag = "1")]
    pub index: u64,
    /// The hash.
    #[prost(message, optional, tag = "2")]
    pub hash: Option<Bits128>,
}

/// What a node is to a group, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum RoleNumber {
    /// A role that this version does not know.
    Unknown = 0,
    /// It decides the order of entries.
    Leader = 1,
    /// It follows the leader.
    Follower = 2,
    /// It asks for votes.
    Candidate = 3,
    /// It follows without a vote.
    Learner = 4,
    /// It has stopped.
    Stopped = 5,
}

/// A status as bytes.
pub fn encode(status: &StatusMessage) -> Bytes {
    status.encode_to_vec().into()
}

/// A status from its bytes.
pub fn decode(bytes: Bytes) -> Result<StatusMessage, Malformed> {
    Ok(StatusMessage::decode(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> StatusMessage {
        StatusMessage {
            wall_ms: 1_763_208_000_000,
            incarnation: 2,
            process: 0x0102_0304_0506_0708,
            version: "1.2.3".to_owned(),
            address: "10.0.0.2:7420".to_owned(),
            disk_full: true,
            memory_full: false,
            memory_bytes: 300,
            memory_bytes_max: 70_000,
            stopping: false,
            groups: vec![GroupStatusMessage {
                group: 4,
                role: RoleNumber::Follower.into(),
                term: 7,
                leader: 3,
                last: 2_050,
                committed: 2_049,
                applied: 2_048,
                points: vec![HashPointMessage { index: 2_048, hash: Some((5u128 << 64 | 6).into()) }],
                failure: Some("full".to_owned()),
                diverged: true,
            }],
        }
    }

    /// Nodes of two versions speak to each other while a cluster is upgraded: these bytes never change.
    const BYTES: &str = "0880e48bbba83310021908070605040302012205312e322e332a0d31302e302e302e323a3734\
        3230300140ac0248f0a2045a320804100218072003288210308110388010421708801012120905000000000000001106\
        000000000000004a0466756c6c5001";

    #[test]
    fn a_status_has_the_bytes_it_always_had() {
        let hex: String = status().encode_to_vec().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, BYTES);
        assert_eq!(decode(encode(&status())).unwrap(), status());
    }

    #[test]
    fn fields_of_a_newer_version_are_passed_by() {
        let mut bytes = status().encode_to_vec();
        // Field 900, a string.
        bytes.extend_from_slice(&[0xa2, 0x38, 0x03, b'n', b'e', b'w']);
        assert_eq!(decode(bytes.into()).unwrap(), status());
        assert!(decode(Bytes::from_static(&[0xff])).is_err(), "what is no message is refused");
    }
}
