//! What a command did, in lines: from its effects, its reply or its rejection.
//!
//! Silence is the plain case: an enqueue that made a ready task, a policy that was set.

use model::{Claimed, Command, Enqueued, Event, FreedReason, Rejection, Reply, Settled, StateKind, TaskId};
use state_machine::Effect;

use super::{Script, secs, wall};

impl Script {
    /// Applies a command and tells what it did. `names` are the tasks of an enqueue.
    pub(super) fn apply(&mut self, verb: &str, names: &[String], command: Command) {
        let outcome = self.pair.apply(command);
        let effects = std::mem::take(&mut self.pair.last_effects);
        let before = self.trace.len();
        let mut ended: Option<String> = None;
        let mut messages = Vec::new();
        for effect in &effects {
            match effect {
                Effect::Happened { task, event, .. } => self.event(*task, event, &mut ended),
                Effect::Forget { task } => {
                    let line = format!("{} forgotten", self.name_of(*task));
                    self.say(line);
                }
                Effect::Output { task, output } => {
                    let line = format!("{} output {}", self.name_of(*task), String::from_utf8_lossy(output));
                    self.say(line);
                }
                Effect::Outbox { target } => messages.push(*target),
                Effect::Keep { .. } | Effect::Detail { .. } | Effect::Ready { .. } => {}
            }
        }
        messages.dedup();
        for target in messages {
            let count = effects.iter().filter(|effect| **effect == Effect::Outbox { target }).count();
            let all = self.pair.shard.outbox(target, usize::MAX, usize::MAX);
            for message in &all[all.len() - count..] {
                let name = self.name_of(message.task.id);
                self.say(format!("{name} → outbox for shard {target} #{}", message.seq));
            }
        }
        match outcome {
            Ok(reply) => self.reply(verb, names, &reply, &effects, before),
            Err(rejection) => {
                let line = self.rejection(&rejection);
                self.say(line);
            }
        }
    }

    fn attempts(&self, id: TaskId) -> String {
        let task = self.pair.shard.task(id);
        task.map_or(String::new(), |task| format!(", attempts={}/{}", task.attempts, task.attempts_max))
    }

    fn due(&self, id: TaskId) -> String {
        let due = self.pair.shard.task(id).and_then(|task| task.due);
        due.map_or(String::new(), |due| format!(" due={}", wall(due)))
    }

    /// One line for one event. A freed task that ends with it is told in one line, by its end.
    fn event(&mut self, id: TaskId, event: &Event, freed: &mut Option<String>) {
        let name = self.name_of(id);
        let from = self.states.get(&id).copied();
        let to = state_after(event);
        if let Some(to) = to {
            self.states.insert(id, to);
        }
        let arrow = match (from, to) {
            (Some(from), Some(to)) => format!("{name} {from} → {to}"),
            (None, Some(to)) => format!("{name} → {to}"),
            (_, None) => name.clone(),
        };
        let line = match event {
            Event::Enqueued { state: StateKind::Ready } => return,
            Event::Enqueued { .. } | Event::BecameDelayed => format!("{arrow}{}", self.due(id)),
            Event::BecameReady | Event::Acked { .. } => arrow,
            Event::Claimed { worker, fence, .. } => {
                let until = self.pair.model.deadline(id).expect("a claim outlives its command");
                format!("{arrow} {worker} fence={fence} until={}", secs(until.0))
            }
            Event::Freed { reason, state, .. } => {
                let attempts = if reason.uses_attempt() { self.attempts(id) } else { String::new() };
                let why = format!("{}{attempts}", freed_by(*reason));
                if state.is_ended() {
                    *freed = Some(format!("{arrow} ({why}"));
                    return;
                }
                format!("{arrow}{} ({why})", self.due(id))
            }
            Event::Failed { failure, .. } => {
                format!("{arrow}{} ({}{})", self.due(id), failure.error, self.attempts(id))
            }
            Event::CancelRequested => format!("{name} asked to stop"),
            Event::Ended { reason, .. } => match freed.take() {
                Some(freed) => format!("{freed}: {reason})"),
                None => format!("{arrow} ({reason})"),
            },
            Event::Requeued { .. } => format!("{arrow} (requeued)"),
        };
        self.say(line);
    }

