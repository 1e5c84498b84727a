//! Nodes that have not heard of each other: one that was away while the cluster changed, one that joins with a short list.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::rig::{PATIENCE, Rig, until};

fn vote_everywhere(rig: &Rig, n: usize, nodes: &[u64]) -> bool {
    let voters = rig.voters(n);
    voters.len() == 4 && voters.values().all(|voters| voters == nodes)
}

/// Writes a task that was not there before; where it is.
fn write(rig: &Rig, key: &str) -> String {
    let task = json!({"kind": "k", "dedup_key": key});
    let enqueued = rig.client().post("/v1/queues/q/tasks", &task, PATIENCE).unwrap();
    assert!(matches!(enqueued.status, 200 | 201), "{enqueued:?}");
    format!("/v1/tasks/{}", enqueued.body["id"].as_str().unwrap())
}

fn list(rig: &Rig, nodes: &[usize]) -> String {
    let named = |&n: &usize| format!("{}={}", rig.nodes[n].number, rig.nodes[n].peer);
    nodes.iter().map(named).collect::<Vec<_>>().join(",")
}

#[test]
fn a_node_that_was_away_while_others_came_and_went_finds_those_that_came() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let old_list = list(&rig, &[0, 1, 2]);
    rig.kill(2);
    // The fourth comes and the second goes, all of it unknown to the third, which keeps its votes.
    let fourth = rig.add();
    rig.start(fourth);
    rig.await_ready(fourth);
    let mut leave = rig.command(&["cluster", "leave", "2", "--yes", "--wait", "60s"]);
    let left = leave.stdin(Stdio::null()).output().unwrap();
    assert!(left.status.success(), "{}", String::from_utf8_lossy(&left.stderr));
    until("the three that are left vote everywhere", || vote_everywhere(&rig, fourth, &[1, 3, 4]));
    rig.stop(1);
    let written = write(&rig, "written without the third");
    rig.kill(0);
    // The third and the fourth are a majority, and the third has never heard of the fourth.
    rig.set_flags(2, &[&format!("--cluster={old_list}")]);
    rig.start(2);
    rig.await_leaders(PATIENCE);
    let task = rig.client().safe("GET", &written, &Value::Null, Duration::ZERO, PATIENCE).unwrap();
    assert_eq!(task.status, 200, "{task:?}");
    write(&rig, "written by the two");
    until("the third knows who is there", || vote_everywhere(&rig, 2, &[1, 3, 4]));
}

#[test]
fn a_node_joins_that_was_told_of_one_other_which_does_not_lead_the_catalog() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let catalog = rig.await_leaders(PATIENCE)[&0];
    let told_of = (0..3).find(|n| *n != catalog).unwrap();
    let fourth = rig.add();
    let short = list(&rig, &[told_of, fourth]);
    rig.set_flags(fourth, &[&format!("--cluster={short}")]);
    rig.start(fourth);
    rig.await_ready(fourth);
    let task = write(&rig, "written after it came");
    until("it has what the others have", || {
        crate::client::Client::of(rig.nodes[fourth].http).get(&task).is_ok_and(|answer| answer.status == 200)
    });
}
