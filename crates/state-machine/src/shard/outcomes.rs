//! What the final fences of tasks came to that went before their answers may be forgotten.
//!
//! At full load every task leaves one, for a minute: millions of them, and hardly one is ever asked for. They lie in blocks, each
//! with an index of its own, so that keeping one touches little memory, a block goes as a whole, and no table of all of them ever
//! has to grow.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use model::{Elapsed, Fence, StateKind, TaskId};

use super::execution::Last;
use super::record::{Read, Reader, Writer};
use super::tasks;

/// Outcomes in a block, at most: their index, as full as it may be, stays in a processor's cache.
const BLOCK: usize = 14 * 1024;

/// Outcomes that have gone and are not worth a block of their own.
const GONE_KEPT: usize = 64;

/// What the final fence of a task came to, kept when the task itself went early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub seq: u64,
    pub task: TaskId,
    pub fence: Fence,
    pub last: Last,
    pub state: StateKind,
    pub attempts: u16,
    pub until: Elapsed,
}

/// Outcomes in the order of their numbers, which is the order in which they may go.
#[derive(Default)]
pub(super) struct Outcomes {
    /// None is empty, and of each at least one is still kept.
    blocks: VecDeque<Block>,
    /// How many of the first block have gone.
    gone: usize,
    len: usize,
    /// What records hold: the first and last number of each chunk.
    pub chunks: VecDeque<(u64, u64)>,
    /// The first that no record holds.
    pub fresh: u64,
    /// Those that no record holds, as the next will: encoded one by one, so that a cut is short.
    pub fresh_bytes: Writer,
}

/// Outcomes that came one after the other.
struct Block {
    outcomes: Vec<Outcome>,
    /// Places in the block, by task: the newest of each.
    by_task: HashTable<u16>,
    /// The least and the greatest task: tasks go in about the order in which they came, so that few blocks can have one.
    tasks: RangeInclusive<TaskId>,
}

impl Block {
    fn new(first: Outcome) -> Block {
        let mut block =
            Block { outcomes: Vec::new(), by_task: HashTable::new(), tasks: first.task..=first.task };
        block.push(first);
        block
    }

    fn is_full(&self) -> bool {
        self.outcomes.len() == BLOCK
    }

    fn push(&mut self, outcome: Outcome) {
        let place = u16::try_from(self.outcomes.len()).expect("a block is never over full");
        let (least, most) = (self.tasks.start().min(&outcome.task), self.tasks.end().max(&outcome.task));
        self.tasks = *least..=*most;
        self.outcomes.push(outcome);
        let task = |place: &u16| self.outcomes[usize::from(*place)].task;
        let hash = |place: &u16| tasks::hash(task(place));
        match self.by_task.entry(tasks::hash(outcome.task), |place| task(place) == outcome.task, hash) {
            Entry::Occupied(mut older) => *older.get_mut() = place,
            Entry::Vacant(none) => {
                none.insert(place);
            }
        }
    }

    /// Where the newest of a task is.
    fn find(&self, id: TaskId) -> Option<usize> {
        if !self.tasks.contains(&id) {
            return None;
        }
        let is_its = |place: &u16| self.outcomes[usize::from(*place)].task == id;
        self.by_task.find(tasks::hash(id), is_its).map(|place| usize::from(*place))
    }
}

