//! What came of tasks since the last cut.
//!
//! Every effect of every entry comes through here, on every member: news are found by where the machine has their task, without
//! a search, and the memory of tasks that have gone is used again. Next: `keep`, which says what each effect means.

use bytes::Bytes;
use model::TaskId;
use model::limits::HISTORY_MAX;
use state_machine::Slot;
use state_machine::view::HistoryLine;

/// Lines of a history whose memory the next task gets; more than most tasks ever have.
const LINES_KEPT_MAX: usize = 8;

/// About what a row takes beside its values: key, seal, lengths.
const ROW_BYTES: usize = 48;
/// About what a line of history takes in a row.
const LINE_BYTES: usize = 48;
/// The word that a task went takes about so much less memory than the news of one that is there.
pub(crate) const GONE_PER_TASK: usize = 4;

/// What came of one task since the last cut.
#[derive(Clone, Debug)]
pub(crate) struct News {
    /// Whose.
    pub(crate) task: TaskId,
    /// It entered since the last cut: the checkpoint has nothing of it, or something of an earlier life under the same id.
    pub(crate) fresh: bool,
    /// It went: the checkpoint forgets what it has of it.
    pub(crate) gone: bool,
    pub(crate) envelope: Option<Bytes>,
    pub(crate) output: Option<Bytes>,
    pub(crate) detail: Option<Box<str>>,
    /// Oldest first; at least the last [`HISTORY_MAX`].
    pub(crate) history: Vec<HistoryLine>,
}

impl News {
    /// Nothing came of it yet. Its history takes the room of another's.
    fn new(task: TaskId, history: Vec<HistoryLine>) -> News {
        debug_assert!(history.is_empty(), "another's history is not its own");
        News { task, fresh: false, gone: false, envelope: None, output: None, detail: None, history }
    }

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

    /// About what it takes in a checkpoint.
    fn bytes(&self) -> usize {
        let bytes = |some: &Option<Bytes>| some.as_ref().map_or(0, Bytes::len);
        let detail = self.detail.as_ref().map_or(0, |detail| detail.len());
        ROW_BYTES + bytes(&self.envelope) + bytes(&self.output) + detail + self.history.len() * LINE_BYTES
    }

    /// The room of its history, for another.
    fn take_room(&mut self) -> Vec<HistoryLine> {
        let mut history = std::mem::take(&mut self.history);
        history.clear();
        history.shrink_to(LINES_KEPT_MAX);
        history
    }
}

/// News by task. Of a task that went and came again there are two: that it went, and what came of it since.
#[derive(Debug, Default)]
pub(crate) struct NewsTable {
    places: Places,
    news: Vec<News>,
    /// Places that no task has.
    free: Vec<u32>,
    /// How many say only that a task went.
    gone: usize,
}

impl NewsTable {
    /// Room for the news of so many tasks.
    pub(crate) fn with_capacity(tasks: usize) -> NewsTable {
        NewsTable { news: Vec::with_capacity(tasks), ..NewsTable::default() }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.news.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many tasks that are there would take as much memory.
    pub(crate) fn weight(&self) -> usize {
        self.len() - self.gone + self.gone / GONE_PER_TASK
    }

    /// The news of a task that lies in this slot, if there are any.
    pub(crate) fn get(&self, slot: Slot, task: TaskId) -> Option<&News> {
        // The slot may have been another's when these news came.
        self.places.get(slot).map(|place| &self.news[place as usize]).filter(|news| news.task == task)
    }

    /// Where in the log the last thing happened to the task in this slot; 0 if there is no news of it.
    pub(crate) fn last_index(&self, slot: Slot) -> u64 {
        let news = self.places.get(slot).map(|place| &self.news[place as usize]);
        news.and_then(|news| news.history.last()).map_or(0, |line| line.index)
    }

    /// The news of a task that lies in this slot, none at first.
    pub(crate) fn of(&mut self, slot: Slot, task: TaskId) -> &mut News {
        let place = self.places.get(slot).unwrap_or_else(|| self.begin(slot, task));
        let news = &mut self.news[place as usize];
        assert_eq!(news.task, task, "the task that had slot {slot} before has not gone");
        news
    }

    fn begin(&mut self, slot: Slot, task: TaskId) -> u32 {
        let place = match self.free.pop() {
            Some(place) => {
                let room = std::mem::take(&mut self.news[place as usize].history);
                self.news[place as usize] = News::new(task, room);
                place
            }
            None => {
                self.news.push(News::new(task, Vec::new()));
                (self.news.len() - 1) as u32
            }
        };
        self.places.set(slot, place);
        place
    }

    /// A task went. Of one that came and went since the last cut there is no news at all, of any other just this.
    pub(crate) fn forget(&mut self, slot: Slot, task: TaskId) {
        let news = self.of(slot, task);
        // Freed now and not with its place: what it holds is much, and its place may wait long for another.
        (news.envelope, news.output, news.detail) = (None, None, None);
        if news.fresh {
            news.history = news.take_room();
            self.free.extend(self.places.get(slot));
        } else {
            // Nobody else gets this place before the cut, so its room goes.
            (news.gone, news.history) = (true, Vec::new());
            self.gone += 1;
        }
        self.places.clear(slot);
    }

    /// About what they take in a checkpoint.
    pub(crate) fn bytes(&self) -> usize {
        self.news.iter().map(News::bytes).sum()
    }

    /// All of them, by task; that it went comes before what came of it since.
    pub(crate) fn sorted(&self) -> Vec<&News> {
        let mut is_free = vec![false; self.news.len()];
        self.free.iter().for_each(|place| is_free[*place as usize] = true);
        let used = (0..self.news.len()).filter(|place| !is_free[*place]);
        // The ids themselves: looking each up for every comparison would wait for memory.
        let mut all: Vec<(TaskId, bool, u32)> =
            used.map(|place| (self.news[place].task, !self.news[place].gone, place as u32)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, _, place)| &self.news[place as usize]).collect()
    }
}

