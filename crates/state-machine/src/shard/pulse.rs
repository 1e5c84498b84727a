//! What is due because time has passed, oldest first, at most so much at once.

use model::{Elapsed, FreedReason, KeyHash, Position, Recovery, Reply, StateKind, WallTime};

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
        while done < limit
            && let Some((time, timer)) = self.elapsed_timers.pop_due(at.elapsed.0)
        {
            let counts = match timer {
                Timer::Deadline(bits) => self.deadline_passed(bits, Elapsed(time), &mut passed),
                Timer::Backoff(bits) => {
                    let slot = self.waiting(bits, StateKind::Retrying);
                    slot.map(|slot| self.become_ready(at, slot, effects)).is_some()
                }
                Timer::Request(bits) => self.end_request(KeyHash(bits.whole())),
                _ => unreachable!("{timer:?} is not counted in elapsed time"),
            };
            done += u32::from(counts);
        }
        self.free_all(at, passed, FreedReason::Deadline, effects);
        done
    }

    fn deadline_passed(&self, bits: Bits, deadline: Elapsed, passed: &mut Vec<Slot>) -> bool {
        let Some(slot) = self.tasks.find(bits.task()) else { return false };
        let current = self.is_claimed(slot) && self.tasks[slot].deadline() == deadline;
        let freed = current && self.recovery(slot) == Recovery::Auto;
        if freed {
            passed.push(slot);
        }
        freed
    }

    /// Delays, expiries, retentions of a task's own and dedup windows.
    fn pulse_wall(&mut self, at: Position, limit: u32, effects: &mut Effects) -> u32 {
        let mut done = 0;
        while done < limit
            && let Some((_, timer)) = self.wall_timers.pop_due(at.wall.millis())
        {
            let counts = match timer {
                Timer::Delay(bits) => {
                    let slot = self.waiting(bits, StateKind::Delayed);
                    slot.map(|slot| self.become_ready(at, slot, effects)).is_some()
                }
                Timer::Expiry(bits) => {
                    let slot =
                        self.tasks.find(bits.task()).filter(|&slot| self.tasks[slot].state.is_waiting());
                    slot.map(|slot| self.expire(at, slot, effects)).is_some()
                }
                Timer::OwnRetention(bits) => {
                    let slot = self.tasks.find(bits.task());
                    slot.map(|slot| self.forget(at, slot, effects)).is_some()
                }
                Timer::Window(bits) => self.end_window(KeyHash(bits.whole())),
                _ => unreachable!("{timer:?} is not counted in wall time"),
            };
            done += u32::from(counts);
        }
        done
    }

    /// The task of a timer, if it waits in that state and no purge has marked it.
    fn waiting(&self, bits: Bits, state: StateKind) -> Option<Slot> {
        let slot = self.tasks.find(bits.task())?;
        let task = &self.tasks[slot];
        (task.state == state && !self.queues[task.queue].purged(task)).then_some(slot)
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
