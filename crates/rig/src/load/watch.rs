//! Looks at one node again and again, and writes what it says of itself: hashes, votes, leaderships.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Shared, rest};
use crate::client::Client;
use crate::cluster::{Group, View};

const EVERY: Duration = Duration::from_millis(250);

/// What was written of a group last: nothing new is not written.
#[derive(Default, PartialEq, Eq)]
struct Last {
    hash_index: u64,
    vote: (u64, u64, Option<u64>),
    leads: Option<u64>,
}

pub(super) fn watch(shared: &Arc<Shared>, n: usize, lives: &[AtomicU64]) {
    let mut client = Client::quick(shared.addresses[n]);
    let mut lasts: Vec<(u16, Last)> = Vec::new();
    while shared.working.load(Ordering::Relaxed) {
        let next = Instant::now() + EVERY;
        let life = lives[n].load(Ordering::SeqCst);
        let answer = client.connect().then(|| client.call("GET", "/v1/node", "", Duration::ZERO)).flatten();
        let view = answer.and_then(|answer| serde_json::from_value::<View>(answer.body).ok());
        // Of a life that ended meanwhile nobody knows which one answered.
        if let Some(view) = view.filter(|_| lives[n].load(Ordering::SeqCst) == life) {
            for group in view.groups {
                let last = match lasts.iter().position(|(id, _)| *id == group.id) {
                    Some(at) => &mut lasts[at].1,
                    None => {
                        lasts.push((group.id, Last::default()));
                        let at = lasts.len() - 1;
                        &mut lasts[at].1
                    }
                };
                write(shared, n as u64 + 1, life, &group, last);
            }
        }
        rest(&shared.working, next);
    }
}

fn write(shared: &Shared, node: u64, life: u64, group: &Group, last: &mut Last) {
    let (id, term, at_us) = (group.id, group.term, shared.history.now_us());
    if let Some(hash) = group.hash.as_ref().filter(|hash| hash.index != last.hash_index) {
        last.hash_index = hash.index;
        let line = json!({"node": node, "group": id, "index": hash.index, "hash": hash.hash});
        shared.history.write(&json!({"hash": line}));
    }
    let vote = (life, term, own_vote(node, life, group, last));
    // A learner promises nothing.
    if vote != last.vote && group.role != "learner" {
        last.vote = vote;
        let mut line = json!({"node": node, "incarnation": life, "group": id, "term": term, "at_us": at_us});
        if let Some(voted_for) = last.vote.2 {
            line["voted_for"] = voted_for.into();
        }
        shared.history.write(&json!({"vote": line}));
    }
    if group.role == "leader" && last.leads != Some(term) {
        last.leads = Some(term);
        let line = json!({"node": node, "group": id, "term": term, "at_us": at_us});
        shared.history.write(&json!({"leader": line}));
    }
}

/// For whom a member voted itself. After a restart it may not know any more, and in older versions it names the leader
/// once there is one, whoever got its own vote.
fn own_vote(node: u64, life: u64, group: &Group, last: &Last) -> Option<u64> {
    let names_leader =
        group.leader.is_some() && group.leader == group.voted_for && group.leader != Some(node);
    let (known_life, known_term, known) = last.vote;
    match group.voted_for {
        Some(voted_for) if !names_leader => Some(voted_for),
        _ if (known_life, known_term) == (life, group.term) => known,
        _ => None,
    }
}
