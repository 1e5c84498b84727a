//! What a seed draws: how large the cluster is, who uses it, and what befalls it.
//!
//! Each run has a mix of its own, with some kinds of faults left out and others frequent: what always happens
//! together hides what happens alone.

use std::collections::BTreeSet;
use std::time::Duration;

use super::dice::Dice;
use crate::history::Verb;

/// What is said on the command line; the rest is drawn.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// Which run.
    pub seed: u64,
    /// How long clients and faults are at work.
    pub busy: Duration,
    /// How many nodes.
    pub nodes: Option<u16>,
    /// At most so many producers and workers.
    pub clients_max: Option<u16>,
    /// Kinds of faults that are left out, by their words.
    pub without: BTreeSet<String>,
    /// Works on checkpoints that ended the process of earlier tries, by their numbers: they meet damage instead.
    pub ended: Vec<u64>,
}

/// A kind of fault that the simulation does by itself; what clients do, they say themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Kill,
    KillAll,
    PowerLoss,
    PowerLossAll,
    TornWrite,
    Split,
    OneWay,
    Ring,
    Drop,
    Delay,
    SlowNetwork,
    CutClient,
    ClockJump,
    DiskFull,
    SlowDisk,
    SyncError,
    BitFlip,
    Truncation,
    Wipe,
    Leave,
    Transfer,
    WorkerDeath,
}

impl Kind {
    const ALL: [Kind; 22] = [
        Kind::Kill,
        Kind::KillAll,
        Kind::PowerLoss,
        Kind::PowerLossAll,
        Kind::TornWrite,
        Kind::Split,
        Kind::OneWay,
        Kind::Ring,
        Kind::Drop,
        Kind::Delay,
        Kind::SlowNetwork,
        Kind::CutClient,
        Kind::ClockJump,
        Kind::DiskFull,
        Kind::SlowDisk,
        Kind::SyncError,
        Kind::BitFlip,
        Kind::Truncation,
        Kind::Wipe,
        Kind::Leave,
        Kind::Transfer,
        Kind::WorkerDeath,
    ];

    /// The word for it in a history.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Kill => "kill",
            Kind::KillAll => "kill_all",
            Kind::PowerLoss => "power_loss",
            Kind::PowerLossAll => "power_loss_all",
            Kind::TornWrite => "torn_write",
            Kind::Split => "split",
            Kind::OneWay => "one_way",
            Kind::Ring => "ring",
            Kind::Drop => "drop",
            Kind::Delay => "delay",
            Kind::SlowNetwork => "slow_network",
            Kind::CutClient => "cut_client",
            Kind::ClockJump => "clock_jump",
            Kind::DiskFull => "disk_full",
            Kind::SlowDisk => "slow_disk",
            Kind::SyncError => "sync_error",
            Kind::BitFlip => "bit_flip",
            Kind::Truncation => "truncation",
            Kind::Wipe => "wipe",
            Kind::Leave => "leave",
            Kind::Transfer => "transfer",
            Kind::WorkerDeath => "worker_death",
        }
    }

    /// How often it comes when it comes at all, among the others.
    fn weight_max(self) -> u64 {
        match self {
            Kind::Kill
            | Kind::PowerLoss
            | Kind::TornWrite
            | Kind::Split
            | Kind::OneWay
            | Kind::WorkerDeath => 10,
            Kind::KillAll | Kind::PowerLossAll | Kind::Drop | Kind::Delay => 6,
            Kind::BitFlip | Kind::Truncation | Kind::Wipe | Kind::Leave => 4,
            _ => 5,
        }
    }

    /// Whether it takes a copy of the data from the cluster.
    pub(crate) fn is_damage(self) -> bool {
        matches!(self, Kind::BitFlip | Kind::Truncation | Kind::Wipe | Kind::Leave)
    }

    /// Whether one node alone can suffer it.
    fn fits_one_node(self) -> bool {
        !matches!(self, Kind::Split | Kind::OneWay | Kind::Ring | Kind::Transfer | Kind::KillAll)
            && !self.is_damage()
    }
}

/// Faults that clients and doors do by themselves.
const BY_CLIENTS: [&str; 4] = ["lost_reply", "duplicate_request", "zombie", "silent_worker"];

/// Whether a fault is one of those.
pub(crate) fn is_by_clients(word: &str) -> bool {
    BY_CLIENTS.contains(&word)
}

/// A run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) busy: Duration,
    /// How often the network is looked at: what comes meanwhile comes then.
    pub(crate) tick_ms: u64,
    /// Founders of the cluster.
    pub(crate) nodes: u16,
    /// When one more node joins.
    pub(crate) joins_at: Option<Duration>,
    pub(crate) shards: u16,
    pub(crate) producers: u16,
    pub(crate) workers: u16,

    /// Kinds of faults and how often each comes, relative to the others.
    pub(crate) faults: Vec<(Kind, u64)>,
    pub(crate) without: BTreeSet<String>,
    pub(crate) fault_every_ms: u64,
    pub(crate) first_fault_ms: u64,
    /// How many copies of the data may be lost.
    pub(crate) damage_max: u16,

    pub(crate) drift_ppm: u64,
    pub(crate) latency_ms_max: u64,
    pub(crate) disk_us: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) log_cache_bytes: usize,
    pub(crate) disk_reserve_bytes: u64,
    pub(crate) envelope_cache_bytes: u64,
    pub(crate) propose_timeout_ms: u64,
    pub(crate) checkpoint_ms: u64,
    pub(crate) keep_log_bytes: u64,
    pub(crate) hash_every: u64,

    pub(crate) lost_reply_percent: u64,
    pub(crate) drops_abandoned: bool,
    /// How long a client waits for an answer.
    pub(crate) patience_ms: u64,
    /// The pause between two enqueues of one producer.
    pub(crate) produce_every_ms: u64,
    pub(crate) payload_bytes_max: u64,
    pub(crate) hold_ms_max: u64,
    pub(crate) duplicate_percent: u64,
    pub(crate) zombie_percent: u64,
    /// How many workers have sessions, of a hundred.
    pub(crate) session_percent: u64,
    pub(crate) order_keys: u64,
    pub(crate) dedup_keys: u64,
    pub(crate) meddle_every_ms: u64,
}

