//! Many runs, each in a process of its own: all seeds of a range, one seed twice, or ever shorter runs of one.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::check::Coverage;
use crate::world::{Outcome, Wishes};

/// How often a run is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A run that takes more than ten seconds for each simulated one is stuck, however busy the machine is.
const LOOKS_PER_SECOND: u64 = 10 * 50;

/// What a run tells whoever started it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Which run.
    pub seed: u64,
    /// What broke, worst first; nothing if every promise held.
    pub broken: Vec<String>,
    /// Calls in its history.
    pub calls: u64,
    /// Tasks in its history.
    pub tasks: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// Simulated milliseconds.
    pub simulated_ms: u64,
    /// What happened at all.
    pub coverage: Coverage,
}

impl Summary {
    /// Of a run that came to its end.
    pub fn of(seed: u64, outcome: &Outcome) -> Summary {
        let violations = outcome.report.violations.iter();
        let violations = violations.map(|broken| format!("{}: {}", broken.promise.as_str(), broken.text));
        Summary {
            seed,
            broken: outcome.trouble.iter().cloned().chain(violations).collect(),
            calls: outcome.report.calls,
            tasks: outcome.report.tasks,
            faults: outcome.faults,
            simulated_ms: outcome.simulated.as_millis() as u64,
            coverage: outcome.report.coverage.clone(),
        }
    }

    /// Whether every promise held.
    pub fn held(&self) -> bool {
        self.broken.is_empty()
    }

    /// One line: what broke first.
    pub fn line(&self) -> String {
        match self.broken.first() {
            None => format!("seed {}: held, {} calls, {} faults", self.seed, self.calls, self.faults),
            Some(first) => {
                let first = first.lines().next().unwrap_or_default();
                format!("seed {}: BROKEN ({} in all) {first}", self.seed, self.broken.len())
            }
        }
    }

    /// What kind of thing broke first, for telling failures apart.
    fn what(&self) -> Option<&str> {
        self.broken.first().map(|first| first.split([':', '(']).next().unwrap_or(first))
    }
}

/// How this binary is started for one run.
#[derive(Clone, Debug)]
pub struct Child {
    /// What is asked of the run.
    pub wishes: Wishes,
    /// A planted bug.
    pub mutant: Option<String>,
}

impl Child {
    fn command(&self) -> io::Result<Command> {
        let Wishes { seed, busy, nodes, clients_max, without, ended } = &self.wishes;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--seed", &seed.to_string(), "--minutes", &(busy.as_secs_f64() / 60.0).to_string()]);
        if let Some(nodes) = nodes {
            command.args(["--nodes", &nodes.to_string()]);
        }
        if let Some(clients) = clients_max {
            command.args(["--clients", &clients.to_string()]);
        }
        if !without.is_empty() {
            let without: Vec<&str> = without.iter().map(String::as_str).collect();
            command.args(["--without", &without.join(",")]);
        }
        if let Some(mutant) = &self.mutant {
            command.args(["--mutant", mutant]);
        }
        for work in ended {
            command.args(["--ended", &work.to_string()]);
        }
        command.stdin(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }

    /// How a person starts it.
    pub fn told(&self) -> io::Result<String> {
        let command = self.command()?;
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        Ok(args.join(" "))
    }

    /// Makes the run.
    pub fn run(&self) -> io::Result<Summary> {
        let (stdout, status) = self.output("--summary")?;
        let summary = serde_json::from_slice(&stdout);
        // A process that dies is a finding, not a fault of ours.
        Ok(summary.unwrap_or_else(|_| Summary {
            seed: self.wishes.seed,
            broken: vec![match status {
                Some(status) => format!("the process ended without a word: {status}"),
                None => {
                    "it does not end: something in it goes round and round while no time passes".to_owned()
                }
            }],
            calls: 0,
            tasks: 0,
            faults: 0,
            simulated_ms: 0,
            coverage: Coverage::default(),
        }))
    }

    /// The run's trace, all that there is to see of it, and whether every promise held.
    fn trace(&self) -> io::Result<(Vec<u8>, bool)> {
        let (trace, status) = self.output("--trace")?;
        Ok((trace, status.is_some_and(|status| status.success())))
    }

    /// What it prints, and how it ended; nothing if it had to be stopped.
    fn output(&self, flag: &str) -> io::Result<(Vec<u8>, Option<ExitStatus>)> {
        let mut child = self.command()?.arg(flag).stdout(Stdio::piped()).spawn()?;
        let mut stdout = child.stdout.take().ok_or_else(|| io::Error::other("no output of a child"))?;
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).map(|_| bytes)
        });
        // Clocks stand still in this process, but sleeps do not: they are counted.
        let looks_max = (self.wishes.busy.as_secs() + 30) * LOOKS_PER_SECOND;
        let mut status = None;
        for _ in 0..looks_max {
            status = child.try_wait()?;
            if status.is_some() {
                break;
            }
            thread::sleep(LOOK_EVERY);
        }
        if status.is_none() {
            child.kill()?;
            child.wait()?;
        }
        let bytes = reader.join().map_err(|_| io::Error::other("the reader of a child panicked"))?;
        Ok((bytes?, status))
    }
}

