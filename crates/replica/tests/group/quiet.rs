//! Groups in which nothing happens: nobody says anything, and yet they are there at once, and lose no leader but one
//! that is lost.

use std::time::Duration;

use state_machine::Machine as _;

use super::*;

fn term(cluster: &Cluster, node: u64) -> u64 {
    cluster.replica(node).status().term
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_in_which_nothing_happens_is_quiet_and_works_at_once_when_something_does() {
    let cluster = Cluster::new(3, usual).await;
    cluster.propose(&tasks(0..10)).await;
    cluster.same_everywhere().await;
    let (leader, carrier) = (cluster.leader().await, cluster.quiet().await);
    let begin = term(&cluster, leader);
    for (node, one) in &cluster.nodes {
        // By the words, not by heartbeats.
        let heard = || one.replica.status().heard.is_some_and(|heard| heard < Duration::from_secs(1));
        eventually("it is heard", heard, || (*node, cluster.statuses())).await;
    }
    for n in 0..2 {
        let applied = cluster.replica(leader).propose(tasks(10 + n..11 + n)).await;
        assert_eq!(applied.map(|applied| applied.len()).ok(), Some(1), "{:?}", cluster.statuses());
        cluster.same_everywhere().await;
        cluster.falls_quiet().await;
    }
    assert_eq!((cluster.leader().await, term(&cluster, leader)), (leader, begin), "nobody was elected");
    drop(carrier);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_leader_that_is_lost_without_a_word_is_replaced() {
    let mut cluster = Cluster::new(3, usual).await;
    cluster.propose(&tasks(0..10)).await;
    let counted = |node: u64| cluster.replica(node).read_stale(|toy| toy.stamps().0);
    let leader = cluster.leader().await;
    let (before, carrier) = (counted(leader), cluster.quiet().await);
    sleep(Duration::from_secs(4)).await;
    cluster.kill(leader, 1);
    let next = cluster.leader().await;
    assert_ne!(next, leader);
    cluster.propose(&tasks(10..20)).await;
    // By its words alone the lost one has told how far it counted: 2 s until it was quiet, and all the time since.
    let after = cluster.replica(next).read_stale(|toy| toy.stamps().0);
    assert!(after.since(before) >= Millis::secs(5), "{before:?} and {after:?}");
    // With one member away it is not quiet, and it is again once that one is back.
    cluster.start(leader).await;
    cluster.same_everywhere().await;
    cluster.falls_quiet().await;
    drop(carrier);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_hears_no_word_costs_a_quiet_group_no_leader() {
    let cluster = Cluster::new(3, usual).await;
    cluster.propose(&tasks(0..10)).await;
    let carrier = cluster.quiet().await;
    let leader = cluster.leader().await;
    let begin = term(&cluster, leader);
    let [deaf, other] = others(&cluster, leader)[..] else { panic!("three members") };
    cluster.net.cut(leader, deaf);
    // Several elections could have been held.
    let silence = || cluster.replica(deaf).status().heard.is_some_and(|heard| heard > Duration::from_secs(3));
    eventually("it waits", silence, || cluster.statuses()).await;
    assert!(cluster.replica(leader).leads(), "{:?}", cluster.statuses());
    assert_eq!((term(&cluster, leader), term(&cluster, other)), (begin, begin));
    cluster.net.heal();
    cluster.same_everywhere().await;
    cluster.falls_quiet().await;
    assert_eq!((cluster.leader().await, term(&cluster, deaf)), (leader, begin));
    drop(carrier);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_leader_hands_over_and_changes_members() {
    let cluster = Cluster::new(3, usual).await;
    cluster.propose(&tasks(0..10)).await;
    let carrier = cluster.quiet().await;
    let leader = cluster.leader().await;
    let next = others(&cluster, leader)[0];
    cluster.replica(leader).transfer_to(member(next)).await.unwrap();
    eventually("it leads", || cluster.replica(next).leads(), || cluster.statuses()).await;
    cluster.falls_quiet().await;
    let voters: BTreeSet<_> = [member(next), member(leader)].into();
    let copies = cluster.replica(next).members().addresses;
    cluster.replica(next).set_members(&voters, &copies).await.unwrap();
    assert_eq!(cluster.replica(next).members().voters, voters);
    cluster.falls_quiet().await;
    cluster.propose(&tasks(10..20)).await;
    drop(carrier);
    cluster.stop().await;
}
