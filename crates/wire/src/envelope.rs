//! A task's envelope: what never changes, and its bytes in log and checkpoint.

use bytes::Bytes;
use prost::Message;

use crate::bytes_of;

/// What a caller said of a task, kept as it came.
#[derive(Clone, PartialEq, Message)]
pub struct Envelope {
    /// Which handler it is for.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The payload, byte for byte.
    #[prost(bytes = "bytes", tag = "2")]
    pub payload: Bytes,
    /// What the payload is; nothing means JSON.
    #[prost(string, optional, tag = "3")]
    pub content_type: Option<String>,
    /// What travels beside the payload.
    #[prost(message, repeated, tag = "4")]
    pub headers: Vec<Header>,
    /// Its order key.
    #[prost(string, optional, tag = "5")]
    pub order_key: Option<String>,
    /// Its dedup key.
    #[prost(string, optional, tag = "6")]
    pub dedup_key: Option<String>,
    /// Its unique key.
    #[prost(string, optional, tag = "7")]
    pub unique_key: Option<String>,
}

/// One header.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Header {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

impl Envelope {
    /// Its bytes.
    pub fn to_bytes(&self) -> Bytes {
        bytes_of(self)
    }

    /// The envelope of these bytes; its payload shares their memory.
    pub fn from_bytes(bytes: Bytes) -> Result<Envelope, prost::DecodeError> {
        Envelope::decode(bytes)
    }
}
