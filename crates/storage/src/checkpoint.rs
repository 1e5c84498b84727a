//! One group's checkpoint: numbered tables of bytes, changed by atomic durable transactions (redb).
//!
//! What a caller may rely on: after [`write`](CheckpointStore::write) all of the batch survives any crash, and
//! before that none of it does. Opening after a crash takes a moment, not a walk through the file. Calls
//! block on the disk: they belong onto an [`Executor`](crate::Executor).
//!
//! Must never know what a row means, nor go on after a failed sync. redb is seen here, in `redb_file.rs` and
//! `spool.rs` only. Next: `spool.rs` (the whole content as a file), `docs/formats/checkpoint-file.md`.

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use redb::{
    Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    ReadableTableMetadata, StorageError, Table, TableDefinition, TableError, TableHandle, WriteTransaction,
};

use crate::batch::{Batch, KeyChange};
use crate::disk::{Disk, Open};
use crate::error::{Error, Result};
use crate::guard::guarded;
use crate::redb_file::RedbFile;
pub use crate::spool::Spooled;
use crate::spool::Takes;

/// Format version of the tables.
pub(crate) const VERSION: u64 = 1;
/// A cache that is enough for a checkpoint's writes.
pub const CACHE_BYTES_DEFAULT: usize = 8 * 1024 * 1024;

const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
const FORMAT: &str = "format";
const GENERATION: &str = "generation";

/// Rows that are looked through at once to be removed.
const REMOVED_AT_ONCE: usize = 1024;

type NamedTable<'a> = TableDefinition<'a, &'static [u8], &'static [u8]>;

/// A key and its value.
pub type Row = (Bytes, Bytes);

/// Called with a key and a value.
pub type OnRow<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// One group's checkpoint. A cheap handle.
#[derive(Clone)]
pub struct CheckpointStore {
    inner: Arc<Inner>,
}

struct Inner {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    cache_bytes: usize,
    /// `None` after an error: redb refuses everything then, and must be opened anew.
    database: RwLock<Option<Database>>,
    /// One writer at a time, so that a failed one is cleaned up before the next.
    writing: Mutex<()>,
    /// Which tables count: an installed spool gets the next number.
    generation: AtomicU64,
    sync_failed: Arc<AtomicBool>,
}

/// One state of a checkpoint, that later writes do not change. Keeps the room of what it sees.
pub struct Snapshot {
    pub(crate) path: PathBuf,
    pub(crate) disk: Arc<dyn Disk>,
    transaction: ReadTransaction,
    generation: u64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        close(&self.path, self.database.get_mut());
    }
}

impl CheckpointStore {
    /// Opens the checkpoint in `path`, or makes an empty one. `cache_bytes` of its pages stay in memory.
    pub fn open(disk: Arc<dyn Disk>, path: &Path, cache_bytes: usize) -> Result<CheckpointStore> {
        let store = CheckpointStore {
            inner: Arc::new(Inner {
                disk,
                path: path.to_owned(),
                cache_bytes,
                database: RwLock::new(None),
                writing: Mutex::new(()),
                generation: AtomicU64::new(0),
                sync_failed: Arc::default(),
            }),
        };
        drop(store.database()?);
        Ok(store)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Applies the batch in one durable transaction. A full disk ([`Error::Full`]) leaves everything as it
    /// was, and a later try may succeed; a failed sync ([`Error::is_fatal`]) must end the process.
    pub fn write(&self, batch: &Batch) -> Result<()> {
        self.transact(|transaction, generation| apply(transaction, generation, batch))
    }

    /// A value.
    pub fn get(&self, table: u8, key: &[u8]) -> Result<Option<Bytes>> {
        self.snapshot()?.get(table, key)
    }

    /// The values of `keys`, in their order, all of one state.
    pub fn get_many<K: AsRef<[u8]>>(&self, table: u8, keys: &[K]) -> Result<Vec<Option<Bytes>>> {
        self.snapshot()?.get_many(table, keys)
    }

    /// Rows from `from` on (that key included), in order, at most `limit`. For the next piece go on from the last
    /// key with a zero byte added; for pieces of one state use a [`snapshot`](CheckpointStore::snapshot).
    pub fn scan(&self, table: u8, from: &[u8], limit: usize) -> Result<Vec<Row>> {
        self.snapshot()?.scan(table, from, limit)
    }

    /// All rows of a table, of one state, in order; `on_row` ends it by an error.
    pub fn for_each(&self, table: u8, on_row: OnRow<'_>) -> Result<()> {
        self.snapshot()?.for_each(table, on_row)
    }

    /// How many rows a table has.
    pub fn count(&self, table: u8) -> Result<u64> {
        self.snapshot()?.count(table)
    }

    /// The state as it is now.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let database = self.database()?;
        let database = database.as_ref().expect("it was just opened");
        let begun = guarded(&self.inner.path, || database.begin_read().map_err(|e| self.failed("read", e)));
        Ok(Snapshot {
            path: self.inner.path.clone(),
            disk: self.inner.disk.clone(),
            transaction: begun?,
            generation: self.inner.generation.load(Relaxed),
        })
    }

