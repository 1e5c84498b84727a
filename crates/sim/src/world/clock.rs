//! A machine's clocks: simulated time, with what is wrong with them on this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use model::{Millis, WallTime};
use node::Clock;
use tokio::time::Instant;

/// What the clocks on the wall say when a run begins: the 15th of November 2025.
pub(crate) const WALL_START_MS: u64 = 1_763_208_000_000;

const MILLION: i128 = 1_000_000;

/// What is wrong with a machine's clocks.
#[derive(Default)]
pub(crate) struct Skew {
    /// How far the wall clock is off.
    pub(crate) offset_ms: AtomicI64,
    /// How much too fast both clocks run, in millionths.
    pub(crate) drift_ppm: AtomicI64,
}

/// The clocks of one life of a process.
pub(crate) struct SimClock {
    start: Instant,
    skew: Arc<Skew>,
}

impl SimClock {
    /// Starts counting now.
    pub(crate) fn new(skew: Arc<Skew>) -> SimClock {
        SimClock { start: Instant::now(), skew }
    }

    fn drifted(&self, millis: u128) -> u64 {
        let drift = i128::from(self.skew.drift_ppm.load(Ordering::Relaxed));
        (millis as i128 * (MILLION + drift) / MILLION) as u64
    }
}

impl Clock for SimClock {
    fn elapsed(&self) -> Millis {
        Millis(self.drifted(self.start.elapsed().as_millis()))
    }

    fn wall(&self) -> WallTime {
        let since = turmoil::sim_elapsed().unwrap_or_default();
        let right = WALL_START_MS + self.drifted(since.as_millis());
        WallTime::from_millis(right.saturating_add_signed(self.skew.offset_ms.load(Ordering::Relaxed)))
    }
}
