//! What is due because time has passed, oldest first, at most so much at once.

use model::{FreedReason, KeyHash, Position, Reply, WallTime};

use super::Shard;
use super::end::RETAINED;
use super::execution::Slot;
use super::timers::{Bits, Timer};
use crate::effects::Effects;

impl Shard {
    pub(super) fn pulse(&mut self, at: Position, limit: u32, effects: &mut Effects) -> Reply {
        let mut done = self.pulse_elapsed(at, limit, effects);
        done += self.pulse_wall(at, limit - done, effects);
        done += self.pulse_retention(at, limit - done, effects);
        done += self.work_off_purges(at, limit - done, effects);
        while done < limit && self.forget_outcome(at) {
            done += 1;
        }
        Reply::Count(done.into())
    }

    /// Deadlines, backoffs and request ids.
    fn pulse_elapsed(&mut self, at: Position, limit: u32, effects: &mut Effects) -> u32 {
        let mut done = 0;
        let mut passed: Vec<Slot> = Vec::new();
        while done < limit {
            let deadline = self.deadlines.first().filter(|&time| time <= at.elapsed.0);
            if let Some(time) = deadline
                && self.elapsed_timers.first().is_none_or(|other| time <= other)
            {
                let some = self.deadlines.pop(&mut self.tasks, (limit - done) as usize);
                done += some.len() as u32;
                passed.extend(some);
                continue;
            }
            let Some((_, timer)) = self.elapsed_timers.pop_due(at.elapsed.0) else { break };
            match timer {
                Timer::Backoff(bits) => self.wait_is_over(at, bits, effects),
                Timer::Request(bits) => self.end_request(KeyHash(bits.whole())),
                _ => unreachable!("{timer:?} is not counted in elapsed time"),
            }
            done += 1;
        }
        self.free_all(at, passed, FreedReason::Deadline, effects);
        done
    }

    /// Delays, expiries, retentions of a task's own and dedup windows.
    fn pulse_wall(&mut self, at: Position, limit: u32, effects: &mut Effects) -> u32 {
        let mut done = 0;
        while done < limit
            && let Some((_, timer)) = self.wall_timers.pop_due(at.wall.millis())
        {
            match timer {
                Timer::Delay(bits) => self.wait_is_over(at, bits, effects),
                Timer::Expiry(bits) => self.expire(at, self.timed(bits), effects),
                Timer::OwnRetention(bits) => self.forget(at, self.timed(bits), effects),
                Timer::Window(bits) => self.end_window(KeyHash(bits.whole())),
                _ => unreachable!("{timer:?} is not counted in wall time"),
            }
            done += 1;
        }
        done
    }

    /// The task of a timer. A timer that no longer means anything was taken back: one that a reload sets
    /// and another replica has seen fire would part the two.
    fn timed(&self, bits: Bits) -> Slot {
        self.tasks.find(bits.task()).expect("a timer is taken back before its task goes")
    }

    /// A delay or a backoff is over; for a task that a purge has marked, this is the end.
    fn wait_is_over(&mut self, at: Position, bits: Bits, effects: &mut Effects) {
        let slot = self.timed(bits);
        let task = &self.tasks[slot];
        if self.queues[task.queue].purged(task) {
            self.end_purged(at, slot, effects);
        } else {
            self.become_ready(at, slot, effects);
        }
    }

    /// Ended and dead tasks whose queue's retention is over. Which queues are looked at may differ
    /// between replicas (an armed time may be too early); what is forgotten, and in which order, may not.
    fn pulse_retention(&mut self, at: Position, limit: u32, effects: &mut Effects) -> u32 {
        let mut due = Vec::new();
        while let Some(&(time, no, which)) = self.retention.first()
            && time <= at.wall.millis()
        {
            self.retention.pop_first();
            self.queues.at_mut(no).retention_armed[which] = None;
            due.push((no, which));
        }
        due.sort_unstable();
        let mut done = 0;
        for (no, which) in due {
            while done < limit && self.is_over(at.wall, no, which) {
                let head = self.first(RETAINED[which], no).expect("its retention is over");
                self.forget(at, head, effects);
                done += 1;
            }
            if self.queues.get(no).is_some() {
                self.arm_retention(no);
            }
        }
        done
    }

    fn is_over(&self, wall: WallTime, no: super::QueueNo, which: usize) -> bool {
        self.queues.get(no).is_some() && self.retention_due(no, which).is_some_and(|due| due <= wall)
    }
}
