//! The bytes of one record of the log (`docs/formats/log.md`).
//!
//! A record is valid only with its magic, its checksum and the epoch of the segment it stands in, so bytes
//! of a segment's earlier life are never taken for it. This file knows no files. Next: `scan.rs`.

use model::GroupId;

use crate::group_log::LogId;

/// First bytes of a record of format version 1.
pub(crate) const MAGIC: [u8; 4] = *b"WLr1";
/// Bytes before the payload.
pub(crate) const HEADER_BYTES: usize = 56;
/// Records begin at multiples of this.
pub(crate) const ALIGN: usize = 8;
/// The checksum starts from this, so that zeros do not check as valid.
const CRC_SEED: u32 = 0x574c_5231;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// An entry of a group.
    Entry = 1,
    /// A group's vote; the last one counts.
    Vote = 2,
    /// A group's entries from `index` on are gone.
    Truncate = 3,
    /// A group's entries up to and including `index` are gone.
    Purge = 4,
    /// The segment ends here; `index` is the epoch of the next.
    Seal = 5,
    /// Says only that all before it is on the disk.
    Mark = 6,
    /// The same, by a process that ended in order: nothing was being written after it.
    Close = 7,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        const KINDS: [Kind; 7] =
            [Kind::Entry, Kind::Vote, Kind::Truncate, Kind::Purge, Kind::Seal, Kind::Mark, Kind::Close];
        KINDS.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A record without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) group: GroupId,
    pub(crate) epoch: u64,
    pub(crate) id: LogId,
    /// All bytes of the segment before this offset were synced when the record was written.
    pub(crate) synced: u32,
    pub(crate) payload_bytes: u32,
    crc: u32,
}

impl Header {
    /// Reads a header; `None` if it is not one of a record in a segment of this epoch.
    pub(crate) fn parse(bytes: &[u8], epoch: u64) -> Option<Header> {
        let bytes: &[u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
        if bytes[..4] != MAGIC || u64_at(bytes, 16) != epoch {
            return None;
        }
        Some(Header {
            kind: Kind::from_byte(bytes[14])?,
            group: GroupId(u16::from_le_bytes([bytes[12], bytes[13]])),
            epoch,
            id: LogId { index: u64_at(bytes, 24), term: u64_at(bytes, 32), node: u64_at(bytes, 40) },
            synced: u32_at(bytes, 48),
            payload_bytes: u32_at(bytes, 8),
            crc: u32_at(bytes, 4),
        })
    }

    /// Whether `record`, header and payload without padding, is what was written.
    pub(crate) fn matches(&self, record: &[u8]) -> bool {
        record.len() == self.unpadded_bytes() && crc(record) == self.crc
    }

    /// Header and payload.
    pub(crate) fn unpadded_bytes(&self) -> usize {
        HEADER_BYTES + self.payload_bytes as usize
    }
}

/// What a writer says about a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) kind: Kind,
    pub(crate) group: GroupId,
    pub(crate) epoch: u64,
    pub(crate) id: LogId,
    pub(crate) synced: u32,
}

/// The room that a record takes, padding included.
pub(crate) fn record_bytes(payload_bytes: usize) -> usize {
    (HEADER_BYTES + payload_bytes).next_multiple_of(ALIGN)
}

/// Appends a record to `buffer`.
pub(crate) fn encode(buffer: &mut Vec<u8>, facts: &Facts, payload: &[u8]) {
    let payload_bytes = u32::try_from(payload.len()).expect("entries are checked against the segment's size");
    let start = buffer.len();
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&payload_bytes.to_le_bytes());
    header[12..14].copy_from_slice(&facts.group.0.to_le_bytes());
    header[14] = facts.kind as u8;
    header[16..24].copy_from_slice(&facts.epoch.to_le_bytes());
    header[24..32].copy_from_slice(&facts.id.index.to_le_bytes());
    header[32..40].copy_from_slice(&facts.id.term.to_le_bytes());
    header[40..48].copy_from_slice(&facts.id.node.to_le_bytes());
    header[48..52].copy_from_slice(&facts.synced.to_le_bytes());
    buffer.extend_from_slice(&header);
    buffer.extend_from_slice(payload);
    let crc = crc(&buffer[start..]);
    buffer[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    buffer.resize(start + record_bytes(payload.len()), 0);
}

fn crc(record: &[u8]) -> u32 {
    crc32c::crc32c_append(CRC_SEED, &record[8..])
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Facts, Vec<u8>) {
        let facts = Facts {
            kind: Kind::Entry,
            group: GroupId(3),
            epoch: 9,
            id: LogId { term: 7, node: 2, index: 11 },
            synced: 4096,
        };
        let mut bytes = Vec::new();
        encode(&mut bytes, &facts, b"payload");
        (facts, bytes)
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let (facts, bytes) = sample();
        assert_eq!(bytes.len(), 64);
        let header = Header::parse(&bytes, 9).unwrap();
        assert_eq!((header.kind, header.group, header.id), (facts.kind, facts.group, facts.id));
        assert_eq!((header.synced, header.payload_bytes), (4096, 7));
        assert!(header.matches(&bytes[..63]));
    }

    #[test]
    fn a_record_of_another_epoch_is_not_one() {
        let (_, bytes) = sample();
        assert!(Header::parse(&bytes, 8).is_none());
        assert!(Header::parse(&bytes, 10).is_none());
    }

    #[test]
    fn no_single_flipped_bit_goes_unseen() {
        let (facts, bytes) = sample();
        for bit in 0..63 * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let seen = match Header::parse(&flipped, facts.epoch) {
                None => true,
                Some(header) => {
                    flipped.get(..header.unpadded_bytes()).is_none_or(|record| !header.matches(record))
                }
            };
            assert!(seen, "bit {bit}");
        }
    }

    #[test]
    fn zeros_are_not_a_record() {
        assert!(Header::parse(&[0; 64], 0).is_none());
        assert_ne!(crc(&[0; 64]), 0);
    }
}
