//! The same work on Windlass and on its peers, alternating, several times, in one run.
//!
//! Each repetition starts each system anew and does all cases on it; `system.rs` knows the systems, `start.rs` how the
//! peers are started, `results.rs` what is kept, `draw.rs` how it is shown.

mod draw;
mod results;
mod start;
mod svg;
mod system;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::alone;
use crate::load::Plan;
use results::{Outcome, Results};
pub(crate) use start::redis;
use system::System;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Which systems; all unless said
    #[arg(long, value_enum, num_args = 1.., value_delimiter = ',')]
    systems: Vec<System>,
    /// Which cases; all unless said
    #[arg(long, value_enum, num_args = 1.., value_delimiter = ',')]
    cases: Vec<Case>,
    /// How often; the median counts
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// How long tasks are enqueued in each case
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Also what concerns Windlass alone, once: up to so many waiting tasks
    #[arg(long, value_name = "TASKS")]
    alone: Option<u64>,
    /// Where the programs of peers are: node_modules and a Python environment
    #[arg(long, default_value = "target/peers")]
    peers: PathBuf,
    /// The result; a table (.md) and plots (.svg) are written beside it
    #[arg(long)]
    out: Option<PathBuf>,
}

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Case {
    /// Enqueue, claim and ack, one task per message
    Lifecycle1,
    /// The same with 10 tasks per message
    Lifecycle10,
    /// The same with 100 tasks per message
    Lifecycle100,
    /// From an enqueue to the waiting worker, at 200 tasks per second
    Latency200,
    /// The same at half of what the system did with one task per message
    LatencyHalf,
}

/// How long a system that was just started works before anything counts: it may still be making its files.
const WARM_UP: Duration = Duration::from_secs(3);

/// In this order: at 200 a second a system shows its own pace, not what a load before has left it to do.
const CASES: [Case; 5] =
    [Case::Latency200, Case::Lifecycle1, Case::Lifecycle10, Case::Lifecycle100, Case::LatencyHalf];

impl Case {
    fn name(self) -> &'static str {
        match self {
            Case::Lifecycle1 => "lifecycle-1",
            Case::Lifecycle10 => "lifecycle-10",
            Case::Lifecycle100 => "lifecycle-100",
            Case::Latency200 => "latency-200",
            Case::LatencyHalf => "latency-half",
        }
    }

    /// What to do; `best` is what the system did per second with one task per message.
    fn plan(self, duration: Duration, best: Option<f64>) -> Result<Plan> {
        let plan = Plan { duration: Some(duration), ..Plan::lifecycle() };
        Ok(match self {
            Case::Lifecycle1 => plan,
            Case::Lifecycle10 => Plan { batch: 10, ..plan },
            Case::Lifecycle100 => Plan { batch: 100, ..plan },
            Case::Latency200 => Plan { rate: Some(200.0), ..plan },
            Case::LatencyHalf => {
                let best = best.context("half of what? lifecycle1 was left out or failed")?;
                Plan { rate: Some((best / 2.0).round().max(1.0)), ..plan }
            }
        })
    }
}

pub(crate) async fn run(binary: &Path, data: &Path, options: Options) -> Result<()> {
    let systems = if options.systems.is_empty() { System::all() } else { options.systems.clone() };
    let cases = if options.cases.is_empty() { CASES.to_vec() } else { options.cases.clone() };
    let out = match &options.out {
        Some(out) => out.clone(),
        None => PathBuf::from(format!("bench/results/{}.json", results::today())),
    };
    let mut results = Results::new(binary, data, &systems)?;
    for repetition in 0..options.repetitions {
        for &system in &systems {
            let done = one(system, binary, data, &cases, &options, repetition, &mut results).await;
            if let Err(error) = done {
                eprintln!("{}: {error:#}", system.name());
                results.absent(system, &format!("{error:#}"));
            }
            // A run that breaks off keeps what it has.
            results.write(&out)?;
        }
    }
    if let Some(tasks_max) = options.alone {
        results.alone = alone_cases(binary, data, tasks_max, options.seconds).await?;
        results.write(&out)?;
    }
    draw(&out)?;
    if results.is_empty() {
        bail!("no system was measured");
    }
    Ok(())
}

/// All cases on one system that is started for them.
async fn one(
    system: System,
    binary: &Path,
    data: &Path,
    cases: &[Case],
    options: &Options,
    repetition: usize,
    results: &mut Results,
) -> Result<()> {
    let dir = tempfile::tempdir_in(data)?;
    let running = system.start(binary, dir.path(), &options.peers).await?;
    if let Err(error) = running.run(&Case::Latency200.plan(WARM_UP, None)?).await {
        eprintln!("{} while it warmed up: {error:#}", system.name());
    }
    let mut best = None;
    for &case in cases {
        let plan = match case.plan(Duration::from_secs(options.seconds), best) {
            Ok(plan) => plan,
            Err(error) => {
                eprintln!("{} {}: {error:#}", system.name(), case.name());
                continue;
            }
        };
        let result = match running.run(&plan).await {
            Ok(result) => result,
            Err(error) => {
                eprintln!("{} {}: {error:#}", system.name(), case.name());
                results.failed(system, case, &format!("{error:#}"));
                continue;
            }
        };
        if case == Case::Lifecycle1 {
            best = result["acked_per_s"].as_f64();
        }
        let outcome = Outcome { system, case, repetition, plan, result };
        eprintln!("{}", outcome.line());
        results.outcomes.push(outcome);
    }
    Ok(())
}

/// What concerns Windlass alone, once each.
async fn alone_cases(binary: &Path, data: &Path, tasks_max: u64, seconds: u64) -> Result<Value> {
    let depths = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
    let depths: Vec<u64> = depths.into_iter().filter(|&tasks| tasks <= tasks_max).collect();
    let on_redis = depths.iter().copied().filter(|&tasks| tasks == 1_000_000).collect();
    let depth = alone::depth::run(binary, data, &alone::depth::Options::new(depths, on_redis)).await?;
    let shards = alone::shards::run(binary, data, &alone::shards::Options::new(1, seconds)).await?;
    let mut stall = Vec::new();
    for nodes in [1, 3] {
        let options = alone::stall::Options::new(nodes, 3 * seconds);
        stall.push(alone::stall::run(binary, data, &options).await?);
    }
    let idle = alone::idle::run(binary, data, &alone::idle::Options::new(15)).await?;
    let options = alone::idle_workers::Options::new(10_000, 60);
    let idle_workers = alone::idle_workers::run(binary, data, &options).await?;
    Ok(json!({
        "depth": depth, "shards": shards, "stall": stall, "idle": idle, "idle_workers": idle_workers,
    }))
}

/// Writes the table and the plots of a result beside it.
pub(crate) fn draw(file: &Path) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let results: Value = serde_json::from_str(&text)?;
    let table = draw::markdown(&results);
    std::fs::write(file.with_extension("md"), &table)?;
    for (name, plot) in draw::plots(&results) {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        std::fs::write(file.with_file_name(format!("{stem}-{name}.svg")), plot)?;
    }
    println!("{table}");
    Ok(())
}
