//! Workers, as people see them, and what people ask of them.

use std::collections::HashMap;

use model::{Fence, FreedReason, SessionId, TaskId, WorkerName};

use crate::call::{WorkerInfo, WorkerState};
use crate::error::Error;
use crate::info::Slots;
use crate::inner::{Inner, Node};
use crate::session::Session;

impl Node {
    /// All workers with a session, and those lost in the last ten minutes, by name.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        self.inner.workers()
    }

    /// One worker.
    pub fn worker(&self, worker: &WorkerName) -> Result<WorkerInfo, Error> {
        let session = self.inner.worker_session(worker)?;
        let claims = self.inner.claims_of(session.id);
        Ok(info(&session, claims.iter().map(|claim| (claim.task, claim.fence)).collect()))
    }

    /// Room for running tasks over all running workers.
    pub fn slots(&self) -> Slots {
        slots(&self.inner.workers())
    }

    /// Asks a worker to claim nothing more and to finish what runs.
    pub async fn drain(&self, worker: &WorkerName) -> Result<(), Error> {
        self.inner.ask(worker, WorkerState::Draining)
    }

    /// Asks a worker to stop now, releasing what runs.
    pub async fn stop_worker(&self, worker: &WorkerName) -> Result<(), Error> {
        self.inner.ask(worker, WorkerState::Stopping)
    }

    /// Frees a worker's claims at once, fences it, and lists it no more.
    pub async fn remove_worker(&self, worker: &WorkerName) -> Result<(), Error> {
        let session = self.inner.worker_session(worker)?;
        self.inner.end_session(&session, FreedReason::PutBack).await;
        self.inner.sessions.forget(&session);
        Ok(())
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

    fn ask(&self, worker: &WorkerName, state: WorkerState) -> Result<(), Error> {
        let session = self.worker_session(worker)?;
        if session.is_over() {
            return Err(Error::UnknownWorker { worker: worker.clone() });
        }
        session.ask(state);
        Ok(())
    }
}

fn info(session: &Session, claims: Vec<(TaskId, Fence)>) -> WorkerInfo {
    WorkerInfo {
        facts: session.facts.read().clone(),
        session: session.id,
        state: session.state(),
        last_beat: session.last_beat(),
        claims,
    }
}

pub(crate) fn slots(workers: &[WorkerInfo]) -> Slots {
    let mut slots = Slots::default();
    for worker in workers.iter().filter(|worker| worker.state == WorkerState::Running) {
        let total = u64::from(worker.facts.slots);
        slots.total += total;
        slots.open += total.saturating_sub(worker.claims.len() as u64);
    }
    slots
}