    /// Writes the whole content, as it is now, into the checksummed file `path`.
    pub fn spool(&self, path: &Path) -> Result<Spooled> {
        self.snapshot()?.spool(path)
    }

    /// Replaces the whole content by that of a spooled file, or changes nothing. The rows are written in bounded
    /// transactions into new tables, and one more makes them count.
    pub fn install(&self, path: &Path) -> Result<Spooled> {
        self.install_with(path, &mut |_| Ok(()))
    }

    /// The same, with what `amend` changes in it before it counts.
    pub fn install_with(&self, path: &Path, amend: Amend<'_>) -> Result<Spooled> {
        crate::spool::install(self, path, amend)
    }

    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.inner.disk
    }

    /// Writes rows into tables that do not count yet.
    pub(crate) fn write_next(&self, batch: &Batch) -> Result<()> {
        self.transact(|transaction, generation| apply(transaction, generation + 1, batch))
    }

    /// Makes the tables of the next generation count.
    pub(crate) fn swap(&self) -> Result<()> {
        drop(self.database()?);
        // Nobody may read between the two: they would look for the tables of one generation in the other.
        let mut slot = self.inner.database.write();
        let generation = self.inner.generation.load(Relaxed) + 1;
        let swapped = slot.as_ref().map(|database| {
            self.transact_in(database, |transaction| {
                transaction.open_table(META)?.insert(GENERATION, generation)?;
                Ok(())
            })
        });
        if let Some(Err(error)) = swapped {
            close(&self.inner.path, &mut slot);
            return Err(error);
        }
        self.inner.generation.store(generation, Relaxed);
        drop(slot);
        self.clear_next()
    }

    /// Removes tables of a replaced or an interrupted installation.
    pub(crate) fn clear_next(&self) -> Result<()> {
        self.transact(remove_other_generations)
    }

    /// One durable transaction, all or nothing.
    fn transact(&self, change: impl FnOnce(&WriteTransaction, u64) -> Result<(), redb::Error>) -> Result<()> {
        let _one = self.inner.writing.lock();
        let outcome = {
            let database = self.database()?;
            let database = database.as_ref().expect("it was just opened");
            self.transact_in(database, |transaction| change(transaction, self.inner.generation.load(Relaxed)))
        };
        // The file is read anew, as it was before this transaction.
        outcome.inspect_err(|_| close(&self.inner.path, &mut self.inner.database.write()))
    }

    fn transact_in(
        &self,
        database: &Database,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<()> {
        guarded(&self.inner.path, || transact(database, change).map_err(|error| self.failed("write", error)))
    }

    /// The database, opened if an error has closed it.
    fn database(&self) -> Result<RwLockReadGuard<'_, Option<Database>>> {
        if self.inner.sync_failed.load(Relaxed) {
            return Err(self.sync_failed());
        }
        let open = self.inner.database.read();
        if open.is_some() {
            return Ok(open);
        }
        drop(open);
        let mut slot = self.inner.database.write();
        if slot.is_none() {
            *slot = Some(guarded(&self.inner.path, || self.reopen())?);
        }
        Ok(RwLockWriteGuard::downgrade(slot))
    }

    fn reopen(&self) -> Result<Database> {
        let Inner { disk, path, .. } = &*self.inner;
        let failed = |source| Error::io("open", path, source);
        let dir = path.parent().unwrap_or(Path::new(""));
        if !disk.exists(path).map_err(failed)? {
            disk.create_dir_all(dir).map_err(failed)?;
            // Under another name until it is whole: a crash leaves either no checkpoint or an empty one.
            let new = path.with_extension("new");
            if disk.exists(&new).map_err(failed)? {
                disk.remove(&new).map_err(failed)?;
            }
            drop(self.open_file(&new)?);
            disk.rename(&new, path).map_err(failed)?;
            disk.sync_dir(dir).map_err(failed)?;
        }
        self.open_file(path)
    }

    fn open_file(&self, path: &Path) -> Result<Database> {
        let failed = |error: redb::Error| self.failed("open", error);
        let file =
            self.inner.disk.open(path, Open::Create).map_err(|source| Error::io("open", path, source))?;
        let backend = RedbFile::new(file, self.inner.sync_failed.clone());
        let mut builder = redb::Builder::new();
        builder.set_cache_size(self.inner.cache_bytes);
        let database = builder.create_with_backend(backend).map_err(|error| failed(error.into()))?;
        let known = read_meta(&database).map_err(failed)?;
        let generation = match known {
            Some((VERSION, generation)) => generation,
            Some((found, _)) => {
                let (found, known) = (found as u32, VERSION as u32);
                return Err(Error::Version { path: path.to_owned(), found, known });
            }
            None => {
                transact(&database, |transaction| {
                    let mut meta = transaction.open_table(META)?;
                    meta.insert(FORMAT, VERSION)?;
                    meta.insert(GENERATION, 1)?;
                    Ok(())
                })
                .map_err(failed)?;
                1
            }
        };
        self.inner.generation.store(generation, Relaxed);
        if has_other_generations(&database, generation).map_err(failed)? {
            transact(&database, |transaction| remove_other_generations(transaction, generation))
                .map_err(failed)?;
        }
        Ok(database)
    }

    fn failed(&self, what: &'static str, error: impl Into<redb::Error>) -> Error {
        if self.inner.sync_failed.load(Relaxed) {
            return self.sync_failed();
        }
        redb_failed(&self.inner.path, what, error.into())
    }

    fn sync_failed(&self) -> Error {
        Error::Fatal { what: format!("cannot sync checkpoint {}", self.inner.path.display()).into() }
    }
}

