//! Several members of one group, over a network that can be cut: what they promise together.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

#[path = "../common/mod.rs"]
mod common;
mod net;
mod quiet;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use common::{enqueue, enqueue_with, task_id};
use model::{Command, MemberId, Millis, NodeId, Start};
use net::{Cluster, PATIENCE, eventually, member, usual};
use parking_lot::Mutex;
use replica::{Error, Heard, ReplicaConfig, Role};
use storage::Disk;
use tokio::time::{Instant, sleep, timeout};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Nothing of the log is kept that is checkpointed, and only the test checkpoints.
fn forgetful(member: MemberId) -> ReplicaConfig {
    ReplicaConfig { checkpoint_interval: Millis::hours(1), keep_log_bytes: 0, ..usual(member) }
}

fn tasks(range: std::ops::Range<u64>) -> Vec<Command> {
    range.map(|n| enqueue(n, Start::Now)).collect()
}

/// Tasks that make a large checkpoint.
fn fat_tasks(range: std::ops::Range<u64>) -> Vec<Command> {
    range.map(|n| enqueue_with(n, Start::Now, Bytes::from(vec![n as u8; 4_000]))).collect()
}

fn count(cluster: &Cluster, node: u64) -> usize {
    cluster.replica(node).read_stale(|toy| toy.states().len())
}

fn others(cluster: &Cluster, node: u64) -> Vec<u64> {
    cluster.nodes.keys().copied().filter(|other| *other != node).collect()
}

