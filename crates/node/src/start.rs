//! Brings a node up from its data directory, and down again.
//!
//! Up: the lock, the links, this node's place in a cluster (`life/begin.rs`), the log, all groups at once, and
//! what runs by itself. Down: leaderships go to others, then what runs by itself ends, then the groups, which
//! finish and checkpoint, then the links and the log.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use model::catalog::NodeAddresses;
use model::{NodeId, ShardId, limits};
use parking_lot::Mutex;
use replica::Clock;
use storage::{DirLock, Disk, Executor, LOCK_FILE};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::life::Standing;
use wire::token::Mint;

use crate::config::NodeConfig;
use crate::error::Error;
use crate::events::Events;
use crate::groups::{Groups, told};
use crate::handler::Front;
use crate::held_clock::HeldClock;
use crate::inner::{Inner, Node};
use crate::life::begin;
use crate::life::identity;
use crate::life::open::{self, Opened, Opening};
use crate::life::standing::{Found, Life};
use crate::life::{keeper, members, spread};
use crate::lines::Lines;
use crate::link::{self, Links};
use crate::member_peers::MemberPeers;
use crate::room::Room;
use crate::route::Route;
use crate::stats::Counters;
use crate::status::{self, Statuses};
use crate::taken::Return;
use crate::{elections, follow, notices, outbox, queues, quiet, rates, reach, room, sessions, taken};

/// Checkpoints that a node writes at once: more would be done no sooner, and would leave the work less.
const CHECKPOINTS_AT_ONCE: usize = 1;

