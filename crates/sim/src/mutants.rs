//! Planted bugs: which seed finds each, and how many fresh seeds that takes.
//!
//! What a seed does changes with every change of a node or of the simulator, so a known seed may lose its bug: then the
//! next few are tried, and only if none of them finds it the simulator is blind. Next: `model/src/mutant.rs` for the
//! bugs, `known-seeds.txt` for the seeds.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::io;
use std::ops::Range;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use model::Mutant;
use parking_lot::Mutex;

use crate::fleet::Child;
use crate::world::Wishes;

/// How a person asks.
pub const USAGE: &str = "\
usage: sim mutants                     the planted bugs, each with a sentence
       sim mutants replay [options]    the known seed of each, or the next ones if it finds the bug no more
       sim mutants hunt A..B [options] looks for each with fresh seeds, B excluded

  --only A,B       these bugs only
  --jobs N         processes at a time (2)
  --write FILE     write the seeds that found them, as known-seeds.txt

exit code: 0 each was found, 1 one was not, 2 the command is not understood or this build has no bugs
";

/// The seeds that found the bugs when they were last hunted: name, seed, what broke.
const KNOWN: &str = include_str!("../known-seeds.txt");
/// Seeds after a known one that are tried before a bug counts as not found.
const NEAR: u64 = 20;
const BUSY: Duration = Duration::from_secs(30);
const JOBS_DEFAULT: usize = 2;

/// The bugs and their sentences.
pub fn list() -> String {
    let mut text = String::new();
    for mutant in Mutant::ALL {
        let _ = writeln!(text, "{:24} {}", mutant.name(), mutant.sentence());
    }
    text
}

/// What is asked for.
#[derive(Debug)]
pub struct Hunt {
    /// Fresh seeds; nothing: the known ones.
    seeds: Option<Range<u64>>,
    only: BTreeSet<String>,
    jobs: usize,
    /// Where the seeds that found something are written.
    pub write: Option<String>,
}

/// What came of the hunt for one bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    mutant: Mutant,
    /// How many seeds were tried.
    tried: u64,
    /// The seed that found it, and the promise that broke first.
    by: Option<(u64, String)>,
}

impl Hunt {
    /// What stands behind `sim mutants`.
    pub fn parse(args: &[String]) -> Result<Hunt, String> {
        let mut hunt = Hunt { seeds: None, only: BTreeSet::new(), jobs: JOBS_DEFAULT, write: None };
        let mut rest = match args {
            [verb, rest @ ..] if verb == "replay" => rest.iter(),
            [verb, range, rest @ ..] if verb == "hunt" => {
                let bounds =
                    range.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
                hunt.seeds = Some(bounds.ok_or_else(|| format!("{range:?} is no range of seeds"))?);
                rest.iter()
            }
            _ => return Err("replay or hunt?".to_owned()),
        };
        while let Some(arg) = rest.next() {
            let value = rest.next().ok_or_else(|| format!("{arg} needs a value"))?;
            match arg.as_str() {
                "--only" => hunt.only.extend(value.split(',').map(str::to_owned)),
                "--jobs" => hunt.jobs = value.parse().map_err(|_| format!("{value:?} is no number"))?,
                "--write" => hunt.write = Some(value.clone()),
                other => return Err(format!("{other:?} is not understood")),
            }
        }
        match hunt.only.iter().find(|name| Mutant::from_name(name).is_none()) {
            Some(name) => Err(format!("no planted bug is called {name:?}")),
            None => Ok(hunt),
        }
    }

    /// Hunts, and tells of each bug when its hunt is over. All of them in their order.
    pub fn run(&self, mut tell: impl FnMut(&Found)) -> io::Result<Vec<Found>> {
        let wanted = |mutant: &Mutant| {
            let is_asked_for = self.only.is_empty() || self.only.contains(mutant.name());
            is_asked_for && self.seeds_for(*mutant).is_some()
        };
        let left: VecDeque<Mutant> = Mutant::ALL.iter().copied().filter(wanted).collect();
        let left = Mutex::new(left);
        let (sender, told) = mpsc::sync_channel(self.jobs.max(1));
        let mut all = thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                let (sender, left) = (sender.clone(), &left);
                scope.spawn(move || {
                    while let Some(mutant) = { left.lock().pop_front() } {
                        // Nobody listens any more when the whole is given up.
                        let seeds = self.seeds_for(mutant).unwrap_or_default();
                        let _ = sender.send(hunt_one(mutant, seeds));
                    }
                });
            }
            drop(sender);
            let each = told.into_iter().map(|found| found.inspect(&mut tell));
            each.collect::<io::Result<Vec<Found>>>()
        })?;
        all.sort_by_key(|found| found.mutant as usize);
        Ok(all)
    }

    /// The seeds to try; none when the known one is asked for and there is none yet.
    fn seeds_for(&self, mutant: Mutant) -> Option<Range<u64>> {
        let near = |known| known..known + 1 + NEAR;
        self.seeds.clone().or_else(|| known_seed(mutant).map(near))
    }
}

