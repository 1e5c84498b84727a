//! Nodes and calls for tests.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::command::ClaimQueue;
use model::{KindName, Millis, QueueName, SessionId, TaskId, WorkerName};
use node::call::{AckCall, Claim, ClaimCall, FailCall, Freshness, TaskSpec, WorkerFacts};
use node::{Error, LogOptions, MemDisk, Node, NodeConfig, SystemClock, ThreadExecutor};

/// How long a condition may take to come true on a slow machine.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn config(disk: &MemDisk) -> NodeConfig {
    // A killed node's threads may still try to write to a disk that is not theirs any more.
    let log =
        LogOptions { segment_bytes: 4 * 1024 * 1024, on_fatal: Arc::new(|_| {}), ..LogOptions::default() };
    NodeConfig { shards: Some(4), disk_reserve_bytes: 0, log, ..NodeConfig::new(Arc::new(disk.mount())) }
}

pub(crate) async fn start_with(config: NodeConfig) -> Result<Node, Error> {
    Node::start(config, Arc::new(SystemClock::new()), Arc::new(ThreadExecutor)).await
}

pub(crate) async fn start(disk: &MemDisk) -> Node {
    start_with(config(disk)).await.unwrap()
}

/// A node on a new disk.
pub(crate) async fn node() -> Node {
    start(&MemDisk::new()).await
}

/// A node in a runtime of its own, so that it can be killed.
pub(crate) struct Life {
    runtime: tokio::runtime::Runtime,
    pub(crate) node: Node,
}

impl Life {
    pub(crate) fn begin(disk: &MemDisk) -> Life {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let node = runtime.block_on(start(disk));
        Life { runtime, node }
    }

    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Ends everything without a word, and cuts the power.
    pub(crate) fn kill(self, disk: &MemDisk, seed: u64) {
        let Life { runtime, node } = self;
        drop(runtime);
        drop(node);
        disk.crash(seed);
    }
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

pub(crate) fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).unwrap()
}

pub(crate) fn task(name: &str) -> TaskSpec {
    let mut task = TaskSpec::new(queue(name), KindName::new("welcome").unwrap());
    task.payload = Bytes::from_static(br#"{"to":"ada@example.com"}"#);
    task
}

pub(crate) async fn enqueue(node: &Node, task: TaskSpec) -> TaskId {
    let answer = node.enqueue(vec![task], false).await.unwrap();
    answer.value.into_iter().next().unwrap().unwrap().id
}

pub(crate) fn claim_call(name: &str, max: u32, wait: Millis) -> ClaimCall {
    ClaimCall {
        queues: vec![ClaimQueue { name: queue(name), weight: 0 }],
        worker: worker("w1"),
        session: None,
        max,
        hold: None,
        wait,
        request_id: None,
    }
}

pub(crate) async fn claim(node: &Node, name: &str, max: u32) -> Vec<Claim> {
    node.claim(claim_call(name, max, Millis(0))).await.unwrap().value
}

pub(crate) async fn claim_one(node: &Node, name: &str) -> Claim {
    let mut claims = claim(node, name, 1).await;
    claims.pop().expect("a task is ready")
}

pub(crate) fn ack_call(token: &str) -> AckCall {
    AckCall { token: token.to_owned(), output: Bytes::new(), then: Vec::new() }
}

pub(crate) async fn ack(node: &Node, claim: &Claim) -> Result<model::Settled, Error> {
    node.ack(vec![ack_call(&claim.token)]).await.pop().unwrap().map(|answer| answer.value)
}

pub(crate) fn fail_call(claim: &Claim) -> FailCall {
    FailCall {
        token: claim.token.clone(),
        error: "SMTP 451".to_owned(),
        detail: "a backtrace".to_owned(),
        retry_in: None,
        fatal: false,
    }
}

pub(crate) fn facts(name: &str) -> WorkerFacts {
    WorkerFacts { slots: 8, queues: vec![queue("mail")], ..WorkerFacts::named(worker(name)) }
}

/// A registered worker and its session.
pub(crate) async fn register(node: &Node, name: &str) -> SessionId {
    node.register(facts(name)).await.unwrap().0
}

pub(crate) async fn claim_in_session(node: &Node, name: &str, who: &str, session: SessionId) -> Vec<Claim> {
    let call = ClaimCall { worker: worker(who), session: Some(session), ..claim_call(name, 100, Millis(0)) };
    node.claim(call).await.unwrap().value
}

/// Waits until `condition` holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let since = Instant::now();
    while !condition().await {
        assert!(since.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How many tasks of a queue are in a state.
pub(crate) async fn depth(node: &Node, name: &str, state: model::StateKind) -> u64 {
    node.queue(&queue(name), Freshness::Linearizable).await.map_or(0, |info| info.depth.of(state))
}
