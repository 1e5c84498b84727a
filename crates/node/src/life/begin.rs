//! How a node finds its place in a cluster when it starts.
//!
//! A node with data is what its identity says. One without asks all listed nodes, again and again, until one
//! of these holds (DESIGN §6):
//!
//! - It is alone: it makes a cluster of its own.
//! - Somebody is a member of a cluster: it joins that, or, if it is prepared for the very same, follows.
//! - A person said `--bootstrap`, and nobody spoke of a cluster or of a promise within a second: it makes one of
//!   its own.
//! - All have answered and nobody is a member: the one with the smallest number makes the cluster.
//!
//! Where a crash may come, and what then (`standing.rs` says why nothing is lost):
//!
//! 1. Before anything is written: all are empty, and all begin anew.
//! 2. Some or all others are prepared, the founder is not a member: it starts empty, sees nobody that is a
//!    member, and prepares all for a new cluster in place of the old.
//! 3. The founder is a member, the others are prepared: they hear of it and follow; the founder, started again,
//!    goes on alone until they do. Each writes the first entry of its groups itself, all of them the same.
//! 4. The founder is wiped at point 3: it finds a member, or, if it was the only one, no group was ever
//!    begun with anybody else's help, and point 2 holds. `Life::answer_found` says why it cannot be both.
//! 5. A node that joins crashes after its record is in the catalog and before its identity is on its disk: it
//!    joins again, under the next incarnation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::catalog::{ClusterFacts, NodeAddresses};
use model::{GroupId, MemberId, Mutant, NodeId, limits, mutant};
use tokio::time::Instant;
use wire::life::{Founding, Join, Joined, Probe, ProbeAnswer, Standing, StandingKind};
use wire::peer::PeerKind;

use super::probe::{self, Silence};
use super::standing::{Life, has_data, list};
use crate::config::NodeConfig;
use crate::error::Error;
use crate::link::Links;

/// Between two rounds of questions.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How long the catalog may take to take a node in.
const JOIN_WAIT: Duration = Duration::from_secs(5);
/// With `--bootstrap`, how long others have to say that they know a cluster: the flag may have been left where
/// it once was right, and the disk may have been lost since.
const BOOTSTRAP_WAIT: Duration = Duration::from_secs(1);
/// How often it says again what it waits for.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Who this node is in its cluster.
pub(crate) struct Place {
    pub(crate) member: MemberId,
    pub(crate) facts: ClusterFacts,
    /// The founders, on one of them.
    pub(crate) founders: Vec<(NodeId, NodeAddresses)>,
}

/// Asks and waits until this node has its place. Dropped, it leaves nothing undone that a next start would
/// not do again.
pub(crate) async fn find_place(life: &Arc<Life>, links: &Links, config: &NodeConfig) -> Result<Place, Error> {
    let mut asking = Asking {
        life,
        links,
        config,
        // One for all tries of this start: whoever promised it once need not do so again.
        founding: new_founding(life, config),
        nonce: rand::random(),
        has_heard_of_cluster: false,
        refused: None,
        said: Instant::now(),
    };
    let began = Instant::now();
    loop {
        if let Standing::Member { member, facts, founders } = life.standing() {
            config.progress.set("");
            return Ok(Place { member, facts, founders });
        }
        let others: Vec<NodeId> = life.listed.iter().copied().filter(|node| *node != life.node).collect();
        if others.is_empty() {
            asking.found_alone().await.map_err(Error::Broken)?;
        } else if let Err(mut waits_for) = asking.round(&others).await {
            let may_be_cluster = asking.has_heard_of_cluster || asking.was_refused();
            if config.bootstrap && !may_be_cluster && began.elapsed() >= BOOTSTRAP_WAIT {
                match asking.found_alone().await {
                    Ok(()) => continue,
                    Err(why) => waits_for = why,
                }
            }
            if config.bootstrap && may_be_cluster {
                waits_for.push_str("; --bootstrap does not count, since there may be a cluster");
            }
            asking.say(&waits_for);
            tokio::select! {
                () = tokio::time::sleep(ASK_EVERY) => {}
                () = life.changed.notified() => {}
            }
        }
    }
}

