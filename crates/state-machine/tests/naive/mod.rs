//! A shard that is slow and obviously right: a list of tasks, searched from end to end for everything.
//!
//! Written from the contract (DESIGN §3), not from the implementation: no indexes, no timers, no
//! incremental counts. Whatever it says is derived from the list at the moment of asking. Where a
//! rule is a choice, the choice is named in one place here. Next: `settle` (what a worker or a person
//! does to one task), `due` (what time does), `look` (what it shows).

// Each test binary uses its own part of the model.
#![allow(dead_code)]

mod due;
mod look;
mod settle;

use model::command::{Claim, ClaimById, Dedup, OutboxMessage, Unique, UniqueUntil};
use model::{
    Claimed, Command, Digest, Elapsed, Enqueued, Fence, FollowUp, KeyHash, Millis, NewTask, Position,
    QueueName, QueuePolicy, QueueSettings, Rejection, Reply, RetryOverride, RetryPolicy, SessionId, Settled,
    ShardId, Spread, Start, StateKind, TaskId, WallTime, WorkerName,
};
use state_machine::view::Totals;

/// How long outcomes and request ids are remembered.
pub(crate) const KEPT: Millis = Millis::secs(60);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum St {
    Delayed { due: WallTime },
    Retrying { due: Elapsed },
    Blocked,
    Ready,
    Claimed(Held),
    Ended { kind: StateKind, at: WallTime, at_elapsed: Elapsed, nth: u64 },
}

/// A claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Held {
    pub(crate) worker: WorkerName,
    pub(crate) session: Option<SessionId>,
    pub(crate) since: WallTime,
    pub(crate) deadline: Elapsed,
    pub(crate) hold: Millis,
    pub(crate) cancel: bool,
    pub(crate) progress: Option<(u8, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) queue: QueueName,
    pub(crate) kind_hash: u32,
    pub(crate) digest: Digest,
    pub(crate) priority: u8,
    pub(crate) st: St,
    /// Since when it can, or could, be claimed.
    pub(crate) since: WallTime,
    /// Enqueue order; a requeue gets a new one.
    pub(crate) seq: u64,
    /// Its own delay, while it is blocked.
    pub(crate) start: Option<WallTime>,
    pub(crate) order: Option<KeyHash>,
    /// Scoped to its place.
    pub(crate) dedup: Option<Dedup>,
    /// When the dedup key is free again; nothing while the task lives.
    pub(crate) dedup_until: Option<WallTime>,
    pub(crate) dedup_held: bool,
    /// Scoped to its place.
    pub(crate) unique: Option<Unique>,
    pub(crate) unique_held: bool,
    pub(crate) hold: Option<Millis>,
    pub(crate) retry: RetryOverride,
    pub(crate) expires_at: Option<WallTime>,
    pub(crate) retention: Option<Millis>,
    pub(crate) attempts: u32,
    /// Claims lost in a row.
    pub(crate) lost: u32,
    pub(crate) fence: Fence,
    pub(crate) enqueued_at: WallTime,
    /// What the last fence was answered, and to which verb.
    pub(crate) answer: Option<(Verb, Settled)>,
    /// Its place among what purges will cancel.
    pub(crate) marked: Option<u64>,
    /// Its place in the line of its state.
    pub(crate) line: i64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verb {
    Ack,
    Fail,
}

