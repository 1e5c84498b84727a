//! `windlass check`: verifies a data directory that nobody runs on.
//!
//! Storage checks what it knows (checksums, order, whole pages); this file adds what only the layers above
//! know: that every entry of the log and every record that a replica keeps can still be read. Changes nothing.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use model::GroupId;
use prost::Message;
use serde_json::json;
use storage::check::{Report, Severity, Visitor};
use storage::{DirLock, LOCK_FILE, LogEntry, RealDisk};
use wire::entry::{CheckpointHead, Entry};
use wire::history::KeptMessage;

use crate::exit::{Exit, Failure};
use crate::json::Json;
use crate::output::{Format, Output, Show, escape, print};

/// The tables of a checkpoint that a replica keeps beside the state, as `docs/formats` numbers them.
const TABLE_HEAD: u8 = 0;
const TABLE_KEPT: u8 = 16;
const TABLE_LATER: u8 = 17;

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
    let mut records = Records::default();
    let report = storage::check::check(&disk, &mut records)?;
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

/// Reads what storage does not look into.
#[derive(Debug, Default)]
struct Records {
    entries: u64,
    commands: u64,
    rows: u64,
}

impl Visitor for Records {
    fn entry(&mut self, group: GroupId, entry: &LogEntry) -> Result<(), String> {
        self.entries += 1;
        let Entry::Commands(commands) = Entry::decode(entry.payload.clone()).map_err(|e| e.to_string())?
        else {
            return Ok(());
        };
        for command in commands.commands {
            self.commands += 1;
            let decoded = match group {
                GroupId::CATALOG => wire::catalog::decode(command).map(drop),
                _ => wire::command::decode(command).map(drop),
            };
            decoded.map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn row(&mut self, _group: GroupId, table: u8, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.rows += 1;
        match table {
            TABLE_HEAD => CheckpointHead::decode(value).map(drop).map_err(|e| e.to_string()),
            TABLE_KEPT | TABLE_LATER => {
                let bits = key.try_into().map(u128::from_be_bytes).ok();
                bits.and_then(model::TaskId::from_bits).ok_or("the key is no task id")?;
                KeptMessage::decode(Bytes::copy_from_slice(value)).map(drop).map_err(|e| e.to_string())
            }
            // The state's own records, whose bytes only the state machine reads.
            _ => Ok(()),
        }
    }
}

fn show(output: Output, report: &Report, records: &Records) -> Result<()> {
    let files: Vec<Json> = report
        .files
        .iter()
        .map(|file| json!({"path": file.path, "bytes": file.bytes, "records": file.records}).into())
        .collect();
    if !output.is_for_people() {
        let findings: Vec<_> = report
            .findings
            .iter()
            .map(|finding| {
                let damage = finding.severity == Severity::Damage;
                json!({"path": finding.path, "severity": if damage { "damage" } else { "note" }, "text": finding.text})
            })
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
        let word = if finding.severity == Severity::Damage { "damage" } else { "note" };
        print(&format!("{word}: {}: {}", finding.path.display(), escape(&finding.text)))?;
    }
    let Records { entries, commands, rows } = records;
    if report.is_clean() {
        print(&format!("clean: {entries} entries with {commands} commands, {rows} rows"))?;
    }
    Ok(())
}
