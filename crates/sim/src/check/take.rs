//! Takes a call in: what it says of which task.

use model::{GroupId, TaskId};

use super::births::Birth;
use super::facts::{Name, Wide};
use super::report::Promise;
use super::task::{Act, Heard, NEVER, Task, What, When};
use super::{Checker, timeline};
use crate::history::{Call, Claim, Deed, Enqueue, Got, Indexes, OnTasks, Outcome, Settle};

/// The hash under which a text is kept. 128 bits: no two payloads of a run meet.
pub(super) fn hash(text: &str) -> u128 {
    xxhash_rust::xxh3::xxh3_128(text.as_bytes())
}

impl Checker {
    pub(super) fn take_call(&mut self, line: u32, call: Call) -> Result<(), String> {
        self.calls += 1;
        let verb = call.deed.verb();
        let heard = match &call.outcome {
            Outcome::Ok => Heard::Ok,
            Outcome::Unknown => Heard::Unknown,
            Outcome::Rejected(code) => match code.as_str() {
                "not_found" => Heard::NotFound,
                "stale_token" | "not_claimed" | "already_ended" => Heard::NotHeld,
                _ => Heard::Refused,
            },
        };
        let end = if heard == Heard::Unknown { NEVER } else { call.end_us };
        let when = When { line, client: self.names.of(&call.client), verb, heard, start: call.start_us, end };
        if when.is_ok() {
            self.coverage.succeeded(verb);
        }
        self.take_index(&call.deed, &call.index, when);
        match call.deed {
            Deed::Enqueue(enqueue) => self.take_enqueue(when, &enqueue),
            Deed::Claim(claim) => self.take_claim(when, claim),
            Deed::Ack(ack) => self.take_ack(when, &ack),
            Deed::Fail(fail) => {
                let Settle { fence, retry_in_ms, fatal, state, attempt, .. } = fail;
                self.act(fail.task, when, What::Failed { fence, retry_in_ms, fatal, state, attempt });
            }
            Deed::Release(release) => {
                let (fence, delay_ms) = (release.fence, release.retry_in_ms.unwrap_or(0));
                let Settle { state, attempt, .. } = release;
                self.act(release.task, when, What::Released { fence, delay_ms, state, attempt });
            }
            Deed::Extend(hold) => {
                self.act(hold.task, when, What::Extended { fence: hold.fence, hold_ms: hold.hold_ms });
            }
            Deed::Progress(hold) => self.act(hold.task, when, What::Progressed { fence: hold.fence }),
            Deed::PutBack(on) => self.take_on(when, &on, Wide::PutBack),
            Deed::Discard(on) => self.take_on(when, &on, Wide::Discard),
            Deed::Cancel(on) => self.take_on(when, &on, Wide::Cancel),
            Deed::Requeue(on) => self.take_on(when, &on, Wide::Requeue),
            Deed::Purge { queue } => self.take_wide(when, &queue, Wide::Purge),
            Deed::EndSession { session, worker } => {
                let session = session.map(|session| self.names.of(&session));
                let worker = worker.map(|worker| self.names.of(&worker));
                if when.may_be() {
                    self.facts.end_session(session, worker, when);
                }
            }
            Deed::Get { task, queue, payload, state } => {
                self.act(task, when, What::Seen { state });
                let queue = queue.map(|queue| self.names.of(&queue));
                self.seen_as(task, queue, payload.as_deref(), when);
            }
            Deed::Counts(counts) => {
                if when.is_ok() {
                    let queue = self.names.of(&counts.queue);
                    self.counts.add(queue, when, counts);
                }
            }
        }
        Ok(())
    }

    /// Where the answer stands. Of a call over many tasks it says only "by now", so it orders nothing.
    fn take_index(&mut self, deed: &Deed, indexes: &Indexes, when: When) {
        let kind = match deed {
            Deed::Get { .. } => timeline::Kind::Read,
            // A shard that gave nothing may have answered without an entry.
            Deed::Claim(claim) => {
                for (group, index) in &indexes.0 {
                    if when.is_ok() && claim.got.iter().any(|got| got.task.shard().group() == *group) {
                        self.timeline.add(*group, *index, timeline::Kind::Write, when);
                    }
                }
                return;
            }
            Deed::Purge { .. } | Deed::EndSession { .. } | Deed::Counts(_) => return,
            Deed::PutBack(on) | Deed::Discard(on) | Deed::Cancel(on) | Deed::Requeue(on)
                if on.task.is_none() =>
            {
                return;
            }
            _ => timeline::Kind::Write,
        };
        if when.heard != Heard::Unknown {
            for &(group, index) in indexes.0.iter().filter(|(group, _)| *group != GroupId::CATALOG) {
                self.timeline.add(group, index, kind, when);
            }
        }
    }

