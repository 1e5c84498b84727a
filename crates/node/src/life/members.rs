//! The leader of a group makes the group's members what the catalog says: `reconcile.rs` has the rule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::{GroupId, MemberId};
use state_machine::Catalog;
use tokio::time::Instant;

use super::reconcile::{Step, Wanted, next_step};
use crate::any_replica::AnyReplica;
use crate::error::Error;
use crate::groups::told;
use crate::inner::Inner;

/// How often a leader looks.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// A member that is behind by no more has caught up…
const BEHIND_MAX: u64 = 1_000;
/// …when it has been so for this long.
const CAUGHT_UP_FOR: Duration = Duration::from_secs(1);

/// Keeps a group's members until the node stops.
pub(crate) async fn run(inner: Arc<Inner>, replica: Arc<dyn AnyReplica>) {
    let mut near = BTreeMap::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = inner.stopping.cancelled() => return,
        }
        if !replica.leads() {
            near.clear();
            continue;
        }
        if let Err(error) = keep(&inner, &*replica, &mut near).await {
            tracing::debug!(group = %replica.group(), %error, "the members did not change: again soon");
        }
    }
}

fn wanted(catalog: &Catalog, group: GroupId) -> Wanted {
    let Some(voters) = catalog.voters(group) else { return Wanted::default() };
    let member = |node| catalog.node(node).map(|record| record.member(node));
    Wanted {
        voters: voters.iter().filter_map(|node| member(*node)).collect(),
        copies: catalog
            .nodes()
            .map(|(node, record)| (record.member(node), record.addresses.peer.clone()))
            .collect(),
    }
}

async fn keep(
    inner: &Inner,
    replica: &dyn AnyReplica,
    near: &mut BTreeMap<MemberId, Instant>,
) -> Result<(), Error> {
    let group = replica.group();
    let (me, members) = (replica.member(), replica.members());
    let seen = inner.groups.catalog.read_stale(|catalog| wanted(catalog, group));
    let is_same = seen.voters == members.voters && seen.copies == members.addresses;
    if is_same && !members.is_joint {
        // Nobody comes, goes or moves, which is how it mostly is.
        near.clear();
        return Ok(());
    }
    let ready = caught_up(inner, replica, near);
    if next_step(me, &members, &seen, &ready) == Step::Nothing {
        return Ok(());
    }
    // What is here may be behind, and would undo what a leader before did: only the newest counts.
    let newest = inner.groups.read_catalog(|catalog| wanted(catalog, group)).await?;
    match next_step(me, &members, &newest, &ready) {
        Step::Nothing => Ok(()),
        Step::AddLearner(member) => {
            tracing::info!(%group, %member, "a new copy begins to follow");
            let address = newest.copies.get(&member).cloned().unwrap_or_default();
            replica.add_learner(member, address).await.map_err(told)
        }
        Step::HandOver(heir) => {
            tracing::info!(%group, %heir, "leadership goes on: this node is to lose its vote");
            replica.transfer_to(heir).await.map_err(told)
        }
        Step::SetMembers(voters) => {
            tracing::info!(%group, voters = ?shown(&voters), before = ?shown(&members.voters), "members change");
            replica.set_members(voters, newest.copies).await.map_err(told)
        }
    }
}

fn shown(members: &BTreeSet<MemberId>) -> Vec<String> {
    members.iter().map(ToString::to_string).collect()
}

/// The members that are up and have been near the end of the log for a while; the leader itself is.
fn caught_up(
    inner: &Inner,
    replica: &dyn AnyReplica,
    near: &mut BTreeMap<MemberId, Instant>,
) -> BTreeSet<MemberId> {
    let last = replica.status().last.unwrap_or(0);
    let is_near = |(member, index): &(MemberId, u64)| {
        index.saturating_add(BEHIND_MAX) >= last && *index > 0 && inner.is_up(member.node())
    };
    let now: BTreeSet<MemberId> =
        replica.progress().into_iter().filter(is_near).map(|(member, _)| member).collect();
    near.retain(|member, _| now.contains(member));
    for member in now {
        near.entry(member).or_insert_with(Instant::now);
    }
    let mut ready: BTreeSet<MemberId> = near
        .iter()
        .filter(|(_, since)| since.elapsed() >= CAUGHT_UP_FOR)
        .map(|(member, _)| *member)
        .collect();
    ready.insert(replica.member());
    ready
}
