//! What a shard shows of itself. No read scans all tasks: each walks one line, or a named number of steps.

use model::{
    Fence, KeyHash, OutboxMessage, QueueName, SessionId, ShardId, Stand, StateKind, TaskId, WallTime,
    WorkerName,
};

use super::execution::{Execution, Flags, NONE, QueueNo, Slot};
use super::lists::{BLOCKED, CLAIMED, DEAD, DELAYED, ENDED, ENDED_OWN, LISTS, PURGED, READY, RETRYING};
use super::queue::Queue;
use super::{Shard, end, record};
use crate::view::{
    ClaimView, Cursor, Filter, Page, QueueView, ReadyHint, SessionClaim, TaskView, Totals, Why,
};

/// The cursor's word for the line of an order key.
const ORDER_LINE: u64 = u64::MAX;
/// How far `why` counts the tasks before one.
const BEFORE_MAX: u64 = 10_000;
/// What a task takes in memory, its places in the indexes included.
const TASK_BYTES: u64 = 128;
/// What the rarer facts of a task take.
const EXTRA_BYTES: u64 = size_of::<super::execution::Extra>() as u64 + 16;
/// What a dedup key takes, in a table that is half full after it grew.
const DEDUP_BYTES: u64 = 160;
/// What a claim takes, its worker's name included.
const CLAIM_BYTES: u64 = 256;
/// What a queue takes.
const QUEUE_BYTES: u64 = size_of::<Queue>() as u64 + 128;
/// What another key, a timer or an outcome takes.
const SMALL_BYTES: u64 = 64;

impl Shard {
    /// A task.
    pub fn task(&self, id: TaskId) -> Option<TaskView> {
        Some(self.view(self.tasks.find(id)?))
    }

    /// How far a task has come.
    pub fn stand(&self, id: TaskId) -> Option<Stand> {
        Some(stand(&self.tasks[self.tasks.find(id)?]))
    }

    /// Where a task lies, if it is there.
    pub fn slot(&self, id: TaskId) -> Option<Slot> {
        self.tasks.find(id)
    }

    /// How far a task has come, by its row in a checkpoint; nothing if it cannot be read.
    pub fn stored_stand(key: &[u8], value: &[u8]) -> Option<Stand> {
        let (execution, _) = record::read_execution(end::id_of_key(key).ok()?, value).ok()?;
        Some(stand(&execution))
    }

    fn view(&self, slot: Slot) -> TaskView {
        let task = &self.tasks[slot];
        let due = match task.state {
            StateKind::Delayed => Some(WallTime::from_millis(task.when)),
            StateKind::Retrying => Some(WallTime::from_millis(task.since)),
            StateKind::Blocked => task.extra.as_ref().and_then(|extra| extra.not_before),
            _ => None,
        };
        let claim = self.claims.get(&slot).map(|claim| ClaimView {
            worker: claim.worker.clone(),
            session: claim.session,
            since: claim.since,
            deadline: self.wall_of(task.deadline()),
            cancel_requested: task.flags.has(Flags::CANCEL),
            progress: claim.progress.as_deref().cloned(),
        });
        TaskView {
            id: task.id,
            queue: self.queues[task.queue].name.clone(),
            state: task.state,
            priority: task.priority,
            attempts: task.attempts.into(),
            attempts_max: self.retry_policy(slot).attempts,
            kind_hash: task.kind_hash,
            fence: task.fence,
            enqueued_at: task.enqueued_at,
            due,
            expires_at: task.expires_at(),
            ended_at: task.state.is_ended().then(|| task.ended_at()),
            claim,
        }
    }

