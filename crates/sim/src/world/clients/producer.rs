//! A producer: enqueues tasks, one or many at a time.

use std::rc::Rc;
use std::time::Duration;

use node::call::Answer;
use node::{EnqueueResults, Error};

use super::super::door::Reply;
use super::super::record::Heard;
use super::tasks::{self, NewTask};
use super::{Client, Phase, Repeat, Stage, indexes, refused};
use crate::history::{Deed, Outcome};

/// How often a request without an answer is sent again, if that is harmless.
const TRIES: usize = 4;

/// Produces until the busy time is over.
pub(crate) async fn run(stage: Rc<Stage>, number: u16) {
    let client = Rc::new(Client::new(&format!("p{number}"), stage.clone()));
    let mut count = 0;
    while stage.phase() < Phase::Closing {
        client.rest(2 * stage.plan.produce_every_ms).await;
        if stage.phase() == Phase::Busy {
            let (tasks, atomic) = draw(&client, &mut count);
            enqueue(&client, tasks, atomic).await;
        }
    }
}

fn draw(client: &Client, count: &mut u64) -> (Vec<NewTask>, bool) {
    let plan = &client.stage.plan;
    let mut dice = client.dice.borrow_mut();
    let mut name = || {
        *count += 1;
        format!("{}-{count}", client.name)
    };
    match dice.between(0, 9) {
        0 => {
            let names: Vec<String> = (0..dice.between(2, 5)).map(|_| name()).collect();
            (tasks::together(plan, &names, &mut dice), true)
        }
        1 | 2 => {
            let many = dice.between(2, 12);
            ((0..many).map(|_| tasks::any(plan, &name(), &mut dice)).collect(), false)
        }
        _ => (vec![tasks::any(plan, &name(), &mut dice)], false),
    }
}

async fn enqueue(client: &Rc<Client>, mut tasks: Vec<NewTask>, atomic: bool) {
    // One key twice in a request says nothing more than once.
    let mut seen = std::collections::BTreeSet::new();
    tasks.retain(|task| seen.insert(task.deed.payload.clone()));
    let is_keyed = tasks.iter().all(NewTask::is_keyed);
    let repeat = if is_keyed { Repeat::Harmless } else { Repeat::Never };
    for _ in 0..TRIES {
        let deeds = tasks.iter().map(|task| Deed::Enqueue(task.deed.clone())).collect();
        let specs: Vec<_> = tasks.iter().map(|task| task.spec.clone()).collect();
        let work = move |node: node::Node| {
            let specs = specs.clone();
            async move { node.enqueue(specs, atomic).await }
        };
        match client.call(deeds, repeat, Duration::ZERO, work, told).await {
            Reply::Answer(answer) => {
                let answered = answer.into_iter().flat_map(|answer| answer.value).flatten();
                client.stage.known.borrow_mut().extend(answered.map(|enqueued| enqueued.id));
                return;
            }
            // It never left: the same may go to another node.
            Reply::Unsent => {}
            Reply::Lost if is_keyed => {}
            Reply::Lost => return,
        }
        client.rest(300).await;
    }
}

fn told(answer: &Result<Answer<EnqueueResults>, Error>, deeds: Vec<Deed>) -> Vec<Heard> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return deeds.into_iter().map(|deed| refused(error, deed)).collect(),
    };
    let each = |(result, deed): (&Result<model::reply::Enqueued, Error>, Deed)| match (result, deed) {
        (Ok(enqueued), Deed::Enqueue(mut enqueue)) => {
            enqueue.task = Some(enqueued.id);
            enqueue.duplicate = enqueued.duplicate;
            let index = indexes(&answer.indexes);
            Heard { outcome: Outcome::Ok, index, deed: Deed::Enqueue(enqueue) }
        }
        (Err(error), deed) => refused(error, deed),
        (Ok(_), deed) => unreachable!("{deed:?} is no enqueue"),
    };
    answer.value.iter().zip(deeds).map(each).collect()
}
