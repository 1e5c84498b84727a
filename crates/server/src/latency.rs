//! How long requests take, per operation: counters without a lock, read by `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::Method;

/// Upper bounds of the buckets, in microseconds.
pub(crate) const BOUNDS_MICROS: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000, 60_000_000,
];

/// What a request is about, as far as times are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Enqueue,
    Claim,
    Ack,
    Fail,
    Extend,
    Release,
    Progress,
    Beat,
    Look,
    Act,
    Other,
}

impl Operation {
    pub(crate) const ALL: [Operation; 11] = [
        Operation::Enqueue,
        Operation::Claim,
        Operation::Ack,
        Operation::Fail,
        Operation::Extend,
        Operation::Release,
        Operation::Progress,
        Operation::Beat,
        Operation::Look,
        Operation::Act,
        Operation::Other,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Operation::Enqueue => "enqueue",
            Operation::Claim => "claim",
            Operation::Ack => "ack",
            Operation::Fail => "fail",
            Operation::Extend => "extend",
            Operation::Release => "release",
            Operation::Progress => "progress",
            Operation::Beat => "beat",
            Operation::Look => "look",
            Operation::Act => "act",
            Operation::Other => "other",
        }
    }

    /// The operation of a request, told by its method and path alone.
    pub(crate) fn of(method: &Method, path: &str) -> Operation {
        if let Some(call) = path.strip_prefix("/windlass.v1.Windlass/") {
            return Operation::of_call(call);
        }
        let Some(path) = path.strip_prefix("/v1/") else { return Operation::Other };
        if method == Method::GET {
            return Operation::Look;
        }
        if method != Method::POST {
            return Operation::Act;
        }
        match path {
            "claims" => Operation::Claim,
            "claims/ack" => Operation::Ack,
            "claims/fail" => Operation::Fail,
            "claims/extend" => Operation::Extend,
            "claims/release" => Operation::Release,
            "claims/progress" => Operation::Progress,
            _ if path.starts_with("queues/") && path.ends_with("/tasks") => Operation::Enqueue,
            _ if path.starts_with("workers/") && path.ends_with("/beat") => Operation::Beat,
            _ => Operation::Act,
        }
    }

    /// The operation of a call of gRPC. A stream is not one: it lasts as long as its worker.
    fn of_call(call: &str) -> Operation {
        match call {
            "Enqueue" | "EnqueueMany" => Operation::Enqueue,
            "Claim" | "ClaimById" => Operation::Claim,
            "Ack" | "Settle" => Operation::Ack,
            "Fail" => Operation::Fail,
            "Extend" => Operation::Extend,
            "Release" => Operation::Release,
            "Progress" => Operation::Progress,
            "Beat" => Operation::Beat,
            "Work" | "EnqueueStream" | "Events" => Operation::Other,
            _ if call.starts_with("Get") || call.starts_with("List") => Operation::Look,
            "FindTask" | "WhyTask" => Operation::Look,
            _ => Operation::Act,
        }
    }
}

/// How long requests of one operation took, and how they ended.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    buckets: [AtomicU64; BOUNDS_MICROS.len() + 1],
    micros: AtomicU64,
    /// Replies by the first digit of their status, from 1.
    statuses: [AtomicU64; 5],
}

/// One [`Latency`] per operation.
#[derive(Debug, Default)]
pub(crate) struct Latencies([Latency; Operation::ALL.len()]);

impl Latencies {
    pub(crate) fn of(&self, operation: Operation) -> &Latency {
        &self.0[operation as usize]
    }
}

impl Latency {
    /// Counts one request.
    pub(crate) fn record(&self, took: Duration, status: u16) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MICROS.partition_point(|&bound| bound < micros);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.statuses[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Requests by bucket, one for each bound and one for the rest.
    pub(crate) fn buckets(&self) -> Vec<u64> {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect()
    }

    /// Time spent in all requests.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }

    /// Replies by class: `("2xx", count)`.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        CLASSES.into_iter().zip(self.statuses.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart_by_method_and_path() {
        for (method, path, operation) in [
            (Method::POST, "/v1/queues/mail/tasks", Operation::Enqueue),
            (Method::POST, "/v1/claims", Operation::Claim),
            (Method::GET, "/v1/claims", Operation::Look),
            (Method::POST, "/v1/claims/ack", Operation::Ack),
            (Method::POST, "/v1/workers/w/beat", Operation::Beat),
            (Method::POST, "/v1/queues/mail/pause", Operation::Act),
            (Method::DELETE, "/v1/tasks/x", Operation::Act),
            (Method::GET, "/metrics", Operation::Other),
        ] {
            assert_eq!(Operation::of(&method, path), operation, "{method} {path}");
        }
    }

    #[test]
    fn a_time_on_a_bound_falls_below_it() {
        let latency = Latency::default();
        latency.record(Duration::from_micros(100), 200);
        latency.record(Duration::from_micros(101), 404);
        latency.record(Duration::from_secs(3600), 500);
        let buckets = latency.buckets();
        assert_eq!((buckets[0], buckets[1], buckets[BOUNDS_MICROS.len()]), (1, 1, 1));
        assert_eq!(latency.statuses().map(|(_, count)| count).collect::<Vec<_>>(), [0, 1, 0, 1, 1]);
    }
}
