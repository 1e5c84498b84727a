//! How often a worker that holds nothing shall beat: its open stream speaks for it, so beats only show it that this node
//! still lives. Often where workers are few, seldom where they are many: all of them together cost the same.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::app::App;

/// Where workers are few: one whose node stands still goes elsewhere this much later, and a second.
const SHORTEST: Duration = Duration::from_secs(5);
/// Where they are many. More often than a silent connection is asked whether it is there (`listen.rs`), so that who beats
/// is not asked.
const LONGEST: Duration = Duration::from_secs(30);
/// What a worker adds to the time between its beats and those of all others: about 330 beats a second.
const EACH: Duration = Duration::from_millis(3);

/// A stream, counted until it is dropped.
pub(super) struct Counted(App);

impl Counted {
    pub(super) fn new(app: App) -> Counted {
        app.work_streams.fetch_add(1, Ordering::Relaxed);
        Counted(app)
    }

    /// How often its worker shall beat, as of now.
    pub(super) fn beat_ms(&self) -> u64 {
        between_beats(self.0.work_streams.load(Ordering::Relaxed)).as_millis() as u64
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.work_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

fn between_beats(streams: u32) -> Duration {
    EACH.saturating_mul(streams).clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_workers_beat_often_and_many_together_no_more_than_some_hundred_times_a_second() {
        for (streams, secs) in [(0, 5), (1, 5), (1_000, 5), (5_000, 15), (10_000, 30), (u32::MAX, 30)] {
            assert_eq!(between_beats(streams), Duration::from_secs(secs), "{streams} streams");
        }
    }
}
