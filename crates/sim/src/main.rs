//! `sim`: runs of whole clusters in simulated time, and the checker of histories.

mod arguments;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use arguments::{Arguments, USAGE, Verb};
use sim::check::{Checker, Coverage, RUNS_MIN, Report};
use sim::fleet::{self, Summary};
use sim::history::{self, read};
use sim::mutants;
use sim::world::{self, Outcome};

const HELD: u8 = 0;
const BROKEN: u8 = 1;
const UNREADABLE: u8 = 2;
/// Findings that a single run prints in full.
const SHOWN_MAX: usize = 20;

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(what) => {
            let _ = write!(io::stderr(), "sim: {what}\n\n{USAGE}");
            return ExitCode::from(UNREADABLE);
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let code = match &arguments.verb {
        Verb::Help => out.write_all(USAGE.as_bytes()).map(|()| HELD),
        Verb::Check(files) => check(files, &mut out),
        Verb::Run => run(&arguments, &mut out),
        Verb::Many => many(&arguments, &mut out),
        Verb::Twice => twice(&arguments, &mut out),
        Verb::Shrink => shrink(&arguments, &mut out),
        Verb::Mutants(args) => hunt(args, &mut out),
    };
    let code = code.and_then(|code| out.flush().map(|()| code));
    // Nobody is left to be told that nobody reads what we tell.
    ExitCode::from(code.unwrap_or(UNREADABLE))
}

fn run(arguments: &Arguments, out: &mut impl Write) -> io::Result<u8> {
    if let Some(filter) = &arguments.log {
        // What nodes say of themselves; times in it are not simulated, so there are none.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .without_time()
            .try_init();
    }
    let child = &arguments.children[0];
    if let Some(mutant) = &child.mutant
        && let Err(what) = sim::plant(mutant)
    {
        writeln!(io::stderr(), "sim: {what}")?;
        return Ok(UNREADABLE);
    }
    let outcome = world::run(&child.wishes);
    if let Some(path) = &arguments.history {
        let mut file = BufWriter::new(File::create(path)?);
        for line in &outcome.lines {
            writeln!(file, "{}", line.to_json())?;
        }
        file.flush()?;
    }
    let summary = Summary::of(child.wishes.seed, &outcome);
    if arguments.summary {
        writeln!(out, "{}", serde_json::to_string(&summary).map_err(io::Error::other)?)?;
    } else {
        tell(arguments, &outcome, &summary, out)?;
    }
    Ok(if outcome.held() { HELD } else { BROKEN })
}

fn tell(arguments: &Arguments, outcome: &Outcome, summary: &Summary, out: &mut impl Write) -> io::Result<()> {
    if arguments.trace {
        for line in &outcome.lines {
            writeln!(out, "{}", line.to_json())?;
        }
    }
    for broken in summary.broken.iter().take(SHOWN_MAX) {
        writeln!(out, "  {broken}")?;
    }
    let Summary { tasks, simulated_ms, coverage, .. } = summary;
    writeln!(out, "{}, {tasks} tasks in {simulated_ms} simulated ms", summary.line())?;
    write!(out, "{coverage}")
}

fn many(arguments: &Arguments, out: &mut impl Write) -> io::Result<u8> {
    let (mut code, mut coverage, mut failed) = (HELD, Coverage::default(), Ok(()));
    let (mut runs, mut calls, mut faults, mut simulated_ms, mut fewest) = (0u64, 0, 0, 0, u64::MAX);
    fleet::all(arguments.children.clone(), arguments.jobs, |summary| {
        let told = summary.and_then(|summary| {
            (runs, calls) = (runs + 1, calls + summary.calls);
            (faults, simulated_ms) = (faults + summary.faults, simulated_ms + summary.simulated_ms);
            fewest = fewest.min(summary.faults);
            coverage.add(&summary.coverage);
            if !summary.held() {
                code = code.max(BROKEN);
                writeln!(out, "{}", summary.line())?;
                out.flush()?;
            }
            Ok(())
        });
        if let Err(error) = told {
            failed = Err(error);
        }
    });
    failed?;
    write!(out, "{coverage}")?;
    writeln!(
        out,
        "{calls} calls, {faults} faults (at least {fewest} in a run), {:.1} simulated minutes",
        simulated_ms as f64 / 60_000.0
    )?;
    Ok(code.max(judge_coverage(&coverage, out)?))
}

