//! What happened lately, for whoever watches: a bounded ring, read by any number of streams.
//!
//! A stream that falls behind the ring is told so by one event and goes on with the oldest that is
//! left; a slow watcher never slows a shard. Shards' notices are kept as they came, all of an entry together, and
//! made into events by whoever reads them: most of the time nobody does.

use std::collections::VecDeque;
use std::sync::Arc;

use model::{Event, Millis, QueueName, ShardId, StateKind, TaskId, WallTime, WorkerName};
use parking_lot::Mutex;
use replica::Notice;
use state_machine::Effect;
use tokio::sync::watch;

use crate::ends::state_after;

/// How many events the ring keeps, and what is left of those that came with the oldest of them.
const RING_MAX: u64 = 16_384;
/// Effects of an entry that are kept for each of its events, as they came.
const SPARE_MAX: u64 = 2;
/// How many events a stream takes from the ring at once.
const STREAM_STEP: usize = 256;
/// Room for the events of one millisecond between two starts of a node.
const ID_BITS_PER_MILLI: u32 = 16;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    /// Grows by one with each event; survives a restart as "larger than all before".
    pub id: u64,
    /// When.
    pub at: WallTime,
    /// What: a word of a task's history, or `worker_lost`, `worker_left`, `worker_registered`,
    /// `deadline_passed`, `queue_changed`, `queue_deleted`, `replica_diverged`, `events_missed`.
    pub kind: &'static str,
    /// Where in the log.
    pub index: Option<(ShardId, u64)>,
    /// Which task.
    pub task: Option<TaskId>,
    /// Its queue.
    pub queue: Option<QueueName>,
    /// Which worker.
    pub worker: Option<WorkerName>,
    /// What the task is now.
    pub state: Option<StateKind>,
    /// Why.
    pub reason: Option<&'static str>,
    /// How many tasks were freed.
    pub freed: Option<u64>,
    /// How long the worker had not been heard.
    pub since_last_beat: Option<Millis>,
}

impl NodeEvent {
    /// An event with nothing but its kind; its id is set when it is published.
    pub(crate) fn new(at: WallTime, kind: &'static str) -> NodeEvent {
        NodeEvent {
            id: 0,
            at,
            kind,
            index: None,
            task: None,
            queue: None,
            worker: None,
            state: None,
            reason: None,
            freed: None,
            since_last_beat: None,
        }
    }
}

/// What a task's event says of its worker, and why.
fn event_of(shard: ShardId, notice: &Notice, effect: &Effect) -> Option<NodeEvent> {
    let Effect::Happened { task, queue, event } = effect else { return None };
    let (worker, reason) = match event {
        Event::Claimed { worker, .. } | Event::Acked { worker } | Event::Failed { worker, .. } => {
            (Some(worker.clone()), None)
        }
        Event::Freed { worker, reason, .. } => (Some(worker.clone()), Some(reason.as_str())),
        Event::Enqueued { .. }
        | Event::BecameReady
        | Event::BecameDelayed
        | Event::CancelRequested
        | Event::Ended { .. }
        | Event::Requeued { .. } => (None, None),
    };
    Some(NodeEvent {
        index: Some((shard, notice.index)),
        task: Some(*task),
        queue: Some(queue.clone()),
        worker,
        state: state_after(event),
        reason,
        ..NodeEvent::new(notice.wall, event.as_str())
    })
}

/// Events that came together.
struct Batch {
    /// The id of the first, and how many.
    first: u64,
    count: u64,
    what: What,
}

enum What {
    /// What happened to tasks by one entry of a shard, and what else it brought.
    Entry(ShardId, Arc<Notice>),
    Events(Vec<NodeEvent>),
}

impl Batch {
    /// Its events from the one with this id on.
    fn from(&self, id: u64) -> impl Iterator<Item = NodeEvent> {
        let skip = id.saturating_sub(self.first);
        let (entry, events) = match &self.what {
            What::Entry(shard, notice) => {
                let happened =
                    notice.effects.iter().filter(|effect| matches!(effect, Effect::Happened { .. }));
                let events = happened.skip(skip as usize);
                (Some(events.filter_map(|effect| event_of(*shard, notice, effect))), None)
            }
            What::Events(events) => (None, Some(events.iter().skip(skip as usize).cloned())),
        };
        let all = entry.into_iter().flatten().chain(events.into_iter().flatten());
        all.zip(self.first + skip..).map(|(event, id)| NodeEvent { id, ..event })
    }
}

/// The ring.
#[derive(Clone)]
pub(crate) struct Events {
    inner: Arc<Inner>,
}

