//! A checksum at the end of a stored record: bytes that are not those that were written are told from those that are.
//!
//! The store below keeps checksums too, but looks at them only when it repairs a file. See `docs/formats/entry.md`.

use bytes::Bytes;
use prost::Message;

use crate::append;

/// The key of the field that holds the checksum, the last one: number 2^25 - 2, four bytes. Whoever does not know
/// it passes it over; a record without one does not end like this.
const SEAL: [u8; 4] = [0xf5, 0xff, 0xff, 0x7f];
/// The same from before the checksum counted the record's key: number 2^25 - 1.
const SEAL_OF_VALUE: [u8; 4] = [0xfd, 0xff, 0xff, 0x7f];

/// A record with the checksum of its key and its bytes behind it.
pub fn sealed(key: &[u8], message: &impl Message) -> Vec<u8> {
    let len = message.encoded_len();
    let mut bytes = Vec::with_capacity(len + SEAL.len() + size_of::<u32>());
    bytes.resize(len, 0);
    append::write(message, &mut bytes);
    let sum = sum(key, &bytes);
    bytes.extend_from_slice(&SEAL);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// A damaged record of this key, to be found where one is missing.
pub fn missing(key: &[u8]) -> Vec<u8> {
    let wrong = !sum(key, b"");
    [SEAL, wrong.to_le_bytes()].concat()
}

/// Whether a record is the one that was written under this key. One from before there were checksums is taken as
/// it is.
pub fn is_whole(key: &[u8], record: &[u8]) -> bool {
    let Some((rest, written)) = record.split_last_chunk::<4>() else { return true };
    let written = u32::from_le_bytes(*written);
    if let Some(body) = rest.strip_suffix(SEAL.as_slice()) {
        return sum(key, body) == written;
    }
    rest.strip_suffix(SEAL_OF_VALUE.as_slice()).is_none_or(|body| sum(b"", body) == written)
}

/// A record, if it is the one that was written under this key.
pub fn opened<T: Message + Default>(key: &[u8], record: Bytes) -> Option<T> {
    is_whole(key, &record).then(|| T::decode(record).ok()).flatten()
}

fn sum(key: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::KeptMessage;

    const KEY: &[u8] = b"the key of a task";

    fn message() -> KeptMessage {
        let detail = Some("why it failed".to_owned());
        KeptMessage { envelope: Some(Bytes::from_static(b"envelope")), detail, ..KeptMessage::default() }
    }

    #[test]
    fn a_record_with_a_flipped_bit_is_no_record_and_one_without_a_checksum_is() {
        let row = sealed(KEY, &message());
        assert_eq!(opened(KEY, Bytes::from(row.clone())), Some(message()));
        assert_eq!(opened(KEY, message().encode_to_vec().into()), Some(message()));
        for at in 0..row.len() {
            for bit in 0..8 {
                let mut flipped = row.clone();
                flipped[at] ^= 1 << bit;
                let read = opened::<KeptMessage>(KEY, Bytes::from(flipped));
                assert!(read.is_none_or(|read| read == message()), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_record_under_another_key_is_no_record() {
        let row = sealed(KEY, &message());
        for at in 0..KEY.len() {
            let mut other = KEY.to_vec();
            other[at] ^= 1;
            assert!(!is_whole(&other, &row), "byte {at}");
        }
        assert!(!is_whole(KEY, &missing(KEY)));
    }

    /// Written by a version whose checksum did not count the key.
    #[test]
    fn a_record_from_before_keys_counted_opens_for_ever() {
        let mut row = message().encode_to_vec();
        let sum = crc32c::crc32c(&row);
        row.extend_from_slice(&[0xfd, 0xff, 0xff, 0x7f]);
        row.extend_from_slice(&sum.to_le_bytes());
        assert_eq!(opened(KEY, Bytes::from(row.clone())), Some(message()));
        row[3] ^= 4;
        assert_eq!(opened::<KeptMessage>(KEY, Bytes::from(row)), None);
    }
}
