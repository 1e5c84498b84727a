//! The engine's log, on this group's part of the node's log.
//!
//! Entries can be read as soon as `append` returns; the engine hears of them as stored only after the
//! disk's sync. Votes and entries go through the same ordered writer. Next: `storage::GroupLog`.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};

use bytes::Bytes;
use futures::Stream;
use futures::stream;
use model::{Mutant, mutant};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{EntryPayload, OptionalSend, RaftLogReader};
use prost::Message;
use storage::{Done, GroupLog, LogEntry};
use tokio::sync::oneshot;
use wire::entry::{self, Entry as WireEntry, Malformed};

use crate::type_config::{
    EntryBytes, LogId, Membership, Payload, RaftEntry, Types, Vote, log_id, membership_from_message,
    membership_to_message, vote_from_message, vote_to_message,
};
use crate::witness::Teller;

/// Entries read at once when a long stretch of the log is applied.
const READ_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Entries that go into one message to another member; one that is larger goes alone.
const SEND_BYTES_MAX: usize = 1024 * 1024;

/// The engine's log.
#[derive(Clone)]
pub(crate) struct LogStore {
    log: GroupLog,
    teller: Teller,
}

impl LogStore {
    pub(crate) fn new(log: GroupLog, teller: Teller) -> LogStore {
        LogStore { log, teller }
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let state = self.log.state();
        Ok(LogState {
            last_purged_log_id: state.purged.map(engine_id),
            last_log_id: state.last.map(engine_id),
        })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let message = vote_to_message(vote);
        let bytes = Bytes::from(message.encode_to_vec());
        if mutant::planted(Mutant::VoteNotSynced) {
            self.log.save_vote(bytes, Box::new(|_| ()));
        } else {
            synced(&self.log, |log, done| log.save_vote(bytes, done)).await?;
        }
        self.teller.voted(message.term, message.member, message.committed);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().map(|entry| stored(&entry)).collect();
        if mutant::planted(Mutant::AnsweredBeforeSync) {
            self.log.append(entries, Box::new(|_| ()));
            callback.io_completed(Ok(()));
            return Ok(());
        }
        self.log.append(entries, Box::new(move |result| callback.io_completed(result)));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        synced(&self.log, |log, done| log.truncate_after(last.map(|id| id.index), done)).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        // Nobody waits for the disk here: a purge that a crash loses is done again after the next checkpoint.
        self.log.purge_upto(storage_id(upto), Box::new(|_| ()));
        Ok(())
    }
}

/// Waits until a write is on the disk.
async fn synced(log: &GroupLog, write: impl FnOnce(&GroupLog, Done)) -> io::Result<()> {
    let (done, synced) = oneshot::channel();
    write(log, Box::new(move |result| drop(done.send(result))));
    synced.await.unwrap_or_else(|_| Err(io::Error::other("the log was closed")))
}

/// Writes the first entry of an empty log, as the engine would: in term 0, which nobody leads.
pub(crate) async fn begin(log: &GroupLog, members: Membership) -> io::Result<()> {
    let first = RaftEntry { log_id: log_id(0, 0), payload: EntryPayload::Membership(members) };
    synced(log, |log, done| log.append(vec![stored(&first)], done)).await
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<RaftEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        self.log.read(from..to)?.into_iter().map(engine_entry).collect()
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = io::Result<RaftEntry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        // After a restart all of the log's tail is applied as one range: never hold it in memory whole.
        let (from, to) = bounds(&range);
        let log = self.log.clone();
        let state = (log, from, to, Vec::new().into_iter());
        stream::iter(ReadOn { state })
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        let Some(bytes) = self.log.vote() else { return Ok(None) };
        let vote = entry::Vote::decode(bytes).map_err(|error| damaged("vote", error.into()))?;
        self.teller.voted(vote.term, vote.member, vote.committed);
        Ok(Some(vote_from_message(vote)))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<RaftEntry>> {
        self.log.read_upto(start..end, SEND_BYTES_MAX)?.into_iter().map(engine_entry).collect()
    }
}

/// Reads a range in bounded steps.
struct ReadOn {
    state: (GroupLog, u64, u64, std::vec::IntoIter<LogEntry>),
}

impl Iterator for ReadOn {
    type Item = io::Result<RaftEntry>;

    fn next(&mut self) -> Option<io::Result<RaftEntry>> {
        let (log, from, to, ready) = &mut self.state;
        if ready.len() == 0 && from < to {
            match log.read_upto(*from..*to, READ_BYTES_MAX) {
                Ok(entries) => *ready = entries.into_iter(),
                Err(error) => {
                    *from = *to;
                    return Some(Err(error.into()));
                }
            }
        }
        let entry = ready.next()?;
        *from = entry.index + 1;
        Some(engine_entry(entry))
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(&from) => from,
        Bound::Excluded(&from) => from + 1,
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(&to) => to + 1,
        Bound::Excluded(&to) => to,
        Bound::Unbounded => u64::MAX,
    };
    (from, to.max(from))
}

/// An entry as it is stored and sent.
pub(crate) fn stored(entry: &RaftEntry) -> LogEntry {
    let payload = match &entry.payload {
        EntryPayload::Blank => entry::encode_blank(),
        EntryPayload::Normal(EntryBytes(bytes)) => bytes.clone(),
        EntryPayload::Membership(members) => entry::encode_membership(&membership_to_message(members)),
    };
    // One leader per term: the term alone names the leader.
    LogEntry { index: entry.log_id.index, term: entry.log_id.leader_id.term, node: 0, payload }
}

/// An entry from what was stored or sent.
pub(crate) fn engine_entry(entry: LogEntry) -> io::Result<RaftEntry> {
    let log_id = log_id(entry.term, entry.index);
    let payload = payload(entry.payload)
        .map_err(|error| damaged(&format!("log entry {} of term {}", entry.index, entry.term), error))?;
    Ok(RaftEntry { log_id, payload })
}

fn payload(bytes: Bytes) -> Result<Payload, Malformed> {
    // Commands stay bytes until they are applied.
    if bytes.first() == Some(&entry::KIND_COMMANDS) {
        return Ok(EntryPayload::Normal(EntryBytes(bytes)));
    }
    match WireEntry::decode(bytes)? {
        WireEntry::Membership(message) => {
            membership_from_message(&message).map(EntryPayload::Membership).ok_or(Malformed::Value("members"))
        }
        WireEntry::Blank | WireEntry::Commands(_) => Ok(EntryPayload::Blank),
    }
}

fn damaged(what: &str, error: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {error}"))
}

fn engine_id(id: storage::LogId) -> LogId {
    log_id(id.term, id.index)
}

/// An entry's name in the log.
pub(crate) fn storage_id(id: LogId) -> storage::LogId {
    storage::LogId { term: id.leader_id.term, node: 0, index: id.index }
}
