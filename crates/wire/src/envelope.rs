//! A task's envelope: what never changes, and its bytes in log and checkpoint.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};

use crate::bytes_of;
use crate::quick::{next_key, piece};

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
        match plain(&bytes) {
            Some((kind, payload)) => Ok(Envelope {
                kind: kind.to_owned(),
                payload: bytes.slice_ref(payload),
                ..Envelope::default()
            }),
            None => Envelope::decode(bytes),
        }
    }
}

/// Kind and payload of an envelope that has nothing else. Whatever is unusual is left to the message.
fn plain(mut rest: &[u8]) -> Option<(&str, &[u8])> {
    let (mut kind, mut payload) = ("", &b""[..]);
    let mut last = 0;
    while !rest.is_empty() {
        match next_key(&mut rest, &mut last)? {
            KIND => kind = std::str::from_utf8(piece(&mut rest)?).ok()?,
            PAYLOAD => payload = piece(&mut rest)?,
            _ => return None,
        }
    }
    Some((kind, payload))
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
            let out = out.split_off(6).freeze();
            assert_eq!(out, envelope.to_bytes());
            assert!(plain(&out).is_some());
            assert_eq!(Envelope::from_bytes(out), Ok(envelope));
        }
    }

    #[test]
    fn whatever_is_read_by_hand_is_what_the_message_says() {
        let mut whole = BytesMut::new();
        Envelope::append_plain("welcome", b"[1,2]", &mut whole);
        let other = Envelope { order_key: Some("user-7".to_owned()), ..Envelope::default() };
        assert_eq!(plain(&other.to_bytes()), None);
        let mut read = 0;
        for (at, flip) in (0..whole.len()).flat_map(|at| (0..=255).map(move |flip| (at, flip))) {
            for cut in [0, 1] {
                let mut bytes = whole.to_vec();
                bytes[at] ^= flip;
                bytes.truncate(whole.len() - cut);
                read += usize::from(plain(&bytes).is_some());
                let bytes = Bytes::from(bytes);
                assert_eq!(Envelope::from_bytes(bytes.clone()), Envelope::decode(bytes), "{at} {flip} {cut}");
            }
        }
        assert!(read > 1_000, "most flips change a value: {read}");
    }
}
