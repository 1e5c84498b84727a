//! What a run shall do, what came of it and when it is over: shared by all producers and workers of one run.
//!
//! Knows no server and no protocol. The side-by-side benchmark counts its peers with this very file, so that all
//! systems are counted alike. When a task counts from is in `pace.rs`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::sync::Notify;

/// Digits of the time that every payload carries, in microseconds since 1970.
const STAMP_DIGITS: usize = 16;
/// A payload is a JSON string with at least that in it.
pub(crate) const PAYLOAD_BYTES_MIN: usize = STAMP_DIGITS + 2;
/// No latency is told longer than this, in microseconds.
const LATENCY_MAX: u64 = 3_600_000_000;
/// A message that is sent so much after it was due is counted as late.
const LATE: Duration = Duration::from_millis(2);
/// The run is over when nothing has been acked for so long and all is enqueued, or when workers alone find nothing more.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often it is looked whether the run is over.
const LOOK: Duration = Duration::from_millis(50);
/// Seconds whose acks are told one by one.
const SECONDS_MAX: usize = 3_600;

/// What a run shall do.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Plan {
    /// It ends after so many tasks, or
    pub(crate) tasks: Option<u64>,
    /// after this time, with what is under way then.
    #[serde(skip)]
    pub(crate) duration: Option<Duration>,
    /// Tasks per second, whatever the answers. None: the next goes out when one before is answered.
    pub(crate) rate: Option<f64>,
    /// Tasks in one message.
    pub(crate) batch: u64,
    /// Messages in flight on each side, over all connections; with a rate only that of the workers' side.
    pub(crate) outstanding: u64,
    /// Size of a payload.
    pub(crate) payload_bytes: usize,
    pub(crate) producers: usize,
    pub(crate) workers: usize,
}

impl Plan {
    /// The part of what may be in flight that the nth of so many connections has; at least one message.
    pub(crate) fn share(&self, parts: usize, n: usize) -> u64 {
        let (parts, n) = (parts.max(1) as u64, n as u64);
        (self.outstanding / parts + u64::from(n < self.outstanding % parts)).max(1)
    }
}

/// The next message of a producer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    /// How many tasks it carries.
    pub(crate) tasks: u64,
    /// When it is due, if there is a rate.
    pub(crate) due: Option<Instant>,
}

/// One run.
pub(crate) struct Load {
    pub(crate) plan: Plan,
    start: Instant,
    /// The same moment in microseconds since 1970.
    start_micros: u64,
    begun: AtomicU64,
    enqueued: AtomicU64,
    received: AtomicU64,
    acked: AtomicU64,
    producing: AtomicUsize,
    /// Rings when the last task may be through.
    is_through: Notify,
    record: Mutex<Record>,
    /// A payload without its time.
    template: Vec<u8>,
}

struct Record {
    enqueue: Histogram<u64>,
    delivery: Histogram<u64>,
    ack: Histogram<u64>,
    refused: BTreeMap<String, u64>,
    late: u64,
    late_max: Duration,
    enqueued_last: Duration,
    acked_last: Duration,
    acked_each_second: Vec<u64>,
}

impl Load {
    /// A run that starts a moment from now, so that the first message is not late.
    pub(crate) fn new(plan: Plan, producing: usize) -> Load {
        let ahead = Duration::from_millis(if plan.rate.is_some() { 200 } else { 0 });
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + ahead;
        let record = Record {
            enqueue: histogram(),
            delivery: histogram(),
            ack: histogram(),
            refused: BTreeMap::new(),
            late: 0,
            late_max: Duration::ZERO,
            enqueued_last: Duration::ZERO,
            acked_last: Duration::ZERO,
            acked_each_second: Vec::new(),
        };
        let filler = plan.payload_bytes.saturating_sub(2).max(STAMP_DIGITS);
        let template = format!("\"{}\"", "x".repeat(filler)).into_bytes();
        Load {
            plan,
            start: Instant::now() + ahead,
            start_micros: wall.as_micros() as u64,
            begun: AtomicU64::new(0),
            enqueued: AtomicU64::new(0),
            received: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            producing: AtomicUsize::new(producing),
            is_through: Notify::new(),
            record: Mutex::new(record),
            template,
        }
    }