/// How a node is reached by others, and reaches them. Ends after everything else.
pub(crate) struct Outside {
    links: Links,
    front: Arc<Front>,
    pub(crate) stopping: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Outside {
    fn open(config: &NodeConfig, life: &Arc<Life>, held: &Arc<HeldClock>) -> Outside {
        let (stopping, tasks) = (CancellationToken::new(), TaskTracker::new());
        let front = Arc::new(Front::new(life.clone(), held.clone(), tasks.clone()));
        let links = match &config.network {
            None => Links::alone(),
            Some(network) => {
                let address = life.addresses.peer.clone();
                let me = link::Identity { node: config.node, process: rand::random(), address };
                let (stopping, tasks) = (stopping.clone(), tasks.clone());
                let links = Links::start(network.clone(), me, front.clone(), held.clone(), stopping, tasks);
                links.set_peers(config.peers.clone(), BTreeMap::new());
                links
            }
        };
        front.serves(&links);
        life.reaches(&links);
        Outside { links, front, stopping, tasks }
    }

    /// Ends all links, and what was asked through them.
    async fn close(&self) {
        self.stopping.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Node {
    /// Starts a node on its data directory. With an empty one it waits until it knows its place in a cluster,
    /// old or new, and says in [`NodeConfig::progress`] what for. It may be dropped at any time.
    pub async fn start(
        config: NodeConfig,
        clock: Arc<dyn Clock>,
        executor: Arc<dyn Executor>,
    ) -> Result<Node, Error> {
        check(&config)?;
        let held = Arc::new(HeldClock::new(clock));
        held.set_nodes(&config.peers.keys().copied().collect());
        let lock = DirLock::acquire(&*config.data, Path::new(LOCK_FILE)).map_err(broken)?;
        let life = Arc::new(read_life(&config, &executor)?);
        let outside = Outside::open(&config, &life, &held);
        let ends_links = outside.stopping.clone().drop_guard();
        let opening = Opening {
            disk: config.data.clone(),
            clock: held.clone(),
            executor: executor.clone(),
            peers: Arc::new(MemberPeers(outside.links.clone())),
            checkpoint_turns: Arc::new(Semaphore::new(CHECKPOINTS_AT_ONCE)),
        };
        let opened = match open_groups(&opening, &config, &life, &outside).await {
            Ok(opened) => opened,
            Err(error) => {
                outside.close().await;
                return Err(error);
            }
        };
        let (inner, returned) = inner(config, life, held, opened, outside, lock);
        // Before words of others are taken: nobody else starts again what they stop.
        inner.tasks.spawn(quiet::run(inner.clone()));
        inner.outside.front.started(&inner);
        inner.deliver_settings().await;
        inner.run(returned, opening.disk, executor);
        let ends_tasks = inner.stopping.clone().drop_guard();
        Ok(Node { inner, _life: Arc::new([ends_tasks, ends_links]) })
    }

    /// Hands all leaderships over, as the first step of a stop: what is asked here meanwhile is asked of others.
    /// Once it was called, the node is about to stop, and a second call does nothing.
    pub async fn hand_over(&self) {
        let inner = &self.inner;
        if !inner.is_going.swap(true, Ordering::Relaxed) {
            inner.statuses.tell_soon();
            inner.hand_all_over().await;
        }
    }

    /// Stops in order: leaderships are handed over, waiting claims answered, what was asked is finished, all is
    /// checkpointed.
    pub async fn stop(&self) -> Result<(), Error> {
        self.hand_over().await;
        let inner = &self.inner;
        inner.stopping.cancel();
        inner.events.close();
        inner.tasks.close();
        inner.tasks.wait().await;
        let stops = inner.groups.all().map(|shard| inner.groups.shard(shard).stop());
        let stopped = futures::future::join_all(stops).await;
        let catalog = inner.groups.catalog.stop().await;
        inner.outside.close().await;
        inner.log.close().map_err(broken)?;
        inner.lock.lock().take();
        stopped.into_iter().chain([catalog]).try_for_each(|stopped| stopped.map_err(told))
    }
}

fn check(config: &NodeConfig) -> Result<(), Error> {
    if config.shards.is_some_and(|shards| ShardId::new(shards).is_none()) {
        return Err(Error::Invalid(format!("a cluster has 1 to {} shards", limits::SHARDS_MAX)));
    }
    let node = config.node;
    let in_range = |node: &NodeId| (1..=limits::NODE_MAX).contains(&node.0);
    if let Some(wrong) = config.peers.keys().chain([&node]).find(|node| !in_range(node)) {
        return Err(Error::Invalid(format!(
            "node {wrong}: nodes have numbers from 1 to {}",
            limits::NODE_MAX
        )));
    }
    if !config.peers.is_empty() && !config.peers.contains_key(&node) {
        return Err(Error::Invalid(format!("--cluster does not name this node, {node}: add it to the list")));
    }
    if config.peers.len() > 1 && config.network.is_none() {
        return Err(Error::Invalid("a cluster of several nodes needs a network".to_owned()));
    }
    Ok(())
}

/// What this node knows of its cluster, by its disk.
fn read_life(config: &NodeConfig, executor: &Arc<dyn Executor>) -> Result<Life, Error> {
    let disk = config.data.clone();
    let (standing, had_log) = match identity::read(&*disk)? {
        Some(identity) if identity.node != config.node => {
            return Err(Error::Broken(format!(
                "this data directory belongs to node {}, not to node {}: start with --node {}, or with another \
                 directory",
                identity.node, config.node, identity.node
            )));
        }
        Some(identity) => (identity.standing, identity.has_log),
        None => (Standing::Empty, false),
    };
    let has_log = open::has_log(&*disk)?;
    if had_log && !has_log {
        return Err(open::log_is_lost(&*disk));
    }
    let has_old_data = has_log && standing == Standing::Empty;
    let listed = match config.peers.is_empty() {
        true => vec![config.node],
        false => config.peers.keys().copied().collect(),
    };
    let listed_address = || config.peers.get(&config.node).cloned().unwrap_or_default();
    let peer = Some(config.peer_address.clone()).filter(|address| !address.is_empty());
    let addresses =
        NodeAddresses { peer: peer.unwrap_or_else(listed_address), http: config.http_address.clone() };
    let found = Found { standing, has_log: had_log, has_old_data };
    Ok(Life::new(config.node, listed, addresses, disk, executor.clone(), found))
}

/// Finds this node's place, opens its groups, and lets messages of other members in.
async fn open_groups(
    opening: &Opening,
    config: &NodeConfig,
    life: &Arc<Life>,
    outside: &Outside,
) -> Result<Opened, Error> {
    let Outside { links, front, .. } = outside;
    let opened = match life.has_data_to_adopt() {
        true => open::adopt(opening, config, life).await?,
        false => {
            let place = begin::find_place(life, links, config).await?;
            open::open(opening, config, life, place).await?
        }
    };
    front.opened(opened.replicas());
    life.opened(opened.catalog.clone());
    links.set_cluster(opened.place.facts.cluster_id, opened.place.member.incarnation());
    if let Err(error) = open::begin_lone_groups(&opened).await {
        // What was opened must not write any more when the lock is given back.
        let _ = opened.log.close();
        return Err(error);
    }
    Ok(opened)
}

fn inner(
    config: NodeConfig,
    life: Arc<Life>,
    held: Arc<HeldClock>,
    opened: Opened,
    outside: Outside,
    lock: DirLock,
) -> (Arc<Inner>, mpsc::UnboundedReceiver<Return>) {
    let replicas = opened.replicas();
    let Opened { place, log, reserve, catalog, shards } = opened;
    let (clock, cluster): (Arc<dyn Clock>, _) = (held.clone(), place.facts);
    let (returns, returned) = mpsc::unbounded_channel();
    let links = outside.links.clone();
    let route = Route::new(config.node, links.clone(), config.propose_timeout.into());
    let inner = Arc::new(Inner {
        node: config.node,
        member: place.member,
        life,
        listed: config.peers,
        replicas,
        auto_create: config.auto_create,
        knows_queues: AtomicBool::new(false),
        mint: Mint::new(cluster.token_key),
        started: (clock.elapsed(), clock.wall()),
        events: Events::new(clock.wall()),
        clock,
        held,
        outboxes: ShardId::all(cluster.shards).map(|_| Notify::new()).collect(),
        cluster,
        groups: Groups::new(catalog, shards, route),
        ids: Default::default(),
        // Each start begins elsewhere, so that short-lived nodes fill all shards alike.
        turn: AtomicU64::new(u64::from(rand::random::<u16>())),
        policies: Default::default(),
        room: Room::new(config.memory_bytes_max, reserve),
        lines: Lines::new(),
        mutes: Default::default(),
        reach: Default::default(),
        settings_due: Notify::new(),
        links,
        outside,
        requests: Default::default(),
        returns,
        sessions: Default::default(),
        ends: Default::default(),
        counters: Counters::default(),
        samples: Default::default(),
        elections: Default::default(),
        statuses: Statuses::new(),
        is_removed: AtomicBool::new(false),
        is_going: AtomicBool::new(false),
        stopping: CancellationToken::new(),
        tasks: TaskTracker::new(),
        log,
        lock: Mutex::new(Some(lock)),
    });
    (inner, returned)
}

impl Inner {
    /// Starts what runs by itself.
    fn run(
        self: &Arc<Inner>,
        returned: mpsc::UnboundedReceiver<Return>,
        disk: Arc<dyn Disk>,
        executor: Arc<dyn Executor>,
    ) {
        let tasks = &self.tasks;
        for shard in self.groups.all() {
            let replica = self.groups.shard(shard);
            tasks.spawn(notices::run(self.clone(), shard, replica.subscribe()));
            tasks.spawn(outbox::run(self.clone(), shard));
            tasks.spawn(elections::run(self.clone(), replica.clone()));
        }
        tasks.spawn(elections::run(self.clone(), self.groups.catalog.clone()));
        for replica in &self.replicas {
            tasks.spawn(members::run(self.clone(), replica.clone()));
        }
        tasks.spawn(keeper::run(self.clone()));
        tasks.spawn(spread::run(self.clone()));
        tasks.spawn(follow::run(self.clone()));
        tasks.spawn(follow::run_links(self.clone()));
        tasks.spawn(taken::run(self.clone(), returned));
        tasks.spawn(sessions::run(self.clone()));
        tasks.spawn(rates::run(self.clone()));
        tasks.spawn(reach::run(self.clone()));
        tasks.spawn(queues::run(self.clone()));
        tasks.spawn(room::run(self.clone(), executor.clone()));
        tasks.spawn(status::run(self.clone(), disk, executor));
    }
}

fn broken(error: storage::Error) -> Error {
    Error::Broken(error.to_string())
}