/// Changes what is being installed.
pub type Amend<'a> = &'a mut dyn FnMut(Next<'_>) -> Result<()>;

/// What is being installed, and does not count yet.
#[derive(Clone, Copy)]
pub struct Next<'a>(pub(crate) &'a CheckpointStore);

impl Next<'_> {
    /// A value.
    pub fn get(&self, table: u8, key: &[u8]) -> Result<Option<Bytes>> {
        let mut snapshot = self.0.snapshot()?;
        snapshot.generation += 1;
        snapshot.get(table, key)
    }

    /// Applies the batch.
    pub fn write(&self, batch: &Batch) -> Result<()> {
        self.0.write_next(batch)
    }
}

impl Snapshot {
    /// A value.
    pub fn get(&self, table: u8, key: &[u8]) -> Result<Option<Bytes>> {
        guarded(&self.path, || {
            let Some(table) = self.table(table)? else { return Ok(None) };
            let value = table.get(key).map_err(|error| self.failed(error))?;
            Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
        })
    }

    /// The values of `keys`, in their order.
    pub fn get_many<K: AsRef<[u8]>>(&self, table: u8, keys: &[K]) -> Result<Vec<Option<Bytes>>> {
        guarded(&self.path, || {
            let Some(table) = self.table(table)? else { return Ok(vec![None; keys.len()]) };
            let get = |key: &K| {
                let value = table.get(key.as_ref()).map_err(|error| self.failed(error))?;
                Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
            };
            keys.iter().map(get).collect()
        })
    }

