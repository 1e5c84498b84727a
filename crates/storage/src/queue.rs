//! The bounded queue between the groups and the writer: everything that becomes a record passes here, in order.
//!
//! A push never waits for the disk. It waits for room only while more than the bound is queued and the
//! writer is writing; never in the writer's own thread, and never while the disk is full (the writer stands
//! still then, and what is queued is bounded by what callers have unacknowledged). Next: `writer.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::group_index::GroupIndex;
use crate::group_log::{Done, LogEntry, LogId};
use crate::record::record_bytes;

/// A group, shared by its handles and the writer.
pub(crate) struct Group {
    pub(crate) id: model::GroupId,
    pub(crate) index: Mutex<GroupIndex>,
}

/// What is to become records.
pub(crate) enum Change {
    Append { entries: Vec<LogEntry>, turn: u32 },
    Vote(Bytes),
    TruncateFrom(u64),
    Purge(LogId),
}

/// A change in the queue.
pub(crate) struct Queued {
    pub(crate) group: Arc<Group>,
    pub(crate) change: Change,
    pub(crate) done: Done,
}

impl Queued {
    fn bytes(&self) -> usize {
        match &self.change {
            Change::Append { entries, .. } => {
                entries.iter().map(|entry| record_bytes(entry.payload.len())).sum()
            }
            Change::Vote(vote) => record_bytes(vote.len()),
            Change::TruncateFrom(_) | Change::Purge(_) => record_bytes(0),
        }
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    Work,
    Idle,
    Closing,
}

/// What is left to do after a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Nothing: it will be seen.
    Seen,
    /// The writer sleeps: [`Queue::wake`] it.
    Sleeps,
    /// Without threads: a job must be asked for.
    Unscheduled,
}

pub(crate) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
    closed: Condvar,
    bytes_max: usize,
    /// A thread takes what is queued; otherwise jobs do, one at a time.
    threads: bool,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Queued>,
    bytes: usize,
    /// Callers may go over the bound: nobody would make room for them.
    unbounded: bool,
    writer: Option<ThreadId>,
    writer_sleeps: bool,
    /// Without threads: a job that will take what is queued has been asked for.
    scheduled: bool,
    closing: bool,
    closed: bool,
    fatal: Option<Error>,
}

impl Queue {
    pub(crate) fn new(bytes_max: usize, threads: bool) -> Queue {
        let state = State { unbounded: !threads, ..State::default() };
        Queue {
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            closed: Condvar::new(),
            bytes_max,
            threads,
        }
    }

    /// Waits while too much is queued. Never called with a group's lock: the writer needs it to make room.
    pub(crate) fn admit(&self) -> Result<()> {
        let mut state = self.state.lock();
        while state.bytes > self.bytes_max && !state.unbounded && state.fatal.is_none() && !state.closing {
            if state.writer == Some(thread::current().id()) {
                break;
            }
            self.room.wait(&mut state);
        }
        match &state.fatal {
            Some(fatal) => Err(fatal.clone()),
            None if state.closing => Err(Error::Closed),
            None => Ok(()),
        }
    }

    /// Adds a change and says what is left to do, or gives it back with the reason.
    pub(crate) fn push(&self, queued: Queued) -> Result<Pushed, Box<(Queued, Error)>> {
        let bytes = queued.bytes();
        let mut state = self.state.lock();
        if let Some(fatal) = &state.fatal {
            let fatal = fatal.clone();
            return Err(Box::new((queued, fatal)));
        }
        if state.closing {
            return Err(Box::new((queued, Error::Closed)));
        }
        state.waiting.push_back(queued);
        state.bytes += bytes;
        if std::mem::take(&mut state.writer_sleeps) {
            return Ok(Pushed::Sleeps);
        }
        let is_scheduled = std::mem::replace(&mut state.scheduled, !self.threads);
        Ok(if self.threads || is_scheduled { Pushed::Seen } else { Pushed::Unscheduled })
    }

    /// Wakes the writer. Without any lock, or it would wake only to wait for that.
    pub(crate) fn wake(&self) {
        self.work.notify_one();
    }

    /// The calling thread is the writer from now on.
    pub(crate) fn adopt(&self) {
        self.state.lock().writer = Some(thread::current().id());
    }

    /// Waits until something is queued, at most `idle` if that is given.
    pub(crate) fn wait(&self, idle: Option<Duration>) -> Woken {
        let mut state = self.state.lock();
        loop {
            if !state.waiting.is_empty() {
                return Woken::Work;
            }
            if state.closing {
                return Woken::Closing;
            }
            state.writer_sleeps = true;
            match idle {
                None => self.work.wait(&mut state),
                Some(idle) => {
                    if self.work.wait_for(&mut state, idle).timed_out()
                        && state.waiting.is_empty()
                        && !state.closing
                    {
                        state.writer_sleeps = false;
                        return Woken::Idle;
                    }
                }
            }
            state.writer_sleeps = false;
        }
    }

    /// Waits a while for something other than work, such as room on the disk. Whether to give up.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        state.unbounded = true;
        self.room.notify_all();
        if !state.closing {
            state.writer_sleeps = false;
            self.work.wait_for(&mut state, time);
        }
        state.closing
    }

    /// Takes all that is queued. `into` is empty, and its memory is used for what is queued next.
    pub(crate) fn take(&self, into: &mut VecDeque<Queued>) {
        let mut state = self.state.lock();
        std::mem::swap(&mut state.waiting, into);
        let was_full = state.bytes > self.bytes_max;
        state.bytes = 0;
        if was_full {
            self.room.notify_all();
        }
    }

    /// The writer goes on: the bound holds again.
    pub(crate) fn bound(&self) {
        let mut state = self.state.lock();
        state.unbounded = !self.threads;
    }

    /// Ends a job. Whether more has been queued meanwhile, so that it must go on.
    pub(crate) fn unschedule(&self) -> bool {
        let mut state = self.state.lock();
        state.scheduled = !state.waiting.is_empty();
        state.scheduled
    }

    /// Ends a job although something is left to do: the next push asks for another one.
    pub(crate) fn unschedule_stalled(&self) {
        self.state.lock().scheduled = false;
    }

    /// How much is queued.
    pub(crate) fn depth(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.waiting.len(), state.bytes)
    }

    /// Refuses what comes from now on. Whether nobody had asked before.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state.lock();
        let first = !state.closing;
        state.closing = true;
        self.work.notify_all();
        self.room.notify_all();
        first
    }

    pub(crate) fn set_closed(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.closed.notify_all();
    }

    pub(crate) fn wait_closed(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            self.closed.wait(&mut state);
        }
    }

    /// Poisons the queue. Whether this was the first time.
    pub(crate) fn set_fatal(&self, error: &Error) -> bool {
        let mut state = self.state.lock();
        let first = state.fatal.is_none();
        state.fatal.get_or_insert_with(|| error.clone());
        self.room.notify_all();
        first
    }

    pub(crate) fn fatal(&self) -> Option<Error> {
        self.state.lock().fatal.clone()
    }
}
