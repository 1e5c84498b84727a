//! Names, and what holds for whole queues and sessions.

use hashbrown::HashMap;

use super::task::When;
use crate::history::{Queue, Steady};

/// A name, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name(u32);

/// Each name once.
#[derive(Default)]
pub(super) struct Names {
    numbers: HashMap<Box<str>, Name>,
    texts: Vec<Box<str>>,
}

impl Names {
    pub(super) fn of(&mut self, text: &str) -> Name {
        if let Some(&name) = self.numbers.get(text) {
            return name;
        }
        let name = Name(
            u32::try_from(self.texts.len())
                .expect("fewer names than lines, and lines are counted in 32 bits"),
        );
        self.texts.push(text.into());
        self.numbers.insert(text.into(), name);
        name
    }

    pub(super) fn text(&self, name: Name) -> &str {
        &self.texts[name.0 as usize]
    }
}

/// What was done to many tasks of a queue at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wide {
    PutBack,
    Discard,
    Cancel,
    Requeue,
    Purge,
}

/// A queue's rules, and what was done to all of it.
#[derive(Default)]
pub(super) struct QueueFacts {
    pub rules: Queue,
    pub wide: Vec<(Wide, When)>,
    /// Claims of it, and those that may have taken tasks that no answer tells of.
    pub claims: u64,
    pub unknown_claims: u64,
    /// Tasks that were named in it.
    pub tasks: u64,
}

impl QueueFacts {
    /// Claims that may have taken any of its tasks without anybody seeing it. An answer that gathers from several
    /// shards tells nothing of one that did not answer.
    pub(super) fn hidden_claims(&self, shards: u16) -> u64 {
        if shards > 1 { self.claims } else { self.unknown_claims }
    }
}

/// What holds for whole queues and sessions.
#[derive(Default)]
pub(super) struct Facts {
    queues: HashMap<Name, QueueFacts>,
    steady: HashMap<Name, Vec<(u64, u64)>>,
    /// Calls that ended a session, or all of a worker's.
    session_ends: HashMap<Name, Vec<When>>,
    worker_ends: HashMap<Name, Vec<When>>,
    /// When a request id was first used.
    requests: HashMap<Name, u64>,
    /// From when on wall clocks may be how many milliseconds apart.
    skews: Vec<(u64, u64)>,
}

impl Facts {
    pub(super) fn add_queue(&mut self, names: &mut Names, queue: Queue) {
        let name = names.of(&queue.queue);
        self.queues.entry(name).or_default().rules = queue;
    }

    pub(super) fn add_steady(&mut self, names: &mut Names, steady: &Steady) {
        let stretches = self.steady.entry(names.of(&steady.session)).or_default();
        stretches.push((steady.from_us, steady.until_us));
    }

    pub(super) fn add_skew(&mut self, from: u64, skew_ms: u64) {
        if skew_ms > 0 {
            self.skews.push((from, skew_ms));
        }
    }

    /// How far faults may have brought wall clocks apart until then.
    pub(super) fn skew_ms(&self, until: u64) -> u64 {
        self.skews.iter().filter(|(from, _)| *from <= until).map(|(_, skew_ms)| *skew_ms).max().unwrap_or(0)
    }

    pub(super) fn queue_mut(&mut self, queue: Name) -> &mut QueueFacts {
        self.queues.entry(queue).or_default()
    }

    pub(super) fn queue(&self, queue: Option<Name>) -> Option<&QueueFacts> {
        self.queues.get(&queue?)
    }

    pub(super) fn end_session(&mut self, session: Option<Name>, worker: Option<Name>, when: When) {
        if let Some(session) = session {
            self.session_ends.entry(session).or_default().push(when);
        }
        if let Some(worker) = worker {
            self.worker_ends.entry(worker).or_default().push(when);
        }
    }

    pub(super) fn session_ends(&self, session: Name) -> &[When] {
        self.session_ends.get(&session).map_or(&[], Vec::as_slice)
    }

    pub(super) fn worker_ends(&self, worker: Name) -> &[When] {
        self.worker_ends.get(&worker).map_or(&[], Vec::as_slice)
    }

    /// Until when a session was vouched for, at `from`.
    pub(super) fn steady_until(&self, session: Name, from: u64) -> Option<u64> {
        let stretches = self.steady.get(&session)?;
        stretches.iter().filter(|&&(begin, end)| begin <= from && from <= end).map(|&(_, end)| end).max()
    }

    pub(super) fn request(&mut self, request: Name, start: u64) {
        let first = self.requests.entry(request).or_insert(start);
        *first = start.min(*first);
    }

    /// When a call with this request id may first have been done.
    pub(super) fn first_start(&self, request: Option<Name>, start: u64) -> u64 {
        request.and_then(|request| self.requests.get(&request).copied()).unwrap_or(start)
    }

    /// What was done to a whole queue and may have touched a task that was there until `from`.
    pub(super) fn wide(&self, queue: Option<Name>, which: &[Wide], from: u64) -> impl Iterator<Item = &When> {
        let wide = self.queue(queue).map_or(&[][..], |facts| facts.wide.as_slice());
        wide.iter().filter(move |(what, when)| which.contains(what) && when.end >= from).map(|(_, when)| when)
    }
}
