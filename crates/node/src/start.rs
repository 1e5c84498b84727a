//! Brings a node up from its data directory, and down again.
//!
//! Up: the lock, the log, the catalog, then the shards all at once; then what the catalog says of queues,
//! the sessions that shards still know, and what runs by itself. Down: what runs by itself, then the
//! groups, which finish and checkpoint, then the log.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use model::catalog::{CatalogCommand, CatalogReply, ClusterFacts};
use model::{GroupId, Millis, NodeId, ShardId, limits};
use parking_lot::Mutex;
use replica::{Clock, Codec, Replica, ReplicaConfig};
use state_machine::{Catalog, Shard};
use storage::{
    CHECKPOINT_DIR, CheckpointStore, DirLock, Disk, Executor, LOCK_FILE, LOG_DIR, Log, LogOptions,
    RESERVE_FILE, Reserve, checkpoint_path,
};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::NodeConfig;
use crate::error::Error;
use crate::events::Events;
use crate::groups::{self, Groups, told};
use crate::inner::{Inner, Node};
use crate::lines::Lines;
use crate::room::Room;
use crate::stats::Counters;
use crate::taken::Return;
use crate::token::Mint;
use crate::{elections, notices, outbox, rates, room, sessions, taken};

/// Pages of its checkpoint that a group keeps in memory.
const CHECKPOINT_CACHE_BYTES: usize = 2 * 1024 * 1024;

/// What every group is opened with.
#[derive(Clone)]
struct Opening {
    node: NodeId,
    disk: Arc<dyn Disk>,
    log: Log,
    clock: Arc<dyn Clock>,
    executor: Arc<dyn Executor>,
    envelope_cache_bytes: usize,
    propose_timeout: Millis,
}

impl Opening {
    async fn open<M: Codec>(self, group: GroupId, machine: M) -> Result<Replica<M>, Error> {
        let store = CheckpointStore::open(self.disk, &checkpoint_path(group), CHECKPOINT_CACHE_BYTES)
            .map_err(broken)?;
        let mut config = ReplicaConfig::new(group, self.node);
        config.envelope_cache_bytes = self.envelope_cache_bytes;
        config.propose_timeout = self.propose_timeout;
        let log = self.log.group(group);
        let replica =
            Replica::start(config, machine, log, store, self.clock, self.executor).await.map_err(told)?;
        replica.ready().await.map_err(told)?;
        Ok(replica)
    }
}

