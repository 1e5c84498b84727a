//! Verifies a data directory that nobody runs on: every byte of the log, every page of the checkpoints.
//!
//! Reads only. What the storage does not understand (entries, rows) goes to a [`Visitor`], whose objections
//! become findings too. Next: `recovery.rs`, whose rules for the log are the same as at a start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use model::GroupId;
use redb::{ReadableDatabase, ReadableTable, TableDefinition, TableHandle};

use crate::checkpoint::{VERSION, numbers, read_meta, redb_failed};
use crate::disk::{Disk, Open};
use crate::error::{Error, Result};
use crate::group_log::{GroupState, LogEntry};
use crate::guard::guarded;
use crate::record::Kind;
use crate::recovery;
use crate::redb_file::Overlay;
use crate::segment::{Role, role};
use crate::{CHECKPOINT_DIR, LOG_DIR};

/// Looks into what the storage does not understand.
pub trait Visitor {
    /// An entry of the log, purged or not. An error becomes a finding.
    fn entry(&mut self, group: GroupId, entry: &LogEntry) -> Result<(), String> {
        let _ = (group, entry);
        Ok(())
    }

    /// A row of a checkpoint. An error becomes a finding.
    fn row(&mut self, group: GroupId, table: u8, key: &[u8], value: &[u8]) -> Result<(), String> {
        let _ = (group, table, key, value);
        Ok(())
    }

    /// A file has been looked at; `done` of `total`. For progress bars.
    fn progress(&mut self, done: usize, total: usize) {
        let _ = (done, total);
    }
}

/// Accepts everything.
pub struct NoVisitor;

impl Visitor for NoVisitor {}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; a start copes with it.
    Note,
    /// A start would refuse, or data is wrong.
    Damage,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// How bad.
    pub severity: Severity,
    /// The fact, and what to do.
    pub text: String,
}

/// A file that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The file.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Records or rows in it.
    pub records: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What was looked at.
    pub files: Vec<Checked>,
    /// What was found.
    pub findings: Vec<Finding>,
    /// What the log holds of each group; nothing when it cannot be read.
    pub groups: Option<BTreeMap<GroupId, GroupState>>,
}

/// Called with a table, a key and a value.
type OnTableRow<'a> = &'a mut dyn FnMut(u8, &[u8], &[u8]);

/// Findings of one kind in one file before the rest is only counted.
const FINDINGS_MAX: usize = 20;

impl Report {
    /// Whether a node may start on it.
    pub fn is_clean(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity < Severity::Damage)
    }

    fn find(&mut self, path: &Path, severity: Severity, text: impl Into<String>) {
        let same = self.findings.iter().filter(|finding| finding.path == path).count();
        if same <= FINDINGS_MAX {
            let text = if same < FINDINGS_MAX { text.into() } else { "and more like these".to_owned() };
            self.findings.push(Finding { path: path.to_owned(), severity, text });
        }
    }
}

/// Verifies all segments and checkpoints below the root of `disk`. Changes nothing. An error means that the
/// directory could not be looked at; damage is a finding.
pub fn check(disk: &dyn Disk, visitor: &mut dyn Visitor) -> Result<Report> {
    let mut report = Report::default();
    let logs = list(disk, Path::new(LOG_DIR))?;
    let checkpoints = list(disk, Path::new(CHECKPOINT_DIR))?;
    let total = 1 + checkpoints.len();
    if logs.is_empty() {
        report.groups = Some(BTreeMap::new());
    } else {
        check_log(disk, &logs, visitor, &mut report)?;
    }
    visitor.progress(1, total);
    for (done, path) in checkpoints.iter().enumerate() {
        match checkpoint_group(path) {
            Some(group) => check_checkpoint(disk, path, group, visitor, &mut report)?,
            None if path.extension().is_some_and(|extension| extension == "new") => {
                report.find(path, Severity::Note, "a checkpoint that was never finished: a start removes it");
            }
            None => report.find(path, Severity::Note, "not a file of windlass: left alone"),
        }
        visitor.progress(done + 2, total);
    }
    Ok(report)
}

fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::io("list", dir, source);
    if !disk.exists(dir).map_err(failed)? {
        return Ok(Vec::new());
    }
    disk.list(dir).map_err(failed)
}

fn length(disk: &dyn Disk, path: &Path) -> Result<u64> {
    let failed = |source| Error::io("read", path, source);
    disk.open(path, Open::Read).map_err(failed)?.len().map_err(failed)
}

fn checkpoint_group(path: &Path) -> Option<GroupId> {
    if path.extension()? != "redb" {
        return None;
    }
    path.file_stem()?.to_str()?.parse().ok().map(GroupId)
}

