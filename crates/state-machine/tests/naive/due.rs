//! What time does, in the naive model: always the oldest of what is due, found by looking at everything.

use model::{FreedReason, Recovery, StateKind, TaskId};

use super::{Naive, Queue, St, Task};

/// One thing that is due. At the same time they go in this order, then by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Deadline(u128),
    Backoff(u128),
    Delay(u128),
    Expiry(u128),
    OwnRetention(u128),
    Window(u128),
    Request(u128),
}

impl Naive {
    /// Does at most `limit` of what is due, and says how much it did.
    pub(crate) fn pulse(&mut self, limit: u64) -> u64 {
        let mut done = self.due_elapsed(limit);
        done += self.due_wall(limit - done);
        done += self.retention(limit - done);
        done += self.purges(limit - done);
        while done < limit && self.outcomes.first().is_some_and(|outcome| outcome.until <= self.elapsed) {
            self.outcomes.remove(0);
            done += 1;
        }
        done
    }

    /// Deadlines, backoffs and request ids. Tasks whose deadline passed are freed together.
    fn due_elapsed(&mut self, limit: u64) -> u64 {
        let mut passed: Vec<TaskId> = Vec::new();
        let mut done = 0;
        while done < limit {
            let not_yet = |due: &&(u64, Due)| !passed.iter().any(|id| due.1 == Due::Deadline(id.bits()));
            let all = self.all_elapsed();
            let Some(&(_, due)) = all.iter().filter(not_yet).min() else { break };
            match due {
                Due::Deadline(id) => passed.push(task_id(id)),
                Due::Backoff(id) => self.wait_is_over(self.at(id)),
                Due::Request(key) => self.requests.retain(|request| request.key.0 != key),
                other => unreachable!("{other:?} is not counted in elapsed time"),
            }
            done += 1;
        }
        self.free_many(&passed, FreedReason::Deadline);
        done
    }

    /// For a task that a purge has marked this is the end.
    fn wait_is_over(&mut self, i: usize) {
        if self.tasks[i].marked.is_some() {
            self.end(i, StateKind::Cancelled, None);
        } else {
            self.enter(i, St::Ready);
        }
    }

    fn all_elapsed(&self) -> Vec<(u64, Due)> {
        let now = self.elapsed;
        let mut due = Vec::new();
        for (i, task) in self.tasks.iter().enumerate() {
            let id = task.id.bits();
            match &task.st {
                St::Claimed(held) if held.deadline <= now && self.recovery(i) == Recovery::Auto => {
                    due.push((held.deadline.0, Due::Deadline(id)));
                }
                St::Retrying { due: at } if *at <= now => due.push((at.0, Due::Backoff(id))),
                _ => {}
            }
        }
        let requests = self.requests.iter().filter(|request| request.until <= now);
        due.extend(requests.map(|request| (request.until.0, Due::Request(request.key.0))));
        due
    }

    /// Delays, expiries, retentions that tasks asked for themselves, and dedup windows.
    fn due_wall(&mut self, limit: u64) -> u64 {
        let mut done = 0;
        while done < limit {
            let Some((_, due)) = self.all_wall().into_iter().min() else { break };
            match due {
                Due::Delay(id) => {
                    let i = self.at(id);
                    self.tasks[i].since = self.wall;
                    self.wait_is_over(i);
                }
                Due::Expiry(id) => {
                    self.end(self.at(id), StateKind::Expired, None);
                }
                Due::OwnRetention(id) => self.forget(self.at(id)),
                Due::Window(key) => self.end_window(key),
                other => unreachable!("{other:?} is not counted in wall time"),
            }
            done += 1;
        }
        done
    }

    fn all_wall(&self) -> Vec<(u64, Due)> {
        let mut due = Vec::new();
        for task in &self.tasks {
            let id = task.id.bits();
            match task.st {
                St::Delayed { due: at } => due.push((at, Due::Delay(id))),
                St::Ended { at, kind, .. } if kind != StateKind::Dead => {
                    due.extend(task.retention.map(|kept| (at.after(kept), Due::OwnRetention(id))));
                }
                _ => {}
            }
            if let (Some(at), true) = (task.expires_at, task.kind().is_waiting()) {
                due.push((at, Due::Expiry(id)));
            }
            if let (Some(dedup), Some(until), true) = (task.dedup, task.dedup_until, task.dedup_held) {
                due.push((until, Due::Window(dedup.key.0)));
            }
        }
        due.extend(self.gone_keys.iter().map(|gone| (gone.until, Due::Window(gone.key.0))));
        due.into_iter().filter(|(at, _)| *at <= self.wall).map(|(at, due)| (at.millis(), due)).collect()
    }

    fn end_window(&mut self, key: u128) {
        self.gone_keys.retain(|gone| gone.key.0 != key);
        let has = |task: &&mut Task| task.dedup_held && task.dedup.is_some_and(|dedup| dedup.key.0 == key);
        self.tasks.iter_mut().filter(has).for_each(|task| task.dedup_held = false);
        self.remove_dropped();
    }

    /// Ended and dead tasks whose queue's retention is over, queue by queue, in the order of their ends.
    fn retention(&mut self, limit: u64) -> u64 {
        let mut done = 0;
        let queues: Vec<Queue> = self.queues.clone();
        for queue in queues {
            let policy = queue.settings.policy;
            for (dead, kept) in [(false, policy.retention), (true, policy.dead_retention)] {
                while done < limit {
                    let ended = |task: &Task| match task.st {
                        St::Ended { kind, at, nth, .. } if task.queue == queue.name => {
                            let counts =
                                (kind == StateKind::Dead) == dead && (dead || task.retention.is_none());
                            counts.then_some((nth, at))
                        }
                        _ => None,
                    };
                    let all = self.tasks.iter().enumerate().filter_map(|(i, task)| Some((ended(task)?, i)));
                    let Some(((_, at), i)) = all.min() else { break };
                    if at.after(kept) > self.wall {
                        break;
                    }
                    self.forget(i);
                    done += 1;
                }
            }
        }
        done
    }

    /// Marked tasks, queue by queue, in the order in which they were marked.
    fn purges(&mut self, limit: u64) -> u64 {
        let mut done = 0;
        for name in self.queues.iter().map(|queue| queue.name.clone()).collect::<Vec<_>>() {
            while done < limit {
                let marked = |i: &usize| self.tasks[*i].queue == name && self.tasks[*i].marked.is_some();
                let first = (0..self.tasks.len()).filter(marked).min_by_key(|i| self.tasks[*i].marked);
                let Some(i) = first else { break };
                self.end(i, StateKind::Cancelled, None);
                done += 1;
            }
        }
        done
    }

    fn at(&self, id: u128) -> usize {
        self.find(task_id(id)).expect("it was found a moment ago")
    }
}

fn task_id(bits: u128) -> TaskId {
    TaskId::from_bits(bits).expect("it was an id a moment ago")
}
