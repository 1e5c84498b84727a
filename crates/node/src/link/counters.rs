//! What went through the links to one node, over all its connections.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::links::LinkStats;

/// How much a new round trip counts against those before it: one in so many.
const SMOOTHING: u64 = 8;

#[derive(Default)]
pub(super) struct Counters {
    pub(super) bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    pub(super) frames_in: AtomicU64,
    frames_out: AtomicU64,
    pub(super) connections: AtomicU64,
    /// In microseconds, smoothed; 0 while none was measured.
    round_trip: AtomicU64,
}

impl Counters {
    pub(super) fn wrote(&self, bytes: usize, frames: u64) {
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
        self.frames_out.fetch_add(frames, Ordering::Relaxed);
    }

    pub(super) fn round_trip(&self, took: Duration) {
        let took = (took.as_micros() as u64).max(1);
        let smoothed = match self.round_trip.load(Ordering::Relaxed) {
            0 => took,
            before => (before * (SMOOTHING - 1) + took) / SMOOTHING,
        };
        self.round_trip.store(smoothed.max(1), Ordering::Relaxed);
    }

    pub(super) fn measured(&self) -> Duration {
        Duration::from_micros(self.round_trip.load(Ordering::Relaxed))
    }

    pub(super) fn snapshot(&self, queued_bytes: u64) -> LinkStats {
        LinkStats {
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            frames_in: self.frames_in.load(Ordering::Relaxed),
            frames_out: self.frames_out.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
            queued_bytes,
            round_trip: self.measured(),
        }
    }
}
