//! Opens the log and the groups of a node that knows its place, and makes groups that never were.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use model::catalog::{ClusterFacts, NodeAddresses};
use model::{GroupId, MemberId, NodeId, ShardId, limits};
use replica::{Clock, Codec, MakeMachine, Peers, Replica, ReplicaConfig};
use state_machine::{Catalog, Shard};
use storage::{
    CHECKPOINT_DIR, CheckpointStore, Disk, Executor, LOG_DIR, Log, LogOptions, RESERVE_FILE, Reserve,
    checkpoint_path,
};
use tokio::task::JoinSet;
use tokio::time::Instant;
use wire::life::Standing;

use super::begin::Place;
use super::standing::Life;
use super::voters;
use crate::agree;
use crate::any_replica::{AnyReplica, any};
use crate::config::{NodeConfig, Tuning};
use crate::error::Error;
use crate::groups::told;
use crate::inner::Inner;

/// Pages of its checkpoint that a group keeps in memory.
const CHECKPOINT_CACHE_BYTES: usize = 2 * 1024 * 1024;
/// How long the founders leave it to one of them to make a group.
const FIRST_FOUNDER_WAIT: Duration = Duration::from_millis(1_500);
/// How long the first leaves the others to come.
const OTHERS_WAIT: Duration = Duration::from_millis(1_000);
/// How often they look whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(20);

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
    let (member, facts) = (place.member, &place.facts);
    let opened = async {
        life.log_was_made().await?;
        let catalog = opening.group(&log, member, GroupId::CATALOG, config, 0, Box::new(Catalog::new));
        futures::try_join!(catalog, opening.shards(&log, member, config, facts.shards))
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
        let member = MemberId::new(config.node, 0);
        let catalog =
            opening.group(&log, member, GroupId::CATALOG, config, 0, Box::new(Catalog::new)).await?;
        let place = adopted_place(&catalog, config, life).await?;
        let shards = opening.shards(&log, member, config, place.facts.shards).await?;
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

async fn adopted_place(catalog: &Replica<Catalog>, config: &NodeConfig, life: &Life) -> Result<Place, Error> {
    let founders = vec![(life.node, life.addresses.clone())];
    let member = catalog.member();
    let begun = begin_alone(&*any(catalog), &founders).await?;
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

impl Opening {
    async fn group<M: Codec>(
        &self,
        log: &Log,
        member: MemberId,
        group: GroupId,
        config: &NodeConfig,
        envelope_cache_bytes: usize,
        machine: MakeMachine<M>,
    ) -> Result<Replica<M>, Error> {
        let Opening { disk, clock, executor, peers } = self.clone();
        agree::refuse_marked(&*disk, group)?;
        let store = CheckpointStore::open(disk.clone(), &checkpoint_path(group), CHECKPOINT_CACHE_BYTES)
            .map_err(broken)?;
        let mut settings = ReplicaConfig::new(group, member);
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
        member: MemberId,
        config: &NodeConfig,
        count: u16,
    ) -> Result<Vec<Replica<Shard>>, Error> {
        let cache_bytes = (config.envelope_cache_bytes / u64::from(count)) as usize;
        let mut opened = JoinSet::new();
        for shard in ShardId::all(count) {
            let (opening, log, config) = (self.clone(), log.clone(), config.clone());
            let make = Box::new(move || Shard::new(shard, count));
            let open = async move {
                (shard, opening.group(&log, member, shard.group(), &config, cache_bytes, make).await)
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
async fn begin_alone(replica: &dyn AnyReplica, founders: &[(NodeId, NodeAddresses)]) -> Result<Begun, Error> {
    let me = replica.member();
    if replica.is_initialized().await.map_err(told)? {
        if replica.members().voters != BTreeSet::from([me]) {
            return Ok(Begun::WithOthers);
        }
        replica.elect().await.map_err(told)?;
    } else {
        let [(node, addresses)] = founders else { return Ok(Begun::WithOthers) };
        if MemberId::new(*node, 0) != me {
            return Ok(Begun::WithOthers);
        }
        replica.initialize(vec![(me, addresses.peer.clone())]).await.map_err(told)?;
    }
    replica.ready().await.map_err(told)?;
    Ok(Begun::Alone)
}

/// Gets all groups going that have no other voters; those with others come to life when they meet.
pub(crate) async fn begin_lone_groups(opened: &Opened) -> Result<(), Error> {
    let begin = |replica: Arc<dyn AnyReplica>| async move {
        begin_alone(&*replica, &opened.place.founders).await.map(drop)
    };
    try_join_all(opened.replicas().into_iter().map(begin)).await.map(drop)
}

/// Makes a group that never was, on its founders: first the one that should lead it, and the others if that one
/// does not. All say the same, so it does not matter how many do.
pub(crate) async fn make_group(
    inner: Arc<Inner>,
    replica: Arc<dyn AnyReplica>,
    founders: Vec<(NodeId, NodeAddresses)>,
) {
    let (group, me) = (replica.group(), replica.member());
    let nodes: Vec<NodeId> = founders.iter().map(|(node, _)| *node).collect();
    let first = voters::first(group, &nodes);
    let members: Vec<(MemberId, String)> = founders
        .into_iter()
        .filter(|(node, _)| first.contains(node))
        .map(|(node, addresses)| (MemberId::new(node, 0), addresses.peer))
        .collect();
    if !members.iter().any(|(member, _)| *member == me) {
        return;
    }
    let wait = match voters::preferred(group, &first) == Some(me.node()) {
        true => Duration::ZERO,
        false => FIRST_FOUNDER_WAIT,
    };
    let since = Instant::now();
    loop {
        match replica.is_initialized().await {
            Ok(false) => {}
            Ok(true) | Err(_) => return,
        }
        // Those that are up have their copies open: an election among them is not in vain.
        let are_up = wait.is_zero() && members.iter().all(|(member, _)| inner.is_up(member.node()));
        if are_up || since.elapsed() >= wait.max(OTHERS_WAIT) {
            match replica.initialize(members).await {
                Ok(()) => tracing::info!(%group, "made the group"),
                Err(error) => tracing::error!(%group, %error, "cannot make the group"),
            }
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = inner.stopping.cancelled() => return,
        }
    }
}
