//! What the rig is asked to do, from the command line.

use std::time::Duration;

use crate::error::Error;
use crate::fault::Fault;
use crate::load::Weight;
use crate::trial::{Ends, Plan, Setting};

pub(crate) const USAGE: &str = "\
usage: rig [--fault NAME]… [--mix] [--power-loss-all N] [--all] [OPTIONS]

Starts real servers in network namespaces, each on its own loop-mounted ext4, puts load on them, makes faults,
heals, drains, and has every call judged by the history checker. Needs root; says what it skips.

  --fault NAME[,NAME…] this fault alone, or these in turn, for --seconds; may be given several times
  --mix                several faults at once, for --seconds
  --power-loss-all N   power lost on all nodes at once, N times
  --all                every fault for 2 minutes, power loss of all 20 times, mixes for 20 minutes

  --seconds N          how long each is tried (120)
  --rounds N           how often, in place of that; not for mixes
  --nodes N            servers, 3 to 5 (3)
  --seed N             the same chance again
  --rate N             new tasks a second (1000)
  --batch N            tasks in one request (20)
  --producers N, --workers N    clients, each with a connection of its own (12, 8)
  --disk-mib N         size of each file system (1024)
  --windlass PATH, --checker PATH    the programs; else those beside this one (windlass, sim)
  --dir DIR            for disks, histories, logs and report.json (windlass-rig in the system's place for such)
  --keep               keep histories and logs though all was well

faults: kill freeze partition partition-one-way partition-ring loss delay disk-full fsync-error power-loss
        power-loss-all bit-flip clock-jump

exit code: 0 every promise held, 1 one broke, 2 a trial could not be made, 3 nothing can be tried here
";

/// Mixes are tried in pieces of this, each on a fresh cluster.
const MIX_PIECE: Duration = Duration::from_secs(120);
const ALL_EACH: Duration = Duration::from_secs(120);
const ALL_MIX: Duration = Duration::from_secs(1200);
const ALL_POWER_LOSSES: u64 = 20;

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) plans: Vec<Plan>,
    pub(crate) setting: Setting,
}

/// What to try, as the flags say it.
struct Asked {
    faults: Vec<Vec<Fault>>,
    power_losses: Option<u64>,
    is_mix: bool,
    is_all: bool,
    seconds: u64,
    rounds: Option<u64>,
}

impl Options {
    /// Reads the command line. Nothing where only help was asked for.
    pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Option<Options>, Error> {
        let (mut args, mut setting) = (args.into_iter(), setting());
        let mut asked = Asked {
            faults: Vec::new(),
            power_losses: None,
            is_mix: false,
            is_all: false,
            seconds: ALL_EACH.as_secs(),
            rounds: None,
        };
        while let Some(flag) = args.next() {
            let mut value = || args.next().ok_or_else(|| usage(format!("{flag} needs a value")));
            match flag.as_str() {
                "--help" | "-h" => return Ok(None),
                "--mix" => asked.is_mix = true,
                "--all" => asked.is_all = true,
                "--keep" => setting.keep = true,
                "--fault" => asked.faults.push(faults(&value()?)?),
                "--power-loss-all" => asked.power_losses = Some(number(&flag, &value()?, 1..=1_000)?),
                "--rounds" => asked.rounds = Some(number(&flag, &value()?, 1..=1_000_000)?),
                "--seconds" => asked.seconds = number(&flag, &value()?, 1..=1_000_000)?,
                "--nodes" => setting.nodes = number(&flag, &value()?, 3..=5)? as usize,
                "--seed" => setting.seed = number(&flag, &value()?, 0..=u64::MAX)?,
                "--rate" => setting.weight.rate = number(&flag, &value()?, 1..=1_000_000)? as usize,
                "--batch" => setting.weight.batch = number(&flag, &value()?, 1..=1_000)? as usize,
                "--producers" => setting.weight.producers = number(&flag, &value()?, 1..=200)? as usize,
                "--workers" => setting.weight.workers = number(&flag, &value()?, 1..=200)? as usize,
                "--disk-mib" => setting.disk_bytes = number(&flag, &value()?, 400..=1_000_000)? << 20,
                "--windlass" => setting.windlass = value()?.into(),
                "--checker" => setting.checker = value()?.into(),
                "--dir" => setting.dir = std::path::absolute(value()?).map_err(Error::io("--dir"))?,
                _ => return Err(usage(format!("{flag:?} is not understood"))),
            }
        }
        let plans = asked.plans();
        if plans.is_empty() {
            return Err(usage("nothing to try: give --fault, --mix, --power-loss-all or --all".to_owned()));
        }
        Ok(Some(Options { plans, setting }))
    }
}

