//! What came of the trials: a table for people, JSON for programs.

use std::path::Path;

use serde::Serialize;

use crate::error::Error;

/// What came of one trial.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) rounds: u64,
    pub(crate) operations: u64,
    /// Of these, calls without an answer that says what became of them.
    pub(crate) unknown: u64,
    pub(crate) seconds: u64,
    /// Tasks that were read one by one at the end, beside the operations.
    pub(crate) listed: u64,
    /// The longest time in which nothing was written in some shard.
    pub(crate) gap_ms: u64,
    pub(crate) check_ms: u64,
    pub(crate) violations: u64,
    pub(crate) found: Vec<String>,
    /// Where history and logs are, if there were violations.
    pub(crate) kept: String,
}

/// All of it.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) outcomes: Vec<Outcome>,
    /// What could not be tried here, and why.
    pub(crate) skipped: Vec<(String, String)>,
}

impl Report {
    pub(crate) fn violations(&self) -> u64 {
        self.outcomes.iter().map(|outcome| outcome.violations).sum()
    }

    /// One line for each trial, and what they come to.
    pub(crate) fn table(&self) -> String {
        let mut table = format!(
            "{:<18} {:>7} {:>11} {:>9} {:>9} {:>8} {:>10} {:>8} {:>10}\n",
            "fault",
            "rounds",
            "operations",
            "unknown",
            "listed",
            "seconds",
            "no success",
            "checked",
            "violations"
        );
        let sum = |of: fn(&Outcome) -> u64| self.outcomes.iter().map(of).sum();
        let total = Outcome {
            name: "all".to_owned(),
            seed: 0,
            rounds: sum(|outcome| outcome.rounds),
            operations: sum(|outcome| outcome.operations),
            unknown: sum(|outcome| outcome.unknown),
            listed: sum(|outcome| outcome.listed),
            seconds: sum(|outcome| outcome.seconds),
            gap_ms: self.outcomes.iter().map(|outcome| outcome.gap_ms).max().unwrap_or(0),
            check_ms: sum(|outcome| outcome.check_ms),
            violations: self.violations(),
            found: Vec::new(),
            kept: String::new(),
        };
        for line in self.outcomes.iter().chain([&total]) {
            let Outcome { name, rounds, operations, unknown, listed, seconds, violations, .. } = line;
            let in_seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1e3);
            let (gap, check) = (in_seconds(line.gap_ms), in_seconds(line.check_ms));
            table += &format!(
                "{name:<18} {rounds:>7} {operations:>11} {unknown:>9} {listed:>9} {seconds:>8} {gap:>10} {check:>8} \
                 {violations:>10}\n"
            );
        }
        for (what, why) in &self.skipped {
            table += &format!("SKIPPED: {what}: {why}\n");
        }
        for outcome in self.outcomes.iter().filter(|outcome| outcome.violations > 0) {
            table += &format!("{}: BROKEN, see {}\n", outcome.name, outcome.kept);
            outcome.found.iter().for_each(|what| table += &format!("  {what}\n"));
        }
        table
    }

    /// Writes it where programs find it.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Error> {
        let json = serde_json::to_string_pretty(self).expect("texts and numbers");
        std::fs::write(path, json + "\n").map_err(Error::io(format!("write {}", path.display())))
    }
}
