//! What a shard shows, tells and plans, against the naive model.

use std::collections::BTreeMap;

use model::{Command, Event, Rejection, Reply, SessionId, ShardId, Stand, StateKind, TaskId};
use state_machine::view::Filter;
use state_machine::{Effect, Machine, Shard};

use crate::naive::{Naive, St, Task};
use crate::ops::request_key;

/// All that can be read agrees.
pub(crate) fn views(shard: &Shard, model: &Naive) {
    for (i, task) in model.tasks.iter().enumerate() {
        assert_eq!(shard.task(task.id), Some(model.view(i)), "task {}", task.id);
        assert!(shard.why(task.id).is_some_and(|why| !why.is_empty()), "a task without a why: {task:?}");
        if let Some(dedup) = task.dedup.filter(|_| task.dedup_held) {
            assert_eq!(shard.task_of_dedup(dedup.key), Some(task.id));
        }
    }
    for gone in &model.gone_keys {
        assert_eq!(shard.task_of_dedup(gone.key), Some(gone.task));
    }
    assert_eq!(shard.tasks(), model.tasks.len() as u64);
    let mut names: Vec<_> =
        model.queues.iter().filter(|queue| !queue.dropped).map(|queue| queue.name.clone()).collect();
    names.sort();
    assert_eq!(shard.queues().into_iter().map(|queue| queue.name).collect::<Vec<_>>(), names);
    for name in &names {
        assert_eq!(shard.queue(name), model.queue_view(name));
        assert_eq!(shard.ready_hint(name), model.ready_hint(name), "what {name} could give");
    }
    for session in (1..4).map(SessionId) {
        let by_fence = |mut claims: Vec<state_machine::view::SessionClaim>| {
            claims.sort_by_key(|claim| claim.fence);
            claims
        };
        assert_eq!(by_fence(shard.session_claims(session)), by_fence(model.session_claims(session)));
    }
    for request in (0..3).map(request_key) {
        assert_eq!(shard.knows_request(request), model.knows_request(request));
    }
    for target in (2..4).filter_map(ShardId::new) {
        assert_eq!(shard.outbox(target, usize::MAX, usize::MAX), model.outbox_to(target));
    }
}

/// Lists show every task that fits once, however small the steps.
pub(crate) fn lists(shard: &Shard, model: &Naive) {
    let queue = model.queues.first().map(|queue| queue.name.clone());
    let filters = [
        Filter::default(),
        Filter { queue: queue.clone(), ..Filter::default() },
        Filter { queue: queue.clone(), state: Some(StateKind::Ready), ..Filter::default() },
        Filter { queue, state: Some(StateKind::Cancelled), ..Filter::default() },
        Filter { state: Some(StateKind::Claimed), ..Filter::default() },
        Filter { kind_hash: Some(1), ..Filter::default() },
    ];
    for filter in filters {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = shard.list(&filter, cursor, 2, 3);
            assert!(page.tasks.len() <= 2 && page.looked_at <= 3, "a page is longer than asked: {page:?}");
            found.extend(page.tasks.iter().map(|task| task.id));
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        found.sort();
        let mut expected = model.list(&filter);
        expected.sort();
        assert_eq!(found, expected, "{filter:?}");
    }
}

/// The state hash covers all of the state: it changes whenever that does.
pub(crate) fn hash(before: &Naive, after: &Naive, was: u128, now: u128) {
    let mut then = before.clone();
    (then.elapsed, then.wall) = (after.elapsed, after.wall);
    assert!(then == *after || was != now, "the state changed and the hash did not");
}

/// When there is something to do, a pulse is planned for now; and a shard that has nothing to do is not
/// woken again and again.
pub(crate) fn due(shard: &Shard, model: &Naive, command: &Command, outcome: &Result<Reply, Rejection>) {
    let next = shard.next_due();
    let is_due = is_due(shard, model);
    if !is_due {
        let work = model.clone().pulse(u64::MAX);
        assert!(work == 0, "{work} things are due and nobody is woken: {next:?}\n{}", model.summary());
    }
    if let (Command::Pulse { .. }, Ok(Reply::Count(0))) = (command, outcome) {
        assert!(!is_due, "a pulse that did nothing left something due: {next:?}\n{}", model.summary());
    }
}

/// The next pulse is not planned later than there is something to do.
pub(crate) fn due_later(shard: &Shard, model: &Naive) {
    let next = shard.next_due();
    let mut later = model.clone();
    if let Some(elapsed) = next.elapsed {
        later.elapsed = later.elapsed.max(model::Elapsed(elapsed.0.saturating_sub(1)));
    }
    if let Some(wall) = next.wall {
        later.wall = later.wall.max(model::WallTime::from_millis(wall.millis().saturating_sub(1)));
    }
    if !is_due(shard, model) && later.pulse(u64::MAX) > 0 {
        panic!("something is due before the pulse that is planned: {next:?}\n{}", model.summary());
    }
}

fn is_due(shard: &Shard, model: &Naive) -> bool {
    let next = shard.next_due();
    next.elapsed.is_some_and(|at| at <= model.elapsed) || next.wall.is_some_and(|at| at <= model.wall)
}