struct Inner {
    ring: Mutex<Ring>,
    /// The id of the last event, for those who wait for a newer one.
    last: watch::Sender<u64>,
}

struct Ring {
    batches: VecDeque<Batch>,
    /// The id of this node's first event.
    first: u64,
    /// The id of the next event.
    next: u64,
    closed: bool,
}

impl Events {
    /// An empty ring of a node that starts at `now`.
    pub(crate) fn new(now: WallTime) -> Events {
        let first = (now.millis() << ID_BITS_PER_MILLI) | 1;
        let ring = Ring { batches: VecDeque::new(), first, next: first, closed: false };
        let (last, _) = watch::channel(first - 1);
        Events { inner: Arc::new(Inner { ring: Mutex::new(ring), last }) }
    }

    /// Adds events, in this order.
    pub(crate) fn publish(&self, events: impl IntoIterator<Item = NodeEvent>) {
        let events: Vec<NodeEvent> = events.into_iter().collect();
        self.add(events.len() as u64, What::Events(events));
    }

    /// Adds what happened to tasks, so many of the effects of an entry.
    pub(crate) fn happened(&self, shard: ShardId, count: u64, notice: &Arc<Notice>) {
        // What no event has must not stay with those that are kept: other effects, and texts of any length.
        let has_text = |effect: &Effect| {
            matches!(effect, Effect::Happened { event: Event::Failed { .. } | Event::Ended { .. }, .. })
        };
        let effects = &notice.effects;
        let is_lean = effects.len() as u64 <= SPARE_MAX * count && !effects.iter().any(has_text);
        let what = match is_lean {
            true => What::Entry(shard, notice.clone()),
            false => {
                let events = effects.iter().filter_map(|effect| event_of(shard, notice, effect));
                What::Events(events.collect())
            }
        };
        self.add(count, what);
    }

    fn add(&self, count: u64, what: What) {
        if count == 0 {
            return;
        }
        let (last, gone) = {
            let mut ring = self.inner.ring.lock();
            let first = ring.next;
            ring.next += count;
            ring.batches.push_back(Batch { first, count, what });
            let next = ring.next;
            let is_over = |batch: &Batch| batch.first + batch.count + RING_MAX <= next;
            let over = ring.batches.iter().take_while(|batch| is_over(batch)).count();
            (next - 1, ring.batches.drain(..over).collect::<Vec<_>>())
        };
        // Not under the lock.
        drop(gone);
        self.inner.last.send_if_modified(|seen| std::mem::replace(seen, last) != last);
    }

    /// What follows the event `after`; without it, what happens from now on.
    pub(crate) fn stream(&self, after: Option<u64>) -> EventStream {
        let last = self.inner.last.subscribe();
        let next = self.inner.ring.lock().next;
        // An id from the future, of another node or made up: go on with what comes.
        let next = after.map_or(next, |after| after.saturating_add(1).min(next));
        EventStream { inner: self.inner.clone(), last, next, taken: VecDeque::new() }
    }

    /// How many events there were since the node started.
    pub(crate) fn count(&self) -> u64 {
        let ring = self.inner.ring.lock();
        ring.next - ring.first
    }

    /// Ends all streams.
    pub(crate) fn close(&self) {
        self.inner.ring.lock().closed = true;
        self.inner.last.send_modify(|_| {});
    }
}

/// Events as they come.
pub struct EventStream {
    inner: Arc<Inner>,
    last: watch::Receiver<u64>,
    next: u64,
    taken: VecDeque<NodeEvent>,
}

impl EventStream {
    /// The next event; nothing when the node stops.
    pub async fn next(&mut self) -> Option<NodeEvent> {
        loop {
            if let Some(event) = self.taken.pop_front() {
                return Some(event);
            }
            self.last.borrow_and_update();
            if self.take() {
                return None;
            }
            if self.taken.is_empty() && self.last.changed().await.is_err() {
                return None;
            }
        }
    }

