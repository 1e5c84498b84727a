//! Gets what is kept of a task from another member, where this one's copy of it is damaged or not there.
//!
//! A disk may give back other bytes than were written. What the machine holds is proven at the start, what is kept of
//! tasks when it is read (`wire::seal`). The record comes whole from any member that has it, goes to whoever asked
//! for it, and back to the disk. Only when all members were asked and none has it, it is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use model::{MemberId, TaskId};
use parking_lot::Mutex;
use prost::Message;
use storage::{Batch, CheckpointStore};
use tokio::time::timeout;
use wire::history::KeptMessage;
use wire::peer::PeerKind;
use wire::raft::{RecordAnswer, RecordAsk, encode};
use wire::seal;

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::peers::{Pace, Unreached};
use crate::records::{self, Found};
use crate::shared::Shared;
use crate::tables;

/// How long a member may take to answer.
const ASK_WAIT: Duration = Duration::from_secs(1);
/// How long one that lags may take to catch up with whoever asks.
const CATCH_UP_WAIT: Duration = Duration::from_millis(700);

/// Records that wait for the disk. One beyond that is not written: it keeps its mark, and its next reader mends it.
const WAITING_MAX: usize = 64;
/// Damaged records that are mended after one checkpoint; the same holds for those beyond.
const ROUND_MAX: usize = 1_000;
/// Of them, those that other members are asked for at once.
const ROUND_AT_ONCE: usize = 16;

/// What of a record is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Its envelope, whatever has become of the rest.
    Envelope,
    /// All of it.
    Whole,
}

/// What another member has of a task. There is an envelope in it.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    pub(crate) kept: KeptMessage,
    /// As of this entry, or later.
    index: u64,
    is_whole: bool,
}

/// What is being mended.
#[derive(Default)]
pub(crate) struct Mending {
    waiting: Mutex<Waiting>,
    /// Held by whoever mends what a checkpoint met.
    round: tokio::sync::Mutex<()>,
}

/// Records on their way to the disk.
#[derive(Default)]
struct Waiting {
    records: BTreeMap<TaskId, Fetched>,
    /// Somebody takes them there.
    is_served: bool,
}

/// The record of another member, which goes back to the disk as well if it is whole. Nothing when no member has it;
/// [`Error::Unavailable`] when that is not known, because not all of them answered.
pub(crate) async fn mend<M: Codec>(
    shared: &Arc<Shared<M>>,
    task: TaskId,
    wanted: Wanted,
) -> Result<Option<KeptMessage>> {
    let Some(fetched) = fetch(shared, task, wanted, None).await? else { return Ok(None) };
    let kept = fetched.kept.clone();
    if fetched.is_whole {
        // Whoever waits for the record need not wait for the disk.
        put_back(shared, task, fetched);
    }
    Ok(Some(kept))
}

/// Mends what a checkpoint met, a few at a time, unless that is still under way from the one before.
pub(crate) fn mend_met<M: Codec>(shared: &Arc<Shared<M>>, tasks: Vec<TaskId>) {
    if tasks.is_empty() {
        return;
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        let Ok(_round) = shared.mending.round.try_lock() else { return };
        let each = futures::stream::iter(tasks.into_iter().take(ROUND_MAX));
        each.for_each_concurrent(ROUND_AT_ONCE, |task| {
            let shared = shared.clone();
            // One that cannot be had now is asked for again by whoever looks at it.
            async move { drop(mend(&shared, task, Wanted::Whole).await) }
        })
        .await;
    });
}

/// Asks the other members for the record: as of what is applied here, or later.
pub(crate) async fn fetch<M: Codec>(
    shared: &Arc<Shared<M>>,
    task: TaskId,
    wanted: Wanted,
    except: Option<MemberId>,
) -> Result<Option<Fetched>> {
    let others = others(shared).into_iter().filter(|member| Some(*member) != except);
    let index = shared.applied_index.borrow().unwrap_or(0);
    let bits = task.bits();
    let ask = RecordAsk { task_high: (bits >> 64) as u64, task_low: bits as u64, index };
    let mut asked: FuturesUnordered<_> = others.map(|member| ask_one(shared, member, task, ask)).collect();
    let mut have_answered = true;
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(Some((kept, is_whole))) if is_whole || wanted == Wanted::Envelope => {
                return Ok(Some(Fetched { kept, index, is_whole }));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(group = %shared.group, %task, %error, "a damaged record is not mended by this member");
                have_answered = false;
            }
        }
    }
    if have_answered { Ok(None) } else { Err(Error::Unavailable) }
}

/// All other members, voters or not.
fn others<M: Codec>(shared: &Shared<M>) -> Vec<MemberId> {
    let core = shared.lock();
    let members = core.membership.membership().nodes().map(|(member, _)| MemberId::from_bits(*member));
    members.filter(|member| *member != shared.member).collect()
}

