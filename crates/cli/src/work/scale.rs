//! How many workers a pool wants: a pure function of what it saw.
//!
//! It rises when tasks have waited for longer than a moment, or at once when there is no worker at all, and at most
//! doubles in a second. It falls only when the most that was needed in the whole cool-down was less than there is,
//! by half at most, and not twice in a quarter of it. So a load that goes up and down within the cool-down keeps its
//! workers.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Tasks may wait this long before there are more workers.
const PATIENCE: Duration = Duration::from_secs(2);
/// The number doubles no more often than this.
const RISE_EVERY: Duration = Duration::from_secs(1);
/// Samples that are kept; the oldest go first.
const SAMPLES_MAX: usize = 10_000;

/// What a pool keeps to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) min: usize,
    pub(super) max: usize,
    /// Slots of one worker.
    pub(super) slots: u32,
    /// How long less must be enough before there are fewer workers.
    pub(super) cool_down: Duration,
}

/// What was seen at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    /// Tasks that wait for a worker.
    pub(super) ready: u64,
    /// How long the oldest of them has waited.
    pub(super) oldest: Duration,
    /// Slots of ours that are in use.
    pub(super) busy: u64,
    /// Workers that we wanted then.
    pub(super) workers: usize,
}

/// What was seen since a while, oldest first.
pub(super) struct History {
    limits: Limits,
    samples: VecDeque<Sample>,
}

impl History {
    pub(super) fn new(limits: Limits) -> History {
        History { limits, samples: VecDeque::new() }
    }

    /// Adds a sample, which is later than all others.
    pub(super) fn push(&mut self, sample: Sample) {
        self.samples.push_back(sample);
        let window = self.limits.cool_down.max(PATIENCE).max(RISE_EVERY);
        // One that is older than the window shows that there is no gap at its beginning.
        while self.samples.len() > SAMPLES_MAX
            || self.samples.get(1).is_some_and(|second| sample.at - second.at >= window)
        {
            self.samples.pop_front();
        }
    }

    /// What was seen in this time before `now`; nothing if it does not reach so far back.
    fn since(&self, now: Instant, window: Duration) -> Option<impl Iterator<Item = &Sample>> {
        let reaches = self.samples.front().is_some_and(|first| now - first.at >= window);
        reaches.then(|| self.samples.iter().filter(move |sample| now - sample.at <= window))
    }

    /// How many workers would have been busy then.
    fn need(&self, sample: &Sample) -> usize {
        let workers = (sample.busy + sample.ready).div_ceil(u64::from(self.limits.slots.max(1)));
        usize::try_from(workers).unwrap_or(usize::MAX)
    }
}

/// How many workers there should be.
pub(super) fn wanted(history: &History, now: Instant) -> usize {
    let Limits { min, max, .. } = history.limits;
    let workers = match history.samples.back() {
        None => 0,
        Some(last) => more(history, last, now).or_else(|| fewer(history, last)).unwrap_or(last.workers),
    };
    workers.clamp(min, max)
}

/// More, if tasks wait for workers.
fn more(history: &History, last: &Sample, now: Instant) -> Option<usize> {
    let need = match last.ready {
        0 => return None,
        _ if last.workers == 0 || last.oldest >= PATIENCE => history.need(last),
        // They come and go: what was needed all the time counts.
        _ => history.since(now, PATIENCE)?.map(|sample| history.need(sample)).min()?,
    };
    let recent = history.samples.iter().filter(|sample| now - sample.at < RISE_EVERY);
    let before = recent.map(|sample| sample.workers).min().unwrap_or(last.workers);
    let risen = need.min((2 * before).max(1));
    (risen > last.workers).then_some(risen)
}

