//! Listens to what each shard tells, and passes it on: to those who wait for work, to the outbox, to
//! those who wait for an end, to the events, to the log.
//!
//! The copies of shards that are led elsewhere tell the same: who waits here hears of it here. What must
//! happen once in the cluster (counters, log lines, the outbox) is for the node that leads.
//!
//! A listener that fell behind looks at the state anew: nothing here is the only way to learn something.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::{Event, FreedReason, QueueName, ShardId, TaskId, WorkerName};
use replica::{Heard, Notice, Notices};
use state_machine::Effect;

use crate::events::NodeEvent;
use crate::inner::Inner;

/// Listens to a shard until the node stops.
pub(crate) async fn run(inner: Arc<Inner>, shard: ShardId, mut notices: Notices) {
    let replica = inner.groups.shard(shard);
    let (mut leader, mut has_engine) = (replica.leader(), true);
    new_leader(&inner, shard);
    loop {
        let heard = tokio::select! {
            heard = notices.next() => heard,
            changed = replica.leader_changed(leader), if has_engine => {
                has_engine = changed != leader;
                leader = changed;
                new_leader(&inner, shard);
                continue;
            }
            () = inner.stopping.cancelled() => return,
        };
        match heard {
            Some(Heard::Notice(notice)) => pass_on(&inner, shard, &notice),
            Some(Heard::Lagged(count)) => look_anew(&inner, shard, count),
            None => return,
        }
    }
}

/// Another leader, or none: who waits may get something from it, and what the shard owes is this node's to
/// carry if it leads.
fn new_leader(inner: &Inner, shard: ShardId) {
    inner.mutes.clear(shard);
    for queue in inner.lines.awaited() {
        inner.serve(&queue);
    }
    ring(inner, shard);
    inner.settings_due.notify_one();
}

fn look_anew(inner: &Inner, shard: ShardId, missed: u64) {
    tracing::debug!(%shard, missed, "notices missed");
    inner.counters.notices_missed.fetch_add(missed, Ordering::Relaxed);
    for queue in inner.lines.awaited() {
        inner.serve(&queue);
    }
    ring(inner, shard);
    inner.ends.wake_all();
    inner.events.publish([NodeEvent::new(inner.clock.wall(), "events_missed")]);
}

fn ring(inner: &Inner, source: ShardId) {
    inner.outboxes[usize::from(source.number()) - 1].notify_one();
}

/// Passes on the notice of one entry.
fn pass_on(inner: &Arc<Inner>, shard: ShardId, notice: &Arc<Notice>) {
    let mut ready: Vec<&QueueName> = Vec::new();
    let mut deadlines: Vec<(&WorkerName, u64)> = Vec::new();
    let mut happened_count = 0;
    for effect in &notice.effects {
        match effect {
            Effect::Ready { queue } => {
                if !ready.contains(&queue) {
                    ready.push(queue);
                }
            }
            // Whoever proposed it: a new leader applies what the old one left.
            Effect::Outbox { .. } => ring(inner, shard),
            Effect::Happened { task, event, .. } => {
                if let Event::Freed { worker, reason: FreedReason::Deadline, .. } = event {
                    match deadlines.iter_mut().find(|(of, _)| *of == worker) {
                        Some((_, count)) => *count += 1,
                        None => deadlines.push((worker, 1)),
                    }
                }
                if let (Event::Freed { reason, .. }, true) = (event, notice.is_leader) {
                    inner.counters.freed(*reason);
                }
                happened(inner, *task, event);
                happened_count += 1;
            }
            // The replica's own business.
            Effect::Keep { .. } | Effect::Output { .. } | Effect::Detail { .. } | Effect::Forget { .. } => {}
        }
    }
    // Those who wait for work come first: the rest is for people.
    for queue in ready {
        inner.serve(queue);
    }
    inner.events.happened(shard, happened_count, notice);
    for (worker, freed) in deadlines {
        inner.events.publish([deadline_passed(inner, shard, notice, worker, freed)]);
    }
}

fn happened(inner: &Arc<Inner>, task: TaskId, event: &Event) {
    inner.ends.happened(task, event);
    // Whoever holds the worker's stream tells it.
    if let Event::CancelRequested = event {
        let claim = inner.groups.look(task.shard(), |state| state.task(task)).and_then(|view| view.claim);
        let session = claim.and_then(|claim| claim.session).and_then(|id| inner.sessions.by_id(id));
        if let Some(session) = session {
            session.tell_cancel();
        }
    }
}

/// One line and one event for each worker whose claims ran past their deadline.
fn deadline_passed(
    inner: &Inner,
    shard: ShardId,
    notice: &Notice,
    worker: &WorkerName,
    freed: u64,
) -> NodeEvent {
    let last = inner.sessions.last_of(worker);
    let since_last_beat = last.map(|session| session.silent_for(inner.now()));
    let since_last_beat_ms = since_last_beat.map(|millis| millis.0);
    if notice.is_leader {
        inner.counters.deadlines_passed.fetch_add(freed, Ordering::Relaxed);
        tracing::warn!(%worker, tasks_freed = freed, since_last_beat_ms, "deadline passed");
    }
    let mut event = NodeEvent::new(inner.clock.wall(), "deadline_passed");
    event.index = Some((shard, notice.index));
    event.worker = Some(worker.clone());
    event.reason = Some(FreedReason::Deadline.as_str());
    event.freed = Some(freed);
    event.since_last_beat = since_last_beat;
    event
}