impl Task {
    pub(crate) fn kind(&self) -> StateKind {
        match &self.st {
            St::Delayed { .. } => StateKind::Delayed,
            St::Retrying { .. } => StateKind::Retrying,
            St::Blocked => StateKind::Blocked,
            St::Ready => StateKind::Ready,
            St::Claimed(_) => StateKind::Claimed,
            St::Ended { kind, .. } => *kind,
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        !self.kind().is_ended()
    }

    pub(crate) fn has_expired(&self, wall: WallTime) -> bool {
        self.expires_at.is_some_and(|at| at <= wall)
    }

    pub(crate) fn held(&mut self) -> &mut Held {
        match &mut self.st {
            St::Claimed(held) => held,
            other => panic!("asked for the claim of a task that is {other:?}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Queue {
    pub(crate) name: QueueName,
    pub(crate) settings: QueueSettings,
    pub(crate) totals: Totals,
    /// Shows itself no more, and goes with its last ended task.
    pub(crate) dropped: bool,
}

/// A dedup key whose task is gone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GoneKey {
    pub(crate) key: KeyHash,
    pub(crate) queue: QueueName,
    pub(crate) task: TaskId,
    pub(crate) digest: Digest,
    pub(crate) state: StateKind,
    pub(crate) until: WallTime,
}

/// The answer to a final fence whose task is gone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) fence: Fence,
    pub(crate) verb: Verb,
    pub(crate) settled: Settled,
    pub(crate) until: Elapsed,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) key: KeyHash,
    pub(crate) until: Elapsed,
    pub(crate) claims: Vec<(TaskId, Fence)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Naive {
    pub(crate) id: ShardId,
    pub(crate) shards: u16,
    pub(crate) elapsed: Elapsed,
    pub(crate) wall: WallTime,
    pub(crate) queues: Vec<Queue>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) gone_keys: Vec<GoneKey>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) requests: Vec<Request>,
    pub(crate) outbox: Vec<(ShardId, OutboxMessage)>,
    /// Last number given, per target.
    pub(crate) sent: Vec<(ShardId, u64)>,
    /// Last number taken in, per source.
    pub(crate) received: Vec<(ShardId, u64)>,
    fence: u64,
    seq: u64,
    ended: u64,
    marked: u64,
    front: i64,
    back: i64,
}

impl Naive {
    pub(crate) fn new(id: ShardId, shards: u16) -> Naive {
        Naive {
            id,
            shards,
            elapsed: Elapsed(0),
            wall: WallTime::from_millis(0),
            queues: Vec::new(),
            tasks: Vec::new(),
            gone_keys: Vec::new(),
            outcomes: Vec::new(),
            requests: Vec::new(),
            outbox: Vec::new(),
            sent: Vec::new(),
            received: Vec::new(),
            fence: 0,
            seq: 0,
            ended: 0,
            marked: 0,
            front: 0,
            back: 0,
        }
    }

    /// Applies a command. `weighted` is what the shard under test gave to a claim with weights: the
    /// contract says how often each queue is asked, not which one is next, so the model follows the
    /// choice of queues and checks all else.
    pub(crate) fn apply(
        &mut self,
        at: Position,
        command: &Command,
        weighted: Option<&[Claimed]>,
    ) -> Result<Reply, Rejection> {
        let before = (self.elapsed, self.wall);
        self.elapsed = self.elapsed.max(at.elapsed);
        self.wall = self.wall.max(at.wall);
        let outcome = self.apply_now(command, weighted);
        if outcome.is_err() {
            // Nothing changed, not even the time.
            (self.elapsed, self.wall) = before;
        }
        outcome
    }

