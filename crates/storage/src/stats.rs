//! What the log counts, for metrics and for people who look for a slow disk.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets of sync latency; the upper bound of bucket `n` is [`LogStats::bucket_micros`]`(n)`.
pub const SYNC_BUCKETS: usize = 18;
const FIRST_BUCKET_MICROS: u64 = 16;

/// A copy of the log's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Syncs done.
    pub syncs: u64,
    /// Time spent in them.
    pub sync_micros: u64,
    /// The longest.
    pub sync_micros_max: u64,
    /// How many took at most [`bucket_micros`](LogStats::bucket_micros), and longer than the bucket before.
    pub sync_buckets: [u64; SYNC_BUCKETS],
    /// Records written.
    pub records: u64,
    /// Bytes written, padding included.
    pub bytes: u64,
    /// Changes completed.
    pub changes: u64,
    /// Times the writer had to wait for room on the disk.
    pub stalls: u64,
    /// Changes that wait to be written.
    pub queued: u64,
    /// Their bytes.
    pub queued_bytes: u64,
    /// Segments in use.
    pub segments: u64,
    /// Segments ready or free to be used again.
    pub segments_spare: u64,
    /// Payload bytes in memory.
    pub cached_bytes: u64,
}

impl LogStats {
    /// The upper bound of a bucket; the last one has none.
    pub fn bucket_micros(bucket: usize) -> Option<u64> {
        (bucket + 1 < SYNC_BUCKETS).then(|| FIRST_BUCKET_MICROS << bucket)
    }
}

/// The counters, changed by the writer.
#[derive(Default)]
pub(crate) struct Counters {
    syncs: AtomicU64,
    sync_micros: AtomicU64,
    sync_micros_max: AtomicU64,
    sync_buckets: [AtomicU64; SYNC_BUCKETS],
    pub(crate) records: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) changes: AtomicU64,
    pub(crate) stalls: AtomicU64,
}

impl Counters {
    pub(crate) fn synced(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        self.syncs.fetch_add(1, Relaxed);
        self.sync_micros.fetch_add(micros, Relaxed);
        self.sync_micros_max.fetch_max(micros, Relaxed);
        self.sync_buckets[bucket(micros)].fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self) -> LogStats {
        LogStats {
            syncs: self.syncs.load(Relaxed),
            sync_micros: self.sync_micros.load(Relaxed),
            sync_micros_max: self.sync_micros_max.load(Relaxed),
            sync_buckets: std::array::from_fn(|at| self.sync_buckets[at].load(Relaxed)),
            records: self.records.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            changes: self.changes.load(Relaxed),
            stalls: self.stalls.load(Relaxed),
            ..LogStats::default()
        }
    }
}

fn bucket(micros: u64) -> usize {
    let above = micros.div_ceil(FIRST_BUCKET_MICROS).max(1);
    (above.next_power_of_two().trailing_zeros() as usize).min(SYNC_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_into_the_first_bucket_that_holds_it() {
        for (micros, expected) in [(0, 0), (16, 0), (17, 1), (32, 1), (33, 2), (1_000, 6), (u64::MAX / 2, 17)]
        {
            let found = bucket(micros);
            assert_eq!(found, expected, "{micros}");
            assert!(LogStats::bucket_micros(found).is_none_or(|bound| micros <= bound));
        }
    }
}
