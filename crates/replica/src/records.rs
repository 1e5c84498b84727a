//! What a replica itself writes into a checkpoint: its head, and what is kept of tasks.
//!
//! The formats are in `docs/formats/entry.md`.

use std::collections::BTreeSet;

use bytes::Bytes;
use model::limits::HISTORY_MAX;
use model::{GroupId, Mutant, Stand, TaskId, mutant};
use storage::{Batch, CheckpointStore};
use wire::entry::{CheckpointHead, LogId as LogIdMessage};
use wire::history::{KeptMessage, LineMessage};
use wire::seal;

use crate::codec::Codec;
use crate::machine_store::Checkpointed;
use crate::news::News;
use crate::shared::Shared;
use crate::tables;
use crate::type_config::{log_id_to_message, membership_to_message};

/// Tasks whose records are read at once, before they are written again.
const READ_MAX: usize = 1_000;
/// Not the bytes of any record: in the place of a row that cannot be read.
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
    writing: &[&News],
    others: Others,
    batch: &mut Batch,
) -> storage::Result<Vec<TaskId>> {
    let mut later = Vec::new();
    for &news in writing {
        let key = tables::key(news.task);
        if news.gone {
            // Of two words on a key the later counts.
            batch.delete(tables::KEPT, &key);
            batch.delete(tables::LATER, &key);
        } else if news.fresh {
            batch.put(tables::KEPT, &key, &seal::sealed(&key, &message(news)));
        } else {
            later.push((key, news));
        }
    }
    let mut damaged = Vec::new();
    for some in later.chunks(READ_MAX) {
        let keys: Vec<_> = some.iter().map(|(key, _)| *key).collect();
        let rows = rows(store, tables::LATER, &keys);
        for ((key, news), row) in some.iter().zip(rows) {
            let stored = match row?.map(|row| seal::opened(key, row)) {
                None => KeptMessage::default(),
                Some(Some(stored)) => stored,
                Some(None) if others == Others::Some => {
                    damaged.push(news.task);
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
    let (stand, news) = {
        let core = shared.lock();
        let at = core.machine.stand(task).zip(core.machine.slot(task));
        let Some((stand, slot)) = at else { return Ok(Found::Gone) };
        (stand, core.keep.news(slot, task))
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
        // What was before it is of an earlier life.
        if news.fresh {
            (all, is_damaged) = (None, false);
        }
        all = Some(joined(all.unwrap_or_default(), message(&news)));
    }
    Ok(match all {
        None if !is_damaged => Found::Nothing,
        Some(all) if !is_damaged && is_all(&all, stand) => Found::Whole(all),
        all => Found::Damaged(all.unwrap_or_default()),
    })
}

/// Whether this is all that is kept of a task: its history leads to where the task stands, or further. What came later
/// than the first record may be under a damaged key, and nothing else would miss it.
pub(crate) fn is_all(kept: &KeptMessage, stand: Stand) -> bool {
    // Of a long history only the end is left; its first claim tells how far the task had come.
    let is_cut = kept.history.len() >= HISTORY_MAX;
    let (mut at, mut has_come) = (None::<Stand>, false);
    for event in kept.history.iter().map(LineMessage::event) {
        // One that is unknown was written by a newer program, which may know better.
        let Ok(event) = event else { return kept.envelope.is_some() };
        let next = match at {
            Some(at) => at.after(&event),
            None => Stand::at(&event),
        };
        if next.is_none() && (at.is_some() || !is_cut) {
            // Before it something is missing.
            return false;
        }
        at = next;
        has_come |= at == Some(stand);
    }
    kept.envelope.is_some() && (has_come || is_cut && at.is_none())
}

/// What two members have of a task, each perhaps without some of it.
pub(crate) fn merged(one: KeptMessage, other: KeptMessage) -> KeptMessage {
    let last = |kept: &KeptMessage| kept.history.last().map(LineMessage::index);
    let (mut new, old) = if last(&one) > last(&other) { (one, other) } else { (other, one) };
    let indexes: BTreeSet<u64> = new.history.iter().map(LineMessage::index).collect();
    new.history.extend(old.history.into_iter().filter(|line| !indexes.contains(&line.index())));
    // What one entry did stays in its order.
    new.history.sort_by_key(LineMessage::index);
    joined(KeptMessage { history: Vec::new(), ..old }, new)
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
        detail: news.detail.as_deref().map(str::to_owned),
        history: lines.map(|line| LineMessage::new(line.at, line.index, &line.event)).collect(),
    }
}

/// Two records of one task, the newer word counting.
pub(crate) fn joined(mut old: KeptMessage, new: KeptMessage) -> KeptMessage {
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
    use model::{Event, Failure, Fence, Millis, StateKind, WallTime, WorkerName};

    use super::*;

    fn lines(indexes: std::ops::Range<u64>) -> KeptMessage {
        let line = |index| LineMessage::new(WallTime::from_millis(index), index, &Event::BecameReady);
        KeptMessage { history: indexes.map(line).collect(), ..KeptMessage::default() }
    }

    fn record(events: &[Event]) -> KeptMessage {
        let line = |(n, event)| LineMessage::new(WallTime::from_millis(1), n as u64, event);
        let history = events.iter().enumerate().map(line).collect();
        KeptMessage { envelope: Some(Bytes::new()), history, ..KeptMessage::default() }
    }

    fn life(attempts: std::ops::RangeInclusive<u32>) -> Vec<Event> {
        let worker = WorkerName::new("w").unwrap();
        let mut events = Vec::new();
        for attempt in attempts {
            let fence = Fence(u64::from(attempt) * 10);
            events.push(Event::Claimed { worker: worker.clone(), attempt, fence });
            let failure = Box::new(Failure { error: String::new(), retry_in: Millis(1) });
            let (worker, state) = (worker.clone(), StateKind::Retrying);
            events.push(Event::Failed { worker, state, failure });
            events.push(Event::BecameReady);
        }
        events
    }

    #[test]
    fn a_record_is_all_when_its_history_leads_to_where_the_task_stands() {
        let enqueued = Event::Enqueued { state: StateKind::Ready };
        let all = [vec![enqueued], life(1..=3)].concat();
        let stands: Vec<Stand> = all
            .iter()
            .scan(None::<Stand>, |at, event| {
                *at = at.map_or_else(|| Stand::at(event), |at| at.after(event));
                *at
            })
            .collect();
        assert_eq!(stands.len(), all.len());
        for (n, stand) in stands.iter().enumerate() {
            for lines in 0..=all.len() {
                let is_all = is_all(&record(&all[..lines]), *stand);
                assert_eq!(is_all, lines > n, "the first {lines} lines, of {n} the task knows");
            }
        }
        let without = |skipped: std::ops::Range<usize>| {
            let mut some = all.clone();
            some.drain(skipped);
            is_all(&record(&some), stands[all.len() - 1])
        };
        assert!(!without(1..4) && !without(4..7), "an attempt is missing in between");
        assert!(!without(7..10) && !without(9..10), "the last ones are missing");
        assert!(!without(5..6), "a claim does not follow a claim");
        let no_envelope = KeptMessage { envelope: None, ..record(&all) };
        assert!(!is_all(&no_envelope, stands[3]));
    }

    #[test]
    fn two_parts_of_a_record_are_one() {
        let all = KeptMessage { output: Some(Bytes::from_static(b"out")), ..lines(0..8) };
        let part = |lines: KeptMessage, output: bool| KeptMessage {
            output: all.output.clone().filter(|_| output),
            ..lines
        };
        let gap = part(joined(lines(0..2), lines(5..8)), true);
        for (one, other) in
            [(gap, part(lines(0..6), false)), (part(lines(0..8), false), part(lines(0..3), true))]
        {
            assert_eq!(merged(one.clone(), other.clone()), all);
            assert_eq!(merged(other, one), all);
        }
    }

    #[test]
    fn of_a_long_history_the_end_says_enough() {
        let long = life(1..=40);
        let end = &long[long.len() - HISTORY_MAX..];
        let stand = Stand { state: StateKind::Ready, fence: Fence(400), attempts: 40 };
        assert!(is_all(&record(end), stand));
        assert!(!is_all(&record(&long[..HISTORY_MAX]), stand));
        let ended = Event::Ended { state: StateKind::Cancelled, reason: String::new() };
        let waits = [ended, Event::Requeued { state: StateKind::Ready }];
        let waits: Vec<_> = waits.iter().cycle().take(HISTORY_MAX).cloned().collect();
        assert!(is_all(&record(&waits), stand), "nothing there says how far it had come");
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