    /// What to send next; none when all has been sent or the time is over.
    pub(crate) fn next(&self) -> Option<Next> {
        let begun = self.begun.load(Relaxed);
        let tasks = match self.plan.tasks {
            Some(all) => self.plan.batch.min(all.saturating_sub(begun)),
            None => self.plan.batch,
        };
        let due = self.plan.rate.map(|rate| self.start + Duration::from_secs_f64(begun as f64 / rate));
        let end = self.plan.duration.map(|duration| self.start + duration);
        if tasks == 0 || end.is_some_and(|end| due.unwrap_or_else(Instant::now) >= end) {
            return None;
        }
        // One thread sends: nobody was here since the load above.
        self.begun.store(begun + tasks, Relaxed);
        Some(Next { tasks, due })
    }

    /// A payload that counts from `from`.
    pub(crate) fn payload(&self, from: Instant) -> Vec<u8> {
        let mut payload = self.template.clone();
        let mut rest = self.micros(from);
        for digit in payload[1..=STAMP_DIGITS].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        payload
    }

    fn micros(&self, at: Instant) -> u64 {
        match at.checked_duration_since(self.start) {
            Some(after) => self.start_micros + after.as_micros() as u64,
            None => self.start_micros.saturating_sub((self.start - at).as_micros() as u64),
        }
    }

    /// A message left that counts from `from`: how much later that is than it was due is this program's own lateness.
    pub(crate) fn sent(&self, next: Next, from: Instant) {
        let late = next.due.map_or(Duration::ZERO, |due| from.saturating_duration_since(due));
        if late > LATE {
            let mut record = self.record();
            record.late += next.tasks;
            record.late_max = record.late_max.max(late);
        }
    }

    /// Enqueues were answered well; each was sent at its time.
    pub(crate) fn enqueued(&self, sent: impl IntoIterator<Item = Instant>) {
        let now = Instant::now();
        let mut record = self.record();
        let mut count = 0;
        for sent in sent {
            count += 1;
            record.enqueue.saturating_record(micros_between(sent, now));
        }
        if count > 0 {
            record.enqueued_last = now.saturating_duration_since(self.start);
        }
        self.enqueued.fetch_add(count, Relaxed);
    }

    /// So many of one message were answered well.
    pub(crate) fn enqueued_many(&self, sent: Instant, count: u64) {
        self.enqueued(std::iter::repeat_n(sent, count as usize));
    }

    /// The server said no to so many tasks, or to their acks.
    pub(crate) fn refused(&self, code: &str, count: u64) {
        *self.record().refused.entry(code.to_owned()).or_default() += count;
    }

