//! When a worker that holds nothing shall beat next: its open stream speaks for it, so beats only show it that this node
//! still lives. Often where workers are few, seldom where they are many, and many at once: what a beat costs is that
//! somebody wakes for it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use model::SessionId;

use crate::app::App;

/// Where workers are few: one whose node stands still goes elsewhere this much later, and a second.
const SHORTEST: Duration = Duration::from_secs(5);
/// Where they are many. More often than a silent connection is asked whether it is there (`listen.rs`), so that who beats
/// is not asked.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
/// What a worker adds to the time between its beats and those of all others: about 330 beats a second.
const EACH: Duration = Duration::from_millis(3);
/// Beats come at multiples of this, as far as one time is the same to all.
const TICK: Duration = Duration::from_secs(1);
/// The part of the time between beats by which some beat sooner than others: those that came together would beat together
/// for ever.
const SPREAD: u64 = 4;

/// A stream, counted until it is dropped.
pub(super) struct Counted(App);

impl Counted {
    pub(super) fn new(app: App) -> Counted {
        app.work_streams.fetch_add(1, Ordering::Relaxed);
        Counted(app)
    }

    /// After how long its worker, which has this session, shall beat again.
    pub(super) fn beat_ms(&self, session: SessionId) -> u64 {
        let streams = self.0.work_streams.load(Ordering::Relaxed);
        until_beat(self.0.began.elapsed(), streams, session).as_millis() as u64
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.work_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

fn until_beat(now: Duration, streams: u32, session: SessionId) -> Duration {
    let between = EACH.saturating_mul(streams).clamp(SHORTEST, LONGEST);
    let sooner = TICK * (session.0 % u128::from(between.as_secs() / SPREAD + 1)) as u32;
    let latest = now + between - sooner;
    Duration::from_secs(latest.as_secs()) - now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_workers_beat_often_and_many_seldom_and_together() {
        for (streams, secs) in [(0, 5), (1, 5), (1_000, 5), (5_000, 15), (10_000, 30), (u32::MAX, 30)] {
            for (now, session) in [0, 1, 999, 1_000, 86_400_500].into_iter().zip([0, 1, 5, 7, u128::MAX]) {
                let now = Duration::from_millis(now);
                let until = until_beat(now, streams, SessionId(session));
                let what = format!("{streams} streams at {now:?}, session {session}: {until:?}");
                assert!(until <= Duration::from_secs(secs), "{what}");
                assert!(until > Duration::from_secs(secs - secs / SPREAD) - TICK, "{what}");
                assert_eq!((now + until).subsec_nanos(), 0, "{what}");
            }
        }
    }
}
