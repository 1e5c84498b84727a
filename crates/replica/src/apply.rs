//! Applies a committed entry: decode, change the machine, keep what its effects ask for, answer.
//!
//! Runs on every replica in the order of the log. What the entry says is all that counts: no clock, no
//! leader. A claim's envelopes come from memory; those that are only on disk are read elsewhere, and the
//! answer waits for them, not the next entry. Next: `state_machine::shard`.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use model::{Claimed, Event, Position, Rejection, TaskId};
use openraft::EntryPayload;
use openraft::storage::ApplyResponder;
use state_machine::{Effect, Slot};
use wire::entry::{Entry as WireEntry, Malformed};
use wire::history::KeptMessage;
use wire::seal;

use crate::codec::{Codec, Withheld};
use crate::mend::{self, Wanted};
use crate::notice::{Heard, Notice, is_told};
use crate::propose;
use crate::records;
use crate::shared::{Core, Shared};
use crate::tables;
use crate::type_config::{EntryBytes, Outcome, RaftEntry, StoredMembership, Types};

/// Room for effects that is kept from entry to entry.
const EFFECTS_KEPT: usize = 1024;
/// Damaged records that other members are asked for at once.
const MENDS_AT_ONCE: usize = 64;

/// What the commands of an entry brought, in their order.
pub(crate) struct Replies<R> {
    pub(crate) index: u64,
    pub(crate) results: Vec<Result<R, Rejection>>,
}

