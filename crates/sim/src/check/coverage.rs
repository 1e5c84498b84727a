//! What happened at all: a set of runs in which something never happened proves nothing about it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::history::{Run, Verb};

/// From so many runs on, what never happened makes the whole set invalid; for fewer it is only told.
pub const RUNS_MIN: u64 = 100;

/// What happened in one run, or in many.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Coverage {
    runs: u64,
    calls_meant: BTreeSet<Verb>,
    calls_done: BTreeMap<Verb, u64>,
    faults_meant: BTreeSet<String>,
    faults_fired: BTreeMap<String, u64>,
}

impl Coverage {
    pub(super) fn meant(&mut self, run: &Run) {
        self.runs += 1;
        self.calls_meant.extend(&run.calls);
        self.faults_meant.extend(run.faults.iter().cloned());
    }

    pub(super) fn succeeded(&mut self, verb: Verb) {
        *self.calls_done.entry(verb).or_default() += 1;
    }

    pub(super) fn fired(&mut self, fault: &str) {
        match self.faults_fired.get_mut(fault) {
            Some(count) => *count += 1,
            None => {
                self.faults_fired.insert(fault.to_owned(), 1);
            }
        }
    }

    /// Takes in what happened in other runs.
    pub fn add(&mut self, other: &Coverage) {
        self.runs += other.runs;
        self.calls_meant.extend(&other.calls_meant);
        self.faults_meant.extend(other.faults_meant.iter().cloned());
        for (verb, count) in &other.calls_done {
            *self.calls_done.entry(*verb).or_default() += count;
        }
        for (fault, count) in &other.faults_fired {
            *self.faults_fired.entry(fault.clone()).or_default() += count;
        }
    }

    /// The faults that fired, by their words.
    pub fn faults(&self) -> impl Iterator<Item = &str> {
        self.faults_fired.keys().map(String::as_str)
    }

    /// What was meant to happen and never did.
    pub fn missing(&self) -> Vec<String> {
        let calls = self.calls_meant.iter().filter(|verb| !self.calls_done.contains_key(verb));
        let calls = calls.map(|verb| format!("no {} succeeded", verb.as_str()));
        let faults = self.faults_meant.iter().filter(|fault| !self.faults_fired.contains_key(*fault));
        calls.chain(faults.map(|fault| format!("the fault {fault} never fired"))).collect()
    }

    /// Whether what is missing makes the set invalid.
    pub fn is_invalid(&self) -> bool {
        self.runs >= RUNS_MIN && !self.missing().is_empty()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} runs", self.runs)?;
        for (verb, count) in &self.calls_done {
            write!(f, ", {} {count}", verb.as_str())?;
        }
        for (fault, count) in &self.faults_fired {
            write!(f, ", fault {fault} {count}")?;
        }
        writeln!(f)?;
        for missing in self.missing() {
            writeln!(f, "  coverage: {missing}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_run(calls: &[Verb], faults: &[&str]) -> Coverage {
        let mut coverage = Coverage::default();
        let faults = faults.iter().map(|&fault| fault.to_owned()).collect();
        coverage.meant(&Run { calls: calls.to_vec(), faults, ..Run::new("a run") });
        coverage
    }

    #[test]
    fn what_happened_in_one_of_many_runs_is_covered() {
        let mut all = Coverage::default();
        for n in 0..RUNS_MIN {
            let mut run = of_run(&[Verb::Ack, Verb::Requeue], &["partition"]);
            run.succeeded(Verb::Ack);
            if n == 7 {
                run.succeeded(Verb::Requeue);
                run.fired("partition");
            }
            all.add(&run);
        }
        assert_eq!(all.missing(), Vec::<String>::new());
        assert!(!all.is_invalid());
    }

    #[test]
    fn what_never_happened_is_told_and_counts_from_a_hundred_runs_on() {
        let mut all = Coverage::default();
        for n in 1..=RUNS_MIN {
            let mut run = of_run(&[Verb::Ack, Verb::Requeue], &["partition"]);
            run.succeeded(Verb::Ack);
            all.add(&run);
            assert_eq!(all.is_invalid(), n >= RUNS_MIN, "{n} runs");
        }
        assert_eq!(all.missing(), ["no requeue succeeded", "the fault partition never fired"]);
        assert!(all.to_string().contains("coverage: no requeue succeeded"));
    }
}
