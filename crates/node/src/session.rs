//! One session: what its worker said last, and what it is asked to do.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{Fence, FreedReason, Millis, SessionId, TaskId, WallTime, WorkerName};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::call::{WorkerFacts, WorkerState};

/// A claim that a beat did not list is given back at the second such beat, but not sooner than this:
/// the answer to the claim may still be on its way.
const UNLISTED_FOR: Millis = Millis(500);

/// What a worker is asked to do, and what its streams are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) state: WorkerState,
    /// Why the session is over, if it is.
    pub(crate) over: Option<FreedReason>,
    /// Grows when a claim of it is to be cancelled.
    cancels: u64,
    /// Which of its streams counts.
    pub(crate) stream: u64,
}

/// One life of a worker.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) name: WorkerName,
    pub(crate) facts: RwLock<WorkerFacts>,
    asked: watch::Sender<Asked>,
    beat_at: AtomicU64,
    beat_wall: AtomicU64,
    unlisted: Mutex<HashMap<(TaskId, Fence), Millis>>,
}

impl Session {
    /// A session whose worker was heard just now.
    pub(crate) fn new(id: SessionId, facts: WorkerFacts, now: Millis, wall: WallTime) -> Session {
        let asked = Asked { state: WorkerState::Running, over: None, cancels: 0, stream: 0 };
        Session {
            id,
            name: facts.name.clone(),
            facts: RwLock::new(facts),
            asked: watch::Sender::new(asked),
            beat_at: AtomicU64::new(now.0),
            beat_wall: AtomicU64::new(wall.millis()),
            unlisted: Mutex::default(),
        }
    }

    /// The worker was heard.
    pub(crate) fn heard(&self, now: Millis, wall: WallTime) {
        self.beat_at.fetch_max(now.0, Ordering::Relaxed);
        self.beat_wall.store(wall.millis(), Ordering::Relaxed);
    }

    /// Its silence is counted from now on: nobody listened before.
    pub(crate) fn not_heard_before(&self, now: Millis) {
        self.beat_at.fetch_max(now.0, Ordering::Relaxed);
    }

    /// How long it was not heard.
    pub(crate) fn silent_for(&self, now: Millis) -> Millis {
        Millis(now.0.saturating_sub(self.beat_at.load(Ordering::Relaxed)))
    }

    /// When it was last heard.
    pub(crate) fn last_beat(&self) -> WallTime {
        WallTime::from_millis(self.beat_wall.load(Ordering::Relaxed))
    }

    /// What it is asked to do.
    pub(crate) fn state(&self) -> WorkerState {
        self.asked.borrow().state
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.asked.borrow().over.is_some()
    }

    /// Whether it may have more tasks.
    pub(crate) fn may_claim(&self) -> bool {
        let asked = *self.asked.borrow();
        asked.over.is_none() && asked.state == WorkerState::Running
    }

    /// Asks it to drain or to stop. A worker that was asked to stop is not asked to drain.
    pub(crate) fn ask(&self, state: WorkerState) {
        self.asked.send_if_modified(|asked| {
            let news = asked.over.is_none()
                && asked.state != state
                && !(asked.state == WorkerState::Stopping && state == WorkerState::Draining);
            if news {
                asked.state = state;
            }
            news
        });
    }

    /// Tells its streams that a claim of it is to be cancelled.
    pub(crate) fn tell_cancel(&self) {
        self.asked.send_modify(|asked| asked.cancels += 1);
    }

    /// Ends it. Whether it had not ended before.
    pub(crate) fn end(&self, reason: FreedReason) -> bool {
        self.asked.send_if_modified(|asked| {
            let news = asked.over.is_none();
            if news {
                asked.over = Some(reason);
                if matches!(reason, FreedReason::Silent | FreedReason::Closed) {
                    asked.state = WorkerState::Lost;
                }
            }
            news
        })
    }

    /// Takes the place of the stream before. The number of the new one.
    pub(crate) fn next_stream(&self) -> u64 {
        let mut number = 0;
        self.asked.send_modify(|asked| {
            asked.stream += 1;
            number = asked.stream;
        });
        number
    }

    /// Whether `stream` still counts.
    pub(crate) fn is_stream(&self, stream: u64) -> bool {
        self.asked.borrow().stream == stream
    }

    /// Told of every change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Asked> {
        self.asked.subscribe()
    }

    /// Returns when the worker may have no more tasks. Never for one without a session.
    pub(crate) async fn until_no_claims(session: Option<&Session>) {
        let Some(session) = session else { return std::future::pending().await };
        let mut asked = session.subscribe();
        // The sender lives as long as the session, which is borrowed here.
        let _ = asked.wait_for(|asked| asked.over.is_some() || asked.state != WorkerState::Running).await;
    }

    /// Returns when it has ended.
    pub(crate) async fn until_over(&self) {
        // The sender lives as long as the session, which is borrowed here.
        let _ = self.subscribe().wait_for(|asked| asked.over.is_some()).await;
    }

    /// Notes which of its claims a beat did not list. Those to be given back: the beat before did not
    /// list them either.
    pub(crate) fn unlisted(&self, missing: Vec<(TaskId, Fence)>, now: Millis) -> Vec<(TaskId, Fence)> {
        let mut unlisted = self.unlisted.lock();
        let before = std::mem::take(&mut *unlisted);
        let mut lost = Vec::new();
        for claim in missing {
            match before.get(&claim) {
                Some(since) if now.0.saturating_sub(since.0) >= UNLISTED_FOR.0 => lost.push(claim),
                Some(since) => drop(unlisted.insert(claim, *since)),
                None => drop(unlisted.insert(claim, now)),
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ShardId;

    fn session() -> Session {
        let facts = WorkerFacts::named(WorkerName::new("w1").unwrap());
        Session::new(SessionId(1), facts, Millis(0), WallTime::from_millis(0))
    }

    fn claim(n: u64) -> (TaskId, Fence) {
        (TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1), n), Fence(n))
    }

    #[test]
    fn a_claim_is_given_back_only_when_two_beats_in_a_row_do_not_list_it() {
        let session = session();
        assert!(session.unlisted(vec![claim(1)], Millis(1_000)).is_empty());
        assert!(session.unlisted(vec![], Millis(2_000)).is_empty(), "listed in between");
        assert!(session.unlisted(vec![claim(1), claim(2)], Millis(3_000)).is_empty());
        assert!(session.unlisted(vec![claim(2)], Millis(3_100)).is_empty(), "too soon after");
        assert_eq!(session.unlisted(vec![claim(1), claim(2)], Millis(4_000)), [claim(2)]);
    }

    #[test]
    fn a_session_ends_once() {
        let session = session();
        assert!(session.end(FreedReason::Silent));
        assert!(!session.end(FreedReason::Drained));
        assert_eq!(session.state(), WorkerState::Lost);
        assert!(!session.may_claim());
    }

    #[test]
    fn who_shall_stop_is_not_asked_to_drain() {
        let session = session();
        session.ask(WorkerState::Stopping);
        session.ask(WorkerState::Draining);
        assert_eq!(session.state(), WorkerState::Stopping);
    }
}