impl Asked {
    fn plans(self) -> Vec<Plan> {
        let each = Duration::from_secs(self.seconds);
        let ends = self.rounds.map_or(Ends::After(each), Ends::Rounds);
        let mut plans: Vec<Plan> = self.faults.into_iter().map(|faults| in_turn(faults, ends)).collect();
        plans.extend(self.power_losses.map(|rounds| alone(Fault::PowerLossAll, Ends::Rounds(rounds))));
        if self.is_mix {
            plans.extend(mixes(each));
        }
        if self.is_all {
            let singles = Fault::ALL.into_iter().filter(|fault| *fault != Fault::PowerLossAll);
            plans.extend(singles.map(|fault| alone(fault, Ends::After(ALL_EACH))));
            plans.push(alone(Fault::PowerLossAll, Ends::Rounds(ALL_POWER_LOSSES)));
            plans.extend(mixes(ALL_MIX));
        }
        plans
    }
}

/// The setting of a call that says nothing of it.
fn setting() -> Setting {
    let own = std::env::current_exe().unwrap_or_default();
    Setting {
        windlass: own.with_file_name("windlass"),
        checker: own.with_file_name("sim"),
        dir: std::env::temp_dir().join("windlass-rig"),
        nodes: 3,
        disk_bytes: 1024 << 20,
        weight: Weight { producers: 12, workers: 8, batch: 20, rate: 1_000 },
        seed: rand::random::<u32>().into(),
        keep: false,
    }
}

/// Faults by their words, with commas between.
fn faults(words: &str) -> Result<Vec<Fault>, Error> {
    let fault = |word: &str| Fault::from_word(word).ok_or_else(|| usage(format!("{word:?} is no fault")));
    words.split(',').map(fault).collect()
}

fn alone(fault: Fault, ends: Ends) -> Plan {
    in_turn(vec![fault], ends)
}

fn in_turn(faults: Vec<Fault>, ends: Ends) -> Plan {
    let words: Vec<&str> = faults.iter().map(|fault| fault.word()).collect();
    Plan { name: words.join("+"), faults, is_mix: false, ends }
}

/// Mixes for so long altogether, of everything that can be mixed here.
fn mixes(span: Duration) -> Vec<Plan> {
    let is_mixed = |fault: &Fault| *fault != Fault::PowerLossAll && fault.missing().is_none();
    let faults: Vec<Fault> = Fault::ALL.into_iter().filter(is_mixed).collect();
    let pieces = span.as_secs().div_ceil(MIX_PIECE.as_secs()).max(1) as u32;
    let one = |n: u32| Plan {
        name: format!("mix-{}", n + 1),
        faults: faults.clone(),
        is_mix: true,
        ends: Ends::After(span / pieces),
    };
    (0..pieces).map(one).collect()
}

fn number(flag: &str, text: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, Error> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        usage(format!("{flag} {text}: give a number from {} to {}", range.start(), range.end()))
    })
}

fn usage(what: String) -> Error {
    Error::Usage(format!("{what}; see rig --help"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>, Error> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn all_is_every_fault_and_mixes_for_twenty_minutes() {
        let options = parse("--all").unwrap().unwrap();
        for fault in Fault::ALL {
            let plans = options.plans.iter().filter(|plan| !plan.is_mix && plan.faults == [fault]);
            let ends: Vec<Ends> = plans.map(|plan| plan.ends).collect();
            let wanted = match fault {
                Fault::PowerLossAll => Ends::Rounds(20),
                _ => Ends::After(Duration::from_secs(120)),
            };
            assert_eq!(ends, [wanted], "{}", fault.word());
        }
        let mixes = options.plans.iter().filter(|plan| plan.is_mix);
        let long = mixes.map(|plan| match plan.ends {
            Ends::After(span) => span,
            Ends::Rounds(_) => Duration::ZERO,
        });
        assert_eq!(long.sum::<Duration>(), Duration::from_secs(1200));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in ["", "--fault", "--fault fire", "--nodes 2 --mix", "--mix --seconds none", "--what"] {
            assert!(matches!(parse(line), Err(Error::Usage(_))), "{line:?}");
        }
        assert!(parse("--help").unwrap().is_none());
    }
}
