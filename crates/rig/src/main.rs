//! The fault rig: real servers under load and real faults, every call recorded and judged.
//!
//! It knows the product by its outside alone: a binary, its HTTP API and its files. `trial.rs` is the whole of a trial;
//! `cluster.rs`, `network.rs`, `disk.rs` and `proxy.rs` are what faults are made on, `fault.rs` the faults, `load` the
//! clients, `history.rs` what they write (docs/formats/history.md), `check.rs` who judges it. Whatever it makes is gone
//! with it, after a failure and a signal too. Next: docs/operating/how-we-test.md.

mod check;
mod client;
mod cluster;
mod disk;
mod error;
mod fault;
mod history;
mod load;
mod network;
mod options;
mod proxy;
mod report;
mod system;
mod trial;

use std::io::{self, Write};
use std::process::ExitCode;

use error::Error;
use fault::Fault;
use options::{Options, USAGE};
use report::Report;
use system::say;
use trial::{Plan, Setting};

const BROKEN: u8 = 1;
const FAILED: u8 = 2;
const NOTHING_TRIED: u8 = 3;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            say(USAGE);
            return ExitCode::SUCCESS;
        }
        Err(error) => return failed(&error),
    };
    if let Some(why) = missing(&options.setting).or_else(|| probe(&options.setting).err()) {
        say(&format!("SKIPPED: everything: {why}"));
        return ExitCode::from(NOTHING_TRIED);
    }
    match run(&options) {
        Ok(report) => {
            say(&report.table());
            if report.violations() > 0 { ExitCode::from(BROKEN) } else { ExitCode::SUCCESS }
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &Error) -> ExitCode {
    // Nobody is left to be told that nobody reads what we tell.
    let _ = writeln!(io::stderr(), "rig: {error}");
    ExitCode::from(FAILED)
}

/// Why nothing can be tried here, if so.
fn missing(setting: &Setting) -> Option<String> {
    if !system::is_root() {
        return Some("network namespaces and mounts need root".to_owned());
    }
    let tools =
        [("ip", "iproute2"), ("nft", "nftables"), ("nsenter", "util-linux"), ("mkfs.ext4", "e2fsprogs")];
    if let Some((tool, package)) = tools.into_iter().find(|(tool, _)| !system::has(tool)) {
        return Some(format!("{tool} is missing (package {package})"));
    }
    let programs = [&setting.windlass, &setting.checker];
    let program = programs.into_iter().find(|program| !program.is_file())?;
    Some(format!("{} is missing: cargo build --package cli --package sim", program.display()))
}

/// Makes a network and a disk, and removes them: root in a container may not be allowed to.
fn probe(setting: &Setting) -> Result<(), String> {
    const BYTES: u64 = 32 << 20;
    let name = format!("probe-{}", std::process::id());
    let made =
        std::fs::create_dir_all(&setting.dir).map_err(Error::io(format!("make {}", setting.dir.display())));
    made.and_then(|()| network::Network::new(1)?.lose_nothing())
        .and_then(|()| disk::Disk::new(&setting.dir, &name, BYTES).map(drop))
        .map_err(|error| error.to_string())
}

fn run(options: &Options) -> Result<Report, Error> {
    let Options { plans, setting } = options;
    system::catch_signals()?;
    network::remove_leftovers()?;
    disk::remove_leftovers(&setting.dir)?;
    let mut report = Report { outcomes: Vec::new(), skipped: Vec::new() };
    if plans.iter().any(|plan| plan.is_mix) {
        let missing = Fault::ALL.into_iter().filter_map(|fault| Some((fault, fault.missing()?)));
        for (fault, why) in missing {
            say(&format!("SKIPPED: {} in mixes: {why}", fault.word()));
            report.skipped.push((format!("{} in mixes", fault.word()), why.to_owned()));
        }
    }
    for plan in plans {
        if let Some(why) = why_not(plan) {
            report.skipped.push((plan.name.clone(), why.to_owned()));
            say(&format!("SKIPPED: {}: {why}", plan.name));
            continue;
        }
        let outcome = trial::run(plan, setting)?;
        say(&format!(
            "{}: {} rounds, {} operations, {} violations",
            outcome.name, outcome.rounds, outcome.operations, outcome.violations
        ));
        report.outcomes.push(outcome);
        // After each, so that a run that is stopped leaves what it has.
        report.write(&setting.dir.join("report.json"))?;
    }
    Ok(report)
}

fn why_not(plan: &Plan) -> Option<&'static str> {
    if plan.is_mix { None } else { plan.faults.iter().find_map(|fault| fault.missing()) }
}