    /// Takes what there is. Whether the ring is closed and read to its end.
    fn take(&mut self) -> bool {
        let ring = self.inner.ring.lock();
        let first = ring.batches.front().map_or(ring.next, |batch| batch.first);
        if self.next < first {
            let oldest = ring.batches.front().and_then(|batch| batch.from(first).next());
            let at = oldest.map_or_else(WallTime::default, |event| event.at);
            let mut missed = NodeEvent::new(at, "events_missed");
            missed.id = first - 1;
            self.taken.push_back(missed);
            self.next = first;
        }
        let from = ring.batches.partition_point(|batch| batch.first + batch.count <= self.next);
        let unread = ring.batches.iter().skip(from).flat_map(|batch| batch.from(self.next));
        self.taken.extend(unread.take(STREAM_STEP));
        if let Some(event) = self.taken.back() {
            self.next = event.id + 1;
        }
        ring.closed && self.taken.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use model::Failure;

    use super::*;

    fn event(kind: &'static str) -> NodeEvent {
        NodeEvent::new(WallTime::from_millis(1_000), kind)
    }

    #[tokio::test]
    async fn a_stream_goes_on_after_the_event_it_saw_last() {
        let events = Events::new(WallTime::from_millis(1_000));
        let mut first = events.stream(None);
        events.publish([event("enqueued"), event("claimed"), event("acked")]);
        let seen = first.next().await.unwrap();
        assert_eq!(seen.kind, "enqueued");
        let mut second = events.stream(Some(seen.id));
        assert_eq!(second.next().await.unwrap().kind, "claimed");
        assert_eq!(second.next().await.unwrap().kind, "acked");
        events.close();
        assert_eq!(second.next().await, None);
    }

    #[tokio::test]
    async fn a_stream_that_fell_behind_the_ring_is_told_so() {
        let events = Events::new(WallTime::from_millis(1_000));
        let mut stream = events.stream(None);
        (0..RING_MAX + 10).for_each(|_| events.publish([event("enqueued")]));
        let missed = stream.next().await.unwrap();
        assert_eq!(missed.kind, "events_missed");
        let next = stream.next().await.unwrap();
        assert_eq!((next.kind, next.id), ("enqueued", missed.id + 1));
        assert_eq!(events.count(), RING_MAX + 10, "those that left the ring count too");
    }

    #[tokio::test]
    async fn an_id_from_the_future_gets_what_comes() {
        let events = Events::new(WallTime::from_millis(1_000));
        events.publish([event("enqueued")]);
        let mut stream = events.stream(Some(u64::MAX));
        events.publish([event("acked")]);
        assert_eq!(stream.next().await.unwrap().kind, "acked");
    }

    #[tokio::test]
    async fn what_an_entry_did_to_tasks_is_told_in_order_among_the_rest() {
        let (shard, queue) = (ShardId::new(2).unwrap(), QueueName::new("mail").unwrap());
        let task = TaskId::new(shard, WallTime::from_millis(1_000), 7);
        let worker = WorkerName::new("w").unwrap();
        let notice = |effects| {
            Arc::new(Notice { index: 5, wall: WallTime::from_millis(2_000), is_leader: true, effects })
        };
        let happened = |event| Effect::Happened { task, queue: queue.clone(), event };
        let entry = notice(vec![
            happened(Event::Enqueued { state: StateKind::Ready }),
            Effect::Ready { queue: queue.clone() },
            happened(Event::Acked { worker: worker.clone() }),
        ]);
        let events = Events::new(WallTime::from_millis(1_000));
        let mut stream = events.stream(None);
        events.publish([event("worker_registered")]);
        events.happened(shard, 2, &entry);
        events.publish([event("worker_left")]);
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(stream.next().await.unwrap());
        }
        let kinds: Vec<_> = seen.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, ["worker_registered", "enqueued", "acked", "worker_left"]);
        assert!(seen.windows(2).all(|pair| pair[0].id + 1 == pair[1].id), "{seen:?}");
        let acked = &seen[2];
        assert_eq!(
            (acked.task, acked.index, acked.state),
            (Some(task), Some((shard, 5)), Some(StateKind::Done))
        );
        assert_eq!((&acked.worker, acked.at), (&Some(worker), WallTime::from_millis(2_000)));
        let mut second = events.stream(Some(seen[1].id));
        assert_eq!(second.next().await.unwrap(), seen[2], "in the middle of an entry");
        assert_eq!(events.count(), 4);
        // What has a text, or much beside its events, is kept another way and reads the same.
        let failed = Event::Failed {
            worker: seen[2].worker.clone().unwrap(),
            state: StateKind::Dead,
            failure: Box::new(Failure { error: "no".into(), retry_in: Millis(0) }),
        };
        let mut with_text = vec![Effect::Ready { queue: queue.clone() }; 5];
        with_text.push(happened(failed));
        events.happened(shard, 1, &notice(with_text));
        let failed = stream.next().await.unwrap();
        assert_eq!((failed.kind, failed.id, failed.state), ("failed", seen[3].id + 1, Some(StateKind::Dead)));
    }
}
