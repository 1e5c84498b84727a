//! Several nodes in one process, and a network between them that can be cut.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use model::{Command, GroupId, MemberId, NodeId};
use parking_lot::Mutex;
use replica::{
    AppendSink, Applied, Error, Pace, PeerAnswer, Peers, Replica, ReplicaConfig, SystemClock, Unreached,
    WORD_EVERY,
};
use storage::{CheckpointStore, Disk, Log, LogOptions, MemDisk, ThreadExecutor, checkpoint_path};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use wire::peer::PeerKind;

use crate::common::{GROUP, Toy};

/// Long enough for anything on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The network.
#[derive(Default)]
pub(crate) struct Net {
    nodes: Mutex<BTreeMap<NodeId, Arc<Reached>>>,
    /// Pairs that do not hear each other.
    cuts: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// Nodes whose process is known to have ended.
    gone: Mutex<BTreeSet<NodeId>>,
    /// Messages of checkpoints so far.
    pub(crate) snapshots: AtomicUsize,
    /// The message of a checkpoint that is lost, with all after it until this is set anew.
    pub(crate) snapshots_max: Mutex<Option<usize>>,
    /// Appends so far.
    pub(crate) appends: AtomicU64,
    /// All appends are lost.
    pub(crate) loses_appends: AtomicBool,
}

/// A node, as others reach it.
struct Reached {
    replica: Replica<Toy>,
    /// One for each node that sends.
    sinks: Mutex<HashMap<NodeId, Sink>>,
    /// Goes with the node.
    life: watch::Sender<()>,
}

struct Sink {
    sink: AppendSink,
    waiting: Waiting,
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Result<Bytes, Error>>>>>;

impl Reached {
    fn append(&self, from: NodeId, request: u64, body: Bytes) -> oneshot::Receiver<Result<Bytes, Error>> {
        let mut sinks = self.sinks.lock();
        let sink = sinks.entry(from).or_insert_with(|| {
            let waiting = Waiting::default();
            let answers = waiting.clone();
            let answer = move |request, answer| {
                if let Some(waits) = answers.lock().remove(&request) {
                    let _ = waits.send(answer);
                }
            };
            Sink { sink: self.replica.appends(Box::new(answer)), waiting }
        });
        let (done, answer) = oneshot::channel();
        sink.waiting.lock().insert(request, done);
        assert!(sink.sink.push(request, body), "over the window");
        answer
    }
}

impl Net {
    fn reach(&self, from: NodeId, to: NodeId) -> Result<Arc<Reached>, Unreached> {
        let pair = (from.min(to), from.max(to));
        let nodes = self.nodes.lock();
        let node = nodes.get(&to).filter(|_| !self.cuts.lock().contains(&pair));
        node.cloned().ok_or_else(|| Unreached(format!("node {to} is not reached from {from}")))
    }

    /// What a leader says of its group in which nothing happens goes to all who are reached, as nodes carry it.
    fn carry_words(&self, node: NodeId) {
        let Some(from) = self.nodes.lock().get(&node).cloned() else { return };
        let Some((word, members)) = from.replica.keep_quiet() else { return };
        for member in members {
            let Ok(to) = self.reach(node, member.node()) else { continue };
            match to.replica.hear_word(node, &word) {
                true => from.replica.word_agreed(member, &word, Instant::now()),
                false => from.replica.word_refused(),
            }
        }
    }

    pub(crate) fn cut(&self, one: u64, other: u64) {
        self.cuts.lock().insert((NodeId(one.min(other)), NodeId(one.max(other))));
    }

