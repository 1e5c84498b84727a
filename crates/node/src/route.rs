//! The way to a group's leader, wherever it is.
//!
//! Commands are encoded once and handed to the leader, here or over a link, and again to the next leader
//! while that is safe. What counts is what may have happened: a caller hears "nothing was changed" only when
//! nothing was, and whatever may have been done is done again only if that changes nothing (`repeat.rs`).
//! A read asks the leader how far the log is, waits until the copy here is as far, and looks at that.
//!
//! Next: `forward.rs`, the other side of the link.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use model::{MemberId, NodeId};
use parking_lot::Mutex;
use prost::Message;
use replica::{Applied, Piece, Replica};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use wire::peer::PeerKind;
use wire::reply::{ClaimHead, PieceMessage, Propose, ProposeAnswer, ReadIndex, ReadIndexAnswer, Refusal};

use crate::error::Error;
use crate::groups::told;
use crate::link::{LinkError, Links};
use crate::repeat::Routed;

/// How long a call waits for a leader before it says that there is none.
pub(crate) const LEADER_WAIT: Duration = Duration::from_secs(2);
/// How long a call that was begun waits for a leader, since it last reached one.
const BEGUN_WAIT: Duration = Duration::from_secs(3);
/// How long until a leader is asked again that said no; doubled up to the other.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(80);
/// A leader answers so much before the one who asked stops listening.
const ANSWER_EARLY: Duration = Duration::from_millis(50);
/// Bytes of commands that one call hands to another node: a frame takes them and what is around them.
const CALL_BYTES_MAX: usize = 44 * 1024 * 1024;

/// The way to the leaders of this node's groups. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Route {
    node: NodeId,
    links: Links,
    propose_timeout: Duration,
}

/// Commands of one call, encoded.
pub(crate) struct Call {
    pieces: Vec<Piece>,
    is_repeatable: bool,
    /// A claim that makes no entry when nothing is free.
    claim: Option<ClaimHead>,
    leader_wait: Duration,
}

impl Call {
    /// A call that does `commands`, in their order.
    pub(crate) fn new<M: Routed>(commands: &[M::Command]) -> Call {
        Call {
            pieces: Replica::<M>::encode(commands),
            is_repeatable: commands.iter().all(M::is_repeatable),
            claim: None,
            leader_wait: LEADER_WAIT,
        }
    }

    /// Makes no entry when the leader has nothing free.
    pub(crate) fn if_free(self, claim: ClaimHead) -> Call {
        Call { claim: Some(claim), ..self }
    }

    /// Waits so long for a leader.
    pub(crate) fn leader_wait(self, leader_wait: Duration) -> Call {
        Call { leader_wait, ..self }
    }
}

/// What became of a call's commands.
pub(crate) struct Proposed<R> {
    /// In their order.
    pub(crate) applied: Vec<Applied<R>>,
    /// So many of them, from the first on, were asked for once. The others may have been done by an earlier try too:
    /// an answer that says no to one of those does not say that nothing happened.
    pub(crate) sure: usize,
}

/// Why a try did not do all.
enum No {
    Refused(Refusal),
    /// This node itself cannot go on.
    Broken(Error),
}

/// What a try did.
struct Tried<R> {
    done: Vec<Applied<R>>,
    no: Option<No>,
}

impl<R> Tried<R> {
    fn refused(refusal: Refusal) -> Tried<R> {
        Tried { done: Vec::new(), no: Some(No::Refused(refusal)) }
    }
}

/// How a call stands after a refusal.
#[derive(Clone, Copy, Debug)]
struct Standing {
    is_repeatable: bool,
    /// Some of it was done, or may have been.
    is_touched: bool,
    /// There is time left to wait for a leader.
    is_patient: bool,
    /// There is time left for an answer.
    is_in_time: bool,
}

/// What follows from a refusal.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Nothing of the rest happened.
    AskAgain,
    /// Something may have happened, and it may happen again.
    Repeat,
    GiveUp(Error),
}

