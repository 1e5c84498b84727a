//! Gives ready tasks to a worker.

use model::command::{Claim, ClaimById, ClaimQueue};
use model::{
    Claimed, Event, Fence, KeyHash, Millis, Mutant, Position, Rejection, Reply, SessionId, StateKind, TaskId,
    WorkerName, limits, mutant,
};

use super::execution::{ClaimRecord, Flags, Last, QueueNo, Slot};
use super::shift::Side;
use super::timers::Timer;
use super::{Request, Shard};
use crate::effects::Effects;
use crate::machine::Table;

/// Expired tasks that one claim ends on its way; a pulse does the rest.
const EXPIRED_AT_ONCE_MAX: usize = 1_000;

/// Who claims, and how long.
struct Holder {
    worker: WorkerName,
    session: Option<SessionId>,
    hold: Option<Millis>,
}

impl Shard {
    pub(super) fn claim(&mut self, at: Position, claim: Claim, effects: &mut Effects) -> Reply {
        if let Some(known) = claim.request.and_then(|request| self.claims_of_request(at, request)) {
            return Reply::Claimed(known);
        }
        let holder = Holder { worker: claim.worker, session: claim.session, hold: claim.hold };
        let max = claim.max.min(limits::CLAIM_MAX) as usize;
        let mut queues: Vec<(QueueNo, u32)> = Vec::with_capacity(claim.queues.len());
        for ClaimQueue { name, weight } in &claim.queues {
            if let Some(no) = self.queues.find(name) {
                queues.push((no, *weight));
            }
        }
        let weighted = queues.iter().any(|&(_, weight)| weight > 0);
        let ready: u64 = queues.iter().map(|&(no, _)| self.queues[no].depth.of(StateKind::Ready)).sum();
        let mut claimed = Vec::with_capacity(max.min(ready as usize));
        while claimed.len() < max && !queues.is_empty() {
            let pick = if weighted { draw(at, claimed.len(), &queues) } else { 0 };
            match self.next_ready(at, queues[pick].0, effects) {
                Some(slot) => claimed.push(self.hand_out(at, slot, &holder, effects)),
                None => {
                    queues.remove(pick);
                }
            }
        }
        self.remember_request(at, claim.request, &claimed);
        Reply::Claimed(claimed)
    }

    pub(super) fn claim_by_id(
        &mut self,
        at: Position,
        claim: ClaimById,
        effects: &mut Effects,
    ) -> Result<Reply, Rejection> {
        if let Some(known) = claim.request.and_then(|request| self.claims_of_request(at, request)) {
            return Ok(Reply::Claimed(known));
        }
        let slot = self.find(claim.task)?;
        let task = &self.tasks[slot];
        let expired = task.expires_at().is_some_and(|expires| expires <= at.wall);
        if task.state != StateKind::Ready || expired || self.queues[task.queue].purged(task) {
            return Err(Rejection::NotReady { id: claim.task, state: task.state });
        }
        let holder = Holder { worker: claim.worker, session: claim.session, hold: claim.hold };
        let claimed = vec![self.hand_out(at, slot, &holder, effects)];
        self.remember_request(at, claim.request, &claimed);
        Ok(Reply::Claimed(claimed))
    }

    /// The first task of a queue that may be claimed. Expired ones on the way end here: they must not
    /// be handed out because a pulse is late.
    fn next_ready(&mut self, at: Position, no: QueueNo, effects: &mut Effects) -> Option<Slot> {
        if self.queues[no].settings.paused {
            return None;
        }
        for _ in 0..EXPIRED_AT_ONCE_MAX {
            let list = self.queues[no].best_ready()?;
            let slot = self.first(list, no)?;
            match self.tasks[slot].expires_at() {
                Some(expires) if expires <= at.wall => self.expire(at, slot, effects),
                _ => return Some(slot),
            }
        }
        None
    }

