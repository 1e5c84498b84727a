//! Those who wait for a task's end, woken by it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use model::{Event, StateKind, TaskId};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Who waits for which task.
#[derive(Default)]
pub(crate) struct Ends {
    waiting: Mutex<HashMap<TaskId, (Arc<Notify>, usize)>>,
    /// How many tasks are waited for: the usual none costs no lock.
    count: AtomicUsize,
}

/// One who waits; leaves when dropped.
pub(crate) struct EndWait<'a> {
    ends: &'a Ends,
    task: TaskId,
    /// Woken at the task's end, or when something may have been missed.
    pub(crate) notify: Arc<Notify>,
}

impl Ends {
    /// Waits for `task` from now on. Look at the task after this, not before: an end in between would
    /// be missed.
    pub(crate) fn wait(&self, task: TaskId) -> EndWait<'_> {
        let mut waiting = self.waiting.lock();
        let entry = waiting.entry(task).or_default();
        entry.1 += 1;
        let notify = entry.0.clone();
        self.count.store(waiting.len(), Ordering::SeqCst);
        EndWait { ends: self, task, notify }
    }

    /// Tells of an event of a task.
    pub(crate) fn happened(&self, task: TaskId, event: &Event) {
        if self.count.load(Ordering::SeqCst) == 0 || !state_after(event).is_some_and(StateKind::is_ended) {
            return;
        }
        if let Some((notify, _)) = self.waiting.lock().get(&task) {
            notify.notify_waiters();
        }
    }

    /// Wakes everybody: something may have been missed.
    pub(crate) fn wake_all(&self) {
        for (notify, _) in self.waiting.lock().values() {
            notify.notify_waiters();
        }
    }
}

impl Drop for EndWait<'_> {
    fn drop(&mut self) {
        let mut waiting = self.ends.waiting.lock();
        if let Some(entry) = waiting.get_mut(&self.task) {
            entry.1 -= 1;
            if entry.1 == 0 {
                waiting.remove(&self.task);
            }
        }
        self.ends.count.store(waiting.len(), Ordering::SeqCst);
    }
}

/// The state that an event led to, if it says.
pub(crate) fn state_after(event: &Event) -> Option<StateKind> {
    match event {
        Event::Acked { .. } => Some(StateKind::Done),
        Event::Enqueued { state }
        | Event::Requeued { state }
        | Event::Freed { state, .. }
        | Event::Failed { state, .. }
        | Event::Ended { state, .. } => Some(*state),
        Event::BecameReady => Some(StateKind::Ready),
        Event::BecameDelayed => Some(StateKind::Delayed),
        Event::Claimed { .. } => Some(StateKind::Claimed),
        Event::CancelRequested => None,
    }
}