fn next(refusal: &Refusal, at: Standing) -> Next {
    // Nobody is told that nothing happened when something did, or may have.
    let give_up = |error| Next::GiveUp(if at.is_touched { Error::Timeout } else { error });
    match *refusal {
        Refusal::Unknown if at.is_repeatable && at.is_in_time => Next::Repeat,
        Refusal::Unknown => Next::GiveUp(Error::Timeout),
        Refusal::TooLarge { bytes, bytes_max } => give_up(Error::EntryTooLarge { bytes, bytes_max }),
        Refusal::Full if !at.is_touched => give_up(full()),
        Refusal::MemoryFull { bytes, bytes_max } if !at.is_touched => {
            give_up(Error::MemoryFull { bytes, bytes_max })
        }
        Refusal::DiskFull if !at.is_touched => give_up(Error::DiskFull),
        Refusal::Full
        | Refusal::MemoryFull { .. }
        | Refusal::DiskFull
        | Refusal::NotLeader { .. }
        | Refusal::Unavailable => match at.is_in_time && at.is_patient {
            true => Next::AskAgain,
            false => give_up(Error::Unavailable),
        },
    }
}

/// The sum over several groups, each of which says how much it changed. Who hears that nothing was changed may
/// believe it: when some changed something, or may have, nobody knows what all did.
pub(crate) fn sum_of(changed: Vec<Result<u64, Error>>) -> Result<u64, Error> {
    let is_touched = changed.iter().any(|some| matches!(some, Ok(1..) | Err(Error::Timeout)));
    let sum: Result<u64, Error> = changed.into_iter().sum();
    sum.map_err(|error| if is_touched { Error::Timeout } else { error })
}

pub(crate) fn full() -> Error {
    Error::TooManyRequests { what: "writes that wait for the log", max: None }
}

/// Whom to ask next, and when: a leader that says no is not asked again at once.
struct Asking<'a, M: Routed> {
    replica: &'a Replica<M>,
    seen: Option<(MemberId, u64)>,
    /// Who leads, by the word of one who does not.
    hint: Option<NodeId>,
    pause: Duration,
}

impl<'a, M: Routed> Asking<'a, M> {
    fn new(replica: &'a Replica<M>) -> Asking<'a, M> {
        Asking { replica, seen: None, hint: None, pause: PAUSE_MIN }
    }

    fn whom(&mut self) -> Option<NodeId> {
        self.seen = self.replica.leader();
        self.hint.or(self.seen.map(|(leader, _)| leader.node()))
    }

    /// Waits until it makes sense to ask again, not beyond `until`.
    async fn again(&mut self, refusal: &Refusal, asked: Option<NodeId>, until: Instant) {
        let was_hint = self.hint.take().is_some();
        if let Refusal::NotLeader { leader: Some(leader) } = *refusal
            && !was_hint
            && Some(NodeId(leader)) != asked
        {
            // One hint is followed at once; two that point at each other are not.
            self.hint = Some(NodeId(leader));
            return;
        }
        let pause = sleep(self.pause.min(until.saturating_duration_since(Instant::now())));
        tokio::select! {
            changed = self.replica.leader_changed(self.seen) => {
                match changed == self.seen {
                    // The engine has gone: nothing will change.
                    true => sleep(self.pause).await,
                    false => self.pause = PAUSE_MIN,
                }
            }
            () = pause => self.pause = (self.pause * 2).min(PAUSE_MAX),
        }
    }
}

impl Route {
    pub(crate) fn new(node: NodeId, links: Links, propose_timeout: Duration) -> Route {
        Route { node, links, propose_timeout }
    }

    /// Has the commands of `call` done by the group's leader, wherever it is. The answers come in their
    /// order.
    ///
    /// [`Error::Timeout`] means that nobody knows what was done; with every other error nothing was.
    pub(crate) async fn propose<M: Routed>(
        &self,
        replica: &Replica<M>,
        call: &Call,
    ) -> Result<Proposed<M::Reply>, Error> {
        let begin = Instant::now();
        let (deadline, mut patience) = (begin + self.propose_timeout, begin + call.leader_wait);
        let mut asking = Asking::new(replica);
        // How many were done before the first try of which nobody knows what it did.
        let (mut done, mut sure) = (Vec::new(), None);
        let mut rest = &call.pieces[..];
        loop {
            let asked = asking.whom();
            let Tried { done: some, no } = match asked {
                None => Tried::refused(Refusal::NotLeader { leader: None }),
                Some(node) if node == self.node => here(replica, rest, deadline).await,
                Some(node) => {
                    // The first try may have taken something, which is not free any more: only the log
                    // remembers.
                    let claim = call.claim.as_ref().filter(|_| sure.is_none());
                    // Boxed, as is the wait below: what is asked of this node itself would keep room for it, and each
                    // request's future is moved several times.
                    Box::pin(self.there(node, replica, rest, claim, deadline)).await
                }
            };
            rest = &rest[pieces_done(rest, some.len())..];
            let has_progressed = !some.is_empty();
            done.extend(some);
            let refusal = match no {
                None => return Ok(Proposed { sure: sure.unwrap_or(done.len()), applied: done }),
                Some(No::Broken(_)) if sure.is_some() || !done.is_empty() => return Err(Error::Timeout),
                Some(No::Broken(error)) => return Err(error),
                Some(No::Refused(refusal)) => refusal,
            };
            let now = Instant::now();
            if has_progressed || !matches!(refusal, Refusal::NotLeader { .. } | Refusal::Unavailable) {
                // A leader was reached. What was begun is worth more patience than what was not.
                patience = patience.max(now + BEGUN_WAIT);
            }
            let at = Standing {
                is_repeatable: call.is_repeatable,
                is_touched: sure.is_some() || !done.is_empty(),
                is_patient: now < patience,
                is_in_time: now < deadline,
            };
            match next(&refusal, at) {
                Next::AskAgain => {}
                Next::Repeat => sure = sure.or(Some(done.len())),
                Next::GiveUp(error) => return Err(error),
            }
            Box::pin(asking.again(&refusal, asked, patience.min(deadline))).await;
        }
    }

