//! What a comparison keeps: every run as it was, the medians, what each system promises, and the machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::Case;
use super::system::System;
use crate::load::Plan;

/// How long the disk is measured.
const DISK_TIME: Duration = Duration::from_secs(2);

/// One run of one case on one system.
pub(super) struct Outcome {
    pub(super) system: System,
    pub(super) case: Case,
    pub(super) repetition: usize,
    pub(super) plan: Plan,
    pub(super) result: Value,
}

impl Outcome {
    /// The figure that counts: tasks per second, or the median time to a worker in milliseconds.
    fn figure(&self) -> Option<f64> {
        match self.case {
            Case::Latency200 | Case::LatencyHalf => self.latency("p50"),
            _ => self.result["acked_per_s"].as_f64(),
        }
    }

    fn latency(&self, quantile: &str) -> Option<f64> {
        self.result["latency_ms"]["delivery"][quantile].as_f64()
    }

    pub(super) fn line(&self) -> String {
        let (system, case, repetition) = (self.system.name(), self.case.name(), self.repetition + 1);
        match (self.plan.rate, self.latency("p50"), self.latency("p99")) {
            (Some(rate), Some(p50), Some(p99)) => {
                format!("{repetition} {case} {system}: {rate}/s, p50 {p50:.2} ms, p99 {p99:.2} ms")
            }
            _ => format!("{repetition} {case} {system}: {:.0}/s", self.figure().unwrap_or(0.0)),
        }
    }
}

/// A comparison.
pub(super) struct Results {
    head: Value,
    systems: Vec<System>,
    pub(super) outcomes: Vec<Outcome>,
    absent: BTreeMap<System, String>,
    failed: BTreeMap<(System, Case), String>,
    /// What concerns Windlass alone.
    pub(super) alone: Value,
}

impl Results {
    pub(super) fn new(binary: &Path, data: &Path, systems: &[System]) -> Result<Results> {
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = memory.lines().next().and_then(|line| line.split_whitespace().nth(1));
        let machine = json!({
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "memory_kib": memory.and_then(|kib| kib.parse::<u64>().ok()),
            "kernel": said(&["uname", "-r"]),
            "file_system": said(&["stat", "-f", "-c", "%T", &data.to_string_lossy()]),
            "fdatasync_of_4k_per_s": fdatasync(data)?,
        });
        let binary = binary.to_string_lossy();
        let head = json!({
            "date": today(),
            "machine": machine,
            "windlass": said(&[&binary, "--version"]),
            "commit": said(&["git", "rev-parse", "--short", "HEAD"]),
        });
        let (absent, failed) = (BTreeMap::new(), BTreeMap::new());
        let (systems, outcomes) = (systems.to_vec(), Vec::new());
        Ok(Results { head, systems, outcomes, absent, failed, alone: Value::Null })
    }

    pub(super) fn absent(&mut self, system: System, why: &str) {
        self.absent.insert(system, why.to_owned());
    }

    pub(super) fn failed(&mut self, system: System, case: Case, why: &str) {
        self.failed.insert((system, case), why.to_owned());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    pub(super) fn write(&self, file: &Path) -> Result<()> {
        if let Some(dir) = file.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut all = self.head.clone();
        all["systems"] = self.systems.iter().map(|&system| self.system(system)).collect();
        all["alone"] = self.alone.clone();
        std::fs::write(file, serde_json::to_string_pretty(&all)? + "\n")?;
        Ok(())
    }

    fn system(&self, system: System) -> Value {
        let mut cases = Map::new();
        for case in super::CASES {
            let runs: Vec<&Outcome> =
                self.outcomes.iter().filter(|o| o.system == system && o.case == case).collect();
            if runs.is_empty() {
                continue;
            }
            let median_of = |figure: &dyn Fn(&Outcome) -> Option<f64>| {
                median(runs.iter().filter_map(|outcome| figure(outcome)).collect())
            };
            cases.insert(
                case.name().to_owned(),
                json!({
                    "median": median_of(&Outcome::figure),
                    "p50_ms": median_of(&|outcome| outcome.latency("p50")),
                    "p99_ms": median_of(&|outcome| outcome.latency("p99")),
                    "runs": runs.iter().map(|run| json!({
                        "repetition": run.repetition, "plan": run.plan, "result": run.result,
                    })).collect::<Vec<_>>(),
                }),
            );
        }
        let failed = self.failed.iter().filter(|((of, _), _)| *of == system);
        let failed: Map<String, Value> =
            failed.map(|((_, case), why)| (case.name().to_owned(), why.as_str().into())).collect();
        json!({
            "name": system.name(),
            "durability_at_reply": system.durability(),
            "nodes": system.nodes(),
            "version": said(system.version_command()),
            "absent": self.absent.get(&system),
            "failed": failed,
            "cases": cases,
        })
    }
}

fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

/// The date in UTC.
pub(super) fn today() -> String {
    jiff::Timestamp::now().to_string().chars().take(10).collect()
}

/// The first line that a command says, if it can be run.
fn said(command: &[&str]) -> Option<String> {
    let (program, args) = command.split_first()?;
    let output = Command::new(program).args(args).output().ok()?;
    let said = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&said).lines().next().map(|line| line.trim().to_owned())
}

/// What the disk can do: 4 KiB written over again and synced, one after the other.
fn fdatasync(data: &Path) -> Result<f64> {
    let mut file: File = tempfile::tempfile_in(data)?;
    let block = [7; 4096];
    file.write_all(&block)?;
    file.sync_all()?;
    let (start, mut count) = (Instant::now(), 0u32);
    while start.elapsed() < DISK_TIME {
        file.rewind()?;
        file.write_all(&block)?;
        file.sync_data()?;
        count += 1;
    }
    Ok((f64::from(count) / start.elapsed().as_secs_f64()).round())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_one_in_the_middle() {
        for (figures, expected) in [
            (vec![], None),
            (vec![3.0], Some(3.0)),
            (vec![9.0, 1.0, 2.0], Some(2.0)),
            (vec![4.0, 1.0, 2.0, 9.0], Some(4.0)),
        ] {
            assert_eq!(median(figures), expected);
        }
    }
}
