//! The real shard behind a replica: a task's life over log, checkpoint, crash and clock.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::command::{Ack, Claim, ClaimQueue};
use model::{
    Claimed, Command, Digest, GroupId, MemberId, Millis, NewTask, NodeId, QueueName, Reply, ShardId, Start,
    StateKind, TaskId, WallTime, Wishes, WorkerName,
};
use replica::{Codec, NoPeers, Replica, ReplicaConfig, SystemClock};
use state_machine::{Catalog, Shard};
use storage::{CheckpointStore, Disk, Log, LogOptions, MemDisk, ThreadExecutor, checkpoint_path};

async fn start<M: Codec>(disk: &MemDisk, group: u16, make: fn() -> M) -> (Log, Replica<M>) {
    let disk: Arc<dyn Disk> = Arc::new(disk.mount());
    let executor = Arc::new(ThreadExecutor);
    let options = LogOptions { on_fatal: Arc::new(|_| ()), segment_bytes: 4 << 20, ..LogOptions::default() };
    let (log, _) = Log::open(disk.clone(), Path::new("log"), options, executor.clone()).unwrap();
    disk.create_dir_all(Path::new("shards")).unwrap();
    let group = GroupId(group);
    let store = CheckpointStore::open(disk.clone(), &checkpoint_path(group), 1 << 20).unwrap();
    // Only the test checkpoints.
    let member = MemberId::new(NodeId(1), 0);
    let founders = vec![(member, String::new())];
    let config = ReplicaConfig {
        founders,
        checkpoint_interval: Millis::hours(1),
        ..ReplicaConfig::new(group, member)
    };
    let (clock, peers) = (Arc::new(SystemClock::new()), Arc::new(NoPeers));
    let log_of_group = log.group(group);
    let replica = Replica::start(config, Box::new(make), log_of_group, store, disk, clock, executor, peers)
        .await
        .unwrap();
    replica.elect().await.unwrap();
    replica.ready().await.unwrap();
    (log, replica)
}

fn shard() -> Shard {
    Shard::new(ShardId::new(1).unwrap(), 1)
}

fn queue() -> QueueName {
    QueueName::new("mail").unwrap()
}

fn enqueue(n: u64, start: Start) -> Command {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let task = NewTask {
        id: TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(now.as_millis() as u64), n),
        queue: queue(),
        kind_hash: 1,
        digest: Digest(0),
        priority: 5,
        wishes: Wishes { start, ..Wishes::default() }.boxed(),
        envelope: format!("envelope {n}").into(),
    };
    Command::Enqueue { tasks: vec![task], atomic: false }
}

async fn claim(replica: &Replica<Shard>, max: u32, hold: Millis) -> Vec<Claimed> {
    let claim = Claim {
        queues: vec![ClaimQueue { name: queue(), weight: 0 }],
        worker: WorkerName::new("w").unwrap(),
        session: None,
        max,
        hold: Some(hold),
        request: None,
    };
    match replica.propose(vec![Command::Claim(claim)]).await.unwrap().remove(0).outcome.unwrap() {
        Reply::Claimed(claims) => claims,
        reply => panic!("{reply:?}"),
    }
}

fn ack(claimed: &Claimed) -> Command {
    Command::Ack(Ack {
        task: claimed.id,
        fence: claimed.fence,
        output: Bytes::from_static(b"1"),
        then: vec![],
    })
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "not within 10 s: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn state(replica: &Replica<Shard>, task: TaskId) -> Option<StateKind> {
    replica.read_stale(|shard| shard.task(task).map(|view| view.state))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acked_task_stays_done_through_checkpoint_and_crash() {
    for checkpoints in [false, true] {
        let disk = MemDisk::new();
        let (log, replica) = start(&disk, 1, shard).await;
        replica.propose((0..10).map(|n| enqueue(n, Start::Now)).collect()).await.unwrap();
        let claims = claim(&replica, 10, Millis::secs(30)).await;
        assert_eq!(claims.len(), 10);
        if checkpoints {
            replica.checkpoint_now().await.unwrap();
        }
        replica.propose(claims[..5].iter().map(ack).collect()).await.unwrap();
        disk.crash(7);
        drop((log, replica));
        let (log, replica) = start(&disk, 1, shard).await;
        for (n, claimed) in claims.iter().enumerate() {
            let expected = if n < 5 { StateKind::Done } else { StateKind::Claimed };
            assert_eq!(state(&replica, claimed.id), Some(expected));
        }
        let kept = replica.kept(claims[0].id).await.unwrap();
        assert_eq!((kept.envelope, kept.output), (Some("envelope 0".into()), Some("1".into())));
        let events: Vec<_> = kept.history.iter().map(|line| line.event.as_str()).collect();
        assert_eq!(events, ["enqueued", "claimed", "acked"]);
        replica.stop().await.unwrap();
        log.close().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_ends_at_its_deadline_and_a_delay_at_its_time() {
    let (log, replica) = start(&MemDisk::new(), 1, shard).await;
    replica.propose(vec![enqueue(1, Start::Now), enqueue(2, Start::After(Millis(200)))]).await.unwrap();
    let claims = claim(&replica, 10, Millis(100)).await;
    assert_eq!(claims.len(), 1);
    let start = Instant::now();
    eventually("the claim is freed", || state(&replica, claims[0].id) == Some(StateKind::Ready)).await;
    assert!(start.elapsed() >= Duration::from_millis(90), "{:?}", start.elapsed());
    let ready = |shard: &Shard| shard.ready_hint(&queue()).map_or(0, |hint| hint.count);
    eventually("both are ready", || replica.read_stale(ready) == 2).await;
    replica.stop().await.unwrap();
    log.close().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_catalog_is_replicated_in_the_same_way() {
    use model::catalog::{CatalogCommand, ClusterFacts};
    let disk = MemDisk::new();
    let (log, replica) = start(&disk, 0, Catalog::new).await;
    let facts = ClusterFacts { cluster_id: 7, shards: 4, token_key: [1; 32] };
    replica.propose(vec![CatalogCommand::Init(facts.clone())]).await.unwrap();
    replica.stop().await.unwrap();
    log.close().unwrap();
    drop((log, replica));
    let (log, replica) = start(&disk, 0, Catalog::new).await;
    assert_eq!(replica.read(|catalog| catalog.cluster().cloned()).await.unwrap(), Some(facts));
    replica.stop().await.unwrap();
    log.close().unwrap();
}
