//! Keeps the catalog's word on nodes and votes.
//!
//! Every node sees to its own record. Whoever leads the catalog finishes a founding, decides who votes, and
//! takes nodes that leave out when they have no vote left. All of it looks at what is, does one thing, and
//! looks again: whatever a leader leaves undone, the next one does. A node that is down keeps its votes until
//! a person says otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use model::catalog::{CatalogCommand, NodeRecord};
use model::{GroupId, MemberId, NodeId, Rejection};
use state_machine::Catalog;
use tokio::time::Instant;
use wire::life::{Probe, ProbeAnswer, Standing};
use wire::peer::PeerKind;

use super::probe::PROBE_WAIT;
use super::voters::{self, Candidate};
use crate::call::Freshness;
use crate::error::Error;
use crate::inner::Inner;
use crate::link::LinkState;

/// How often it looks when the catalog does not change.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After something that did not work.
const BACKOFF: Duration = Duration::from_millis(200);
/// Whoever has not heard the catalog's leader for so long hears none.
const UNHEARD: Duration = Duration::from_secs(3);
/// How often a node that hears no leader asks whether it is still part of the cluster.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// What the catalog says, as this node knows it.
struct View {
    has_cluster: bool,
    version: u64,
    nodes: BTreeMap<NodeId, NodeRecord>,
    voters: BTreeMap<GroupId, Vec<NodeId>>,
}

impl View {
    fn of(catalog: &Catalog, groups: impl Iterator<Item = GroupId>) -> View {
        let voters = |group| Some((group, catalog.voters(group)?.to_vec()));
        View {
            has_cluster: catalog.cluster().is_some(),
            version: catalog.nodes_version(),
            nodes: catalog.nodes().map(|(node, record)| (node, record.clone())).collect(),
            voters: groups.filter_map(voters).collect(),
        }
    }
}

/// Keeps the catalog until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let catalog = inner.groups.catalog.clone();
    let mut asked: Option<Instant> = None;
    loop {
        let index = catalog.applied();
        let pause = match inner.keep_catalog().await {
            Ok(()) => LOOK_EVERY,
            Err(error) => {
                tracing::debug!(%error, "the catalog was not kept: again soon");
                BACKOFF
            }
        };
        if inner.is_known_as_removed() {
            inner.was_removed("its own copy of the catalog says so");
        } else if catalog.status().heard.is_some_and(|ago| ago < UNHEARD) {
            asked = None;
        } else if asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY) {
            asked = Some(Instant::now());
            inner.ask_whether_removed().await;
        }
        tokio::select! {
            _ = catalog.wait_applied(index + 1, pause) => {}
            () = inner.stopping.cancelled() => return,
        }
    }
}

impl Inner {
    pub(crate) fn is_up(&self, node: NodeId) -> bool {
        node == self.node || matches!(self.links.state(node), LinkState::Up { .. })
    }

    fn nodes_view(&self) -> View {
        let groups = self.replicas.iter().map(|replica| replica.group());
        self.groups.catalog.read_stale(|catalog| View::of(catalog, groups))
    }

