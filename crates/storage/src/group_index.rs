//! What a group's log holds, in memory: where each entry is, and the bytes of recent ones.
//!
//! Changed at the call, before the writer has written, so that entries can be read at return. Constant work
//! per entry; its size is bounded by what is not purged. The payload of an entry stays here until the entry
//! has its place in a synced segment; after that only while there is room in the cache.
//!
//! Must never touch the disk. Next: `group_log.rs`.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use model::GroupId;

use crate::error::{Error, Result};
use crate::group_log::{GroupState, LogEntry, LogId};
use crate::record::record_bytes;

/// Where an entry's record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) epoch: u32,
    pub(crate) offset: u32,
}

/// Epoch 0 is never used: the entry has no place yet.
const NOWHERE: Place = Place { epoch: 0, offset: 0 };

struct Slot {
    term: u64,
    node: u64,
    /// Bytes of the group's records up to and including this one.
    end: u64,
    place: Place,
    /// Which append put it here: a truncation may have given the index to a later one.
    turn: u32,
    payload: Option<Bytes>,
}

/// One group.
pub(crate) struct GroupIndex {
    group: GroupId,
    vote: Option<Bytes>,
    purged: Option<LogId>,
    /// The index of the first slot, or where the first would go.
    first: u64,
    slots: VecDeque<Slot>,
    /// Bytes of all records before the first slot.
    start: u64,
    /// Slots from this position on have their payload.
    cached: usize,
    cached_bytes: usize,
    turn: u32,
}

/// An entry, or where to read it.
pub(crate) enum Reading {
    Cached(LogEntry),
    At { id: LogId, place: Place, record_bytes: u64 },
}

impl GroupIndex {
    pub(crate) fn new(group: GroupId) -> GroupIndex {
        GroupIndex {
            group,
            vote: None,
            purged: None,
            first: 0,
            slots: VecDeque::new(),
            start: 0,
            cached: 0,
            cached_bytes: 0,
            turn: 0,
        }
    }

    pub(crate) fn vote(&self) -> Option<&Bytes> {
        self.vote.as_ref()
    }

    pub(crate) fn set_vote(&mut self, vote: Bytes) {
        self.vote = Some(vote);
    }

    pub(crate) fn purged(&self) -> Option<LogId> {
        self.purged
    }

