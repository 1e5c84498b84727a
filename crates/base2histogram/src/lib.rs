//! The histograms in which openraft counts, in the place of the crate of this name.
//!
//! That crate makes tables for all sixteen widths of buckets at its first use, 25 MB that stay with every server for
//! figures that nobody here reads, and openraft has no way not to use it. The patch in the workspace's `Cargo.toml` puts
//! this one there: what openraft calls, under the same names, with the one width that it uses and no table. It must never
//! grow beyond that. Why: `docs/decisions/0020-idle-workers.md`.

use std::fmt;
use std::marker::PhantomData;

/// Values below this have a bucket each, and so many buckets share the values between two powers of two.
const GROUP: u64 = 4;
const GROUP_BITS: u32 = GROUP.ilog2();

/// How often values came, each known within a quarter of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram<T = ()> {
    /// How many came into each bucket, up to the last one that has any.
    counts: Vec<u64>,
    total: u64,
    /// The original keeps something of this type beside its counts.
    beside: PhantomData<T>,
}

impl<T> Histogram<T> {
    /// One without values. It takes room as values come.
    pub fn new() -> Histogram<T> {
        Histogram { counts: Vec::new(), total: 0, beside: PhantomData }
    }

    /// Counts a value.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts a value that came so many times.
    pub fn record_n(&mut self, value: u64, times: u64) {
        let bucket = bucket_of(value);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(times);
        self.total = self.total.saturating_add(times);
    }

    /// How many values came.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The least value of the bucket below which lies this part of all that came; 0 without values.
    pub fn percentile(&self, part: f64) -> u64 {
        let wanted = ((self.total as f64 * part).ceil() as u64).max(1);
        let mut seen = 0_u64;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen = seen.saturating_add(*count);
            if seen >= wanted {
                return least_of(bucket);
            }
        }
        0
    }

    /// The usual parts.
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats {
            samples: self.total,
            p0_1: self.percentile(0.001),
            p1: self.percentile(0.01),
            p5: self.percentile(0.05),
            p10: self.percentile(0.1),
            p50: self.percentile(0.5),
            p90: self.percentile(0.9),
            p99: self.percentile(0.99),
            p99_9: self.percentile(0.999),
        }
    }
}

impl<T> Default for Histogram<T> {
    fn default() -> Histogram<T> {
        Histogram::new()
    }
}

fn bucket_of(value: u64) -> usize {
    if value < GROUP {
        return value as usize;
    }
    let shift = value.ilog2() - GROUP_BITS;
    (GROUP * (u64::from(shift) + 1) + (value >> shift) % GROUP) as usize
}

fn least_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < GROUP {
        return bucket;
    }
    (GROUP + bucket % GROUP) << (bucket / GROUP - 1)
}

/// What part of the values lies below what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct PercentileStats {
    pub samples: u64,
    pub p0_1: u64,
    pub p1: u64,
    pub p5: u64,
    pub p10: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[samples: {}, P50: {}, P99: {}]", self.samples, self.p50, self.p99)
    }
}

/// A chart, which openraft draws with a feature that is off: here only its series.
#[derive(Clone, Debug)]
pub struct AsciiChart<T = ()> {
    /// What would be drawn.
    pub series: Vec<(String, Histogram<T>)>,
}

impl<T> AsciiChart<T> {
    /// One without series.
    pub fn new() -> AsciiChart<T> {
        AsciiChart { series: Vec::new() }
    }

    /// One with another series.
    #[must_use]
    pub fn add(mut self, name: &str, series: Histogram<T>) -> AsciiChart<T> {
        self.series.push((name.to_owned(), series));
        self
    }
}

impl<T> Default for AsciiChart<T> {
    fn default() -> AsciiChart<T> {
        AsciiChart::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_close_to_its_beginning() {
        let powers = (0..64).map(|power| 1_u64 << power);
        let around = powers.flat_map(|power| [power - 1, power, power + 1, power + power / 3]);
        for value in around.chain([u64::MAX]) {
            let bucket = bucket_of(value);
            assert!(bucket < 252, "{value}");
            let least = least_of(bucket);
            assert!(least <= value && value - least <= value / 4, "{value} in the bucket of {least}");
            assert_eq!(bucket_of(least), bucket, "{value}");
        }
    }

    #[test]
    fn parts_of_what_came_and_nothing_of_nothing() {
        let mut histogram = Histogram::<()>::new();
        assert_eq!(histogram.percentile_stats().p50, 0);
        for value in 1..=1_000 {
            histogram.record(value);
        }
        histogram.record_n(3, 9_000);
        let stats = histogram.percentile_stats();
        assert_eq!((stats.samples, histogram.total(), stats.p50), (10_000, 10_000, 3));
        assert!((768..=896).contains(&stats.p99), "{stats}");
    }
}