impl Plan {
    /// What the seed says, within the wishes.
    pub(crate) fn draw(wishes: &Wishes) -> Plan {
        let mut dice = Dice::new(wishes.seed, "plan");
        let nodes_drawn = *dice.one_of(&[3, 3, 3, 3, 3, 3, 3, 5, 5, 1]);
        let nodes = wishes.nodes.unwrap_or(nodes_drawn).max(1);
        let drawn: Vec<(Kind, u64)> = Kind::ALL
            .into_iter()
            .map(|kind| (kind, if dice.percent(60) { dice.between(1, kind.weight_max()) } else { 0 }))
            .collect();
        let mut faults: Vec<(Kind, u64)> = drawn
            .into_iter()
            .filter(|(kind, weight)| *weight > 0 && (nodes > 1 || kind.fits_one_node()))
            .collect();
        if faults.is_empty() {
            faults.push((Kind::Kill, 1));
        }
        let clients = |drawn: u64| match wishes.clients_max {
            Some(max) => drawn.min(u64::from(max)) as u16,
            None => drawn as u16,
        };
        let busy_ms = wishes.busy.as_millis() as u64;
        let joins = nodes > 1 && dice.percent(20) && !wishes.without.contains("join");
        let joins_at = Duration::from_millis(dice.between(busy_ms / 10, busy_ms * 3 / 4));
        let is_lossy = !wishes.without.contains("lost_reply");
        Plan {
            seed: wishes.seed,
            busy: wishes.busy,
            tick_ms: *dice.one_of(&[1, 2, 5]),
            nodes,
            joins_at: joins.then_some(joins_at),
            shards: dice.between(1, 4) as u16,
            producers: clients(dice.between(1, 3)),
            workers: clients(dice.between(2, 5)),
            faults,
            without: wishes.without.clone(),
            fault_every_ms: dice.between(250, 650),
            first_fault_ms: if dice.percent(20) { dice.between(0, 1_500) } else { 3_000 },
            // Three of them vote at most, however many there are.
            damage_max: (nodes.min(3) - 1) / 2,
            drift_ppm: *dice.one_of(&[0, 0, 100, 1_000, 10_000]),
            latency_ms_max: dice.scale(1, 40),
            disk_us: dice.scale(200, 6_000),
            segment_bytes: *dice.one_of(&[128, 512, 2_048]) * 1_024,
            log_cache_bytes: *dice.one_of(&[0, 64 * 1_024, 8 * 1_024 * 1_024]),
            disk_reserve_bytes: *dice.one_of(&[0, 256 * 1_024]),
            envelope_cache_bytes: *dice.one_of(&[0, 16 * 1_024, 16 * 1_024 * 1_024]),
            propose_timeout_ms: *dice.one_of(&[2_000, 10_000]),
            checkpoint_ms: dice.scale(50, 1_000),
            keep_log_bytes: *dice.one_of(&[0, 16 * 1_024, 16 * 1_024 * 1_024]),
            hash_every: *dice.one_of(&[1, 16, 64]),
            lost_reply_percent: if is_lossy { *dice.one_of(&[0, 1, 3, 10]) } else { 0 },
            drops_abandoned: dice.percent(70),
            patience_ms: *dice.one_of(&[1_000, 3_000, 12_000]),
            produce_every_ms: dice.scale(10, 200),
            payload_bytes_max: dice.scale(16, 4_096),
            hold_ms_max: dice.between(1_000, 6_000),
            duplicate_percent: *dice.one_of(&[0, 2, 10]),
            zombie_percent: *dice.one_of(&[0, 2, 8]),
            session_percent: *dice.one_of(&[0, 50, 100]),
            order_keys: dice.between(1, 8),
            dedup_keys: dice.between(2, 40),
            meddle_every_ms: dice.scale(50, 1_000),
        }
    }

    /// All machines of nodes that there will be.
    pub(crate) fn machines(&self) -> u16 {
        self.nodes + u16::from(self.joins_at.is_some())
    }

    /// Whether clocks may be wrong by more than their drift.
    pub(crate) fn has_wrong_clocks(&self) -> bool {
        self.faults.iter().any(|(kind, _)| *kind == Kind::ClockJump) && !self.without.contains("clock_jump")
    }

    /// The faults that this run may bring, by their words.
    pub(crate) fn fault_words(&self) -> Vec<String> {
        let kinds = self.faults.iter().map(|(kind, _)| kind.as_str());
        let joins = self.joins_at.map(|_| "join");
        let clients = BY_CLIENTS.into_iter();
        let all = kinds.chain(joins).chain(clients).filter(|word| !self.without.contains(*word));
        all.map(str::to_owned).collect()
    }

    /// The calls that clients make.
    pub(crate) fn calls() -> Vec<Verb> {
        vec![
            Verb::Enqueue,
            Verb::Claim,
            Verb::Ack,
            Verb::Fail,
            Verb::Release,
            Verb::Extend,
            Verb::Progress,
            Verb::PutBack,
            Verb::Discard,
            Verb::Cancel,
            Verb::Requeue,
            Verb::Purge,
            Verb::EndSession,
            Verb::Get,
            Verb::Counts,
        ]
    }
}