    /// Why a task is not being worked on, or who does.
    pub fn why(&self, id: TaskId) -> Option<Vec<Why>> {
        let slot = self.tasks.find(id)?;
        let task = &self.tasks[slot];
        let queue = &self.queues[task.queue];
        let mut reasons = Vec::new();
        match task.state {
            StateKind::Delayed => reasons.push(Why::Delayed { due: WallTime::from_millis(task.when) }),
            StateKind::Retrying => reasons.push(Why::BackingOff {
                due: WallTime::from_millis(task.since),
                attempts: task.attempts.into(),
                attempts_max: self.retry_policy(slot).attempts,
            }),
            StateKind::Blocked => reasons.extend(self.why_blocked(task)),
            StateKind::Ready => {
                let to_own = READY..=READY + usize::from(task.priority);
                let ahead_max =
                    queue.lists[to_own].iter().map(|list| list.len).sum::<u64>().saturating_sub(1);
                reasons.push(if ahead_max > 0 { Why::InLine { ahead_max } } else { Why::NoWorker });
            }
            StateKind::Claimed => {
                let claim = &self.claims[&slot];
                reasons.push(Why::Held {
                    worker: claim.worker.clone(),
                    deadline: self.wall_of(task.deadline()),
                    manual: self.recovery(slot) == model::Recovery::Manual,
                });
            }
            state => reasons.push(Why::Ended { state }),
        }
        if queue.settings.paused && task.state.is_waiting() {
            reasons.insert(0, Why::Paused);
        }
        Some(reasons)
    }

    fn why_blocked(&self, task: &Execution) -> Option<Why> {
        let place = task.extra.as_ref()?.order?;
        let line = self.order.get(&place.key)?;
        let mut before = 1;
        let mut slot = place.prev;
        while slot != line.head && slot != NONE && before < BEFORE_MAX {
            before += 1;
            slot = self.tasks[slot].extra.as_ref()?.order?.prev;
        }
        let holder = &self.tasks[line.head];
        Some(Why::OrderKeyBusy { holder: holder.id, holder_state: holder.state, before })
    }

    /// One step of a list: at most `limit` tasks found, at most `looks` looked at.
    pub fn list(&self, filter: &Filter, cursor: Option<Cursor>, limit: usize, looks: usize) -> Page {
        let mut page = Page::default();
        if let Some(key) = filter.order_key {
            let start = self.order.get(&key).map_or(NONE, |line| line.head);
            let next = |task: &Execution| task.extra.as_ref().and_then(|e| e.order).map_or(NONE, |o| o.next);
            let start = match cursor.and_then(|cursor| cursor.after).and_then(|id| self.tasks.find(id)) {
                Some(slot) if self.is_in_line(slot, key) => next(&self.tasks[slot]),
                // It ended, and was at the head then: what is at the head now came after it.
                _ => start,
            };
            self.walk(filter, ORDER_LINE, start, next, limit, looks, &mut page);
            return page;
        }
        let from = cursor.map_or(0, |cursor| cursor.list);
        let (from_no, mut from_list) = ((from / LISTS as u64) as QueueNo, (from % LISTS as u64) as usize);
        let mut after = cursor.and_then(|cursor| cursor.after);
        let only = filter.queue.as_ref().map(|name| self.queues.find(name));
        for queue in self.queues.from(from_no) {
            if queue.no != from_no {
                (from_list, after) = (0, None);
            }
            if only.is_some_and(|only| only != Some(queue.no)) {
                continue;
            }
            for list in (from_list..LISTS).filter(|&list| fits(filter.state, list)) {
                let resumed = after.take().and_then(|id| self.after(queue, list, id));
                let start = resumed.unwrap_or(queue.lists[list].head);
                let number = u64::from(queue.no) * LISTS as u64 + list as u64;
                self.walk(filter, number, start, |task| task.next, limit, looks, &mut page);
                if page.cursor.is_some() {
                    return page;
                }
            }
        }
        page
    }

    fn is_in_line(&self, slot: Slot, key: KeyHash) -> bool {
        let task = &self.tasks[slot];
        task.order_key() == Some(key) && !task.state.is_ended()
    }

    /// Where a list goes on behind a task; from its head when the task has left it, which it did by
    /// its front.
    fn after(&self, queue: &Queue, list: usize, id: TaskId) -> Option<Slot> {
        let task = &self.tasks[self.tasks.find(id)?];
        (task.queue == queue.no && queue.list_of(task) == list).then_some(task.next)
    }

