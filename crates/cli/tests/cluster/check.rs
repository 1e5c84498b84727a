//! What must be true of a history, whatever happened to the nodes. Each rule fails with its promise's number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::client::Client;
use crate::load::{CALL_MAX, Claim, History, QUEUE};

/// All rules that hold for every load.
#[track_caller]
pub(crate) fn all(history: &History) {
    println!(
        "history: {} enqueues answered, {} claims, {} acks answered, {} failures",
        history.enqueued.len(),
        history.claims.len(),
        history.acks.len(),
        history.failures.len()
    );
    kept(history);
    acked_once(history);
    one_holder(history);
}

/// P1: every enqueue that was answered was worked off.
#[track_caller]
fn kept(history: &History) {
    let acked: BTreeSet<&str> = history.acks.iter().map(|(id, _)| id.as_str()).collect();
    let lost: Vec<&String> = history.enqueued.keys().filter(|id| !acked.contains(id.as_str())).collect();
    assert!(lost.is_empty(), "P1: {} tasks were enqueued and lost, such as {}", lost.len(), lost[0]);
}

/// P5: an ack that was answered is the last word on its task: no second one, no claim after it.
#[track_caller]
fn acked_once(history: &History) {
    let mut acked: BTreeMap<&str, u64> = BTreeMap::new();
    for (id, fence) in &history.acks {
        let before = acked.insert(id, *fence);
        assert!(before.is_none(), "P5: {id} was acked with {before:?} and with {fence}");
    }
    for claim in &history.claims {
        if let Some(&fence) = acked.get(claim.id.as_str()) {
            assert!(
                claim.fence <= fence,
                "P5: {} was acked with {fence} and claimed with {}",
                claim.id,
                claim.fence
            );
        }
    }
}

/// P3: fences grow, and a task is claimed again only when the hold of the claim before can have passed. The callers
/// of the load never give a task back, so there is no other way.
#[track_caller]
fn one_holder(history: &History) {
    let mut by_task: BTreeMap<&str, Vec<&Claim>> = BTreeMap::new();
    for claim in &history.claims {
        by_task.entry(&claim.id).or_default().push(claim);
    }
    for (id, mut claims) in by_task {
        claims.sort_by_key(|claim| claim.fence);
        for pair in claims.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            assert!(first.fence < second.fence, "P3: {id} was given out twice with fence {}", first.fence);
            let apart = second.received.saturating_duration_since(first.sent);
            assert!(apart >= first.hold, "P3: {id} had two holders: claimed {apart:?} apart");
        }
    }
}

/// No call was without a good answer.
#[track_caller]
pub(crate) fn nothing_failed(history: &History) {
    let failures = &history.failures;
    assert!(failures.is_empty(), "{} calls failed, such as: {}", failures.len(), failures[0]);
}

/// The cluster's own count agrees: as many done as were enqueued, none of them dead.
#[track_caller]
pub(crate) fn counted(history: &History, client: &mut Client) {
    let path = format!("/v1/queues/{QUEUE}");
    let queue = client.safe("GET", &path, &Value::Null, Duration::ZERO, CALL_MAX).unwrap().body;
    let total = |name: &str| queue["totals"][name].as_u64().unwrap() as usize;
    assert_eq!(total("dead"), 0, "{queue}");
    assert_eq!(total("done"), total("enqueued"), "{queue}");
    // An enqueue whose answer was lost for good may count there and not here.
    let unanswered = history.failures.len();
    assert!(
        (history.enqueued.len()..=history.enqueued.len() + unanswered).contains(&total("done")),
        "{queue}"
    );
}
