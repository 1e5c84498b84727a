//! From commands to entries: stamp, gather, hand to the engine.
//!
//! Group commit: while entries are on their way to the disk, arriving commands gather here, and the next
//! entry takes them all. A call of many commands is one message in and one message back. Next:
//! `log_store`, where the entry goes, and `apply`, where the answer comes from.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use model::Rejection;
use model::limits::{ENTRY_BYTES_MAX, ENTRY_COMMANDS_MAX, REQUEST_BYTES_MAX};
use openraft::Instant as _;
use openraft::errors::ClientWriteError;
use openraft::raft::ClientWriteResult;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::apply::Replies;
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::look::not_leader;
use crate::machine_store::MachineStore;
use crate::quiet::{self, Quiet};
use crate::shared::Shared;
use crate::type_config::{EntryBytes, OnDone, Types};

/// Entries that may be on their way to the disk at once. More would make entries smaller, not faster: the writer
/// takes all that has come while it synced.
pub(crate) const ENTRIES_IN_FLIGHT_MAX: usize = 2;
/// With other members an entry of more calls than this goes alone: it costs every member its messages and a
/// sync, so that fewer and larger ones are faster. Small ones, when little is asked, need not wait.
const SMALL_CALLS_MAX: usize = 2;
/// With other members, an entry waits a moment for company when so many calls or more are about: those that wait,
/// and those that the last entry answered, whose callers are likely to ask again. Without it two crowds would take
/// turns, each with half of the entries' cost.
const CROWD_MIN: usize = 8;
/// The part of the crowd, in percent, that is enough to go.
const CROWD_PART: usize = 75;
/// How long it waits at most, as far as timers can tell.
const COMPANY_WAIT: Duration = Duration::from_millis(1);
/// Callers that did not come again for so long are not waited for.
const CROWD_AGE_MAX: Duration = Duration::from_millis(10);
/// Bytes of an entry that a single large command may make: a whole request, and what encoding adds. An
/// entry that the log refused would end the group.
const ENTRY_BYTES_LIMIT: usize = REQUEST_BYTES_MAX + 8 * 1024 * 1024;
/// Calls that may wait for an entry.
const INBOX_CALLS_MAX: usize = 16 * 1024;
/// Bytes of commands that may wait for an entry.
const INBOX_BYTES_MAX: usize = 64 * 1024 * 1024;
/// New work is refused when this part of either bound is taken: the rest is for what ends work.
const NEW_WORK_PART: usize = 2;
/// How long a stop waits for what is on its way to a disk that may be full.
pub(crate) const STOP_WAIT: Duration = Duration::from_secs(3);

/// A leader that has not heard a quorum for so long takes nothing in: it would only be in the way.
const QUORUM_SILENCE_MAX: Duration = Duration::from_secs(1);
/// How often a leader whose entries do not go through looks whether it still has a quorum.
const LEADER_LOOK: Duration = Duration::from_millis(100);

/// The engine of one group.
pub(crate) type Raft<M> = openraft::Raft<Types, MachineStore<M>>;

/// What became of a command: the index of its entry, and the machine's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied<R> {
    /// The entry's index.
    pub index: u64,
    /// The reply, or why not.
    pub outcome: Result<R, Rejection>,
}

/// Commands of one call, encoded, and who waits for their answers.
pub(crate) struct Part<R> {
    bytes: Bytes,
    commands: usize,
    reply: oneshot::Sender<Result<Vec<Applied<R>>>>,
}

/// Commands of one call, encoded once: as many as fit into one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The commands, as they stand in an entry.
    pub bytes: Bytes,
    /// How many.
    pub commands: u32,
    /// It is nothing but new work, which is refused first.
    pub is_new_work: bool,
}

impl Piece {
    fn too_large(&self) -> Option<Error> {
        let (bytes, bytes_max) = (self.bytes.len(), ENTRY_BYTES_LIMIT);
        (bytes > bytes_max).then_some(Error::TooLarge { bytes, bytes_max })
    }
}

