//! Reads the records of one segment, for recovery and for `check`.
//!
//! Decides nothing: it says what is valid, where the valid records end, and whether bytes after that end
//! prove that there was more. Next: `recovery.rs`, which draws the conclusions.

use std::io;

use model::{Mutant, mutant};

use crate::record::{ALIGN, HEADER_BYTES, Header, MAGIC, record_bytes};
use crate::segment::{DATA_START, Segment};

const WINDOW_BYTES: usize = 1024 * 1024;

/// Walks over the records of a segment.
pub(crate) struct Scanner<'a> {
    segment: &'a Segment,
    offset: u64,
    window: Vec<u8>,
    window_start: u64,
}

/// A valid record.
pub(crate) struct Found<'w> {
    pub(crate) header: Header,
    pub(crate) offset: u64,
    pub(crate) payload: &'w [u8],
}

/// What stands behind the last valid record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Behind {
    /// The next header is not zero: something was being written.
    pub(crate) started: bool,
    /// The last valid record, if any, that belongs to the same unfinished write.
    pub(crate) unfinished: Option<u64>,
    /// A valid record that says all before it was synced: bytes that were safe are damaged.
    pub(crate) proof: Option<u64>,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(segment: &'a Segment) -> Scanner<'a> {
        Scanner { segment, offset: DATA_START, window: Vec::new(), window_start: 0 }
    }

    /// Where the next record would be.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next valid record; `None` where they end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Found<'_>>> {
        let offset = self.offset;
        let Some(header) = self.valid_at(offset)? else { return Ok(None) };
        self.offset += record_bytes(header.payload_bytes as usize) as u64;
        let payload = &self.load(offset, header.unpadded_bytes())?[HEADER_BYTES..];
        Ok(Some(Found { header, offset, payload }))
    }

    /// Looks at everything behind the last valid record.
    pub(crate) fn behind(&mut self) -> io::Result<Behind> {
        let end = self.offset;
        let mut behind = Behind::default();
        let rest = (self.segment.bytes - end).min(HEADER_BYTES as u64) as usize;
        behind.started = self.load(end, rest)?.iter().any(|byte| *byte != 0);
        let mut offset = end;
        while offset + HEADER_BYTES as u64 <= self.segment.bytes {
            let Some(candidate) = self.next_magic(offset)? else { break };
            let Some(header) = self.valid_at(candidate)? else {
                offset = candidate + ALIGN as u64;
                continue;
            };
            if u64::from(header.synced) > end {
                behind.proof = Some(candidate);
                break;
            }
            behind.unfinished = Some(candidate);
            offset = candidate + record_bytes(header.payload_bytes as usize) as u64;
        }
        Ok(behind)
    }

    fn valid_at(&mut self, offset: u64) -> io::Result<Option<Header>> {
        let room = self.segment.bytes - offset;
        if room < HEADER_BYTES as u64 {
            return Ok(None);
        }
        let epoch = self.segment.epoch;
        let Some(header) = Header::parse(self.load(offset, HEADER_BYTES)?, epoch) else { return Ok(None) };
        if record_bytes(header.payload_bytes as usize) as u64 > room {
            return Ok(None);
        }
        let record = self.load(offset, header.unpadded_bytes())?;
        let is_valid = header.matches(record) || mutant::planted(Mutant::TornTailAccepted);
        Ok(is_valid.then_some(header))
    }

    /// The next place at or after `offset` that begins like a record.
    fn next_magic(&mut self, mut offset: u64) -> io::Result<Option<u64>> {
        while offset + HEADER_BYTES as u64 <= self.segment.bytes {
            let length = ((self.segment.bytes - offset) as usize).min(WINDOW_BYTES);
            let window = self.load(offset, length)?;
            let found = window.chunks_exact(ALIGN).position(|chunk| chunk[..4] == MAGIC);
            match found {
                Some(at) => return Ok(Some(offset + (at * ALIGN) as u64)),
                None => offset += (length / ALIGN * ALIGN) as u64,
            }
        }
        Ok(None)
    }

    /// Bytes of the segment, which the caller has checked to be within it.
    fn load(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let end = offset + length as u64;
        if offset < self.window_start || end > self.window_start + self.window.len() as u64 {
            let ahead = (self.segment.bytes - offset).min(length.max(WINDOW_BYTES) as u64) as usize;
            self.window.resize(ahead, 0);
            self.window_start = offset;
            self.segment.file.read_at(&mut self.window, offset)?;
        }
        let at = (offset - self.window_start) as usize;
        Ok(&self.window[at..at + length])
    }
}
