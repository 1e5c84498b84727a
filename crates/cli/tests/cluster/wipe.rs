//! A node that lost its disk, one that comes and one that goes: nobody votes before it has caught up, nothing is lost.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agreement::await_same;
use crate::check;
use crate::client::Client;
use crate::load::{Load, Shape};
use crate::rig::{GroupView, NodeView, PATIENCE, Rig, until};

/// How long a node that was wiped may take to vote again in all groups.
const REJOIN_MAX: Duration = Duration::from_secs(60);
/// Tasks in one request.
const CHUNK: usize = 5_000;
/// Nobody claims from here.
const PILE: &str = "pile";

/// Puts so many tasks onto the pile.
fn pile_up(rig: &Rig, count: usize) {
    let began = Instant::now();
    let (mut client, path) = (rig.client(), format!("/v1/queues/{PILE}/tasks"));
    client.answer_max = PATIENCE;
    let keys = json!({"dedup_keys_max": 4 * count});
    let made = client.safe("PUT", &format!("/v1/queues/{PILE}"), &keys, Duration::ZERO, PATIENCE).unwrap();
    assert!(matches!(made.status, 200 | 201), "{made:?}");
    for first in (0..count).step_by(CHUNK) {
        let task = |n: usize| json!({"kind": "k", "payload": {"n": n}, "dedup_key": format!("{n}")});
        let tasks: Vec<Value> = (first..count.min(first + CHUNK)).map(task).collect();
        let answer = client.post(&path, &json!({"tasks": tasks}), PATIENCE).unwrap();
        let results = answer.body["results"].as_array().unwrap_or_else(|| panic!("{answer:?}"));
        if let Some(refused) = results.iter().find(|result| !result["id"].is_string()) {
            panic!("{refused}");
        }
    }
    println!("{count} tasks wait after {:?}", began.elapsed());
}

/// How many lie there, as the whole cluster says.
fn piled(client: &mut Client) -> u64 {
    let path = format!("/v1/queues/{PILE}");
    let queue = client.safe("GET", &path, &Value::Null, Duration::ZERO, PATIENCE).unwrap().body;
    queue["depth"]["ready"].as_u64().unwrap_or_else(|| panic!("{queue}"))
}

/// The role of a node's copy of each shard, and of the catalog, as the node itself sees it.
fn groups(rig: &Rig, n: usize) -> Option<BTreeMap<u16, GroupView>> {
    let NodeView { groups, .. } = rig.view(n)?;
    Some(groups.into_iter().map(|group| (group.id, group)).collect())
}

#[test]
fn a_wiped_node_rejoins_under_load_and_votes_only_when_it_has_caught_up() {
    let _alone = crate::alone();
    let count = crate::rounds(50_000, 1_000_000);
    let mut rig = Rig::started(3, &[]);
    pile_up(&rig, count);
    let load = Load::start(&rig.addresses(), Shape::light());
    load.flow(200);
    let (victim, _) = rig.busiest();
    rig.kill(victim);
    rig.wipe(victim);
    load.flow(100);
    let other = (victim + 1) % 3;
    let committed: BTreeMap<u16, u64> =
        groups(&rig, other).unwrap().into_iter().map(|(id, group)| (id, group.commit)).collect();
    rig.start(victim);
    let began = Instant::now();
    let (mut seen_learning, mut looks) = (false, 0u64);
    until("it votes everywhere again", || {
        let Some(groups) = groups(&rig, victim) else { return false };
        looks += 1;
        for (id, group) in &groups {
            let has_caught_up = group.applied >= committed[id];
            seen_learning |= group.role == "learner" && !has_caught_up;
            let what = format!("group {id} at {} of {}: {group:?}", group.applied, committed[id]);
            assert!(group.role == "learner" || has_caught_up, "it votes before it has caught up: {what}");
        }
        groups.len() == committed.len() && groups.values().all(|group| group.role != "learner")
    });
    let took = began.elapsed();
    println!("a wiped node votes again after {took:?} with {count} tasks waiting ({looks} looks)");
    assert!(seen_learning, "it was never seen to learn: is the transfer watched at all?");
    rig.await_leaders(PATIENCE);
    // While both lives are members, the old one counts for a majority, and it is dead.
    until("its old life is no member any more", || {
        let groups = groups(&rig, other).unwrap_or_default();
        groups.len() == committed.len() && groups.values().all(|group| group.peers.len() == 2)
    });
    // Now another one may go: what was copied counts.
    let next = (victim + 2) % 3;
    rig.kill(next);
    load.flow(100);
    assert_eq!(piled(&mut rig.client()), count as u64);
    rig.start(next);
    rig.await_ready(next);
    let history = load.stop();
    check::all(&history);
    check::counted(&history, &mut rig.client());
    check::nothing_failed(&history);
    await_same(&rig);
    assert!(took <= REJOIN_MAX, "{took:?}");
}