    /// One look, and the one thing that it asks for.
    async fn keep_catalog(&self) -> Result<(), Error> {
        if self.next_command(&self.nodes_view()).is_none() {
            return Ok(());
        }
        // What is here may be behind, even on a leader that has just become one: only the newest counts.
        self.groups.wait_for_catalog(Freshness::Linearizable).await?;
        let view = self.nodes_view();
        let Some(command) = self.next_command(&view) else { return Ok(()) };
        if let CatalogCommand::RemoveNode { node, .. } = &command {
            // From this look on no leader finds a reason in the catalog to give it a vote. Whether it has one is what
            // each group has to say after that: a copy from before may not know of a vote that came and that has yet
            // to go. A leader that read the catalog before, and stood still since, may still give it one: its next
            // look at the catalog takes that back, which needs no more than a majority of the others.
            let (catalog, shards) =
                (self.groups.wait_for_catalog(Freshness::Linearizable), self.groups.all());
            futures::try_join!(catalog, self.groups.wait_for(shards, Freshness::Linearizable))?;
            if self.has_vote(&view, *node) {
                return Ok(());
            }
            tracing::info!(%node, "the node has no votes left and leaves the cluster");
        }
        tracing::debug!(?command, "the catalog changes");
        match self.groups.propose_catalog(command).await {
            // Somebody else was faster: the next look sees what is now.
            Ok(_) | Err(Error::Rejected(Rejection::StaleVersion { .. })) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What this node has to say to the catalog when it is as seen.
    fn next_command(&self, view: &View) -> Option<CatalogCommand> {
        if !self.groups.catalog.leads() {
            return self.own_record(view);
        }
        let own = || self.own_record(view);
        let votes = || self.next_votes(view);
        self.founding(view).or_else(own).or_else(votes).or_else(|| self.next_to_go(view))
    }

    /// What makes the cluster, when nobody has said it yet. All founders would say the same.
    fn founding(&self, view: &View) -> Option<CatalogCommand> {
        if !view.has_cluster {
            let Standing::Member { facts, founders, .. } = self.life.standing() else { return None };
            return (!founders.is_empty()).then_some(CatalogCommand::Found { facts, nodes: founders });
        }
        // Data of a lone node from before nodes had records.
        let is_lone = view.version == 0 && self.member.incarnation() == 0;
        let addresses = self.life.addresses.clone();
        is_lone.then(|| CatalogCommand::AddNode { node: self.node, nonce: rand::random(), addresses })
    }

    /// Where this node is, when the catalog does not know.
    fn own_record(&self, view: &View) -> Option<CatalogCommand> {
        let (node, incarnation) = (self.node, self.member.incarnation());
        let record = view.nodes.get(&node)?;
        let addresses = self.life.addresses.clone();
        let has_moved = record.incarnation == incarnation && record.addresses != addresses;
        has_moved.then_some(CatalogCommand::SetNode { node, incarnation, addresses })
    }

    fn next_votes(&self, view: &View) -> Option<CatalogCommand> {
        let candidate = |(node, record): (&NodeId, &NodeRecord)| {
            (*node, Candidate { is_leaving: record.is_leaving, is_up: self.is_up(*node) })
        };
        let nodes = view.nodes.iter().map(candidate).collect();
        let mut votes = view.voters.clone();
        for replica in &self.replicas {
            if votes.contains_key(&replica.group()) {
                continue;
            }
            // Who votes in fact is where it begins. Where this node has no copy yet, that is who made the
            // group: nobody changes it before its votes are in the catalog.
            let group = replica.group();
            let mut nodes: Vec<NodeId> =
                replica.members().voters.iter().map(|member| member.node()).collect();
            if nodes.is_empty() {
                nodes = self.first_votes(group)?;
            }
            votes.insert(group, nodes);
        }
        let written: BTreeSet<GroupId> = view.voters.keys().copied().collect();
        let (group, nodes) = voters::next_change(&votes, &written, &nodes)?;
        Some(CatalogCommand::SetVoters { group, nodes, version: view.version })
    }

    /// Who voted in a group when it was made, if this node was there.
    fn first_votes(&self, group: GroupId) -> Option<Vec<NodeId>> {
        let Standing::Member { founders, .. } = self.life.standing() else { return None };
        let founders: Vec<NodeId> = founders.into_iter().map(|(node, _)| node).collect();
        (!founders.is_empty()).then(|| voters::first(group, &founders))
    }

    /// A node that leaves and has no vote left, as far as the copies here know.
    fn next_to_go(&self, view: &View) -> Option<CatalogCommand> {
        let is_free =
            |(node, record): &(&NodeId, &NodeRecord)| record.is_leaving && !self.has_vote(view, **node);
        let (&node, record) = view.nodes.iter().find(is_free)?;
        Some(CatalogCommand::RemoveNode { node, incarnation: record.incarnation })
    }

    /// Whether a node votes, or may, by the catalog's word or by what the copies here know of their groups.
    fn has_vote(&self, view: &View, node: NodeId) -> bool {
        let is_of = |member: &MemberId| member.node() == node;
        view.voters.values().any(|voters| voters.contains(&node))
            || self.replicas.iter().any(|replica| {
                let members = replica.members();
                members.is_joint
                    || !members.committed
                    || members.voters.iter().any(is_of)
                    // What the engine shows may be a moment older than what is applied.
                    || replica.status().voters.iter().any(is_of)
            })
    }

    fn is_known_as_removed(&self) -> bool {
        let (node, life) = (self.node, self.member.incarnation());
        self.groups.catalog.read_stale(|catalog| {
            catalog.removed(node).is_some_and(|last| last >= life)
                || catalog.node(node).is_some_and(|record| record.incarnation > life)
        })
    }

    fn was_removed(&self, who_says: &str) {
        if !self.is_removed.swap(true, Ordering::Relaxed) {
            tracing::error!(
                member = %self.member,
                "this node was removed from the cluster, or joined it anew with another disk ({who_says}): stop \
                 this process; to join again, start it with an empty data directory"
            );
        }
    }

    /// A node that was away may have been removed, or replaced by a new life of itself.
    async fn ask_whether_removed(&self) {
        let body = Probe { member: Some(self.member), is_promising: false }.encode();
        let others: BTreeSet<NodeId> =
            self.links.up().into_iter().chain(self.listed.keys().copied()).collect();
        for node in others.into_iter().filter(|node| *node != self.node) {
            let asked =
                self.links.call(node, PeerKind::Probe, GroupId::CATALOG, body.clone(), PROBE_WAIT).await;
            let Some(answer) = asked.ok().and_then(|body| ProbeAnswer::decode(body).ok()) else { continue };
            let is_replaced = answer.your_incarnation.is_some_and(|now| now > self.member.incarnation());
            if answer.cluster_id == self.cluster.cluster_id && (answer.you_were_removed || is_replaced) {
                return self.was_removed(&format!("node {node} says so"));
            }
        }
    }
}