    fn apply_now(&mut self, command: &Command, weighted: Option<&[Claimed]>) -> Result<Reply, Rejection> {
        match command {
            Command::Enqueue { tasks, atomic } => self.enqueue(tasks, *atomic).map(Reply::Enqueued),
            Command::Claim(claim) => Ok(Reply::Claimed(self.claim(claim, weighted))),
            Command::ClaimById(claim) => self.claim_by_id(claim).map(Reply::Claimed),
            Command::Ack(ack) => self.ack(ack).map(Reply::Settled),
            Command::Fail(fail) => self.fail(fail).map(Reply::Settled),
            Command::Extend { task, fence, hold } => self.extend(*task, *fence, *hold),
            Command::Release { task, fence, delay } => {
                self.release(*task, *fence, *delay).map(Reply::Settled)
            }
            Command::Progress { task, fence, percent, note } => self.progress(*task, *fence, *percent, note),
            Command::PutBack(on) => self.put_back(*on).map(Reply::Settled),
            Command::Discard(on) => self.discard(*on).map(Reply::Settled),
            Command::Cancel { task, .. } => self.cancel(*task).map(Reply::Settled),
            Command::Requeue(on) => self.requeue(*on).map(Reply::Settled),
            Command::Purge { queue } => self.purge(queue).map(Reply::Count),
            Command::EndSession { session, reason, .. } => {
                Ok(Reply::Count(self.end_session(*session, *reason)))
            }
            Command::SetQueue { queue, settings } => self.set_queue(queue, settings),
            Command::DropQueue { queue, version } => self.drop_queue(queue, *version),
            Command::Deliver { source, messages } => Ok(Reply::Upto(self.deliver(*source, messages))),
            Command::Delivered { target, upto } => {
                self.outbox.retain(|(to, message)| to != target || message.seq > *upto);
                Ok(Reply::Done)
            }
            Command::Pulse { limit } => Ok(Reply::Count(self.pulse(u64::from(*limit)))),
        }
    }

    // ---- finding things, from one end to the other ----

    pub(crate) fn find(&self, id: TaskId) -> Option<usize> {
        self.tasks.iter().position(|task| task.id == id)
    }

    pub(crate) fn queue(&self, name: &QueueName) -> Option<&Queue> {
        self.queues.iter().find(|queue| queue.name == *name)
    }

    pub(crate) fn queue_mut(&mut self, name: &QueueName) -> &mut Queue {
        if self.queue(name).is_none() {
            self.queues.push(Queue {
                name: name.clone(),
                settings: QueueSettings::default(),
                totals: Totals::default(),
                dropped: false,
            });
        }
        self.queues.iter_mut().find(|queue| queue.name == *name).expect("made above")
    }

    /// The queue, made if it is not there; one that was dropped is as new.
    pub(crate) fn use_queue(&mut self, name: &QueueName) -> &mut Queue {
        let queue = self.queue_mut(name);
        if queue.dropped {
            queue.dropped = false;
            queue.settings.policy = QueuePolicy::default();
        }
        queue
    }

    pub(crate) fn settings(&self, name: &QueueName) -> QueueSettings {
        self.queue(name).map(|queue| queue.settings.clone()).unwrap_or_default()
    }

    pub(crate) fn retry_policy(&self, i: usize) -> RetryPolicy {
        let task = &self.tasks[i];
        task.retry.over(self.settings(&task.queue).policy.retry)
    }

    /// A limit of the whole queue, in this shard.
    pub(crate) fn share(&self, settings: &QueueSettings, max: u64) -> u64 {
        match settings.policy.spread {
            Spread::Pinned => max,
            Spread::All => max.div_ceil(u64::from(self.shards)),
        }
    }

    /// Who has a dedup key: its task, what that is, and what it was made of.
    pub(crate) fn dedup_holder(&self, key: KeyHash) -> Option<(TaskId, StateKind, Digest)> {
        let task = self.tasks.iter().find(|task| task.dedup_held && task.dedup.is_some_and(|d| d.key == key));
        let gone = self.gone_keys.iter().find(|gone| gone.key == key);
        task.map(|task| (task.id, task.kind(), task.digest))
            .or(gone.map(|gone| (gone.task, gone.state, gone.digest)))
    }

    pub(crate) fn unique_holder(&self, key: KeyHash) -> Option<TaskId> {
        let holds = |task: &&Task| task.unique_held && task.unique.is_some_and(|unique| unique.key == key);
        self.tasks.iter().find(holds).map(|task| task.id)
    }

    pub(crate) fn dedup_keys(&self, queue: &QueueName) -> u64 {
        let tasks = self.tasks.iter().filter(|task| task.queue == *queue && task.dedup_held).count();
        let gone = self.gone_keys.iter().filter(|gone| gone.queue == *queue).count();
        (tasks + gone) as u64
    }