fn check_log(
    disk: &dyn Disk,
    paths: &[PathBuf],
    visitor: &mut dyn Visitor,
    report: &mut Report,
) -> Result<()> {
    let mut records = BTreeMap::new();
    let mut objections = Vec::new();
    let replayed = recovery::replay(disk, Path::new(LOG_DIR), Open::Read, &mut |path, found| {
        *records.entry(path.to_owned()).or_insert(0u64) += 1;
        if found.header.kind != Kind::Entry {
            return;
        }
        let id = found.header.id;
        let payload = Bytes::copy_from_slice(found.payload);
        let entry = LogEntry { index: id.index, term: id.term, node: id.node, payload };
        if let Err(objection) = visitor.entry(found.header.group, &entry) {
            let text = format!("entry {} of group {}: {objection}", id.index, found.header.group);
            objections.push((path.to_owned(), text));
        }
    });
    for path in paths {
        match role(path) {
            Some(_) => {
                let records = records.get(path).copied().unwrap_or(0);
                report.files.push(Checked { path: path.clone(), bytes: length(disk, path)?, records });
            }
            None => report.find(path, Severity::Note, "not a file of windlass: left alone"),
        }
        if role(path) == Some(Role::New) {
            report.find(path, Severity::Note, "a segment that was never finished: a start removes it");
        }
    }
    for (path, text) in objections {
        report.find(&path, Severity::Damage, text);
    }
    match replayed {
        Ok(replayed) => {
            let states = replayed.groups.iter().map(|(group, index)| (*group, index.state()));
            report.groups = Some(states.collect());
            if let Some(torn) = replayed.torn {
                report.find(&torn.path, Severity::Note, torn.to_string());
            }
        }
        Err(error) => {
            let path = error_path(&error).unwrap_or(Path::new(LOG_DIR)).to_owned();
            report.find(&path, Severity::Damage, error.to_string());
        }
    }
    Ok(())
}

fn error_path(error: &Error) -> Option<&Path> {
    match error {
        Error::Io { path, .. }
        | Error::Damaged { path, .. }
        | Error::Missing { path, .. }
        | Error::Version { path, .. } => Some(path),
        _ => None,
    }
}

fn check_checkpoint(
    disk: &dyn Disk,
    path: &Path,
    group: GroupId,
    visitor: &mut dyn Visitor,
    report: &mut Report,
) -> Result<()> {
    let bytes = length(disk, path)?;
    let mut records = 0;
    let mut objections = Vec::new();
    let walked = guarded(path, || {
        walk_checkpoint(disk, path, &mut |table, key, value| {
            records += 1;
            if let Err(objection) = visitor.row(group, table, key, value) {
                objections.push(format!("table {table}, key {}: {objection}", hex(key)));
            }
        })
    });
    report.files.push(Checked { path: path.to_owned(), bytes, records });
    for objection in objections {
        report.find(path, Severity::Damage, objection);
    }
    if let Err(error) = walked {
        report.find(path, Severity::Damage, error.to_string());
    }
    Ok(())
}

fn walk_checkpoint(disk: &dyn Disk, path: &Path, on_row: OnTableRow<'_>) -> Result<()> {
    let failed = |error: redb::Error| redb_failed(path, "check", error);
    let file = disk.open(path, Open::Read).map_err(|source| Error::io("open", path, source))?;
    let overlay = Overlay::new(file).map_err(|source| Error::io("open", path, source))?;
    let opened = redb::Builder::new().set_cache_size(64 * 1024 * 1024).create_with_backend(overlay);
    let mut database = opened.map_err(|error| failed(error.into()))?;
    let whole = database.check_integrity().map_err(|error| failed(error.into()))?;
    if !whole {
        let what = "its checksums do not match its pages".to_owned();
        return Err(Error::Damaged { path: path.to_owned(), offset: 0, what });
    }
    let Some((found, generation)) = read_meta(&database).map_err(failed)? else {
        let what = "it has no format version".to_owned();
        return Err(Error::Damaged { path: path.to_owned(), offset: 0, what });
    };
    if found != VERSION {
        return Err(Error::Version { path: path.to_owned(), found: found as u32, known: VERSION as u32 });
    }
    walk_rows(&database, generation, on_row).map_err(failed)
}

fn walk_rows(database: &redb::Database, generation: u64, on_row: OnTableRow<'_>) -> Result<(), redb::Error> {
    let transaction = database.begin_read()?;
    let names = transaction.list_tables()?.map(|table| table.name().to_owned());
    for number in numbers(names, generation) {
        let name = format!("{generation}/{number}");
        let table = transaction.open_table(TableDefinition::<&[u8], &[u8]>::new(&name))?;
        for row in table.iter()? {
            let (key, value) = row?;
            on_row(number, key.value(), value.value());
        }
    }
    Ok(())
}

fn hex(key: &[u8]) -> String {
    key.iter().take(32).map(|byte| format!("{byte:02x}")).collect()
}
