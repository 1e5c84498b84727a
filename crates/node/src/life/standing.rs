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
//! begun and founding anew loses nothing; if somebody is, everybody was prepared, and those who still
//! are follow. Whoever lost its disk meanwhile is empty, finds a member, and joins under a new incarnation.
//!
//! A node with data of a time before there were standings has none until it has opened them, and says so.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use model::catalog::{CatalogCommand, CatalogReply, NodeAddresses};
use model::{MemberId, NodeId};
use parking_lot::Mutex;
use replica::Replica;
use state_machine::Catalog;
use storage::{Disk, Executor};
use tokio::sync::{Notify, oneshot};
use wire::life::{Founding, Identity, Join, Joined, Probe, ProbeAnswer, Standing, StandingKind};

use super::{identity, probe};
use crate::error::Error;
use crate::inner::Inner;
use crate::link::Links;

/// What a start found on the disk.
pub(crate) struct Found {
    pub(crate) standing: Standing,
    pub(crate) has_log: bool,
    pub(crate) has_old_data: bool,
}

/// What this node knows of its cluster.
pub(crate) struct Life {
    pub(crate) node: NodeId,
    /// The nodes that it was told to be in a cluster with, itself included, by number.
    pub(crate) listed: Vec<NodeId>,
    pub(crate) addresses: NodeAddresses,
    disk: Arc<dyn Disk>,
    executor: Arc<dyn Executor>,
    standing: Mutex<Standing>,
    /// It has a log, and its identity says so, or will with the next write.
    has_log: AtomicBool,
    /// There is a log of a node without a standing: it gets one when the log was read.
    has_old_data: bool,
    /// One change at a time: what is checked before a write still holds after it.
    changing: tokio::sync::Mutex<()>,
    /// A change was checked and is on its way to the disk. Changes under the lock of the standing.
    is_changing: AtomicBool,
    /// How often others relied on this node's word that it is no member. Changes under the standing's lock.
    doubts: AtomicU64,
    /// To ask the others.
    links: OnceLock<Links>,
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
        found: Found,
    ) -> Life {
        Life {
            node,
            listed,
            addresses,
            disk,
            executor,
            standing: Mutex::new(found.standing),
            has_log: AtomicBool::new(found.has_log),
            has_old_data: found.has_old_data,
            changing: tokio::sync::Mutex::new(()),
            is_changing: AtomicBool::new(false),
            doubts: AtomicU64::new(0),
            links: OnceLock::new(),
            changed: Notify::new(),
            catalog: OnceLock::new(),
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        self.standing.lock().clone()
    }

    /// From now on it can ask others.
    pub(crate) fn reaches(&self, links: &Links) {
        let _ = self.links.set(links.clone());
    }

    /// What was heard before this changed may be old, and is no reason to become a member.
    pub(crate) fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::Relaxed)
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
        {
            let now = self.standing.lock();
            check(&now)?;
            if *now == standing {
                return Ok(());
            }
            self.is_changing.store(true, Ordering::Relaxed);
        }
        let written = self.write(standing.clone()).await;
        {
            let mut now = self.standing.lock();
            self.is_changing.store(false, Ordering::Relaxed);
            written.map_err(|error| error.to_string())?;
            *now = standing;
        }
        self.changed.notify_waiters();
        Ok(())
    }

    async fn write(&self, standing: Standing) -> Result<(), Error> {
        let identity = Identity { node: self.node, standing, has_log: self.has_log.load(Ordering::Relaxed) };
        let (done, written) = oneshot::channel();
        let disk = self.disk.clone();
        let write = move || drop(done.send(identity::write(&*disk, &identity)));
        self.executor.spawn("identity", Box::new(write));
        written.await.unwrap_or_else(|_| Err(Error::Broken("the write was given up".into())))
    }

    /// There is a log from now on, which is on the disk. Called before anything is promised in it.
    pub(crate) async fn log_was_made(&self) -> Result<(), Error> {
        let _one_at_a_time = self.changing.lock().await;
        let now = self.standing();
        // Whoever has no standing yet may turn out not to be this node at all: its first one says it too.
        match self.has_log.swap(true, Ordering::Relaxed) || now == Standing::Empty {
            true => Ok(()),
            false => self.write(now).await,
        }
    }

    /// Whether there is data of a lone node that has no standing yet.
    pub(crate) fn has_data_to_adopt(&self) -> bool {
        self.has_old_data && self.standing() == Standing::Empty
    }

    /// A node with data is not empty, whatever it has not read of them yet.
    fn refuse_before_adoption(&self, now: &Standing) -> Result<(), String> {
        match self.has_old_data && *now == Standing::Empty {
            true => Err(has_data(self.node)),
            false => Ok(()),
        }
    }

    /// Answers what this node knows of a cluster.
    pub(crate) fn answer_probe(&self, from: NodeId, body: Bytes) -> Result<Bytes, String> {
        let probe = Probe::decode(body).map_err(|error| error.to_string())?;
        let (kind, cluster_id) = {
            let now = self.standing.lock();
            if probe.is_promising && self.is_changing.load(Ordering::Relaxed) {
                return Err(format!("node {} is about to change: ask again", self.node));
            }
            if probe.is_promising {
                self.doubts.fetch_add(1, Ordering::Relaxed);
            }
            match &*now {
                Standing::Empty if self.has_old_data => (StandingKind::Unopened, 0),
                Standing::Empty => (StandingKind::Empty, 0),
                Standing::Prepared(founding) => (StandingKind::Prepared, founding.facts.cluster_id),
                Standing::Member { facts, .. } => (StandingKind::Member, facts.cluster_id),
            }
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
    ///
    /// A promise X gives way to another, Y, when the founder comes back without what it knew: it crashed
    /// before it was a member of X, or it was one and lost its disk. In the second case another node may have
    /// heard of it while it was a member, and be one of X too; then X needs this node, and Y must not be made.
    ///
    /// So this node first asks all others, and keeps X if one of them is a member or does not answer. Why
    /// nobody becomes a member of X after that, as long as no disk but the founder's is lost: each of them
    /// counted the question, under the same lock as its standing, and follows into X only by an answer to a
    /// question of its own that is younger. Who would give that answer? Not the founder, whose process of that
    /// time is gone, as this message shows. Not one of the others, for the first of them to become a member
    /// would need one before it. So when all have promised Y, there is no member of X and there never will be
    /// one; and when there is one, it promises nothing else, so Y is never made, all others keep X and follow,
    /// and the founder joins.
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
        let before = self.standing();
        let promise = Standing::Prepared(founding);
        if matches!(before, Standing::Prepared(_)) && before != promise {
            self.ask_for_members(from).await?;
        }
        let check = |now: &Standing| match now {
            Standing::Empty => self.refuse_before_adoption(now),
            Standing::Prepared(_) if *now == before || *now == promise => Ok(()),
            Standing::Prepared(_) => Err(format!("node {} has promised something else since", self.node)),
            Standing::Member { .. } => Err(format!("node {} is part of a cluster", self.node)),
        };
        self.change(promise.clone(), check).await.map(|()| Bytes::new())
    }

    /// Fails if anybody is a member of a cluster, or may be: anybody but `from`, which says that it is none.
    async fn ask_for_members(&self, from: NodeId) -> Result<(), String> {
        let is_other = |node: &NodeId| *node != self.node && *node != from;
        let others: Vec<NodeId> = self.listed.iter().copied().filter(is_other).collect();
        let links = self.links.get().ok_or("this node is not ready yet")?;
        let probe = Probe { member: None, is_promising: true };
        for (node, answer) in probe::ask(links, &others, &probe).await {
            let what = match answer {
                Ok(answer) if answer.kind == StandingKind::Member => "is part of one",
                Ok(_) => continue,
                Err(_) => "does not say whether it is part of one",
            };
            return Err(format!("node {} has promised a cluster before, and node {node} {what}", self.node));
        }
        Ok(())
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

/// Why a node cannot say what it is.
pub(crate) fn has_data(node: NodeId) -> String {
    format!("node {node} has data that it has not opened yet")
}

/// Node numbers for people.
pub(crate) fn list(nodes: &[NodeId]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use model::catalog::ClusterFacts;
    use storage::{MemDisk, ThreadExecutor};

    use super::*;

    fn life(node: u64, listed: &[u64], standing: Standing, has_old_data: bool) -> Life {
        let listed = listed.iter().copied().map(NodeId).collect();
        let disk = Arc::new(MemDisk::new());
        let found = Found { standing, has_log: false, has_old_data };
        Life::new(NodeId(node), listed, NodeAddresses::default(), disk, Arc::new(ThreadExecutor), found)
    }

    fn founding(cluster_id: u128, nodes: &[u64]) -> Founding {
        let nodes = nodes.iter().map(|node| (NodeId(*node), NodeAddresses::default())).collect();
        Founding { facts: ClusterFacts { cluster_id, shards: 1, token_key: [0; 32] }, nodes }
    }

    fn member(cluster_id: u128) -> Standing {
        let facts = founding(cluster_id, &[]).facts;
        Standing::Member { member: MemberId::new(NodeId(3), 0), facts, founders: Vec::new() }
    }

    fn probed(life: &Life, is_promising: bool) -> Result<StandingKind, String> {
        let body = Probe { member: None, is_promising }.encode();
        life.answer_probe(NodeId(1), body).map(|body| ProbeAnswer::decode(body).unwrap().kind)
    }

    #[tokio::test]
    async fn a_node_with_data_that_it_has_not_opened_is_not_empty() {
        let life = life(3, &[1, 3], Standing::Empty, true);
        assert!(life.has_data_to_adopt());
        for is_promising in [false, true] {
            assert_eq!(probed(&life, is_promising), Ok(StandingKind::Unopened));
        }
        let refused = life.answer_found(NodeId(1), founding(7, &[1, 3]).encode()).await;
        assert!(refused.unwrap_err().contains("has data"));
        life.change(member(5), |_| Ok(())).await.unwrap();
        assert!(!life.has_data_to_adopt());
        assert_eq!(probed(&life, false), Ok(StandingKind::Member));
    }

    #[tokio::test]
    async fn a_promise_gives_way_only_when_all_others_say_that_they_are_no_members() {
        let other = founding(8, &[1, 3]).encode();
        // With the founder only, there is nobody to ask.
        let pair = life(3, &[1, 3], Standing::Prepared(founding(7, &[1, 3])), false);
        pair.reaches(&Links::alone());
        pair.answer_found(NodeId(1), other).await.unwrap();
        assert_eq!(pair.standing(), Standing::Prepared(founding(8, &[1, 3])));
        // Node 2 is not reached, and may be a member.
        let trio = life(3, &[1, 2, 3], Standing::Prepared(founding(7, &[1, 2, 3])), false);
        trio.reaches(&Links::alone());
        let refused = trio.answer_found(NodeId(1), founding(8, &[1, 2, 3]).encode()).await;
        assert!(refused.unwrap_err().contains("node 2 does not say"));
        assert_eq!(trio.standing(), Standing::Prepared(founding(7, &[1, 2, 3])));
        // The same promise again costs nothing.
        trio.answer_found(NodeId(1), founding(7, &[1, 2, 3]).encode()).await.unwrap();
    }

    #[tokio::test]
    async fn whoever_said_that_it_is_no_member_does_not_become_one_by_what_it_heard_before() {
        let life = life(3, &[1, 2, 3], Standing::Prepared(founding(7, &[1, 2, 3])), false);
        let heard = life.doubts();
        assert_eq!(probed(&life, false), Ok(StandingKind::Prepared));
        assert_eq!(life.doubts(), heard, "a question without consequences");
        assert_eq!(probed(&life, true), Ok(StandingKind::Prepared));
        assert_ne!(life.doubts(), heard);
        // Nor does it say so while it becomes one.
        life.is_changing.store(true, Ordering::Relaxed);
        assert!(probed(&life, true).unwrap_err().contains("ask again"));
    }
}
