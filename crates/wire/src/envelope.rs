//! A task's envelope: what never changes, and its bytes in log and checkpoint.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};

use crate::bytes_of;

/// Keys of fields.
const KIND: u8 = 1 << 3 | 2;
const PAYLOAD: u8 = 2 << 3 | 2;

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

    /// Adds the bytes of an envelope that has nothing else. By hand: most have not.
    pub fn append_plain(kind: &str, payload: &[u8], out: &mut BytesMut) {
        for (key, bytes) in [(KIND, kind.as_bytes()), (PAYLOAD, payload)] {
            if !bytes.is_empty() {
                out.reserve(1 + encoded_len_varint(bytes.len() as u64) + bytes.len());
                out.put_u8(key);
                encode_varint(bytes.len() as u64, out);
                out.put_slice(bytes);
            }
        }
    }

    /// The envelope of these bytes; its payload shares their memory.
    pub fn from_bytes(bytes: Bytes) -> Result<Envelope, prost::DecodeError> {
        Envelope::decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_envelope_is_written_as_its_message_is() {
        for (kind, payload) in
            [("", ""), ("welcome", ""), ("", "7"), (&*"k".repeat(200), &*"7".repeat(20_000))]
        {
            let envelope = Envelope {
                kind: kind.to_owned(),
                payload: Bytes::copy_from_slice(payload.as_bytes()),
                ..Envelope::default()
            };
            let mut out = BytesMut::from(&b"before"[..]);
            Envelope::append_plain(kind, payload.as_bytes(), &mut out);
            assert_eq!(out.split_off(6), envelope.to_bytes());
        }
    }
}
