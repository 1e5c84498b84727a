//! With the Rust SDK: from the call of `enqueue` to the start of the handler. One client and one worker per node.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_local;
use windlass::{Client, State, Task, TaskError, Worker};

use super::Clock;
use crate::messages::NAME;
use crate::process::Server;

/// A task that says from when it counts.
#[derive(Serialize, Deserialize)]
struct Sent(u64);

impl Task for Sent {
    const KIND: &'static str = NAME;
    const QUEUE: &'static str = NAME;
    type Output = ();
}

async fn started(task: Sent, State(clock): State<Clock>) -> Result<(), TaskError> {
    clock.received(task.0);
    Ok(())
}

pub(super) async fn run(servers: &[Server], slots: usize, clock: Clock) -> Result<()> {
    let nodes = servers.len();
    let (mut clients, mut workers) = (Vec::new(), Vec::new());
    for (n, server) in servers.iter().enumerate() {
        let client = Client::connect(format!("http://{}", server.address)).await?;
        let worker = Worker::new(client.clone()).name(format!("{NAME}-{n}"));
        let slots = slots.div_ceil(nodes) as u32;
        workers.push(worker.slots(slots).handle(started).state(clock.clone()).start()?);
        clients.push(client);
    }
    let mut answers = Vec::new();
    for n in 0..clock.count {
        let sent = clock.until_due(n).await;
        let client = clients[n as usize % nodes].clone();
        answers.push(spawn_local(async move { client.enqueue(Sent(sent)).await }));
    }
    for answer in answers {
        answer.await??;
    }
    clock.until_all().await;
    for worker in workers {
        worker.stop();
        worker.join().await?;
    }
    Ok(())
}
