//! The one writer: takes what is queued, writes and syncs it with one call, completes all of it.
//!
//! The hot path of the whole node. While a sync runs, the next batch gathers in the queue; a busy writer
//! never sleeps. With threads it owns one; without, a short job runs it whenever something is queued.
//!
//! Must never complete a change before its sync, go on after a write or a sync that failed, or run a
//! callback with a lock that a caller could want. Next: `table.rs` and `pool.rs`, which it feeds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::{GroupId, Mutant, mutant};

use crate::error::{Error, Result};
use crate::group_index::Place;
use crate::group_log::{Done, LogEntry, LogId};
use crate::log::Shared;
use crate::pool::Pool;
use crate::queue::{Change, Group, Queued, Woken};
use crate::record::{self, Facts, HEADER_BYTES, Kind, record_bytes};
use crate::recovery::place;
use crate::segment::{DATA_START, Segment};

/// Room for the seal, which every segment must be able to take.
const SEAL_BYTES: u64 = HEADER_BYTES as u64;
/// Synced at once, if more than this is queued.
const BATCH_BYTES: u64 = 16 * 1024 * 1024;
/// A page of the file system: what is written begins and ends on one, so that none must be read first, and so that it can
/// go past the system's cache.
const PAGE_BYTES: u64 = 4096;
/// A log that is silent for this long says so, which proves its last write.
pub(crate) const IDLE: Duration = Duration::from_millis(20);
/// How often a writer without room looks again.
pub(crate) const ROOM_RETRY: Duration = Duration::from_millis(50);

const NO_ID: LogId = LogId { term: 0, node: 0, index: 0 };

/// The writer and where it stands.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    segment: Arc<Segment>,
    /// Where the next record goes.
    position: u64,
    /// Everything before this is on the disk.
    synced: u64,
    /// What was written before `start` is not all synced: only a sync of the whole file does.
    has_loose: bool,
    /// The segment ended in the middle of something: it is sealed before the next record.
    must_roll: bool,
    /// Nothing written later proves that the last batch was synced.
    unproven: bool,
    /// What stands from `start` to `position`: records that are not synced yet, and what stands before them on their page.
    buffer: Vec<u8>,
    /// Where the buffer begins, on a page.
    start: u64,
    taken: VecDeque<Queued>,
    /// Without room, and a later job looks for it.
    is_looked_after: bool,
    /// How many entries of the first taken change are in records already.
    written: usize,
    completing: Vec<Done>,
    /// Where the entries of one change went; kept for its memory.
    places: Vec<Place>,
    /// Groups whose purges wait for the sync: the first index that stays.
    purges: Vec<(GroupId, u64)>,
    /// Said anew at the start of each segment, so that no old one is needed for them.
    states: BTreeMap<GroupId, State>,
}

#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) vote: Option<Bytes>,
    pub(crate) purged: Option<LogId>,
}

/// Where a restart left the last segment.
pub(crate) struct Start {
    pub(crate) segment: Arc<Segment>,
    pub(crate) position: u64,
    pub(crate) must_roll: bool,
    pub(crate) states: BTreeMap<GroupId, State>,
}

/// Where a write ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    epoch: u64,
    position: u64,
}

