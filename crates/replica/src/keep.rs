//! What is kept of tasks beside their executions: envelopes, outputs, details, history.
//!
//! What came since the last checkpoint is in memory, whole. What a checkpoint holds is on disk; of that,
//! only envelopes of waiting tasks stay in memory, as far as their cache has room. A task that came and
//! went between two checkpoints never reaches the disk. Next: `news`, the table of what came, and `checkpoint`, which
//! empties this.

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use model::{Position, TaskId};
use state_machine::view::HistoryLine;
use state_machine::{Effect, Slot};

use crate::news::{News, NewsTable};

/// What a cached envelope costs beside its bytes: key, handle, the allocator's rounding.
const CACHED_OVERHEAD_BYTES: usize = 120;

/// Whether a task's envelope will be wanted again: nobody holds the task, and it has not ended.
fn is_waiting(news: &News) -> bool {
    news.history.last().is_none_or(|line| line.event.state().is_waiting())
}

/// What is on its way to the disk.
pub(crate) type Writing = Arc<NewsTable>;

/// All that is kept in memory.
pub(crate) struct Keep {
    news: NewsTable,
    writing: Writing,
    cache: HashMap<TaskId, Bytes>,
    cache_bytes: usize,
    cache_bytes_max: usize,
}

impl Keep {
    pub(crate) fn new(cache_bytes_max: usize) -> Keep {
        Keep {
            news: NewsTable::default(),
            writing: Writing::default(),
            cache: HashMap::new(),
            cache_bytes: 0,
            cache_bytes_max,
        }
    }

    /// Looks at the news of tasks in these slots, so that they are in the processor's caches when more comes.
    pub(crate) fn foresee(&self, slots: &[Slot]) {
        let sum = slots.iter().fold(0, |sum, slot| sum ^ self.news.last_index(*slot));
        std::hint::black_box(sum);
    }

    /// Does what an effect on the task in this slot asks of every replica. What happened is given back, for others.
    pub(crate) fn take(&mut self, at: Position, slot: Slot, effect: Effect) -> Option<Effect> {
        match effect {
            Effect::Keep { task, envelope } => {
                let news = self.news.of(slot, task);
                news.fresh = true;
                news.envelope = Some(envelope);
            }
            Effect::Output { task, output } => self.news.of(slot, task).output = Some(output),
            Effect::Detail { task, detail } => {
                self.news.of(slot, task).detail = Some(detail.into_boxed_str());
            }
            Effect::Happened { task, ref event, .. } => {
                let line = HistoryLine { at: at.wall, index: at.index, event: event.clone() };
                self.news.of(slot, task).happened(line);
                // A claim is no end, and its answer wants the envelope still.
                if event.state().is_ended() {
                    self.uncache(task);
                }
                return Some(effect);
            }
            Effect::Forget { task } => {
                self.uncache(task);
                self.news.forget(slot, task);
            }
            Effect::Ready { .. } | Effect::Outbox { .. } => return Some(effect),
        }
        None
    }

    /// The envelope of the task in this slot, if it is in memory.
    pub(crate) fn envelope(&self, slot: Slot, task: TaskId) -> Option<Bytes> {
        let fresh = self.news.get(slot, task).and_then(|news| news.envelope.as_ref());
        let written = || self.writing.get(slot, task).and_then(|news| news.envelope.as_ref());
        fresh.or_else(written).or_else(|| self.cache.get(&task)).cloned()
    }

    /// A worker has the envelope now: the cache is for those that wait.
    pub(crate) fn claimed(&mut self, task: TaskId) {
        self.uncache(task);
    }

    /// What came of the task in this slot that is not on disk yet: on its way there, and after that.
    pub(crate) fn news(&self, slot: Slot, task: TaskId) -> [Option<News>; 2] {
        [self.writing.get(slot, task).cloned(), self.news.get(slot, task).cloned()]
    }

    /// How many tasks have news.
    pub(crate) fn changed(&self) -> usize {
        self.news.len()
    }

    /// What their news take of memory, in tasks that are there.
    pub(crate) fn weight(&self) -> usize {
        self.news.weight()
    }

    /// Begins a checkpoint: what came until now goes to the disk, what comes from now on goes into `empty`.
    pub(crate) fn cut(&mut self, empty: NewsTable) -> Writing {
        assert!(self.writing.is_empty(), "a checkpoint begins when the one before has ended");
        self.writing = Arc::new(std::mem::replace(&mut self.news, empty));
        self.writing.clone()
    }