/// Envelopes are kept and forgotten with their tasks, events tell every change, and a queue that has
/// something better to give says so.
pub(crate) fn effects(before: &Naive, after: &Naive, effects: &[Effect], told: &mut BTreeMap<TaskId, Stand>) {
    let (mut kept, mut forgotten) = (Vec::new(), Vec::new());
    for effect in effects {
        match effect {
            Effect::Keep { task, .. } => kept.push(*task),
            Effect::Forget { task } => {
                forgotten.push(*task);
                told.remove(task);
            }
            Effect::Happened { task, event, .. } => {
                let after = match told.get(task) {
                    Some(before) => before.after(event),
                    None => Stand::at(event),
                };
                let after = after.unwrap_or_else(|| panic!("{event:?} after {:?}", told.get(task)));
                told.insert(*task, after);
            }
            _ => {}
        }
    }
    let new = after.tasks.iter().filter(|task| before.find(task.id).is_none()).map(|task| task.id);
    let mut new: Vec<_> = new.collect();
    let gone = before.tasks.iter().filter(|task| after.find(task.id).is_none()).map(|task| task.id);
    let mut gone: Vec<_> = gone.collect();
    [&mut new, &mut gone, &mut kept, &mut forgotten].into_iter().for_each(|ids| ids.sort());
    assert_eq!(kept, new, "envelopes to keep");
    assert_eq!(forgotten, gone, "tasks to forget");
    let stand = |task: &Task| Stand { state: task.kind(), fence: task.fence, attempts: task.attempts };
    let stands: BTreeMap<_, _> = after.tasks.iter().map(|task| (task.id, stand(task))).collect();
    assert_eq!(*told, stands, "what the events tell; the last: {effects:#?}");
    for queue in &after.queues {
        let best = |model: &Naive| model.ready_hint(&queue.name).map(|hint| hint.priority);
        let better = match (best(before), best(after)) {
            (Some(before), Some(after)) => after < before,
            (None, after) => after.is_some(),
            _ => false,
        };
        let said = effects.contains(&Effect::Ready { queue: queue.name.clone() });
        assert!(said || !better, "{} has something better to give and says nothing", queue.name);
    }
    for (target, message) in after.outbox.iter().filter(|message| !before.outbox.contains(message)) {
        assert!(effects.contains(&Effect::Outbox { target: *target }), "nobody is told of {message:?}");
    }
}

/// Which of the things that must happen at some time happened here.
pub(crate) fn milestones(
    before: &Naive,
    after: &Naive,
    command: &Command,
    outcome: &Result<Reply, Rejection>,
    effects: &[Effect],
) -> Vec<&'static str> {
    let mut met = Vec::new();
    let mut add = |happened: bool, what| met.extend(happened.then_some(what));
    let happened = |fits: fn(&Event) -> bool| {
        effects.iter().any(|effect| matches!(effect, Effect::Happened { event, .. } if fits(event)))
    };
    let silent = effects.is_empty();
    match (command, outcome) {
        (Command::Enqueue { .. }, Ok(Reply::Enqueued(results))) => {
            let duplicates: Vec<_> = results.iter().flatten().filter(|result| result.duplicate).collect();
            add(!duplicates.is_empty(), "a duplicate");
            add(duplicates.iter().any(|one| after.find(one.id).is_none()), "a key of a task that is gone");
        }
        (Command::Claim(claim), Ok(Reply::Claimed(claimed))) => {
            add(silent && !claimed.is_empty(), "a repeated claim");
            add(happened(|event| matches!(event, Event::Ended { .. })), "an expiry at a claim");
            add(
                !claimed.is_empty() && claim.queues.iter().any(|queue| queue.weight > 0),
                "a claim by weight",
            );
        }
        (Command::Ack(model::command::Ack { task, .. }), Ok(_))
        | (Command::Fail(model::command::Fail { task, .. }), Ok(_)) => {
            add(silent, "a repeated ack or fail");
            add(before.find(*task).is_none(), "an outcome of a task that is gone");
            add(after.outbox.len() > before.outbox.len(), "a follow-up elsewhere");
            add(happened(|event| matches!(event, Event::Enqueued { .. })), "a follow-up here");
        }
        (Command::Deliver { .. }, _) => {
            add(happened(|event| matches!(event, Event::Enqueued { .. })), "a delivered follow-up");
        }
        _ => {}
    }
    let poisoned = |task: &&crate::naive::Task| {
        task.kind() == StateKind::Dead
            && task.lost >= 2
            && before.find(task.id).is_some_and(|i| before.tasks[i].is_live())
    };
    add(after.tasks.iter().any(|task| poisoned(&task)), "a poison pill");
    let unblocked = |task: &&crate::naive::Task| {
        let was_blocked = before.find(task.id).is_some_and(|i| before.tasks[i].st == St::Blocked);
        was_blocked && task.kind() == StateKind::Ready
    };
    add(after.tasks.iter().any(|task| unblocked(&task)), "a task made ready by its order key");
    met
}
