//! What a replica itself writes into a checkpoint: its head, and what is kept of tasks.
//!
//! The formats are in `docs/formats/entry.md`.

use model::TaskId;
use model::limits::HISTORY_MAX;
use prost::Message;
use storage::{Batch, CheckpointStore};
use wire::entry::CheckpointHead;
use wire::history::{KeptMessage, LineMessage};

use crate::codec::Codec;
use crate::keep::{News, Writing};
use crate::machine_store::Checkpointed;
use crate::shared::Shared;
use crate::tables;
use crate::type_config::{log_id_to_message, membership_to_message};

/// Tasks whose records are read at once, before they are written again.
const READ_MAX: usize = 1_000;

/// Puts the checkpoint's word on itself.
pub(crate) fn put_head(checkpointed: &Checkpointed, hash: u128, batch: &mut Batch) {
    let head = CheckpointHead {
        applied: checkpointed.applied.map(log_id_to_message),
        membership_at: checkpointed.membership.log_id().map(log_id_to_message),
        membership: Some(membership_to_message(checkpointed.membership.membership())),
        hash_high: (hash >> 64) as u64,
        hash_low: hash as u64,
    };
    batch.put(tables::HEAD, tables::HEAD_KEY, &head.encode_to_vec());
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
            batch.put(tables::KEPT, &key, &message(news).encode_to_vec());
        } else {
            later.push((key, news));
        }
    }
    for some in later.chunks(READ_MAX) {
        let keys: Vec<_> = some.iter().map(|(key, _)| *key).collect();
        let rows = store.get_many(tables::LATER, &keys)?;
        for ((key, news), row) in some.iter().zip(rows) {
            // A row that does not decode is replaced: it is history, not state.
            let stored = row.and_then(|row| KeptMessage::decode(row).ok()).unwrap_or_default();
            batch.put(tables::LATER, key, &joined(stored, message(news)).encode_to_vec());
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
            let row = KeptMessage::decode(row).unwrap_or_default();
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
