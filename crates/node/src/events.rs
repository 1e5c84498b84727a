//! What happened lately, for whoever watches: a bounded ring, read by any number of streams.
//!
//! A stream that falls behind the ring is told so by one event and goes on with the oldest that is
//! left; a slow watcher never slows a shard.

use std::collections::VecDeque;
use std::sync::Arc;

use model::{Millis, QueueName, ShardId, StateKind, TaskId, WallTime, WorkerName};
use parking_lot::Mutex;
use tokio::sync::watch;

/// How many events the ring keeps.
const RING_MAX: usize = 16_384;
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
    events: VecDeque<NodeEvent>,
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
        let ring = Ring { events: VecDeque::new(), first, next: first, closed: false };
        let (last, _) = watch::channel(first - 1);
        Events { inner: Arc::new(Inner { ring: Mutex::new(ring), last }) }
    }

    /// Adds events, in this order.
    pub(crate) fn publish(&self, events: impl IntoIterator<Item = NodeEvent>) {
        let last = {
            let mut ring = self.inner.ring.lock();
            for mut event in events {
                if ring.events.len() == RING_MAX {
                    ring.events.pop_front();
                }
                event.id = ring.next;
                ring.next += 1;
                ring.events.push_back(event);
            }
            ring.next - 1
        };
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
        let first = ring.events.front().map_or(ring.next, |event| event.id);
        if self.next < first {
            let mut missed = NodeEvent::new(
                ring.events.front().map_or_else(WallTime::default, |event| event.at),
                "events_missed",
            );
            missed.id = first - 1;
            self.taken.push_back(missed);
            self.next = first;
        }
        let from = (self.next - first) as usize;
        self.taken.extend(ring.events.iter().skip(from).take(STREAM_STEP).cloned());
        if let Some(event) = self.taken.back() {
            self.next = event.id + 1;
        }
        ring.closed && self.taken.is_empty()
    }
}

#[cfg(test)]
mod tests {
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
        events.publish((0..RING_MAX + 10).map(|_| event("enqueued")));
        let missed = stream.next().await.unwrap();
        assert_eq!(missed.kind, "events_missed");
        let next = stream.next().await.unwrap();
        assert_eq!((next.kind, next.id), ("enqueued", missed.id + 1));
        assert_eq!(events.count(), RING_MAX as u64 + 10, "those that left the ring count too");
    }

    #[tokio::test]
    async fn an_id_from_the_future_gets_what_comes() {
        let events = Events::new(WallTime::from_millis(1_000));
        events.publish([event("enqueued")]);
        let mut stream = events.stream(Some(u64::MAX));
        events.publish([event("acked")]);
        assert_eq!(stream.next().await.unwrap().kind, "acked");
    }
}