    /// One try at another node.
    async fn there<M: Routed>(
        &self,
        node: NodeId,
        replica: &Replica<M>,
        pieces: &[Piece],
        claim: Option<&ClaimHead>,
        deadline: Instant,
    ) -> Tried<M::Reply> {
        let bytes: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
        if bytes > CALL_BYTES_MAX {
            let (bytes, bytes_max) = (bytes as u64, CALL_BYTES_MAX as u64);
            return Tried::refused(Refusal::TooLarge { bytes, bytes_max });
        }
        let within = deadline.saturating_duration_since(Instant::now());
        let body = Propose {
            pieces: pieces.iter().map(piece_message).collect(),
            patience_ms: within.saturating_sub(ANSWER_EARLY).as_millis() as u64,
            claim: claim.cloned(),
        };
        let body = wire::bytes_of(&body);
        match self.links.call(node, PeerKind::Propose, replica.group(), body, within).await {
            Ok(answer) => understood::<M>(answer, pieces).unwrap_or_else(|error| {
                tracing::warn!(%node, group = %replica.group(), %error, "an answer that is not understood");
                Tried::refused(Refusal::Unknown)
            }),
            Err(LinkError::Unreached(_)) => Tried::refused(Refusal::Unavailable),
            // A refusal also comes when the other side goes down in the middle of it.
            Err(LinkError::Lost | LinkError::Refused(_)) => Tried::refused(Refusal::Unknown),
        }
    }

    /// Waits until the copy here has all that was answered before, by anybody.
    pub(crate) async fn linearize<M: Routed>(
        &self,
        replica: &Replica<M>,
        reads: &Arc<Reads>,
    ) -> Result<(), Error> {
        let until = Instant::now() + LEADER_WAIT;
        let ask = || {
            let (route, replica) = (self.clone(), replica.clone());
            async move { route.read_index(&replica).await }
        };
        let asked = timeout_at(until, reads.index(ask)).await;
        let index = asked.unwrap_or(Err(Error::Unavailable))?;
        if replica.applied() >= index {
            return Ok(());
        }
        let patience = until.saturating_duration_since(Instant::now());
        replica.wait_applied(index, patience).await.map_err(told)
    }

    /// Asks the leader which index a read must have seen.
    async fn read_index<M: Routed>(&self, replica: &Replica<M>) -> Result<u64, Error> {
        let until = Instant::now() + LEADER_WAIT;
        let mut asking = Asking::new(replica);
        loop {
            let asked = asking.whom();
            let answer = match asked {
                None => Err(No::Refused(Refusal::NotLeader { leader: None })),
                Some(node) if node == self.node => replica.read_index().await.map_err(no),
                Some(node) => self.index_of(node, replica, Hint::No, until).await.map_err(No::Refused),
            };
            let refusal = match answer {
                Ok(index) => return Ok(index),
                Err(No::Broken(error)) => return Err(error),
                Err(No::Refused(refusal)) => refusal,
            };
            if Instant::now() >= until {
                return Err(Error::Unavailable);
            }
            asking.again(&refusal, asked, until).await;
        }
    }

    /// Waits, not for long, until the copy here has what the leader has applied by now. Enough to see what
    /// this caller was told before by a leader that still is one, and cheap: no quorum is asked.
    pub(crate) async fn catch_up<M: Routed>(&self, replica: &Replica<M>, patience: Duration) {
        let Some((leader, _)) = replica.leader() else { return };
        if leader.node() == self.node {
            return;
        }
        let until = Instant::now() + patience;
        let index = timeout(patience, self.index_of(leader.node(), replica, Hint::Yes, until)).await;
        if let Ok(Ok(index)) = index {
            // One that is behind looks at what it has.
            let _ = replica.wait_applied(index, until.saturating_duration_since(Instant::now())).await;
        }
    }

