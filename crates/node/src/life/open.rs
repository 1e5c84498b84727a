//! Opens the log and the groups of a node that knows its place. A group that never was begins with them: each of its
//! founders knows the others, and they elect their first leader when they meet.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use futures::future::try_join_all;
use model::catalog::{ClusterFacts, NodeAddresses};
use model::{GroupId, MemberId, NodeId, ShardId, limits};
use replica::{Clock, Codec, MakeMachine, Peers, Replica, ReplicaConfig};
use state_machine::{Catalog, Shard};
use storage::{
    CHECKPOINT_DIR, CheckpointStore, Disk, Executor, LOG_DIR, Log, LogOptions, RESERVE_FILE, Reserve,
    checkpoint_path,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use wire::life::Standing;

use super::begin::Place;
use super::standing::Life;
use super::voters;
use crate::agree;
use crate::any_replica::{AnyReplica, any};
use crate::config::{NodeConfig, Tuning};
use crate::error::Error;
use crate::groups::told;

/// Pages of its checkpoint that a group keeps in memory.
const CHECKPOINT_CACHE_BYTES: usize = 2 * 1024 * 1024;

/// A node's log and groups, open.
pub(crate) struct Opened {
    pub(crate) place: Place,
    pub(crate) log: Log,
    pub(crate) reserve: Option<Arc<Reserve>>,
    pub(crate) catalog: Replica<Catalog>,
    pub(crate) shards: Vec<Replica<Shard>>,
}

impl Opened {
    /// All groups, the catalog first.
    pub(crate) fn replicas(&self) -> Vec<Arc<dyn AnyReplica>> {
        std::iter::once(any(&self.catalog)).chain(self.shards.iter().map(any)).collect()
    }
}

/// What every group is opened with.
#[derive(Clone)]
pub(crate) struct Opening {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) checkpoint_turns: Arc<Semaphore>,
}

/// Whether there is a log. One without an identity is that of a lone node, from before there were others.
pub(crate) fn has_log(disk: &dyn Disk) -> Result<bool, Error> {
    let failed = |error: std::io::Error| Error::Broken(format!("cannot read the data directory: {error}"));
    let dir = Path::new(LOG_DIR);
    Ok(disk.exists(dir).map_err(failed)? && !disk.list(dir).map_err(failed)?.is_empty())
}

/// The log that this node once had is not there any more.
pub(crate) fn log_is_lost(disk: &dyn Disk) -> Error {
    Error::Broken(format!(
        "the log is gone: {} is empty or missing, and with it the votes and entries that this node promised to \
         keep, so it must not go on as the same member: bring the directory back if it was moved or not \
         mounted; if it is lost, empty the whole data directory and start again, and the node joins its cluster \
         in a new life",
        disk.locate(Path::new(LOG_DIR)).display()
    ))
}

/// Opens the groups of a node that knows its place.
pub(crate) async fn open(
    opening: &Opening,
    config: &NodeConfig,
    life: &Life,
    place: Place,
) -> Result<Opened, Error> {
    check_shards(config, &place.facts)?;
    let (log, reserve) = open_log(config, &opening.executor)?;
    let who = Who { member: place.member, founders: place.founders.clone() };
    let opened = async {
        life.log_was_made().await?;
        let catalog = opening.group(&log, &who, GroupId::CATALOG, config, 0, Box::new(Catalog::new));
        futures::try_join!(catalog, opening.shards(&log, &who, config, place.facts.shards))
    };
    match opened.await {
        Ok((catalog, shards)) => Ok(Opened { place, log, reserve, catalog, shards }),
        Err(error) => {
            // What was opened must not write any more when the lock is given back.
            let _ = log.close();
            Err(error)
        }
    }
}