/// What a member has of a task, and whether that is all of it.
async fn ask_one<M: Codec>(
    shared: &Shared<M>,
    member: MemberId,
    task: TaskId,
    ask: RecordAsk,
) -> Result<Option<(KeptMessage, bool)>, Unreached> {
    let asked = async {
        let sent = shared.peers.send(member, shared.group, PeerKind::Record, encode(&ask), Pace::Now);
        sent.await?.await
    };
    let late = |_| Err(Unreached(format!("member {member} does not answer")));
    let answer = timeout(ASK_WAIT, asked).await.unwrap_or_else(late)?;
    let answer = RecordAnswer::decode(answer).map_err(|error| Unreached(error.to_string()))?;
    let Some(record) = answer.record else { return Ok(None) };
    let kept = seal::opened::<KeptMessage>(&tables::key(task), record);
    let kept = kept.filter(|kept| kept.envelope.is_some());
    let kept = kept.map(|kept| Some((kept, !answer.partial)));
    kept.ok_or_else(|| Unreached(format!("what member {member} sent was damaged on its way")))
}

/// Has a record written back, with all others that wait for that.
fn put_back<M: Codec>(shared: &Arc<Shared<M>>, task: TaskId, fetched: Fetched) {
    {
        let mut waiting = shared.mending.waiting.lock();
        if waiting.records.len() >= WAITING_MAX {
            return;
        }
        waiting.records.insert(task, fetched);
        if std::mem::replace(&mut waiting.is_served, true) {
            return;
        }
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        loop {
            // No checkpoint is written meanwhile.
            let _unwritten = shared.unwritten.lock().await;
            let records = {
                let mut waiting = shared.mending.waiting.lock();
                waiting.is_served = !waiting.records.is_empty();
                std::mem::take(&mut waiting.records)
            };
            if records.is_empty() {
                return;
            }
            if let Err(error) = write(&shared, records).await {
                tracing::error!(group = %shared.group, %error, "mended records are not on the disk yet");
            }
        }
    });
}

/// Puts records in the place of those that are damaged. Returns the tasks whose record on the disk is whole now.
pub(crate) async fn write_back<M: Codec>(
    shared: &Arc<Shared<M>>,
    records: BTreeMap<TaskId, Fetched>,
) -> storage::Result<BTreeSet<TaskId>> {
    let _unwritten = shared.unwritten.lock().await;
    write(shared, records).await
}

/// The same, by whoever keeps checkpoints away.
async fn write<M: Codec>(
    shared: &Arc<Shared<M>>,
    records: BTreeMap<TaskId, Fetched>,
) -> storage::Result<BTreeSet<TaskId>> {
    if shared.is_replaced() || shared.failure.lock().is_some() {
        return Ok(BTreeSet::new());
    }
    let checkpointed = shared.checkpointed.lock().applied.map_or(0, |applied| applied.index);
    let writer = shared.clone();
    let written = shared.reader.run(move || {
        // Not before: whoever closes the store waits for this thread.
        let store = writer.store()?;
        let (mut batch, mut whole, mut mended) = (Batch::new(), BTreeSet::new(), Vec::new());
        // What came after an older one was not kept here, since the row was damaged: the damage is what says so.
        for (task, fetched) in records.into_iter().filter(|(_, fetched)| fetched.index >= checkpointed) {
            match standing(&writer, &store, task) {
                Ok(Standing::Whole) => drop(whole.insert(task)),
                // One page must not keep the others from being mended.
                Ok(Standing::Unwritable) | Err(_) => {}
                Ok(Standing::Damaged) => {
                    let key = tables::key(task);
                    batch.put(tables::KEPT, &key, &seal::sealed(&key, &fetched.kept));
                    // All of it is in the other.
                    batch.delete(tables::LATER, &key);
                    mended.push(task);
                }
            }
        }
        if !mended.is_empty() {
            store.write(&batch)?;
            whole.extend(&mended);
        }
        Ok((whole, mended))
    });
    match written.await {
        Ok((whole, mended)) => {
            shared.mends.fetch_add(mended.len() as u64, Ordering::Relaxed);
            for task in mended {
                tracing::warn!(group = %shared.group, %task, "a damaged record was mended with another member's");
            }
            Ok(whole)
        }
        Err(error) => {
            if error.is_fatal() {
                shared.log.give_up(&error.to_string());
            }
            Err(error)
        }
    }
}

/// What is on the disk where a record goes.
enum Standing {
    Whole,
    /// A damaged record, or less than there should be.
    Damaged,
    /// Pages that cannot be read, and so not be written; or no record, as it should be.
    Unwritable,
}

fn standing<M: Codec>(
    shared: &Shared<M>,
    store: &CheckpointStore,
    task: TaskId,
) -> storage::Result<Standing> {
    let key = tables::key(task);
    let rows = [records::row(store, tables::KEPT, &key)?, records::row(store, tables::LATER, &key)?];
    if rows.iter().flatten().any(records::is_unreadable) {
        return Ok(Standing::Unwritable);
    }
    let is_damaged = |row: Bytes| seal::opened::<KeptMessage>(&key, row).is_none();
    let [first, later] = rows.map(|row| row.map(is_damaged));
    Ok(match first {
        None if !is_missed(shared, task) => Standing::Unwritable,
        Some(false) if later != Some(true) => match records::kept(shared, task)? {
            Found::Damaged(_) => Standing::Damaged,
            _ => Standing::Whole,
        },
        _ => Standing::Damaged,
    })
}