/// Makes all runs, some at a time, and hands each to `heard` when it is there.
pub fn all(children: Vec<Child>, jobs: usize, mut heard: impl FnMut(io::Result<Summary>)) {
    each(children, jobs, Child::run, &mut heard);
}

/// Makes every run twice. The seed, and where the two traces part, if they do.
pub fn all_twice(children: Vec<Child>, jobs: usize, mut heard: impl FnMut(u64, io::Result<Option<String>>)) {
    let both = |child: &Child| (child.wishes.seed, twice(child));
    each(children, jobs, both, &mut |(seed, parted)| heard(seed, parted));
}

fn each<T: Send>(
    children: Vec<Child>,
    jobs: usize,
    work: impl Fn(&Child) -> T + Sync,
    heard: &mut dyn FnMut(T),
) {
    let left = Mutex::new(VecDeque::from(children));
    let (tell, told) = mpsc::sync_channel(jobs.max(1));
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (tell, left, work) = (tell.clone(), &left, &work);
            scope.spawn(move || {
                while let Some(child) = { left.lock().pop_front() } {
                    // Nobody listens any more when the whole is given up.
                    let _ = tell.send(work(&child));
                }
            });
        }
        drop(tell);
        told.into_iter().for_each(heard);
    });
}

/// Makes the run twice; what is wrong with that, if something is: most often where the traces part.
pub fn twice(child: &Child) -> io::Result<Option<String>> {
    let ((first, first_held), (second, second_held)) = (child.trace()?, child.trace()?);
    if first == second {
        let lines = first.iter().filter(|byte| **byte == b'\n').count();
        return Ok(match (lines, first_held && second_held) {
            (0..10, _) => Some(format!("the trace has {lines} lines: was there a run at all?")),
            (_, false) => Some("the traces are the same, but a promise broke: run it once to see".to_owned()),
            (_, true) => None,
        });
    }
    let mut pairs = first.split(|byte| *byte == b'\n').zip(second.split(|byte| *byte == b'\n'));
    let parted = pairs.position(|(one, other)| one != other);
    let line = |trace: &[u8], number: usize| {
        let line = trace.split(|byte| *byte == b'\n').nth(number).unwrap_or_default();
        String::from_utf8_lossy(line).chars().take(300).collect::<String>()
    };
    Ok(Some(match parted {
        Some(number) => format!(
            "the traces part at line {}:\n  first:  {}\n  second: {}",
            number + 1,
            line(&first, number),
            line(&second, number)
        ),
        None => "one trace is longer than the other".to_owned(),
    }))
}

/// The shortest run found that still breaks the same promise: less time, fewer kinds of faults, fewer clients.
pub fn shrink(child: &Child, mut tell: impl FnMut(&str)) -> io::Result<(Child, Summary)> {
    let (mut best, mut summary) = (child.clone(), child.run()?);
    let Some(what) = summary.what().map(str::to_owned) else { return Ok((best, summary)) };
    let mut attempt = |best: &mut Child, summary: &mut Summary, change: &dyn Fn(&mut Wishes)| {
        let mut smaller = best.clone();
        change(&mut smaller.wishes);
        let found = smaller.run()?;
        let still = found.what() == Some(what.as_str());
        if still {
            tell(&format!("{}: {}", smaller.told()?, found.line()));
            (*best, *summary) = (smaller, found);
        }
        io::Result::Ok(still)
    };
    while best.wishes.busy > Duration::from_secs(1)
        && attempt(&mut best, &mut summary, &|wishes| wishes.busy /= 2)?
    {}
    // Between the shortest that fails and half of it, which does not.
    let mut least = best.wishes.busy / 2;
    while best.wishes.busy - least > Duration::from_millis(250) {
        let middle = least + (best.wishes.busy - least) / 2;
        if !attempt(&mut best, &mut summary, &|wishes| wishes.busy = middle)? {
            least = middle;
        }
    }
    let kinds: Vec<String> = summary.coverage.faults().map(str::to_owned).collect();
    for kind in kinds {
        attempt(&mut best, &mut summary, &|wishes| {
            wishes.without.insert(kind.clone());
        })?;
    }
    for clients in [1, 2, 3] {
        if attempt(&mut best, &mut summary, &|wishes| wishes.clients_max = Some(clients))? {
            break;
        }
    }
    for nodes in [1, 3] {
        if attempt(&mut best, &mut summary, &|wishes| wishes.nodes = Some(nodes))? {
            break;
        }
    }
    Ok((best, summary))
}