    fn task(&mut self, id: TaskId) -> &mut Task {
        self.tasks.entry(id).or_insert_with(|| Task::new(id))
    }

    fn act(&mut self, id: TaskId, when: When, what: What) {
        // Of a refusal only those tell something that speak of the task.
        if when.heard != Heard::Refused {
            self.task(id).acts.push(Act { when, what });
        }
    }

    /// Somebody saw the task's queue and payload, which never change.
    fn seen_as(&mut self, id: TaskId, queue: Option<Name>, payload: Option<&str>, when: When) {
        let payload = payload.map(hash);
        let task = self.tasks.entry(id).or_insert_with(|| Task::new(id));
        let another_queue = task.queue.zip(queue).is_some_and(|(known, seen)| known != seen);
        let another_payload = task.payload.zip(payload).is_some_and(|(known, seen)| known != seen);
        if task.queue.is_none()
            && let Some(queue) = queue
        {
            self.facts.queue_mut(queue).tasks += 1;
        }
        task.queue = task.queue.or(queue);
        task.payload = task.payload.or(payload);
        if another_queue || another_payload {
            let what = if another_payload { "payload" } else { "queue" };
            let names = &self.names;
            self.findings.add(Promise::NotInvented, || {
                format!("task {id}: {} names another {what} than an earlier line", when.tell(names))
            });
        }
    }

    fn take_enqueue(&mut self, when: When, enqueue: &Enqueue) {
        let queue = self.names.of(&enqueue.queue);
        if let Some(task) = enqueue.task.filter(|_| when.is_ok()) {
            self.act(task, when, What::Enqueued { duplicate: enqueue.duplicate });
            self.seen_as(task, Some(queue), Some(&enqueue.payload), when);
        }
        if when.may_be() {
            self.births.add(Birth::of_enqueue(when, queue, enqueue));
        }
    }

    fn take_claim(&mut self, when: When, claim: Claim) {
        let request = claim.request.as_deref().map(|request| self.names.of(request));
        if let Some(request) = request {
            self.facts.request(request, when.start);
        }
        // With a request id a router may have asked twice, and been told the second time only what still held.
        let is_unknown = when.heard == Heard::Unknown || request.is_some();
        for queue in claim.queues.iter().filter(|_| when.may_be()) {
            let queue = self.names.of(queue);
            let facts = self.facts.queue_mut(queue);
            facts.claims += 1;
            facts.unknown_claims += u64::from(is_unknown);
        }
        if !when.is_ok() {
            return;
        }
        let worker = self.names.of(&claim.worker);
        let session = claim.session.as_deref().map(|session| self.names.of(session));
        for Got { task, queue, payload, fence, attempt, hold_ms } in claim.got {
            let hold_ms = hold_ms.or(claim.hold_ms);
            self.act(task, when, What::Claimed { fence, attempt, hold_ms, worker, session, request });
            let queue = self.names.of(&queue);
            self.seen_as(task, Some(queue), Some(&payload), when);
        }
    }

    fn take_ack(&mut self, when: When, ack: &Settle) {
        self.act(ack.task, when, What::Acked { fence: ack.fence });
        if when.may_be() {
            for (n, then) in (0u32..).zip(&ack.then) {
                let queue = self.names.of(&then.queue);
                self.births.add(Birth::of_then(when, queue, then, ack.task, n));
            }
        }
    }

    fn take_on(&mut self, when: When, on: &OnTasks, wide: Wide) {
        let Some(task) = on.task else {
            let queue = on.queue.as_deref().unwrap_or_default();
            return self.take_wide(when, queue, wide);
        };
        let what = match wide {
            Wide::PutBack => What::PutBack,
            Wide::Discard => What::Discarded,
            Wide::Cancel => What::Cancelled { state: on.state },
            Wide::Requeue => What::Requeued,
            Wide::Purge => unreachable!("a purge names a queue"),
        };
        self.act(task, when, what);
    }

    fn take_wide(&mut self, when: When, queue: &str, wide: Wide) {
        if when.may_be() {
            let queue = self.names.of(queue);
            self.facts.queue_mut(queue).wide.push((wide, when));
        }
    }
}
