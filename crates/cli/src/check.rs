//! `windlass check`: verifies a data directory that nobody runs on.
//!
//! Storage checks what it knows (checksums, order, whole pages); `check/records.rs` adds what only the layers
//! above know. Changes nothing.

mod records;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use model::GroupId;
use serde_json::json;
use storage::check::{Finding, Report, Severity};
use storage::{DirLock, LOCK_FILE, RealDisk};

use crate::exit::{Exit, Failure};
use crate::json::Json;
use crate::output::{Format, Output, Show, escape, print, progress};
use records::Records;

/// Verify a data directory while no server runs on it
///
/// Exits with 0 when a server may start on it, with 1 when something in it is damaged.
#[derive(Args, Debug)]
pub(crate) struct Check {
    /// The data directory
    dir: PathBuf,
    /// How to show the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub(crate) fn run(args: &Check) -> Result<()> {
    let dir = args.dir.as_path();
    if !dir.is_dir() {
        return Err(Failure::new(Exit::NotFound, format!("{} is not a directory", dir.display())).into());
    }
    if !dir.join(storage::LOG_DIR).is_dir() {
        let message = format!("{} is no data directory: it has no {}", dir.display(), storage::LOG_DIR);
        return Err(Failure::new(Exit::NotFound, message).into());
    }
    let disk = RealDisk::existing(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    // What a running server is just writing would look like damage.
    let _lock = DirLock::acquire(&disk, Path::new(LOCK_FILE))?;
    let bar = progress(None);
    let mut records = Records::new(bar.clone());
    let mut report = storage::check::check(&disk, &mut records)?;
    bar.finish_and_clear();
    for (group, text) in std::mem::take(&mut records.objections) {
        let path = storage::checkpoint_path(group);
        report.findings.push(Finding { path, severity: Severity::Damage, text });
    }
    compare(&mut report, &records);
    show(Output::new(args.output), &report, &records)?;
    let damaged = report.findings.iter().filter(|finding| finding.severity == Severity::Damage).count();
    match damaged {
        0 => Ok(()),
        _ => {
            Err(Failure::new(Exit::Failure, format!("{} is damaged in {damaged} places", dir.display()))
                .into())
        }
    }
}

/// Adds the groups whose log does not go on where their checkpoint ends: a start would refuse.
fn compare(report: &mut Report, records: &Records) {
    // A log that cannot be read has been reported.
    let Some(states) = report.groups.clone() else { return };
    let groups: BTreeSet<GroupId> = states.keys().chain(records.applied.keys()).copied().collect();
    for group in groups {
        let path = storage::checkpoint_path(group);
        let is_damaged = |finding: &Finding| finding.path == path && finding.severity == Severity::Damage;
        if report.findings.iter().any(is_damaged) {
            continue;
        }
        let state = states.get(&group).copied().unwrap_or_default();
        if let Some(text) = state.gap_after(records.applied.get(&group).copied()) {
            report.findings.push(Finding { path, severity: Severity::Damage, text });
        }
    }
}

fn show(output: Output, report: &Report, records: &Records) -> Result<()> {
    let files: Vec<Json> = report
        .files
        .iter()
        .map(|file| json!({"path": file.path, "bytes": file.bytes, "records": file.records}).into())
        .collect();
    let word = |finding: &Finding| if finding.severity == Severity::Damage { "damage" } else { "note" };
    if !output.is_for_people() {
        let findings: Vec<_> = report
            .findings
            .iter()
            .map(|finding| json!({"path": finding.path, "severity": word(finding), "text": finding.text}))
            .collect();
        let files: Vec<_> = files.iter().map(|file| file.value().clone()).collect();
        let answer = json!({
            "clean": report.is_clean(), "files": files, "findings": findings,
            "entries": records.entries, "commands": records.commands, "rows": records.rows,
        });
        return output.say(&answer.into(), "");
    }
    let columns = [
        ("file", "/path", Show::Plain),
        ("bytes", "/bytes", Show::Number),
        ("records", "/records", Show::Number),
    ];
    output.list("files", &files, &columns)?;
    for finding in &report.findings {
        let path = finding.path.display().to_string();
        // Storage's own sentences begin with the file already.
        let text = finding.text.strip_prefix(&path).unwrap_or(&finding.text).trim_start_matches([':', ' ']);
        print(&format!("{}: {path}: {}", word(finding), escape(text)))?;
    }
    if report.is_clean() {
        let (entries, commands, rows) = (records.entries, records.commands, records.rows);
        print(&format!("clean: {entries} entries with {commands} commands, {rows} rows"))?;
    }
    Ok(())
}
