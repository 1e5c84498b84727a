//! What a leader says of its groups in which nothing happens, and whether the others agree.
//!
//! One message to a node for all groups, a few times a second, instead of heartbeats of each.

use bytes::Bytes;
use prost::Message;

use crate::entry::Malformed;

/// The groups that the sender leads and in which nothing happens.
#[derive(Clone, PartialEq, Message)]
pub struct QuietMessage {
    /// Each of them.
    #[prost(message, repeated, tag = "1")]
    pub groups: Vec<QuietGroup>,
}

/// A group in which nothing happens.
#[derive(Clone, PartialEq, Message)]
pub struct QuietGroup {
    /// Which; 0 is the catalog.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// The term in which the sender leads it.
    #[prost(uint64, tag = "2")]
    pub term: u64,
    /// The last entry: every member has it.
    #[prost(uint64, tag = "3")]
    pub last: u64,
    /// How far the leader has counted.
    #[prost(uint64, tag = "4")]
    pub elapsed: u64,
}

/// Who answers, and where it does not agree.
#[derive(Clone, PartialEq, Message)]
pub struct QuietAnswer {
    /// Which of its lives the node is in.
    #[prost(uint64, tag = "1")]
    pub incarnation: u64,
    /// The groups that do not look so here: their leader must be heard.
    #[prost(uint32, repeated, tag = "2")]
    pub refused: Vec<u32>,
}

/// A message from its bytes.
pub fn decode<T: Message + Default>(bytes: Bytes) -> Result<T, Malformed> {
    Ok(T::decode(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::encode;

    /// Nodes of two versions speak to each other while a cluster is upgraded: these bytes never change.
    #[test]
    fn messages_have_the_bytes_they_always_had() {
        let group = QuietGroup { group: 4, term: 7, last: 2_050, elapsed: 70_000 };
        let message = QuietMessage { groups: vec![group] };
        assert_eq!(&encode(&message)[..], [10, 11, 8, 4, 16, 7, 24, 130, 16, 32, 240, 162, 4]);
        let answer = QuietAnswer { incarnation: 2, refused: vec![4, 300] };
        assert_eq!(&encode(&answer)[..], [8, 2, 18, 3, 4, 172, 2]);
        assert_eq!(decode::<QuietMessage>(encode(&message)).unwrap(), message);
        assert_eq!(decode::<QuietAnswer>(encode(&answer)).unwrap(), answer);
        assert!(
            decode::<QuietMessage>(Bytes::from_static(&[0xff])).is_err(),
            "what is no message is refused"
        );
    }
}