    async fn index_of<M: Routed>(
        &self,
        node: NodeId,
        replica: &Replica<M>,
        hint: Hint,
        until: Instant,
    ) -> Result<u64, Refusal> {
        let within = until.saturating_duration_since(Instant::now());
        let body = ReadIndex { patience_ms: within.as_millis() as u64, is_hint: hint == Hint::Yes };
        let body = wire::bytes_of(&body);
        let answer = self.links.call(node, PeerKind::ReadIndex, replica.group(), body, within).await;
        let answer = answer.map_err(|_| Refusal::Unavailable)?;
        ReadIndexAnswer::decode(answer).map_err(|_| Refusal::Unavailable)?.outcome()
    }
}

/// Whether what the leader has applied is enough, without asking a quorum.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hint {
    Yes,
    No,
}

/// One try at this node's own replica.
async fn here<M: Routed>(replica: &Replica<M>, pieces: &[Piece], deadline: Instant) -> Tried<M::Reply> {
    let patience = deadline.saturating_duration_since(Instant::now());
    let (done, error) = replica.propose_pieces(pieces, patience).await;
    Tried { done, no: error.map(no) }
}

fn no(error: replica::Error) -> No {
    match error {
        replica::Error::Storage { .. } => No::Broken(told(error)),
        error => No::Refused(refusal_of(error)),
    }
}

/// What a replica could not do, as another node is told.
pub(crate) fn refusal_of(error: replica::Error) -> Refusal {
    match error {
        replica::Error::NotLeader { leader } => Refusal::NotLeader { leader: leader.map(|node| node.0) },
        // One that stops has handed its leadership over, or is about to.
        replica::Error::Unavailable | replica::Error::Stopped => Refusal::Unavailable,
        replica::Error::Full => Refusal::Full,
        replica::Error::TooLarge { bytes, bytes_max } => {
            Refusal::TooLarge { bytes: bytes as u64, bytes_max: bytes_max as u64 }
        }
        replica::Error::Timeout
        | replica::Error::Storage { .. }
        | replica::Error::Members { .. }
        | replica::Error::Malformed { .. } => Refusal::Unknown,
    }
}

fn piece_message(piece: &Piece) -> PieceMessage {
    PieceMessage { bytes: piece.bytes.clone(), commands: piece.commands, is_new_work: piece.is_new_work }
}

/// What another node answered to these.
fn understood<M: Routed>(answer: Bytes, pieces: &[Piece]) -> Result<Tried<M::Reply>, wire::entry::Malformed> {
    let answer = ProposeAnswer::decode(answer)?;
    let refusal = answer.refusal();
    let done: Vec<_> = answer.done.into_iter().map(M::from_message).collect::<Result<_, _>>()?;
    let whole = &pieces[..pieces_done(pieces, done.len())];
    let is_whole = done.len() == whole.iter().map(|piece| piece.commands as usize).sum::<usize>();
    if !is_whole || (whole.len() < pieces.len() && refusal.is_none()) {
        return Err(wire::entry::Malformed::Value("number of answers"));
    }
    Ok(Tried { done, no: refusal.map(No::Refused) })
}

/// How many pieces so many answers are, from the first on.
fn pieces_done(pieces: &[Piece], mut answers: usize) -> usize {
    let is_done = |piece: &&Piece| {
        let commands = piece.commands as usize;
        let is_done = answers >= commands;
        answers = answers.saturating_sub(commands);
        is_done
    };
    pieces.iter().take_while(is_done).count()
}

type Asked = Shared<BoxFuture<'static, Result<u64, Error>>>;

