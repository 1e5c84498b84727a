//! An enqueue and the waiting claim that gets its task, in one entry.
//!
//! Who waits would otherwise hear of the task when it is committed, and ask for it with an entry of its own:
//! twice the way to a quorum's disks. So the enqueue, once its command is in the shard's inbox, makes the
//! claims of those who wait right behind it. They are claims like all others: the shard gives them whatever is
//! next, or nothing when the task was refused, and then who waits stands in line as before.
//!
//! Next: `waiting.rs`, where the answer arrives.

use std::sync::Arc;

use model::{NewTask, QueueName, ShardId, Start};

use crate::inner::Inner;
use crate::waiting::Promised;

/// Claims that one enqueue makes for others: the rest hear of their tasks when those are there.
const AHEAD_MAX: u32 = 100;

impl Inner {
    /// The queues of `tasks` that somebody waits for here, and how many each gets that can start at once. None
    /// when another node leads the shard: its own line comes first.
    pub(crate) fn awaited_of(&self, shard: ShardId, tasks: &[NewTask]) -> Vec<(QueueName, u32)> {
        let mut awaited: Vec<(QueueName, u32)> = Vec::new();
        if self.lines.waiting() == 0 || !self.groups.leads(shard) {
            return awaited;
        }
        let mut left = AHEAD_MAX;
        for task in tasks.iter().filter(|task| is_sure_to_be_ready(task)) {
            match awaited.iter_mut().find(|(queue, _)| *queue == task.queue) {
                Some((_, count)) => *count += 1,
                None if self.lines.has_waiters(&task.queue) && !self.is_paused(&task.queue) => {
                    awaited.push((task.queue.clone(), 1));
                }
                None => continue,
            }
            left -= 1;
            if left == 0 {
                break;
            }
        }
        awaited
    }

    fn is_paused(&self, queue: &QueueName) -> bool {
        self.policies.all().get(queue).is_some_and(|settings| settings.paused)
    }

    /// Makes the claims of those who wait for what is about to be in `shard`.
    pub(crate) fn claim_ahead(self: &Arc<Inner>, shard: ShardId, awaited: &[(QueueName, u32)]) {
        for (queue, count) in awaited {
            for (waiter, share) in self.lines.ahead(queue, shard, *count) {
                let promised = Promised { inner: self.clone(), shares: vec![share] };
                let Some(ask) = &waiter.ask else { continue };
                waiter.clone().accept_asked(self.take_in(ask, promised));
            }
        }
    }
}

/// Whether nothing can keep a task from being ready when it is enqueued: a claim that comes to nothing has no
/// business in the log.
fn is_sure_to_be_ready(task: &NewTask) -> bool {
    let wishes = task.wishes();
    let is_free = wishes.order_key.is_none() && wishes.dedup.is_none() && wishes.unique.is_none();
    is_free && wishes.start == Start::Now
}
