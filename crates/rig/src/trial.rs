//! One trial: a fresh cluster under load, faults for a while, everything healed, drained and listed, then judged.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::check;
use crate::cluster::{Cluster, SHARDS, Shape, WHOLE_MAX};
use crate::error::Error;
use crate::fault::{Active, Class, Fault, Site};
use crate::history::History;
use crate::load::{self, Load, Weight};
use crate::report::Outcome;
use crate::system::{pause, say, until};

/// Load without faults, before and after.
const CALM: Duration = Duration::from_secs(1);
/// How many faults are there at once in a mix.
const MIX_MAX: usize = 4;

/// What is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// For the table.
    pub(crate) name: String,
    pub(crate) faults: Vec<Fault>,
    /// Several at once.
    pub(crate) is_mix: bool,
    pub(crate) ends: Ends,
}

/// When there were enough faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    After(Duration),
    Rounds(u64),
}

/// What all trials of a call have in common.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) windlass: PathBuf,
    pub(crate) checker: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) nodes: usize,
    pub(crate) disk_bytes: u64,
    pub(crate) weight: Weight,
    pub(crate) seed: u64,
    /// Histories and logs are kept though all was well.
    pub(crate) keep: bool,
}

/// Makes a trial. An error is one of the rig; what broke stands in the outcome.
pub(crate) fn run(plan: &Plan, setting: &Setting) -> Result<Outcome, Error> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = setting.dir.join(format!("run-{}-{count}-{}", std::process::id(), plan.name));
    std::fs::create_dir_all(&dir).map_err(Error::io(format!("make {}", dir.display())))?;
    let seed = setting.seed.wrapping_add(u64::from(count));
    say(&format!("{}: seed {seed}, in {}", plan.name, dir.display()));
    let made = make(plan, setting, &dir, seed);
    let is_kept = setting.keep || made.as_ref().map_or(true, |outcome| outcome.violations > 0);
    if !is_kept || matches!(made, Err(Error::Stopped)) {
        let _ = std::fs::remove_dir_all(&dir);
    }
    made
}

fn make(plan: &Plan, setting: &Setting, dir: &Path, seed: u64) -> Result<Outcome, Error> {
    let began = Instant::now();
    let path = dir.join("history.jsonl");
    let words: Vec<&str> = plan.faults.iter().map(|fault| fault.word()).collect();
    let name = format!("{} seed {seed}", plan.name);
    let history = Arc::new(History::create(&path, &name, SHARDS, &words)?);
    let mut trial = Trial { plan, rng: StdRng::seed_from_u64(seed), history: &history, rounds: 0 };
    let (gap_us, is_broken_off) = match trial.attack(setting, dir, seed) {
        Ok(gap_us) => (gap_us, false),
        // All was healed, and still it did not come: that is found, not failed.
        Err(Error::Never { what, within }) => {
            history.find(format!("waited {} s until {what}", within.as_secs()));
            (history.gap_us(), true)
        }
        Err(error) => return Err(error),
    };
    let rounds = trial.rounds;
    if is_broken_off {
        let end = json!({"at_us": history.now_us(), "drained": false, "listed": false});
        history.write(&json!({"end": end}));
    }
    history.flush()?;
    let took = began.elapsed();
    let verdict = check::judge(&setting.checker, &path)?;
    let mut found = history.found();
    found.extend(verdict.lines);
    Ok(Outcome {
        name: plan.name.clone(),
        seed,
        rounds,
        operations: history.calls(),
        listed: history.listed(),
        unknown: history.unknown(),
        seconds: took.as_secs(),
        gap_ms: gap_us / 1_000,
        check_ms: verdict.took.as_millis() as u64,
        violations: found.len() as u64,
        found,
        kept: dir.display().to_string(),
    })
}

struct Trial<'a> {
    plan: &'a Plan,
    rng: StdRng,
    history: &'a Arc<History>,
    rounds: u64,
}

