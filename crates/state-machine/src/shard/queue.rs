//! A queue, in one shard.

use model::{QueueName, QueuePolicy, QueueSettings, Spread, StateKind};

use super::execution::{Execution, QueueNo};
use super::lists::{LISTS, List, PURGED, READY, list_of};
use crate::view::{Depth, Totals};

/// A queue's settings, lines and counts.
pub(super) struct Queue {
    pub name: QueueName,
    pub no: QueueNo,
    pub settings: QueueSettings,
    pub totals: Totals,
    /// Waiting tasks with a rank between these are marked by a purge; one mark for each purge that is
    /// not worked off, the oldest first.
    pub purges: Vec<PurgeMark>,
    /// Deleted by a person: goes when the last trace of its tasks has gone.
    pub dropped: bool,
    /// Rebuilt on load.
    pub lists: [List; LISTS],
    /// Rebuilt on load.
    pub depth: Depth,
    /// Dedup keys that refer to tasks, or to tasks that have gone. Rebuilt on load.
    pub dedup_keys: u64,
    /// When the retention of ended and of dead tasks is looked at next. Rebuilt on load.
    pub retention_armed: [Option<u64>; 2],
    /// Changed since the last cut.
    pub changed: bool,
    /// Not in the running hash.
    pub unhashed: bool,
}

/// Which ranks a purge has marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PurgeMark {
    pub after: i64,
    pub before: i64,
}

impl Queue {
    pub(super) fn new(name: QueueName, no: QueueNo) -> Queue {
        Queue {
            name,
            no,
            settings: QueueSettings::default(),
            totals: Totals::default(),
            purges: Vec::new(),
            dropped: false,
            lists: [List::default(); LISTS],
            depth: Depth::default(),
            dedup_keys: 0,
            retention_armed: [None; 2],
            changed: false,
            unhashed: true,
        }
    }

    pub(super) fn policy(&self) -> &QueuePolicy {
        &self.settings.policy
    }

    /// This shard's part of a limit that counts for the whole queue.
    pub(super) fn share(&self, whole: u64, shards: u16) -> u64 {
        match self.settings.policy.spread {
            Spread::Pinned => whole,
            Spread::All => whole.div_ceil(u64::from(shards)),
        }
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.settings.policy.spread == Spread::Pinned
    }

    pub(super) fn live(&self) -> u64 {
        self.depth.0[..StateKind::Claimed as usize].iter().sum()
    }

    pub(super) fn purged(&self, task: &Execution) -> bool {
        self.purge_of(task).is_some()
    }

    /// Which of the purges has marked a task: the first that could.
    pub(super) fn purge_of(&self, task: &Execution) -> Option<usize> {
        let marks = |mark: &PurgeMark| mark.after < task.rank && task.rank < mark.before;
        self.purges.iter().position(marks).filter(|_| task.state.is_waiting())
    }

    /// Which line a task is in.
    pub(super) fn list_of(&self, task: &Execution) -> usize {
        if self.purged(task) { PURGED } else { list_of(task) }
    }

    /// The best priority that has a ready task.
    pub(super) fn best_ready(&self) -> Option<usize> {
        (READY..READY + 10).find(|&list| self.lists[list].len > 0)
    }

    pub(super) fn ready(&self) -> u64 {
        self.lists[READY..READY + 10].iter().map(|list| list.len).sum()
    }
}