/// Checkpoints on these nodes, and waits until their log has gone.
async fn forget(cluster: &Cluster, nodes: &[u64]) {
    for node in nodes {
        let replica = cluster.replica(*node);
        let deadline = Instant::now() + PATIENCE;
        let has_gone = || replica.status().purged == Some(replica.applied());
        while !has_gone() {
            // A transfer under way may hold on to it for a while.
            replica.checkpoint_now().await.unwrap();
            assert!(Instant::now() < deadline, "{:?}", replica.status());
            sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_choose_a_leader_and_apply_the_same() {
    let cluster = Cluster::new(3, usual).await;
    let applied = cluster.propose(&tasks(0..100)).await;
    assert_eq!(applied.len(), 100);
    cluster.same_everywhere().await;
    let leader = cluster.leader().await;
    for (node, one) in &cluster.nodes {
        let status = one.replica.status();
        assert_eq!(status.leader, Some(member(leader)));
        assert_eq!(status.voters, [member(1), member(2), member(3)]);
        assert_eq!(status.role, if *node == leader { Role::Leader } else { Role::Follower });
        assert_eq!(one.replica.leads(), *node == leader);
        assert!(status.heard.is_some_and(|heard| heard < PATIENCE), "{status:?}");
        // A follower may have voted for another, or not at all.
        assert!(*node != leader || status.voted_for == Some(member(leader)), "{status:?}");
        let members = one.replica.members();
        assert_eq!(members.addresses[&member(2)], "node-2");
        assert!(members.committed && !members.is_joint);
    }
    let leads = cluster.replica(leader);
    eventually(
        "all have it",
        || leads.progress().values().all(|at| *at == leads.applied()),
        || leads.progress(),
    )
    .await;
    let follower = cluster.replica(others(&cluster, leader)[0]);
    let refused = follower.propose(tasks(0..1)).await;
    assert!(
        matches!(refused, Err(Error::NotLeader { leader: Some(node) }) if node.0 == leader),
        "{refused:?}"
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn founders_go_on_without_one_that_was_lost_between_their_votes_and_its_first_entry() {
    let mut cluster = Cluster::down(3, usual);
    cluster.net.loses_appends.store(true, Ordering::Relaxed);
    for node in 1..=3 {
        cluster.start(node).await;
    }
    cluster.replica(1).elect().await.unwrap();
    eventually("it has their votes", || cluster.replica(1).leads(), || cluster.statuses()).await;
    cluster.kill(1, 1);
    cluster.net.loses_appends.store(false, Ordering::Relaxed);
    cluster.leader().await;
    cluster.propose(&tasks(0..10)).await;
    cluster.same_everywhere().await;
    cluster.stop().await;
}

// On one thread the engine does not run before somebody waits for it.
#[tokio::test]
async fn a_member_says_who_its_members_are_as_soon_as_it_has_started() {
    let mut cluster = Cluster::down(3, usual);
    cluster.start(1).await;
    assert_eq!(cluster.replica(1).members().voters, BTreeSet::from([member(1), member(2), member(3)]));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_outlives_the_leader() {
    let mut cluster = Cluster::new(3, usual).await;
    let mut done = 0;
    for round in 0..3 {
        for n in done..done + 20 {
            cluster.propose(&tasks(n..n + 1)).await;
        }
        done += 20;
        let leader = cluster.leader().await;
        cluster.kill(leader, round);
        let next = cluster.leader().await;
        assert_ne!(next, leader);
        assert_eq!(cluster.replica(next).read(|toy| toy.states().len()).await.unwrap() as u64, done);
        cluster.propose(&tasks(done..done + 5)).await;
        done += 5;
        cluster.start(leader).await;
        cluster.same_everywhere().await;
        assert_eq!(count(&cluster, leader) as u64, done);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_away_catches_up_by_the_log() {
    let mut cluster = Cluster::new(3, usual).await;
    cluster.propose(&tasks(0..10)).await;
    let leader = cluster.leader().await;
    let away = others(&cluster, leader)[0];
    cluster.kill(away, 5);
    for n in 10..60 {
        cluster.propose(&tasks(n..n + 1)).await;
    }
    for node in cluster.nodes.keys() {
        cluster.replica(*node).checkpoint_now().await.unwrap();
    }
    cluster.start(away).await;
    cluster.same_everywhere().await;
    assert_eq!(cluster.net.snapshots.load(Ordering::Relaxed), 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_away_for_long_gets_a_checkpoint_and_goes_on_after_a_restart() {
    let mut cluster = Cluster::new(3, forgetful).await;
    cluster.propose(&tasks(0..10)).await;
    let leader = cluster.leader().await;
    let away = others(&cluster, leader)[0];
    let mut notices = cluster.replica(away).subscribe();
    // Something of its own that is not checkpointed yet must not come back.
    cluster.kill(away, 5);
    cluster.propose(&tasks(10..500)).await;
    forget(&cluster, &others(&cluster, away)).await;
    cluster.propose(&tasks(500..510)).await;
    cluster.start(away).await;
    cluster.same_everywhere().await;
    assert!(cluster.net.snapshots.load(Ordering::Relaxed) > 0);
    assert_eq!(count(&cluster, away), 510);
    while notices.next().await.is_some() {}
    // It goes on from there: with the log, checkpoints of its own, and a restart.
    cluster.propose(&tasks(510..520)).await;
    cluster.same_everywhere().await;
    let status = cluster.replica(away).status();
    let leads = cluster.replica(leader).status();
    let point = status.hash_points[0];
    assert!(leads.hash_points.contains(&point), "{point:?} {:?}", leads.hash_points);
    cluster.kill(away, 6);
    cluster.start(away).await;
    cluster.same_everywhere().await;
    let envelopes = cluster.replica(away).envelopes(&[task_id(3), task_id(515)]).await;
    let envelopes: Vec<_> = envelopes.into_iter().map(Result::unwrap).collect();
    assert_eq!(envelopes, [Some("envelope 3".into()), Some("envelope 515".into())]);
    forget(&cluster, &[away]).await;
    cluster.propose(&tasks(520..530)).await;
    cluster.kill(away, 7);
    cluster.start(away).await;
    cluster.same_everywhere().await;
    for (node, disk) in &cluster.disks {
        let left = disk.list(Path::new("transfer")).unwrap();
        assert!(left.is_empty(), "node {node}: {left:?}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_listens_hears_that_a_checkpoint_took_the_place_of_entries() {
    let cluster = Cluster::new(3, forgetful).await;
    let leader = cluster.leader().await;
    let away = others(&cluster, leader)[0];
    let mut notices = cluster.replica(away).subscribe();
    cluster.propose(&tasks(0..1)).await;
    let Some(Heard::Notice(heard)) = notices.next().await else { panic!("nothing heard") };
    assert!(!heard.is_leader);
    let rest = others(&cluster, away);
    rest.iter().for_each(|other| cluster.net.cut(*other, away));
    cluster.propose_among(&rest, &tasks(1..200)).await;
    forget(&cluster, &rest).await;
    cluster.net.heal();
    let heard = timeout(PATIENCE, notices.next()).await.unwrap();
    assert!(matches!(heard, Some(Heard::Lagged(_))), "{heard:?}");
    cluster.same_everywhere().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_that_breaks_goes_on_where_it_was() {
    let mut cluster = Cluster::new(3, forgetful).await;
    let leader = cluster.leader().await;
    let away = others(&cluster, leader)[0];
    cluster.kill(away, 5);
    for n in 0..10 {
        cluster.propose(&fat_tasks(n * 200..(n + 1) * 200)).await;
    }
    forget(&cluster, &others(&cluster, away)).await;
    let chunks = 2_000 * 4_000 / (256 * 1024);
    *cluster.net.snapshots_max.lock() = Some(chunks / 2);
    cluster.start(away).await;
    let sent = || cluster.net.snapshots.load(Ordering::Relaxed);
    // Several tries fail.
    eventually("it breaks", || sent() > chunks / 2 + 3, sent).await;
    assert_eq!(count(&cluster, away), 0);
    let before = sent();
    *cluster.net.snapshots_max.lock() = None;
    cluster.same_everywhere().await;
    assert_eq!(count(&cluster, away), 2_000);
    let after = sent() - before;
    assert!(after < chunks, "{after} messages for the second half of {chunks}");
    cluster.stop().await;
}

/// Of the log that is checkpointed, the last large entry stays, and what came after it.
fn keeps_a_tail(member: MemberId) -> ReplicaConfig {
    ReplicaConfig { keep_log_bytes: 64 * 1024, ..forgetful(member) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_that_breaks_counts_for_no_more_than_it_brought_when_there_is_a_newer_checkpoint() {
    let mut cluster = Cluster::new(3, keeps_a_tail).await;
    let leader = cluster.leader().await;
    let away = others(&cluster, leader)[0];
    let rest = others(&cluster, away);
    cluster.kill(away, 5);
    for n in 0..4 {
        cluster.propose(&fat_tasks(n * 200..(n + 1) * 200)).await;
    }
    for node in &rest {
        cluster.replica(*node).checkpoint_now().await.unwrap();
    }
    let purged = || rest.iter().all(|node| cluster.replica(*node).status().purged > Some(1));
    eventually("the log goes", purged, || cluster.statuses()).await;
    let chunks = 800 * 4_000 / (256 * 1024);
    *cluster.net.snapshots_max.lock() = Some(chunks / 2);
    cluster.start(away).await;
    let sent = || cluster.net.snapshots.load(Ordering::Relaxed);
    eventually("it breaks", || sent() > chunks / 2 + 1, sent).await;
    // Meanwhile the group goes on. The log still goes on after what is half sent.
    for n in 800..820 {
        cluster.propose_among(&rest, &tasks(n..n + 1)).await;
    }
    for node in &rest {
        cluster.replica(*node).checkpoint_now().await.unwrap();
    }
    let before = sent();
    *cluster.net.snapshots_max.lock() = None;
    cluster.same_everywhere().await;
    assert_eq!(count(&cluster, away), 820);
    let after = sent() - before;
    assert!(after < chunks, "{after} messages for the second half of {chunks}");
    let leads = cluster.replica(cluster.leader().await);
    let has_all = || leads.progress().get(&member(away)) == Some(&leads.applied());
    eventually("it has caught up", has_all, || leads.progress()).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_in_the_middle_of_a_transfer_leaves_the_old_state_or_the_new() {
    let mut cluster = Cluster::new(3, forgetful).await;
    let leader = cluster.leader().await;
    let away = others(&cluster, leader)[0];
    cluster.propose(&tasks(0..10)).await;
    cluster.same_everywhere().await;
    cluster.replica(away).checkpoint_now().await.unwrap();
    let mut total = 10;
    for seed in 0..12 {
        cluster.kill(away, seed);
        let rest = others(&cluster, away);
        cluster.propose_among(&rest, &fat_tasks(total..total + 50)).await;
        total += 50;
        forget(&cluster, &rest).await;
        let before = cluster.net.snapshots.load(Ordering::Relaxed);
        cluster.start(away).await;
        // Somewhere between the first message and the end.
        eventually("it begins", || cluster.net.snapshots.load(Ordering::Relaxed) > before, || ()).await;
        cluster.disks[&away].cut_power_after(4 * seed);
        eventually(
            "the power goes, or it is done",
            || cluster.disks[&away].power_is_off() || count(&cluster, away) as u64 == total,
            || cluster.statuses(),
        )
        .await;
    }
    cluster.kill(away, 77);
    cluster.start(away).await;
    cluster.same_everywhere().await;
    assert_eq!(count(&cluster, away) as u64, total);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_come_and_go() {
    let mut cluster = Cluster::new(3, forgetful).await;
    cluster.propose(&tasks(0..100)).await;
    forget(&cluster, &[1, 2, 3]).await;
    cluster.start(4).await;
    let leader = cluster.leader().await;
    let leads = cluster.replica(leader).clone();
    leads.add_learner(member(4), "node-4").await.unwrap();
    leads.add_learner(member(4), "node-4").await.unwrap();
    assert_eq!(leads.members().learners, BTreeSet::from([member(4)]));
    cluster.same_everywhere().await;
    assert_eq!(cluster.replica(4).status().role, Role::Learner);
    let has_all = || leads.progress().get(&member(4)) == Some(&leads.applied());
    eventually("it has caught up", has_all, || leads.progress()).await;
    // One of the others gives its vote to it, and stays as a learner.
    let old = others(&cluster, leader)[0];
    let voters: BTreeSet<_> = cluster.nodes.keys().copied().filter(|node| *node != old).map(member).collect();
    let learners = BTreeMap::from([(member(old), format!("node-{old}"))]);
    leads.set_members(&voters, &learners).await.unwrap();
    let members = leads.members();
    assert_eq!((&members.voters, members.is_joint), (&voters, false));
    assert_eq!(members.learners, BTreeSet::from([member(old)]));
    cluster.same_everywhere().await;
    // A voter and a learner move, and stay what they are.
    let moved = BTreeMap::from([(member(old), "there".to_owned()), (member(4), "elsewhere".to_owned())]);
    leads.set_members(&voters, &moved).await.unwrap();
    let members = leads.members();
    assert_eq!((&members.voters, &members.learners), (&voters, &BTreeSet::from([member(old)])));
    assert_eq!((&*members.addresses[&member(old)], &*members.addresses[&member(4)]), ("there", "elsewhere"));
    assert_eq!(members.addresses[&member(leader)], format!("node-{leader}"));
    cluster.propose(&tasks(100..105)).await;
    cluster.same_everywhere().await;
    // Then it goes.
    leads.set_members(&voters, &BTreeMap::new()).await.unwrap();
    assert_eq!(leads.members().addresses.len(), 3);
    cluster.kill(old, 1);
    cluster.propose(&tasks(100..110)).await;
    cluster.same_everywhere().await;
    assert_eq!(count(&cluster, 4), 110);
    // A member that nobody knows cannot vote.
    let strange = BTreeSet::from([member(1), member(9)]);
    let refused = leads.set_members(&strange, &BTreeMap::new()).await;
    assert!(matches!(refused, Err(Error::Members { .. })), "{refused:?}");
    let follower = others(&cluster, leader)[0];
    let refused = cluster.replica(follower).add_learner(member(9), "node-9").await;
    assert!(matches!(refused, Err(Error::NotLeader { leader: Some(_) })), "{refused:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over() {
    let cluster = Cluster::new(3, usual).await;
    cluster.propose(&tasks(0..10)).await;
    let leader = cluster.leader().await;
    for to in others(&cluster, leader) {
        let from = cluster.leader().await;
        let asked = Instant::now();
        let seen = cluster.replica(to).leader();
        // A new leader does not know yet how far the others are.
        while let Err(error) = cluster.replica(from).transfer_to(member(to)).await {
            assert!(matches!(error, Error::Unavailable) && asked.elapsed() < PATIENCE, "{error}");
            sleep(Duration::from_millis(5)).await;
        }
        timeout(PATIENCE, cluster.replica(to).leader_changed(seen)).await.unwrap();
        eventually("it leads", || cluster.replica(to).leads(), || cluster.statuses()).await;
        cluster.propose(&tasks(10..20)).await;
    }
    let refused = cluster.replica(leader).transfer_to(member(leader)).await;
    assert!(matches!(refused, Err(Error::NotLeader { .. })), "{refused:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_lost_its_quorum_reads_and_takes_nothing() {
    let cluster = Cluster::new(3, usual).await;
    cluster.propose(&tasks(0..10)).await;
    let old = cluster.leader().await;
    let rest = others(&cluster, old);
    rest.iter().for_each(|other| cluster.net.cut(*other, old));
    // What it takes in before it knows may happen or not; it must end all the same.
    let lost = {
        let replica = cluster.replica(old).clone();
        tokio::spawn(async move { replica.propose(tasks(10..11)).await })
    };
    let read = cluster.replica(old).read(|toy| toy.states().len()).await;
    assert!(matches!(read, Err(Error::Unavailable | Error::NotLeader { .. })), "{read:?}");
    let new = cluster.leader_of(&rest).await;
    cluster.propose_among(&rest, &tasks(20..30)).await;
    assert!(cluster.replica(new).read(|toy| toy.states().len()).await.unwrap() >= 20);
    let read = cluster.replica(old).read(|toy| toy.states().len()).await;
    assert!(matches!(read, Err(Error::Unavailable | Error::NotLeader { .. })), "{read:?}");
    let asked = Instant::now();
    let pieces = replica::Replica::<common::Toy>::encode(&tasks(40..41));
    loop {
        let (done, refused) = cluster.replica(old).propose_pieces(&pieces, Duration::from_secs(20)).await;
        assert!(done.is_empty());
        match refused {
            Some(Error::Unavailable | Error::NotLeader { .. }) => break,
            refused => assert!(asked.elapsed() < PATIENCE, "{refused:?}"),
        }
    }
    // What waits behind an entry that cannot go through is refused, long before that is given up.
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    cluster.net.heal();
    cluster.same_everywhere().await;
    let lost = timeout(PATIENCE, lost).await.unwrap().unwrap();
    assert!(lost.is_err(), "{lost:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_process_is_gone_is_replaced_at_once() {
    let mut cluster = Cluster::new(3, usual).await;
    let mut waits = Vec::new();
    for round in 0..4 {
        cluster.propose(&tasks(round..round + 1)).await;
        let leader = cluster.leader().await;
        // The others have just heard from it.
        sleep(Duration::from_millis(150)).await;
        cluster.kill(leader, round);
        let died = Instant::now();
        cluster.tell_gone(leader);
        cluster.leader().await;
        waits.push(died.elapsed());
        cluster.start(leader).await;
        cluster.same_everywhere().await;
    }
    // Without that word a promise of 800 ms to the old leader stands in the way. On a busy machine some rounds
    // may take longer.
    waits.sort_unstable();
    assert!(waits[0] < Duration::from_millis(500), "{waits:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_only_one_takes_for_gone_keeps_its_term() {
    let cluster = Cluster::new(3, usual).await;
    cluster.propose(&tasks(0..1)).await;
    let leader = cluster.leader().await;
    let term = cluster.replica(leader).status().term;
    let doubter = others(&cluster, leader)[0];
    // As when a firewall refuses: it hears nothing from the leader, which the third still follows.
    cluster.net.cut(leader, doubter);
    cluster.replica(doubter).node_gone(NodeId(leader));
    // Longer than all its tries.
    for n in 1..15 {
        sleep(Duration::from_millis(100)).await;
        cluster.propose_among(&[leader], &tasks(n..n + 1)).await;
        let now = cluster.nodes.values().map(|node| node.replica.status().term);
        assert_eq!(now.max(), Some(term), "{:?}", cluster.statuses());
    }
    cluster.net.heal();
    cluster.same_everywhere().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_serves_a_read_once_it_has_what_the_leader_says() {
    let cluster = Cluster::new(3, usual).await;
    let leader = cluster.leader().await;
    let follower = cluster.replica(others(&cluster, leader)[0]);
    for n in 0..20 {
        cluster.propose(&tasks(n..n + 1)).await;
        let index = cluster.replica(leader).read_index().await.unwrap();
        follower.wait_applied(index, PATIENCE).await.unwrap();
        assert!(follower.applied() >= index);
        assert_eq!(follower.read_stale(|toy| toy.states().len()) as u64, n + 1);
    }
    let late = follower.wait_applied(1_000_000, Duration::from_millis(50)).await;
    assert!(matches!(late, Err(Error::Unavailable)), "{late:?}");
    let refused = follower.read_index().await;
    assert!(matches!(refused, Err(Error::NotLeader { leader: Some(_) })), "{refused:?}");
    follower.ready().await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_differs_stops_for_good_and_the_others_go_on() {
    let mut cluster = Cluster::new(3, forgetful).await;
    cluster.propose(&tasks(0..10)).await;
    cluster.same_everywhere().await;
    let leader = cluster.leader().await;
    let checkpointed = cluster.replica(leader).status().checkpointed;
    cluster.replica(leader).diverged("its hash is another at index 5");
    eventually(
        "it has stopped",
        || cluster.replica(leader).status().role == Role::Stopped,
        || cluster.statuses(),
    )
    .await;
    let status = cluster.replica(leader).status();
    assert_eq!(status.failure.as_deref(), Some("its hash is another at index 5"));
    let rest = others(&cluster, leader);
    cluster.propose_among(&rest, &tasks(10..20)).await;
    let refused = cluster.replica(leader).propose(tasks(0..1)).await;
    assert!(matches!(refused, Err(Error::Stopped)), "{refused:?}");
    // Its data stays as it was.
    let node = cluster.nodes.remove(&leader).unwrap();
    drop(node.replica.stop().await);
    assert_eq!(node.replica.status().checkpointed, checkpointed);
    node.log.close().unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_although_nobody_is_reached() {
    let mut cluster = Cluster::new(3, usual).await;
    cluster.propose(&tasks(0..10)).await;
    let leader = cluster.leader().await;
    for other in others(&cluster, leader) {
        cluster.kill(other, other);
    }
    let replica = cluster.replica(leader).clone();
    let lost = tokio::spawn(async move { replica.propose(tasks(10..11)).await });
    sleep(Duration::from_millis(50)).await;
    let asked = Instant::now();
    cluster.stop().await;
    assert!(asked.elapsed() < Duration::from_secs(12), "{:?}", asked.elapsed());
    assert!(timeout(PATIENCE, lost).await.unwrap().unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_a_received_checkpoint_and_the_log_before_it_is_no_damage() {
    let mut cluster = Cluster::new(1, forgetful).await;
    cluster.propose(&tasks(0..50)).await;
    forget(&cluster, &[1]).await;
    cluster.start(2).await;
    cluster.replica(1).add_learner(member(2), "node-2").await.unwrap();
    cluster.same_everywhere().await;
    let index = cluster.replica(2).status().checkpointed.unwrap();
    cluster.kill(2, 1);
    // A leader that knows nothing of the new member's log.
    cluster.kill(1, 1);
    cluster.start(1).await;
    cluster.leader().await;
    // As if the new member's first purge had not reached the disk.
    for path in cluster.disks[&2].list(Path::new("log")).unwrap() {
        cluster.disks[&2].remove(&path).unwrap();
    }
    let refused = cluster.try_start(2).await;
    assert!(
        matches!(&refused, Err(Error::Storage { what, .. }) if what.contains("log is empty")),
        "{refused:?}"
    );
    let received = format!("transfer/1-{index}.install");
    cluster.disks[&2].open(Path::new(&received), storage::Open::Create).unwrap();
    cluster.disks[&2].sync_dir(Path::new("transfer")).unwrap();
    cluster.start(2).await;
    cluster.same_everywhere().await;
    assert!(!cluster.disks[&2].exists(Path::new(&received)).unwrap());
    cluster.stop().await;
}

/// Keeps what the engine calls an error, on the thread where it listens.
#[derive(Clone, Default)]
struct Complaints(Arc<Mutex<Vec<String>>>);

impl Subscriber for Complaints {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("openraft") && *metadata.level() == Level::ERROR
    }

    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                self.0.push_str(&format!("{field}: {value:?} "));
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().push(text.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

// All on this thread, so that all is heard.
#[tokio::test]
async fn a_member_that_stops_in_order_complains_of_nothing_although_it_is_still_talked_to() {
    let complaints = Complaints::default();
    let _listening = tracing::subscriber::set_default(complaints.clone());
    let mut cluster = Cluster::new(3, usual).await;
    cluster.propose(&tasks(0..10)).await;
    let leader = cluster.leader().await;
    let stopped = cluster.nodes.remove(&others(&cluster, leader)[0]).unwrap();
    let appends = cluster.net.appends.load(Ordering::Relaxed);
    stopped.replica.stop().await.unwrap();
    for n in 10..20 {
        cluster.propose(&tasks(n..n + 1)).await;
    }
    let sent = || cluster.net.appends.load(Ordering::Relaxed) - appends;
    eventually("it is talked to for a while", || sent() > 100, sent).await;
    stopped.log.close().unwrap();
    cluster.stop().await;
    assert_eq!(*complaints.0.lock(), [""; 0]);
}
