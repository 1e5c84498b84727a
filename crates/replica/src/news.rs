//! What came of tasks since the last cut, by task.
//!
//! Every effect of every entry comes through here, on every member: a task is looked up once for the effects that
//! follow each other, in a table small enough for the processor's caches, and the memory of tasks that have
//! gone is used again. Next: `keep`, which says what each effect means.

use bytes::Bytes;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use model::TaskId;
use model::limits::HISTORY_MAX;
use state_machine::view::HistoryLine;

/// Lines of a history whose memory the next task gets; more than most tasks ever have.
const LINES_KEPT_MAX: usize = 8;

/// What came of one task since the last cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct News {
    /// It entered since the last cut: the checkpoint has nothing of it.
    pub(crate) fresh: bool,
    /// It went: the checkpoint forgets what it has of it. If it is fresh too, it came again after that.
    pub(crate) forgotten: bool,
    pub(crate) envelope: Option<Bytes>,
    pub(crate) output: Option<Bytes>,
    pub(crate) detail: Option<String>,
    /// Oldest first; at least the last [`HISTORY_MAX`].
    pub(crate) history: Vec<HistoryLine>,
}

impl News {
    pub(crate) fn happened(&mut self, line: HistoryLine) {
        // Twice the limit before anything moves: cheap on average.
        if self.history.len() >= 2 * HISTORY_MAX {
            self.history.drain(..HISTORY_MAX);
        }
        // Most tasks of a deep queue have one line and wait.
        if self.history.is_empty() {
            self.history.reserve_exact(1);
        }
        self.history.push(line);
    }

    /// It went and did not come again.
    pub(crate) fn is_gone(&self) -> bool {
        self.forgotten && !self.fresh
    }

    /// It went, and nobody else gets its slot before the cut: it keeps no room.
    fn gone() -> News {
        News { forgotten: true, ..News::default() }
    }

    /// As if nothing had come of it, with room for the history of another.
    fn clear(&mut self) {
        let mut history = std::mem::take(&mut self.history);
        history.clear();
        history.shrink_to(LINES_KEPT_MAX);
        *self = News { history, ..News::default() };
    }
}

/// News by task.
#[derive(Debug, Default)]
pub(crate) struct NewsTable {
    by_task: HashMap<TaskId, u32>,
    slots: Vec<News>,
    /// Slots that no task has.
    free: Vec<u32>,
    /// The task of the last effect, which is likely to be that of the next.
    last: Option<(TaskId, u32)>,
}

impl NewsTable {
    /// Room for the news of so many tasks.
    pub(crate) fn with_capacity(tasks: usize) -> NewsTable {
        NewsTable {
            by_task: HashMap::with_capacity(tasks),
            slots: Vec::with_capacity(tasks),
            ..NewsTable::default()
        }
    }

    /// How many tasks have news.
    pub(crate) fn len(&self) -> usize {
        self.by_task.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_task.is_empty()
    }

    pub(crate) fn get(&self, task: TaskId) -> Option<&News> {
        let slot = match self.last {
            Some((last, slot)) if last == task => slot,
            _ => *self.by_task.get(&task)?,
        };
        Some(&self.slots[slot as usize])
    }

    /// The news of a task, none at first.
    pub(crate) fn of(&mut self, task: TaskId) -> &mut News {
        let slot = match self.last {
            Some((last, slot)) if last == task => slot,
            _ => self.slot(task),
        };
        self.last = Some((task, slot));
        &mut self.slots[slot as usize]
    }

    fn slot(&mut self, task: TaskId) -> u32 {
        match self.by_task.entry(task) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => *new.insert(unused(&mut self.free, &mut self.slots)),
        }
    }

    /// A task went. Of one that came and went since the last cut there is no news at all, of any other just this.
    pub(crate) fn forget(&mut self, task: TaskId) {
        self.last = None;
        match self.by_task.entry(task) {
            Entry::Occupied(known) => {
                let news = &mut self.slots[*known.get() as usize];
                if news.fresh && !news.forgotten {
                    news.clear();
                    self.free.push(known.remove());
                } else {
                    *news = News::gone();
                }
            }
            Entry::Vacant(new) => {
                let slot = *new.insert(unused(&mut self.free, &mut self.slots));
                self.slots[slot as usize] = News::gone();
            }
        }
    }

    /// All of them, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TaskId, &News)> {
        self.by_task.iter().map(|(task, slot)| (*task, &self.slots[*slot as usize]))
    }
}

/// A slot that no task has.
fn unused(free: &mut Vec<u32>, slots: &mut Vec<News>) -> u32 {
    free.pop().unwrap_or_else(|| {
        slots.push(News::default());
        (slots.len() - 1) as u32
    })
}

#[cfg(test)]
mod tests {
    use model::{Event, ShardId, WallTime};

    use super::*;

    fn task(n: u64) -> TaskId {
        TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1_000 + n), n)
    }

    fn line(index: u64) -> HistoryLine {
        HistoryLine { at: WallTime::from_millis(index), index, event: Event::BecameReady }
    }

    #[test]
    fn a_task_gets_nothing_of_another_that_went() {
        let mut table = NewsTable::default();
        let news = table.of(task(1));
        (news.fresh, news.output) = (true, Some(Bytes::from_static(b"out")));
        (0..100).for_each(|index| news.happened(line(index)));
        table.forget(task(1));
        assert!(table.get(task(1)).is_none() && table.is_empty());
        let news = table.of(task(2));
        assert!(!news.fresh && news.output.is_none() && news.history.is_empty());
        assert!(news.history.capacity() <= LINES_KEPT_MAX);
        assert!(table.get(task(1)).is_none(), "the one before is not found under its slot");
        assert_eq!((table.len(), table.slots.len()), (1, 1));
    }

    #[test]
    fn each_task_has_its_own_news_however_they_follow_each_other() {
        let mut table = NewsTable::with_capacity(2);
        for (index, n) in [1, 2, 1, 1, 3, 2].into_iter().enumerate() {
            table.of(task(n)).happened(line(index as u64));
        }
        table.forget(task(3));
        table.of(task(4)).fresh = true;
        table.forget(task(4));
        let mut all: Vec<_> =
            table.iter().map(|(task, news)| (task, news.history.len(), news.forgotten)).collect();
        all.sort();
        assert_eq!(all, [(task(1), 3, false), (task(2), 2, false), (task(3), 0, true)]);
        assert_eq!(table.get(task(2)).unwrap().history, [line(1), line(5)]);
    }
}
