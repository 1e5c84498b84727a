//! How fast queues move: totals once a second, and the difference over the last ten.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::{Millis, QueueName};
use parking_lot::Mutex;
use state_machine::view::Totals;

use crate::call::Rates;
use crate::inner::Inner;

const SAMPLE_EVERY: Duration = Duration::from_secs(1);
const SAMPLES_MAX: usize = 11;

struct Sample {
    at: Millis,
    totals: HashMap<QueueName, Totals>,
}

/// The last samples, oldest first.
#[derive(Default)]
pub(crate) struct Samples {
    samples: Mutex<VecDeque<Sample>>,
}

impl Samples {
    fn push(&self, at: Millis, totals: HashMap<QueueName, Totals>) {
        let mut samples = self.samples.lock();
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(Sample { at, totals });
    }

    /// How fast a queue has moved, up to `now` and what it has seen by then.
    pub(crate) fn rates(&self, queue: &QueueName, now: Millis, totals: &Totals) -> Rates {
        let samples = self.samples.lock();
        let Some(first) = samples.front() else { return Rates::default() };
        let seconds = now.0.saturating_sub(first.at.0).max(1_000) as f64 / 1_000.0;
        // A queue that was not there yet had seen nothing.
        let before = first.totals.get(queue).copied().unwrap_or_default();
        let per_s = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Rates {
            enqueued_per_s: per_s(totals.enqueued, before.enqueued),
            done_per_s: per_s(totals.done, before.done),
            failed_per_s: per_s(totals.failed, before.failed),
        }
    }
}

/// Takes samples until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = inner.stopping.cancelled() => return,
        }
        let mut totals: HashMap<QueueName, Totals> = HashMap::new();
        for shard in inner.groups.all() {
            for (queue, of_shard) in inner.groups.look(shard, |state| state.totals()) {
                add(totals.entry(queue).or_default(), &of_shard);
            }
        }
        inner.samples.push(inner.now(), totals);
    }
}

/// Adds up what two shards have seen.
pub(crate) fn add(sum: &mut Totals, more: &Totals) {
    sum.enqueued += more.enqueued;
    sum.done += more.done;
    sum.failed += more.failed;
    sum.dead += more.dead;
    sum.freed += more.freed;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_difference_over_the_time_that_was_sampled() {
        let samples = Samples::default();
        let queue = QueueName::new("mail").unwrap();
        let totals = |enqueued| Totals { enqueued, ..Totals::default() };
        assert_eq!(samples.rates(&queue, Millis(0), &totals(5)), Rates::default());
        for second in 0..20 {
            samples.push(Millis(second * 1_000), HashMap::from([(queue.clone(), totals(second * 50))]));
        }
        let rates = samples.rates(&queue, Millis(19_000), &totals(19 * 50));
        assert!((rates.enqueued_per_s - 50.0).abs() < 0.001, "{rates:?}");
    }
}