    pub(crate) fn heal(&self) {
        self.cuts.lock().clear();
    }
}

/// The network, as one node sees it.
struct From {
    net: Arc<Net>,
    node: NodeId,
}

impl Peers for From {
    fn send(
        &self,
        to: MemberId,
        group: GroupId,
        kind: PeerKind,
        body: Bytes,
        _pace: Pace,
    ) -> BoxFuture<'static, Result<PeerAnswer, Unreached>> {
        assert_eq!(group, GROUP);
        let (net, from) = (self.net.clone(), self.node);
        Box::pin(async move {
            let reached = net.reach(from, to.node())?;
            if kind == PeerKind::Snapshot {
                let sent = net.snapshots.fetch_add(1, Ordering::Relaxed) + 1;
                if net.snapshots_max.lock().is_some_and(|max| sent > max) {
                    return Err(Unreached("the link is lost".to_owned()));
                }
            }
            let answer: BoxFuture<'static, Result<Bytes, Error>> = if kind == PeerKind::Append {
                let request = net.appends.fetch_add(1, Ordering::Relaxed);
                if net.loses_appends.load(Ordering::Relaxed) {
                    return Err(Unreached("the append is lost".to_owned()));
                }
                let answer = reached.append(from, request, body);
                Box::pin(async move { answer.await.unwrap_or(Err(Error::Unavailable)) })
            } else {
                let handled = tokio::spawn(reached.replica.handle(kind, body));
                Box::pin(async move { handled.await.unwrap_or(Err(Error::Unavailable)) })
            };
            let mut life = reached.life.subscribe();
            drop(reached);
            let answer: PeerAnswer = Box::pin(async move {
                let answer = tokio::select! {
                    answer = answer => answer,
                    _ = life.changed() => Err(Error::Unavailable),
                };
                // A cut loses answers, too.
                net.reach(from, to.node())?;
                answer.map_err(|error| Unreached(error.to_string()))
            });
            Ok(answer)
        })
    }

    fn is_gone(&self, node: NodeId) -> bool {
        self.net.gone.lock().contains(&node)
    }
}

/// One node.
pub(crate) struct Node {
    pub(crate) log: Log,
    pub(crate) replica: Replica<Toy>,
}

/// Several nodes and their disks.
pub(crate) struct Cluster {
    pub(crate) net: Arc<Net>,
    pub(crate) disks: BTreeMap<u64, MemDisk>,
    pub(crate) nodes: BTreeMap<u64, Node>,
    pub(crate) config: fn(MemberId) -> ReplicaConfig,
    /// How many of them, from the first on, found the group.
    pub(crate) founders: u64,
}

pub(crate) fn member(node: u64) -> MemberId {
    MemberId::new(NodeId(node), 0)
}

pub(crate) fn usual(member: MemberId) -> ReplicaConfig {
    ReplicaConfig::new(GROUP, member)
}

impl Cluster {
    /// Nodes from 1 to `count`, all of them voters of the group.
    pub(crate) async fn new(count: u64, config: fn(MemberId) -> ReplicaConfig) -> Cluster {
        let mut cluster = Cluster::down(count, config);
        for node in 1..=count {
            cluster.start(node).await;
        }
        cluster.replica(1).elect().await.unwrap();
        cluster.leader().await;
        cluster
    }

    /// The same, before any of them is started for the first time.
    pub(crate) fn down(founders: u64, config: fn(MemberId) -> ReplicaConfig) -> Cluster {
        Cluster { net: Arc::default(), disks: BTreeMap::new(), nodes: BTreeMap::new(), config, founders }
    }

    /// Starts a node on its disk, as after whatever ended it before.
    pub(crate) async fn start(&mut self, node: u64) {
        self.try_start(node).await.unwrap();
    }

    pub(crate) async fn try_start(&mut self, node: u64) -> replica::Result<()> {
        let disk: Arc<dyn Disk> = Arc::new(self.disks.entry(node).or_default().mount());
        let executor = Arc::new(ThreadExecutor);
        let options =
            LogOptions { on_fatal: Arc::new(|_| ()), segment_bytes: 4 << 20, ..LogOptions::default() };
        let (log, _) = Log::open(disk.clone(), Path::new("log"), options, executor.clone()).unwrap();
        disk.create_dir_all(Path::new("shards")).unwrap();
        let store = CheckpointStore::open(disk.clone(), &checkpoint_path(GROUP), 1 << 20).unwrap();
        let founders = (1..=self.founders).map(|node| (member(node), format!("node-{node}")));
        let founders = if node <= self.founders { founders.collect() } else { Vec::new() };
        let config = ReplicaConfig { founders, ..(self.config)(member(node)) };
        let clock = Arc::new(SystemClock::new());
        let peers = Arc::new(From { net: self.net.clone(), node: NodeId(node) });
        let (group, make) = (log.group(GROUP), Box::new(Toy::default));
        let started = Replica::start(config, make, group, store, disk, clock, executor, peers).await;
        let replica = match started {
            Ok(replica) => replica,
            Err(error) => {
                let _ = log.close();
                return Err(error);
            }
        };
        let reached =
            Reached { replica: replica.clone(), sinks: Mutex::default(), life: watch::channel(()).0 };
        self.net.gone.lock().remove(&NodeId(node));
        self.net.nodes.lock().insert(NodeId(node), Arc::new(reached));
        self.nodes.insert(node, Node { log, replica });
        Ok(())
    }