impl Trial<'_> {
    /// The whole of it on a fresh cluster; the longest time without success while faults were made.
    fn attack(&mut self, setting: &Setting, dir: &Path, seed: u64) -> Result<u64, Error> {
        let has = |fault: Fault| self.plan.faults.contains(&fault);
        let shape = Shape {
            windlass: setting.windlass.clone(),
            nodes: setting.nodes,
            disk_bytes: setting.disk_bytes,
            proxied: has(Fault::Delay),
            clocked: has(Fault::ClockJump),
        };
        let mut cluster = Cluster::new(shape, dir)?;
        cluster.start_all()?;
        cluster.await_whole()?;
        let addresses = cluster.addresses();
        let load = Load::start(self.history, &addresses, cluster.lives.clone(), setting.weight, seed)?;
        pause(CALM)?;
        self.history.count_gaps();
        let began = Instant::now();
        while !self.is_enough(began) {
            self.round(&mut cluster)?;
            self.rounds += 1;
        }
        pause(CALM)?;
        let gap_us = self.history.gap_us();
        self.look(&mut cluster)?;
        let drained = load.drain()?;
        cluster.await_whole()?;
        let listed = load::list(self.history, &addresses)?;
        self.compare(&cluster)?;
        let end = json!({"at_us": self.history.now_us(), "drained": drained, "listed": listed});
        self.history.write(&json!({"end": end}));
        self.look(&mut cluster)?;
        for (n, panic) in cluster.panics() {
            match cluster.is_damaged(n) {
                true => say(&format!("  node {}, whose files are damaged, panicked: {panic}", n + 1)),
                false => self.history.find(format!("node {} panicked: {panic}", n + 1)),
            }
        }
        Ok(gap_us)
    }

    fn is_enough(&self, began: Instant) -> bool {
        match self.plan.ends {
            Ends::After(span) => began.elapsed() >= span,
            Ends::Rounds(rounds) => self.rounds >= rounds,
        }
    }

    /// Begins a fault or several, waits, heals all, and waits until the cluster is whole.
    fn round(&mut self, cluster: &mut Cluster) -> Result<(), Error> {
        let mut site = Site { cluster, history: self.history, rng: &mut self.rng };
        let mut active = Vec::new();
        if self.plan.is_mix {
            begin_mix(&mut site, &self.plan.faults, &mut active)?;
        } else {
            let fault = self.plan.faults[self.rounds as usize % self.plan.faults.len()];
            active.extend(site.begin(fault, &[])?);
        }
        let lasts = Duration::from_millis(site.rng.random_range(500..5_000));
        let jumped = active.iter().any(|active: &Active| active.fault == Fault::ClockJump);
        let quick = active.iter().all(|active: &Active| active.fault == Fault::PowerLossAll);
        pause(if quick { lasts / 5 } else { lasts })?;
        while !active.is_empty() {
            let next = active.remove(site.rng.random_range(0..active.len()));
            site.heal(&next)?;
            if !active.is_empty() {
                pause(Duration::from_millis(site.rng.random_range(0..1_500)))?;
            }
        }
        self.look(cluster)?;
        cluster.await_whole()?;
        if jumped {
            cluster.await_clocks()?;
        }
        pause(Duration::from_millis(self.rng.random_range(200..1_500)))
    }

    /// Finds processes that ended by themselves, and starts them again.
    fn look(&mut self, cluster: &mut Cluster) -> Result<(), Error> {
        for n in 0..cluster.size() {
            let Some(status) = cluster.ended(n) else { continue };
            if cluster.is_damaged(n) {
                say(&format!("  node {}, whose files are damaged, ended: {status}", n + 1));
                cluster.replace(n)?;
            } else {
                let log = cluster.log_end(n);
                self.history.find(format!("node {} ended by itself: {status}\n    {log}", n + 1));
                cluster.start(n)?;
            }
        }
        Ok(())
    }

    /// All copies are the same in the end.
    fn compare(&self, cluster: &Cluster) -> Result<(), Error> {
        let mut differing = None;
        let same = until("all copies are the same", WHOLE_MAX, || {
            differing = cluster.differing();
            Ok(differing.is_none())
        });
        match (same, differing) {
            (Err(Error::Never { within, .. }), Some(what)) => Err(Error::Never { what, within }),
            (other, _) => other,
        }
    }
}

/// Begins some faults of different classes, processes more than one, on different nodes.
fn begin_mix(site: &mut Site<'_>, faults: &[Fault], active: &mut Vec<Active>) -> Result<(), Error> {
    let count = site.rng.random_range(2..=MIX_MAX);
    for _ in 0..3 * count {
        if active.len() == count {
            break;
        }
        let fault = faults[site.rng.random_range(0..faults.len())];
        let class = fault.class();
        let is_there = |known: &Active| known.fault.class() == class && class != Class::Process;
        if class == Class::Everything || active.iter().any(is_there) {
            continue;
        }
        let taken: Vec<usize> = active.iter().flat_map(|active| active.nodes().iter().copied()).collect();
        active.extend(site.begin(fault, &taken)?);
        pause(Duration::from_millis(site.rng.random_range(0..1_500)))?;
    }
    Ok(())
}