    /// Gives up the room for news when there are none. The caller drops it, outside the lock.
    pub(crate) fn rest(&mut self) -> NewsTable {
        if self.news.is_empty() { std::mem::take(&mut self.news) } else { NewsTable::default() }
    }

    /// Takes envelopes that are on disk now into the cache, as far as it has room. When it is full the
    /// newcomers stay out: the oldest tasks are the next to be claimed. `slot` says where a task is, if it has not gone.
    pub(crate) fn cache(&mut self, envelopes: Vec<(TaskId, Bytes)>, slot: impl Fn(TaskId) -> Option<Slot>) {
        for (task, envelope) in envelopes {
            let bytes = envelope.len() + CACHED_OVERHEAD_BYTES;
            if bytes > self.room() {
                continue;
            }
            // What happened since the cut counts: no use in an envelope of a task that went, or one of an earlier life.
            let Some(slot) = slot(task) else { continue };
            if self.news.get(slot, task).is_some_and(|news| news.fresh || !is_waiting(news)) {
                continue;
            }
            if self.cache.insert(task, envelope).is_none() {
                self.cache_bytes += bytes;
            }
        }
    }

    /// Bytes that the cache has room for.
    pub(crate) fn room(&self) -> usize {
        self.cache_bytes_max - self.cache_bytes
    }

    /// Ends a checkpoint. The caller drops what is returned, outside the lock.
    pub(crate) fn written(&mut self) -> Writing {
        std::mem::take(&mut self.writing)
    }

    /// Bytes of the envelopes in the cache.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.cache_bytes
    }

    fn uncache(&mut self, task: TaskId) {
        // Under load most tasks are claimed before they are on the disk.
        if self.cache.is_empty() {
            return;
        }
        if let Some(envelope) = self.cache.remove(&task) {
            self.cache_bytes -= envelope.len() + CACHED_OVERHEAD_BYTES;
        }
    }
}

/// The envelopes of a written checkpoint, by task, that are worth caching, oldest first, as many as there is room for.
/// Each in memory of its own: as a slice of its log entry it would hold on to the whole entry.
pub(crate) fn cacheable(writing: &[&News], mut room: usize) -> Vec<(TaskId, Bytes)> {
    let waiting = writing.iter().filter(|news| !news.gone && is_waiting(news));
    let envelopes = waiting.filter_map(|news| Some((news.task, news.envelope.as_ref()?)));
    let fitting = envelopes.take_while(|(_, envelope)| {
        let bytes = envelope.len() + CACHED_OVERHEAD_BYTES;
        let fits = bytes <= room;
        room = room.saturating_sub(bytes);
        fits
    });
    fitting.map(|(task, envelope)| (task, Bytes::copy_from_slice(envelope))).collect()
}

#[cfg(test)]
mod tests {
    use model::limits::HISTORY_MAX;
    use model::{Elapsed, Event, QueueName, ShardId, StateKind, WallTime, WorkerName};

    use super::*;