#[derive(PartialEq, Eq)]
enum Progress {
    Done,
    /// No room for another segment: what could be written is complete, the rest waits.
    Stalled,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, pool: Arc<Pool>, start: Start) -> Result<Writer> {
        let Start { segment, position, must_roll, states } = start;
        let page = page_of(position);
        let mut buffer = Vec::with_capacity(shared.options.piece_bytes);
        buffer.resize((position - page) as usize, 0);
        let read = segment.file.read_at(&mut buffer, page);
        read.map_err(|source| Error::io("read", &segment.path, source))?;
        Ok(Writer {
            shared,
            pool,
            segment,
            position,
            synced: position,
            has_loose: false,
            must_roll,
            unproven: false,
            buffer,
            start: page,
            taken: VecDeque::new(),
            is_looked_after: false,
            written: 0,
            completing: Vec::new(),
            places: Vec::new(),
            purges: Vec::new(),
            states,
        })
    }

    /// The writer's thread.
    pub(crate) fn run(&mut self) {
        let shared = self.shared.clone();
        shared.queue.adopt();
        let guard = PanicGuard(&shared);
        loop {
            if self.taken.is_empty() {
                match shared.queue.wait(self.unproven.then_some(IDLE)) {
                    Woken::Work => shared.queue.take(&mut self.taken),
                    Woken::Idle => {}
                    Woken::Closing => break self.finish(),
                }
            }
            let progress = if self.taken.is_empty() { self.prove() } else { self.batch() };
            match progress {
                Ok(Progress::Done) => {}
                Ok(Progress::Stalled) if shared.queue.pause(ROOM_RETRY) => break self.finish(),
                Ok(Progress::Stalled) => {}
                Err(error) => break self.fail(error),
            }
        }
        std::mem::forget(guard);
    }

    /// The writer's job, where there are no threads. Where the last write ends, if nothing proves it yet.
    pub(crate) fn run_once(&mut self) -> Option<End> {
        while self.shared.queue.fatal().is_none() {
            if self.taken.is_empty() {
                self.shared.queue.take(&mut self.taken);
            }
            match self.batch() {
                Ok(Progress::Done) if !self.taken.is_empty() => {}
                Ok(Progress::Done) if self.shared.queue.unschedule() => {}
                Ok(Progress::Done) => break,
                Ok(Progress::Stalled) => {
                    self.shared.queue.unschedule_stalled();
                    break;
                }
                Err(error) => self.fail(error),
            }
        }
        self.unproven.then(|| self.end())
    }

    /// Whether somebody must look for room later, where there are no threads: something is left to write, and nobody
    /// was asked yet.
    pub(crate) fn must_look_again(&mut self) -> bool {
        let is_stalled = !self.taken.is_empty() && self.shared.queue.fatal().is_none();
        is_stalled && !std::mem::replace(&mut self.is_looked_after, true)
    }

    /// The job of who was asked for that.
    pub(crate) fn look_again(&mut self) -> Option<End> {
        self.is_looked_after = false;
        if self.taken.is_empty() { None } else { self.run_once() }
    }

    /// Proves the last write, unless there was another one since it ended at `end`.
    pub(crate) fn prove_if_silent(&mut self, end: End) {
        if self.unproven
            && self.end() == end
            && self.shared.queue.fatal().is_none()
            && let Err(error) = self.prove()
        {
            self.fail(error);
        }
    }

    fn end(&self) -> End {
        End { epoch: self.segment.epoch, position: self.position }
    }

    /// Writes what is taken, as far as there is room, and completes it.
    fn batch(&mut self) -> Result<Progress> {
        let (mut progress, mut bytes) = (Progress::Done, 0);
        while let Some(queued) = self.taken.pop_front() {
            let before = self.position;
            match self.change(&queued) {
                Ok(()) => self.completing.push(queued.done),
                Err(error) if error.is_full() => {
                    self.taken.push_front(queued);
                    progress = Progress::Stalled;
                    break;
                }
                Err(error) => {
                    self.taken.push_front(queued);
                    return Err(error);
                }
            }
            bytes += self.position.saturating_sub(before);
            if bytes > BATCH_BYTES {
                break;
            }
        }
        self.set_stalled(progress == Progress::Stalled);
        if self.position > self.synced {
            self.sync()?;
            self.unproven = true;
        }
        self.complete();
        Ok(progress)
    }

    /// Makes records of one change.
    fn change(&mut self, queued: &Queued) -> Result<()> {
        let group = &queued.group;
        match &queued.change {
            Change::Append { entries, turn } => self.append(group, entries, *turn)?,
            Change::Vote(vote) => {
                self.put(Kind::Vote, group.id, NO_ID, vote)?;
                self.states.entry(group.id).or_default().vote = Some(vote.clone());
            }
            Change::TruncateFrom(from) => {
                self.put(Kind::Truncate, group.id, LogId { index: *from, ..NO_ID }, &[])?;
                self.shared.table.lock().truncate_from(group.id, *from);
            }
            Change::Purge(upto) => {
                self.put(Kind::Purge, group.id, *upto, &[])?;
                self.states.entry(group.id).or_default().purged = Some(*upto);
                self.purges.push((group.id, upto.index + 1));
            }
        }
        Ok(())
    }

    fn append(&mut self, group: &Group, entries: &[LogEntry], turn: u32) -> Result<()> {
        self.places.clear();
        let rest = &entries[self.written..];
        let outcome = self.append_rest(group.id, rest);
        let mut index = group.index.lock();
        for (entry, place) in rest.iter().zip(&self.places) {
            index.set_place(entry.index, turn, *place);
        }
        drop(index);
        self.written = if outcome.is_ok() { 0 } else { self.written + self.places.len() };
        outcome
    }

    fn append_rest(&mut self, group: GroupId, rest: &[LogEntry]) -> Result<()> {
        for entry in rest {
            let offset = self.put(Kind::Entry, group, entry.id(), &entry.payload)?;
            self.places.push(place(&self.segment, offset));
            self.shared.table.lock().active().holds(group, entry.index);
        }
        Ok(())
    }

    /// Adds a record, in the next segment if this one has no room for it. Returns its offset.
    fn put(&mut self, kind: Kind, group: GroupId, id: LogId, payload: &[u8]) -> Result<u64> {
        if self.must_roll || !self.fits(payload.len()) {
            self.roll()?;
        }
        if self.buffer.len() >= self.shared.options.piece_bytes {
            self.write_piece()?;
        }
        self.encode(kind, group, id, payload)
    }

    fn fits(&self, payload_bytes: usize) -> bool {
        self.position + record_bytes(payload_bytes) as u64 + SEAL_BYTES <= self.segment.bytes
    }

    fn encode(&mut self, kind: Kind, group: GroupId, id: LogId, payload: &[u8]) -> Result<u64> {
        let offset = self.position;
        let room = if kind == Kind::Seal { 0 } else { SEAL_BYTES };
        if offset + record_bytes(payload.len()) as u64 + room > self.segment.bytes {
            let what = "a log segment has no room for the groups' votes: raise the segment size";
            return Err(Error::Fatal { what: what.into() });
        }
        let synced = u32::try_from(self.synced).expect("segments are smaller than 4 GiB");
        let facts = Facts { kind, group, epoch: self.segment.epoch, id, synced };
        record::encode(&mut self.buffer, &facts, payload);
        self.position = offset + record_bytes(payload.len()) as u64;
        self.shared.counters.records.fetch_add(1, Relaxed);
        Ok(offset)
    }

    /// Seals this segment and goes on in the next. Without room for one, nothing has changed.
    fn roll(&mut self) -> Result<()> {
        let next = self.next_segment()?;
        let id = LogId { index: next.epoch, ..NO_ID };
        self.encode(Kind::Seal, GroupId::CATALOG, id, &[])?;
        self.sync()?;
        self.segment = Arc::new(next);
        self.shared.table.lock().push(self.segment.clone());
        (self.position, self.synced, self.start) = (DATA_START, DATA_START, DATA_START);
        self.buffer.clear();
        self.must_roll = false;
        for (group, state) in self.states.clone() {
            if let Some(vote) = state.vote
                && !mutant::planted(Mutant::VotesLeftBehind)
            {
                self.encode(Kind::Vote, group, NO_ID, &vote)?;
            }
            if let Some(purged) = state.purged {
                self.encode(Kind::Purge, group, purged, &[])?;
            }
        }
        Ok(())
    }

    fn next_segment(&self) -> Result<Segment> {
        loop {
            match self.pool.take() {
                Err(error) if error.is_full() => {
                    let given = self.shared.options.reserve.as_ref().is_some_and(|reserve| reserve.give());
                    if !given {
                        return Err(error);
                    }
                }
                outcome => return outcome.map_err(fatal),
            }
        }
    }

    /// Writes the whole pages of what has gathered, to be synced with the rest.
    fn write_piece(&mut self) -> Result<()> {
        let bytes = (page_of(self.position) - self.start) as usize;
        let written = self.segment.file.write_at(&self.buffer[..bytes], self.start);
        written.map_err(|source| self.failed("write", source))?;
        self.shared.counters.bytes.fetch_add(bytes as u64, Relaxed);
        self.has_loose = true;
        self.drop_before(page_of(self.position));
        Ok(())
    }

    /// Pads what is in the buffer to the end of its page: whatever is written ends with the header of no record, so that
    /// nothing of an earlier life of the segment follows it.
    fn pad(&mut self) {
        let end = (self.position + HEADER_BYTES as u64).next_multiple_of(PAGE_BYTES).min(self.segment.bytes);
        self.buffer.resize((end - self.start) as usize, 0);
        self.shared.counters.bytes.fetch_add(self.buffer.len() as u64, Relaxed);
    }

    /// Takes the padding off again, for the next record.
    fn unpad(&mut self) {
        self.buffer.truncate((self.position - self.start) as usize);
    }

    /// Writes all that is not synced, and syncs it.
    fn sync(&mut self) -> Result<()> {
        self.pad();
        let start = Instant::now();
        let (file, has_loose) = (&self.segment.file, std::mem::take(&mut self.has_loose));
        let mut synced = match mutant::planted(Mutant::SyncSkipped) {
            true => file.write_at(&self.buffer, self.start),
            false if has_loose => file.write_at(&self.buffer, self.start).and_then(|()| file.sync_data()),
            false => file.write_synced_at(&self.buffer, self.start),
        };
        if mutant::planted(Mutant::SyncRetried) && synced.is_err() {
            synced = file.sync_data();
        }
        synced.map_err(|source| self.failed("write and sync", source))?;
        self.shared.counters.synced(start.elapsed());
        self.unpad();
        self.synced = self.position;
        self.drop_before(page_of(self.position));
        self.buffer.shrink_to(2 * self.shared.options.piece_bytes);
        Ok(())
    }

    /// What stands before this page is written.
    fn drop_before(&mut self, page: u64) {
        self.buffer.drain(..(page - self.start) as usize);
        self.start = page;
    }

    fn failed(&self, what: &'static str, source: std::io::Error) -> Error {
        fatal(Error::io(what, &self.segment.path, source))
    }

    /// Tells the callers, then looks after segments and memory.
    fn complete(&mut self) {
        self.shared.counters.changes.fetch_add(self.completing.len() as u64, Relaxed);
        for done in self.completing.drain(..) {
            done(Ok(()));
        }
        if !self.purges.is_empty() {
            let mut table = self.shared.table.lock();
            for (group, first) in self.purges.drain(..) {
                table.purged(group, first);
            }
        }
        // A segment that ended in the middle of something may not say all votes and purges anew; until it is
        // sealed, older ones may be the only ones that do.
        if !self.must_roll {
            self.retire_unneeded();
        }
        self.shared.evict();
    }

    fn retire_unneeded(&self) {
        loop {
            // The lock ends here: without threads, the pool works in `retire`.
            let unneeded = self.shared.table.lock().pop_unneeded();
            let Some(segment) = unneeded else { return };
            self.pool.retire(segment);
        }
    }

    /// Says that all before is synced. Not synced itself: if it is lost, nothing is.
    fn prove(&mut self) -> Result<Progress> {
        self.unproven = false;
        if self.fits(0) && !self.must_roll {
            self.encode(Kind::Mark, GroupId::CATALOG, NO_ID, &[])?;
            self.pad();
            let written = self.segment.file.write_at(&self.buffer, self.start);
            written.map_err(|source| self.failed("write", source))?;
            self.unpad();
        }
        Ok(Progress::Done)
    }

    /// Ends in order.
    pub(crate) fn finish(&mut self) {
        if let Some(fatal) = self.shared.queue.fatal() {
            return self.fail(fatal);
        }
        // Only a full disk leaves any: what was taken, and what was queued behind it.
        let mut rest = VecDeque::new();
        self.shared.queue.take(&mut rest);
        for queued in self.taken.drain(..).chain(rest) {
            (queued.done)(Err(Error::Full { path: self.segment.path.clone() }.into()));
        }
        self.unproven = false;
        let mut closed = Ok(());
        if self.fits(0) && !self.must_roll {
            closed = self.encode(Kind::Close, GroupId::CATALOG, NO_ID, &[]).and_then(|_| self.sync());
        }
        self.pool.stop();
        match closed {
            Ok(()) => self.shared.queue.set_closed(),
            Err(error) => self.fail(error),
        }
    }

    /// A write or a sync failed. Nobody may hear `ok` any more.
    fn fail(&mut self, error: Error) {
        self.shared.poison(&error);
        for done in self.completing.drain(..).chain(self.taken.drain(..).map(|queued| queued.done)) {
            done(Err(error.clone().into()));
        }
        let mut rest = VecDeque::new();
        self.shared.queue.take(&mut rest);
        for queued in rest {
            (queued.done)(Err(error.clone().into()));
        }
        self.shared.queue.set_closed();
    }

    fn set_stalled(&self, stalled: bool) {
        let was = self.shared.out_of_room.swap(stalled, Relaxed);
        if stalled && !was {
            self.shared.counters.stalls.fetch_add(1, Relaxed);
            tracing::error!(
                "no room on the disk for another log segment: nothing is acknowledged until there is"
            );
        }
        if was && !stalled {
            self.shared.queue.bound();
            tracing::info!("there is room on the disk again: the log goes on");
        }
    }
}

/// Where the page of this offset begins.
fn page_of(offset: u64) -> u64 {
    offset - offset % PAGE_BYTES
}

fn fatal(error: Error) -> Error {
    match error {
        Error::Fatal { .. } => error,
        other => Error::Fatal { what: other.to_string().into() },
    }
}

/// A writer that panics must not leave callers waiting for ever.
struct PanicGuard<'a>(&'a Shared);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        self.0.poison(&Error::Fatal { what: "the log's writer panicked".into() });
        self.0.queue.set_closed();
    }
}
