//! The queues of a shard: made on first use, set by the catalog, dropped when empty.

use std::collections::BTreeMap;
use std::ops::Index;

use model::{Millis, QueueName, QueuePolicy, QueueSettings, Rejection, Reply};

use super::Shard;
use super::execution::{NONE, QueueNo};
use super::lists::CLAIMED;
use super::queue::Queue;

/// The queues, by name and by number.
#[derive(Default)]
pub(super) struct Queues {
    by_name: BTreeMap<QueueName, QueueNo>,
    /// In the order of their numbers.
    by_no: Vec<Queue>,
    /// Those with a purge to work off.
    purging: std::collections::BTreeSet<QueueNo>,
}

impl Queues {
    pub(super) fn find(&self, name: &QueueName) -> Option<QueueNo> {
        self.by_name.get(name).copied()
    }

    /// Where the queue of this number is, or would be. Every task asks many times: numbers are given in order, so without
    /// gaps by queues that have gone the first guess is right.
    fn place(&self, no: QueueNo) -> Result<usize, usize> {
        let guess = self.by_no.first().map_or(0, |first| no.wrapping_sub(first.no) as usize);
        if self.by_no.get(guess).is_some_and(|queue| queue.no == no) {
            return Ok(guess);
        }
        self.by_no.binary_search_by_key(&no, |queue| queue.no)
    }

    pub(super) fn get(&self, no: QueueNo) -> Option<&Queue> {
        self.place(no).ok().map(|place| &self.by_no[place])
    }

    pub(super) fn get_mut(&mut self, no: QueueNo) -> Option<&mut Queue> {
        self.place(no).ok().map(|place| &mut self.by_no[place])
    }

    pub(super) fn at_mut(&mut self, no: QueueNo) -> &mut Queue {
        self.get_mut(no).expect("a queue stays while tasks refer to it")
    }

    pub(super) fn insert(&mut self, queue: Queue) {
        if !queue.purges.is_empty() {
            self.purging.insert(queue.no);
        }
        self.by_name.insert(queue.name.clone(), queue.no);
        match self.place(queue.no) {
            Ok(place) => self.by_no[place] = queue,
            Err(place) => self.by_no.insert(place, queue),
        }
    }

    pub(super) fn remove(&mut self, no: QueueNo) {
        if let Ok(place) = self.place(no) {
            let queue = self.by_no.remove(place);
            self.by_name.remove(&queue.name);
            self.purging.remove(&no);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_no.len()
    }

    /// In the order of their numbers, from this one on.
    pub(super) fn from(&self, no: QueueNo) -> impl Iterator<Item = &Queue> {
        let first = self.place(no).unwrap_or_else(|place| place);
        self.by_no[first..].iter()
    }

    /// In the order of their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.by_name.values().map(|&no| &self[no])
    }

    pub(super) fn purging(&self) -> impl Iterator<Item = QueueNo> + '_ {
        self.purging.iter().copied()
    }

    pub(super) fn set_purging(&mut self, no: QueueNo, purging: bool) {
        if purging {
            self.purging.insert(no);
        } else {
            self.purging.remove(&no);
        }
    }
}

impl Index<QueueNo> for Queues {
    type Output = Queue;

    fn index(&self, no: QueueNo) -> &Queue {
        self.get(no).expect("a queue stays while tasks refer to it")
    }
}

impl Shard {
    /// The queue of this name, made if it is not there.
    pub(super) fn queue_or_new(&mut self, name: &QueueName) -> QueueNo {
        if let Some(no) = self.queues.find(name) {
            self.revive(no);
            return no;
        }
        let no = self.counters.queue;
        self.counters.queue += 1;
        self.queues.insert(Queue::new(name.clone(), no));
        self.touch_new_queue(no);
        no
    }

    /// A queue that was dropped is used again: as if it were new.
    pub(super) fn revive(&mut self, no: QueueNo) {
        if self.queues[no].dropped {
            self.touch_queue(no);
            let queue = self.queues.at_mut(no);
            queue.dropped = false;
            queue.settings.policy = QueuePolicy::default();
            self.rearm_retention(no);
        }
    }

    pub(super) fn set_queue(&mut self, name: QueueName, settings: QueueSettings) -> Result<Reply, Rejection> {
        if let Some(current) = self.queues.find(&name).map(|no| self.queues[no].settings.version)
            && settings.version <= current
        {
            return Err(Rejection::StaleVersion { given: settings.version, current });
        }
        let no = self.queue_or_new(&name);
        self.touch_queue(no);
        self.change_settings(no, settings);
        Ok(Reply::Done)
    }

    /// What follows from other settings: claims and deadlines that did not count before.
    fn change_settings(&mut self, no: QueueNo, settings: QueueSettings) {
        let queue = self.queues.at_mut(no);
        let before = std::mem::replace(&mut queue.settings, settings);
        if before.paused && !queue.settings.paused && queue.ready() > 0 {
            self.became_ready.push(no);
        }
        if before.policy.recovery != queue.settings.policy.recovery {
            self.rearm_claims(no);
        }
        self.rearm_retention(no);
    }

    /// Deadlines count from now on, or no longer: those of a queue that is recovered by hand do not.
    /// Costs as much as the queue has claims.
    fn rearm_claims(&mut self, no: QueueNo) {
        let mut slot = self.queues[no].lists[CLAIMED].head;
        while slot != NONE {
            self.disarm(slot);
            self.arm(slot);
            slot = self.tasks[slot].next;
        }
    }

    pub(super) fn drop_queue(&mut self, name: &QueueName, version: u64) -> Result<Reply, Rejection> {
        let Some(no) = self.queues.find(name) else { return Ok(Reply::Done) };
        let current = self.queues[no].settings.version;
        if version <= current {
            return Err(Rejection::StaleVersion { given: version, current });
        }
        self.touch_queue(no);
        let queue = self.queues.at_mut(no);
        let live = queue.live() > 0;
        let mut settings = QueueSettings { version, ..QueueSettings::default() };
        // Ended tasks go by the next pulses, the queue with the last of them. Tasks that came since the
        // person looked keep it, under the default policy.
        queue.dropped = !live;
        if !live {
            settings.policy.retention = Millis(0);
            settings.policy.dead_retention = Millis(0);
        }
        self.change_settings(no, settings);
        self.remove_if_dropped(no);
        Ok(Reply::Done)
    }

    /// A dropped queue goes when nothing refers to it any more.
    pub(super) fn remove_if_dropped(&mut self, no: QueueNo) {
        let queue = &self.queues[no];
        if !queue.dropped || queue.dedup_keys > 0 || queue.depth.0.iter().any(|&count| count > 0) {
            return;
        }
        self.touch_queue(no);
        for (which, due) in self.queues[no].retention_armed.into_iter().enumerate() {
            if let Some(due) = due {
                self.retention.remove(&(due, no, which));
            }
        }
        self.queues.remove(no);
        self.touch_removed_queue(no);
    }
}
