//! What a replica itself writes into a checkpoint: its head, and what is kept of tasks.
//!
//! The formats are in `docs/formats/entry.md`.

use bytes::Bytes;
use model::limits::HISTORY_MAX;
use model::{GroupId, Mutant, TaskId, mutant};
use prost::Message;
use storage::{Batch, CheckpointStore};
use wire::entry::{CheckpointHead, LogId as LogIdMessage};
use wire::history::{KeptMessage, LineMessage};

use crate::codec::Codec;
use crate::keep::{News, Writing};
use crate::machine_store::Checkpointed;
use crate::shared::Shared;
use crate::tables;
use crate::type_config::{log_id_to_message, membership_to_message};

/// The key of the field that holds a record's checksum, the last one: number 2^25 - 1, four bytes. Whoever does not
/// know it passes it over; a record without one does not end like this.
const SEAL: [u8; 4] = [0xfd, 0xff, 0xff, 0x7f];
/// Tasks whose records are read at once, before they are written again.
const READ_MAX: usize = 1_000;

/// Puts the checkpoint's word on itself.
pub(crate) fn put_head(checkpointed: &Checkpointed, hash: u128, batch: &mut Batch) {
    let head = CheckpointHead {
        applied: checkpointed.applied.map(log_id_to_message).map(off_by_one),
        membership_at: checkpointed.membership.log_id().map(log_id_to_message),
        membership: Some(membership_to_message(checkpointed.membership.membership())),
        hash_high: (hash >> 64) as u64,
        hash_low: hash as u64,
    };
    batch.put(tables::HEAD, tables::HEAD_KEY, &head.encode_to_vec());
}

/// The same, unless a bug is planted.
fn off_by_one(mut applied: LogIdMessage) -> LogIdMessage {
    if mutant::planted(Mutant::CheckpointLow) {
        applied.index = applied.index.saturating_sub(1);
    } else if mutant::planted(Mutant::CheckpointHigh) {
        applied.index += 1;
    }
    applied
}

/// Puts what is kept of tasks.
pub(crate) fn put_kept(store: &CheckpointStore, writing: &Writing, batch: &mut Batch) -> storage::Result<()> {
    let mut tasks: Vec<(TaskId, &News)> = writing.iter().map(|(task, news)| (*task, news)).collect();
    tasks.sort_unstable_by_key(|(task, _)| *task);
    let mut later = Vec::new();
    for (task, news) in tasks {
        let key = tables::key(task);
        if news.forgotten {
            batch.delete(tables::KEPT, &key);
            batch.delete(tables::LATER, &key);
        }
        // Of two words on a key the later counts.
        if news.is_gone() {
            continue;
        }
        if news.fresh {
            batch.put(tables::KEPT, &key, &sealed(&message(news)));
        } else {
            later.push((key, news));
        }
    }
    for some in later.chunks(READ_MAX) {
        let keys: Vec<_> = some.iter().map(|(key, _)| *key).collect();
        let rows = store.get_many(tables::LATER, &keys)?;
        for ((key, news), row) in some.iter().zip(rows) {
            // A row that does not decode is replaced: it is history, not state.
            let stored = row.and_then(opened).unwrap_or_default();
            batch.put(tables::LATER, key, &sealed(&joined(stored, message(news))));
        }
    }
    Ok(())
}

/// What is known of a task: on disk, on its way there, and newer than that.
pub(crate) fn kept<M: Codec>(shared: &Shared<M>, task: TaskId) -> storage::Result<Option<KeptMessage>> {
    // Memory first: what a checkpoint moves from there to the disk meanwhile is then seen twice, not never.
    let news = shared.lock().keep.news(task);
    let store = shared.store()?;
    let key = tables::key(task);
    let mut all = None::<KeptMessage>;
    for table in [tables::KEPT, tables::LATER] {
        if let Some(row) = store.get(table, &key)? {
            let row = match opened(row) {
                Some(row) => row,
                None if table == tables::LATER => KeptMessage::default(),
                None => return Err(damaged(shared.group, task)),
            };
            all = Some(joined(all.unwrap_or_default(), row));
        }
    }
    for news in news.into_iter().flatten() {
        if news.forgotten {
            all = None;
        }
        if !news.is_gone() {
            all = Some(joined(all.unwrap_or_default(), message(&news)));
        }
    }
    Ok(all)
}