    fn hand_out(&mut self, at: Position, slot: Slot, holder: &Holder, effects: &mut Effects) -> Claimed {
        let mut fence = Fence(self.counters.fence);
        if mutant::planted(Mutant::FenceFromAttempts) {
            fence = Fence(u64::from(self.tasks[slot].attempts) + 1);
        }
        self.counters.fence += 1;
        let task = &self.tasks[slot];
        let queue = &self.queues[task.queue];
        let own = task.extra.as_ref().and_then(|extra| extra.hold);
        let hold = holder.hold.or(own).unwrap_or(queue.policy().hold);
        self.shift(slot, StateKind::Claimed, at.elapsed.after(hold).0, Side::Back);
        let task = &mut self.tasks[slot];
        task.fence = fence;
        task.last = Last::Open;
        task.flags.clear(Flags::CANCEL);
        if task.unique().is_some_and(|unique| unique.ends_with_claim()) {
            self.free_unique(slot);
        }
        let record = ClaimRecord {
            worker: holder.worker.clone(),
            session: holder.session,
            hold,
            since: at.wall,
            progress: None,
        };
        self.claims.insert(slot, record);
        if let Some(session) = holder.session {
            self.sessions.add(session, fence, slot);
        }
        let attempt = u32::from(self.tasks[slot].attempts) + 1;
        self.happened(slot, Event::Claimed { worker: holder.worker.clone(), attempt, fence }, effects);
        self.claimed(slot, at.wall.after(hold), hold)
    }

    fn claimed(&self, slot: Slot, deadline_wall: model::WallTime, hold: Millis) -> Claimed {
        let task = &self.tasks[slot];
        Claimed {
            id: task.id,
            queue: self.queues[task.queue].name.clone(),
            priority: task.priority,
            attempt: u32::from(task.attempts) + 1,
            fence: task.fence,
            deadline: task.deadline(),
            deadline_wall,
            hold,
            enqueued_at: task.enqueued_at,
            ready_since: model::WallTime::from_millis(task.since),
            envelope: bytes::Bytes::new(),
        }
    }

    /// The claims that a request id got and that still hold.
    fn claims_of_request(&self, at: Position, request: KeyHash) -> Option<Vec<Claimed>> {
        let request = self.requests.get(&request)?;
        let current = |&(id, fence): &(TaskId, Fence)| {
            let slot = self.tasks.find(id)?;
            let task = &self.tasks[slot];
            let holds = task.state == StateKind::Claimed && task.fence == fence;
            let hold = self.claims.get(&slot)?.hold;
            holds.then(|| self.claimed(slot, super::shift::wall_at(at, task.deadline()), hold))
        };
        Some(request.claims.iter().filter_map(current).collect())
    }

    fn remember_request(&mut self, at: Position, request: Option<KeyHash>, claimed: &[Claimed]) {
        let Some(key) = request.filter(|_| !claimed.is_empty()) else { return };
        let until = at.elapsed.after(limits::OUTCOME_KEPT);
        let claims = claimed.iter().map(|claim| (claim.id, claim.fence)).collect();
        let request = Request { claims, until };
        self.journal.put(Table::Requests, key.0.to_be_bytes().to_vec(), request.write());
        self.elapsed_timers.add(until.0, Timer::Request(key.into()));
        self.requests.insert(key, request);
    }

    /// Ends a claim's record; the task's state is the caller's to change.
    pub(super) fn drop_claim(&mut self, slot: Slot) -> ClaimRecord {
        self.touch(slot);
        let record = self.claims.remove(&slot).expect("a claimed task has a claim");
        if let Some(session) = record.session {
            self.sessions.remove(session, self.tasks[slot].fence, slot);
        }
        record
    }
}

/// Draws a queue by weight, from a hash of the command's place: all replicas draw the same.
fn draw(at: Position, n: usize, queues: &[(QueueNo, u32)]) -> usize {
    let total: u64 = queues.iter().map(|&(_, weight)| u64::from(weight)).sum();
    if total == 0 {
        return 0;
    }
    let mut place = [0u8; 20];
    place[..8].copy_from_slice(&at.index.to_le_bytes());
    place[8..12].copy_from_slice(&at.n.to_le_bytes());
    place[12..].copy_from_slice(&(n as u64).to_le_bytes());
    let mut ticket = xxhash_rust::xxh3::xxh3_64(&place) % total;
    for (pick, &(_, weight)) in queues.iter().enumerate() {
        match ticket.checked_sub(u64::from(weight)) {
            Some(rest) => ticket = rest,
            None => return pick,
        }
    }
    unreachable!("the ticket is below the sum of the weights")
}