    // ---- enqueue ----

    fn enqueue(
        &mut self,
        tasks: &[NewTask],
        atomic: bool,
    ) -> Result<Vec<Result<Enqueued, Rejection>>, Rejection> {
        let before = self.clone();
        let results: Vec<_> = tasks.iter().map(|task| self.enqueue_one(task, Limits::Count)).collect();
        let refused = results.iter().position(Result::is_err).filter(|_| atomic);
        let Some(n) = refused else { return Ok(results) };
        *self = before;
        let because = Box::new(results[n].clone().expect_err("it was refused"));
        Err(Rejection::NotAtomic { n, because })
    }

    /// Takes one task in, or says which one it is a duplicate of.
    fn enqueue_one(&mut self, new: &NewTask, limits: Limits) -> Result<Enqueued, Rejection> {
        let settings = self.settings(&new.queue);
        let (dedup, unique) = scoped(new, settings.policy.spread);
        if let Some(i) = self.find(new.id) {
            // The same request again: its reply was lost.
            return Ok(Enqueued { id: new.id, duplicate: true, state: self.tasks[i].kind() });
        }
        if let Some((id, state, digest)) = dedup.and_then(|dedup| self.dedup_holder(dedup.key)) {
            if digest != new.digest {
                return Err(Rejection::DedupMismatch { holder: id });
            }
            return Ok(Enqueued { id, duplicate: true, state });
        }
        if let Some(holder) = unique.and_then(|unique| self.unique_holder(unique.key)) {
            return Err(Rejection::NotUnique { holder });
        }
        if let Limits::Count = limits {
            if settings.policy.spread == Spread::Pinned
                && ShardId::of_queue(&new.queue, self.shards) != self.id
            {
                return Err(Rejection::Moved { queue: new.queue.clone() });
            }
            self.room(&new.queue, &settings, dedup.is_some())?;
        }
        self.use_queue(&new.queue).totals.enqueued += 1;
        self.seq += 1;
        let due = match new.wishes().start {
            Start::Now => None,
            Start::After(delay) => Some(self.wall.after(delay)).filter(|due| *due > self.wall),
            Start::At(at) => Some(at).filter(|due| *due > self.wall),
        };
        self.tasks.push(Task {
            id: new.id,
            queue: new.queue.clone(),
            kind_hash: new.kind_hash,
            digest: new.digest,
            priority: new.priority,
            st: St::Blocked,
            since: self.wall,
            seq: self.seq,
            start: due,
            order: new.wishes().order_key,
            dedup,
            dedup_until: None,
            dedup_held: dedup.is_some(),
            unique,
            unique_held: unique.is_some(),
            hold: new.wishes().hold,
            retry: new.wishes().retry,
            expires_at: new.wishes().expires_in.map(|within| self.wall.after(within)),
            retention: new.wishes().retention,
            attempts: 0,
            lost: 0,
            fence: Fence(0),
            enqueued_at: self.wall,
            answer: None,
            marked: None,
            line: 0,
        });
        let i = self.tasks.len() - 1;
        self.take_turn(i);
        Ok(Enqueued { id: new.id, duplicate: false, state: self.tasks[i].kind() })
    }

    fn room(&self, name: &QueueName, settings: &QueueSettings, keyed: bool) -> Result<(), Rejection> {
        let full = |count, what, limit| Err(Rejection::QueueFull { queue: name.clone(), count, what, limit });
        let live = self.tasks.iter().filter(|task| task.queue == *name && task.is_live()).count() as u64;
        if settings.policy.tasks_max.is_some_and(|max| live >= self.share(settings, max)) {
            return full(live, "tasks", "tasks_max");
        }
        let keys = self.dedup_keys(name);
        if keyed && keys >= self.share(settings, settings.policy.dedup_keys_max) {
            return full(keys, "dedup keys", "dedup_keys_max");
        }
        Ok(())
    }

