//! Nodes that can be started, stopped, killed and wiped.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{GroupId, KindName, MemberId, Millis, NodeId, QueueName, TaskId};
use node::call::{Freshness, TaskSpec};
use node::{Error, LogOptions, MemDisk, Node, NodeConfig, StartProgress, SystemClock, ThreadExecutor};
use storage::{Disk, Open};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use wire::life::{Identity, Standing};

use crate::net::Net;

/// How long a condition may take to come true on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) const SHARDS: u16 = 2;

/// Disks and a network, and the processes on them.
pub(crate) struct World {
    pub(crate) net: Net,
    disks: BTreeMap<u64, MemDisk>,
    running: BTreeMap<u64, Process>,
    seed: u64,
}

pub(crate) struct Process {
    runtime: Option<Runtime>,
    starting: Option<JoinHandle<Result<Node, Error>>>,
    pub(crate) progress: StartProgress,
    node: Option<Node>,
}

/// A runtime cannot be dropped from within another, and may not wait for what it runs.
impl Drop for Process {
    fn drop(&mut self) {
        self.node.take();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub(crate) fn address(node: u64) -> String {
    format!("node-{node}:7421")
}

pub(crate) fn peers(nodes: &[u64]) -> BTreeMap<NodeId, String> {
    nodes.iter().map(|&node| (NodeId(node), address(node))).collect()
}

impl World {
    pub(crate) fn new() -> World {
        World { net: Net::default(), disks: BTreeMap::new(), running: BTreeMap::new(), seed: 1 }
    }

    pub(crate) fn disk(&mut self, node: u64) -> MemDisk {
        self.disks.entry(node).or_default().clone()
    }

    /// The node forgets everything.
    pub(crate) fn wipe(&mut self, node: u64) {
        assert!(!self.running.contains_key(&node), "a node that runs is not wiped");
        self.disks.insert(node, MemDisk::new());
    }

    pub(crate) fn config(&mut self, node: u64, listed: &[u64]) -> NodeConfig {
        let disk = self.disk(node).mount();
        // A killed node's threads may still try to write to a disk that is not theirs any more.
        let log = LogOptions { segment_bytes: 2 << 20, on_fatal: Arc::new(|_| {}), ..LogOptions::default() };
        NodeConfig {
            node: NodeId(node),
            shards: Some(SHARDS),
            disk_reserve_bytes: 0,
            log,
            peers: peers(listed),
            network: Some(self.net.at(&address(node))),
            peer_address: address(node),
            http_address: format!("node-{node}:7420"),
            ..NodeConfig::new(Arc::new(disk))
        }
    }

    /// Begins to start a node that was told of these.
    pub(crate) fn launch(&mut self, node: u64, listed: &[u64]) {
        let config = self.config(node, listed);
        self.launch_with(config);
    }

    pub(crate) fn launch_with(&mut self, config: NodeConfig) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (node, progress) = (config.node.0, config.progress.clone());
        let start = Node::start(config, Arc::new(SystemClock::new()), Arc::new(ThreadExecutor));
        let starting = Some(runtime.spawn(start));
        self.running.insert(node, Process { runtime: Some(runtime), starting, progress, node: None });
    }

    pub(crate) fn progress(&self, node: u64) -> String {
        self.running[&node].progress.now()
    }

    pub(crate) fn has_started(&self, node: u64) -> bool {
        let process = &self.running[&node];
        process.node.is_some() || process.starting.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// A node, once it has started.
    pub(crate) async fn node(&mut self, node: u64) -> Node {
        self.try_node(node).await.unwrap()
    }

    pub(crate) async fn try_node(&mut self, node: u64) -> Result<Node, Error> {
        let process = self.running.get_mut(&node).unwrap();
        if let Some(starting) = process.starting.take() {
            let started = tokio::time::timeout(PATIENCE, starting).await;
            let started = started.unwrap_or_else(|_| panic!("node {node} waits: {}", process.progress.now()));
            process.node = Some(started.unwrap()?);
        }
        Ok(process.node.clone().unwrap())
    }

    /// Starts nodes, and waits until all groups have a leader that all of them know.
    pub(crate) async fn start(&mut self, nodes: &[u64], listed: &[u64]) {
        for &node in nodes {
            self.launch(node, listed);
        }
        self.settled().await;
    }

    /// Waits until all nodes that run have started and agree on a leader of every group.
    pub(crate) async fn settled(&mut self) {
        for node in self.running.keys().copied().collect::<Vec<_>>() {
            self.node(node).await;
        }
        let nodes: Vec<Node> = self.running.values().filter_map(|process| process.node.clone()).collect();
        eventually("all agree on a leader of every group", || {
            let leaders = |node: &Node| -> Vec<_> {
                node.info().groups.iter().map(|group| (group.leader, group.term)).collect()
            };
            let first = leaders(&nodes[0]);
            first.iter().all(|(leader, _)| leader.is_some())
                && nodes.iter().all(|node| leaders(node) == first)
        })
        .await;
    }

    /// Stops a node in order.
    pub(crate) async fn stop(&mut self, node: u64) {
        let stopping = self.node(node).await;
        let process = self.running.remove(&node).unwrap();
        let runtime = process.runtime.as_ref().unwrap();
        runtime.spawn(async move { stopping.stop().await }).await.unwrap().unwrap();
    }

    /// Ends a node without a word, and cuts its power.
    pub(crate) fn kill(&mut self, node: u64) {
        let mut process = self.running.remove(&node).unwrap();
        if let Some(starting) = process.starting.take() {
            starting.abort();
        }
        drop(process);
        self.net.forget(&address(node));
        self.seed += 1;
        self.disks[&node].crash(self.seed);
    }
}

const IDENTITY: &str = "identity";
/// Magic, version and checksum: `docs/formats/identity.md`.
const IDENTITY_HEADER: &[u8] = b"WLnode\r\n\x01\0\0\0";
const CHECKSUM_BYTES: usize = 16;

/// What a disk says of its node, and whether it says that there is a log.
pub(crate) fn read_identity(disk: &MemDisk) -> (Standing, bool) {
    let bytes = disk.read(Path::new(IDENTITY)).unwrap();
    let body = bytes[IDENTITY_HEADER.len() + CHECKSUM_BYTES..].to_vec();
    let identity = Identity::decode(body.into()).unwrap();
    (identity.standing, identity.has_log)
}

/// Says on a disk who a node is, and nothing of a log.
pub(crate) fn write_identity(disk: &MemDisk, node: NodeId, standing: Standing) {
    let body = Identity { node, standing, has_log: false }.encode();
    let sum = blake3::hash(&body);
    let bytes = [IDENTITY_HEADER, &sum.as_bytes()[..CHECKSUM_BYTES], &body].concat();
    let file = disk.open(Path::new(IDENTITY), Open::Create).unwrap();
    file.set_len(0).unwrap();
    file.write_at(&bytes, 0).unwrap();
    file.sync_all().unwrap();
    disk.sync_dir(Path::new("")).unwrap();
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn groups() -> impl Iterator<Item = GroupId> {
    (0..=SHARDS).map(GroupId)
}

/// `"2.1"` is the second life of node 2.
pub(crate) fn members(text: &str) -> BTreeSet<MemberId> {
    let member = |text: &str| {
        let (node, incarnation) = text.split_once('.').unwrap_or((text, "0"));
        MemberId::new(NodeId(node.parse().unwrap()), incarnation.parse().unwrap())
    };
    text.split_whitespace().map(member).collect()
}

/// Whether these vote in every group, and those only learn.
pub(crate) fn is_voted_by(node: &Node, voters: &str, learners: &str) -> bool {
    groups().all(|group| {
        let now = node.members(group).unwrap();
        now.committed && !now.is_joint && now.voters == members(voters) && now.learners == members(learners)
    })
}

/// A task that is kept for sure.
pub(crate) async fn enqueue(node: &Node, queue: &str) -> TaskId {
    let since = Instant::now();
    loop {
        let task = TaskSpec::new(QueueName::new(queue).unwrap(), KindName::new("k").unwrap());
        match node.enqueue(vec![task], false).await {
            Ok(answer) => return answer.value.into_iter().next().unwrap().unwrap().id,
            Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whether a task is there, as this node answers it to everybody.
pub(crate) async fn has_task(node: &Node, task: TaskId) -> bool {
    let since = Instant::now();
    loop {
        match node.task(task, Millis(0), Freshness::Linearizable).await {
            Ok(_) => return true,
            Err(Error::Rejected(_)) => return false,
            Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
