//! Cancels all that waits in a queue: marked at once, worked off by pulses.

use model::{Position, QueueName, Rejection, Reply, StateKind};

use super::Shard;
use super::execution::Slot;
use super::lists::{BLOCKED, DELAYED, PURGED, READY, RETRYING};
use super::queue::PurgeMark;
use crate::effects::Effects;

impl Shard {
    pub(super) fn purge(&mut self, name: QueueName) -> Result<Reply, Rejection> {
        let no = self.queues.find(&name).ok_or(Rejection::UnknownQueue { queue: name })?;
        self.touch_queue(no);
        let queue = self.queues.at_mut(no);
        let mut purged = queue.lists[PURGED];
        for list in (READY..READY + 10).chain([DELAYED, RETRYING, BLOCKED]) {
            let mut marked = std::mem::take(&mut queue.lists[list]);
            purged.append(&mut self.tasks, &mut marked);
        }
        if purged.len > queue.lists[PURGED].len {
            // Whatever waits now has a rank between the two counters; whatever waits later has not.
            queue.purges.push(PurgeMark { after: self.counters.front, before: self.counters.back });
        }
        queue.lists[PURGED] = purged;
        self.queues.set_purging(no, true);
        let marked = purged.len;
        self.finish_purge(no);
        Ok(Reply::Count(marked))
    }

    /// Cancels up to `limit` marked tasks. How many it did.
    pub(super) fn work_off_purges(&mut self, at: Position, limit: u32, effects: &mut Effects) -> u32 {
        let queues: Vec<_> = self.queues.purging().collect();
        let mut done = 0;
        for no in queues {
            while done < limit
                && let Some(slot) = self.first(PURGED, no)
            {
                self.end_purged(at, slot, effects);
                done += 1;
            }
            self.finish_purge(no);
        }
        done
    }

    pub(super) fn end_purged(&mut self, at: Position, slot: Slot, effects: &mut Effects) {
        self.end_because(at, slot, StateKind::Cancelled, "its queue was purged".to_owned(), effects);
    }

    fn finish_purge(&mut self, no: super::QueueNo) {
        if self.queues[no].lists[PURGED].len == 0 {
            self.touch_queue(no);
            self.queues.at_mut(no).purges.clear();
            self.queues.set_purging(no, false);
        }
    }
}