    /// What a blocked task becomes when it is asked whether its turn has come.
    pub(crate) fn take_turn(&mut self, i: usize) {
        let task = &self.tasks[i];
        let is_head = task.order.is_none_or(|key| self.head(&task.queue, key) == Some(i));
        let start = task.start.filter(|due| *due > self.wall);
        match start {
            _ if !is_head => self.enter(i, St::Blocked),
            Some(due) => self.enter(i, St::Delayed { due }),
            None => {
                self.tasks[i].since = self.wall;
                self.enter(i, St::Ready);
            }
        }
    }

    /// The first live task of an order key.
    pub(crate) fn head(&self, queue: &QueueName, key: KeyHash) -> Option<usize> {
        let of_key = |i: &usize| {
            let task = &self.tasks[*i];
            task.is_live() && task.queue == *queue && task.order == Some(key)
        };
        (0..self.tasks.len()).filter(of_key).min_by_key(|i| self.tasks[*i].seq)
    }

    /// Puts a task into a state, at the back of that state's line.
    pub(crate) fn enter(&mut self, i: usize, st: St) {
        self.back += 1;
        self.tasks[i].line = self.back;
        self.tasks[i].st = st;
    }

    /// Puts a task before all others that are ready.
    pub(crate) fn enter_front(&mut self, i: usize) {
        self.front -= 1;
        self.tasks[i].line = self.front;
        self.tasks[i].st = St::Ready;
    }

    /// What counts in elapsed time, told in wall time, as of now.
    pub(crate) fn wall_of(&self, elapsed: Elapsed) -> WallTime {
        let ahead = self.wall.after(elapsed.since(self.elapsed)).millis();
        WallTime::from_millis(ahead.saturating_sub(self.elapsed.since(elapsed).0))
    }

    // ---- claim ----

    fn claim(&mut self, claim: &Claim, weighted: Option<&[Claimed]>) -> Vec<Claimed> {
        if let Some(same) = claim.request.and_then(|request| self.same_claims(request)) {
            return same;
        }
        let mut claimed = Vec::new();
        let by = |this: &mut Naive, i| this.hand_out(i, &claim.worker, claim.session, claim.hold);
        if let Some(theirs) = weighted {
            let mut theirs: Vec<_> = theirs.iter().collect();
            theirs.sort_by_key(|claimed| claimed.fence);
            for one in theirs {
                assert!(
                    claim.queues.iter().any(|queue| queue.name == one.queue),
                    "a queue that nobody named"
                );
                let Some(i) = self.next_of(&one.queue) else { break };
                claimed.push(by(self, i));
            }
            assert!(claimed.len() <= claim.max as usize, "more than were asked for");
            let none_left = claim.queues.iter().all(|queue| self.next_of(&queue.name).is_none());
            assert!(claimed.len() == claim.max as usize || none_left, "fewer than were ready");
        } else {
            for queue in &claim.queues {
                while claimed.len() < claim.max as usize {
                    let Some(i) = self.next_of(&queue.name) else { break };
                    claimed.push(by(self, i));
                }
            }
        }
        self.remember(claim.request, &claimed);
        claimed
    }

    /// The next task that a claim would get from a queue. Expired ones on the way end.
    pub(crate) fn next_of(&mut self, queue: &QueueName) -> Option<usize> {
        if self.settings(queue).paused {
            return None;
        }
        loop {
            let i = self.first_ready(queue)?;
            if !self.tasks[i].has_expired(self.wall) {
                return Some(i);
            }
            self.end(i, StateKind::Expired, None);
        }
    }