#[test]
fn a_node_wiped_while_the_second_is_down_and_the_third_lags_loses_nothing() {
    let _alone = crate::alone();
    for round in 0..crate::rounds(1, 5) {
        let mut rig = Rig::started(3, &[]);
        let mut early = 0;
        write(&mut rig.client(), &mut early, 50);
        // Written by the first two while the third stands still.
        rig.freeze(2);
        let two: Vec<_> = rig.up().into_iter().map(|n| rig.nodes[n].http).collect();
        let mut late = early;
        write(&mut Client::new(&two), &mut late, 100);
        // What the third led stays its own in its eyes, in its old term; nobody may lead in a new one.
        let terms: BTreeMap<u16, u64> =
            groups(&rig, 1).unwrap().into_iter().map(|(id, group)| (id, group.term)).collect();
        rig.kill(1);
        rig.kill(0);
        rig.wipe(0);
        rig.thaw(2);
        rig.start(0);
        // The one with an empty disk and the one that lags would be a quorum, and would know nothing of the late ones.
        let over = Instant::now() + Duration::from_secs(crate::rounds(4, 15) as u64);
        let mut client = Client::new(&[rig.nodes[0].http, rig.nodes[2].http]);
        client.answer_max = Duration::from_secs(15);
        while Instant::now() < over {
            let answer = client.get("/v1/queues/late");
            assert!(answer.as_ref().map_or(true, |answer| answer.status >= 500), "served: {answer:?}");
            for n in [0, 2] {
                let is_new = |id: &u16, group: &GroupView| group.role == "leader" && group.term > terms[id];
                let leads = groups(&rig, n).into_iter().flatten().find(|(id, group)| is_new(id, group));
                assert!(leads.is_none(), "node {} leads without what was promised: {leads:?}", n + 1);
            }
            client.next();
        }
        rig.start(1);
        rig.await_leaders(PATIENCE);
        let mut client = rig.client();
        for n in 0..late {
            let path = format!("/v1/queues/late/tasks/{n}");
            let task = client.safe("GET", &path, &Value::Null, Duration::ZERO, PATIENCE).unwrap();
            assert_eq!((task.status, &task.body["state"]), (200, &json!("ready")), "P1: {n}: {task:?}");
        }
        until("the wiped node votes again", || {
            let all = rig.voters(1);
            all.len() == 4
                && all.values().all(|voters| voters == &[1, 2, 3])
                && groups(&rig, 0).is_some_and(|groups| groups.values().all(|group| group.role != "learner"))
        });
        await_same(&rig);
        println!("round {round}: {late} tasks of two nodes were found again, {early} of all three");
    }
}

/// Enqueues so many more, one by one, and counts them.
fn write(client: &mut Client, written: &mut usize, count: usize) {
    for _ in 0..count {
        let task = json!({"kind": "k", "dedup_key": written.to_string()});
        let answer = client.post("/v1/queues/late/tasks", &task, PATIENCE).unwrap();
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
        *written += 1;
    }
}

#[test]
fn a_fourth_node_joins_one_leaves_and_the_votes_follow_under_load() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let count = crate::rounds(5_000, 200_000);
    pile_up(&rig, count);
    let load = Load::start(&rig.addresses(), Shape::light());
    load.flow(200);
    let fourth = rig.add();
    rig.start(fourth);
    rig.await_ready(fourth);
    let three_each =
        |votes: &BTreeMap<u64, Vec<u64>>| votes.len() == 4 && votes.values().all(|voters| voters.len() == 3);
    let votes_of = |votes: &BTreeMap<u64, Vec<u64>>, node: u64| {
        votes.values().filter(|voters| voters.contains(&node)).count()
    };
    let began = Instant::now();
    until("the fourth has its share of votes", || {
        let votes = rig.voters(fourth);
        // Of 15 votes in five groups it gets three or four, and may have one of them in the catalog.
        three_each(&votes) && votes_of(&votes, 4) >= 2
    });
    println!("the fourth has its share after {:?}: {:?}", began.elapsed(), rig.voters(fourth));
    let (leaving, _) = rig.busiest();
    let number = rig.nodes[leaving].number;
    let began = Instant::now();
    let mut leave = rig.command(&["cluster", "leave", &number.to_string(), "--yes", "--wait", "60s"]);
    let output = leave.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    println!("node {number} has left after {:?}", began.elapsed());
    rig.stop(leaving);
    let left: Vec<u64> = (1..=4).filter(|other| *other != number).collect();
    let stay = rig.up()[0];
    until("three vote everywhere", || rig.voters(stay).values().all(|voters| *voters == left));
    rig.await_leaders(PATIENCE);
    // One more may go now, and all is still there.
    let next = rig.up().into_iter().find(|&n| n != fourth).unwrap();
    rig.kill(next);
    load.flow(100);
    assert_eq!(piled(&mut rig.client()), count as u64);
    rig.start(next);
    rig.await_ready(next);
    let history = load.stop();
    check::all(&history);
    check::counted(&history, &mut rig.client());
    check::nothing_failed(&history);
    await_same(&rig);
}

#[test]
fn a_node_that_is_killed_again_and_again_while_it_rejoins_gets_there() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    pile_up(&rig, crate::rounds(20_000, 300_000));
    let (victim, _) = rig.busiest();
    rig.kill(victim);
    rig.wipe(victim);
    for round in 0..crate::rounds(3, 15) {
        rig.start(victim);
        // Each time a little later in its way back.
        std::thread::sleep(Duration::from_millis(150 + 200 * round as u64));
        rig.kill(victim);
        if round % 3 == 2 {
            let _ = std::fs::remove_dir_all(&rig.nodes[victim].data);
        }
    }
    rig.start(victim);
    rig.await_ready(victim);
    until("it votes everywhere again", || {
        groups(&rig, victim)
            .is_some_and(|groups| groups.len() == 5 && groups.values().all(|group| group.role != "learner"))
    });
    await_same(&rig);
}