/// Opens the data of a lone node from before nodes had identities, and gives it one.
pub(crate) async fn adopt(opening: &Opening, config: &NodeConfig, life: &Life) -> Result<Opened, Error> {
    let (log, reserve) = open_log(config, &opening.executor)?;
    let opened = async {
        life.log_was_made().await?;
        let founders = vec![(life.node, life.addresses.clone())];
        let who = Who { member: MemberId::new(config.node, 0), founders };
        let catalog = opening.group(&log, &who, GroupId::CATALOG, config, 0, Box::new(Catalog::new)).await?;
        let place = adopted_place(&catalog, &who, config, life).await?;
        let shards = opening.shards(&log, &who, config, place.facts.shards).await?;
        Ok((place, catalog, shards))
    };
    match opened.await {
        Ok((place, catalog, shards)) => Ok(Opened { place, log, reserve, catalog, shards }),
        Err(error) => {
            let _ = log.close();
            Err(error)
        }
    }
}

async fn adopted_place(
    catalog: &Replica<Catalog>,
    who: &Who,
    config: &NodeConfig,
    life: &Life,
) -> Result<Place, Error> {
    let Who { member, founders } = who.clone();
    let begun = begin_alone(&*any(catalog)).await?;
    if begun == Begun::WithOthers {
        return Err(not_of(config.node));
    }
    let known = catalog.read_stale(|catalog| catalog.cluster().cloned());
    // A crash before the first command left a catalog that knows nothing.
    let facts = known.unwrap_or_else(|| ClusterFacts {
        cluster_id: rand::random(),
        shards: config.shards.unwrap_or(limits::SHARDS_DEFAULT),
        token_key: rand::random(),
    });
    check_shards(config, &facts)?;
    let standing = Standing::Member { member, facts: facts.clone(), founders: founders.clone() };
    life.change(standing, |_| Ok(())).await.map_err(Error::Broken)?;
    Ok(Place { member, facts, founders })
}

/// This data is not of this node.
pub(crate) fn not_of(node: NodeId) -> Error {
    Error::Broken(format!(
        "this data directory does not belong to node {node}: start with the number of the node that it is of, \
         or with another directory"
    ))
}

fn check_shards(config: &NodeConfig, facts: &ClusterFacts) -> Result<(), Error> {
    match config.shards {
        Some(shards) if shards != facts.shards => Err(Error::Broken(format!(
            "this data has {} shards, not {shards}: the number is fixed when a cluster is made, \
             so start with --shards {} or with another data directory",
            facts.shards, facts.shards
        ))),
        _ => Ok(()),
    }
}

fn broken(error: storage::Error) -> Error {
    Error::Broken(error.to_string())
}

fn open_log(config: &NodeConfig, executor: &Arc<dyn Executor>) -> Result<(Log, Option<Arc<Reserve>>), Error> {
    let disk = &config.data;
    for dir in [LOG_DIR, CHECKPOINT_DIR] {
        let made = disk.create_dir_all(Path::new(dir));
        made.map_err(|error| Error::Broken(format!("cannot make directory {dir}: {error}")))?;
    }
    let reserve = match config.disk_reserve_bytes {
        0 => None,
        bytes => {
            let reserve = Reserve::open(disk.clone(), Path::new(RESERVE_FILE), bytes).map_err(broken)?;
            Some(Arc::new(reserve))
        }
    };
    let options = LogOptions { reserve: reserve.clone(), ..config.log.clone() };
    let (log, recovered) =
        Log::open(disk.clone(), Path::new(LOG_DIR), options, executor.clone()).map_err(broken)?;
    if let Some(torn) = recovered.torn {
        tracing::warn!(
            file = %torn.path.display(), offset = torn.offset,
            "the log ended in an unfinished write, which was cut: nothing of it had been acknowledged"
        );
    }
    Ok((log, reserve))
}

/// Which member of all groups this node is.
#[derive(Clone)]
struct Who {
    member: MemberId,
    /// The cluster's founders, on one of them.
    founders: Vec<(NodeId, NodeAddresses)>,
}