    /// Rows from `from` on (that key included), in order, at most `limit`.
    pub fn scan(&self, table: u8, from: &[u8], limit: usize) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        self.walk(table, from, limit, &mut |key, value| {
            rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            Ok(())
        })?;
        Ok(rows)
    }

    /// All rows of a table, in order; `on_row` ends it by an error.
    pub fn for_each(&self, table: u8, on_row: OnRow<'_>) -> Result<()> {
        self.walk(table, &[], usize::MAX, on_row)
    }

    /// The rows of a table, in the order of their keys.
    pub fn rows(&self, table: u8) -> Result<Rows<'_>> {
        let rows = guarded(&self.path, || {
            let Some(table) = self.table(table)? else { return Ok(None) };
            table.range::<&[u8]>(..).map(Some).map_err(|error| self.failed(error))
        });
        Ok(Rows { snapshot: self, rows: rows? })
    }

    /// How many rows a table has.
    pub fn count(&self, table: u8) -> Result<u64> {
        guarded(&self.path, || {
            let Some(table) = self.table(table)? else { return Ok(0) };
            table.len().map_err(|error| self.failed(error))
        })
    }

    /// Writes the whole content into the checksummed file `path`.
    pub fn spool(&self, path: &Path) -> Result<Spooled> {
        self.spool_some(path, &mut |_, _, _| true)
    }

    /// The same, but for the rows (table, key, value) that `takes` does not take.
    pub fn spool_some(&self, path: &Path, takes: Takes<'_>) -> Result<Spooled> {
        crate::spool::spool(self, path, takes)
    }

    /// The tables that there are.
    pub(crate) fn tables(&self) -> Result<Vec<u8>> {
        guarded(&self.path, || {
            let names = self.transaction.list_tables().map_err(|error| self.failed(error))?;
            Ok(numbers(names.map(|table| table.name().to_owned()), self.generation))
        })
    }

    fn walk(&self, table: u8, from: &[u8], limit: usize, on_row: OnRow<'_>) -> Result<()> {
        let range = (Bound::Included(from), Bound::<&[u8]>::Unbounded);
        let Some(table) = guarded(&self.path, || self.table(table))? else { return Ok(()) };
        let mut rows = guarded(&self.path, || {
            ReadableTable::range::<&[u8]>(&table, range).map_err(|error| self.failed(error))
        })?;
        for _ in 0..limit {
            let row = guarded(&self.path, || rows.next().transpose().map_err(|error| self.failed(error)));
            let Some((key, value)) = row? else { return Ok(()) };
            let (key, value) = guarded(&self.path, || Ok((key.value(), value.value())))?;
            on_row(key, value)?;
        }
        Ok(())
    }

    fn table(&self, table: u8) -> Result<Option<ReadOnlyTable<&'static [u8], &'static [u8]>>> {
        let name = name(self.generation, table);
        match self.transaction.open_table(NamedTable::new(&name)) {
            Ok(table) => Ok(Some(table)),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: impl Into<redb::Error>) -> Error {
        redb_failed(&self.path, "read", error.into())
    }
}

/// The rows of a table of one state, key and value. Ends after an error.
pub struct Rows<'a> {
    snapshot: &'a Snapshot,
    rows: Option<redb::Range<'static, &'static [u8], &'static [u8]>>,
}

impl Iterator for Rows<'_> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Result<(Bytes, Bytes)>> {
        let (snapshot, rows) = (self.snapshot, self.rows.as_mut()?);
        let row = guarded(&snapshot.path, || match rows.next() {
            Some(Ok((key, value))) => {
                Ok(Some((Bytes::copy_from_slice(key.value()), Bytes::copy_from_slice(value.value()))))
            }
            Some(Err(error)) => Err(snapshot.failed(error)),
            None => Ok(None),
        });
        if !matches!(row, Ok(Some(_))) {
            self.rows = None;
        }
        row.transpose()
    }
}

/// redb writes once more when it closes. If it cannot, the file stays as its last transaction left it.
fn close(path: &Path, slot: &mut Option<Database>) {
    let Some(database) = slot.take() else { return };
    let closed = guarded(path, || {
        drop(database);
        Ok(())
    });
    if let Err(error) = closed {
        tracing::warn!(%error, "a checkpoint was not closed in order");
    }
}

pub(crate) fn redb_failed(path: &Path, what: &'static str, error: redb::Error) -> Error {
    match error {
        redb::Error::Io(source) => Error::io(what, path, source),
        redb::Error::Corrupted(what) => Error::Damaged { path: path.to_owned(), offset: 0, what },
        other => Error::Checkpoint { what, path: path.to_owned(), reason: other.to_string() },
    }
}

/// A table's name.
fn name(generation: u64, table: u8) -> String {
    format!("{generation}/{table}")
}

/// The numbers of the tables of a generation.
pub(crate) fn numbers(names: impl Iterator<Item = String>, generation: u64) -> Vec<u8> {
    let prefix = format!("{generation}/");
    let mut numbers: Vec<u8> =
        names.filter_map(|name| name.strip_prefix(&prefix).and_then(|number| number.parse().ok())).collect();
    numbers.sort_unstable();
    numbers
}