    fn reply(&mut self, verb: &str, names: &[String], reply: &Reply, effects: &[Effect], before: usize) {
        let told = |id: TaskId| {
            effects.iter().any(|effect| matches!(effect, Effect::Happened { task, .. } if *task == id))
        };
        match reply {
            Reply::Enqueued(results) => {
                for (name, result) in names.iter().zip(results) {
                    self.enqueued(name, result);
                }
            }
            Reply::Claimed(claimed) if claimed.is_empty() => self.say("nothing to claim".to_owned()),
            Reply::Claimed(claimed) => {
                for one in claimed.iter().filter(|one| !told(one.id)) {
                    self.still_claimed(one);
                }
            }
            Reply::Settled(settled) if !told(settled.id) => self.again(settled),
            Reply::Settled(_) | Reply::Done => {}
            Reply::Held { deadline, cancel_requested } => {
                let stop = if *cancel_requested { ", asked to stop" } else { "" };
                self.say(format!("held until={}{stop}", wall(*deadline)));
            }
            Reply::Count(count) if verb == "purge" => self.say(format!("{count} will be cancelled")),
            Reply::Count(0) if verb == "end-session" => self.say("nothing to free".to_owned()),
            Reply::Count(0) => self.say("nothing due".to_owned()),
            Reply::Count(count) if self.trace.len() == before => self.say(format!("{count} forgotten")),
            Reply::Count(_) => {}
            Reply::Upto(upto) => self.say(format!("has all up to #{upto}")),
        }
    }

    fn enqueued(&mut self, name: &str, result: &Result<Enqueued, Rejection>) {
        match result {
            Ok(Enqueued { id, duplicate: true, state }) => {
                let holder = self.name_of(*id);
                self.say(format!("{name} duplicate of {holder} ({state})"));
            }
            Ok(_) => {}
            Err(rejection) => {
                let line = format!("{name} {}", self.rejection(rejection));
                self.say(line);
            }
        }
    }

    fn still_claimed(&mut self, claimed: &Claimed) {
        let name = self.name_of(claimed.id);
        self.say(format!("{name} still claimed fence={} until={}", claimed.fence, secs(claimed.deadline.0)));
    }

    fn again(&mut self, settled: &Settled) {
        let name = self.name_of(settled.id);
        let due = settled.due.map_or(String::new(), |due| format!(" due={}", wall(due)));
        self.say(format!("{name} answered again: {}{due}", settled.state));
    }

    fn rejection(&self, rejection: &Rejection) -> String {
        let facts = match rejection {
            Rejection::NotFound { .. } => String::new(),
            Rejection::UnknownQueue { queue } | Rejection::Moved { queue } => format!(" queue={queue}"),
            Rejection::NotClaimed { state, .. }
            | Rejection::NotReady { state, .. }
            | Rejection::AlreadyEnded { state, .. }
            | Rejection::NotEnded { state, .. } => format!(" state={state}"),
            Rejection::StaleToken { current, .. } => format!(" current={current}"),
            Rejection::NotUnique { holder } | Rejection::DedupMismatch { holder } => {
                format!(" holder={}", self.name_of(*holder))
            }
            Rejection::QueueFull { count, limit, .. } => format!(" {limit} reached at {count}"),
            Rejection::NotAtomic { n, .. } => format!(" because of task {n}: nothing was enqueued"),
            Rejection::TooManyQueues { count, .. } => format!(" there are {count}"),
            Rejection::StaleVersion { current, .. } => format!(" current={current}"),
            Rejection::NotEmpty { count, .. } => format!(" count={count}"),
            // Scripts are about shards.
            Rejection::NoCluster
            | Rejection::UnknownNode { .. }
            | Rejection::NodeNeeded { .. }
            | Rejection::TooManyNodes { .. } => unreachable!("only the catalog says {rejection}"),
        };
        format!("rejected {}{facts}", rejection.code())
    }
}

fn freed_by(reason: FreedReason) -> &'static str {
    match reason {
        FreedReason::Deadline => "deadline passed",
        FreedReason::Silent => "session silent",
        FreedReason::Closed => "session closed",
        FreedReason::Drained => "session drained",
        FreedReason::Released => "released",
        FreedReason::PutBack => "put back",
    }
}

fn state_after(event: &Event) -> Option<StateKind> {
    match event {
        Event::Enqueued { state }
        | Event::Freed { state, .. }
        | Event::Failed { state, .. }
        | Event::Ended { state, .. }
        | Event::Requeued { state } => Some(*state),
        Event::BecameReady => Some(StateKind::Ready),
        Event::BecameDelayed => Some(StateKind::Delayed),
        Event::Claimed { .. } => Some(StateKind::Claimed),
        Event::Acked { .. } => Some(StateKind::Done),
        Event::CancelRequested => None,
    }
}