fn new_founding(life: &Life, config: &NodeConfig) -> Founding {
    let facts = ClusterFacts {
        cluster_id: rand::random(),
        shards: config.shards.unwrap_or(limits::SHARDS_DEFAULT),
        token_key: rand::random(),
    };
    let addresses = |node: &NodeId| match *node == life.node {
        true => life.addresses.clone(),
        // Each says the rest of itself when the cluster is there.
        false => {
            NodeAddresses { peer: config.peers.get(node).cloned().unwrap_or_default(), http: String::new() }
        }
    };
    let nodes = life.listed.iter().map(|node| (*node, addresses(node))).collect();
    Founding { facts, nodes }
}

struct Asking<'a> {
    life: &'a Arc<Life>,
    links: &'a Links,
    config: &'a NodeConfig,
    founding: Founding,
    nonce: u128,
    /// Somebody is in a cluster, or has promised to be in one: whatever comes after, this node makes none
    /// alone.
    has_heard_of_cluster: bool,
    /// When somebody last did not want to say what it knows.
    refused: Option<Instant>,
    /// When it last said what it waits for.
    said: Instant,
}

impl Asking<'_> {
    fn say(&mut self, waits_for: &str) {
        let is_news = self.config.progress.set(waits_for);
        if is_news || self.said.elapsed() >= SAY_EVERY {
            self.said = Instant::now();
            tracing::info!(node = %self.life.node, "waiting: {waits_for}");
        }
    }

    /// Whether somebody did not want to say what it knows, and has not been silent for long since.
    fn was_refused(&self) -> bool {
        self.refused.is_some_and(|refused| refused.elapsed() < BOOTSTRAP_WAIT)
    }

    async fn found_alone(&self) -> Result<(), String> {
        let nodes = vec![(self.life.node, self.life.addresses.clone())];
        let standing = self.first_life(&Founding { facts: self.founding.facts.clone(), nodes });
        self.life.change(standing, no_promises).await?;
        tracing::info!(node = %self.life.node, "made a new cluster of one node");
        Ok(())
    }

    fn first_life(&self, founding: &Founding) -> Standing {
        let Founding { facts, nodes } = founding.clone();
        Standing::Member { member: MemberId::new(self.life.node, 0), facts, founders: nodes }
    }

    /// One round of questions. `Err` says what it waits for.
    async fn round(&mut self, others: &[NodeId]) -> Result<(), String> {
        // Counted before they are asked: see `Life::answer_found`.
        let doubts = self.life.doubts();
        let asked = probe::ask(self.links, others, &Probe { member: None, is_promising: false }).await;
        let (mut answers, mut silent) = (BTreeMap::new(), BTreeMap::new());
        for (node, answer) in asked {
            match answer {
                Ok(answer) => drop(answers.insert(node, answer)),
                Err(why) => drop(silent.insert(node, why)),
            }
        }
        let is_of_cluster = |answer: &ProbeAnswer| answer.kind != StandingKind::Empty;
        let unopened = silent.iter().find(|(_, why)| **why == Silence::HasData).map(|(node, _)| *node);
        self.has_heard_of_cluster |= answers.values().any(is_of_cluster) || unopened.is_some();
        if silent.values().any(|why| *why == Silence::Refused) {
            self.refused = Some(Instant::now());
        }
        let members: BTreeMap<NodeId, u128> = answers
            .iter()
            .filter(|(_, answer)| answer.kind == StandingKind::Member)
            .map(|(node, answer)| (*node, answer.cluster_id))
            .collect();
        if let Some((node, cluster_id)) = members.first_key_value() {
            if members.values().any(|other| other != cluster_id) {
                let members: Vec<NodeId> = members.keys().copied().collect();
                return Err(format!("nodes {} are of different clusters: correct --cluster", list(&members)));
            }
            return self.enter(*node, *cluster_id, members.keys().copied(), doubts).await;
        }
        if let Some(node) = unopened {
            return Err(has_data(node));
        }
        if !silent.is_empty() {
            let silent = list(&silent.into_keys().collect::<Vec<_>>());
            return Err(match self.has_heard_of_cluster {
                true => {
                    format!("nodes {silent} do not answer, and others know of a cluster that they may be in")
                }
                false => format!(
                    "nodes {silent} do not answer, and a new cluster is made only when all have said that they \
                     are empty (or start one node with --bootstrap)"
                ),
            });
        }
        if let Some((node, answer)) = answers.iter().find(|(_, answer)| answer.listed != self.life.listed) {
            let (theirs, ours) = (list(&answer.listed), list(&self.life.listed));
            return Err(format!(
                "node {node} was told of nodes {theirs}, this one of {ours}: correct --cluster"
            ));
        }
        match self.life.listed.first() {
            Some(&first) if first != self.life.node => Err(format!("node {first} makes the cluster")),
            _ => self.found(others).await,
        }
    }

    /// There is a cluster: follows into it, or joins it.
    async fn enter(
        &self,
        first: NodeId,
        cluster_id: u128,
        members: impl Iterator<Item = NodeId>,
        doubts: u64,
    ) -> Result<(), String> {
        if let Standing::Prepared(founding) = self.life.standing()
            && founding.facts.cluster_id == cluster_id
        {
            let standing = self.first_life(&founding);
            let still = |now: &Standing| match now {
                Standing::Prepared(now) if *now == founding && self.life.doubts() == doubts => Ok(()),
                _ => Err("another founding".to_owned()),
            };
            self.life.change(standing, still).await?;
            tracing::info!(node = %self.life.node, "node {first} has made the cluster, and this one is part of it");
            return Ok(());
        }
        let join =
            Join { node: self.life.node, nonce: self.nonce, addresses: self.life.addresses.clone() }.encode();
        let mut why = String::new();
        for node in members {
            let asked =
                self.links.call(node, PeerKind::Join, GroupId::CATALOG, join.clone(), JOIN_WAIT).await;
            let joined = match asked {
                Ok(body) => Joined::decode(body).map_err(|error| error.to_string())?,
                Err(error) => {
                    why = format!("node {node} could not take this one into its cluster: {error}");
                    continue;
                }
            };
            let (mut member, facts) = (joined.member, joined.facts);
            if mutant::planted(Mutant::WipedNodeVotes) {
                member = MemberId::new(member.node(), 0);
            }
            if member.node() != self.life.node || facts.cluster_id != cluster_id {
                return Err(format!("node {node} took in member {member} of another cluster"));
            }
            let standing = Standing::Member { member, facts, founders: Vec::new() };
            self.life.change(standing, not_member).await?;
            tracing::info!(node = %self.life.node, %member, "joined the cluster through node {node}");
            return Ok(());
        }
        Err(why)
    }

    /// All are empty or prepared, and it is this node that makes the cluster.
    async fn found(&mut self, others: &[NodeId]) -> Result<(), String> {
        // Whoever promises will take any cluster of this number for the one of all.
        self.has_heard_of_cluster = true;
        let asking = &*self;
        let body = self.founding.encode();
        let ask = |node: NodeId| {
            let body = body.clone();
            async move {
                let asked = asking.links.call(node, PeerKind::Found, GroupId::CATALOG, body, JOIN_WAIT).await;
                asked.map_err(|error| format!("node {node} did not agree to a new cluster: {error}"))
            }
        };
        for agreed in futures::future::join_all(others.iter().copied().map(ask)).await {
            agreed?;
        }
        self.life.change(self.first_life(&self.founding), not_member).await?;
        tracing::info!(node = %self.life.node, "made a new cluster with nodes {}", list(others));
        Ok(())
    }
}

/// A promise is kept, whatever a person says: the cluster may be there already.
fn no_promises(now: &Standing) -> Result<(), String> {
    match now {
        Standing::Empty => Ok(()),
        Standing::Prepared(founding) => {
            let nodes: Vec<NodeId> = founding.nodes.iter().map(|(node, _)| *node).collect();
            Err(format!(
                "this node has promised to be in a cluster of nodes {}: start it with those in --cluster, or \
                 with an empty data directory",
                list(&nodes)
            ))
        }
        Standing::Member { .. } => Err("this node is a member already".to_owned()),
    }
}

fn not_member(now: &Standing) -> Result<(), String> {
    match now {
        Standing::Empty | Standing::Prepared(_) => Ok(()),
        Standing::Member { .. } => Err("this node is a member already".to_owned()),
    }
}