    pub(crate) fn first_ready(&self, queue: &QueueName) -> Option<usize> {
        let ready = |i: &usize| {
            let task = &self.tasks[*i];
            task.queue == *queue && task.st == St::Ready && task.marked.is_none()
        };
        (0..self.tasks.len()).filter(ready).min_by_key(|i| (self.tasks[*i].priority, self.tasks[*i].line))
    }

    fn hand_out(
        &mut self,
        i: usize,
        worker: &WorkerName,
        session: Option<SessionId>,
        hold: Option<Millis>,
    ) -> Claimed {
        assert_eq!(self.tasks[i].kind(), StateKind::Ready, "only a ready task is claimed");
        let hold = hold.or(self.tasks[i].hold).unwrap_or(self.settings(&self.tasks[i].queue).policy.hold);
        self.fence += 1;
        let (fence, elapsed, wall) = (Fence(self.fence), self.elapsed, self.wall);
        let task = &mut self.tasks[i];
        task.fence = fence;
        task.answer = None;
        if task.unique.is_some_and(|unique| unique.until == UniqueUntil::Claimed) {
            task.unique_held = false;
        }
        task.st = St::Claimed(Held {
            worker: worker.clone(),
            session,
            since: wall,
            deadline: elapsed.after(hold),
            hold,
            cancel: false,
            progress: None,
        });
        self.claimed(i)
    }

    fn claimed(&mut self, i: usize) -> Claimed {
        let held = self.tasks[i].held().clone();
        let task = &self.tasks[i];
        Claimed {
            id: task.id,
            queue: task.queue.clone(),
            priority: task.priority,
            attempt: task.attempts + 1,
            fence: task.fence,
            deadline: held.deadline,
            deadline_wall: self.wall_of(held.deadline),
            hold: held.hold,
            enqueued_at: task.enqueued_at,
            ready_since: task.since,
            envelope: bytes::Bytes::new(),
        }
    }

    fn claim_by_id(&mut self, claim: &ClaimById) -> Result<Vec<Claimed>, Rejection> {
        if let Some(same) = claim.request.and_then(|request| self.same_claims(request)) {
            return Ok(same);
        }
        let id = claim.task;
        let i = self.find(id).ok_or(Rejection::NotFound { id })?;
        let (state, expired) = (self.tasks[i].kind(), self.tasks[i].has_expired(self.wall));
        // One that expired, or that a purge has marked, ends at the next pulse: a rejection changes nothing.
        if state != StateKind::Ready || expired || self.tasks[i].marked.is_some() {
            return Err(Rejection::NotReady { id, state });
        }
        let claimed = vec![self.hand_out(i, &claim.worker, claim.session, claim.hold)];
        self.remember(claim.request, &claimed);
        Ok(claimed)
    }

    /// The claims that a request id got, as far as they still hold. A request that got none is not
    /// remembered: there is nothing that a repeat could lose.
    fn same_claims(&mut self, key: KeyHash) -> Option<Vec<Claimed>> {
        let request = self.requests.iter().find(|request| request.key == key)?;
        let claims = request.claims.clone();
        let still = |this: &Naive, (id, fence): (TaskId, Fence)| {
            this.find(id)
                .filter(|i| this.tasks[*i].fence == fence && this.tasks[*i].kind() == StateKind::Claimed)
        };
        let current: Vec<_> = claims.into_iter().filter_map(|claim| still(self, claim)).collect();
        Some(current.into_iter().map(|i| self.claimed(i)).collect())
    }

    fn remember(&mut self, key: Option<KeyHash>, claimed: &[Claimed]) {
        let Some(key) = key.filter(|_| !claimed.is_empty()) else { return };
        let claims = claimed.iter().map(|claimed| (claimed.id, claimed.fence)).collect();
        self.requests.push(Request { key, until: self.elapsed.after(KEPT), claims });
    }

    // ---- between shards ----

