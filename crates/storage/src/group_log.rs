//! One group's part of the log, as its replica sees it.
//!
//! Every change counts for readers at once, and is queued for the writer; `done` is called, from the
//! writer's thread, once it is on the disk. Calls may come from async tasks: they wait for the disk never, and
//! for a moment only when [`LogOptions::queue_bytes`](crate::LogOptions) are queued. Only
//! [`read`](GroupLog::read) of entries that have left the cache reads a file.
//!
//! Must never reorder two changes of a group. Next: `group_index.rs` (memory), `queue.rs`, `writer.rs` (disk).

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use model::{GroupId, Mutant, mutant};

use crate::error::{Error, Result};
use crate::group_index::{Place, Reading};
use crate::log::Handle;
use crate::queue::{Change, Group, Pushed, Queued};
use crate::record::{HEADER_BYTES, Header, Kind};
use crate::reserve::RoomState;
use crate::segment::{Segment, live_path};

/// Called once, from the writer's thread, when a change is on the disk or has failed. Must be quick.
pub type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Longest vote.
pub const VOTE_BYTES_MAX: usize = 1024;

/// Names an entry: the leader that made it, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogId {
    /// The leader's term.
    pub term: u64,
    /// The leader's node.
    pub node: u64,
    /// The position in the group's log.
    pub index: u64,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The position in the group's log, from 0 or 1 on without holes.
    pub index: u64,
    /// The leader's term.
    pub term: u64,
    /// The leader's node.
    pub node: u64,
    /// What the log does not look into. Kept in memory for a while: should not be a piece of a larger buffer.
    pub payload: Bytes,
}

impl LogEntry {
    /// Its name.
    pub fn id(&self) -> LogId {
        LogId { term: self.term, node: self.node, index: self.index }
    }
}

/// What a group's log holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    /// The first entry that can be read, or where the next one goes.
    pub first: u64,
    /// The last entry, or the last purged one when there is none after it.
    pub last: Option<LogId>,
    /// The last entry that was purged.
    pub purged: Option<LogId>,
}

impl GroupState {
    /// Why this log is not the one that goes on after a checkpoint which ends at `applied`, if it is not.
    pub fn gap_after(&self, applied: Option<u64>) -> Option<String> {
        let restore = "restore checkpoint and log together, from a backup or from another member";
        match (applied, self.purged.map(|id| id.index)) {
            (Some(applied), Some(purged)) if purged > applied => Some(format!(
                "the checkpoint ends at index {applied}, the log begins after {purged}: entries between are \
                 missing: {restore}"
            )),
            (None, Some(purged)) => Some(format!(
                "there is no checkpoint, but the log begins after {purged}: entries before are missing: \
                 {restore}"
            )),
            (Some(applied), None) if self.last.is_none() => Some(format!(
                "the checkpoint ends at index {applied}, but the log is empty: what was acknowledged after the \
                 checkpoint may be missing: {restore}"
            )),
            _ => None,
        }
    }
}

/// One group's part of the log. A cheap handle.
#[derive(Clone)]
pub struct GroupLog {
    handle: Arc<Handle>,
    group: Arc<Group>,
}

impl GroupLog {
    pub(crate) fn new(handle: Arc<Handle>, group: Arc<Group>) -> GroupLog {
        GroupLog { handle, group }
    }

    /// Whose log this is.
    pub fn group(&self) -> GroupId {
        self.group.id
    }

    /// Ends the log of all groups: what this process holds can no longer be trusted. Every call fails
    /// from now on, and [`LogOptions::on_fatal`](crate::LogOptions::on_fatal) runs.
    pub fn give_up(&self, what: &str) {
        self.handle.shared.poison(&Error::Fatal { what: what.into() });
    }

    /// Appends entries that follow the last one. They can be read at return. Entries that do not follow, or
    /// are too large, change nothing and fail.
    pub fn append(&self, entries: Vec<LogEntry>, done: Done) {
        let bytes_max = self.handle.shared.entry_bytes_max();
        let too_large =
            entries.iter().map(|entry| entry.payload.len() as u64).find(|bytes| *bytes > bytes_max);
        if let Some(bytes) = too_large {
            return done(Err(Error::EntryTooLarge { bytes, bytes_max }.into()));
        }
        self.submit(done, |group| {
            let mut index = group.index.lock();
            let turn = index.append(&entries)?;
            let bytes = entries.iter().map(|entry| entry.payload.len()).sum();
            self.handle.shared.cached_bytes.fetch_add(bytes, Relaxed);
            Ok((index, Change::Append { entries, turn }))
        });
    }

