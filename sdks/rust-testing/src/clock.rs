//! A clock that a test moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::{Millis, WallTime};
use node::{Clock, SystemClock};
use tokio::sync::Notify;

/// The system's clock and a step ahead of it. Clones are the same clock.
#[derive(Clone)]
pub struct MovableClock(Arc<Ahead>);

struct Ahead {
    real: SystemClock,
    by_millis: AtomicU64,
    moved: Notify,
}

impl MovableClock {
    /// As late as it is.
    pub fn new() -> MovableClock {
        MovableClock(Arc::new(Ahead {
            real: SystemClock::new(),
            by_millis: AtomicU64::new(0),
            moved: Notify::new(),
        }))
    }

    /// It is that much later from now on.
    pub fn advance(&self, by: Duration) {
        self.0.by_millis.fetch_add(by.as_millis() as u64, Ordering::Relaxed);
        self.0.moved.notify_waiters();
    }
}

impl Default for MovableClock {
    fn default() -> MovableClock {
        MovableClock::new()
    }
}

impl Clock for MovableClock {
    fn elapsed(&self) -> Millis {
        Millis(self.0.real.elapsed().0 + self.0.by_millis.load(Ordering::Relaxed))
    }

    fn wall(&self) -> WallTime {
        self.0.real.wall().after(Millis(self.0.by_millis.load(Ordering::Relaxed)))
    }

    fn moved(&self) -> node::Moved<'_> {
        // Made here, not when it is first polled: a step between the two counts.
        Box::pin(self.0.moved.notified())
    }
}
