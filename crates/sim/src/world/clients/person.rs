//! A person: sets the queues up, looks at tasks and meddles with them.

use std::rc::Rc;
use std::time::Duration;

use model::{GroupId, Millis, QueuePolicy, Settled, StateKind, TaskId};
use node::Error;
use node::call::{Acted, Action, Answer, Freshness, QueueInfo, TaskDetail, TaskFilter};

use super::super::door::Reply;
use super::super::faults::Order;
use super::super::plan::Kind;
use super::super::record::Heard;
use super::tasks::{self, QUEUES};
use super::worker::{told_end, told_settled};
use super::{Client, Phase, Repeat, Stage, closing, refused};
use crate::history::{Counts, Deed, Depth, Indexes, OnTasks, Outcome, Totals};

/// Sets up, meddles, and sees the run to its end.
pub(crate) async fn run(stage: Rc<Stage>) {
    let client = Rc::new(Client::new("person", stage.clone()));
    for name in QUEUES {
        set_up(&client, name).await;
    }
    for number in 1..=stage.plan.nodes {
        until_known(&client, number).await;
    }
    stage.phase.set(stage.phase().max(Phase::Busy));
    while stage.phase() == Phase::Busy {
        client.rest(2 * stage.plan.meddle_every_ms).await;
        carry_out(&client).await;
        if stage.phase() == Phase::Busy {
            meddle(&client).await;
        }
    }
    closing::run(&client).await;
}

/// Gives a queue its policy, however long that takes.
async fn set_up(client: &Rc<Client>, name: &'static str) {
    loop {
        let work = move |node: node::Node| async move {
            let policy: QueuePolicy = tasks::policy(name);
            node.set_queue(&tasks::queue(name), |_| Ok(policy.clone())).await
        };
        if let Reply::Answer(Ok(_)) = client.ask(Duration::ZERO, work).await {
            return;
        }
        client.rest(200).await;
    }
}

/// Waits until a node has heard of the policies: before that it may put tasks of a pinned queue anywhere.
async fn until_known(client: &Rc<Client>, number: u16) {
    let stage = &client.stage;
    while stage.phase() == Phase::Setup {
        let work = |node: node::Node| async move {
            let known = node.queues(Freshness::Stale).await.unwrap_or_default();
            QUEUES.iter().all(|name| {
                known.iter().any(|info| info.name.as_str() == *name && info.policy == tasks::policy(name))
            })
        };
        let patience = Duration::from_millis(stage.plan.patience_ms);
        if let Reply::Answer(true) = stage.desk.ask(number, patience, work).await {
            return;
        }
        client.rest(100).await;
    }
}

/// Does what the faults ask for.
async fn carry_out(client: &Rc<Client>) {
    let order = client.stage.orders.borrow_mut().pop_front();
    let Some(order) = order else { return };
    let client = client.clone();
    // It may take long, and nobody waits for it.
    tokio::task::spawn_local(async move {
        let kind = match order {
            Order::Leave(_) => Kind::Leave,
            Order::Transfer { .. } => Kind::Transfer,
        };
        let work = move |node: node::Node| async move {
            match order {
                Order::Leave(leaves) => node.leave(leaves).await,
                Order::Transfer { group, to } => node.transfer(GroupId(group), Some(to)).await,
            }
        };
        if let Reply::Answer(Ok(_)) = client.ask(Duration::from_secs(5), work).await {
            client.stage.recorder.fault(kind.as_str());
        }
    });
}

async fn meddle(client: &Rc<Client>) {
    let name = QUEUES[client.between(0, 2) as usize];
    match client.between(0, 99) {
        0..=34 => look(client).await,
        35..=54 => {
            counts(client, name).await;
        }
        55..=61 => act(client, Action::Cancel).await,
        62..=66 => act(client, Action::Discard).await,
        67..=71 => act(client, Action::PutBack).await,
        72..=79 => act(client, Action::Requeue).await,
        80..=83 => act_on_many(client, Action::Requeue, name).await,
        84..=85 => act_on_many(client, Action::PutBack, name).await,
        86..=87 => act_on_many(client, Action::Cancel, name).await,
        88 => act_on_many(client, Action::Discard, name).await,
        89..=90 => purge(client, name).await,
        91..=93 => remove_worker(client).await,
        _ => {
            pause(client, name).await;
            client.rest(1_500).await;
            resume(client, name).await;
        }
    }
}