    /// A worker got tasks with these payloads. A payload that is not of this program counts as no time.
    pub(crate) fn received<'a>(&self, payloads: impl IntoIterator<Item = &'a [u8]>) {
        let now = self.micros(Instant::now());
        let mut record = self.record();
        let mut count = 0;
        for payload in payloads {
            count += 1;
            if let Some(stamp) = stamp(payload) {
                record.delivery.saturating_record(now.saturating_sub(stamp).max(1));
            }
        }
        self.received.fetch_add(count, Relaxed);
    }

    /// Acks were answered well; each was sent at its time.
    pub(crate) fn acked(&self, sent: impl IntoIterator<Item = Instant>) {
        let now = Instant::now();
        let mut record = self.record();
        let mut count = 0;
        for sent in sent {
            count += 1;
            record.ack.saturating_record(micros_between(sent, now));
        }
        self.count_acks(&mut record, now, count);
    }

    /// So many acks were answered well, and nobody knows how long they took.
    pub(crate) fn acked_untimed(&self, count: u64) {
        let now = Instant::now();
        self.count_acks(&mut self.record(), now, count);
    }

    fn count_acks(&self, record: &mut Record, now: Instant, count: u64) {
        if count == 0 {
            return;
        }
        record.acked_last = now.saturating_duration_since(self.start);
        let second = (record.acked_last.as_secs() as usize).min(SECONDS_MAX);
        if record.acked_each_second.len() <= second {
            record.acked_each_second.resize(second + 1, 0);
        }
        record.acked_each_second[second] += count;
        self.acked.fetch_add(count, Relaxed);
        if self.is_all_acked() {
            self.is_through.notify_one();
        }
    }

    /// A producer has sent all of its part and got an answer to each.
    pub(crate) fn producer_ended(&self) {
        self.producing.fetch_sub(1, Relaxed);
        self.is_through.notify_one();
    }

    fn is_all_acked(&self) -> bool {
        let acked = self.acked.load(Relaxed);
        match self.plan.producers {
            // Workers alone work off what is there.
            0 => self.plan.tasks.is_some_and(|tasks| acked >= tasks),
            _ if self.producing.load(Relaxed) > 0 => false,
            _ => self.plan.workers == 0 || acked >= self.enqueued.load(Relaxed),
        }
    }

    /// Returns when every task is through, or when nothing has gone on for too long.
    pub(crate) async fn until_over(&self) {
        let (mut acked, mut acked_at) = (0, Instant::now());
        loop {
            if self.is_all_acked() {
                return;
            }
            let _ = tokio::time::timeout(LOOK, self.is_through.notified()).await;
            let now = Instant::now();
            let is_producing = self.producing.load(Relaxed) > 0;
            if self.acked_now() != acked || is_producing {
                (acked, acked_at) = (self.acked_now(), now);
            }
            let is_over = match self.plan.duration {
                Some(duration) if self.plan.producers == 0 => now >= self.start + duration,
                _ => now - acked_at > PATIENCE,
            };
            if is_over {
                return;
            }
        }
    }

    pub(crate) fn acked_now(&self) -> u64 {
        self.acked.load(Relaxed)
    }

    pub(crate) fn enqueued_now(&self) -> u64 {
        self.enqueued.load(Relaxed)
    }

    /// How far through its time or its tasks the run is, from 0 to 1.
    pub(crate) fn part(&self) -> f64 {
        let through = if self.plan.workers == 0 { self.enqueued_now() } else { self.acked_now() };
        let by_tasks = self.plan.tasks.map(|tasks| through as f64 / tasks.max(1) as f64);
        let elapsed = Instant::now().saturating_duration_since(self.start).as_secs_f64();
        let by_time = self.plan.duration.map(|duration| elapsed / duration.as_secs_f64().max(0.001));
        by_tasks.unwrap_or(0.0).max(by_time.unwrap_or(0.0)).min(1.0)
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        // Figures are whole after every line above; one who panicked left nothing half.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came of it.
    pub(crate) fn summary(&self) -> Summary {
        let record = self.record();
        let (enqueued, acked) = (self.enqueued_now(), self.acked_now());
        let per_s = |count: u64, time: Duration| match time.as_secs_f64() {
            0.0 => 0.0,
            seconds => count as f64 / seconds,
        };
        let is_both = self.plan.producers > 0 && self.plan.workers > 0;
        Summary {
            enqueued,
            received: self.received.load(Relaxed),
            acked,
            refused: record.refused.clone(),
            unfinished: if is_both { enqueued.saturating_sub(acked) } else { 0 },
            seconds: record.acked_last.max(record.enqueued_last).as_secs_f64(),
            enqueued_per_s: per_s(enqueued, record.enqueued_last),
            acked_per_s: per_s(acked, record.acked_last),
            latency_ms: Latencies {
                enqueue: quantiles(&record.enqueue),
                delivery: quantiles(&record.delivery),
                ack: quantiles(&record.ack),
            },
            late: record.late,
            late_max_ms: record.late_max.as_secs_f64() * 1000.0,
            acked_each_second: record.acked_each_second.clone(),
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) enqueued: u64,
    pub(crate) received: u64,
    pub(crate) acked: u64,
    /// Refusals by their code.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Enqueued and not acked by the end.
    pub(crate) unfinished: u64,
    /// From the start to the last answer.
    pub(crate) seconds: f64,
    pub(crate) enqueued_per_s: f64,
    pub(crate) acked_per_s: f64,
    pub(crate) latency_ms: Latencies,
    /// Tasks for which this program's timer woke more than 2 ms after they were due.
    pub(crate) late: u64,
    pub(crate) late_max_ms: f64,
    pub(crate) acked_each_second: Vec<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Latencies {
    /// From an enqueue to its answer.
    pub(crate) enqueue: Option<Quantiles>,
    /// From an enqueue to the worker that gets the task.
    pub(crate) delivery: Option<Quantiles>,
    /// From an ack to its answer.
    pub(crate) ack: Option<Quantiles>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) count: u64,
    pub(crate) min: f64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
    pub(crate) max: f64,
}

fn quantiles(histogram: &Histogram<u64>) -> Option<Quantiles> {
    let millis = |micros: u64| micros as f64 / 1000.0;
    let at = |quantile| millis(histogram.value_at_quantile(quantile));
    (!histogram.is_empty()).then(|| Quantiles {
        count: histogram.len(),
        min: millis(histogram.min()),
        mean: histogram.mean() / 1000.0,
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p99_9: at(0.999),
        max: millis(histogram.max()),
    })
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX, 3).expect("the bounds are fixed and valid")
}