    pub(crate) fn follow_up(&mut self, source: TaskId, fence: Fence, n: u32, follow_up: &FollowUp) {
        let id = TaskId::follow_up(source, fence, n, follow_up.shard, self.wall);
        let task = NewTask { id, ..follow_up.task.clone() };
        if follow_up.shard == self.id {
            // Never refused: what cannot be made is not made.
            let _ = self.enqueue_one(&task, Limits::Ignore);
            return;
        }
        let seq = bump(&mut self.sent, follow_up.shard);
        self.outbox.push((follow_up.shard, OutboxMessage { seq, task }));
    }

    fn deliver(&mut self, source: ShardId, messages: &[OutboxMessage]) -> u64 {
        for message in messages {
            let upto = last(&self.received, source);
            if message.seq != upto + 1 {
                continue;
            }
            bump(&mut self.received, source);
            let _ = self.enqueue_one(&message.task, Limits::Ignore);
        }
        last(&self.received, source)
    }

    // ---- queues ----

    fn set_queue(&mut self, name: &QueueName, settings: &QueueSettings) -> Result<Reply, Rejection> {
        if let Some(queue) = self.queue(name) {
            check_newer(settings.version, queue.settings.version)?;
        }
        self.use_queue(name).settings = settings.clone();
        Ok(Reply::Done)
    }

    fn drop_queue(&mut self, name: &QueueName, version: u64) -> Result<Reply, Rejection> {
        let Some(queue) = self.queue(name) else { return Ok(Reply::Done) };
        check_newer(version, queue.settings.version)?;
        let live = self.tasks.iter().any(|task| task.queue == *name && task.is_live());
        let queue = self.queue_mut(name);
        queue.settings = QueueSettings { version, ..QueueSettings::default() };
        queue.dropped = !live;
        if queue.dropped {
            queue.settings.policy.retention = Millis(0);
            queue.settings.policy.dead_retention = Millis(0);
        }
        self.remove_dropped();
        Ok(Reply::Done)
    }

    /// Dropped queues go when nothing refers to them any more.
    pub(crate) fn remove_dropped(&mut self) {
        let refers = |this: &Naive, name: &QueueName| {
            this.tasks.iter().any(|task| task.queue == *name) || this.dedup_keys(name) > 0
        };
        let gone = |queue: &&Queue| queue.dropped && !refers(self, &queue.name);
        let gone: Vec<_> = self.queues.iter().filter(gone).map(|queue| queue.name.clone()).collect();
        self.queues.retain(|queue| !gone.contains(&queue.name));
    }
}

fn check_newer(given: u64, current: u64) -> Result<(), Rejection> {
    if given > current { Ok(()) } else { Err(Rejection::StaleVersion { given, current }) }
}

/// Whether a queue's bounds apply to a new task: they do not to what was promised already.
#[derive(Clone, Copy)]
enum Limits {
    Count,
    Ignore,
}

/// Keys hold within their place: a pinned queue is one place, else the first key present makes it.
pub(crate) fn scoped(new: &NewTask, spread: Spread) -> (Option<Dedup>, Option<Unique>) {
    let new = new.wishes();
    if spread == Spread::Pinned {
        return (new.dedup, new.unique);
    }
    let unique_key = new.unique.map(|unique| unique.key);
    let within = |key: KeyHash, place: Option<KeyHash>| place.map_or(key, |place| key.within(place));
    let dedup = new.dedup.map(|d| Dedup { key: within(d.key, new.order_key.or(unique_key)), ..d });
    let unique = new.unique.map(|u| Unique { key: within(u.key, new.order_key), ..u });
    (dedup, unique)
}

fn last(counts: &[(ShardId, u64)], of: ShardId) -> u64 {
    counts.iter().find(|(shard, _)| *shard == of).map_or(0, |(_, n)| *n)
}

fn bump(counts: &mut Vec<(ShardId, u64)>, of: ShardId) -> u64 {
    let n = last(counts, of) + 1;
    counts.retain(|(shard, _)| *shard != of);
    counts.push((of, n));
    n
}
