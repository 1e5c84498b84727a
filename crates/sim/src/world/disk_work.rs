//! Where blocking work runs: a while later, in the one thread there is.
//!
//! The while is what makes a crash find writes that are not synced: done at once, every write would be on the
//! disk before anything else could happen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use node::Executor;
use parking_lot::Mutex;

use super::dice::Dice;

/// How long a machine's disk takes.
pub(crate) struct Pace {
    /// The longest in ordinary times.
    usual_us: u64,
    /// So many times that, while the disk is slow.
    pub(crate) times: AtomicU64,
}

impl Pace {
    pub(crate) fn new(usual_us: u64) -> Pace {
        Pace { usual_us, times: AtomicU64::new(1) }
    }
}

/// Runs blocking work of one life of a process.
pub(crate) struct SimExecutor {
    pace: Arc<Pace>,
    dice: Mutex<Dice>,
}

impl SimExecutor {
    pub(crate) fn new(pace: Arc<Pace>, dice: Dice) -> SimExecutor {
        SimExecutor { pace, dice: Mutex::new(dice) }
    }

    fn run_in(delay: Duration, work: Box<dyn FnOnce() + Send>) {
        // A process that is going down starts nothing any more.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(delay).await;
                work();
            });
        }
    }
}

impl Executor for SimExecutor {
    fn spawn(&self, _name: &str, work: Box<dyn FnOnce() + Send>) {
        let usual = self.dice.lock().between(0, self.pace.usual_us);
        Self::run_in(Duration::from_micros(usual * self.pace.times.load(Ordering::Relaxed)), work);
    }

    fn has_threads(&self) -> bool {
        false
    }

    fn spawn_after(&self, _name: &str, delay: Duration, work: Box<dyn FnOnce() + Send>) {
        Self::run_in(delay, work);
    }
}
