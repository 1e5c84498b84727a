//! The end of a run: workers go on until nothing waits, then all that is left is written down.

use std::rc::Rc;
use std::time::Duration;

use node::Error;
use node::call::{Freshness, TaskFilter, TaskPage};

use super::super::door::Reply;
use super::super::record::Heard;
use super::person::{counts, resume};
use super::tasks::{self, QUEUES};
use super::{Client, Phase};
use crate::history::{Deed, End, Indexes, Line, Outcome};

/// How many tasks one step of a list shows.
const PAGE: usize = 200;
/// So many times a client's patience after its busy time, nothing that it asked for comes any more.
const LATE_TIMES: u32 = 6;

/// Waits until nothing waits, then lists what is left.
pub(super) async fn run(client: &Rc<Client>) {
    let stage = &client.stage;
    while stage.phase() < Phase::Closing {
        client.rest(20).await;
    }
    for name in QUEUES {
        resume(client, name).await;
    }
    // What was asked before may still come: a request is sent a few times, and a node goes on when nobody waits.
    tokio::time::sleep(LATE_TIMES * Duration::from_millis(stage.plan.patience_ms)).await;
    // An ack may owe tasks to another shard: empty twice, with a pause between, is empty.
    let mut empty = 0;
    while empty < 2 {
        client.rest(400).await;
        let mut live = 0;
        for name in QUEUES {
            live += counts(client, name).await.unwrap_or(1);
        }
        empty = if live == 0 { empty + 1 } else { 0 };
    }
    stage.phase.set(Phase::Listing);
    // Nobody begins anything more; what is under way comes to its end.
    while stage.under_way.get() > 0 {
        client.rest(50).await;
    }
    for name in QUEUES {
        counts(client, name).await;
        list(client, name).await;
    }
    let at_us = stage.recorder.now_us();
    stage.recorder.add(Line::End(End { at_us, drained: true, listed: true }));
    stage.phase.set(Phase::Over);
}

/// Writes down every task of a queue, as a look at it.
async fn list(client: &Rc<Client>, name: &'static str) {
    let mut cursor: Option<String> = None;
    loop {
        let after = cursor.clone();
        let recording = client.stage.recorder.begin(&client.name, Vec::new());
        let work = move |node: node::Node| async move {
            let filter = TaskFilter { queue: Some(tasks::queue(name)), ..TaskFilter::default() };
            node.list(filter, after, PAGE, Freshness::Linearizable).await
        };
        let asked: Reply<Result<TaskPage, Error>> = client.ask(Duration::ZERO, work).await;
        let Reply::Answer(Ok(page)) = asked else {
            client.rest(200).await;
            continue;
        };
        recording.end(page.tasks.iter().map(seen).collect());
        match page.cursor {
            Some(next) => cursor = Some(next),
            None => return,
        }
    }
}

fn seen(task: &node::call::TaskSummary) -> Heard {
    Heard {
        outcome: Outcome::Ok,
        index: Indexes::default(),
        deed: Deed::Get {
            task: task.view.id,
            queue: Some(task.view.queue.to_string()),
            payload: Some(tasks::payload_hash(&task.envelope.kind, &task.envelope.payload)),
            state: Some(task.view.state),
        },
    }
}