fn judge_coverage(coverage: &Coverage, out: &mut impl Write) -> io::Result<u8> {
    if !coverage.is_invalid() {
        return Ok(HELD);
    }
    writeln!(out, "  in {RUNS_MIN} runs or more all of it must have happened: these runs prove too little")?;
    Ok(BROKEN)
}

fn twice(arguments: &Arguments, out: &mut impl Write) -> io::Result<u8> {
    let (mut parted, mut failed) = (0, Ok(()));
    fleet::all_twice(arguments.children.clone(), arguments.jobs, |seed, result| {
        let told = result.and_then(|result| match result {
            None => Ok(()),
            Some(how) => {
                parted += 1;
                writeln!(out, "seed {seed}: {how}")?;
                out.flush()
            }
        });
        if let Err(error) = told {
            failed = Err(error);
        }
    });
    failed?;
    let runs = arguments.children.len();
    writeln!(out, "{} of {runs} seeds identical, and held", runs - parted)?;
    Ok(if parted == 0 { HELD } else { BROKEN })
}

fn shrink(arguments: &Arguments, out: &mut impl Write) -> io::Result<u8> {
    let mut code = HELD;
    for child in &arguments.children {
        let (best, summary) = fleet::shrink(child, |line| {
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        })?;
        if summary.held() {
            writeln!(out, "seed {}: held", child.wishes.seed)?;
            continue;
        }
        code = BROKEN;
        writeln!(out, "shortest: sim {}\n  {}", best.told()?, summary.line())?;
    }
    Ok(code)
}

/// Planted bugs: told, replayed or hunted.
fn hunt(args: &[String], out: &mut impl Write) -> io::Result<u8> {
    if args.is_empty() {
        return out.write_all(mutants::list().as_bytes()).map(|()| HELD);
    }
    let hunt = match mutants::Hunt::parse(args) {
        Ok(hunt) => hunt,
        Err(what) => {
            write!(io::stderr(), "sim: {what}\n\n{}", mutants::USAGE)?;
            return Ok(UNREADABLE);
        }
    };
    if !cfg!(feature = "mutants") {
        writeln!(
            io::stderr(),
            "sim: there are no planted bugs in this build: build it with --features mutants"
        )?;
        return Ok(UNREADABLE);
    }
    let mut told = Ok(());
    let all = hunt.run(|found| {
        if let Err(error) = writeln!(out, "{}", found.line()).and_then(|()| out.flush()) {
            told = Err(error);
        }
    })?;
    told?;
    if let Some(path) = &hunt.write {
        std::fs::write(path, mutants::known(&all))?;
    }
    let found = all.iter().filter(|found| found.is_found()).count();
    writeln!(out, "{found} of {} planted bugs found", all.len())?;
    Ok(if found == all.len() { HELD } else { BROKEN })
}

fn check(files: &[String], out: &mut impl Write) -> io::Result<u8> {
    let mut code = HELD;
    let mut coverage = Coverage::default();
    for file in files {
        match judge(Path::new(file)) {
            Ok(report) => {
                write!(out, "{file}: {report}")?;
                coverage.add(&report.coverage);
                if !report.held() {
                    code = code.max(BROKEN);
                }
            }
            Err(error) => {
                writeln!(io::stderr(), "{file}: {error}")?;
                code = UNREADABLE;
            }
        }
    }
    write!(out, "{coverage}")?;
    Ok(code.max(judge_coverage(&coverage, out)?))
}

fn judge(path: &Path) -> Result<Report, history::Error> {
    let file = File::open(path).map_err(|source| history::Error::Io { line: 0, source })?;
    let mut checker = Checker::new();
    read(BufReader::with_capacity(1 << 16, file), |number, line| checker.take(number, line))?;
    Ok(checker.finish())
}