/// Reads of one group that ask the leader together: those that come while one asks wait for the next. One that
/// has begun to ask may know less than a later one must see.
#[derive(Default)]
pub(crate) struct Reads {
    /// Has not begun to ask.
    queued: Mutex<Option<Asked>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Reads {
    /// The outcome of an `ask` that begins after this call.
    fn index<F>(self: &Arc<Reads>, ask: impl FnOnce() -> F) -> Asked
    where
        F: Future<Output = Result<u64, Error>> + Send + 'static,
    {
        let mut queued = self.queued.lock();
        if let Some(asked) = &*queued {
            return asked.clone();
        }
        let (reads, ask) = (self.clone(), ask());
        let asked = async move {
            let _turn = reads.turn.lock().await;
            reads.queued.lock().take();
            ask.await
        };
        queued.insert(asked.boxed().shared()).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn standing(text: &str) -> Standing {
        let has = |word| text.split(' ').any(|other| other == word);
        Standing {
            is_repeatable: has("repeatable"),
            is_touched: has("touched"),
            is_patient: has("patient"),
            is_in_time: has("in_time"),
        }
    }

    #[test]
    fn nobody_is_told_that_nothing_happened_when_something_may_have() {
        let give_up = Next::GiveUp;
        let not_leader = Refusal::NotLeader { leader: Some(2) };
        for (refusal, at, expected) in [
            // Nothing happened.
            (not_leader.clone(), "patient in_time", Next::AskAgain),
            (not_leader.clone(), "in_time", give_up(Error::Unavailable)),
            (not_leader.clone(), "", give_up(Error::Unavailable)),
            (Refusal::Unavailable, "patient in_time", Next::AskAgain),
            (Refusal::Unavailable, "in_time repeatable", give_up(Error::Unavailable)),
            (Refusal::Full, "patient in_time", give_up(full())),
            (Refusal::DiskFull, "patient in_time", give_up(Error::DiskFull)),
            // It may have.
            (Refusal::Unknown, "patient in_time", give_up(Error::Timeout)),
            (Refusal::Unknown, "patient in_time repeatable", Next::Repeat),
            (Refusal::Unknown, "in_time repeatable touched", Next::Repeat),
            (Refusal::Unknown, "repeatable", give_up(Error::Timeout)),
            // Nothing of the rest did, but something before it, or in an earlier try.
            (not_leader.clone(), "patient in_time touched", Next::AskAgain),
            (not_leader.clone(), "in_time touched", give_up(Error::Timeout)),
            (not_leader, "touched", give_up(Error::Timeout)),
            (Refusal::Unavailable, "touched repeatable", give_up(Error::Timeout)),
            (Refusal::Full, "patient in_time touched", Next::AskAgain),
            (Refusal::TooLarge { bytes: 2, bytes_max: 1 }, "in_time touched", give_up(Error::Timeout)),
        ] {
            assert_eq!(next(&refusal, standing(at)), expected, "{refusal:?} {at}");
        }
    }

    #[test]
    fn a_sum_that_is_not_whole_is_unknown_when_something_may_have_changed() {
        let (unavailable, timeout) = (|| Err(Error::Unavailable), || Err(Error::Timeout));
        for (changed, expected) in [
            (vec![], Ok(0)),
            (vec![Ok(2), Ok(0), Ok(3)], Ok(5)),
            (vec![unavailable(), Ok(0), Err(Error::DiskFull)], unavailable()),
            (vec![unavailable(), Ok(1)], timeout()),
            (vec![unavailable(), timeout()], timeout()),
        ] {
            assert_eq!(sum_of(changed.clone()), expected, "{changed:?}");
        }
    }

    #[test]
    fn only_whole_pieces_are_done() {
        let piece = |commands| Piece { bytes: Bytes::new(), commands, is_new_work: false };
        let pieces = [piece(2), piece(1), piece(3)];
        for (answers, expected) in [(0, 0), (1, 0), (2, 1), (3, 2), (5, 2), (6, 3)] {
            assert_eq!(pieces_done(&pieces, answers), expected, "{answers}");
        }
    }

    #[tokio::test]
    async fn reads_that_come_while_one_asks_share_the_next() {
        let reads = Arc::new(Reads::default());
        let asks = Arc::new(AtomicU64::new(0));
        let (open, gate) = tokio::sync::watch::channel(false);
        let ask = || {
            let (asks, mut gate) = (asks.clone(), gate.clone());
            async move {
                let number = asks.fetch_add(1, Ordering::Relaxed) + 1;
                gate.wait_for(|open| *open).await.unwrap();
                Ok(number)
            }
        };
        let mut first = reads.index(ask);
        assert!(futures::poll!(&mut first).is_pending());
        let later: Vec<_> = (0..5).map(|_| reads.index(ask)).collect();
        open.send_replace(true);
        let (first, later) = tokio::join!(first, futures::future::join_all(later));
        assert_eq!(first, Ok(1));
        assert!(later.iter().all(|index| *index == Ok(2)), "{later:?}");
        assert_eq!(reads.index(ask).await, Ok(3), "one that comes later asks anew");
    }
}
