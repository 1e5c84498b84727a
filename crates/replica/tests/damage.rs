//! Records that a disk gives back changed: they come whole from another member, and are never handed on.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

mod common;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "group/net.rs"]
mod net;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use common::{GROUP, ack, claim, discard, enqueue, task_id};
use model::{Claimed, Command, MemberId, Millis, Reply, Start};
use net::{Cluster, PATIENCE, eventually, member, usual};
use replica::{Error, ReplicaConfig};
use storage::{CheckpointStore, MemDisk, checkpoint_path};
use tokio::time::{Instant, sleep};

/// What is kept of a task when it first reaches a checkpoint, and what came later: `docs/formats/entry.md`.
const TABLE_KEPT: u8 = 16;
const TABLE_LATER: u8 = 17;

/// Nothing is remembered but what is on the disk, and only the test checkpoints.
fn forgetful(member: MemberId) -> ReplicaConfig {
    ReplicaConfig {
        checkpoint_interval: Millis::hours(1),
        keep_log_bytes: 0,
        envelope_cache_bytes: 0,
        ..usual(member)
    }
}

fn tasks(range: std::ops::Range<u64>) -> Vec<Command> {
    range.map(|n| enqueue(n, Start::Now)).collect()
}

/// Checkpoints on these nodes, and waits until their log has gone.
async fn forget(cluster: &Cluster, nodes: &[u64]) {
    for node in nodes {
        let replica = cluster.replica(*node);
        let deadline = Instant::now() + PATIENCE;
        while replica.status().purged != Some(replica.applied()) {
            replica.checkpoint_now().await.unwrap();
            assert!(Instant::now() < deadline, "{:?}", replica.status());
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Three members that have so many tasks on their disks, and no log of them.
async fn all_stored(count: u64) -> Cluster {
    let cluster = Cluster::new(3, forgetful).await;
    cluster.propose(&tasks(0..count)).await;
    cluster.same_everywhere().await;
    forget(&cluster, &[1, 2, 3]).await;
    cluster
}

async fn stop(cluster: &mut Cluster, node: u64) {
    let one = cluster.nodes.remove(&node).unwrap();
    one.replica.stop().await.unwrap();
    one.log.close().unwrap();
    cluster.kill(node, node);
}

/// Flips a bit in the middle of every copy of `text` in the checkpoint.
fn flip(disk: &MemDisk, text: &str) {
    let path = checkpoint_path(GROUP);
    let bytes = disk.read(&path).unwrap();
    let places = bytes.windows(text.len()).enumerate().filter(|(_, window)| *window == text.as_bytes());
    let places: Vec<usize> = places.map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "{text} is not on the disk");
    for at in places {
        disk.flip(&path, (at + text.len() / 2) as u64, 2);
    }
}

/// Stops a node, damages what its disk says, and starts it again.
async fn damage(cluster: &mut Cluster, node: u64, texts: &[&str]) {
    stop(cluster, node).await;
    texts.iter().for_each(|text| flip(&cluster.disks[&node], text));
    cluster.start(node).await;
}

async fn lead(cluster: &Cluster, node: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let leader = cluster.leader().await;
        if leader == node {
            return;
        }
        let _ = cluster.replica(leader).transfer_to(member(node)).await;
        assert!(Instant::now() < deadline, "{:?}", cluster.statuses());
        sleep(Duration::from_millis(20)).await;
    }
}

async fn claims(cluster: &Cluster, leader: u64, max: u32) -> Vec<Claimed> {
    let applied = cluster.replica(leader).propose(vec![claim(max)]).await.unwrap();
    match applied.into_iter().next().unwrap().outcome {
        Ok(Reply::Claimed(claims)) => claims,
        reply => panic!("{reply:?}"),
    }
}

/// What a stopped node has of a task on its disk.
fn row(disk: &MemDisk, table: u8, task: u64) -> Option<Bytes> {
    let store = CheckpointStore::open(Arc::new(disk.mount()), &checkpoint_path(GROUP), 1 << 20).unwrap();
    store.get(table, &task_id(task).bits().to_be_bytes()).unwrap()
}

fn is_whole(disk: &MemDisk, table: u8, task: u64) -> bool {
    row(disk, table, task).is_some_and(|row| wire::seal::is_whole(&task_id(task).bits().to_be_bytes(), &row))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_record_is_claimed_whole_and_mended_on_the_disk() {
    let mut cluster = all_stored(10).await;
    damage(&mut cluster, 1, &["envelope 3", "envelope 7"]).await;
    assert!(!is_whole_while_running(&cluster, 1, 3).await, "the flips must be seen");
    // Another copy has rotted as well, in another place: each mends the other.
    damage(&mut cluster, 2, &["envelope 5"]).await;
    lead(&cluster, 1).await;
    let mut claimed: Vec<String> =
        claims(&cluster, 1, 10).await.into_iter().map(|claim| text(&claim.envelope)).collect();
    claimed.sort();
    assert_eq!(claimed, (0..10).map(|n| format!("envelope {n}")).collect::<Vec<_>>());
    assert!(cluster.nodes[&1].log.fatal().is_none(), "the process must go on");
    // The mended ones reach the disk when they can.
    let deadline = Instant::now() + PATIENCE;
    loop {
        stop(&mut cluster, 1).await;
        if is_whole(&cluster.disks[&1], TABLE_KEPT, 3) && is_whole(&cluster.disks[&1], TABLE_KEPT, 7) {
            break;
        }
        assert!(Instant::now() < deadline);
        cluster.start(1).await;
        lead(&cluster, 1).await;
        envelopes(&cluster, 1, &[3, 7]).await;
        sleep(Duration::from_millis(50)).await;
    }
    cluster.stop().await;
}

/// The envelopes of tasks that are there, as a node says them.
async fn envelopes(cluster: &Cluster, node: u64, tasks: &[u64]) -> Vec<String> {
    let tasks: Vec<_> = tasks.iter().map(|task| task_id(*task)).collect();
    let envelopes = cluster.replica(node).envelopes(&tasks).await;
    envelopes.into_iter().map(|envelope| text(&envelope.unwrap().unwrap())).collect()
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether the node's own copy can be read: with nobody to ask it says so.
async fn is_whole_while_running(cluster: &Cluster, node: u64, task: u64) -> bool {
    for other in cluster.nodes.keys().filter(|other| **other != node) {
        cluster.net.cut(node, *other);
    }
    let kept = cluster.replica(node).kept(task_id(task)).await;
    let envelope = cluster.replica(node).envelopes(&[task_id(task)]).await.remove(0);
    cluster.net.heal();
    for read in [kept.as_ref().map(|_| ()), envelope.as_ref().map(|_| ())] {
        assert!(matches!(read, Ok(()) | Err(Error::Unavailable)), "{read:?}");
    }
    assert_eq!(kept.is_ok(), envelope.is_ok());
    kept.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_looks_at_a_damaged_record_sees_it_whole() {
    let mut cluster = all_stored(4).await;
    let leader = cluster.leader().await;
    let claims = claims(&cluster, leader, 1).await;
    cluster.propose(&[ack(&claims[0])]).await;
    cluster.same_everywhere().await;
    forget(&cluster, &[1, 2, 3]).await;
    let other = if leader == 3 { 2 } else { 3 };
    let before = cluster.replica(other).kept(task_id(0)).await.unwrap();
    assert_eq!((before.output.as_deref(), before.history.len()), (Some(&b"out"[..]), 3));
    // The output stands in the later record, the envelope in the first.
    damage(&mut cluster, other, &["envelope 2"]).await;
    stop(&mut cluster, other).await;
    let later = row(&cluster.disks[&other], TABLE_LATER, 0).unwrap();
    flip_bytes(&cluster.disks[&other], &later);
    cluster.start(other).await;
    assert!(!is_whole_while_running(&cluster, other, 2).await);
    eventually("it follows", || cluster.replica(other).leader().is_some(), || cluster.statuses()).await;
    assert_eq!(envelopes(&cluster, other, &[1, 2, 3]).await, ["envelope 1", "envelope 2", "envelope 3"]);
    assert_eq!(cluster.replica(other).kept(task_id(0)).await.unwrap(), before);
    assert!(cluster.nodes[&other].log.fatal().is_none());
    cluster.stop().await;
}

fn flip_bytes(disk: &MemDisk, record: &[u8]) {
    let path = checkpoint_path(GROUP);
    let bytes = disk.read(&path).unwrap();
    let places: Vec<usize> =
        bytes.windows(record.len()).enumerate().filter(|(_, w)| *w == record).map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| disk.flip(&path, (at + record.len() / 2) as u64, 3));
}

/// Three members, of which the third is away while the others get twenty tasks and forget their log.
async fn one_away() -> Cluster {
    let mut cluster = Cluster::new(3, forgetful).await;
    cluster.kill(3, 3);
    cluster.propose(&tasks(0..20)).await;
    cluster.same_everywhere().await;
    forget(&cluster, &[1, 2]).await;
    cluster
}

/// It is back, and gets what it missed by a checkpoint of the first.
async fn comes_back(cluster: &mut Cluster) {
    lead(cluster, 1).await;
    forget(cluster, &[1, 2]).await;
    cluster.start(3).await;
    cluster.same_everywhere().await;
    assert!(cluster.net.snapshots.load(Ordering::Relaxed) > 0, "it must have come by a checkpoint");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_record_is_never_handed_on() {
    let mut cluster = one_away().await;
    damage(&mut cluster, 1, &["envelope 13"]).await;
    comes_back(&mut cluster).await;
    stop(&mut cluster, 3).await;
    assert!(is_whole(&cluster.disks[&3], TABLE_KEPT, 13));
    // The sender mended its own first.
    stop(&mut cluster, 1).await;
    assert!(is_whole(&cluster.disks[&1], TABLE_KEPT, 13));
    cluster.stop().await;
}

/// Flips a bit of this task's key in the pages that have its record, and looks whether it is not found any more.
fn flip_key(disk: &MemDisk, table: u8, task: u64) {
    const PAGE: usize = 4096;
    let path = checkpoint_path(GROUP);
    let bytes = disk.read(&path).unwrap();
    let record = row(disk, table, task).unwrap();
    let key = task_id(task).bits().to_be_bytes();
    let is_in = |page: &[u8], text: &[u8]| page.windows(text.len()).position(|window| window == text);
    let mut flipped = 0;
    for (number, page) in bytes.chunks(PAGE).enumerate().filter(|(_, page)| is_in(page, &record).is_some()) {
        let at = is_in(page, &key).expect("the record's key is in its page");
        disk.flip(&path, (number * PAGE + at + key.len() - 1) as u64, 6);
        flipped += 1;
    }
    assert!(flipped > 0);
    assert_eq!(row(disk, table, task), None, "the flip must be seen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_under_a_damaged_key_is_missed_before_a_checkpoint_is_sent() {
    let mut cluster = one_away().await;
    stop(&mut cluster, 1).await;
    for task in [7, 19] {
        flip_key(&cluster.disks[&1], TABLE_KEPT, task);
    }
    cluster.start(1).await;
    comes_back(&mut cluster).await;
    stop(&mut cluster, 3).await;
    stop(&mut cluster, 1).await;
    for (node, task) in [(1, 7), (1, 19), (3, 7), (3, 19)] {
        assert!(is_whole(&cluster.disks[&node], TABLE_KEPT, task), "task {task} on node {node}");
    }
    assert!((0..20).all(|task| is_whole(&cluster.disks[&3], TABLE_KEPT, task)));
    cluster.stop().await;
}

/// What came of a task after its first checkpoint, under a damaged key: nothing but the task's own state misses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_record_under_a_damaged_key_is_missed() {
    let mut cluster = all_stored(20).await;
    let leader = cluster.leader().await;
    let claims = claims(&cluster, leader, 5).await;
    cluster.kill(3, 3);
    cluster.propose_among(&[1, 2], &claims.iter().take(3).map(ack).collect::<Vec<_>>()).await;
    cluster.same_everywhere().await;
    forget(&cluster, &[1, 2]).await;
    let before = cluster.replica(2).kept(task_id(0)).await.unwrap();
    assert_eq!((before.output.as_deref(), before.history.len()), (Some(&b"out"[..]), 3));
    stop(&mut cluster, 1).await;
    // Of two that are done, and one that is held.
    for task in [0, 2, 4] {
        flip_key(&cluster.disks[&1], TABLE_LATER, task);
    }
    cluster.start(1).await;
    cluster.leader().await;
    assert_eq!(cluster.replica(1).kept(task_id(0)).await.unwrap(), before, "whoever looks sees all of it");
    comes_back(&mut cluster).await;
    stop(&mut cluster, 2).await;
    stop(&mut cluster, 1).await;
    for task in [0, 1, 2, 4] {
        let key = task_id(task).bits().to_be_bytes();
        let rows = [TABLE_KEPT, TABLE_LATER].map(|table| row(&cluster.disks[&3], table, task));
        let rows = rows.into_iter().flatten();
        let lines: usize = rows
            .map(|row| wire::seal::opened::<wire::history::KeptMessage>(&key, row).unwrap().history.len())
            .sum();
        assert_eq!(lines, if task == 4 { 2 } else { 3 }, "lines of task {task} that were sent");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_node_with_a_damaged_record_gets_a_second_member() {
    let mut cluster = Cluster::new(1, forgetful).await;
    cluster.propose(&tasks(0..20)).await;
    forget(&cluster, &[1]).await;
    damage(&mut cluster, 1, &["envelope 13"]).await;
    cluster.leader().await;
    forget(&cluster, &[1]).await;
    cluster.start(2).await;
    cluster.replica(1).add_learner(member(2), "node-2").await.unwrap();
    cluster.same_everywhere().await;
    assert!(cluster.net.snapshots.load(Ordering::Relaxed) > 0, "it must have come by a checkpoint");
    assert_eq!(envelopes(&cluster, 2, &[12, 14]).await, ["envelope 12", "envelope 14"]);
    let lost = cluster.replica(2).envelopes(&[task_id(13)]).await.remove(0);
    assert_eq!(lost.unwrap(), None, "all were asked, and none has it");
    cluster.stop().await;
}

/// One damaged record at the sender of a checkpoint, while the only other member that has it is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_could_not_be_asked_for_comes_when_its_member_is_back() {
    let mut cluster = Cluster::new(3, forgetful).await;
    cluster.propose(&tasks(0..10)).await;
    let leader = cluster.leader().await;
    let claims = claims(&cluster, leader, 1).await;
    cluster.same_everywhere().await;
    forget(&cluster, &[1, 2, 3]).await;
    cluster.kill(2, 2);
    cluster.propose_among(&[1, 3], &tasks(10..20)).await;
    cluster.propose_among(&[1, 3], &[ack(&claims[0])]).await;
    cluster.same_everywhere().await;
    forget(&cluster, &[1, 3]).await;
    let before = cluster.replica(3).kept(task_id(0)).await.unwrap();
    assert_eq!(before.output.as_deref(), Some(&b"out"[..]));
    // Before the damage: whoever leads mends what it finds as soon as it would send a checkpoint.
    stop(&mut cluster, 3).await;
    stop(&mut cluster, 1).await;
    // Of two tasks the first record is damaged, of another the later one.
    flip(&cluster.disks[&1], "envelope 13");
    flip(&cluster.disks[&1], "envelope 5");
    let later = row(&cluster.disks[&1], TABLE_LATER, 0).unwrap();
    flip_bytes(&cluster.disks[&1], &later);
    cluster.start(1).await;
    cluster.start(2).await;
    assert_eq!(cluster.leader().await, 1, "the other lags");
    cluster.same_everywhere().await;
    assert!(cluster.net.snapshots.load(Ordering::Relaxed) > 0, "it must have come by a checkpoint");
    assert_eq!(envelopes(&cluster, 2, &[12, 14]).await, ["envelope 12", "envelope 14"]);
    // What the receiver had it keeps.
    assert_eq!(envelopes(&cluster, 2, &[5]).await, ["envelope 5"]);
    // Nobody pretends to have all of it.
    let unread = cluster.replica(2).envelopes(&[task_id(13)]).await.remove(0);
    assert!(matches!(unread, Err(Error::Unavailable)), "{unread:?}");
    let unread = cluster.replica(2).kept(task_id(0)).await;
    assert!(matches!(unread, Err(Error::Unavailable)), "{unread:?}");
    // And what comes next cannot hide that something is missing.
    stop(&mut cluster, 2).await;
    for task in [0, 13] {
        let later = row(&cluster.disks[&2], TABLE_LATER, task);
        assert!(later.is_some() && !is_whole(&cluster.disks[&2], TABLE_LATER, task), "task {task}");
    }
    cluster.start(2).await;
    cluster.same_everywhere().await;
    // An envelope is given by whoever has it, with or without the rest.
    assert_eq!(envelopes(&cluster, 2, &[0]).await, ["envelope 0"]);
    cluster.start(3).await;
    cluster.same_everywhere().await;
    assert_eq!(envelopes(&cluster, 2, &[13]).await, ["envelope 13"]);
    assert_eq!(cluster.replica(2).kept(task_id(0)).await.unwrap(), before);
    let deadline = Instant::now() + PATIENCE;
    loop {
        stop(&mut cluster, 2).await;
        if [0, 5, 13].into_iter().all(|task| is_whole(&cluster.disks[&2], TABLE_KEPT, task)) {
            break;
        }
        assert!(Instant::now() < deadline, "what was missing is on the disk in the end");
        cluster.start(2).await;
        cluster.same_everywhere().await;
        envelopes(&cluster, 2, &[0, 13]).await;
        sleep(Duration::from_millis(50)).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_member_is_away_a_task_that_has_gone_has_gone_and_a_damaged_one_hides_no_other() {
    let mut cluster = all_stored(4).await;
    damage(&mut cluster, 1, &["envelope 2"]).await;
    damage(&mut cluster, 2, &["envelope 2"]).await;
    cluster.kill(3, 3);
    cluster.propose(&[discard(task_id(0))]).await;
    cluster.same_everywhere().await;
    for is_checkpointed in [false, true] {
        if is_checkpointed {
            forget(&cluster, &[1]).await;
        }
        let kept = cluster.replica(1).kept(task_id(0)).await;
        assert_eq!(kept.unwrap(), Default::default(), "checkpointed: {is_checkpointed}");
        let read = cluster.replica(1).envelopes(&[0, 1, 2, 3].map(task_id)).await;
        // Until the next checkpoint its record may still be found.
        assert!(matches!(read[0], Ok(None)) || read[0].is_ok() && !is_checkpointed, "{read:?}");
        assert!(matches!(read[2], Err(Error::Unavailable)), "{read:?}");
        for n in [1, 3] {
            assert_eq!(text(read[n].as_ref().unwrap().as_ref().unwrap()), format!("envelope {n}"));
        }
    }
    cluster.stop().await;
}
