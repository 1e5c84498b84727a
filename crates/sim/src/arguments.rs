//! What the command line says.

use std::collections::BTreeSet;
use std::time::Duration;

use sim::fleet::Child;
use sim::world::Wishes;

pub(crate) const USAGE: &str = "\
usage: sim --seed N [options]          one run of a cluster in simulated time
       sim --seeds A..B [options]      many, B excluded, each in a process of its own
       sim mutants …                   planted bugs (built with --features mutants)
       sim check FILE…                 reads histories (docs/formats/history.md), one run per file

  --minutes M      how long clients and faults are at work (0.5)
  --nodes N        how many nodes; else the seed decides
  --clients N      at most N producers and N workers
  --without A,B    leave out these kinds of faults
  --jobs N         processes at a time (2)
  --twice          make each run twice and compare the traces byte for byte
  --shrink         find the shortest run that breaks the same promise
  --trace          print the history
  --history FILE   write the history there
  --log FILTER     what nodes log, to standard error
  --ended N        this work on a checkpoint meets damage; a run whose process it ended says so to itself
  --mutant NAME    plant a bug (built with --features mutants)
  --summary        print one line of JSON

exit code: 0 every promise held, 1 one broke, traces differ or too little was covered, 2 a file cannot be read
or the command is not understood
";

const SECONDS_DEFAULT: u64 = 30;
const JOBS_DEFAULT: usize = 2;

/// What is to be done.
pub(crate) enum Verb {
    Help,
    Check(Vec<String>),
    Mutants(Vec<String>),
    Run,
    Many,
    Twice,
    Shrink,
}

pub(crate) struct Arguments {
    pub(crate) verb: Verb,
    /// The runs that are asked for.
    pub(crate) children: Vec<Child>,
    pub(crate) jobs: usize,
    pub(crate) trace: bool,
    pub(crate) summary: bool,
    pub(crate) history: Option<String>,
    pub(crate) log: Option<String>,
}

impl Arguments {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut found = Arguments {
            verb: Verb::Help,
            children: Vec::new(),
            jobs: JOBS_DEFAULT,
            trace: false,
            summary: false,
            history: None,
            log: None,
        };
        let mut wishes = Wishes {
            seed: 0,
            busy: Duration::from_secs(SECONDS_DEFAULT),
            nodes: None,
            clients_max: None,
            without: BTreeSet::new(),
            ended: Vec::new(),
        };
        let (mut seeds, mut mutant, mut special, mut count) = (None, None, None, 0);
        while let Some(arg) = args.next() {
            count += 1;
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "check" if count == 1 => {
                    let files: Vec<String> = args.by_ref().collect();
                    if files.is_empty() {
                        return Err("check needs files".to_owned());
                    }
                    found.verb = Verb::Check(files);
                    return Ok(found);
                }
                "mutants" if count == 1 => {
                    found.verb = Verb::Mutants(args.by_ref().collect());
                    return Ok(found);
                }
                "help" | "--help" | "-h" => return Ok(found),
                "--seed" => {
                    let seed: u64 = number(&value()?)?;
                    seeds = Some((seed..seed + 1, Verb::Run));
                }
                "--seeds" => seeds = Some((range(&value()?)?, Verb::Many)),
                "--minutes" => {
                    let minutes: f64 = number(&value()?)?;
                    wishes.busy = Duration::try_from_secs_f64((minutes * 60.0 * 1e3).round() / 1e3)
                        .map_err(|error| error.to_string())?;
                }
                "--nodes" => wishes.nodes = Some(number(&value()?)?),
                "--clients" => wishes.clients_max = Some(number(&value()?)?),
                "--without" => wishes.without.extend(value()?.split(',').map(str::to_owned)),
                "--ended" => wishes.ended.push(number(&value()?)?),
                "--jobs" => found.jobs = number(&value()?)?,
                "--twice" => special = Some(Verb::Twice),
                "--shrink" => special = Some(Verb::Shrink),
                "--trace" => found.trace = true,
                "--summary" => found.summary = true,
                "--history" => found.history = Some(value()?),
                "--log" => found.log = Some(value()?),
                "--mutant" => mutant = Some(value()?),
                other => return Err(format!("{other:?} is not understood")),
            }
        }
        let Some((seeds, verb)) = seeds else { return Err("which seed?".to_owned()) };
        found.verb = special.unwrap_or(verb);
        let child = |seed| Child { wishes: Wishes { seed, ..wishes.clone() }, mutant: mutant.clone() };
        found.children = seeds.map(child).collect();
        Ok(found)
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no such number"))
}

fn range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or_else(|| format!("{text:?} is no range like 1..200"))?;
    let range = number(from)?..number(to)?;
    if range.is_empty() { Err(format!("{text:?} has no seeds")) } else { Ok(range) }
}