/// Applies one entry and answers its proposer, if it was proposed here.
pub(crate) fn apply<M: Codec>(
    shared: &Arc<Shared<M>>,
    entry: RaftEntry,
    responder: Option<ApplyResponder<Types>>,
) -> io::Result<()> {
    let index = entry.log_id.index;
    let next = shared.lock().applied.map_or(0, |applied| applied.index + 1);
    if index != next {
        let group = shared.group;
        let what = format!("entry {index} of group {group} does not follow: entry {next} is missing");
        shared.log.give_up(&what);
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let (answers, news) = match entry.payload {
        EntryPayload::Normal(EntryBytes(bytes)) => {
            let batch = decode::<M>(bytes, index)?;
            let (answers, news) = apply_batch(shared, &entry.log_id, batch, responder.is_some());
            (Some(answers), news)
        }
        EntryPayload::Blank => {
            shared.lock().applied = Some(entry.log_id);
            (None, News::default())
        }
        EntryPayload::Membership(membership) => {
            let mut core = shared.lock();
            core.applied = Some(entry.log_id);
            core.membership = StoredMembership::new(Some(entry.log_id), membership);
            (None, News::default())
        }
    };
    // Before the answer: whoever has that finds the entry applied.
    shared.has_applied(index);
    match (answers, responder) {
        (Some(answers), Some(responder)) => answer(shared, answers, responder),
        (None, Some(responder)) => responder.send(Outcome::nothing()),
        (_, None) => {}
    }
    // After the answer: whoever waits for that waits for nothing else.
    news.tell(shared);
    Ok(())
}

/// An entry's commands and stamps.
struct Batch<C> {
    at: Position,
    bytes: u64,
    commands: Vec<C>,
}

fn decode<M: Codec>(bytes: Bytes, index: u64) -> io::Result<Batch<M::Command>> {
    let len = bytes.len() as u64;
    let malformed = |error: Malformed| {
        io::Error::new(io::ErrorKind::InvalidData, format!("cannot apply log entry {index}: {error}"))
    };
    let WireEntry::Commands(entry) = WireEntry::decode(bytes).map_err(malformed)? else {
        return Err(malformed(Malformed::Value("kind of entry")));
    };
    let at = Position { index, n: 0, elapsed: entry.elapsed(), wall: entry.wall() };
    // A collection of results knows no length, and would move what it has again and again.
    let mut commands = Vec::with_capacity(entry.commands.len());
    for command in entry.commands {
        commands.push(M::decode(command).map_err(malformed)?);
    }
    Ok(Batch { at, bytes: len, commands })
}

/// Replies, and the claims in them whose envelopes are only on disk: (result, claim, task).
struct Answers<R> {
    replies: Replies<R>,
    missing: Vec<(usize, usize, TaskId)>,
}

fn apply_batch<M: Codec>(
    shared: &Shared<M>,
    log_id: &crate::type_config::LogId,
    batch: Batch<M::Command>,
    is_proposed_here: bool,
) -> (Answers<M::Reply>, News) {
    let tells = shared.notices.receiver_count() > 0;
    let mut told = Vec::new();
    // Only the proposer has somebody to answer.
    let mut results = Vec::with_capacity(if is_proposed_here { batch.commands.len() } else { 0 });
    let mut claimed = Vec::new();
    let mut guard = shared.lock();
    let core = &mut *guard;
    let mut effects = std::mem::take(&mut core.effects);
    let mut slots = Vec::new();
    core.machine.foresee(&batch.commands, &mut slots);
    core.keep.foresee(&slots);
    for (n, command) in batch.commands.into_iter().enumerate() {
        let at = Position { n: n as u32, ..batch.at };
        let result = core.machine.apply(at, command, &mut effects);
        if is_proposed_here {
            results.push(result);
        }
        if tells {
            told.reserve(effects.as_slice().iter().filter(|effect| is_told(effect)).count());
        }
        for (slot, effect) in effects.drain() {
            if is_proposed_here && matches!(effect, Effect::Happened { event: Event::Claimed { .. }, .. }) {
                claimed.push(slot);
            }
            let rest = core.keep.take(at, slot, effect);
            if tells {
                told.extend(rest);
            }
        }
    }
    effects.shrink_to(EFFECTS_KEPT);
    core.effects = effects;
    let missing =
        if is_proposed_here { join_envelopes::<M>(core, &mut results, &claimed) } else { Vec::new() };
    core.applied = Some(*log_id);
    core.bytes_since_cut += batch.bytes;
    if batch.at.index.is_multiple_of(shared.hash_every) {
        let hash = core.machine.hash();
        core.hash_points.push(batch.at.index, hash);
        shared.teller.hashed(batch.at.index, hash);
    }
    shared.stamper.applied(log_id.committed_leader_id().term, core.machine.stamps());
    let next_due = core.machine.next_due();
    let has_due_moved = next_due != core.next_due;
    core.next_due = next_due;
    drop(guard);
    let answers = Answers { replies: Replies { index: batch.at.index, results }, missing };
    let Position { index, wall, .. } = batch.at;
    let notice =
        (!told.is_empty()).then(|| Notice { index, wall, is_leader: is_proposed_here, effects: told });
    (answers, News { notice, has_due_moved })
}

/// What an entry brought for others than its proposer.
#[derive(Default)]
struct News {
    notice: Option<Notice>,
    has_due_moved: bool,
}

impl News {
    fn tell<M>(self, shared: &Shared<M>) {
        if self.has_due_moved {
            shared.due_moved.notify_one();
        }
        if let Some(notice) = self.notice {
            // Nobody listening is no error.
            let _ = shared.notices.send(Heard::Notice(Arc::new(notice)));
        }
    }
}

/// Fills in the envelopes that are in memory, and says which are not. Where the tasks lie that were claimed just now is known in
/// the order of the replies; claims that a repeated request gets again are between them, and looked up.
fn join_envelopes<M: Codec>(
    core: &mut Core<M>,
    results: &mut [Result<M::Reply, Rejection>],
    claimed: &[Slot],
) -> Vec<(usize, usize, TaskId)> {
    let mut claimed = claimed.iter().copied().peekable();
    let mut missing = Vec::new();
    for (n, result) in results.iter_mut().enumerate() {
        let Some(claims) = result.as_mut().ok().and_then(M::claims) else { continue };
        for (i, claim) in claims.iter_mut().enumerate() {
            let near = claimed.peek().and_then(|&slot| core.keep.envelope(slot, claim.id));
            let envelope = if near.is_some() {
                claimed.next();
                near
            } else {
                let slot = core.machine.slot(claim.id);
                claimed.next_if(|claimed| Some(*claimed) == slot);
                slot.and_then(|slot| core.keep.envelope(slot, claim.id))
            };
            match envelope {
                Some(envelope) => claim.envelope = envelope,
                None => missing.push((n, i, claim.id)),
            }
            core.keep.claimed(claim.id);
        }
    }
    missing
}

fn answer<M: Codec>(shared: &Arc<Shared<M>>, answers: Answers<M::Reply>, responder: ApplyResponder<Types>) {
    if answers.missing.is_empty() {
        responder.send(Outcome::new(answers.replies));
        return;
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        let Answers { mut replies, missing } = answers;
        fill_in::<M>(&shared, &mut replies.results, &missing).await;
        responder.send(Outcome::new(replies));
    });
}

