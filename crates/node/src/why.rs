//! Why a task is not being worked on, in words for people.

use model::{Rejection, StateKind, TaskId, WallTime};
use state_machine::view::{TaskView, Why};

use crate::call::{Freshness, WorkerState};
use crate::error::Error;
use crate::info::WhyLine;
use crate::inner::{Inner, Node};
use wire::envelope::Envelope;

impl Node {
    /// Why a task is not being worked on, or who does.
    pub async fn why(&self, id: TaskId, freshness: Freshness) -> Result<(StateKind, Vec<WhyLine>), Error> {
        let inner = &self.inner;
        inner.groups.known(id)?;
        let look = |state: &state_machine::Shard| Some((state.task(id)?, state.why(id)?));
        inner.groups.wait_for([id.shard()], freshness).await?;
        let (view, whys) = inner.groups.look(id.shard(), look).ok_or(Rejection::NotFound { id })?;
        // It only lends its order key's name: without it the reasons are the same.
        let envelopes = inner.groups.shard(id.shard()).envelopes(&[id]).await;
        let envelope = envelopes.into_iter().next().and_then(Result::ok).flatten();
        let envelope = envelope.and_then(|bytes| Envelope::from_bytes(bytes).ok());
        let order_key = envelope.and_then(|envelope| envelope.order_key);
        let now = inner.clock.wall();
        let mut lines: Vec<WhyLine> =
            whys.iter().filter_map(|why| inner.line(why, &view, order_key.as_deref(), now)).collect();
        if view.state == StateKind::Ready
            && !whys.contains(&Why::Paused)
            && !inner.is_asked_for(&view)
            && !lines.iter().any(|line| line.code == "no_worker")
        {
            lines.push(no_worker(&view));
        }
        Ok((view.state, lines))
    }
}

impl Inner {
    /// Whether somebody waits for, or works on, the task's queue.
    fn is_asked_for(&self, view: &TaskView) -> bool {
        self.lines.has_waiters(&view.queue)
            || self
                .sessions
                .any_last(|session| session.state() == WorkerState::Running && session.serves(&view.queue))
    }

    fn line(&self, why: &Why, view: &TaskView, order_key: Option<&str>, now: WallTime) -> Option<WhyLine> {
        let line = |code, text| Some(WhyLine { code, text });
        match why {
            Why::Delayed { due } => line("delayed", format!("is due in {}", due.since(now))),
            Why::BackingOff { due, attempts, attempts_max } => line(
                "backing_off",
                format!(
                    "failed {attempts} of {attempts_max} attempts, the next is due in {}",
                    due.since(now)
                ),
            ),
            Why::OrderKeyBusy { holder, holder_state, before } => {
                let key = order_key.map(|key| format!(" of order key {key}")).unwrap_or_default();
                let others = match before {
                    0 | 1 => String::new(),
                    more => format!(", {more} tasks are before it"),
                };
                line(
                    "order_key_busy",
                    format!("waits for task {holder}{key}, which is {holder_state}{others}"),
                )
            }
            Why::Paused => line(
                "paused",
                format!(
                    "queue {} is paused: POST /v1/queues/{}/resume lets it go on",
                    view.queue, view.queue
                ),
            ),
            Why::InLine { ahead_max } => {
                line("in_line", format!("is ready, up to {ahead_max} tasks of its queue come first"))
            }
            // The shard does not know who waits at the nodes.
            Why::NoWorker if self.is_asked_for(view) => line("next", "is ready and next in line".to_owned()),
            Why::NoWorker => Some(no_worker(view)),
            Why::Held { worker, deadline, manual: false } => {
                line("claimed", format!("worker {worker} holds it for another {}", deadline.since(now)))
            }
            Why::Held { worker, manual: true, .. } => line(
                "claimed_by_hand",
                format!(
                    "worker {worker} holds it, and in a queue with recovery = manual only a person frees it"
                ),
            ),
            Why::Ended { state } => line("ended", format!("has ended as {state}")),
        }
    }
}

fn no_worker(view: &TaskView) -> WhyLine {
    WhyLine { code: "no_worker", text: format!("is ready, and no worker asks for queue {}", view.queue) }
}
