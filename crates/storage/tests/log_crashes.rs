//! Random changes of several groups, with the power cut at any write or sync, against a naive model.
//!
//! The law: after a restart the log is what a beginning of all changes, in the order of the calls, makes of
//! it; that beginning holds every change that was acknowledged. So nothing acknowledged is lost, nothing is
//! invented, votes and purges never go back.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use proptest::prelude::*;
use storage::{Log, LogEntry, LogId, MemDisk};
use support::*;

const GROUPS: u16 = 3;

#[derive(Clone, Debug)]
enum Op {
    Append { group: u16, count: u64, bytes: usize },
    Vote { group: u16 },
    Truncate { group: u16, back: u64 },
    Purge { group: u16, permille: u64 },
    PurgeBeyond { group: u16, by: u64 },
    Write,
    Close,
    Crash { after: u64, seed: u64 },
    CrashWhileOpening { after: u64, seed: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let group = 0..GROUPS;
    prop_oneof![
        8 => (group.clone(), 1..6u64, 0..3000usize).prop_map(|(group, count, bytes)| Op::Append { group, count, bytes }),
        2 => group.clone().prop_map(|group| Op::Vote { group }),
        1 => (group.clone(), 0..8u64).prop_map(|(group, back)| Op::Truncate { group, back }),
        2 => (group.clone(), 0..=1000u64).prop_map(|(group, permille)| Op::Purge { group, permille }),
        1 => (group, 1..50u64).prop_map(|(group, by)| Op::PurgeBeyond { group, by }),
        6 => Just(Op::Write),
        1 => Just(Op::Close),
        2 => (0..12u64, any::<u64>()).prop_map(|(after, seed)| Op::Crash { after, seed }),
        1 => (0..6u64, any::<u64>()).prop_map(|(after, seed)| Op::CrashWhileOpening { after, seed }),
    ]
}

/// What one record does.
#[derive(Clone)]
enum Step {
    Entry(LogEntry),
    Vote(Bytes),
    TruncateFrom(u64),
    Purge(LogId),
}

#[derive(Clone, Default, PartialEq)]
struct Model {
    vote: Option<Bytes>,
    purged: Option<LogId>,
    entries: BTreeMap<u64, LogEntry>,
}

impl fmt::Debug for Model {
    /// Short: payloads are only counted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<_> =
            self.entries.values().map(|entry| (entry.index, entry.term, entry.payload.len())).collect();
        write!(f, "vote {:?} purged {:?} (index, term, bytes) {entries:?}", self.vote, self.purged)
    }
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match step {
            Step::Entry(entry) => {
                self.entries.insert(entry.index, entry.clone());
            }
            Step::Vote(vote) => self.vote = Some(vote.clone()),
            Step::TruncateFrom(from) => self.entries.retain(|index, _| index < from),
            Step::Purge(upto) if self.purged.is_none_or(|purged| purged.index < upto.index) => {
                self.purged = Some(*upto);
                self.entries.retain(|index, _| *index > upto.index);
            }
            Step::Purge(_) => {}
        }
    }

    fn last(&self) -> Option<u64> {
        self.entries.keys().next_back().copied().or(self.purged.map(|purged| purged.index))
    }

    fn next(&self) -> u64 {
        self.last().map_or(0, |last| last + 1)
    }
}

type Models = BTreeMap<u16, Model>;

struct Run {
    disk: MemDisk,
    executor: ManualExecutor,
    log: Log,
    /// At the last restart.
    base: Models,
    /// Since then: group, what, and whether it was acknowledged.
    steps: Vec<(u16, Step, Arc<AtomicBool>)>,
    now: Models,
    counter: u64,
}

fn reopen(disk: &MemDisk, executor: &ManualExecutor) -> storage::Result<Log> {
    Log::open(Arc::new(disk.mount()), Path::new(DIR), options(), Arc::new(executor.clone()))
        .map(|(log, _)| log)
}

fn read(log: &Log) -> Models {
    let read = |number| {
        let log = group(log, number);
        let entries = log.read(0..u64::MAX).unwrap();
        let model = Model {
            vote: log.vote(),
            purged: log.state().purged,
            entries: entries.into_iter().map(|entry| (entry.index, entry)).collect(),
        };
        assert_eq!(log.state().last.map(|last| last.index), model.last());
        (number, model)
    };
    (0..GROUPS).map(read).collect()
}

impl Run {
    fn new() -> Run {
        let (disk, executor) = (MemDisk::new(), ManualExecutor::default());
        let log = reopen(&disk, &executor).unwrap();
        let base = read(&log);
        Run { disk, executor, log, now: base.clone(), base, steps: Vec::new(), counter: 0 }
    }

