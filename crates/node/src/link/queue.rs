//! What waits to be written on one connection: bounded in bytes, in two lanes.
//!
//! Urgent frames keep their order among themselves; between two looks at them at most one bulk frame is
//! taken. Whoever sends a request waits for room, in the order of asking; whoever tells is told that there is
//! none. Answers are always taken, for the other side waits for them, up to where it plainly does not read.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use replica::Pace;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::frame::{Batch, Frame};

/// Urgent bytes that may wait.
pub(super) const URGENT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bulk bytes that may wait: enough to keep the line busy, little enough not to fill the memory.
pub(super) const BULK_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Answers are taken until so many bytes wait.
pub(super) const ANSWER_BYTES_MAX: usize = 2 * URGENT_BYTES_MAX;
/// How long a lazy frame waits for company.
const LAZY: Duration = Duration::from_millis(20);
/// One write takes frames until it has so many bytes.
const BATCH_BYTES: usize = 512 * 1024;

/// Which lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Urgent = 0,
    Bulk = 1,
}

impl Lane {
    fn bytes_max(self) -> usize {
        match self {
            Lane::Urgent => URGENT_BYTES_MAX,
            Lane::Bulk => BULK_BYTES_MAX,
        }
    }
}

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    Closed,
    Full,
}

/// The frames of one connection that wait to be written.
pub(super) struct Queue {
    lanes: Mutex<Lanes>,
    /// Rings for the writer.
    filled: Notify,
}

#[derive(Default)]
struct Lanes {
    lanes: [Waiting; 2],
    /// Whether a frame waits that must not.
    is_due: bool,
    /// When lazy frames go even alone.
    lazy_until: Option<Instant>,
    is_closed: bool,
}

#[derive(Default)]
struct Waiting {
    frames: VecDeque<Frame>,
    /// Of the frames, and of those that are being written.
    bytes: usize,
    /// Not in the queue yet, in the order of asking.
    outside: VecDeque<Outside>,
}

struct Outside {
    frame: Frame,
    pace: Pace,
    /// Dropped when the queue is closed.
    taken: oneshot::Sender<()>,
}

impl Waiting {
    fn has_room(&self, lane: Lane, bytes: usize) -> bool {
        // One that is larger than the bound goes alone.
        self.bytes == 0 || self.bytes + bytes <= lane.bytes_max()
    }
}

impl Lanes {
    fn push(&mut self, lane: Lane, pace: Pace, frame: Frame) {
        let waiting = &mut self.lanes[lane as usize];
        waiting.bytes += frame.bytes();
        waiting.frames.push_back(frame);
        match pace {
            Pace::Now => self.is_due = true,
            Pace::Lazy => {
                self.lazy_until.get_or_insert_with(|| Instant::now() + LAZY);
            }
        }
    }

    /// Takes those in that waited for room, as far as there is some.
    fn let_in(&mut self, lane: Lane) {
        while let Some(next) = self.lanes[lane as usize].outside.front() {
            // Nobody waits for it any more: the sender gave up.
            let is_wanted = !next.taken.is_closed();
            if is_wanted && !self.lanes[lane as usize].has_room(lane, next.frame.bytes()) {
                return;
            }
            let Some(next) = self.lanes[lane as usize].outside.pop_front() else { return };
            if is_wanted && next.taken.send(()).is_ok() {
                self.push(lane, next.pace, next.frame);
            }
        }
    }

    fn take_batch(&mut self) -> Batch {
        let mut batch = Batch::default();
        while batch.bytes() < BATCH_BYTES {
            let Some(frame) = self.lanes[Lane::Urgent as usize].frames.pop_front() else { break };
            batch.taken[Lane::Urgent as usize] += frame.bytes();
            batch.push(frame);
        }
        if let Some(frame) = self.lanes[Lane::Bulk as usize].frames.pop_front() {
            batch.taken[Lane::Bulk as usize] += frame.bytes();
            batch.push(frame);
        }
        self.is_due = self.lanes.iter().any(|waiting| !waiting.frames.is_empty());
        self.lazy_until = None;
        batch
    }
}