/// Format version and generation; `None` in a new file.
pub(crate) fn read_meta(database: &Database) -> Result<Option<(u64, u64)>, redb::Error> {
    let transaction = database.begin_read()?;
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let value = |key| -> Result<u64, StorageError> { Ok(meta.get(key)?.map_or(0, |value| value.value())) };
    Ok(Some((value(FORMAT)?, value(GENERATION)?)))
}

fn is_of_other(name: &str, generation: u64) -> bool {
    name != META.name() && !name.starts_with(&format!("{generation}/"))
}

fn has_other_generations(database: &Database, generation: u64) -> Result<bool, redb::Error> {
    let transaction = database.begin_read()?;
    Ok(transaction.list_tables()?.any(|table| is_of_other(table.name(), generation)))
}

fn remove_other_generations(transaction: &WriteTransaction, generation: u64) -> Result<(), redb::Error> {
    let tables: Vec<_> =
        transaction.list_tables()?.filter(|table| is_of_other(table.name(), generation)).collect();
    for table in tables {
        transaction.delete_table(table)?;
    }
    Ok(())
}

fn transact(
    database: &Database,
    change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.set_quick_repair(true);
    change(&transaction)?;
    transaction.commit()?;
    Ok(())
}

fn apply(transaction: &WriteTransaction, generation: u64, batch: &Batch) -> Result<(), redb::Error> {
    for (table, changes) in batch.tables() {
        let name = name(generation, table);
        let mut table = transaction.open_table(NamedTable::new(&name))?;
        apply_table(&mut table, &changes)?;
    }
    Ok(())
}

fn apply_table(table: &mut Table<'_, &[u8], &[u8]>, changes: &[KeyChange<'_>]) -> Result<(), redb::Error> {
    let beyond = match table.last()? {
        Some((last, _)) => changes.partition_point(|(key, _)| *key <= last.value()),
        None => 0,
    };
    let (within, beyond) = changes.split_at(beyond);
    for run in within.chunk_by(|(_, one), (_, next)| one.is_some() == next.is_some()) {
        match run {
            [(_, None), ..] => run.chunks(REMOVED_AT_ONCE).try_for_each(|some| remove(table, some))?,
            _ => {
                for (key, value) in run {
                    table.insert(*key, value.unwrap_or_default())?;
                }
            }
        }
    }
    // Keys behind the last one are appended leaf by leaf, without a descent for each.
    let mut cursor = table.upper_bound_mut(Bound::<&[u8]>::Unbounded)?;
    for (key, value) in beyond {
        if let Some(value) = value {
            cursor.insert_before(*key, *value)?;
        }
    }
    cursor.close()?;
    Ok(())
}

/// Removes keys. Tasks go in about the order in which they came, so their rows lie side by side: then leaf by leaf,
/// without a descent for each. Where they do not, a few rows are counted for each key to see that.
fn remove(table: &mut Table<'_, &[u8], &[u8]>, keys: &[KeyChange<'_>]) -> Result<(), redb::Error> {
    let [(first, _), .., (last, _)] = keys else {
        return keys.iter().try_for_each(|(key, _)| Ok(table.remove(*key).map(drop)?));
    };
    let rows_max = keys.len() * 2;
    let rows = table.range::<&[u8]>(*first..=*last)?.take(rows_max + 1).count();
    if rows > rows_max {
        let (some, rest) = keys.split_at(keys.len() / 2);
        remove(table, some)?;
        return remove(table, rest);
    }
    let (mut seen, mut next) = (0, 0);
    table.retain_in::<&[u8], _>(*first..=*last, |key, _| {
        seen += 1;
        // The next one, nearly always.
        if keys.get(next).is_some_and(|(removed, _)| *removed == key) {
            next += 1;
            return false;
        }
        match keys.binary_search_by(|(removed, _)| (*removed).cmp(key)) {
            Ok(at) => {
                next = at + 1;
                false
            }
            Err(_) => true,
        }
    })?;
    // A damaged key that is out of its order ends the walk before its end.
    if seen < rows {
        keys.iter().try_for_each(|(key, _)| table.remove(*key).map(drop))?;
    }
    Ok(())
}
