//! A checkpoint's tables and the log after it, in memory.

use std::collections::BTreeMap;

use model::{Command, Position, ShardId};
use state_machine::{Change, Effects, Machine, Shard, Table};

use crate::naive::Naive;

/// What a shard was when its checkpoint began.
pub(crate) struct Cut {
    pub(crate) hash: u128,
    pub(crate) model: Naive,
    /// Commands applied while it was written.
    pub(crate) commands: usize,
    slice: usize,
    changes: Vec<Change>,
}

pub(crate) struct Store {
    id: ShardId,
    shards: u16,
    tables: BTreeMap<(Table, Vec<u8>), Vec<u8>>,
    under_way: Option<Cut>,
    /// Commands after the last whole checkpoint; those after the cut under way count from `since_cut`.
    log: Vec<(Position, Command)>,
    since_cut: usize,
}

impl Store {
    pub(crate) fn new(id: ShardId, shards: u16) -> Store {
        Store { id, shards, tables: BTreeMap::new(), under_way: None, log: Vec::new(), since_cut: 0 }
    }

    pub(crate) fn log(&mut self, at: Position, command: Command) {
        self.log.push((at, command));
        if let Some(cut) = &mut self.under_way {
            cut.commands += 1;
        }
    }

    /// Begins a checkpoint, unless one is under way.
    pub(crate) fn begin(&mut self, shard: &mut Shard, model: &Naive, slice: usize) {
        if self.under_way.is_some() {
            return;
        }
        let hash = shard.hash();
        shard.cut();
        self.since_cut = self.log.len();
        let model = model.clone();
        self.under_way = Some(Cut { hash, model, commands: 0, slice, changes: Vec::new() });
    }

    /// Takes a slice of the checkpoint under way. The cut, when it was the last one.
    pub(crate) fn write_some(&mut self, shard: &mut Shard) -> Option<Cut> {
        let cut = self.under_way.as_mut()?;
        let before = cut.changes.len();
        let more = shard.cut_some(cut.slice, &mut cut.changes);
        assert!(cut.changes.len() - before <= cut.slice, "a slice holds more than its limit");
        if more {
            return None;
        }
        let mut cut = self.under_way.take()?;
        for change in cut.changes.drain(..) {
            match change.value {
                Some(value) => self.tables.insert((change.table, change.key), value),
                None => self.tables.remove(&(change.table, change.key)),
            };
        }
        self.log.drain(..self.since_cut);
        Some(cut)
    }

    /// The shard of the last whole checkpoint.
    pub(crate) fn load(&self) -> Shard {
        let mut shard = Shard::new(self.id, self.shards);
        for table in Table::ALL {
            for ((_, key), value) in self.tables.iter().filter(|((of, _), _)| *of == table) {
                shard.load(table, key, value).expect("what was written can be read");
            }
        }
        shard.loaded().expect("what was cut is whole");
        shard
    }

    /// Applies what came after the last whole checkpoint, and says how much. A cut under way is lost.
    pub(crate) fn replay(&mut self, shard: &mut Shard) -> usize {
        self.under_way = None;
        for (at, command) in &self.log {
            let _ = shard.apply(*at, command.clone(), &mut Effects::default());
        }
        self.log.len()
    }
}