/// A record whose bytes are not those that were written.
pub(crate) fn damaged(group: GroupId, task: TaskId) -> storage::Error {
    let what = format!("what is kept of task {task} is not what was written");
    storage::Error::Damaged { path: storage::checkpoint_path(group), offset: 0, what }
}

/// A record with the checksum of its bytes behind it.
fn sealed(message: &KeptMessage) -> Vec<u8> {
    let mut bytes = message.encode_to_vec();
    let sum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&SEAL);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// A record, if it is the one that was written. One from before there were checksums is taken as it is.
pub(crate) fn opened(row: Bytes) -> Option<KeptMessage> {
    let is_right = match row.split_last_chunk::<4>() {
        Some((rest, sum)) => rest
            .strip_suffix(SEAL.as_slice())
            .is_none_or(|body| crc32c::crc32c(body) == u32::from_le_bytes(*sum)),
        None => true,
    };
    is_right.then(|| KeptMessage::decode(row).ok()).flatten()
}

/// What came of a task, as a record.
fn message(news: &News) -> KeptMessage {
    let skip = news.history.len().saturating_sub(HISTORY_MAX);
    let lines = news.history[skip..].iter();
    KeptMessage {
        envelope: news.envelope.clone(),
        output: news.output.clone(),
        detail: news.detail.clone(),
        history: lines.map(|line| LineMessage::new(line.at, line.index, &line.event)).collect(),
    }
}

/// Two records of one task, the newer word counting.
fn joined(mut old: KeptMessage, new: KeptMessage) -> KeptMessage {
    old.envelope = new.envelope.or(old.envelope);
    old.output = new.output.or(old.output);
    old.detail = new.detail.or(old.detail);
    // A checkpoint that ends while somebody reads shows its lines twice: in memory and on disk.
    let seen = old.history.last().map(LineMessage::index);
    old.history.extend(new.history.into_iter().filter(|line| Some(line.index()) > seen));
    let skip = old.history.len().saturating_sub(HISTORY_MAX);
    old.history.drain(..skip);
    old
}

#[cfg(test)]
mod tests {
    use model::{Event, WallTime};

    use super::*;

    #[test]
    fn a_record_with_a_flipped_bit_is_no_record_and_one_without_a_checksum_is() {
        let message = KeptMessage { envelope: Some(Bytes::from_static(b"envelope")), ..lines(1..4) };
        let row = sealed(&message);
        assert_eq!(opened(Bytes::from(row.clone())), Some(message.clone()));
        assert_eq!(opened(message.encode_to_vec().into()), Some(message.clone()));
        for at in 0..row.len() {
            for bit in 0..8 {
                let mut flipped = row.clone();
                flipped[at] ^= 1 << bit;
                let read = opened(Bytes::from(flipped));
                assert!(read.is_none_or(|read| read == message), "byte {at}, bit {bit}");
            }
        }
    }

    fn lines(indexes: std::ops::Range<u64>) -> KeptMessage {
        let line = |index| LineMessage::new(WallTime::from_millis(index), index, &Event::BecameReady);
        KeptMessage { history: indexes.map(line).collect(), ..KeptMessage::default() }
    }

    #[test]
    fn lines_that_are_seen_twice_count_once() {
        assert_eq!(joined(lines(0..5), lines(3..8)), lines(0..8));
        assert_eq!(joined(lines(0..0), lines(0..3)), lines(0..3));
    }

    #[test]
    fn the_last_lines_stay() {
        assert_eq!(joined(lines(0..40), lines(40..80)), lines(30..80));
    }
}