    /// Keeps a vote, opaque to the log; [`vote`](GroupLog::vote) returns it from now on.
    pub fn save_vote(&self, vote: Bytes, done: Done) {
        if vote.len() > VOTE_BYTES_MAX {
            let (bytes, bytes_max) = (vote.len() as u64, VOTE_BYTES_MAX as u64);
            return done(Err(Error::EntryTooLarge { bytes, bytes_max }.into()));
        }
        self.submit(done, |group| {
            let mut index = group.index.lock();
            index.set_vote(vote.clone());
            Ok((index, Change::Vote(vote)))
        });
    }

    /// The last vote.
    pub fn vote(&self) -> Option<Bytes> {
        self.group.index.lock().vote().cloned()
    }

    /// Removes the entries after `index`, all that are not purged if that is `None`.
    pub fn truncate_after(&self, index: Option<u64>, done: Done) {
        let from = index.map_or(0, |index| index.saturating_add(1));
        self.submit(done, |group| {
            let mut index = group.index.lock();
            let freed = index.truncate_from(from);
            self.handle.shared.cached_bytes.fetch_sub(freed, Relaxed);
            Ok((index, Change::TruncateFrom(from)))
        });
    }

    /// Removes the entries up to and including `upto`. It may be beyond the last entry: the log then goes on
    /// after it. A purge never goes back.
    pub fn purge_upto(&self, upto: LogId, done: Done) {
        self.submit(done, |group| {
            let mut index = group.index.lock();
            let freed = index.purge(upto);
            self.handle.shared.cached_bytes.fetch_sub(freed, Relaxed);
            let purged = index.purged().unwrap_or(upto);
            Ok((index, Change::Purge(purged)))
        });
    }

    /// The entries of `range` that are there, in order: those before the first or after the last one are left
    /// out. May read a file.
    pub fn read(&self, range: Range<u64>) -> Result<Vec<LogEntry>> {
        self.read_upto(range, usize::MAX)
    }

    /// The same, but ends before more than `bytes_max` bytes of records; at least one entry if there is one.
    pub fn read_upto(&self, range: Range<u64>, bytes_max: usize) -> Result<Vec<LogEntry>> {
        if let Some(fatal) = self.handle.shared.queue.fatal() {
            return Err(fatal);
        }
        loop {
            let readings = self.group.index.lock().reading(range.clone(), bytes_max);
            if let Some(entries) = self.fetch(readings)? {
                return Ok(entries);
            }
        }
    }

    /// What is there.
    pub fn state(&self) -> GroupState {
        self.group.index.lock().state()
    }

    /// Whether the group should be checkpointed and purged now: for its entries more segments are kept than
    /// [`LogOptions::lag_bytes`](crate::LogOptions::lag_bytes), or a quarter of that while the disk has little room, so that the
    /// reserve lasts until the segments come back.
    pub fn is_lagging(&self) -> bool {
        let shared = &self.handle.shared;
        let is_low = shared.options.reserve.as_ref().is_some_and(|reserve| reserve.state() == RoomState::Low);
        let most = if is_low { shared.options.lag_bytes / 4 } else { shared.options.lag_bytes };
        shared.table.lock().pinned_by(self.group.id) > most
    }

    /// Bytes of the records of the entries after `index`.
    pub fn bytes_since(&self, index: u64) -> u64 {
        self.group.index.lock().bytes_since(index)
    }

    /// The last entry that is there with at least `bytes` of records after it.
    pub fn last_before(&self, bytes: u64) -> Option<u64> {
        self.group.index.lock().last_before(bytes)
    }

