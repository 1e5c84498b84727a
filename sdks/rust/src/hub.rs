//! Between the handlers and the stream's thread: what handlers said and the stream has not taken yet.
//!
//! Bounded by the slots: a running task ends once, waits for one extension at a time, and its progress is one note
//! that is overwritten.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::context::{Cancelled, Running};
use crate::error::{Error, TaskError, Verdict};

/// What a handler came to: its output as JSON (empty for nothing), or why there is none.
pub type Outcome = Result<Bytes, TaskError>;

/// Between the handlers and the stream.
#[derive(Default)]
pub(crate) struct Hub {
    inbox: Mutex<Inbox>,
    news: Notify,
    running: Mutex<BTreeMap<u64, Arc<Running>>>,
    pub(crate) ends: Ends,
}

/// How the handlers of this worker ended, counted since its start.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) done: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) given_back: AtomicU64,
    /// Their tasks were another's by then.
    pub(crate) lost: AtomicU64,
}

impl Ends {
    fn count(&self, running: &Running, outcome: &Outcome) {
        let counter = match outcome {
            _ if running.told() == Some(Cancelled::Lost) => &self.lost,
            Ok(_) => &self.done,
            Err(error) if running.is_stopping() && !error.is_fatal() => &self.given_back,
            Err(error) if matches!(error.verdict(), Verdict::Release(_)) => &self.given_back,
            Err(_) => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What handlers said.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) ended: Vec<Ended>,
    pub(crate) extends: Vec<ExtendWish>,
    /// Tasks with a new progress note.
    pub(crate) progress: Vec<u64>,
}

/// A handler that ended.
pub(crate) struct Ended {
    pub(crate) number: u64,
    pub(crate) outcome: Outcome,
}

/// A handler that wants to hold on.
pub(crate) struct ExtendWish {
    pub(crate) number: u64,
    pub(crate) hold: Duration,
    pub(crate) answer: oneshot::Sender<Result<(), Error>>,
}

impl Hub {
    /// A handler begins.
    pub(crate) fn begin(&self, running: Arc<Running>) {
        self.running.lock().insert(running.number, running);
    }

    /// A handler ended.
    pub(crate) fn end(&self, number: u64, outcome: Outcome) {
        if let Some(running) = self.running.lock().remove(&number) {
            self.ends.count(&running, &outcome);
        }
        self.inbox.lock().ended.push(Ended { number, outcome });
        self.news.notify_one();
    }

    pub(crate) fn extend(&self, wish: ExtendWish) {
        self.inbox.lock().extends.push(wish);
        self.news.notify_one();
    }

    pub(crate) fn progress(&self, number: u64) {
        self.inbox.lock().progress.push(number);
        self.news.notify_one();
    }

    /// Returns when there is something to take.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// All that was said since the last time.
    pub(crate) fn take(&self) -> Inbox {
        std::mem::take(&mut self.inbox.lock())
    }

    /// What runs, oldest first.
    pub(crate) fn running(&self) -> Vec<Arc<Running>> {
        self.running.lock().values().cloned().collect()
    }
}