fn micros_between(from: Instant, to: Instant) -> u64 {
    (to.saturating_duration_since(from).as_micros() as u64).max(1)
}

/// From when the task with this payload counts.
fn stamp(payload: &[u8]) -> Option<u64> {
    let digits = payload.strip_prefix(b"\"")?.get(..STAMP_DIGITS)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn plan() -> Plan {
        let (tasks, duration, rate) = (Some(10), None, None);
        Plan { tasks, duration, rate, batch: 4, outstanding: 8, payload_bytes: 40, producers: 1, workers: 1 }
    }

    #[test]
    fn messages_carry_a_batch_each_and_the_last_one_the_rest() {
        let load = Load::new(plan(), 1);
        let sizes: Vec<u64> = std::iter::from_fn(|| load.next()).map(|next| next.tasks).collect();
        assert_eq!(sizes, [4, 4, 2]);
    }

    #[test]
    fn with_a_rate_each_message_is_due_at_its_time_and_none_after_the_end() {
        let duration = Some(Duration::from_millis(25));
        let plan = Plan { tasks: None, duration, rate: Some(400.0), ..plan() };
        let load = Load::new(plan, 1);
        let due: Vec<u128> = std::iter::from_fn(|| load.next())
            .map(|next| (next.due.unwrap() - load.start).as_millis())
            .collect();
        assert_eq!(due, [0, 10, 20]);
    }

    #[test]
    fn a_payload_has_its_size_and_says_from_when_it_counts() {
        let load = Load::new(plan(), 1);
        let from = load.start + Duration::from_millis(1500);
        let payload = load.payload(from);
        assert_eq!(payload.len(), 40);
        assert_eq!(stamp(&payload), Some(load.start_micros + 1_500_000));
        assert!(serde_json::from_slice::<String>(&payload).is_ok());
        assert_eq!(stamp(b"{}"), None);
    }

    #[test]
    fn a_run_is_over_when_all_that_was_enqueued_is_acked() {
        let load = Load::new(plan(), 1);
        load.enqueued_many(Instant::now(), 4);
        load.acked([Instant::now(); 4]);
        assert!(!load.is_all_acked(), "the producer goes on");
        load.enqueued_many(Instant::now(), 1);
        load.producer_ended();
        assert!(!load.is_all_acked());
        load.acked_untimed(1);
        assert!(load.is_all_acked());
        let summary = load.summary();
        assert_eq!((summary.enqueued, summary.acked, summary.unfinished), (5, 5, 0));
        assert_eq!(summary.latency_ms.ack.unwrap().count, 4);
        assert!(summary.latency_ms.delivery.is_none());
    }

    #[test]
    fn answers_without_a_good_one_move_no_time() {
        let load = Load::new(plan(), 1);
        load.enqueued_many(Instant::now(), 0);
        load.acked([]);
        load.acked_untimed(0);
        let summary = load.summary();
        assert_eq!((summary.seconds, summary.acked_each_second.len()), (0.0, 0));
    }

    #[test]
    fn only_the_lateness_of_the_timer_is_this_programs_own() {
        let load = Load::new(Plan { rate: Some(100.0), ..plan() }, 1);
        let next = load.next().unwrap();
        let due = next.due.unwrap();
        // Held up by the server: it counts from when it was due, however late it goes out.
        load.sent(next, due);
        assert_eq!(load.summary().late, 0);
        load.sent(next, due + Duration::from_millis(7));
        let summary = load.summary();
        assert_eq!((summary.late, summary.late_max_ms.round()), (4, 7.0));
    }

    #[test]
    fn what_may_be_in_flight_is_shared_out_whole() {
        for (outstanding, parts, shares) in [(8, 3, vec![3, 3, 2]), (1, 2, vec![1, 1]), (32, 1, vec![32])] {
            let plan = Plan { outstanding, ..plan() };
            assert_eq!((0..parts).map(|n| plan.share(parts, n)).collect::<Vec<_>>(), shares);
        }
    }
}