/// Reads envelopes back from the checkpoint into their claims. One that is damaged or not there comes from another
/// member; a claim whose envelope cannot be had is not given out.
async fn fill_in<M: Codec>(
    shared: &Arc<Shared<M>>,
    results: &mut [Result<M::Reply, Rejection>],
    missing: &[(usize, usize, TaskId)],
) {
    let keys: Vec<_> = missing.iter().map(|(_, _, task)| tables::key(*task)).collect();
    let reader = shared.clone();
    let rows = shared.reader.run(move || Ok(records::rows(&reader.store()?, tables::KEPT, &keys))).await;
    let envelopes = match rows {
        Ok(rows) => envelopes(shared, missing, rows).await,
        Err(error) => {
            tracing::error!(group = %shared.group, %error, "cannot read envelopes of claimed tasks");
            vec![Err(Withheld::ForNow); missing.len()]
        }
    };
    let mut withheld = Vec::new();
    for (&(n, i, _), envelope) in missing.iter().zip(envelopes) {
        let claims = results[n].as_mut().ok().and_then(M::claims).expect("this reply had claims before");
        match envelope {
            Ok(envelope) => claims[i].envelope = envelope,
            Err(why) => {
                tracing::error!(group = %shared.group, task = %claims[i].id, ?why, "a claimed task is not given out");
                withheld.extend(M::withheld(&claims[i], why));
            }
        }
    }
    // They come in order: each reply is looked at once.
    for some in missing.chunk_by(|(n, ..), (next, ..)| n == next) {
        let claims = results[some[0].0].as_mut().ok().and_then(M::claims);
        claims.expect("this reply had claims before").retain(|claim: &Claimed| !claim.envelope.is_empty());
    }
    if withheld.is_empty() {
        return;
    }
    let Some(settle) = shared.settle.get() else { return };
    for piece in propose::encode::<M>(&withheld) {
        // An inbox that is full or closed does not take it: the claim then stays until its hold ends.
        let _ = settle(piece);
    }
}

/// The envelopes of claimed tasks from their rows, or from another member.
async fn envelopes<M: Codec>(
    shared: &Arc<Shared<M>>,
    missing: &[(usize, usize, TaskId)],
    rows: Vec<storage::Result<Option<Bytes>>>,
) -> Vec<Result<Bytes, Withheld>> {
    let tasks: Vec<TaskId> = missing.iter().map(|(_, _, task)| *task).collect();
    let each = tasks.into_iter().zip(rows).map(|(task, row)| async move {
        // What cannot be read now may be there all the same.
        let (row, lost) = match row {
            Ok(row) => (row.ok_or_else(|| records::damaged(shared.group, task)), Withheld::ForGood),
            Err(error) => (Err(error), Withheld::ForNow),
        };
        let opened = row.and_then(|row| {
            let kept = seal::opened::<KeptMessage>(&tables::key(task), row);
            kept.and_then(|kept| kept.envelope).ok_or_else(|| records::damaged(shared.group, task))
        });
        let error = match opened {
            Ok(envelope) => return Ok(envelope),
            Err(error) => error,
        };
        tracing::error!(group = %shared.group, %error, "a claimed task's record is asked for at the other members");
        match mend::mend(shared, task, Wanted::Envelope).await {
            Ok(kept) => kept.and_then(|kept| kept.envelope).ok_or(lost),
            Err(_) => Err(Withheld::ForNow),
        }
    });
    futures::stream::iter(each).buffered(MENDS_AT_ONCE).collect().await
}
