//! What a script can look at: tasks, queues, reasons, keys, sessions and the outbox.

use model::{KeyHash, StateKind};
use state_machine::view::{TaskView, Why};

use super::words::Words;
use super::{Script, queue, shard, wall};

impl Script {
    pub(super) fn show(&mut self, verb: &str, words: &mut Words<'_>) {
        match verb {
            "show" if words.take("queue") => {
                let name = words.bare().unwrap_or("mail");
                self.show_queue(name);
            }
            "show" => {
                let name = words.next("a task");
                self.show_task(name);
            }
            "why" => {
                let name = words.next("a task");
                self.show_why(name);
            }
            "find" => {
                let of = queue(words.option("queue").unwrap_or("mail"));
                let order = words.option("order").map(|key| KeyHash::new(&of, key));
                let key = KeyHash::new(&of, words.next("a dedup key"));
                let task = self.pair.shard.task_of_dedup(order.map_or(key, |place| key.within(place)));
                let line = task.map_or("nobody".to_owned(), |id| self.name_of(id));
                self.say(line);
            }
            "session" => {
                let session = super::command::session(words.next("a session"));
                for claim in self.pair.shard.session_claims(session) {
                    let stop = if claim.cancel_requested { " asked to stop" } else { "" };
                    let line = format!("{} fence={}{stop}", self.name_of(claim.task), claim.fence);
                    self.say(line);
                }
            }
            _ => {
                let target = shard(super::words::number(words.next("a shard")) as u16);
                let messages = self.pair.shard.outbox(target, usize::MAX, usize::MAX);
                if messages.is_empty() {
                    self.say(format!("nothing for shard {target}"));
                }
                for message in messages {
                    let line = format!("#{} {}", message.seq, self.name_of(message.task.id));
                    self.say(line);
                }
            }
        }
    }

    fn show_task(&mut self, name: &str) {
        let id = self.id(name);
        let line = match self.pair.shard.task(id) {
            Some(task) => format!("{name} {}", facts(&task)),
            None => format!("{name} is not there"),
        };
        self.say(line);
    }

    fn show_queue(&mut self, name: &str) {
        let Some(view) = self.pair.shard.queue(&queue(name)) else {
            return self.say(format!("{name} is not there"));
        };
        let counts = StateKind::ALL.into_iter().filter(|state| view.depth.of(*state) > 0);
        let depth: Vec<_> = counts.map(|state| format!("{state}={}", view.depth.of(state))).collect();
        let totals = view.totals;
        let paused = if view.settings.paused { " paused" } else { "" };
        self.say(format!(
            "{name}{paused} [{}] enqueued={} done={} failed={} dead={} freed={}",
            depth.join(" "),
            totals.enqueued,
            totals.done,
            totals.failed,
            totals.dead,
            totals.freed
        ));
    }

    fn show_why(&mut self, name: &str) {
        let id = self.id(name);
        for why in self.pair.shard.why(id).unwrap_or_default() {
            let text = match why {
                Why::Delayed { due } => format!("delayed until {}", wall(due)),
                Why::BackingOff { due, attempts, attempts_max } => {
                    format!("backing off until {} (attempts={attempts}/{attempts_max})", wall(due))
                }
                Why::OrderKeyBusy { holder, holder_state, before } => {
                    format!("waits for {} ({holder_state}), {before} before it", self.name_of(holder))
                }
                Why::Paused => "its queue is paused".to_owned(),
                Why::InLine { ahead_max } => format!("in line behind at most {ahead_max}"),
                Why::NoWorker => "nobody asks for it".to_owned(),
                Why::Held { worker, deadline, manual } => {
                    let by_hand = if manual { ", freed by hand only" } else { "" };
                    format!("held by {worker} until {}{by_hand}", wall(deadline))
                }
                Why::Ended { state } => format!("ended as {state}"),
            };
            self.say(format!("{name}: {text}"));
        }
    }
}

fn facts(task: &TaskView) -> String {
    let mut facts = format!("{} attempts={}/{}", task.state, task.attempts, task.attempts_max);
    let mut add = |fact: Option<String>| facts.extend(fact.map(|fact| format!(" {fact}")));
    add((task.fence.0 > 0).then(|| format!("fence={}", task.fence)));
    add(task.due.map(|due| format!("due={}", wall(due))));
    add(task.expires_at.map(|at| format!("expires={}", wall(at))));
    add(task.ended_at.map(|at| format!("ended={}", wall(at))));
    if let Some(claim) = &task.claim {
        add(Some(format!("worker={} until={}", claim.worker, wall(claim.deadline))));
        add(claim.progress.as_ref().map(|(percent, note)| format!("progress={percent}% {note:?}")));
        add(claim.cancel_requested.then(|| "asked to stop".to_owned()));
    }
    facts
}
