//! A cluster of three, each node in a runtime of its own so that it can be killed.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::command::ClaimQueue;
use model::{KindName, Millis, NodeId, QueueName, ShardId, TaskId, WorkerName};
use node::call::{AckCall, Claim, ClaimCall, TaskSpec};
use node::{LogOptions, MemDisk, Node, NodeConfig, SystemClock, ThreadExecutor};
use tokio::runtime::Runtime;

use crate::net::Net;

/// How long a condition may take to come true on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const SHARDS: u16 = 4;

struct Member {
    runtime: Option<Runtime>,
    node: Node,
}

/// A runtime cannot be dropped from within another, and may not wait for what it runs.
impl Drop for Member {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Three nodes.
pub(crate) struct Cluster {
    net: Net,
    members: BTreeMap<NodeId, Member>,
}

fn address(n: u64) -> String {
    format!("node-{n}")
}

fn config(net: &Net, n: u64) -> NodeConfig {
    // A killed node's threads may still try to write.
    let log =
        LogOptions { segment_bytes: 4 * 1024 * 1024, on_fatal: Arc::new(|_| {}), ..LogOptions::default() };
    NodeConfig {
        node: NodeId(n),
        shards: Some(SHARDS),
        disk_reserve_bytes: 0,
        log,
        peers: (1..=3).map(|n| (NodeId(n), address(n))).collect(),
        network: Some(net.at(&address(n))),
        peer_address: address(n),
        http_address: format!("http://{}", address(n)),
        ..NodeConfig::new(Arc::new(MemDisk::new()))
    }
}

impl Cluster {
    /// Starts all, and waits until every shard has a leader that all know.
    pub(crate) async fn start() -> Cluster {
        let net = Net::default();
        let start = |n| {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.unwrap();
            let start = Node::start(config(&net, n), Arc::new(SystemClock::new()), Arc::new(ThreadExecutor));
            let node = runtime.spawn(start);
            (NodeId(n), runtime, node)
        };
        let starting: Vec<_> = (1..=3).map(start).collect();
        let mut members = BTreeMap::new();
        for (id, runtime, node) in starting {
            let node = node.await.unwrap().unwrap();
            members.insert(id, Member { runtime: Some(runtime), node });
        }
        let cluster = Cluster { net, members };
        for shard in cluster.shards() {
            cluster.leader_of(shard).await;
        }
        cluster
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        ShardId::all(SHARDS)
    }

    pub(crate) fn node(&self, id: u64) -> &Node {
        &self.members[&NodeId(id)].node
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.members.values().map(|member| &member.node)
    }

    /// Who leads a shard: all agree, sooner or later.
    pub(crate) async fn leader_of(&self, shard: ShardId) -> NodeId {
        let agreed = || {
            let mut leaders = self.nodes().map(|node| node.leader_of(shard));
            let first = leaders.next().flatten()?;
            leaders.all(|leader| leader == Some(first)).then_some(first)
        };
        eventually("all agree who leads", || async { agreed().is_some() }).await;
        agreed().unwrap()
    }

    /// Nothing goes between two nodes any more.
    pub(crate) fn cut(&self, one: NodeId, other: NodeId) {
        self.net.cut(&address(one.0), &address(other.0));
    }

    /// Nothing goes between a node and the others any more.
    pub(crate) fn isolate(&self, id: NodeId) {
        self.members.keys().filter(|other| **other != id).for_each(|other| self.cut(id, *other));
    }

    /// What one node says does not arrive at the other any more.
    pub(crate) fn mute(&self, from: NodeId, to: NodeId) {
        self.net.mute(&address(from.0), &address(to.0));
    }

    /// All goes again.
    pub(crate) fn heal(&self) {
        self.net.heal();
    }

    /// Ends a node without a word.
    pub(crate) fn kill(&mut self, id: NodeId) {
        drop(self.members.remove(&id).unwrap());
    }
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

pub(crate) fn task(name: &str) -> TaskSpec {
    let mut task = TaskSpec::new(queue(name), KindName::new("welcome").unwrap());
    task.payload = Bytes::from_static(br#"{"to":"ada@example.com"}"#);
    task
}

/// A task that lives in `shard`.
pub(crate) fn task_in(name: &str, shard: ShardId) -> TaskSpec {
    let keyed = |n: u64| TaskSpec { order_key: Some(format!("{shard}-{n}")), ..task(name) };
    let lives_here = |task: &TaskSpec| {
        let key = model::KeyHash::new(&task.queue, task.order_key.as_deref().unwrap());
        ShardId::of_hash(key.place(), SHARDS) == shard
    };
    (0..).map(keyed).find(lives_here).unwrap()
}

pub(crate) async fn enqueue(node: &Node, task: TaskSpec) -> TaskId {
    let answer = node.enqueue(vec![task], false).await.unwrap();
    answer.value.into_iter().next().unwrap().unwrap().id
}

pub(crate) fn claim_call(name: &str, max: u32, wait: Millis) -> ClaimCall {
    ClaimCall {
        queues: vec![ClaimQueue { name: queue(name), weight: 0 }],
        worker: WorkerName::new("w1").unwrap(),
        session: None,
        max,
        hold: None,
        wait,
        request_id: None,
    }
}

pub(crate) async fn claim(node: &Node, name: &str, max: u32, wait: Millis) -> Vec<Claim> {
    node.claim(claim_call(name, max, wait)).await.unwrap().value
}

pub(crate) async fn ack(node: &Node, claim: &Claim) {
    let call = AckCall { token: claim.token.clone(), output: Bytes::new(), then: Vec::new() };
    node.ack(vec![call]).await.remove(0).unwrap();
}

/// Waits until `condition` holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let since = Instant::now();
    while !condition().await {
        assert!(since.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