impl Node {
    /// Starts a node on its data directory; an empty one becomes a new cluster.
    pub async fn start(
        config: NodeConfig,
        clock: Arc<dyn Clock>,
        executor: Arc<dyn Executor>,
    ) -> Result<Node, Error> {
        if config.shards.is_some_and(|shards| ShardId::new(shards).is_none()) {
            return Err(Error::Invalid(format!("a cluster has 1 to {} shards", limits::SHARDS_MAX)));
        }
        let disk = config.data.clone();
        let lock = DirLock::acquire(&*disk, Path::new(LOCK_FILE)).map_err(broken)?;
        let (log, reserve) = open_log(&config, &executor)?;
        let opening = Opening {
            node: config.node,
            disk,
            log: log.clone(),
            clock: clock.clone(),
            executor: executor.clone(),
            envelope_cache_bytes: 0,
            propose_timeout: config.propose_timeout,
        };
        let (catalog, cluster, shards) = match open_groups(opening, &config).await {
            Ok(opened) => opened,
            Err(error) => {
                // What was opened must not write any more when the lock is given back.
                let _ = log.close();
                return Err(error);
            }
        };
        let (returns, returned) = mpsc::unbounded_channel();
        let inner = Arc::new(Inner {
            node: config.node,
            auto_create: config.auto_create,
            mint: Mint::new(cluster.token_key),
            started: (clock.elapsed(), clock.wall()),
            events: Events::new(clock.wall()),
            clock,
            outboxes: ShardId::all(cluster.shards).map(|_| Notify::new()).collect(),
            cluster,
            groups: Groups::new(catalog, shards),
            ids: Default::default(),
            // Each start begins elsewhere, so that short-lived nodes fill all shards alike.
            turn: AtomicU64::new(u64::from(rand::random::<u16>())),
            policies: Default::default(),
            room: Room::new(config.memory_bytes_max, reserve),
            lines: Lines::new(),
            requests: Default::default(),
            returns,
            sessions: Default::default(),
            ends: Default::default(),
            counters: Counters::default(),
            samples: Default::default(),
            elections: Default::default(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
            log,
            lock: Mutex::new(Some(lock)),
        });
        inner.deliver_settings().await?;
        inner.adopt_sessions();
        inner.run(returned, executor);
        let life = Arc::new(inner.stopping.clone().drop_guard());
        Ok(Node { inner, _life: life })
    }

    /// Stops in order: waiting claims are answered, what was asked is finished, all is checkpointed.
    pub async fn stop(&self) -> Result<(), Error> {
        let inner = &self.inner;
        inner.stopping.cancel();
        inner.events.close();
        inner.tasks.close();
        inner.tasks.wait().await;
        let stops = inner.groups.all().map(|shard| inner.groups.shard(shard).stop());
        let stopped = futures::future::join_all(stops).await;
        let catalog = inner.groups.catalog.stop().await;
        inner.log.close().map_err(broken)?;
        inner.lock.lock().take();
        stopped.into_iter().chain([catalog]).try_for_each(|stopped| stopped.map_err(told))
    }
}

impl Inner {
    /// Starts what runs by itself.
    fn run(self: &Arc<Inner>, returned: mpsc::UnboundedReceiver<Return>, executor: Arc<dyn Executor>) {
        let tasks = &self.tasks;
        for shard in self.groups.all() {
            let replica = self.groups.shard(shard);
            tasks.spawn(notices::run(self.clone(), shard, replica.subscribe()));
            tasks.spawn(outbox::run(self.clone(), shard));
            tasks.spawn(elections::run(self.clone(), replica.clone()));
        }
        tasks.spawn(elections::run(self.clone(), self.groups.catalog.clone()));
        tasks.spawn(taken::run(self.clone(), returned));
        tasks.spawn(sessions::run(self.clone()));
        tasks.spawn(rates::run(self.clone()));
        tasks.spawn(room::run(self.clone(), executor));
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

/// Opens the catalog, then the shards.
async fn open_groups(
    mut opening: Opening,
    config: &NodeConfig,
) -> Result<(Replica<Catalog>, ClusterFacts, Vec<Replica<Shard>>), Error> {
    let catalog = opening.clone().open(GroupId::CATALOG, Catalog::new()).await?;
    let opened = async {
        let cluster = cluster(&catalog, config).await?;
        opening.envelope_cache_bytes = (config.envelope_cache_bytes / u64::from(cluster.shards)) as usize;
        let shards = open_shards(&opening, cluster.shards).await?;
        Ok((cluster, shards))
    };
    match opened.await {
        Ok((cluster, shards)) => Ok((catalog, cluster, shards)),
        Err(error) => {
            let _ = catalog.stop().await;
            Err(error)
        }
    }
}

/// The facts of this cluster, made if there are none.
async fn cluster(catalog: &Replica<Catalog>, config: &NodeConfig) -> Result<ClusterFacts, Error> {
    let known = catalog.read(|catalog| catalog.cluster().cloned()).await.map_err(told)?;
    let facts = match known {
        Some(facts) => facts,
        None => {
            let facts = ClusterFacts {
                cluster_id: rand::random(),
                shards: config.shards.unwrap_or(limits::SHARDS_DEFAULT),
                token_key: rand::random(),
            };
            match groups::propose_catalog(catalog, CatalogCommand::Init(facts)).await? {
                CatalogReply::Cluster(facts) => facts,
                CatalogReply::Version(_) => unreachable!("a new cluster is answered by its facts"),
            }
        }
    };
    match config.shards {
        Some(shards) if shards != facts.shards => Err(Error::Broken(format!(
            "this data has {} shards, not {shards}: the number is fixed when a cluster is made, \
             so start with --shards {} or with another data directory",
            facts.shards, facts.shards
        ))),
        _ => Ok(facts),
    }
}

/// Opens all shards at once: each reads its checkpoint by itself.
async fn open_shards(opening: &Opening, count: u16) -> Result<Vec<Replica<Shard>>, Error> {
    let mut opened = JoinSet::new();
    for shard in ShardId::all(count) {
        let opening = opening.clone();
        opened.spawn(async move { (shard, opening.open(shard.group(), Shard::new(shard, count)).await) });
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