fn some_task(client: &Client) -> Option<TaskId> {
    let known = client.stage.known.borrow();
    // Young ones are the ones that something happens to.
    let from = known.len().saturating_sub(if client.percent(70) { 30 } else { usize::MAX });
    (!known.is_empty()).then(|| known[client.between(from as u64, known.len() as u64 - 1) as usize])
}

async fn look(client: &Rc<Client>) {
    let Some(task) = some_task(client) else { return };
    let deed = Deed::Get { task, queue: None, payload: None, state: None };
    let work =
        move |node: node::Node| async move { node.task(task, Millis(0), Freshness::Linearizable).await };
    client.call(vec![deed], Repeat::Harmless, Duration::ZERO, work, told_task).await;
}

fn told_task(answer: &Result<TaskDetail, Error>, deeds: Vec<Deed>) -> Vec<Heard> {
    let told = |deed: Deed| match (answer, deed) {
        (Ok(detail), Deed::Get { task, .. }) => Heard {
            outcome: Outcome::Ok,
            index: Indexes::default(),
            deed: Deed::Get {
                task,
                queue: Some(detail.view.queue.to_string()),
                payload: Some(tasks::payload_hash(&detail.envelope.kind, &detail.envelope.payload)),
                state: Some(detail.view.state),
            },
        },
        (Err(error), deed) => refused(error, deed),
        (Ok(_), deed) => unreachable!("{deed:?} is no look"),
    };
    deeds.into_iter().map(told).collect()
}

/// A queue's numbers. How many of its tasks have not ended, if there was an answer.
pub(super) async fn counts(client: &Rc<Client>, name: &'static str) -> Option<u64> {
    let deed = Deed::Counts(Counts { queue: name.to_owned(), ..Counts::default() });
    let work =
        move |node: node::Node| async move { node.queue(&tasks::queue(name), Freshness::Linearizable).await };
    match client.call(vec![deed], Repeat::Harmless, Duration::ZERO, work, told_counts).await {
        Reply::Answer(Ok(info)) => Some(depth(&info).live()),
        _ => None,
    }
}

fn depth(info: &QueueInfo) -> Depth {
    let of = |state| info.depth.of(state);
    Depth {
        ready: of(StateKind::Ready),
        claimed: of(StateKind::Claimed),
        delayed: of(StateKind::Delayed),
        retrying: of(StateKind::Retrying),
        blocked: of(StateKind::Blocked),
        dead: of(StateKind::Dead),
    }
}

fn told_counts(answer: &Result<QueueInfo, Error>, deeds: Vec<Deed>) -> Vec<Heard> {
    let told = |deed: Deed| match (answer, deed) {
        (Ok(info), Deed::Counts(counts)) => {
            let totals = Totals {
                enqueued: info.totals.enqueued,
                done: info.totals.done,
                failed: info.totals.failed,
                dead: info.totals.dead,
                freed: info.totals.freed,
            };
            let counts = Counts { queue: counts.queue, totals, depth: depth(info) };
            Heard { outcome: Outcome::Ok, index: Indexes::default(), deed: Deed::Counts(counts) }
        }
        (Err(error), deed) => refused(error, deed),
        (Ok(_), deed) => unreachable!("{deed:?} counts nothing"),
    };
    deeds.into_iter().map(told).collect()
}

fn deed_of(action: Action, on: OnTasks) -> Deed {
    match action {
        Action::Cancel => Deed::Cancel(on),
        Action::Discard => Deed::Discard(on),
        Action::PutBack => Deed::PutBack(on),
        Action::Requeue => Deed::Requeue(on),
    }
}