/// A frame's way into the queue.
pub(super) enum Entry {
    /// It is in.
    Taken,
    /// Ready when it is in; an error when the queue was closed before.
    Waits(oneshot::Receiver<()>),
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue { lanes: Mutex::new(Lanes::default()), filled: Notify::new() }
    }

    /// Takes a request as soon as there is room. Its place is that of this call.
    pub(super) fn enter(&self, lane: Lane, pace: Pace, frame: Frame) -> Result<Entry, NotTaken> {
        let mut lanes = self.lanes.lock();
        if lanes.is_closed {
            return Err(NotTaken::Closed);
        }
        let waiting = &mut lanes.lanes[lane as usize];
        if !waiting.outside.is_empty() || !waiting.has_room(lane, frame.bytes()) {
            let (taken, entered) = oneshot::channel();
            waiting.outside.push_back(Outside { frame, pace, taken });
            return Ok(Entry::Waits(entered));
        }
        lanes.push(lane, pace, frame);
        drop(lanes);
        self.filled.notify_one();
        Ok(Entry::Taken)
    }

    /// Takes what needs no answer, if there is room.
    pub(super) fn tell(&self, lane: Lane, frame: Frame) -> Result<(), NotTaken> {
        let mut lanes = self.lanes.lock();
        if lanes.is_closed {
            return Err(NotTaken::Closed);
        }
        let waiting = &lanes.lanes[lane as usize];
        if !waiting.outside.is_empty() || !waiting.has_room(lane, frame.bytes()) {
            return Err(NotTaken::Full);
        }
        lanes.push(lane, Pace::Now, frame);
        drop(lanes);
        self.filled.notify_one();
        Ok(())
    }

    /// Takes an answer. Full only when the other side plainly does not read.
    pub(super) fn answer(&self, frame: Frame) -> Result<(), NotTaken> {
        let mut lanes = self.lanes.lock();
        if lanes.is_closed {
            return Err(NotTaken::Closed);
        }
        let bytes = lanes.lanes[Lane::Urgent as usize].bytes;
        if bytes > 0 && bytes + frame.bytes() > ANSWER_BYTES_MAX {
            return Err(NotTaken::Full);
        }
        lanes.push(Lane::Urgent, Pace::Now, frame);
        drop(lanes);
        self.filled.notify_one();
        Ok(())
    }

    /// Takes a ping or its answer, before all others; not from one that asks and never reads.
    pub(super) fn ping(&self, frame: Frame) {
        let mut lanes = self.lanes.lock();
        let waiting = &mut lanes.lanes[Lane::Urgent as usize];
        if waiting.bytes > ANSWER_BYTES_MAX {
            return;
        }
        waiting.bytes += frame.bytes();
        waiting.frames.push_front(frame);
        lanes.is_due = true;
        drop(lanes);
        self.filled.notify_one();
    }

    /// The next frames to write, when there are some; nothing when the queue is closed.
    pub(super) async fn batch(&self) -> Option<Batch> {
        loop {
            let lazy_until = {
                let mut lanes = self.lanes.lock();
                if lanes.is_closed {
                    return None;
                }
                if lanes.is_due || lanes.lazy_until.is_some_and(|until| until <= Instant::now()) {
                    return Some(lanes.take_batch());
                }
                lanes.lazy_until
            };
            match lazy_until {
                None => self.filled.notified().await,
                Some(until) => {
                    tokio::select! {
                        () = self.filled.notified() => {}
                        () = tokio::time::sleep_until(until) => {}
                    }
                }
            }
        }
    }

    /// The batch was written: what it took is free.
    pub(super) fn written(&self, batch: &Batch) {
        let mut lanes = self.lanes.lock();
        if lanes.is_closed {
            return;
        }
        for lane in [Lane::Urgent, Lane::Bulk] {
            lanes.lanes[lane as usize].bytes -= batch.taken[lane as usize];
            lanes.let_in(lane);
        }
        // No ring: the writer, which is who calls this, looks again anyway.
    }

    /// Takes back a call that was not begun. False when it was.
    pub(super) fn take_back(&self, call: u64) -> bool {
        let mut lanes = self.lanes.lock();
        for waiting in &mut lanes.lanes {
            if let Some(at) = waiting.frames.iter().position(|frame| frame.call() == Some(call)) {
                let frame = waiting.frames.remove(at);
                waiting.bytes -= frame.map_or(0, |frame| frame.bytes());
                return true;
            }
            if let Some(at) = waiting.outside.iter().position(|outside| outside.frame.call() == Some(call)) {
                waiting.outside.remove(at);
                return true;
            }
        }
        false
    }

    /// Takes nothing more. The calls that were never begun.
    pub(super) fn close(&self) -> Vec<u64> {
        let mut lanes = self.lanes.lock();
        lanes.is_closed = true;
        let lanes = std::mem::take(&mut lanes.lanes);
        self.filled.notify_one();
        let frames = lanes.into_iter().flat_map(|waiting| {
            waiting.frames.into_iter().chain(waiting.outside.into_iter().map(|o| o.frame))
        });
        frames.filter_map(|frame| frame.call()).collect()
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.lanes.lock().lanes.iter().map(|waiting| waiting.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use model::GroupId;
    use wire::peer::{FrameRole, PeerKind};

    use super::*;

    fn frame(request: u64, bytes: usize) -> Frame {
        let (kind, role) = (PeerKind::Propose as u8, FrameRole::Request);
        Frame { kind, role, group: GroupId(1), request, body: Bytes::from(vec![0; bytes]) }
    }

    fn is_taken(entry: Result<Entry, NotTaken>) -> bool {
        matches!(entry, Ok(Entry::Taken))
    }

    const MIB: usize = 1024 * 1024;

    #[tokio::test]
    async fn requests_wait_for_room_in_the_order_of_asking() {
        let queue = Queue::new();
        for request in 0..63 {
            assert!(is_taken(queue.enter(Lane::Urgent, Pace::Now, frame(request, MIB))));
        }
        let Ok(Entry::Waits(mut large)) = queue.enter(Lane::Urgent, Pace::Now, frame(63, 2 * MIB)) else {
            panic!("there is room for 1 MiB only")
        };
        let Ok(Entry::Waits(mut small)) = queue.enter(Lane::Urgent, Pace::Now, frame(64, 10)) else {
            panic!("it would overtake")
        };
        assert_eq!(queue.tell(Lane::Urgent, frame(65, 10)), Err(NotTaken::Full));
        assert!(is_taken(queue.enter(Lane::Bulk, Pace::Now, frame(66, 10))), "bulk has its own bound");
        assert_eq!(queue.answer(frame(67, MIB)), Ok(()), "the other side waits for it");

        let mut order = Vec::new();
        while small.try_recv().is_err() {
            let batch = queue.batch().await.unwrap();
            order.extend(batch.untouched());
            assert!(queue.bytes() <= ANSWER_BYTES_MAX);
            queue.written(&batch);
        }
        assert!(large.try_recv().is_ok(), "it came first");
        while order.len() < 67 {
            let batch = queue.batch().await.unwrap();
            order.extend(batch.untouched());
            queue.written(&batch);
        }
        order.retain(|request| *request != 66);
        let expected: Vec<u64> = (0..63).chain([67, 63, 64]).collect();
        assert_eq!(order, expected);
        assert_eq!(queue.bytes(), 0);
    }

    #[tokio::test]
    async fn at_most_one_bulk_frame_goes_between_two_looks_at_the_urgent_ones() {
        let queue = Queue::new();
        for request in 0..4 {
            assert!(is_taken(queue.enter(Lane::Bulk, Pace::Now, frame(request, MIB))));
        }
        let first = queue.batch().await.unwrap();
        assert_eq!(first.untouched().collect::<Vec<_>>(), [0]);
        for request in 10..13 {
            assert!(is_taken(queue.enter(Lane::Urgent, Pace::Now, frame(request, 10))));
        }
        let second = queue.batch().await.unwrap();
        assert_eq!(second.untouched().collect::<Vec<_>>(), [10, 11, 12, 1]);
    }

    #[tokio::test]
    async fn a_lazy_frame_waits_for_company_but_not_long() {
        let queue = Queue::new();
        let begun = Instant::now();
        assert!(is_taken(queue.enter(Lane::Urgent, Pace::Lazy, frame(1, 10))));
        let batch = queue.batch().await.unwrap();
        assert_eq!((batch.frames, begun.elapsed() >= LAZY), (1, true));

        let begun = Instant::now();
        assert!(is_taken(queue.enter(Lane::Urgent, Pace::Lazy, frame(2, 10))));
        assert!(is_taken(queue.enter(Lane::Urgent, Pace::Now, frame(3, 10))));
        let batch = queue.batch().await.unwrap();
        assert_eq!(batch.untouched().collect::<Vec<_>>(), [2, 3], "the order is kept");
        assert!(begun.elapsed() < LAZY);
    }

    #[tokio::test]
    async fn what_was_not_begun_can_be_taken_back_and_is_known_at_the_end() {
        let queue = Queue::new();
        for request in 1..=3 {
            assert!(
                is_taken(queue.enter(Lane::Urgent, Pace::Now, frame(request, 40 * MIB))) == (request == 1)
            );
        }
        let batch = queue.batch().await.unwrap();
        assert!(!queue.take_back(1), "it is being written");
        assert!(queue.take_back(2));
        drop(batch);
        assert_eq!(queue.close(), [3]);
        assert!(queue.batch().await.is_none());
        assert!(matches!(queue.enter(Lane::Urgent, Pace::Now, frame(4, 1)), Err(NotTaken::Closed)));
    }
}
