//! A worker's held stream: signs of life that come on it, what the worker shall do, and what its end means.
//!
//! Whoever holds one is missed soon when it breaks: the session ends as closed, unless another stream took its place,
//! at whichever node, or this node stops. Next: `vouching.rs`, how an open stream speaks for its worker.

use std::sync::Arc;
use std::time::Duration;

use model::{FreedReason, Millis};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wire::gossip::{Edition, Wish};

use crate::call::{Answer, BeatAnswer};
use crate::error::Error;
use crate::inner::Inner;
use crate::session::{Asked, Session};
use crate::taken::Carried;

/// How long a broken stream may be replaced by another, here or elsewhere, before the session counts as
/// closed: its worker may have to try an address or two. With a commit, well within a second.
const REOPEN: Duration = Duration::from_millis(600);
/// Signs of life that come sooner after each other are one.
const HEARD_EVERY: Millis = Millis(50);

/// A worker's held stream.
pub struct SessionStream {
    inner: Arc<Inner>,
    session: Arc<Session>,
    edition: Edition,
    asked: watch::Receiver<Asked>,
    is_vouching: bool,
}

/// Rings when what a session's worker shall do may have changed. For whoever waits for much else beside it: one
/// wait lasts until it rings, however often the others come first.
pub struct SessionBell {
    asked: watch::Receiver<Asked>,
    stopping: CancellationToken,
}

impl SessionBell {
    /// Returns when it rings: then see [`SessionStream::now`].
    pub async fn rung(mut self) -> SessionBell {
        tokio::select! {
            // The session lives as long as whoever holds it, and asks.
            _ = self.asked.changed() => {}
            () = self.stopping.cancelled() => {}
        }
        self
    }
}

impl SessionStream {
    /// Takes the place of the stream before, wherever that is.
    pub(crate) fn open(inner: Arc<Inner>, session: Arc<Session>) -> SessionStream {
        let edition = session.next_stream(inner.node);
        inner.sessions.changed.add(session.id, false);
        let mut asked = session.subscribe();
        // The state as it is now is news to a new stream.
        asked.mark_changed();
        SessionStream { inner, session, edition, asked, is_vouching: false }
    }

    /// Notes a sign of life that came on the stream.
    pub fn heard(&self) {
        let now = self.inner.now();
        // Thousands a second are one: the clock that all share is not asked for each.
        let recently = Millis(now.0.saturating_sub(HEARD_EVERY.0));
        if self.session.heard_here_since(recently, now).is_none() {
            self.session.heard(now, self.inner.clock.wall());
        }
    }

    /// Lets the open stream speak for its worker while that holds nothing. For streams whose connection is asked
    /// now and then whether somebody is there.
    pub fn vouch(&mut self) {
        if !std::mem::replace(&mut self.is_vouching, true) {
            self.inner.sessions.vouching.begin(&self.session);
        }
    }

    /// Whether the session has ended.
    pub fn is_over(&self) -> bool {
        self.session.is_over()
    }

    /// Whether another stream of the session took the place of this one.
    pub fn is_replaced(&self) -> bool {
        !self.session.is_stream(self.edition)
    }

    /// A bell for [`SessionStream::now`].
    pub fn bell(&self) -> SessionBell {
        SessionBell { asked: self.asked.clone(), stopping: self.inner.stopping.clone() }
    }

    /// Notes that its worker wants no more tasks.
    pub fn drain(&self) {
        if self.session.ask(Wish::Drain) {
            self.inner.sessions.changed.add(self.session.id, false);
        }
    }

    /// Ends this session in order, and no other of its worker: its claims wait again, and no attempt is used up. How
    /// many there were. Goes on by itself when the caller goes away.
    pub async fn leave(&self) -> Result<Answer<u64>, Error> {
        let (inner, session) = (self.inner.clone(), self.session.clone());
        Carried::new(async move {
            let ended = inner.end_session(&session, FreedReason::Drained).await;
            // A life before this one that was lost and has nothing left is not worth a line any more.
            for before in inner.sessions.all_of(&session.name) {
                if before.is_over() && !inner.holds_claims(before.id) {
                    let _ = inner.end_session(&before, FreedReason::Drained).await;
                }
            }
            ended
        })
        .await
    }

    /// What the worker shall do, now and whenever that changes; nothing when the session has ended.
    pub async fn next(&mut self) -> Option<BeatAnswer> {
        tokio::select! {
            changed = self.asked.changed() => changed.ok()?,
            () = self.inner.stopping.cancelled() => return None,
        }
        self.now()
    }

    /// What the worker shall do now; nothing when the session has ended, or the node stops.
    pub fn now(&mut self) -> Option<BeatAnswer> {
        let asked = *self.asked.borrow_and_update();
        if asked.over.is_some() || asked.stream != self.edition || self.inner.stopping.is_cancelled() {
            return None;
        }
        let held = self.inner.claims_of(self.session.id);
        let cancel = held.iter().filter(|claim| claim.cancel_requested);
        Some(BeatAnswer {
            state: asked.state(),
            cancel: cancel.map(|claim| (claim.task, claim.fence)).collect(),
            lost: Vec::new(),
        })
    }
}

impl Drop for SessionStream {
    fn drop(&mut self) {
        if self.is_vouching {
            self.inner.sessions.vouching.end(self.session.id);
        }
        if self.inner.stopping.is_cancelled()
            || self.session.is_over()
            || !self.session.is_stream(self.edition)
        {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (inner, session, edition) = (self.inner.clone(), self.session.clone(), self.edition);
        runtime.spawn(self.inner.tasks.track_future(async move {
            tokio::select! {
                () = tokio::time::sleep(REOPEN) => {}
                () = inner.stopping.cancelled() => return,
            }
            if session.close(edition, inner.now()) {
                // Whoever leads a shard with claims of it decides, this node like any other.
                inner.sessions.changed.add(session.id, false);
                inner.sessions.alarms.add(session.id, false);
            }
        }));
    }
}
