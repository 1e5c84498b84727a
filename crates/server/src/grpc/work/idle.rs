//! When a worker that holds nothing shall beat next: its open stream speaks for it, so beats only show it that this node
//! still lives. Often where workers are few, seldom where they are many, and many at once: what a beat costs is that
//! somebody wakes for it.

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
/// Beats come at multiples of this, as far as one time is the same to all.
const TICK: Duration = Duration::from_secs(1);

/// A stream, counted until it is dropped.
pub(super) struct Counted(App);

impl Counted {
    pub(super) fn new(app: App) -> Counted {
        app.work_streams.fetch_add(1, Ordering::Relaxed);
        Counted(app)
    }

    /// After how long its worker shall beat again.
    pub(super) fn beat_ms(&self) -> u64 {
        let streams = self.0.work_streams.load(Ordering::Relaxed);
        until_beat(self.0.began.elapsed(), streams).as_millis() as u64
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.work_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

fn until_beat(now: Duration, streams: u32) -> Duration {
    let latest = now + EACH.saturating_mul(streams).clamp(SHORTEST, LONGEST);
    let ticks = latest.as_secs() / TICK.as_secs();
    TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX)).saturating_sub(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_workers_beat_often_and_many_seldom_and_together() {
        for (streams, secs) in [(0, 5), (1, 5), (1_000, 5), (5_000, 15), (10_000, 30), (u32::MAX, 30)] {
            for now in [0, 1, 999, 1_000, 86_400_500].map(Duration::from_millis) {
                let until = until_beat(now, streams);
                assert!(until <= Duration::from_secs(secs), "{streams} streams at {now:?}");
                assert!(until > Duration::from_secs(secs) - TICK, "{streams} streams at {now:?}");
                assert_eq!((now + until).subsec_nanos(), 0, "{streams} streams at {now:?}");
            }
        }
    }
}
