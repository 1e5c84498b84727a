//! What a replica itself writes into a checkpoint: its head, and what is kept of tasks.
//!
//! The formats are in `docs/formats/entry.md`.

use bytes::Bytes;
use model::limits::HISTORY_MAX;
use model::{GroupId, Mutant, TaskId, mutant};
use storage::{Batch, CheckpointStore};
use wire::entry::{CheckpointHead, LogId as LogIdMessage};
use wire::history::{KeptMessage, LineMessage};
use wire::seal;

use crate::codec::Codec;
use crate::keep::Writing;
use crate::machine_store::Checkpointed;
use crate::news::News;
use crate::shared::Shared;
use crate::tables;
use crate::type_config::{log_id_to_message, membership_to_message};

/// Tasks whose records are read at once, before they are written again.
const READ_MAX: usize = 1_000;
/// Not the bytes of any record.
const NO_RECORD: &[u8] = &[0xff];

/// Puts the checkpoint's word on itself.
pub(crate) fn put_head(checkpointed: &Checkpointed, hash: u128, batch: &mut Batch) {
    let head = CheckpointHead {
        applied: checkpointed.applied.map(log_id_to_message).map(off_by_one),
        membership_at: checkpointed.membership.log_id().map(log_id_to_message),
        membership: Some(membership_to_message(checkpointed.membership.membership())),
        hash_high: (hash >> 64) as u64,
        hash_low: hash as u64,
    };
    batch.put(tables::HEAD, tables::HEAD_KEY, &seal::sealed(tables::HEAD_KEY, &head));
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

/// Puts what is kept of tasks. Returns those with a damaged record, which stays as it is: another member has all of
/// it. Without others it is replaced.
pub(crate) fn put_kept(
    store: &CheckpointStore,
    writing: &Writing,
    others: Others,
    batch: &mut Batch,
) -> storage::Result<Vec<TaskId>> {
    let mut tasks: Vec<(TaskId, &News)> = writing.iter().collect();
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
            batch.put(tables::KEPT, &key, &seal::sealed(&key, &message(news)));
        } else {
            later.push((task, key, news));
        }
    }
    let mut damaged = Vec::new();
    for some in later.chunks(READ_MAX) {
        let keys: Vec<_> = some.iter().map(|(_, key, _)| *key).collect();
        let rows = rows(store, tables::LATER, &keys);
        for ((task, key, news), row) in some.iter().zip(rows) {
            let stored = match row?.map(|row| seal::opened(key, row)) {
                None => KeptMessage::default(),
                Some(Some(stored)) => stored,
                Some(None) if others == Others::Some => {
                    damaged.push(*task);
                    continue;
                }
                // Nobody can tell any more; what comes now is worth keeping.
                Some(None) => KeptMessage::default(),
            };
            batch.put(tables::LATER, key, &seal::sealed(key, &joined(stored, message(news))));
        }
    }
    Ok(damaged)
}

/// Rows as they are on the disk; in the place of one that cannot be read, bytes that are no record.
pub(crate) fn rows(
    store: &CheckpointStore,
    table: u8,
    keys: &[[u8; 16]],
) -> Vec<storage::Result<Option<Bytes>>> {
    match store.get_many(table, keys) {
        Ok(rows) => rows.into_iter().map(Ok).collect(),
        // One page must not hide the others.
        Err(_) => keys.iter().map(|key| row(store, table, key)).collect(),
    }
}

/// One row, in the same way.
pub(crate) fn row(store: &CheckpointStore, table: u8, key: &[u8]) -> storage::Result<Option<Bytes>> {
    match store.get(table, key) {
        Err(error @ storage::Error::Damaged { .. }) => {
            tracing::error!(%error, "a row of the checkpoint cannot be read");
            Ok(Some(Bytes::from_static(NO_RECORD)))
        }
        read => read,
    }
}

/// Whether these bytes stand for a row that cannot be read.
pub(crate) fn is_unreadable(row: &Bytes) -> bool {
    row == NO_RECORD
}

/// Whether there are other members to get a record from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    None,
    Some,
}

/// What can be read of a task's record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Found {
    /// The task has gone, and what was kept of it.
    Gone,
    /// There is none, although there should be.
    Nothing,
    Whole(KeptMessage),
    /// Some of it is not what was written; the rest.
    Damaged(KeptMessage),
}

/// What is known of a task: on disk, on its way there, and newer than that.
pub(crate) fn kept<M: Codec>(shared: &Shared<M>, task: TaskId) -> storage::Result<Found> {
    // Memory first: what a checkpoint moves from there to the disk meanwhile is then seen twice, not never.
    let news = {
        let core = shared.lock();
        if !core.machine.has(task) {
            return Ok(Found::Gone);
        }
        core.keep.news(task)
    };
    let store = shared.store()?;
    let key = tables::key(task);
    let (mut all, mut is_damaged) = (None::<KeptMessage>, false);
    for table in [tables::KEPT, tables::LATER] {
        let Some(row) = row(&store, table, &key)? else { continue };
        match seal::opened(&key, row) {
            Some(row) => all = Some(joined(all.unwrap_or_default(), row)),
            None => is_damaged = true,
        }
    }
    for news in news.into_iter().flatten() {
        if news.forgotten {
            (all, is_damaged) = (None, false);
        }
        if !news.is_gone() {
            all = Some(joined(all.unwrap_or_default(), message(&news)));
        }
    }
    Ok(match all {
        None if !is_damaged => Found::Nothing,
        Some(all) if !is_damaged && all.envelope.is_some() => Found::Whole(all),
        all => Found::Damaged(all.unwrap_or_default()),
    })
}

/// A record whose bytes are not those that were written.
pub(crate) fn damaged(group: GroupId, task: TaskId) -> storage::Error {
    let what = format!("what is kept of task {task} is not what was written");
    storage::Error::Damaged { path: storage::checkpoint_path(group), offset: 0, what }
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
