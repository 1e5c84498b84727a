//! What was found.

use std::fmt;

use super::coverage::Coverage;

/// Violations told of one promise; of the rest only the number.
const TOLD_MAX: usize = 20;

/// Which promise broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Promise {
    Kept,
    NotInvented,
    OnceIn,
    FencesRise,
    Fenced,
    Final,
    Held,
    InOrder,
    Linearizable,
    SameEverywhere,
    NeverEarly,
    Attempts,
    CountsConserved,
    FollowUpsOnce,
    VotesKept,
}

impl Promise {
    /// All of them.
    pub const ALL: [Promise; 15] = [
        Promise::Kept,
        Promise::NotInvented,
        Promise::OnceIn,
        Promise::FencesRise,
        Promise::Fenced,
        Promise::Final,
        Promise::Held,
        Promise::InOrder,
        Promise::Linearizable,
        Promise::SameEverywhere,
        Promise::NeverEarly,
        Promise::Attempts,
        Promise::CountsConserved,
        Promise::FollowUpsOnce,
        Promise::VotesKept,
    ];

    /// The words for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Promise::Kept => "nothing is lost",
            Promise::NotInvented => "nothing is invented",
            Promise::OnceIn => "one task per key",
            Promise::FencesRise => "fences are unique and rise",
            Promise::Fenced => "an old token counts no more",
            Promise::Final => "an end is final",
            Promise::Held => "a claim holds until its deadline",
            Promise::InOrder => "an order key keeps its order",
            Promise::Linearizable => "every answer fits one order",
            Promise::SameEverywhere => "replicas agree",
            Promise::NeverEarly => "never early",
            Promise::Attempts => "attempts are counted",
            Promise::CountsConserved => "counts are conserved",
            Promise::FollowUpsOnce => "follow-ups come exactly once",
            Promise::VotesKept => "term and vote never go back",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Something that cannot have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise broke.
    pub promise: Promise,
    /// Which task, which calls, when.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.text)
    }
}

/// Violations as they are found.
#[derive(Default)]
pub(super) struct Findings {
    told: Vec<Violation>,
    counts: [u64; Promise::ALL.len()],
}

impl Findings {
    /// Notes one. The text is made only if it will be told.
    pub(super) fn add(&mut self, promise: Promise, text: impl FnOnce() -> String) {
        let count = &mut self.counts[promise as usize];
        *count += 1;
        if *count <= TOLD_MAX as u64 {
            self.told.push(Violation { promise, text: text() });
        }
    }

    pub(super) fn into_report(mut self, name: String, calls: u64, tasks: u64, coverage: Coverage) -> Report {
        self.told.sort_by_key(|violation| violation.promise);
        Report { name, calls, tasks, violations: self.told, counts: self.counts, coverage }
    }
}

/// What a history shows.
pub struct Report {
    /// The run's name.
    pub name: String,
    /// How many calls it had.
    pub calls: u64,
    /// How many tasks they named.
    pub tasks: u64,
    /// What cannot have been, by promise; of one promise not more than a few.
    pub violations: Vec<Violation>,
    counts: [u64; Promise::ALL.len()],
    /// What happened in it at all.
    pub coverage: Coverage,
}

impl Report {
    /// Whether every promise held.
    pub fn held(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    /// How often a promise broke.
    pub fn count(&self, promise: Promise) -> u64 {
        self.counts[promise as usize]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.held() { "held" } else { "BROKEN" };
        writeln!(f, "{}: {verdict}, {} calls on {} tasks", self.name, self.calls, self.tasks)?;
        for promise in Promise::ALL {
            let told = self.violations.iter().filter(|violation| violation.promise == promise);
            for violation in told.clone() {
                writeln!(f, "  {violation}")?;
            }
            let more = self.count(promise) - told.count() as u64;
            if more > 0 {
                writeln!(f, "  {promise}: {more} more")?;
            }
        }
        Ok(())
    }
}