async fn act(client: &Rc<Client>, action: Action) {
    let Some(task) = some_task(client) else { return };
    let deed = deed_of(action, OnTasks { task: Some(task), ..OnTasks::default() });
    let work = move |node: node::Node| async move {
        match action {
            Action::Cancel => node.cancel(task, "nobody wants it".to_owned()).await,
            Action::Discard => node.discard(task).await,
            Action::PutBack => node.put_back(task).await,
            Action::Requeue => node.requeue(task).await,
        }
    };
    let tell = |answer: &Result<Answer<Settled>, Error>, deeds| told_settled(answer, deeds);
    client.call(vec![deed], Repeat::Never, Duration::ZERO, work, tell).await;
}

async fn act_on_many(client: &Rc<Client>, action: Action, name: &'static str) {
    let mut cursor = None;
    loop {
        let deed = deed_of(action, OnTasks { queue: Some(name.to_owned()), ..OnTasks::default() });
        let after: Option<String> = cursor.take();
        let work = move |node: node::Node| {
            let filter = TaskFilter { queue: Some(tasks::queue(name)), ..TaskFilter::default() };
            let after = after.clone();
            async move { node.act(action, filter, false, after).await }
        };
        match client.call(vec![deed], Repeat::Never, Duration::ZERO, work, told_acted).await {
            Reply::Answer(Ok(Acted { cursor: Some(next), .. })) => cursor = Some(next),
            _ => return,
        }
    }
}

fn told_acted(answer: &Result<Acted, Error>, deeds: Vec<Deed>) -> Vec<Heard> {
    let told = |deed: Deed| match answer {
        Ok(_) => Heard { outcome: Outcome::Ok, index: Indexes::default(), deed },
        // It goes through many shards: some may have done it.
        Err(_) => Heard { outcome: Outcome::Unknown, index: Indexes::default(), deed },
    };
    deeds.into_iter().map(told).collect()
}

async fn purge(client: &Rc<Client>, name: &'static str) {
    let deed = Deed::Purge { queue: name.to_owned() };
    let work = move |node: node::Node| async move { node.purge(&tasks::queue(name)).await };
    let tell = |answer: &Result<u64, Error>, deeds: Vec<Deed>| {
        let outcome = if answer.is_ok() { Outcome::Ok } else { Outcome::Unknown };
        let told = |deed| Heard { outcome: outcome.clone(), index: Indexes::default(), deed };
        deeds.into_iter().map(told).collect()
    };
    client.call(vec![deed], Repeat::Never, Duration::ZERO, work, tell).await;
}

async fn remove_worker(client: &Rc<Client>) {
    let work = |node: node::Node| async move { node.workers() };
    let Reply::Answer(workers) = client.ask(Duration::ZERO, work).await else { return };
    if workers.is_empty() {
        return;
    }
    let worker = workers[client.between(0, workers.len() as u64 - 1) as usize].facts.name.clone();
    let deed = Deed::EndSession { session: None, worker: Some(worker.to_string()) };
    let work = move |node: node::Node| {
        let worker = worker.clone();
        async move { node.remove_worker(&worker).await }
    };
    client.call(vec![deed], Repeat::Never, Duration::ZERO, work, told_end).await;
}

async fn pause(client: &Rc<Client>, name: &'static str) {
    let work = move |node: node::Node| async move { node.pause(&tasks::queue(name)).await.is_ok() };
    client.ask(Duration::ZERO, work).await;
}

/// Lets a queue go on, however long that takes.
pub(super) async fn resume(client: &Rc<Client>, name: &'static str) {
    loop {
        let work = move |node: node::Node| async move { node.resume(&tasks::queue(name)).await.is_ok() };
        if let Reply::Answer(true) = client.ask(Duration::ZERO, work).await {
            return;
        }
        client.rest(200).await;
    }
}