    #[expect(clippy::too_many_arguments, reason = "one walk serves lines of states and of order keys")]
    fn walk(
        &self,
        filter: &Filter,
        number: u64,
        start: Slot,
        next: impl Fn(&Execution) -> Slot,
        limit: usize,
        looks: usize,
        page: &mut Page,
    ) {
        let mut slot = start;
        while slot != NONE {
            let task = &self.tasks[slot];
            if self.matches(filter, slot) {
                page.tasks.push(self.view(slot));
            }
            page.looked_at += 1;
            slot = next(task);
            if page.tasks.len() >= limit || page.looked_at >= looks {
                page.cursor = Some(Cursor { list: number, after: Some(task.id) });
                return;
            }
        }
    }

    fn matches(&self, filter: &Filter, slot: Slot) -> bool {
        let task = &self.tasks[slot];
        let claim = self.claims.get(&slot);
        let by_claim = |test: &dyn Fn(&super::ClaimRecord) -> bool| claim.is_some_and(test);
        filter.state.is_none_or(|state| state == task.state)
            && filter.kind_hash.is_none_or(|hash| hash == task.kind_hash)
            && filter.queue.as_ref().is_none_or(|name| self.queues[task.queue].name == *name)
            && filter.worker.as_ref().is_none_or(|worker| by_claim(&|claim| claim.worker == *worker))
            && filter.claimed_for.is_none_or(|least| by_claim(&|claim| self.wall.since(claim.since) >= least))
    }

    /// All queues, by name.
    pub fn queues(&self) -> Vec<QueueView> {
        self.queues.iter().filter(|queue| !queue.dropped).map(|queue| self.view_queue(queue)).collect()
    }

    /// A queue.
    pub fn queue(&self, name: &QueueName) -> Option<QueueView> {
        let queue = &self.queues[self.queues.find(name)?];
        (!queue.dropped).then(|| self.view_queue(queue))
    }

    fn view_queue(&self, queue: &Queue) -> QueueView {
        let heads = queue.lists[READY..READY + 10].iter().map(|list| list.head).filter(|&head| head != NONE);
        let oldest_ready = heads.map(|head| WallTime::from_millis(self.tasks[head].since)).min();
        let claimed = queue.lists[CLAIMED].head;
        QueueView {
            name: queue.name.clone(),
            settings: queue.settings.clone(),
            depth: queue.depth,
            oldest_ready,
            oldest_claimed: (claimed != NONE).then(|| self.claims[&claimed].since),
            totals: queue.totals,
        }
    }

    /// What a queue could give a claim now; nothing when it is paused.
    pub fn ready_hint(&self, name: &QueueName) -> Option<ReadyHint> {
        let queue = &self.queues[self.queues.find(name)?];
        let list = queue.best_ready().filter(|_| !queue.settings.paused)?;
        let head = &self.tasks[queue.lists[list].head];
        let since = WallTime::from_millis(head.since);
        Some(ReadyHint { priority: head.priority, since, count: queue.ready() })
    }

    /// The claims of a session.
    pub fn session_claims(&self, session: SessionId) -> Vec<SessionClaim> {
        let claim = |(fence, slot): (Fence, Slot)| {
            let task = &self.tasks[slot];
            SessionClaim { task: task.id, fence, cancel_requested: task.flags.has(Flags::CANCEL) }
        };
        self.sessions.claims_of(session).map(claim).collect()
    }

    /// The fence of a session's newest claim.
    pub fn session_last(&self, session: SessionId) -> Option<Fence> {
        self.sessions.last_of(session)
    }

    /// The sessions that hold claims here, and whose they are. Costs what it returns, not the claims.
    pub fn sessions(&self) -> Vec<(SessionId, WorkerName)> {
        self.sessions_from(SessionId(0), usize::MAX)
    }

