//! The state machine alone: enqueue, claim, ack, with history and hash, on one core.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use model::command::{Ack, Claim, ClaimQueue};
use model::{
    Command, Digest, Elapsed, NewTask, Position, QueueName, Reply, SessionId, ShardId, TaskId, WallTime,
    WorkerName,
};
use state_machine::{Effects, Machine, Shard};

/// Tasks of one command, as a busy server gathers them.
const BATCH: u64 = 100;

struct Driver {
    shard: Shard,
    effects: Effects,
    queue: QueueName,
    worker: WorkerName,
    index: u64,
    made: u64,
}

impl Driver {
    fn new() -> Driver {
        Driver {
            shard: Shard::new(ShardId::new(1).expect("1 is a shard"), 4),
            effects: Effects::default(),
            queue: QueueName::new("mail").expect("a good name"),
            worker: WorkerName::new("host-1:4711").expect("a good name"),
            index: 0,
            made: 0,
        }
    }

    fn at(&mut self) -> Position {
        self.index += 1;
        let millis = self.index / 8;
        let wall = WallTime::from_millis(1_763_208_000_000 + millis);
        // Replicas note the hash at every 1,024th index.
        if self.index.is_multiple_of(1024) {
            black_box(self.shard.hash());
        }
        Position { index: self.index, n: 0, elapsed: Elapsed(millis), wall }
    }

    fn apply(&mut self, command: Command) -> Reply {
        let at = self.at();
        let reply = self.shard.apply(at, command, &mut self.effects).expect("nothing is refused here");
        black_box(self.effects.drain().count());
        reply
    }

    fn enqueue(&mut self, count: u64) {
        let wall = WallTime::from_millis(1_763_208_000_000 + self.index / 8);
        let tasks = (0..count).map(|_| {
            self.made += 1;
            let digest = self.made.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            NewTask {
                // In a row, as a node gives them.
                id: TaskId::new(self.shard.id(), wall, self.made),
                queue: self.queue.clone(),
                kind_hash: 1,
                digest: Digest(digest.into()),
                priority: 5,
                wishes: None,
                envelope: Bytes::from_static(b"payload"),
            }
        });
        let tasks = tasks.collect();
        self.apply(Command::Enqueue { tasks, atomic: false });
    }

    fn claim_and_ack(&mut self, count: u64) {
        let claim = Claim {
            queues: vec![ClaimQueue { name: self.queue.clone(), weight: 0 }],
            worker: self.worker.clone(),
            session: Some(SessionId(7)),
            max: count as u32,
            hold: None,
            request: None,
        };
        let Reply::Claimed(claimed) = self.apply(Command::Claim(claim)) else {
            unreachable!("a claim's reply")
        };
        for claim in claimed {
            let output = Bytes::new();
            self.apply(Command::Ack(Ack { task: claim.id, fence: claim.fence, output, then: Vec::new() }));
        }
    }
}

fn lifecycles(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("state machine");
    group.throughput(Throughput::Elements(1)).sample_size(20).measurement_time(Duration::from_secs(8));
    for (name, waiting, batch) in [
        ("one at a time", 0, 1),
        ("100 at a time", 0, BATCH),
        ("100 at a time, 1M waiting", 1_000_000, BATCH),
    ] {
        group.bench_function(name, |bencher| {
            let mut driver = Driver::new();
            for _ in 0..waiting / BATCH {
                driver.enqueue(BATCH);
            }
            bencher.iter_custom(|count| {
                let start = Instant::now();
                for _ in 0..count.div_ceil(batch) {
                    driver.enqueue(batch);
                    driver.claim_and_ack(batch);
                }
                start.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, lifecycles);
criterion_main!(benches);
