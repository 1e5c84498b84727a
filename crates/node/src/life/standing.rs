//! What this node knows of its cluster, and what it answers to nodes that ask.
//!
//! Three standings, each on the disk before anybody hears of it:
//!
//! - *empty*: no data, no promises.
//! - *prepared*: it has promised to be part of a cluster if all its founders promise. It has no copy of any
//!   group, so it has promised nothing else, and another founding may take the promise's place.
//! - *member*: it has copies of groups under its member number. There is no way back.
//!
//! A founder becomes a member only when all others are prepared, and a prepared node only when it hears of a
//! member of that very cluster. So wherever a crash comes between: if nobody is a member, no group was ever
//! initialised and founding anew loses nothing; if somebody is, everybody was prepared, and those who still
//! are follow. Whoever lost its disk meanwhile is empty, finds a member, and joins under a new incarnation.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use model::catalog::{CatalogCommand, CatalogReply, NodeAddresses};
use model::{MemberId, NodeId};
use parking_lot::Mutex;
use replica::Replica;
use state_machine::Catalog;
use storage::{Disk, Executor};
use tokio::sync::{Notify, oneshot};
use wire::life::{Founding, Identity, Join, Joined, Probe, ProbeAnswer, Standing, StandingKind};

use super::identity;
use crate::error::Error;
use crate::inner::Inner;

/// What this node knows of its cluster.
pub(crate) struct Life {
    pub(crate) node: NodeId,
    /// The nodes that it was told to be in a cluster with, itself included, by number.
    pub(crate) listed: Vec<NodeId>,
    pub(crate) addresses: NodeAddresses,
    disk: Arc<dyn Disk>,
    executor: Arc<dyn Executor>,
    standing: Mutex<Standing>,
    /// One change at a time: what is checked before a write still holds after it.
    changing: tokio::sync::Mutex<()>,
    /// Rings when the standing changed.
    pub(crate) changed: Notify,
    /// From when on it has one.
    catalog: OnceLock<Replica<Catalog>>,
}

impl Life {
    pub(crate) fn new(
        node: NodeId,
        listed: Vec<NodeId>,
        addresses: NodeAddresses,
        disk: Arc<dyn Disk>,
        executor: Arc<dyn Executor>,
        standing: Standing,
    ) -> Life {
        Life {
            node,
            listed,
            addresses,
            disk,
            executor,
            standing: Mutex::new(standing),
            changing: tokio::sync::Mutex::new(()),
            changed: Notify::new(),
            catalog: OnceLock::new(),
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        self.standing.lock().clone()
    }

    /// From now on questions are answered out of the catalog.
    pub(crate) fn opened(&self, catalog: Replica<Catalog>) {
        let _ = self.catalog.set(catalog);
    }

    /// Changes the standing, on the disk first, unless `check` says no to what it is now.
    pub(crate) async fn change(
        &self,
        standing: Standing,
        check: impl FnOnce(&Standing) -> Result<(), String>,
    ) -> Result<(), String> {
        let _one_at_a_time = self.changing.lock().await;
        let now = self.standing();
        check(&now)?;
        if now == standing {
            return Ok(());
        }
        let identity = Identity { node: self.node, standing: standing.clone() };
        let (done, written) = oneshot::channel();
        let disk = self.disk.clone();
        let write = move || drop(done.send(identity::write(&*disk, &identity)));
        self.executor.spawn("identity", Box::new(write));
        let written = written.await.unwrap_or_else(|_| Err(Error::Broken("the write was given up".into())));
        written.map_err(|error| error.to_string())?;
        *self.standing.lock() = standing;
        self.changed.notify_waiters();
        Ok(())
    }

    /// Answers what this node knows of a cluster.
    pub(crate) fn answer_probe(&self, from: NodeId, body: Bytes) -> Result<Bytes, String> {
        let probe = Probe::decode(body).map_err(|error| error.to_string())?;
        let (kind, cluster_id) = match &*self.standing.lock() {
            Standing::Empty => (StandingKind::Empty, 0),
            Standing::Prepared(founding) => (StandingKind::Prepared, founding.facts.cluster_id),
            Standing::Member { facts, .. } => (StandingKind::Member, facts.cluster_id),
        };
        let known =
            |catalog: &Catalog| (catalog.node(from).map(|record| record.incarnation), catalog.removed(from));
        let (known, removed) = self.catalog.get().map_or((None, None), |catalog| catalog.read_stale(known));
        let is_removed =
            |member: MemberId| removed.is_some_and(|incarnation| incarnation >= member.incarnation());
        let answer = ProbeAnswer {
            kind,
            cluster_id,
            listed: self.listed.clone(),
            your_incarnation: known,
            you_were_removed: probe.member.is_some_and(is_removed),
        };
        Ok(answer.encode())
    }

    /// Promises to be part of a cluster, on the disk before the answer.
    pub(crate) async fn answer_found(&self, from: NodeId, body: Bytes) -> Result<Bytes, String> {
        let founding = Founding::decode(body).map_err(|error| error.to_string())?;
        let founders: Vec<NodeId> = founding.nodes.iter().map(|(node, _)| *node).collect();
        if founders != self.listed {
            let (told, listed) = (list(&founders), list(&self.listed));
            return Err(format!("node {} was told of nodes {listed}, not {told}", self.node));
        }
        // With equal lists there is one founder only, so two cannot take each other's promises.
        if founders.first() != Some(&from) {
            return Err(format!("node {from} is not the one that makes this cluster"));
        }
        let check = |now: &Standing| match now {
            Standing::Empty | Standing::Prepared(_) => Ok(()),
            Standing::Member { .. } => Err(format!("node {} is part of a cluster", self.node)),
        };
        self.change(Standing::Prepared(founding), check).await.map(|()| Bytes::new())
    }
}

/// Takes a node with an empty disk into the cluster, under an incarnation that it never had.
pub(crate) async fn answer_join(inner: &Arc<Inner>, from: NodeId, body: Bytes) -> Result<Bytes, String> {
    let Join { node, nonce, addresses } = Join::decode(body).map_err(|error| error.to_string())?;
    if node != from {
        return Err(format!("node {from} cannot join as node {node}"));
    }
    // A repeat of the same try gets the same answer, so it may be sent on as often as needed.
    let add = CatalogCommand::AddNode { node, nonce, addresses };
    match inner.groups.propose_catalog(add).await {
        Ok(CatalogReply::Member(member)) => {
            tracing::info!(%node, %member, "a node with an empty disk joins");
            Ok(Joined { member, facts: inner.cluster.clone() }.encode())
        }
        Ok(other) => Err(format!("the catalog answered something else: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Node numbers for people.
pub(crate) fn list(nodes: &[NodeId]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// How long a node that asks another for its standing waits.
pub(crate) const PROBE_WAIT: Duration = Duration::from_millis(500);