    /// The same in steps: those with ids of `from` on, at most `limit`.
    pub fn sessions_from(&self, from: SessionId, limit: usize) -> Vec<(SessionId, WorkerName)> {
        let sessions = self.sessions.sessions_from(from).take(limit);
        sessions.map(|(session, slot)| (session, self.claims[&slot].worker.clone())).collect()
    }

    /// The ids alone, in the same steps.
    pub fn holders_from(&self, from: SessionId, limit: usize) -> Vec<SessionId> {
        self.sessions.sessions_from(from).map(|(session, _)| session).take(limit).collect()
    }

    /// The claims that sessions hold here, in steps: from `from` on, at most `limit`, by session and fence.
    pub fn held_from(&self, from: (SessionId, Fence), limit: usize) -> Vec<(SessionId, Fence)> {
        self.sessions.claims_from(from).take(limit).collect()
    }

    /// What each queue has seen, by name.
    pub fn totals(&self) -> Vec<(QueueName, Totals)> {
        self.queues.iter().map(|queue| (queue.name.clone(), queue.totals)).collect()
    }

    /// Whether a request id got claims here within its time.
    pub fn knows_request(&self, request: KeyHash) -> bool {
        self.requests.contains_key(&request)
    }

    /// The task that a dedup key, inside its place, refers to.
    pub fn task_of_dedup(&self, key: KeyHash) -> Option<TaskId> {
        self.dedup.get(&key).map(|entry| entry.task)
    }

    /// Messages to another shard, oldest first: at most `limit`, and `bytes_max` but for a single larger one.
    pub fn outbox(&self, target: ShardId, limit: usize, bytes_max: usize) -> Vec<OutboxMessage> {
        let Some(line) = self.outbox.get(&target) else { return Vec::new() };
        let mut bytes = 0;
        let mut messages: Vec<OutboxMessage> = Vec::new();
        for message in line.messages.iter().take(limit) {
            bytes += message.task.envelope.len();
            if bytes > bytes_max && !messages.is_empty() {
                break;
            }
            messages.push(message.clone());
        }
        messages
    }

    /// How many messages wait for other shards.
    pub fn outbox_len(&self) -> u64 {
        self.outbox.values().map(|line| line.messages.len() as u64).sum()
    }

    /// The shards that there are messages for.
    pub fn outbox_targets(&self) -> Vec<ShardId> {
        let waiting = self.outbox.iter().filter(|(_, line)| !line.messages.is_empty());
        waiting.map(|(&target, _)| target).collect()
    }

    /// How many tasks there are, ended ones included.
    pub fn tasks(&self) -> u64 {
        self.tasks.len() as u64
    }

    /// What the state takes in memory, by count: an estimate.
    pub fn memory_bytes(&self) -> u64 {
        let small = self.unique.len()
            + self.order.len()
            + self.outcomes.len()
            + self.requests.len()
            + self.deadlines.len()
            + self.elapsed_timers.len()
            + self.wall_timers.len();
        self.tasks() * TASK_BYTES
            + self.extras * EXTRA_BYTES
            + self.dedup.len() as u64 * DEDUP_BYTES
            + self.claims.len() as u64 * CLAIM_BYTES
            + self.queues.len() as u64 * QUEUE_BYTES
            + small as u64 * SMALL_BYTES
            + self.outbox_bytes
    }
}

/// Whether tasks in this state can be in that line.
fn fits(state: Option<StateKind>, list: usize) -> bool {
    let Some(state) = state else { return true };
    match list {
        READY..CLAIMED => state == StateKind::Ready,
        CLAIMED => state == StateKind::Claimed,
        DELAYED => state == StateKind::Delayed,
        RETRYING => state == StateKind::Retrying,
        BLOCKED => state == StateKind::Blocked,
        DEAD => state == StateKind::Dead,
        ENDED | ENDED_OWN => state.is_ended() && state != StateKind::Dead,
        PURGED => state.is_waiting(),
        _ => unreachable!("there are {LISTS} lines"),
    }
}

fn stand(task: &Execution) -> Stand {
    Stand { state: task.state, fence: task.fence, attempts: task.attempts.into() }
}