impl Found {
    /// Whether a seed found it.
    pub fn is_found(&self) -> bool {
        self.by.is_some()
    }

    /// Its line of the table for people.
    pub fn line(&self) -> String {
        let name = self.mutant.name();
        match &self.by {
            Some((seed, what)) => format!("{name:24} {:>4} seeds, seed {seed:>6}: {what}", self.tried),
            None => format!("{name:24} NOT FOUND by {} seeds", self.tried),
        }
    }
}

/// The same for the file of known seeds. What was not hunted or not found stays as it was.
pub fn known(all: &[Found]) -> String {
    let mut text = String::from(
        "# Planted bug, the seed that found it, what broke. Written by: sim mutants hunt A..B --write FILE\n",
    );
    for mutant in Mutant::ALL {
        let found = all.iter().find(|found| found.mutant == *mutant).and_then(|found| found.by.as_ref());
        let line = match found {
            Some((seed, what)) => format!("{:24} {seed:>6}  {what}", mutant.name()),
            None => match known_line(*mutant) {
                Some(line) => line.to_owned(),
                None => continue,
            },
        };
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn known_line(mutant: Mutant) -> Option<&'static str> {
    KNOWN.lines().find(|line| line.split_whitespace().next() == Some(mutant.name()))
}

fn known_seed(mutant: Mutant) -> Option<u64> {
    known_line(mutant)?.split_whitespace().nth(1)?.parse().ok()
}

/// Tries seeds until one finds the bug. A seed that breaks without it, too, says nothing.
fn hunt_one(mutant: Mutant, seeds: Range<u64>) -> io::Result<Found> {
    let mut tried = 0;
    for seed in seeds {
        tried += 1;
        let with = child(seed, Some(mutant)).run()?;
        if let Some(first) = with.broken.first()
            && child(seed, None).run()?.held()
        {
            let what = first.split([':', '(']).next().unwrap_or(first).trim().to_owned();
            return Ok(Found { mutant, tried, by: Some((seed, what)) });
        }
    }
    Ok(Found { mutant, tried, by: None })
}

fn child(seed: u64, mutant: Option<Mutant>) -> Child {
    let (without, ended) = (BTreeSet::new(), Vec::new());
    let wishes = Wishes { seed, busy: BUSY, nodes: None, clients_max: None, without, ended };
    Child { wishes, mutant: mutant.map(|mutant| mutant.name().to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many planted bugs must be found at least.
    const KNOWN_MIN: usize = 15;

    fn parse(args: &[&str]) -> Result<Hunt, String> {
        Hunt::parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn enough_bugs_have_a_known_seed_and_every_line_has_a_bug() {
        let known = Mutant::ALL.iter().filter(|mutant| known_seed(**mutant).is_some()).count();
        assert!(known >= KNOWN_MIN, "{known}: hunt the others");
        for line in KNOWN.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split_whitespace().next().unwrap();
            assert!(Mutant::from_name(name).is_some(), "{name} is no planted bug any more");
        }
    }

    #[test]
    fn what_was_not_hunted_keeps_its_line() {
        let first = Mutant::ALL[0];
        let found = Found { mutant: first, tried: 3, by: Some((7_777_777, "nothing is lost".to_owned())) };
        let text = known(&[found]);
        assert!(text.contains("7777777  nothing is lost"), "{text}");
        let others = |text: &str| text.lines().filter(|line| !line.contains(first.name())).count();
        assert_eq!(others(&text), others(&known(&[])));
    }

    #[test]
    fn a_hunt_is_understood_or_refused_with_a_reason() {
        let hunt = parse(&["hunt", "5..9", "--only", "stale-read,local-jitter", "--jobs", "3"]).unwrap();
        assert_eq!((hunt.seeds_for(Mutant::StaleRead), hunt.jobs, hunt.only.len()), (Some(5..9), 3, 2));
        assert!(parse(&["replay"]).unwrap().seeds.is_none());
        for (args, why) in [
            (&["hunt"][..], "replay or hunt"),
            (&["hunt", "5"], "no range"),
            (&["replay", "--only", "none"], "no planted bug"),
            (&["replay", "--jobs"], "needs a value"),
        ] {
            let said = parse(args).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
