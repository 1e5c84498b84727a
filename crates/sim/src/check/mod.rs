//! Holds the promises against a history: what clients saw, and what cannot have been.
//!
//! Sound before sharp: a history that a right cluster can leave is never called broken. A call without an
//! answer may have been done or not, at once or any time later. A router may ask a leader twice, so an
//! answer's index is where the answer stands; the deed itself may stand earlier, but not before the call
//! began. What orders the deeds on one task for certain are its fences. Each promise has its own file.

mod attempts;
mod births;
mod counts;
mod coverage;
mod deadline;
mod early;
mod exclusive;
mod facts;
mod fences;
mod fencing;
mod finality;
mod follow_ups;
mod hashes;
mod hold;
mod invented;
mod life;
mod lost;
mod order;
mod register;
mod report;
#[cfg(test)]
mod story;
mod take;
mod task;
mod timeline;
mod votes;

pub use coverage::{Coverage, RUNS_MIN};
pub use report::{Promise, Report, Violation};

use hashbrown::HashMap;
use model::TaskId;

use crate::history::{End, Line, Run};
use births::Births;
use facts::{Facts, Names};
use report::Findings;
use task::Task;

/// Gathers a history, line by line in any order, then judges it.
#[derive(Default)]
pub struct Checker {
    run: Option<Run>,
    end: Option<End>,
    names: Names,
    facts: Facts,
    tasks: HashMap<TaskId, Task>,
    births: Births,
    timeline: timeline::Timeline,
    counts: counts::Looks,
    hashes: hashes::Hashes,
    votes: votes::Votes,
    coverage: Coverage,
    findings: Findings,
    calls: u64,
}

/// What every check looks at.
struct Context<'a> {
    run: &'a Run,
    end: Option<&'a End>,
    names: &'a Names,
    facts: &'a Facts,
    births: &'a Births,
}

impl Checker {
    /// A checker that has seen nothing.
    pub fn new() -> Checker {
        Checker::default()
    }

    /// Takes in one line. An error is a fault of the recorder: the line contradicts another.
    pub fn take(&mut self, number: u32, line: Line) -> Result<(), String> {
        match line {
            Line::Run(run) => return self.take_run(run),
            Line::Call(call) => self.take_call(number, call)?,
            Line::Queue(queue) => self.facts.add_queue(&mut self.names, queue),
            Line::Steady(steady) => self.facts.add_steady(&mut self.names, &steady),
            Line::Hash(hash) => self.hashes.take(number, &hash, &mut self.findings),
            Line::Vote(vote) => self.votes.take_vote(number, &vote, &mut self.findings),
            Line::Leader(leader) => self.votes.take_leader(number, &leader, &mut self.findings),
            Line::Fault(fault) => {
                self.coverage.fired(&fault.kind);
                self.facts.add_skew(fault.at_us, fault.wall_skew_ms.unwrap_or(0));
            }
            Line::End(end) => {
                if self.end.as_ref().is_some_and(|known| *known != end) {
                    return Err("there was another \"end\" line, and it said otherwise".to_owned());
                }
                self.end = Some(end);
            }
        }
        Ok(())
    }

    fn take_run(&mut self, run: Run) -> Result<(), String> {
        if self.run.as_ref().is_some_and(|known| *known != run) {
            return Err("there was another \"run\" line, and it said otherwise: one run per file".to_owned());
        }
        if self.run.is_none() {
            self.coverage.meant(&run);
        }
        self.run = Some(run);
        Ok(())
    }

    /// Judges what was taken in.
    pub fn finish(self) -> Report {
        let Checker { run, end, names, facts, tasks, mut births, timeline, counts, .. } = self;
        let mut findings = self.findings;
        let run = run.unwrap_or_else(|| Run::new("a run without a name"));
        let mut tasks: Vec<Task> = tasks.into_values().collect();
        // In the order of their ids, so that a report reads the same every time.
        tasks.sort_unstable_by_key(|task| task.id);
        births.link();
        let context = Context { run: &run, end: end.as_ref(), names: &names, facts: &facts, births: &births };
        timeline.check(&context, &mut findings);
        let mut fences = fences::Given::default();
        let mut lines = order::Lines::default();
        let mut keys = exclusive::Keys::default();
        let mut numbers = counts::Numbers::default();
        let mut seen = invented::Seen::default();
        for task in &mut tasks {
            let life = life::Life::of(&context, task);
            invented::check(&context, &life, &mut seen, &mut findings);
            fences.check(&context, &life, &mut findings);
            fencing::check(&context, &life, &mut findings);
            finality::check(&context, &life, &mut findings);
            deadline::check(&context, &life, &mut findings);
            register::check(&context, &life, &mut findings);
            early::check(&context, &life, &mut findings);
            attempts::check(&context, &life, &mut findings);
            lost::check(&context, &life, &mut findings);
            lines.add(&life);
            keys.add(&life);
            numbers.add(&life);
        }
        fences.finish(&context, &mut findings);
        seen.finish(&context, &mut findings);
        follow_ups::check(&context, &seen, &mut findings);
        lines.check(&context, &mut findings);
        keys.check(&context, &mut findings);
        numbers.check(&context, &counts, &mut findings);
        findings.into_report(run.name.clone(), self.calls, tasks.len() as u64, self.coverage)
    }
}
