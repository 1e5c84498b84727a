//! Every call that made a task, or may have: enqueues, and acks with follow-ups.

use hashbrown::HashMap;
use model::TaskId;

use super::facts::Name;
use super::take::hash;
use super::task::When;
use crate::history::{Enqueue, Then};

/// The window of a dedup key that says nothing: 15 minutes.
const WINDOW_DEFAULT_MS: u64 = 900_000;

const NONE: u32 = u32::MAX;

/// A call that made a task, or may have.
pub(super) struct Birth {
    pub when: When,
    pub queue: Name,
    pub payload: u128,
    /// The task, if the answer named it.
    pub task: Option<TaskId>,
    /// For a follow-up: of which task, and which of its follow-ups.
    pub source: Option<(TaskId, u32)>,
    /// The keys as they were given; what they mean is in their place.
    pub order: Option<u128>,
    pub dedup: Option<u128>,
    pub unique: Option<u128>,
    pub window_ms: u64,
    /// Its work may be there already, under a key that we do not know.
    pub keyed: bool,
    pub delay_ms: Option<u64>,
    pub run_at_ms: Option<u64>,
    pub attempts: Option<u32>,
    pub age_max: bool,
    pub expires: bool,
    pub retention_ms: Option<u64>,
    next: u32,
}

impl Birth {
    pub(super) fn of_enqueue(when: When, queue: Name, enqueue: &Enqueue) -> Birth {
        let key = |key: &Option<String>| key.as_deref().map(hash);
        Birth {
            when,
            queue,
            payload: hash(&enqueue.payload),
            task: enqueue.task.filter(|_| when.is_ok()),
            source: None,
            order: key(&enqueue.order_key),
            dedup: key(&enqueue.dedup_key),
            unique: key(&enqueue.unique_key),
            window_ms: enqueue.dedup_window_ms.unwrap_or(WINDOW_DEFAULT_MS),
            keyed: enqueue.dedup_key.is_some() || enqueue.unique_key.is_some(),
            delay_ms: enqueue.delay_ms,
            run_at_ms: enqueue.run_at_ms,
            attempts: enqueue.attempts,
            age_max: enqueue.age_max,
            expires: enqueue.expires_in_ms.is_some(),
            retention_ms: enqueue.retention_ms,
            next: NONE,
        }
    }

    pub(super) fn of_then(when: When, queue: Name, then: &Then, source: TaskId, n: u32) -> Birth {
        Birth {
            when,
            queue,
            payload: hash(&then.payload),
            task: None,
            source: Some((source, n)),
            order: then.order_key.as_deref().map(hash),
            dedup: None,
            unique: None,
            window_ms: 0,
            keyed: then.keyed,
            delay_ms: then.delay_ms,
            run_at_ms: None,
            attempts: then.attempts,
            age_max: false,
            expires: false,
            retention_ms: None,
            next: NONE,
        }
    }
}

/// All of them, by payload.
#[derive(Default)]
pub(super) struct Births {
    all: Vec<Birth>,
    first: HashMap<u128, u32>,
}

impl Births {
    pub(super) fn add(&mut self, birth: Birth) {
        self.all.push(birth);
    }

    /// Ties those of one payload together, in the order of their lines.
    pub(super) fn link(&mut self) {
        for n in (0..self.all.len()).rev() {
            let first = self.first.entry(self.all[n].payload).or_insert(NONE);
            self.all[n].next = *first;
            *first = n as u32;
        }
    }

    /// Those of one payload.
    pub(super) fn of(&self, payload: u128) -> impl Iterator<Item = &Birth> + Clone {
        let first = self.first.get(&payload).copied().unwrap_or(NONE);
        std::iter::successors(self.get(first), |birth| self.get(birth.next))
    }

    /// How many. There are not more tasks than these.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// All.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Birth> {
        self.all.iter()
    }

    fn get(&self, n: u32) -> Option<&Birth> {
        self.all.get(n as usize)
    }
}