/// Encodes the commands of one call: one piece, unless they are more than an entry takes.
pub(crate) fn encode<M: Codec>(commands: &[M::Command]) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(1);
    let mut part = BytesMut::new();
    let (mut count, mut is_new_work) = (0, true);
    for command in commands {
        if count == ENTRY_COMMANDS_MAX || part.len() >= ENTRY_BYTES_MAX {
            pieces.push(Piece { bytes: part.split().freeze(), commands: count as u32, is_new_work });
            (count, is_new_work) = (0, true);
        }
        M::encode(command, &mut part);
        count += 1;
        is_new_work &= M::is_new_work(command);
    }
    pieces.push(Piece { bytes: part.freeze(), commands: count as u32, is_new_work });
    pieces
}

/// A piece that another node encoded.
pub(crate) fn received<M: Codec>(bytes: Bytes) -> Result<Piece> {
    let commands = wire::entry::commands(bytes.clone()).map_err(Error::malformed)?;
    let (count, mut is_new_work) = (commands.len(), true);
    if count == 0 || count > ENTRY_COMMANDS_MAX {
        return Err(Error::malformed(format!("a piece of {count} commands")));
    }
    for command in commands {
        is_new_work &= M::is_new_work(&M::decode(command).map_err(Error::malformed)?);
    }
    Ok(Piece { bytes, commands: count as u32, is_new_work })
}

/// Where the answers to the commands of one piece come from.
type Answer<R> = oneshot::Receiver<Result<Vec<Applied<R>>>>;

/// How far the pieces of a call came.
pub(crate) struct Progress<R> {
    /// How many of them are done, from the first on.
    pub(crate) accepted: usize,
    /// Their answers.
    pub(crate) done: Vec<Applied<R>>,
    /// Why the next one is not. Unless its outcome is unknown, nothing of the rest happened.
    pub(crate) refusal: Option<Error>,
}

/// Sends pieces, all before any is awaited, so that they follow each other closely and in order. Ends at
/// the first that is refused: the rest must not happen without it.
pub(crate) async fn send_all<R>(inbox: &Inbox<R>, pieces: &[Piece], deadline: Instant) -> Progress<R> {
    let (mut sent, mut unsent) = (Vec::with_capacity(pieces.len()), None);
    if let Some(error) = pieces.iter().find_map(Piece::too_large) {
        return Progress { accepted: 0, done: Vec::new(), refusal: Some(error) };
    }
    for piece in pieces {
        // Once one was taken, the outcome is clearest if the others are too.
        let is_new_work = piece.is_new_work && sent.is_empty();
        match inbox.send(Piece { is_new_work, ..piece.clone() }) {
            Ok(answer) => sent.push(answer),
            Err(error) => {
                unsent = Some(error);
                break;
            }
        }
    }
    let mut progress = Progress { accepted: 0, done: Vec::new(), refusal: None };
    for answer in sent {
        let answer = match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            _ => Err(Error::Timeout),
        };
        match (answer, &progress.refusal) {
            (Ok(answers), None) => {
                progress.accepted += 1;
                progress.done.extend(answers);
            }
            (Err(error), None) => progress.refusal = Some(error),
            // One after it happened, or may have.
            (Ok(_) | Err(Error::Timeout), Some(_)) => progress.refusal = Some(Error::Timeout),
            (Err(_), Some(_)) => {}
        }
    }
    progress.refusal = progress.refusal.or(unsent);
    progress
}

/// Where commands wait for the next entry.
pub(crate) struct Inbox<R> {
    queue: mpsc::Sender<Part<R>>,
    load: Arc<Load>,
}

/// What waits for an entry, received or not.
#[derive(Default)]
struct Load {
    calls: AtomicUsize,
    bytes: AtomicUsize,
}