    fn apply(&mut self, op: &Op) {
        self.counter += 1;
        match *op {
            Op::Append { group, count, bytes } => {
                let first = self.now[&group].next();
                let (term, fill) = (self.counter, self.counter as u8);
                let entry =
                    |index| LogEntry { index, term, node: 1, payload: Bytes::from(vec![fill; bytes]) };
                let entries: Vec<_> = (first..first + count).map(entry).collect();
                self.change(group, entries.into_iter().map(Step::Entry).collect());
            }
            Op::Vote { group } => self.change(group, vec![Step::Vote(Bytes::from(self.counter.to_string()))]),
            Op::Truncate { group, back } => {
                let from = self.now[&group].next().saturating_sub(back);
                self.change(group, vec![Step::TruncateFrom(from)]);
            }
            Op::Purge { group, permille } => {
                let index = self.now[&group].next() * permille / 1000;
                let known = self.now[&group].entries.get(&index).map(LogEntry::id);
                if let Some(upto) = known {
                    self.change(group, vec![Step::Purge(upto)]);
                }
            }
            Op::PurgeBeyond { group, by } => {
                let index = self.now[&group].next() + by;
                self.change(group, vec![Step::Purge(LogId { term: self.counter, node: 2, index })]);
            }
            Op::Write => self.executor.run(),
            Op::Close => {
                self.executor.run();
                self.log.close().unwrap();
                self.log = reopen(&self.disk, &self.executor).unwrap();
                self.verify();
            }
            Op::Crash { after, seed } => {
                self.disk.cut_power_after(after);
                self.executor.run();
                self.disk.crash(seed);
                self.log = reopen(&self.disk, &self.executor).expect("a crash leaves at most a torn tail");
                self.verify();
            }
            Op::CrashWhileOpening { after, seed } => {
                self.disk.crash(seed);
                self.disk.cut_power_after(after);
                let _ = reopen(&self.disk, &self.executor);
                self.disk.crash(seed.wrapping_add(1));
                self.log = reopen(&self.disk, &self.executor).expect("a crash leaves at most a torn tail");
                self.verify();
            }
        }
    }

    fn change(&mut self, number: u16, steps: Vec<Step>) {
        let acknowledged = Arc::new(AtomicBool::new(false));
        let flag = acknowledged.clone();
        let done: storage::Done = Box::new(move |outcome| flag.store(outcome.is_ok(), Relaxed));
        let log = group(&self.log, number);
        match &steps[0] {
            Step::Entry(_) => {
                let entry = |step: &Step| match step {
                    Step::Entry(entry) => entry.clone(),
                    _ => unreachable!("an append has only entries"),
                };
                log.append(steps.iter().map(entry).collect(), done);
            }
            Step::Vote(vote) => log.save_vote(vote.clone(), done),
            Step::TruncateFrom(from) => log.truncate_after(from.checked_sub(1), done),
            Step::Purge(upto) => log.purge_upto(*upto, done),
        }
        let model = self.now.get_mut(&number).unwrap();
        for step in steps {
            model.apply(&step);
            self.steps.push((number, step, acknowledged.clone()));
        }
        assert_eq!(read(&self.log), self.now, "readable at return");
    }

    /// Finds the beginning of the changes that the restart has kept.
    fn verify(&mut self) {
        let found = read(&self.log);
        let must = self.steps.iter().rposition(|(_, _, done)| done.load(Relaxed)).map_or(0, |at| at + 1);
        let mut models = self.base.clone();
        let mut matches = must == 0 && models == found;
        for (at, (number, step, _)) in self.steps.iter().enumerate() {
            models.get_mut(number).unwrap().apply(step);
            matches |= at + 1 >= must && models == found;
        }
        assert!(
            matches,
            "found {found:#?}\nnone of {} beginnings from {must} changes on leads there, the last to {models:#?}",
            self.steps.len() - must + 1
        );
        self.steps.clear();
        self.base = found.clone();
        self.now = found;
    }
}

/// Found by the law below: a segment that a crash left without its restated votes let the one before it go.
#[test]
fn a_crash_while_a_segment_is_begun_keeps_the_votes_of_the_one_before() {
    for after in 0..40 {
        for seed in 0..20 {
            let mut run = Run::new();
            run.apply(&Op::Vote { group: 0 });
            run.apply(&Op::Write);
            run.apply(&Op::Crash { after: 0, seed });
            run.apply(&Op::Append { group: 1, count: 1, bytes: 0 });
            run.apply(&Op::Crash { after, seed });
            run.apply(&Op::Close);
            run.apply(&Op::Write);
            run.apply(&Op::Close);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_restart_finds_all_that_was_acknowledged_and_nothing_that_was_not_asked_for(
        ops in prop::collection::vec(op(), 1..80)
    ) {
        let mut run = Run::new();
        for op in &ops {
            run.apply(op);
        }
        run.apply(&Op::Crash { after: 1000, seed: 0 });
    }
}