/// Fewer, if there were too many for a whole cool-down.
fn fewer(history: &History, last: &Sample) -> Option<usize> {
    let cool_down = history.limits.cool_down;
    let need = history.since(last.at, cool_down)?.map(|sample| history.need(sample)).max()?;
    let has_settled = history.since(last.at, cool_down / 4)?.all(|sample| sample.workers == last.workers);
    let fallen = need.max(last.workers / 2);
    (has_settled && fallen < last.workers).then_some(fallen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(500);
    const COOL_DOWN: Duration = Duration::from_secs(30);

    /// A pool that sees what a test shows it, twice a second.
    struct Pool {
        history: History,
        start: Instant,
        now: Instant,
        workers: usize,
    }

    impl Pool {
        fn new(min: usize, max: usize) -> Pool {
            let (limits, start) = (Limits { min, max, slots: 4, cool_down: COOL_DOWN }, Instant::now());
            Pool { history: History::new(limits), start, now: start, workers: min }
        }

        /// Sees this load for so long; the numbers of workers that it wanted one after the other, each once.
        fn sees(&mut self, secs: u64, load: impl Fn(u64) -> (u64, u64, u64)) -> Vec<usize> {
            let mut wanted_then = vec![self.workers];
            for tick in 0..secs * 2 {
                self.now += TICK;
                let (ready, oldest_ms, busy) = load(tick);
                let oldest = Duration::from_millis(oldest_ms);
                self.history.push(Sample { at: self.now, ready, oldest, busy, workers: self.workers });
                self.workers = wanted(&self.history, self.now);
                if wanted_then.last() != Some(&self.workers) {
                    wanted_then.push(self.workers);
                }
            }
            wanted_then
        }

        fn secs(&self) -> u64 {
            (self.now - self.start).as_secs()
        }
    }

    #[test]
    fn it_rises_fast_by_doubling_and_keeps_to_the_maximum() {
        let mut pool = Pool::new(1, 6);
        assert_eq!(pool.sees(6, |_| (1_000, 3_000, 4)), [1, 2, 4, 6]);
        assert_eq!(pool.sees(60, |_| (1_000, 3_000, 24)), [6]);
    }

    #[test]
    fn it_wants_no_more_workers_than_there_are_tasks() {
        let mut pool = Pool::new(0, 100);
        assert_eq!(pool.sees(20, |_| (9, 3_000, 0)), [0, 1, 2, 3]);
    }

    #[test]
    fn from_zero_one_task_is_enough_at_once_and_it_goes_back_to_zero() {
        let mut pool = Pool::new(0, 8);
        assert_eq!(pool.sees(60, |_| (0, 0, 0)), [0]);
        let began = pool.now;
        assert_eq!(pool.sees(1, |_| (1, 10, 0)), [0, 1]);
        assert!(pool.now - began <= 2 * TICK);
        assert_eq!(pool.sees(20, |_| (0, 0, 1)), [1], "it runs");
        assert_eq!(pool.sees(29, |_| (0, 0, 0)), [1], "it cools down");
        assert_eq!(pool.sees(3, |_| (0, 0, 0)), [1, 0]);
        assert_eq!(pool.sees(1, |_| (1, 10, 0)), [0, 1], "and comes back");
    }

    #[test]
    fn it_falls_slowly_by_half_at_a_time_and_keeps_to_the_minimum() {
        let mut pool = Pool::new(2, 16);
        pool.sees(10, |_| (1_000, 5_000, 8));
        assert_eq!(pool.workers, 16);
        let began = pool.secs();
        assert_eq!(pool.sees(29, |_| (0, 0, 0)), [16]);
        assert_eq!(pool.sees(60, |_| (0, 0, 0)), [16, 8, 4, 2]);
        assert_eq!(pool.sees(600, |_| (0, 0, 0)), [2]);
        assert!(pool.secs() - began > 30);
    }

    #[test]
    fn a_load_that_is_steady_or_goes_up_and_down_within_the_cool_down_keeps_its_workers() {
        // From 5 to 20 slots in use, with a few tasks that wait for a moment.
        let noise = |tick: u64| (tick.wrapping_mul(6_364_136_223_846_793_005) >> 33) % 16;
        let mut pool = Pool::new(0, 100);
        pool.sees(120, |tick| (noise(tick + 1) % 4, 40, 5 + noise(tick)));
        let settled = pool.workers;
        assert!((1..=6).contains(&settled), "{settled}");
        assert_eq!(pool.sees(3_600, |tick| (noise(tick + 1) % 4, 40, 5 + noise(tick))), [settled]);
        // Bursts every 20 s.
        let bursts = |tick: u64| if tick % 40 < 10 { (40, 4_000, 16) } else { (0, 0, 0) };
        pool.sees(60, bursts);
        let settled = pool.workers;
        assert_eq!(pool.sees(3_600, bursts), [settled]);
    }

    #[test]
    fn a_moment_of_waiting_brings_no_worker_and_two_seconds_of_it_do() {
        let mut pool = Pool::new(1, 8);
        assert_eq!(pool.sees(60, |tick| if tick % 4 == 0 { (9, 100, 4) } else { (0, 0, 4) }), [1]);
        // Each is soon served, but there are always some.
        assert_eq!(pool.sees(3, |_| (3, 100, 4)), [1, 2]);
    }

    #[test]
    fn what_was_seen_long_ago_changes_nothing() {
        let mut pool = Pool::new(0, 8);
        assert_eq!(wanted(&pool.history, pool.now), 0);
        pool.sees(10, |_| (1_000, 5_000, 8));
        assert_eq!(wanted(&pool.history, pool.now + 10 * COOL_DOWN), 8, "no news are no reason to fall");
    }

    #[test]
    fn history_is_bounded() {
        let mut pool = Pool::new(0, 8);
        pool.sees(7_200, |_| (0, 0, 0));
        assert!(pool.history.samples.len() <= 2 + (COOL_DOWN.as_millis() / TICK.as_millis()) as usize);
    }
}
