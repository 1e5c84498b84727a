//! Writes a message behind other bytes.
//!
//! Into a slice of the length that it has: a buffer that may have to grow is asked for every single byte of a number.

use bytes::{Bytes, BytesMut};
use prost::Message;

/// Adds the bytes of a message.
pub fn append(message: &impl Message, out: &mut BytesMut) {
    let begin = out.len();
    out.resize(begin + message.encoded_len(), 0);
    write(message, &mut out[begin..]);
}

/// The bytes of a message.
pub fn bytes_of(message: &impl Message) -> Bytes {
    let mut bytes = vec![0; message.encoded_len()];
    write(message, &mut bytes);
    bytes.into()
}

/// Writes a message into the room that it needs.
pub(crate) fn write(message: &impl Message, mut room: &mut [u8]) {
    message.encode_raw(&mut room);
    debug_assert!(room.is_empty(), "a message has the length that it says");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Vote;

    #[test]
    fn a_message_is_written_as_prost_writes_it() {
        let vote = Vote { term: 300, ..Vote::default() };
        let expected = vote.encode_to_vec();
        assert_eq!(bytes_of(&vote), expected);
        let mut out = BytesMut::from(&b"before"[..]);
        append(&vote, &mut out);
        assert_eq!(out, [b"before", expected.as_slice()].concat());
    }
}
