//! Reads what storage does not look into: entries of the log, and the records of checkpoints.
//!
//! A checkpoint's state is loaded as a start would load it, and its hash compared with the one written
//! beside it. Never touches the disk itself.

use std::collections::BTreeMap;

use bytes::Bytes;
use indicatif::ProgressBar;
use model::{GroupId, ShardId, TaskId, limits};
use prost::Message;
use state_machine::{Catalog, Damaged, Machine, Shard, Table};
use storage::LogEntry;
use storage::check::Visitor;
use wire::entry::{CheckpointHead, Entry};
use wire::history::KeptMessage;

/// The tables of a checkpoint that a replica keeps beside the state, as `docs/formats` numbers them.
const TABLE_HEAD: u8 = 0;
const TABLE_KEPT: u8 = 16;
const TABLE_LATER: u8 = 17;

/// What was read, and what is wrong with it beyond what storage reports.
pub(super) struct Records {
    pub(super) entries: u64,
    pub(super) commands: u64,
    pub(super) rows: u64,
    /// By group: what its checkpoint as a whole contradicts.
    pub(super) objections: Vec<(GroupId, String)>,
    /// The last entry that is in each checkpoint.
    pub(super) applied: BTreeMap<GroupId, u64>,
    bar: ProgressBar,
    open: Option<Checkpoint>,
}

/// The checkpoint that is being read.
struct Checkpoint {
    group: GroupId,
    state: State,
    hash: Option<u128>,
    refused: bool,
}

enum State {
    Catalog(Box<Catalog>),
    Shard(Box<Shard>),
}

impl Records {
    pub(super) fn new(bar: ProgressBar) -> Records {
        Records {
            entries: 0,
            commands: 0,
            rows: 0,
            objections: Vec::new(),
            applied: BTreeMap::new(),
            bar,
            open: None,
        }
    }

    fn checkpoint(&mut self, group: GroupId) -> Result<&mut Checkpoint, String> {
        if self.open.as_ref().is_none_or(|open| open.group != group) {
            self.finish();
            self.open = Some(Checkpoint { group, state: State::new(group)?, hash: None, refused: false });
        }
        self.open.as_mut().ok_or_else(|| "no checkpoint is open".to_owned())
    }

    /// All rows of the open checkpoint are in.
    fn finish(&mut self) {
        let Some(checkpoint) = self.open.take() else { return };
        let group = checkpoint.group;
        if let Err(objection) = checkpoint.finish() {
            self.objections.push((group, objection));
        }
    }
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

    fn row(&mut self, group: GroupId, table: u8, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.rows += 1;
        let mut applied = None;
        let checkpoint = self.checkpoint(group)?;
        let read = match table {
            TABLE_HEAD => whole::<CheckpointHead>(key, value).map(|head| {
                checkpoint.hash = Some(head.hash());
                applied = head.applied.map(|id| id.index);
            }),
            TABLE_KEPT | TABLE_LATER => kept(key, value),
            _ => checkpoint.state.load(table, key, value),
        };
        checkpoint.refused |= read.is_err();
        self.applied.extend(applied.map(|applied| (group, applied)));
        read
    }

    fn progress(&mut self, done: usize, total: usize) {
        self.finish();
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
    }
}

fn kept(key: &[u8], value: &[u8]) -> Result<(), String> {
    let bits = key.try_into().map(u128::from_be_bytes).ok();
    bits.and_then(TaskId::from_bits).ok_or("the key is no task id")?;
    whole::<KeptMessage>(key, value).map(drop)
}

/// A record that is what was written under its key.
fn whole<T: Message + Default>(key: &[u8], value: &[u8]) -> Result<T, String> {
    if !wire::seal::is_whole(key, value) {
        return Err("the record is not what was written: its checksum is wrong".to_owned());
    }
    T::decode(Bytes::copy_from_slice(value)).map_err(|e| e.to_string())
}

impl Checkpoint {
    fn finish(self) -> Result<(), String> {
        // Without the refused rows the sum cannot be right, and they have been reported.
        if self.refused {
            return Ok(());
        }
        let hash = match self.state {
            State::Catalog(mut catalog) => catalog.loaded().map(|()| catalog.hash()),
            State::Shard(mut shard) => shard.loaded().map(|()| shard.hash()),
        };
        let hash = hash.map_err(|e: Damaged| e.to_string())?;
        match self.hash {
            Some(written) if written != hash => {
                Err("the state's hash is not the one that was written".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl State {
    fn new(group: GroupId) -> Result<State, String> {
        if group == GroupId::CATALOG {
            return Ok(State::Catalog(Box::new(Catalog::new())));
        }
        let id = ShardId::new(group.0).ok_or_else(|| format!("there is no shard {group}"))?;
        // How many shards there are decides about limits, which loading does not look at.
        Ok(State::Shard(Box::new(Shard::new(id, limits::SHARDS_DEFAULT))))
    }

    fn load(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<(), String> {
        let table = Table::ALL.into_iter().find(|known| *known as u8 == table);
        let table = table.ok_or("a table that this version does not know: run a newer windlass")?;
        let loaded = match self {
            State::Catalog(catalog) => catalog.load(table, key, value),
            State::Shard(shard) => shard.load(table, key, value),
        };
        loaded.map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use model::WallTime;

    use super::*;

    #[test]
    fn a_record_that_is_not_what_was_written_is_damage() {
        let task = TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(7), 7);
        let key = task.bits().to_be_bytes();
        let envelope = Some(Bytes::from_static(b"the envelope of a task"));
        let row = wire::seal::sealed(&key, &KeptMessage { envelope, ..KeptMessage::default() });
        let mut records = Records::new(ProgressBar::hidden());
        for table in [TABLE_KEPT, TABLE_LATER] {
            records.row(GroupId(1), table, &key, &row).unwrap();
            let mut flipped = row.clone();
            flipped[8] ^= 1;
            let objection = records.row(GroupId(1), table, &key, &flipped).unwrap_err();
            assert!(objection.contains("not what was written"), "{objection}");
        }
        let head = wire::seal::sealed(b"head", &CheckpointHead { hash_low: 5, ..CheckpointHead::default() });
        records.row(GroupId(1), TABLE_HEAD, b"head", &head).unwrap();
        let mut flipped = head;
        flipped[3] ^= 1;
        assert!(records.row(GroupId(1), TABLE_HEAD, b"head", &flipped).is_err());
    }
}