impl Outcomes {
    /// None yet; the first that comes is one that no record holds.
    pub(super) fn new() -> Outcomes {
        Outcomes { fresh: 1, ..Outcomes::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn first(&self) -> Option<&Outcome> {
        self.blocks.front().map(|block| &block.outcomes[self.gone])
    }

    pub(super) fn last(&self) -> Option<&Outcome> {
        self.blocks.back().and_then(|block| block.outcomes.last())
    }

    /// The newest of a task. Looks into the blocks whose tasks are about as old: one or two, or, where old tasks end among new
    /// ones, at most all of them, some eighty for 20,000 tasks a second on this shard.
    pub(super) fn find(&self, id: TaskId) -> Option<&Outcome> {
        let mut newest_first = self.blocks.iter().enumerate().rev();
        let (n, block, place) = newest_first.find_map(|(n, block)| Some((n, block, block.find(id)?)))?;
        let has_gone = n == 0 && place < self.gone;
        (!has_gone).then(|| &block.outcomes[place])
    }

    /// Adds one behind all others.
    pub(super) fn push(&mut self, outcome: Outcome) {
        // A lone block of which more has gone than is left takes no more: it would keep what has gone until it is full.
        let is_spent = self.blocks.len() == 1 && self.gone > self.len.max(GONE_KEPT);
        match self.blocks.back_mut().filter(|block| !block.is_full() && !is_spent) {
            Some(block) => block.push(outcome),
            None => self.blocks.push_back(Block::new(outcome)),
        }
        self.len += 1;
    }

    /// Takes the first.
    pub(super) fn pop(&mut self) -> Option<Outcome> {
        let first = *self.first()?;
        self.gone += 1;
        self.len -= 1;
        if self.gone == self.blocks[0].outcomes.len() {
            self.blocks.pop_front();
            self.gone = 0;
        }
        Some(first)
    }
}

impl Outcome {
    /// What it takes in a record.
    const BYTES: usize = 3 * 8 + 16 + 4;

    pub(super) fn write(&self, w: &mut Writer) {
        // In one piece: every task leaves one.
        let mut bytes = [0; Outcome::BYTES];
        bytes[..8].copy_from_slice(&self.seq.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.task.bits().to_le_bytes());
        bytes[24..32].copy_from_slice(&self.fence.0.to_le_bytes());
        bytes[32..34].copy_from_slice(&[self.last as u8, self.state as u8]);
        bytes[34..36].copy_from_slice(&self.attempts.to_le_bytes());
        bytes[36..].copy_from_slice(&self.until.0.to_le_bytes());
        w.0.extend_from_slice(&bytes);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Read<Outcome> {
        Ok(Outcome {
            seq: r.u64()?,
            task: r.task()?,
            fence: Fence(r.u64()?),
            last: Last::from_number(r.u8()?).ok_or("an outcome is unknown")?,
            state: StateKind::from_number(r.u8()?).ok_or("a state is unknown")?,
            attempts: r.u16()?,
            until: Elapsed(r.u64()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use model::{ShardId, WallTime};

    use super::*;

    fn outcome(seq: u64, task: u64) -> Outcome {
        let task = TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1_000 + task), task);
        Outcome {
            seq,
            task,
            fence: Fence(seq),
            last: Last::Acked,
            state: StateKind::Done,
            attempts: 0,
            until: Elapsed(seq),
        }
    }

    #[test]
    fn the_newest_outcome_of_a_task_is_found_until_it_goes() {
        // Also where the six are parted by the end of a block.
        for before in [0, BLOCK as u64 - 3] {
            let mut outcomes = Outcomes::new();
            (1..=before).for_each(|n| outcomes.push(outcome(n, 100 + n)));
            let tasks = [1, 2, 1, 3, 4, 2].into_iter();
            let all: Vec<Outcome> = tasks.zip(before + 1..).map(|(task, n)| outcome(n, task)).collect();
            let found = |outcomes: &Outcomes, n: usize| outcomes.find(all[n].task).map(|it| it.seq - before);
            all.iter().for_each(|outcome| outcomes.push(*outcome));
            (1..=before).for_each(|n| assert_eq!(outcomes.pop().unwrap().seq, n));
            assert_eq!([0, 1, 3, 4].map(|n| found(&outcomes, n)), [Some(3), Some(6), Some(4), Some(5)]);
            assert_eq!(outcomes.pop(), Some(all[0]));
            assert_eq!(outcomes.pop(), Some(all[1]));
            assert_eq!(found(&outcomes, 0), Some(3), "an older one of that task went");
            assert_eq!(outcomes.pop(), Some(all[2]));
            assert_eq!([0, 1].map(|n| found(&outcomes, n)), [None, Some(6)]);
            assert_eq!((outcomes.first(), outcomes.last()), (Some(&all[3]), Some(&all[5])));
            assert_eq!(std::iter::from_fn(|| outcomes.pop()).count(), 3);
            assert_eq!((outcomes.len(), outcomes.blocks.len()), (0, 0));
            assert_eq!((outcomes.first(), outcomes.last(), found(&outcomes, 5)), (None, None, None));
        }
    }

    #[test]
    fn what_has_gone_takes_little_more_than_what_is_left() {
        for kept in [1, 600] {
            let mut outcomes = Outcomes::new();
            for n in 1..=20_000 {
                outcomes.push(outcome(n, n));
                if n > kept {
                    outcomes.pop();
                }
                let held: usize = outcomes.blocks.iter().map(|block| block.outcomes.len()).sum();
                assert!(held <= 3 * kept.max(GONE_KEPT as u64) as usize + 2 && outcomes.blocks.len() <= 2);
            }
            assert_eq!(outcomes.len() as u64, kept);
        }
    }

    #[test]
    fn many_are_found_and_few_blocks_are_kept() {
        let (mut outcomes, count, kept) = (Outcomes::new(), 100_000, 20_000);
        for n in 1..=count {
            outcomes.push(outcome(n, n));
            if n > kept {
                outcomes.pop();
            }
        }
        assert_eq!(outcomes.len() as u64, kept);
        assert!(outcomes.blocks.len() <= kept as usize / BLOCK + 2);
        for n in 1..=count {
            let found = outcomes.find(outcome(n, n).task).map(|found| found.seq);
            assert_eq!(found, (n > count - kept).then_some(n));
        }
    }
}