    pub(crate) fn entries(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(crate) fn cached_bytes(&self) -> usize {
        self.cached_bytes
    }

    pub(crate) fn state(&self) -> GroupState {
        GroupState { first: self.first, last: self.last(), purged: self.purged }
    }

    fn last(&self) -> Option<LogId> {
        match self.slots.len() {
            0 => self.purged,
            count => Some(self.id_at(count - 1)),
        }
    }

    /// Bytes of the records after `index`.
    pub(crate) fn bytes_since(&self, index: u64) -> u64 {
        let total = self.end_of(self.slots.len());
        let upto = index.saturating_add(1).saturating_sub(self.first);
        total - self.end_of((upto as usize).min(self.slots.len()))
    }

    /// The last entry with at least `bytes` of records after it.
    pub(crate) fn last_before(&self, bytes: u64) -> Option<u64> {
        let upto = self.end_of(self.slots.len()).checked_sub(bytes)?;
        let count = self.slots.partition_point(|slot| slot.end <= upto) as u64;
        (count > 0).then(|| self.first + count - 1)
    }

    /// Adds entries that follow the last one. Returns which append this was.
    pub(crate) fn append(&mut self, entries: &[LogEntry]) -> Result<u32> {
        for (expected, entry) in (self.next_index(entries)..).zip(entries) {
            if entry.index != expected {
                return Err(Error::NotContiguous { group: self.group, index: entry.index, expected });
            }
        }
        self.turn = self.turn.wrapping_add(1);
        for entry in entries {
            self.push(entry.id(), entry.payload.len(), NOWHERE, Some(entry.payload.clone()));
        }
        Ok(self.turn)
    }

    /// A log that has never held anything may begin at 0 or at 1.
    fn next_index(&self, entries: &[LogEntry]) -> u64 {
        if self.purged.is_none() && self.slots.is_empty() {
            return entries.first().map_or(0, |entry| entry.index.min(1));
        }
        self.first + self.slots.len() as u64
    }

    fn push(&mut self, id: LogId, payload_bytes: usize, place: Place, payload: Option<Bytes>) {
        if self.slots.is_empty() {
            self.first = id.index;
        }
        let end = self.end_of(self.slots.len()) + record_bytes(payload_bytes) as u64;
        match payload {
            Some(_) => self.cached_bytes += payload_bytes,
            None => self.cached = self.slots.len() + 1,
        }
        self.slots.push_back(Slot { term: id.term, node: id.node, end, place, turn: self.turn, payload });
    }

    /// Removes the entries from `from` on. Returns the payload bytes that left the cache.
    pub(crate) fn truncate_from(&mut self, from: u64) -> usize {
        let keep = (from.saturating_sub(self.first) as usize).min(self.slots.len());
        let mut freed = 0;
        while self.slots.len() > keep {
            let slot = self.slots.pop_back();
            freed += slot.and_then(|slot| slot.payload).map_or(0, |payload| payload.len());
        }
        if keep == 0 {
            // During a replay the first slot may have been behind a gap, which is closed by this.
            self.first = self.purged.map_or(0, |purged| purged.index + 1);
        }
        self.cached = self.cached.min(self.slots.len());
        self.cached_bytes -= freed;
        freed
    }

    /// Removes the entries up to and including `upto`. Returns the payload bytes that left the cache.
    pub(crate) fn purge(&mut self, upto: LogId) -> usize {
        if self.purged.is_some_and(|purged| purged.index >= upto.index) {
            return 0;
        }
        let mut freed = 0;
        while self.first <= upto.index {
            let Some(slot) = self.slots.pop_front() else { break };
            self.first += 1;
            self.start = slot.end;
            self.cached = self.cached.saturating_sub(1);
            freed += slot.payload.map_or(0, |payload| payload.len());
        }
        if self.slots.is_empty() {
            self.first = upto.index + 1;
        }
        self.purged = Some(upto);
        self.cached_bytes -= freed;
        freed
    }

    /// Says where an entry is, unless its index belongs to a later append by now.
    pub(crate) fn set_place(&mut self, index: u64, turn: u32, place: Place) {
        let Some(position) = self.position(index) else { return };
        let slot = &mut self.slots[position];
        if slot.turn == turn {
            slot.place = place;
        }
    }

    /// Forgets the oldest payloads that have a place, until `bytes` are freed. Returns how many were. The
    /// caller has synced all places.
    pub(crate) fn evict(&mut self, bytes: usize) -> usize {
        let mut freed = 0;
        while freed < bytes {
            let Some(slot) = self.slots.get_mut(self.cached) else { break };
            if slot.place == NOWHERE {
                break;
            }
            freed += slot.payload.take().map_or(0, |payload| payload.len());
            self.cached += 1;
        }
        self.cached_bytes -= freed;
        freed
    }

    /// The entries of `range` that are there, until `bytes_max` are exceeded; at least one.
    pub(crate) fn reading(&self, range: Range<u64>, bytes_max: usize) -> Vec<Reading> {
        let from = range.start.max(self.first);
        let to = range.end.min(self.first + self.slots.len() as u64);
        let mut found = Vec::with_capacity(to.saturating_sub(from).min(1024) as usize);
        let mut bytes = 0;
        for index in from..to {
            let position = (index - self.first) as usize;
            let record_bytes = self.end_of(position + 1) - self.end_of(position);
            bytes += record_bytes;
            if bytes > bytes_max as u64 && !found.is_empty() {
                break;
            }
            let (id, slot) = (self.id_at(position), &self.slots[position]);
            found.push(match &slot.payload {
                Some(payload) => Reading::Cached(LogEntry {
                    index,
                    term: id.term,
                    node: id.node,
                    payload: payload.clone(),
                }),
                None => Reading::At { id, place: slot.place, record_bytes },
            });
        }
        found
    }

    /// Whether `index` is there and has this place: a read that failed there met damage, not a recycling.
    pub(crate) fn is_at(&self, index: u64, place: Place) -> bool {
        self.position(index).is_some_and(|position| self.slots[position].place == place)
    }

    /// Adds an entry that recovery found. A gap is taken for a purge that is still to come.
    pub(crate) fn replay(&mut self, id: LogId, payload_bytes: usize, place: Place) -> Result<()> {
        let expected = self.first + self.slots.len() as u64;
        let passed = !self.slots.is_empty() || self.purged.is_some();
        if passed && id.index < expected && !(self.slots.is_empty() && self.is_unpurged(id.index)) {
            return Err(Error::NotContiguous { group: self.group, index: id.index, expected });
        }
        if !self.slots.is_empty() && id.index > expected {
            self.slots.clear();
            self.cached = 0;
        }
        self.push(id, payload_bytes, place, None);
        Ok(())
    }

    fn is_unpurged(&self, index: u64) -> bool {
        self.purged.is_none_or(|purged| purged.index < index)
    }

    /// After all was replayed: the entries that must be there and are not.
    pub(crate) fn hole(&self) -> Option<Range<u64>> {
        let expected = match self.purged {
            Some(purged) => purged.index + 1,
            None if self.first <= 1 => return None,
            None => 0,
        };
        (!self.slots.is_empty() && self.first > expected).then_some(expected..self.first)
    }

    fn position(&self, index: u64) -> Option<usize> {
        let position = index.checked_sub(self.first)? as usize;
        (position < self.slots.len()).then_some(position)
    }

    fn id_at(&self, position: usize) -> LogId {
        let slot = &self.slots[position];
        LogId { term: slot.term, node: slot.node, index: self.first + position as u64 }
    }

    /// Bytes of all records before `position`.
    fn end_of(&self, position: usize) -> u64 {
        position.checked_sub(1).map_or(self.start, |before| self.slots[before].end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, bytes: usize) -> LogEntry {
        LogEntry { index, term: 1, node: 1, payload: Bytes::from(vec![index as u8; bytes]) }
    }

    fn indices(index: &GroupIndex, range: Range<u64>, bytes_max: usize) -> Vec<u64> {
        let found = index.reading(range, bytes_max);
        found
            .iter()
            .map(|reading| match reading {
                Reading::Cached(entry) => entry.index,
                Reading::At { id, .. } => id.index,
            })
            .collect()
    }

    fn filled(count: u64) -> GroupIndex {
        let mut index = GroupIndex::new(GroupId(1));
        index.append(&(0..count).map(|at| entry(at, 100)).collect::<Vec<_>>()).unwrap();
        index
    }

    #[test]
    fn an_entry_that_leaves_a_hole_is_refused_and_nothing_changes() {
        let mut index = filled(3);
        assert!(index.append(&[entry(3, 1), entry(5, 1)]).is_err());
        assert!(index.append(&[entry(2, 1)]).is_err());
        assert_eq!(index.state().last.unwrap().index, 2);
        index.append(&[entry(3, 1)]).unwrap();

        let mut empty = GroupIndex::new(GroupId(1));
        assert!(empty.append(&[entry(2, 1)]).is_err(), "a new log begins at 0 or 1");
        empty.append(&[entry(1, 1)]).unwrap();
    }

    #[test]
    fn a_range_gives_what_is_there_within_its_bytes() {
        let mut index = filled(10);
        index.purge(LogId { term: 1, node: 1, index: 3 });
        assert_eq!(indices(&index, 0..7, usize::MAX), [4, 5, 6]);
        assert_eq!(indices(&index, 8..99, usize::MAX), [8, 9]);
        assert_eq!(indices(&index, 4..10, 320), [4, 5], "160 bytes a record");
        assert_eq!(indices(&index, 4..10, 1), [4], "at least one");
        assert_eq!(index.last_before(0), Some(9));
        assert_eq!(index.last_before(320), Some(7));
        assert_eq!(index.last_before(321), Some(6));
        assert_eq!(index.last_before(800), Some(4));
        assert_eq!(index.last_before(960), None, "there is nothing before the first");
        assert_eq!(index.last_before(u64::MAX), None);
        assert_eq!(index.bytes_since(7), 320);
        assert_eq!(index.bytes_since(0), 960);
        assert_eq!(index.bytes_since(99), 0);
    }

    #[test]
    fn only_entries_with_a_place_leave_the_cache() {
        let mut index = filled(4);
        let place = Place { epoch: 1, offset: 4096 };
        index.set_place(0, 1, place);
        index.set_place(1, 9, place);
        assert_eq!(index.evict(usize::MAX), 100, "the second place was of another append");
        index.set_place(1, 1, place);
        index.set_place(2, 1, place);
        assert_eq!(index.evict(150), 200);
        assert_eq!(index.cached_bytes(), 100);
        assert_eq!(index.truncate_from(1), 100);
        assert_eq!(index.cached_bytes(), 0);
        index.append(&[entry(1, 50)]).unwrap();
        assert_eq!(index.cached_bytes(), 50);
        assert_eq!(index.purge(LogId { term: 1, node: 1, index: 1 }), 50);
    }

    #[test]
    fn a_purge_beyond_the_end_moves_the_log_there() {
        let mut index = filled(3);
        index.purge(LogId { term: 4, node: 2, index: 100 });
        assert_eq!(index.state().first, 101);
        assert_eq!(index.state().last.unwrap().term, 4);
        assert_eq!(index.state().purged.unwrap().node, 2);
        index.append(&[entry(101, 1)]).unwrap();
        assert_eq!(index.purge(LogId { term: 1, node: 1, index: 50 }), 0, "never backwards");
        assert_eq!(index.state().first, 101);
    }

    #[test]
    fn a_gap_in_a_replay_needs_a_purge_over_it() {
        let id = |index| LogId { term: 1, node: 1, index };
        let place = Place { epoch: 1, offset: 4096 };
        let mut index = GroupIndex::new(GroupId(1));
        index.replay(id(0), 1, place).unwrap();
        index.replay(id(5), 1, place).unwrap();
        index.replay(id(6), 1, place).unwrap();
        assert!(index.replay(id(6), 1, place).is_err(), "an index twice without a truncation");
        assert_eq!(index.hole(), Some(0..5));
        index.purge(id(4));
        assert_eq!(index.hole(), None);
        assert_eq!(index.entries(), 2);
    }
}
