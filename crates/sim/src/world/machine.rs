//! A machine: its disk, its clocks, and the lives of the node on it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use model::{Millis, NodeId};
use node::{LogOptions, MemDisk, Node, NodeConfig, Tuning};

use super::clock::{SimClock, Skew};
use super::dice::Dice;
use super::disk_work::{Pace, SimExecutor};
use super::door::{Desk, Door, Manners, Over};
use super::network::{PEER_PORT, SimNetwork};
use super::plan::Plan;
use super::record::{Notary, Recorder};

/// How often somebody looks whether a node was taken out of the cluster.
const REMOVAL_LOOK: Duration = Duration::from_millis(100);

/// The name of a node's machine on the network.
pub(crate) fn host(node: u16) -> String {
    format!("n{node}")
}

/// What the node on a machine is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Its process is not there, or not yet.
    Nothing,
    /// It finds its place and opens its groups.
    Starting,
    /// It serves.
    Serving,
    /// It did not start, for this reason.
    Refused(String),
    /// The cluster does not count on it any more.
    Removed,
}

/// A machine and its disk.
pub(crate) struct Machine {
    pub(crate) number: u16,
    plan: Rc<Plan>,
    desk: Desk,
    recorder: Recorder,
    disk: RefCell<MemDisk>,
    pub(crate) skew: Arc<Skew>,
    pub(crate) pace: Arc<Pace>,
    /// How long the next life waits before it begins.
    pub(crate) start_after: Cell<Duration>,
    lives: Cell<u64>,
    doing: RefCell<Doing>,
    /// Why the disk has ended the process of this life, if it has.
    over: RefCell<Over>,
}

impl Machine {
    pub(crate) fn new(number: u16, plan: Rc<Plan>, desk: Desk, recorder: Recorder) -> Machine {
        let mut dice = Dice::new(plan.seed, &format!("machine {number}"));
        let drift = plan.drift_ppm;
        let drift_ppm = AtomicI64::new(dice.between(0, 2 * drift) as i64 - drift as i64);
        let pace = Pace::new(plan.disk_us);
        Machine {
            number,
            desk,
            recorder,
            disk: RefCell::new(MemDisk::new()),
            skew: Arc::new(Skew { offset_ms: AtomicI64::new(0), drift_ppm }),
            pace: Arc::new(pace),
            start_after: Cell::default(),
            lives: Cell::default(),
            doing: RefCell::new(Doing::Nothing),
            over: RefCell::default(),
            plan,
        }
    }

    /// What the node is doing.
    pub(crate) fn doing(&self) -> Doing {
        self.doing.borrow().clone()
    }

    /// Its disk, as the one who breaks it sees it.
    pub(crate) fn disk(&self) -> MemDisk {
        self.disk.borrow().clone()
    }

    /// The process ends, and what it had not synced goes by `seed`.
    pub(crate) fn die(&self, seed: u64) {
        self.disk.borrow().crash(seed);
        *self.doing.borrow_mut() = Doing::Nothing;
    }

    /// The disk is taken out for an empty one.
    pub(crate) fn wipe(&self) {
        *self.disk.borrow_mut() = MemDisk::new();
    }

    /// Why the process has ended by itself, if it has and nobody has seen to it yet.
    pub(crate) fn over(&self) -> Option<String> {
        self.over.borrow().lock().clone()
    }

    /// One life of the node, until the machine's host is crashed.
    pub(crate) async fn live(self: Rc<Machine>) -> turmoil::Result {
        let over = Over::default();
        *self.over.borrow_mut() = over.clone();
        *self.doing.borrow_mut() = Doing::Nothing;
        self.lives.set(self.lives.get() + 1);
        tokio::time::sleep(self.start_after.get()).await;
        *self.doing.borrow_mut() = Doing::Starting;
        let config = self.config(over.clone()).await?;
        let clock = Arc::new(SimClock::new(self.skew.clone()));
        let executor = Arc::new(SimExecutor::new(self.pace.clone(), self.dice("disk")));
        match Node::start(config, clock, executor).await {
            Ok(node) => {
                *self.doing.borrow_mut() = Doing::Serving;
                tokio::task::spawn_local(self.clone().await_removal(node.clone()));
                let manners = Manners {
                    lost_percent: self.plan.lost_reply_percent,
                    drops_abandoned: self.plan.drops_abandoned,
                };
                let door = Door {
                    desk: self.desk.clone(),
                    node,
                    manners,
                    dice: RefCell::new(self.dice("door")),
                    recorder: self.recorder.clone(),
                    over,
                };
                Rc::new(door).serve().await?;
            }
            Err(error) => *self.doing.borrow_mut() = Doing::Refused(error.to_string()),
        }
        std::future::pending().await
    }

    async fn await_removal(self: Rc<Machine>, node: Node) {
        while !node.is_removed() {
            tokio::time::sleep(REMOVAL_LOOK).await;
        }
        *self.doing.borrow_mut() = Doing::Removed;
    }

    /// Chance for one purpose in this life.
    fn dice(&self, purpose: &str) -> Dice {
        let (number, life) = (self.number, self.lives.get());
        Dice::new(self.plan.seed, &format!("{purpose} of machine {number}, life {life}"))
    }

    async fn config(&self, over: Over) -> std::io::Result<NodeConfig> {
        let plan = &self.plan;
        // A node that comes later knows of all; the founders know of each other.
        let known = if self.number > plan.nodes { self.number } else { plan.nodes };
        let address = |node: u16| format!("{}:{PEER_PORT}", host(node));
        let peers: BTreeMap<NodeId, String> =
            (1..=known).map(|node| (NodeId(u64::from(node)), address(node))).collect();
        let log = LogOptions {
            segment_bytes: plan.segment_bytes,
            cache_bytes: plan.log_cache_bytes,
            spare_segments: 1,
            lag_bytes: 4 * plan.segment_bytes,
            // What comes at once is in several pieces now and then.
            piece_bytes: 16 * 1024,
            on_fatal: Arc::new(move |error| {
                tracing::warn!(%error, "the process ends");
                over.lock().get_or_insert(error.to_string());
            }),
            ..LogOptions::default()
        };
        Ok(NodeConfig {
            node: NodeId(u64::from(self.number)),
            shards: Some(plan.shards),
            disk_reserve_bytes: plan.disk_reserve_bytes,
            envelope_cache_bytes: plan.envelope_cache_bytes,
            propose_timeout: Millis(plan.propose_timeout_ms),
            log,
            peers,
            network: Some(Arc::new(SimNetwork::open().await?)),
            peer_address: address(self.number),
            http_address: format!("{}:7420", host(self.number)),
            tuning: Tuning {
                checkpoint_interval: Some(Millis(plan.checkpoint_ms)),
                keep_log_bytes: Some(plan.keep_log_bytes),
                hash_every: Some(plan.hash_every),
                witness: Some(Arc::new(Notary(self.recorder.clone()))),
            },
            ..NodeConfig::new(Arc::new(self.disk.borrow().mount()))
        })
    }
}
