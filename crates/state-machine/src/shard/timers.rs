//! What is due when. Ties are broken by id, never by slot: replicas must agree.

use std::collections::BTreeSet;

use model::{KeyHash, TaskId};

/// What a timer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Timer {
    /// A backoff.
    Backoff(Bits),
    /// A delay.
    Delay(Bits),
    /// A waiting task's expiry.
    Expiry(Bits),
    /// An ended task with its own retention may go.
    OwnRetention(Bits),
    /// A dedup key may be used again.
    Window(Bits),
    /// A request id may be forgotten.
    Request(Bits),
}

/// A 128-bit id in two halves: half the space of an aligned one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bits(u64, u64);

impl From<TaskId> for Bits {
    fn from(id: TaskId) -> Bits {
        Bits((id.bits() >> 64) as u64, id.bits() as u64)
    }
}

impl From<KeyHash> for Bits {
    fn from(key: KeyHash) -> Bits {
        Bits((key.0 >> 64) as u64, key.0 as u64)
    }
}

impl Bits {
    pub(super) fn whole(self) -> u128 {
        u128::from(self.0) << 64 | u128::from(self.1)
    }

    pub(super) fn task(self) -> TaskId {
        TaskId::from_bits(self.whole()).expect("the timer was made from a task's id")
    }
}

/// Timers in one of the two times.
#[derive(Default)]
pub(super) struct Timers {
    set: BTreeSet<(u64, Timer)>,
}

impl Timers {
    pub(super) fn add(&mut self, time: u64, timer: Timer) {
        let new = self.set.insert((time, timer));
        debug_assert!(new, "timer {timer:?} at {time} was set twice");
    }

    /// As `add`, for one that may be set already.
    pub(super) fn set(&mut self, time: u64, timer: Timer) {
        self.set.insert((time, timer));
    }

    pub(super) fn remove(&mut self, time: u64, timer: Timer) {
        self.set.remove(&(time, timer));
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.set.first().map(|&(time, _)| time)
    }

    /// Takes the first one that is due.
    pub(super) fn pop_due(&mut self, now: u64) -> Option<(u64, Timer)> {
        if self.first()? <= now { self.set.pop_first() } else { None }
    }

    pub(super) fn len(&self) -> usize {
        self.set.len()
    }
}