/// Whether the disk should have a record of this task: it is there, and not only since the last checkpoint.
fn is_missed<M: Codec>(shared: &Shared<M>, task: TaskId) -> bool {
    let core = shared.lock();
    let Some(slot) = core.machine.slot(task) else { return false };
    !core.keep.news(slot, task).iter().flatten().any(|news| news.fresh)
}

/// Answers a member that asks for a record: with what is whole here, once as much is applied here as there.
pub(crate) async fn give<M: Codec>(shared: &Arc<Shared<M>>, ask: RecordAsk) -> Result<RecordAnswer> {
    let bits = u128::from(ask.task_high) << 64 | u128::from(ask.task_low);
    let task = TaskId::from_bits(bits).ok_or_else(|| Error::malformed("a task id"))?;
    if shared.applied_index.borrow().is_none_or(|applied| applied == 0) && shared.is_new() {
        // A new member, which has had nothing that it could have kept, but who its founders are.
        return Ok(RecordAnswer::default());
    }
    let mut applied = shared.applied_index.subscribe();
    let come = applied.wait_for(|applied| applied.unwrap_or(0) >= ask.index);
    let has_come = matches!(timeout(CATCH_UP_WAIT, come).await, Ok(Ok(_)));
    if !has_come || shared.failure.lock().is_some() {
        return Err(Error::Unavailable);
    }
    let reader = shared.clone();
    let found = shared.reader.run(move || records::kept(&reader, task)).await;
    let failed = |error: storage::Error| Error::Storage { group: shared.group, what: error.to_string() };
    let sealed = |kept: &KeptMessage| Some(seal::sealed(&tables::key(task), kept).into());
    Ok(match found.map_err(failed)? {
        Found::Whole(kept) => RecordAnswer { record: sealed(&kept), partial: false },
        Found::Damaged(rest) if rest.envelope.is_some() => {
            RecordAnswer { record: sealed(&rest), partial: true }
        }
        Found::Damaged(_) | Found::Nothing | Found::Gone => RecordAnswer::default(),
    })
}

#[cfg(test)]
mod tests {
    use model::{ShardId, WallTime};

    use super::*;
    use crate::lone;
    use crate::peers::NoPeers;

    fn task(n: u64) -> TaskId {
        TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1_000 + n), n)
    }

    fn fetched(index: u64) -> Fetched {
        let envelope = Some(Bytes::from_static(b"envelope"));
        Fetched { kept: KeptMessage { envelope, ..KeptMessage::default() }, index, is_whole: true }
    }

    #[tokio::test]
    async fn a_record_that_is_older_than_the_checkpoint_does_not_hide_the_damage() {
        let (log, replica, _) = lone::start(Arc::new(NoPeers)).await;
        replica.checkpoint_now().await.unwrap();
        let shared = &replica.inner.shared;
        let checkpointed = shared.checkpointed.lock().applied.unwrap().index;
        let key = tables::key(task(1));
        let mut row = seal::sealed(&key, &fetched(0).kept);
        row[4] ^= 1;
        for table in [tables::KEPT, tables::LATER] {
            let mut batch = Batch::new();
            batch.put(table, &key, &row);
            shared.store().unwrap().write(&batch).unwrap();
        }
        for (index, is_mended) in [(checkpointed - 1, false), (checkpointed, true)] {
            let whole = write_back(shared, BTreeMap::from([(task(1), fetched(index))])).await.unwrap();
            assert_eq!(whole.contains(&task(1)), is_mended, "as of entry {index}");
            let store = shared.store().unwrap();
            let first = store.get(tables::KEPT, &key).unwrap().unwrap();
            assert_eq!(seal::is_whole(&key, &first), is_mended, "as of entry {index}");
            assert_eq!(store.get(tables::LATER, &key).unwrap().is_none(), is_mended, "as of entry {index}");
        }
        // A task that is not there gets no record.
        let whole = write_back(shared, BTreeMap::from([(task(2), fetched(checkpointed))])).await.unwrap();
        assert!(whole.is_empty());
        assert!(shared.store().unwrap().get(tables::KEPT, &tables::key(task(2))).unwrap().is_none());
        replica.stop().await.unwrap();
        log.close().unwrap();
    }

    #[tokio::test]
    async fn records_that_wait_for_the_disk_are_bounded_and_go_there_together() {
        let (log, replica, _) = lone::start(Arc::new(NoPeers)).await;
        let shared = &replica.inner.shared;
        let waiting = || shared.mending.waiting.lock().records.len();
        let checkpoint = shared.unwritten.lock().await;
        for n in 0..2 * WAITING_MAX as u64 {
            put_back(shared, task(n), fetched(100));
        }
        tokio::task::yield_now().await;
        assert_eq!(waiting(), WAITING_MAX);
        drop(checkpoint);
        while shared.mending.waiting.lock().is_served {
            tokio::task::yield_now().await;
        }
        assert_eq!(waiting(), 0);
        replica.stop().await.unwrap();
        log.close().unwrap();
    }
}
