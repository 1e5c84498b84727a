//! Counts and times, for `/metrics`. Atomic, and read without stopping anybody.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use model::{FreedReason, Millis, ShardId};

use crate::call::QueueInfo;
use crate::error::Error;
use crate::info::ReplicationStats;

/// Upper bounds of the latency buckets, in microseconds.
pub const LATENCY_BOUNDS_MICROS: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000,
];
const BUCKETS: usize = LATENCY_BOUNDS_MICROS.len() + 1;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Taking tasks in.
    Enqueue,
    /// Giving tasks out, without the wait for them.
    Claim,
    /// Ending tasks as done.
    Ack,
    /// Ending attempts.
    Fail,
    /// Moving deadlines.
    Extend,
    /// Taking tasks back.
    Release,
    /// Noting how far tasks are.
    Progress,
    /// What people do to tasks.
    Act,
    /// Showing one task.
    Task,
    /// Showing many.
    List,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 10] = [
        Operation::Enqueue,
        Operation::Claim,
        Operation::Ack,
        Operation::Fail,
        Operation::Extend,
        Operation::Release,
        Operation::Progress,
        Operation::Act,
        Operation::Task,
        Operation::List,
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Enqueue => "enqueue",
            Operation::Claim => "claim",
            Operation::Ack => "ack",
            Operation::Fail => "fail",
            Operation::Extend => "extend",
            Operation::Release => "release",
            Operation::Progress => "progress",
            Operation::Act => "act",
            Operation::Task => "task",
            Operation::List => "list",
        }
    }
}

#[derive(Default)]
struct Timed {
    buckets: [AtomicU64; BUCKETS],
    micros: AtomicU64,
    /// Tasks, or refusals of a whole call.
    items: AtomicU64,
    refused: AtomicU64,
}

/// The counters themselves.
#[derive(Default)]
pub(crate) struct Counters {
    timed: [Timed; Operation::ALL.len()],
    freed: [AtomicU64; FreedReason::ALL.len()],
    pub(crate) workers_lost: AtomicU64,
    pub(crate) deadlines_passed: AtomicU64,
    pub(crate) given_back: AtomicU64,
    pub(crate) outbox_delivered: AtomicU64,
    pub(crate) notices_missed: AtomicU64,
}

impl Counters {
    /// Counts one call.
    pub(crate) fn timed(&self, operation: Operation, since: Instant, items: usize, refused: usize) {
        let timed = &self.timed[operation as usize];
        let micros = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS_MICROS.partition_point(|&bound| bound < micros);
        timed.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        timed.micros.fetch_add(micros, Ordering::Relaxed);
        timed.items.fetch_add(items as u64, Ordering::Relaxed);
        timed.refused.fetch_add(refused as u64, Ordering::Relaxed);
    }

    /// Counts one call by its results.
    pub(crate) fn timed_all<T>(&self, operation: Operation, since: Instant, results: &[Result<T, Error>]) {
        let refused = results.iter().filter(|result| result.is_err()).count();
        self.timed(operation, since, results.len() - refused, refused);
    }

    /// Counts a freed claim.
    pub(crate) fn freed(&self, reason: FreedReason) {
        self.freed[reason as usize - 1].fetch_add(1, Ordering::Relaxed);
    }

    /// Fills in what the counters say.
    pub(crate) fn read(&self, stats: &mut Stats) {
        stats.operations =
            Operation::ALL.map(|operation| self.timed[operation as usize].read(operation)).to_vec();
        stats.freed = FreedReason::ALL
            .map(|reason| (reason, self.freed[reason as usize - 1].load(Ordering::Relaxed)))
            .to_vec();
        stats.workers_lost = self.workers_lost.load(Ordering::Relaxed);
        stats.deadlines_passed = self.deadlines_passed.load(Ordering::Relaxed);
        stats.given_back = self.given_back.load(Ordering::Relaxed);
        stats.outbox_delivered = self.outbox_delivered.load(Ordering::Relaxed);
        stats.notices_missed = self.notices_missed.load(Ordering::Relaxed);
    }
}

impl Timed {
    fn read(&self, operation: Operation) -> OperationStats {
        OperationStats {
            operation,
            buckets: self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed)).to_vec(),
            time: Duration::from_micros(self.micros.load(Ordering::Relaxed)),
            items: self.items.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// How one operation fared.
#[derive(Clone, Debug)]
pub struct OperationStats {
    /// Which.
    pub operation: Operation,
    /// Calls by latency, one bucket for each of [`LATENCY_BOUNDS_MICROS`] and one for the rest.
    pub buckets: Vec<u64>,
    /// Time spent in all calls.
    pub time: Duration,
    /// Tasks that went through.
    pub items: u64,
    /// Tasks that were refused.
    pub refused: u64,
}

/// How one shard is.
#[derive(Clone, Debug)]
pub struct ShardStats {
    /// Which.
    pub shard: ShardId,
    /// Tasks it keeps, ended ones included.
    pub tasks: u64,
    /// Memory of its state, estimated.
    pub memory_bytes: u64,
    /// The last committed index.
    pub commit: u64,
    /// The last applied index.
    pub applied: u64,
    /// The index of the last checkpoint.
    pub last_checkpoint: u64,
    /// Whether this node leads it.
    pub leads: bool,
    /// The longest time that a checkpoint kept it from applying.
    pub checkpoint_stall_max: Duration,
}

/// All that `/metrics` shows.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Per operation.
    pub operations: Vec<OperationStats>,
    /// Claims freed since the node started, by reason.
    pub freed: Vec<(FreedReason, u64)>,
    /// Workers lost.
    pub workers_lost: u64,
    /// Claims whose deadline passed.
    pub deadlines_passed: u64,
    /// Claims given back because their caller had gone.
    pub given_back: u64,
    /// Messages delivered from shard to shard.
    pub outbox_delivered: u64,
    /// Messages that wait to be delivered from shard to shard.
    pub outbox_messages: u64,
    /// Times that the node fell behind what its shards told it.
    pub notices_missed: u64,
    /// Claims that wait for a task.
    pub waiting_claims: usize,
    /// Live sessions.
    pub sessions: usize,
    /// Events since the node started.
    pub events: u64,
    /// Per queue.
    pub queues: Vec<QueueInfo>,
    /// Per shard.
    pub shards: Vec<ShardStats>,
    /// Memory of all shards' state, estimated.
    pub memory_bytes: u64,
    /// The limit of it.
    pub memory_bytes_max: u64,
    /// Whether new tasks are refused for want of memory.
    pub memory_full: bool,
    /// Whether new tasks are refused for want of disk.
    pub disk_full: bool,
    /// What the log counts: syncs, bytes, segments.
    pub log: storage::LogStats,
    /// Since the node started.
    pub uptime: Millis,
    /// How replication goes.
    pub replication: ReplicationStats,
}