    fn task(n: u64) -> TaskId {
        TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1_000 + n), n)
    }

    fn at(index: u64) -> Position {
        Position { index, n: 0, elapsed: Elapsed(0), wall: WallTime::from_millis(index) }
    }

    /// Where a task of these tests lies: by its number.
    fn slot(task: TaskId) -> Slot {
        (task.bits() & 0xffff) as Slot
    }

    impl Keep {
        fn took(&mut self, at: Position, effect: Effect) {
            let (Effect::Keep { task, .. } | Effect::Happened { task, .. } | Effect::Forget { task }) =
                &effect
            else {
                unreachable!("no test has another")
            };
            self.take(at, slot(*task), effect);
        }
    }

    fn keep(task: TaskId) -> Effect {
        Effect::Keep { task, envelope: Bytes::from_static(b"envelope") }
    }

    fn happened(task: TaskId, event: Event) -> Effect {
        Effect::Happened { task, queue: QueueName::new("mail").unwrap(), event }
    }

    #[test]
    fn a_task_that_came_and_went_between_two_cuts_leaves_nothing() {
        let mut kept = Keep::new(1_000);
        kept.took(at(1), keep(task(1)));
        kept.took(at(2), Effect::Forget { task: task(1) });
        assert!(kept.cut(NewsTable::default()).is_empty());
    }

    #[test]
    fn a_task_that_went_after_its_cut_is_forgotten_by_the_next() {
        let mut kept = Keep::new(1_000);
        kept.took(at(1), keep(task(1)));
        assert!(kept.cut(NewsTable::default()).get(slot(task(1)), task(1)).unwrap().fresh);
        kept.took(at(2), Effect::Forget { task: task(1) });
        kept.written();
        assert!(kept.cut(NewsTable::default()).sorted()[0].gone);
    }

    #[test]
    fn a_task_that_went_and_came_again_is_there_and_its_old_self_is_not() {
        let mut kept = Keep::new(1_000);
        kept.took(at(1), keep(task(1)));
        kept.cut(NewsTable::default());
        kept.written();
        kept.took(at(2), Effect::Forget { task: task(1) });
        kept.took(at(3), keep(task(1)));
        assert!(kept.envelope(slot(task(1)), task(1)).is_some());
        let [_, news] = kept.news(slot(task(1)), task(1));
        assert!(news.unwrap().fresh);
        kept.took(at(4), Effect::Forget { task: task(1) });
        let writing = kept.cut(NewsTable::default());
        let all = writing.sorted();
        assert!(all.len() == 1 && all[0].gone);
    }

    #[test]
    fn the_cache_lets_go_of_a_task_that_ends() {
        let mut kept = Keep::new(1_000);
        kept.took(at(1), keep(task(1)));
        let writing = kept.cut(NewsTable::default());
        kept.cache(cacheable(&writing.sorted(), usize::MAX), |task| Some(slot(task)));
        kept.written();
        assert!(kept.cached_bytes() > 0);
        kept.took(at(2), happened(task(1), Event::BecameReady));
        assert!(kept.cached_bytes() > 0);
        let worker = WorkerName::new("w").unwrap();
        kept.took(at(3), happened(task(1), Event::Acked { worker }));
        assert_eq!(kept.cached_bytes(), 0);
    }

    #[test]
    fn an_envelope_stays_in_memory_until_it_is_on_disk() {
        let mut kept = Keep::new(0);
        kept.took(at(1), keep(task(1)));
        assert!(kept.envelope(slot(task(1)), task(1)).is_some());
        kept.cut(NewsTable::default());
        assert!(kept.envelope(slot(task(1)), task(1)).is_some());
        kept.written();
        assert!(kept.envelope(slot(task(1)), task(1)).is_none());
    }

    #[test]
    fn the_cache_holds_waiting_tasks_and_keeps_its_bound() {
        let room_for_two = 2 * (8 + CACHED_OVERHEAD_BYTES);
        let mut kept = Keep::new(room_for_two);
        for n in 1..=4 {
            kept.took(at(n), keep(task(n)));
        }
        let worker = WorkerName::new("w").unwrap();
        let claimed = Event::Claimed { worker, attempt: 1, fence: model::Fence(1) };
        kept.took(at(5), happened(task(1), claimed));
        let writing = kept.cut(NewsTable::default());
        assert_eq!(cacheable(&writing.sorted(), usize::MAX).len(), 3);
        assert_eq!(cacheable(&writing.sorted(), kept.room()).len(), 2);
        kept.cache(cacheable(&writing.sorted(), usize::MAX), |task| Some(slot(task)));
        kept.written();
        assert_eq!(kept.cached_bytes(), room_for_two);
        assert!(kept.envelope(slot(task(1)), task(1)).is_none());
        let cached = (2..=4)
            .filter(|&n| kept.envelope(slot(task(n)), task(n)).is_some())
            .map(task)
            .collect::<Vec<_>>();
        kept.claimed(cached[0]);
        kept.took(at(6), Effect::Forget { task: cached[1] });
        assert_eq!(kept.cached_bytes(), 0);
    }

    #[test]
    fn history_is_bounded_but_never_below_its_limit() {
        let mut kept = Keep::new(0);
        kept.took(at(1), keep(task(1)));
        for index in 0..1_000 {
            kept.took(at(index), happened(task(1), Event::Enqueued { state: StateKind::Ready }));
        }
        let [_, news] = kept.news(slot(task(1)), task(1));
        let history = news.unwrap().history;
        assert!((HISTORY_MAX..=2 * HISTORY_MAX).contains(&history.len()));
        assert_eq!(history.last().unwrap().index, 999);
    }
}