impl Who {
    /// Those who vote in this group at its beginning, if this one is among them.
    fn founders_of(&self, group: GroupId) -> Vec<(MemberId, String)> {
        let nodes: Vec<NodeId> = self.founders.iter().map(|(node, _)| *node).collect();
        let first = voters::first(group, &nodes);
        let founders: Vec<(MemberId, String)> = self
            .founders
            .iter()
            .filter(|(node, _)| first.contains(node))
            .map(|(node, addresses)| (MemberId::new(*node, 0), addresses.peer.clone()))
            .collect();
        let is_one = founders.iter().any(|(member, _)| *member == self.member);
        if is_one { founders } else { Vec::new() }
    }
}

impl Opening {
    async fn group<M: Codec>(
        &self,
        log: &Log,
        who: &Who,
        group: GroupId,
        config: &NodeConfig,
        envelope_cache_bytes: usize,
        machine: MakeMachine<M>,
    ) -> Result<Replica<M>, Error> {
        let Opening { disk, clock, executor, peers, checkpoint_turns } = self.clone();
        agree::refuse_marked(&*disk, group)?;
        let store = CheckpointStore::open(disk.clone(), &checkpoint_path(group), CHECKPOINT_CACHE_BYTES)
            .map_err(broken)?;
        let mut settings = ReplicaConfig::new(group, who.member);
        settings.founders = who.founders_of(group);
        settings.checkpoint_turns = checkpoint_turns;
        settings.envelope_cache_bytes = envelope_cache_bytes;
        settings.propose_timeout = config.propose_timeout;
        let Tuning { checkpoint_interval, keep_log_bytes, hash_every, witness } = config.tuning.clone();
        settings.checkpoint_interval = checkpoint_interval.unwrap_or(settings.checkpoint_interval);
        settings.keep_log_bytes = keep_log_bytes.unwrap_or(settings.keep_log_bytes);
        settings.hash_every = hash_every.unwrap_or(settings.hash_every);
        settings.witness = witness;
        let log = log.group(group);
        Replica::start(settings, machine, log, store, disk, clock, executor, peers).await.map_err(told)
    }

    /// Opens all shards at once: each reads its checkpoint by itself.
    async fn shards(
        &self,
        log: &Log,
        who: &Who,
        config: &NodeConfig,
        count: u16,
    ) -> Result<Vec<Replica<Shard>>, Error> {
        let cache_bytes = (config.envelope_cache_bytes / u64::from(count)) as usize;
        let mut opened = JoinSet::new();
        for shard in ShardId::all(count) {
            let (opening, log, who, config) = (self.clone(), log.clone(), who.clone(), config.clone());
            let make = Box::new(move || Shard::new(shard, count));
            let open = async move {
                (shard, opening.group(&log, &who, shard.group(), &config, cache_bytes, make).await)
            };
            opened.spawn(open);
        }
        let mut shards = Vec::with_capacity(usize::from(count));
        while let Some(joined) = opened.join_next().await {
            let (shard, replica) =
                joined.map_err(|error| Error::Broken(format!("a shard did not open: {error}")))?;
            shards.push((shard, replica?));
        }
        shards.sort_by_key(|(shard, _)| *shard);
        Ok(shards.into_iter().map(|(_, replica)| replica).collect())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// It leads, and all that it had is applied.
    Alone,
    /// Others vote too.
    WithOthers,
}

/// Gets a group going that has no other voters: nobody has to be waited for.
async fn begin_alone(replica: &dyn AnyReplica) -> Result<Begun, Error> {
    if replica.members().voters != BTreeSet::from([replica.member()]) {
        return Ok(Begun::WithOthers);
    }
    replica.elect().await.map_err(told)?;
    replica.ready().await.map_err(told)?;
    Ok(Begun::Alone)
}

/// Gets all groups going that have no other voters; those with others come to life when they meet.
pub(crate) async fn begin_lone_groups(opened: &Opened) -> Result<(), Error> {
    let begin = |replica: Arc<dyn AnyReplica>| async move { begin_alone(&*replica).await.map(drop) };
    try_join_all(opened.replicas().into_iter().map(begin)).await.map(drop)
}