/// Slots on one page of [`Places`].
const PAGE: usize = 256;
/// In the place of none.
const NOWHERE: u32 = u32::MAX;

/// For each slot the place of its news. In pages, of which there are only those that have some: costs little when few of many
/// tasks have news.
#[derive(Debug, Default)]
struct Places {
    pages: Vec<Option<Box<[u32; PAGE]>>>,
}

impl Places {
    fn get(&self, slot: Slot) -> Option<u32> {
        let page = self.pages.get(slot as usize / PAGE)?.as_ref()?;
        Some(page[slot as usize % PAGE]).filter(|place| *place != NOWHERE)
    }

    fn set(&mut self, slot: Slot, place: u32) {
        let page = slot as usize / PAGE;
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new([NOWHERE; PAGE]));
        page[slot as usize % PAGE] = place;
    }

    fn clear(&mut self, slot: Slot) {
        if let Some(Some(page)) = self.pages.get_mut(slot as usize / PAGE) {
            page[slot as usize % PAGE] = NOWHERE;
        }
    }
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
        let news = table.of(7, task(1));
        (news.fresh, news.output) = (true, Some(Bytes::from_static(b"out")));
        (0..100).for_each(|index| news.happened(line(index)));
        table.forget(7, task(1));
        assert!(table.get(7, task(1)).is_none() && table.is_empty() && table.sorted().is_empty());
        let news = table.of(7, task(2));
        assert!(!news.fresh && news.output.is_none() && news.history.is_empty());
        assert!(news.history.capacity() <= LINES_KEPT_MAX);
        assert!(table.get(7, task(1)).is_none(), "the one before is not found in its slot");
        assert_eq!((table.len(), table.news.len()), (1, 1));
    }

    #[test]
    fn each_task_has_its_own_news_however_they_follow_each_other() {
        let mut table = NewsTable::with_capacity(2);
        for (index, n) in [1, 2, 1, 1, 3, 2].into_iter().enumerate() {
            table.of(n * 5_000, task(n.into())).happened(line(index as u64));
        }
        table.forget(15_000, task(3));
        table.of(15_000, task(4)).fresh = true;
        table.forget(15_000, task(4));
        let all: Vec<_> =
            table.sorted().iter().map(|news| (news.task, news.history.len(), news.gone)).collect();
        assert_eq!(all, [(task(1), 3, false), (task(2), 2, false), (task(3), 0, true)]);
        assert_eq!((table.len(), table.weight()), (3, 2), "that a task went weighs little");
        assert_eq!(table.get(10_000, task(2)).unwrap().history, [line(1), line(5)]);
        assert!(table.get(10_000, task(1)).is_none() && table.get(9_999, task(2)).is_none());
        assert!(table.get(Slot::MAX, task(1)).is_none());
    }

    #[test]
    fn a_task_that_came_again_has_news_of_its_own() {
        let mut table = NewsTable::default();
        table.of(1, task(2)).fresh = true;
        table.forget(3, task(9));
        // In a place that came before the word that it went.
        table.forget(1, task(2));
        table.of(4, task(9)).fresh = true;
        let all: Vec<_> = table.sorted().iter().map(|news| (news.gone, news.fresh)).collect();
        assert_eq!(all, [(true, false), (false, true)]);
        assert!(table.get(4, task(9)).is_some_and(|news| news.fresh));
        assert_eq!(table.len(), 2);
    }
}