    /// Changes the index and queues the change, under one lock, so that both happen in the same order.
    fn submit<'a>(
        &'a self,
        done: Done,
        change: impl FnOnce(
            &'a Group,
        )
            -> Result<(parking_lot::MutexGuard<'a, crate::group_index::GroupIndex>, Change)>,
    ) {
        let queue = &self.handle.shared.queue;
        let changed = queue.admit().and_then(|()| change(&self.group));
        let (lock, change) = match changed {
            Ok(changed) => changed,
            Err(error) => return done(Err(error.into())),
        };
        let pushed = queue.push(Queued { group: self.group.clone(), change, done });
        drop(lock);
        match pushed {
            Ok(Pushed::Seen) => {}
            Ok(Pushed::Sleeps) => queue.wake(),
            Ok(Pushed::Unscheduled) => self.handle.spawn_job(),
            Err(refused) => {
                let (queued, error) = *refused;
                (queued.done)(Err(error.into()));
            }
        }
    }

    /// Reads what is not in memory. `None`: it went away meanwhile, so look again.
    fn fetch(&self, readings: Vec<Reading>) -> Result<Option<Vec<LogEntry>>> {
        let mut entries = Vec::with_capacity(readings.len());
        let mut segment: Option<Arc<Segment>> = None;
        for reading in readings {
            let (id, place, bytes) = match reading {
                Reading::Cached(entry) => {
                    entries.push(entry);
                    continue;
                }
                Reading::At { id, place, record_bytes } => (id, place, record_bytes),
            };
            if segment.as_ref().is_none_or(|segment| segment.epoch != u64::from(place.epoch)) {
                segment = self.handle.shared.table.lock().find(u64::from(place.epoch));
            }
            let read = match &segment {
                Some(segment) => read_entry(segment, self.group.id, id, place, bytes)?,
                None => None,
            };
            match read {
                Some(entry) => entries.push(entry),
                // A segment that was recycled since looks like damage; then the entry has no such place now.
                None if self.group.index.lock().is_at(id.index, place) => return Err(self.damaged(id, place)),
                None => return Ok(None),
            }
        }
        Ok(Some(entries))
    }

    fn damaged(&self, id: LogId, place: Place) -> Error {
        Error::Damaged {
            path: live_path(&self.handle.shared.dir, u64::from(place.epoch)),
            offset: u64::from(place.offset),
            what: format!("entry {} of group {} is not there any more", id.index, self.group.id),
        }
    }
}

/// Reads an entry's record; `None` if it is not there.
fn read_entry(
    segment: &Segment,
    group: GroupId,
    id: LogId,
    place: Place,
    bytes: u64,
) -> Result<Option<LogEntry>> {
    let mut record = vec![0; bytes as usize];
    let read = segment.file.read_at(&mut record, u64::from(place.offset));
    read.map_err(|source| Error::io("read", &segment.path, source))?;
    let Some(header) = Header::parse(&record, segment.epoch) else { return Ok(None) };
    let is_it = (header.kind, header.group, header.id) == (Kind::Entry, group, id);
    let unpadded = header.unpadded_bytes();
    if !is_it || unpadded > record.len() {
        return Ok(None);
    }
    if !header.matches(&record[..unpadded]) && !mutant::planted(Mutant::TornTailAccepted) {
        return Ok(None);
    }
    let payload = Bytes::from(record).slice(HEADER_BYTES..unpadded);
    Ok(Some(LogEntry { index: id.index, term: id.term, node: id.node, payload }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_follows_a_checkpoint_or_says_what_is_missing() {
        let id = |index| LogId { term: 1, node: 0, index };
        let state = |purged: Option<u64>, last: Option<u64>| GroupState {
            first: purged.map_or(0, |purged| purged + 1),
            last: last.or(purged).map(id),
            purged: purged.map(id),
        };
        for (what, applied, state, gap) in [
            ("nothing yet", None, state(None, None), None),
            ("no checkpoint yet", None, state(None, Some(9)), None),
            ("nothing purged yet", Some(5), state(None, Some(9)), None),
            ("purged up to the checkpoint", Some(5), state(Some(5), None), None),
            ("purged up to the one before", Some(5), state(Some(3), Some(9)), None),
            ("an older checkpoint", Some(5), state(Some(6), Some(9)), Some("entries between")),
            ("a lost checkpoint", None, state(Some(6), Some(9)), Some("no checkpoint")),
            ("a lost log", Some(5), state(None, None), Some("log is empty")),
        ] {
            let found = state.gap_after(applied);
            assert_eq!(found.is_some(), gap.is_some(), "{what}: {found:?}");
            assert!(gap.is_none_or(|gap| found.unwrap().contains(gap)), "{what}");
        }
    }
}