impl Load {
    fn less(&self, calls: usize, bytes: usize) {
        self.calls.fetch_sub(calls, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Whose calls the last entry answered: they are likely to ask again.
#[derive(Clone, Copy)]
struct Crowd {
    /// How many calls it had, and when it was made.
    calls: usize,
    made: Instant,
}

impl Crowd {
    /// How many of them are still counted on.
    fn now(self) -> usize {
        if self.made.elapsed() > CROWD_AGE_MAX { 0 } else { self.calls }
    }

    /// Whether more than one caller is about: an enqueue and the claim that it made for another are one.
    fn is_about(self) -> bool {
        self.now() > SMALL_CALLS_MAX
    }
}

/// The other end of an [`Inbox`].
pub(crate) struct Gatherer<R> {
    queue: mpsc::Receiver<Part<R>>,
    load: Arc<Load>,
    /// Those that were received and are in no entry yet.
    carried: VecDeque<Part<R>>,
    /// The last entry did not take them all.
    has_rest: bool,
}

/// An inbox and its other end.
pub(crate) fn inbox<R>() -> (Inbox<R>, Gatherer<R>) {
    let (sender, queue) = mpsc::channel(INBOX_CALLS_MAX);
    let load = Arc::<Load>::default();
    let gatherer = Gatherer { queue, load: load.clone(), carried: VecDeque::new(), has_rest: false };
    (Inbox { queue: sender, load }, gatherer)
}

impl<R> Inbox<R> {
    /// How many calls wait.
    pub(crate) fn waiting(&self) -> usize {
        self.load.calls.load(Ordering::Relaxed)
    }

    /// Hands commands over; the answer comes through what is returned.
    pub(crate) fn send(&self, piece: Piece) -> Result<Answer<R>> {
        let (reply, answer) = oneshot::channel();
        let len = piece.bytes.len();
        if let Some(error) = piece.too_large() {
            return Err(error);
        }
        let waiting = self.load.bytes.fetch_add(len, Ordering::Relaxed);
        let calls = self.load.calls.fetch_add(1, Ordering::Relaxed);
        let part = if piece.is_new_work { NEW_WORK_PART } else { 1 };
        let sent = match waiting > INBOX_BYTES_MAX / part || calls >= INBOX_CALLS_MAX / part {
            true => Err(Error::Full),
            false => self
                .queue
                .try_send(Part { bytes: piece.bytes, commands: piece.commands as usize, reply })
                .map_err(|error| match error {
                    mpsc::error::TrySendError::Full(_) => Error::Full,
                    mpsc::error::TrySendError::Closed(_) => Error::Stopped,
                }),
        };
        if let Err(error) = sent {
            self.load.less(1, len);
            return Err(error);
        }
        Ok(answer)
    }
}

impl<R> Gatherer<R> {
    /// Waits until there is something. Whether there is: not when the inbox is closed and empty.
    async fn any(&mut self, stop: &mut watch::Receiver<bool>, crowd: Crowd) -> bool {
        if self.carried.is_empty() {
            let first = self.first(stop).await;
            self.carried.extend(first);
            // Whoever is about to ask as well comes along. For one alone it would be a look at the sockets, and
            // another thread woken, for nothing.
            if crowd.is_about() {
                tokio::task::yield_now().await;
            }
        }
        !self.carried.is_empty()
    }

    /// How many calls wait.
    fn waiting(&self) -> usize {
        self.carried.len() + self.queue.len()
    }

    /// Whether no more would fit into the next entry.
    fn is_full(&self) -> bool {
        self.has_rest || self.load.bytes.load(Ordering::Relaxed) >= ENTRY_BYTES_MAX
    }

    /// Waits until `enough` calls wait, but not for long, and not for what would not fit.
    async fn company(&mut self, enough: usize) {
        let late = sleep(COMPANY_WAIT);
        tokio::pin!(late);
        while self.waiting() < enough && !self.is_full() {
            tokio::select! {
                biased;
                part = self.queue.recv() => match part {
                    Some(part) => self.carried.push_back(part),
                    // Nobody else will come.
                    None => return,
                },
                () = &mut late => return,
            }
        }
    }

    /// All that waits, up to one entry.
    fn gather(&mut self) -> Vec<Part<R>> {
        let mut parts = Vec::with_capacity(self.waiting());
        let (mut bytes, mut commands) = (0, 0);
        while let Some(part) = self.carried.pop_front().or_else(|| self.queue.try_recv().ok()) {
            let is_over =
                commands + part.commands > ENTRY_COMMANDS_MAX || bytes + part.bytes.len() > ENTRY_BYTES_MAX;
            if is_over && !parts.is_empty() {
                self.carried.push_front(part);
                break;
            }
            bytes += part.bytes.len();
            commands += part.commands;
            parts.push(part);
        }
        self.load.less(parts.len(), bytes);
        self.has_rest = !self.carried.is_empty();
        parts
    }

    async fn first(&mut self, stop: &mut watch::Receiver<bool>) -> Option<Part<R>> {
        tokio::select! {
            biased;
            part = self.queue.recv() => return part,
            _ = stop.wait_for(|stop| *stop) => self.queue.close(),
        }
        // Closed: nobody can send any more, what was sent is still done.
        self.queue.recv().await
    }

    /// Nothing more becomes an entry.
    fn refuse_rest(mut self) {
        self.queue.close();
        self.refuse_waiting(&Error::Stopped);
    }

    /// Nothing that waits now becomes an entry.
    fn refuse_waiting(&mut self, error: &Error) {
        let waiting = std::iter::from_fn(|| self.queue.try_recv().ok());
        let parts: Vec<_> = self.carried.drain(..).chain(waiting).collect();
        self.load.less(parts.len(), parts.iter().map(|part| part.bytes.len()).sum());
        self.has_rest = false;
        refuse(parts, error);
    }
}

/// Makes entries of what comes in, until told to stop and all that came is done; but a full disk does not
/// hold up the stop for longer than [`STOP_WAIT`].
pub(crate) async fn run<M: Codec>(
    raft: Raft<M>,
    shared: Arc<Shared<M>>,
    mut gatherer: Gatherer<M::Reply>,
    stop: watch::Receiver<bool>,
) {
    let mut stopped = stop.clone();
    let patience = async {
        // A replica that is dropped ends this task by itself.
        if stopped.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
        sleep(STOP_WAIT).await;
    };
    tokio::select! {
        () = make_entries(&raft, &shared, &mut gatherer, stop) => {}
        () = patience => {
            tracing::error!(group = %shared.group, "the log did not take all that came before the stop");
        }
    }
    gatherer.refuse_rest();
}

async fn make_entries<M: Codec>(
    raft: &Raft<M>,
    shared: &Shared<M>,
    gatherer: &mut Gatherer<M::Reply>,
    mut stop: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(ENTRIES_IN_FLIGHT_MAX));
    let mut crowd = Crowd { calls: 0, made: Instant::now() };
    while gatherer.any(&mut stop, crowd).await {
        let last = crowd.now();
        let is_small = last + gatherer.waiting() <= SMALL_CALLS_MAX;
        let share = if is_small || is_alone(raft) { 1 } else { ENTRIES_IN_FLIGHT_MAX as u32 };
        let permit = loop {
            tokio::select! {
                biased;
                permit = room.clone().acquire_many_owned(share) => break permit.expect("nobody closes this semaphore"),
                // Entries that no quorum takes may stay for ever; what waits behind them need not.
                () = sleep(LEADER_LOOK) => if let Some(error) = refusal(raft, &shared.quiet) { gatherer.refuse_waiting(&error) },
            }
        };
        let about = last + gatherer.waiting();
        if share > 1 && about >= CROWD_MIN {
            gatherer.company(about * CROWD_PART / 100).await;
        }
        let parts = gatherer.gather();
        crowd = Crowd { calls: parts.len(), made: Instant::now() };
        if !parts.is_empty() {
            propose(raft, shared, parts, permit).await;
        }
    }
    let _all = room.acquire_many(ENTRIES_IN_FLIGHT_MAX as u32).await;
}

/// Whether nobody else votes.
pub(crate) fn is_alone<M: Codec>(raft: &Raft<M>) -> bool {
    raft.voter_ids().nth(1).is_none()
}

/// Why nothing can become an entry now: another leads, or this one has lost its quorum.
fn refusal<M: Codec>(raft: &Raft<M>, quiet: &Quiet) -> Option<Error> {
    let leader = match raft.as_leader() {
        Ok(leader) => leader,
        Err(forward) => return Some(not_leader(&forward)),
    };
    let is_long = |silence: Duration| silence > QUORUM_SILENCE_MAX;
    let is_lost = is_long(leader.last_quorum_acked()?.elapsed())
        && !is_alone(raft)
        && quiet.agreed_age(leader.term()).is_none_or(is_long);
    is_lost.then_some(Error::Unavailable)
}

/// One entry, if this node leads.
async fn propose<M: Codec>(
    raft: &Raft<M>,
    shared: &Shared<M>,
    parts: Vec<Part<M::Reply>>,
    permit: OwnedSemaphorePermit,
) {
    if let Some(error) = refusal(raft, &shared.quiet) {
        return refuse(parts, &error);
    }
    if let Err(error) = quiet::stir(shared, raft).await {
        return refuse(parts, &error);
    }
    let term = match raft.as_leader() {
        Ok(leader) => leader.term(),
        Err(forward) => return refuse(parts, &not_leader(&forward)),
    };
    let stamps = shared.stamper.now(term);
    let bytes = wire::entry::assemble(stamps.elapsed, stamps.wall, parts.iter().map(|part| &part.bytes[..]));
    let done = OnDone { room: Some(permit), done: Box::new(move |result| finish(parts, result)) };
    // With this leader or not at all: the stamps are of its term.
    let written = raft.write(EntryBytes(bytes)).with_leader(term).responder(done).await;
    if let Err(error) = written {
        // The parts went with the responder: whoever waits hears that the outcome is unknown.
        tracing::warn!(%error, "the group's engine has stopped");
    }
}

fn finish<R: Send + 'static>(parts: Vec<Part<R>>, result: ClientWriteResult<Types>) {
    let error = match result {
        Ok(response) => match response.data.take::<Replies<R>>() {
            Some(replies) => return distribute(parts, replies),
            None => Error::Timeout,
        },
        Err(ClientWriteError::ForwardToLeader(forward)) => not_leader(&forward),
        // It was in this node's log, and may have reached another's.
        Err(ClientWriteError::LogEntryDiscarded(_)) => Error::Timeout,
        Err(_) => Error::Unavailable,
    };
    refuse(parts, &error);
}

fn distribute<R>(parts: Vec<Part<R>>, replies: Replies<R>) {
    let (index, mut results) = (replies.index, replies.results);
    // The last first: a claim that an enqueue made for one who waits stands right behind it, and has further to go.
    for part in parts.into_iter().rev() {
        let own = results.split_off(results.len().saturating_sub(part.commands));
        let answers = own.into_iter().map(|outcome| Applied { index, outcome }).collect();
        // Whoever asked may have gone; it happened all the same.
        let _ = part.reply.send(Ok(answers));
    }
}

fn refuse<R>(parts: Vec<Part<R>>, error: &Error) {
    for part in parts {
        let _ = part.reply.send(Err(error.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: usize, is_new_work: bool) -> Piece {
        Piece { bytes: Bytes::from(vec![0; bytes]), commands: 1, is_new_work }
    }

    #[test]
    fn new_work_is_refused_first_and_the_rest_last() {
        let mebibyte = 1024 * 1024;
        for (what, bytes, new, all) in [
            ("many calls", 1, INBOX_CALLS_MAX / 2, INBOX_CALLS_MAX),
            ("many bytes", mebibyte, 33, INBOX_BYTES_MAX / mebibyte + 1),
        ] {
            let (inbox, _gatherer) = inbox::<()>();
            let fill = |is_new_work| {
                let sent = std::iter::from_fn(|| inbox.send(piece(bytes, is_new_work)).ok());
                sent.count()
            };
            assert_eq!(fill(true), new, "{what}");
            assert_eq!(fill(false), all - new, "{what}");
            assert!(matches!(inbox.send(piece(bytes, false)), Err(Error::Full)), "{what}");
        }
    }

    #[tokio::test]
    async fn an_entry_does_not_wait_for_company_that_would_not_fit() {
        let (inbox, mut gatherer) = inbox::<()>();
        let mut answers = vec![inbox.send(piece(1, true)).unwrap()];
        assert!(futures::poll!(std::pin::pin!(gatherer.company(9))).is_pending(), "there is room");
        assert_eq!((inbox.waiting(), gatherer.waiting()), (1, 1), "who was received still waits");
        answers.extend((0..3).map(|_| inbox.send(piece(ENTRY_BYTES_MAX / 2, true)).unwrap()));
        assert!(futures::poll!(std::pin::pin!(gatherer.company(9))).is_ready(), "it is full");
        assert_eq!(gatherer.gather().len(), 2);
        assert_eq!(inbox.waiting(), 2);
        assert!(futures::poll!(std::pin::pin!(gatherer.company(9))).is_ready(), "some were left over");
        assert_eq!((gatherer.gather().len(), inbox.waiting()), (2, 0));
        assert!(futures::poll!(std::pin::pin!(gatherer.company(9))).is_pending());
    }

    /// Answers what waits, in order.
    fn answer(gatherer: &mut Gatherer<()>, answers: Vec<Result<()>>) {
        for answer in answers {
            let part = gatherer.queue.try_recv().unwrap();
            let applied = answer.map(|()| vec![Applied { index: 1, outcome: Ok(()) }]);
            part.reply.send(applied).unwrap();
        }
    }

    #[tokio::test]
    async fn pieces_after_a_refused_one_are_not_sent_and_nothing_is_called_undone_that_was_done() {
        let no_leader = || Err(Error::NotLeader { leader: None });
        let pieces = [piece(1, false), piece(1, false), piece(1, false)];
        for (what, room, answers, accepted, unknown) in [
            ("no room", 0, vec![], 0, false),
            ("room for one", 1, vec![Ok(())], 1, false),
            ("no leader", 3, vec![no_leader(), no_leader(), no_leader()], 0, false),
            ("a leader from the second on", 3, vec![no_leader(), Ok(()), Ok(())], 0, true),
            ("a leader until the second", 3, vec![Ok(()), no_leader(), no_leader()], 1, false),
        ] {
            let (inbox, mut gatherer) = inbox::<()>();
            let others: Vec<_> =
                (room..INBOX_CALLS_MAX).map(|_| inbox.send(piece(0, false)).unwrap()).collect();
            let soon = Instant::now() + Duration::from_secs(60);
            let answering = async {
                others.iter().for_each(|_| drop(gatherer.queue.try_recv().unwrap()));
                answer(&mut gatherer, answers);
                assert!(gatherer.queue.try_recv().is_err(), "{what}");
            };
            let (progress, ()) = tokio::join!(send_all(&inbox, &pieces, soon), answering);
            assert_eq!((progress.accepted, progress.done.len()), (accepted, accepted), "{what}");
            let refusal = progress.refusal.unwrap();
            assert_eq!(matches!(refusal, Error::Timeout), unknown, "{what}: {refusal}");
        }
    }
}
