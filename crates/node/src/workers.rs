//! Workers, as people see them, and what people ask of them: the same at every node, wherever a worker speaks.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::{Fence, FreedReason, SessionId, TaskId, WorkerName};
use wire::gossip::Wish;

use crate::call::{Answer, WorkerInfo, WorkerPage, WorkerState};
use crate::error::Error;
use crate::info::Slots;
use crate::inner::{Inner, Node};
use crate::session::Session;

/// Claims looked up in a shard at a time.
const STEP: usize = 10_000;

impl Node {
    /// All workers with a session, and those lost in the last ten minutes, by name.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        self.inner.workers()
    }

    /// One page of the same, at most `limit` workers. Goes on from `cursor`.
    pub fn workers_page(&self, cursor: Option<&str>, limit: usize) -> Result<WorkerPage, Error> {
        let after = cursor.map(after).transpose()?;
        let inner = &self.inner;
        let limit = limit.max(1);
        // One more shows whether there are more.
        let mut page = inner.sessions.page(after.as_ref(), limit.saturating_add(1));
        let has_more = page.len() > limit;
        page.truncate(limit);
        let cursor = page.last().filter(|_| has_more);
        Ok(WorkerPage {
            slots: inner.slots(),
            workers: page.iter().map(|session| inner.worker_info(session)).collect(),
            cursor: cursor.map(|session| URL_SAFE_NO_PAD.encode(session.name.as_str())),
        })
    }

    /// One worker.
    pub fn worker(&self, worker: &WorkerName) -> Result<WorkerInfo, Error> {
        let session = self.inner.worker_session(worker)?;
        Ok(self.inner.worker_info(&session))
    }

    /// Room for running tasks over all running workers.
    pub fn slots(&self) -> Slots {
        self.inner.slots()
    }

    /// Asks a worker to claim nothing more and to finish what runs.
    pub async fn drain(&self, worker: &WorkerName) -> Result<(), Error> {
        self.inner.ask(worker, Wish::Drain)
    }

    /// Asks a worker to stop now, releasing what runs.
    pub async fn stop_worker(&self, worker: &WorkerName) -> Result<(), Error> {
        self.inner.ask(worker, Wish::Stop)
    }

    /// Frees a worker's claims at once, fences it, and lists it no more. How many there were.
    pub async fn remove_worker(&self, worker: &WorkerName) -> Result<Answer<u64>, Error> {
        self.inner.part_with(worker, FreedReason::PutBack).await
    }
}

impl Inner {
    pub(crate) fn workers(&self) -> Vec<WorkerInfo> {
        let sessions = self.sessions.all();
        let mut claims: HashMap<SessionId, Vec<(TaskId, Fence)>> = HashMap::new();
        for shard in self.groups.all() {
            self.groups.look(shard, |state| {
                for (id, _) in state.sessions() {
                    let held = state.session_claims(id);
                    claims.entry(id).or_default().extend(held.iter().map(|claim| (claim.task, claim.fence)));
                }
            });
        }
        sessions.iter().map(|session| info(session, claims.remove(&session.id).unwrap_or_default())).collect()
    }

    fn worker_info(&self, session: &Session) -> WorkerInfo {
        let claims = self.claims_of(session.id);
        info(session, claims.iter().map(|claim| (claim.task, claim.fence)).collect())
    }

    /// Room for running tasks over all running workers. Costs a look at each session and at each claim.
    pub(crate) fn slots(&self) -> Slots {
        let held = self.held();
        let mut slots = Slots::default();
        self.sessions.any_last(|session| {
            if session.state() == WorkerState::Running {
                let total = u64::from(session.slots());
                slots.total += total;
                slots.open += total.saturating_sub(held.get(&session.id).copied().unwrap_or(0));
            }
            false
        });
        slots
    }

    /// How many claims each session holds.
    fn held(&self) -> HashMap<SessionId, u64> {
        let mut held = HashMap::new();
        for shard in self.groups.all() {
            let mut from = Some((SessionId(0), Fence(0)));
            while let Some(first) = from {
                let step = self.groups.look(shard, |state| state.held_from(first, STEP));
                let last = step.last().filter(|_| step.len() == STEP);
                from = last.map(|&(session, fence)| (session, Fence(fence.0.saturating_add(1))));
                step.iter().for_each(|(session, _)| *held.entry(*session).or_default() += 1);
            }
        }
        held
    }

    fn ask(&self, worker: &WorkerName, wish: Wish) -> Result<(), Error> {
        let session = self.worker_session(worker)?;
        if session.is_over() {
            return Err(Error::UnknownWorker { worker: worker.clone() });
        }
        if session.ask(wish) {
            self.sessions.changed.add(session.id, false);
        }
        Ok(())
    }
}

fn info(session: &Session, claims: Vec<(TaskId, Fence)>) -> WorkerInfo {
    WorkerInfo {
        facts: session.facts(),
        session: session.id,
        state: session.state(),
        last_beat: session.last_beat(),
        claims,
    }
}

/// The worker that a page ended with.
fn after(cursor: &str) -> Result<WorkerName, Error> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    let name =
        bytes.and_then(|bytes| String::from_utf8(bytes).ok()).and_then(|name| WorkerName::new(&name).ok());
    name.ok_or_else(|| Error::Invalid("this cursor is not one that a list answered: begin anew".to_owned()))
}