    /// As a power cut does. The others see that it is gone if `seen`.
    pub(crate) fn kill(&mut self, node: u64, seed: u64) {
        self.net.nodes.lock().remove(&NodeId(node));
        self.disks[&node].crash(seed);
        self.nodes.remove(&node);
    }

    /// The others see that this node's process has ended.
    pub(crate) fn tell_gone(&self, node: u64) {
        self.net.gone.lock().insert(NodeId(node));
        for other in self.nodes.values() {
            other.replica.node_gone(NodeId(node));
        }
    }

    pub(crate) async fn stop(mut self) {
        for (node, one) in std::mem::take(&mut self.nodes) {
            self.net.nodes.lock().remove(&NodeId(node));
            one.replica.stop().await.unwrap();
            one.log.close().unwrap();
        }
    }

    /// Lets groups in which nothing happens go quiet, and waits until this one is. Until what is returned is dropped.
    pub(crate) async fn quiet(&self) -> JoinSet<()> {
        let mut carriers = JoinSet::new();
        for node in self.nodes.keys() {
            let (net, node) = (self.net.clone(), NodeId(*node));
            carriers.spawn(async move {
                // Not all at once.
                sleep(WORD_EVERY * (node.0 % 3) as u32 / 3).await;
                loop {
                    net.carry_words(node);
                    sleep(WORD_EVERY).await;
                }
            });
        }
        self.falls_quiet().await;
        carriers
    }

    /// Waits until there are no heartbeats for several times their interval.
    pub(crate) async fn falls_quiet(&self) {
        let deadline = Instant::now() + PATIENCE;
        let appends = || self.net.appends.load(Ordering::Relaxed);
        loop {
            let before = appends();
            sleep(Duration::from_secs(1)).await;
            if appends() == before {
                return;
            }
            assert!(Instant::now() < deadline, "it is not quiet: {:?}", self.statuses());
        }
    }

    pub(crate) fn replica(&self, node: u64) -> &Replica<Toy> {
        &self.nodes[&node].replica
    }

    /// Who leads, once somebody does and can say so to a quorum.
    pub(crate) async fn leader(&self) -> u64 {
        self.leader_of(&self.nodes.keys().copied().collect::<Vec<_>>()).await
    }

    /// The same, among some of the nodes.
    pub(crate) async fn leader_of(&self, nodes: &[u64]) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for node in nodes {
                let replica = self.replica(*node);
                if replica.leads() && replica.read_index().await.is_ok() {
                    return *node;
                }
            }
            assert!(Instant::now() < deadline, "no leader among {nodes:?}: {:?}", self.statuses());
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn statuses(&self) -> Vec<String> {
        self.nodes.values().map(|node| format!("{:?}", node.replica.status())).collect()
    }

    /// Has commands applied by whoever leads among `nodes`, over changes of the leader. Only commands that may
    /// happen twice.
    pub(crate) async fn propose_among(
        &self,
        nodes: &[u64],
        commands: &[Command],
    ) -> Vec<Applied<model::Reply>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let leader = self.leader_of(nodes).await;
            match timeout(PATIENCE, self.replica(leader).propose(commands.to_vec())).await.unwrap() {
                Ok(applied) => return applied,
                Err(error) => assert!(Instant::now() < deadline, "{error}: {:?}", self.statuses()),
            }
        }
    }

    pub(crate) async fn propose(&self, commands: &[Command]) -> Vec<Applied<model::Reply>> {
        self.propose_among(&self.nodes.keys().copied().collect::<Vec<_>>(), commands).await
    }

    /// Waits until all nodes have applied the same entries and are in the same state.
    pub(crate) async fn same_everywhere(&self) {
        let state = |replica: &Replica<Toy>| {
            let digest = replica.read_stale(Toy::digest);
            (replica.applied(), digest)
        };
        eventually(
            "the same everywhere",
            || {
                let states: BTreeSet<_> = self.nodes.values().map(|node| state(&node.replica)).collect();
                states.len() == 1
            },
            || self.statuses(),
        )
        .await;
    }
}

/// Waits until `condition` holds.
pub(crate) async fn eventually<T: std::fmt::Debug>(
    what: &str,
    mut condition: impl FnMut() -> bool,
    facts: impl Fn() -> T,
) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}: {:?}", facts());
        sleep(Duration::from_millis(5)).await;
    }
}
