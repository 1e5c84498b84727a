//! How many commands a second four groups on one node take, one per call, synced to a real disk.
//!
//! `cargo run --release -p replica --example propose -- [DIR [SECONDS [CALLERS [COMMANDS]]]]`

#![allow(clippy::print_stdout, reason = "it is run for what it prints")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use model::{Command, Digest, GroupId, MemberId, NewTask, NodeId, QueueName, ShardId, TaskId, WallTime};
use replica::{NoPeers, Replica, ReplicaConfig, SystemClock};
use state_machine::Shard;
use storage::{CheckpointStore, Disk, Executor, Log, LogOptions, RealDisk, ThreadExecutor, checkpoint_path};

// As in the binary: the standard allocator's locks are felt here.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const GROUPS: u16 = 4;

fn argument(n: usize, default: u64) -> u64 {
    std::env::args().nth(n).and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn enqueue(shard: ShardId, queue: &QueueName, n: u64) -> Command {
    let task = NewTask {
        id: TaskId::new(shard, WallTime::from_millis(1_763_208_000_000 + n / 10), n),
        queue: queue.clone(),
        kind_hash: 1,
        digest: Digest(u128::from(n)),
        priority: 5,
        wishes: None,
        envelope: vec![b'x'; 200].into(),
    };
    Command::Enqueue { tasks: vec![task], atomic: false }
}

async fn start(disk: Arc<dyn Disk>) -> (Log, Vec<Replica<Shard>>) {
    let executor: Arc<dyn Executor> = Arc::new(ThreadExecutor);
    let opened = Log::open(disk.clone(), Path::new("log"), LogOptions::default(), executor.clone());
    let (log, _) = opened.expect("a fresh directory opens");
    disk.create_dir_all(Path::new("shards")).expect("a fresh directory can be written");
    let mut replicas = Vec::new();
    for number in 1..=GROUPS {
        let group = GroupId(number);
        let store =
            CheckpointStore::open(disk.clone(), &checkpoint_path(group), 8 << 20).expect("it is fresh");
        let shard = ShardId::new(number).expect("it is a valid number");
        let make = Box::new(move || Shard::new(shard, GROUPS));
        let member = MemberId::new(NodeId(1), 0);
        let founders = vec![(member, String::new())];
        let config = ReplicaConfig { founders, ..ReplicaConfig::new(group, member) };
        let (clock, peers) = (Arc::new(SystemClock::new()), Arc::new(NoPeers));
        let (log, disk, executor) = (log.group(group), disk.clone(), executor.clone());
        let replica = Replica::start(config, make, log, store, disk, clock, executor, peers).await;
        let replica = replica.expect("a fresh replica starts");
        replica.elect().await.expect("it has just started");
        replica.ready().await.expect("a group of one leads itself");
        replicas.push(replica);
    }
    (log, replicas)
}

fn percentile(sorted: &[u32], percent: usize) -> u32 {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or(0)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let dir = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from).join("propose");
    let (seconds, callers, batch) = (argument(2, 5), argument(3, 32), argument(4, 1));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the directory can be made");
    let (log, replicas) = start(Arc::new(RealDisk::new(&dir).expect("the directory can be opened"))).await;
    let next = Arc::new(AtomicU64::new(0));
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (replicas, next) = (replicas.clone(), next.clone());
            tokio::spawn(async move {
                let queue = QueueName::new("mail").expect("it is a valid name");
                let mut latencies = Vec::new();
                let mut turn = caller;
                while Instant::now() < deadline {
                    turn += 1;
                    let group = (turn % u64::from(GROUPS)) as usize;
                    let shard = ShardId::new(group as u16 + 1).expect("it is a valid number");
                    let first = next.fetch_add(batch, Ordering::Relaxed);
                    let commands = (first..first + batch).map(|n| enqueue(shard, &queue, n)).collect();
                    let start = Instant::now();
                    replicas[group].propose(commands).await.expect("the disk works");
                    latencies.push(start.elapsed().as_micros() as u32);
                }
                latencies
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.expect("no caller panics"));
    }
    latencies.sort_unstable();
    let commands = latencies.len() as u64 * batch;
    println!(
        "{callers} callers, {batch} per call: {} commands/s, p50 {} us, p99 {} us",
        commands / seconds,
        percentile(&latencies, 50),
        percentile(&latencies, 99),
    );
    let reads = Instant::now();
    for _ in 0..20_000 {
        replicas[0].read(Shard::tasks).await.expect("it leads");
    }
    println!("linearizable read: {} ns", reads.elapsed().as_nanos() / 20_000);
    for replica in &replicas {
        let status = replica.status();
        replica.stop().await.expect("the disk works");
        println!("group {}: {:?} entries, stall max {:?}", status.group, status.applied, status.stall_max);
    }
    println!("log: {:?}", log.stats());
    drop(log.close());
}
