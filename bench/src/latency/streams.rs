//! Over the streams of gRPC: one producer and one worker per node, each on a connection of its own.

use anyhow::{Result, bail, ensure};
use prost::Message as _;
use tokio::task::spawn_local;

use super::Clock;
use crate::http2::Connection;
use crate::messages::{Ack, Done, ENQUEUE_STREAM, Enqueued, Heard, Item, NAME, Outcomes, Say, WORK};
use crate::messages::{credit, hello, task};
use crate::process::Server;

pub(super) async fn run(servers: &[Server], slots: usize, clock: Clock) -> Result<()> {
    let nodes = servers.len();
    for (n, server) in servers.iter().enumerate() {
        let slots = slots.div_ceil(nodes) as u32;
        let mut connection = Connection::open(server.address).await?;
        let stream = connection.begin(WORK);
        connection.send(stream, &hello(format!("{NAME}-{n}"), slots));
        let mut arrived = Vec::new();
        connection.receive(&mut arrived).await?;
        for (_, message) in arrived {
            ensure!(Heard::decode(message)?.welcome.is_some(), "the server does not say welcome");
        }
        connection.send(stream, &credit(slots));
        let clock = clock.clone();
        spawn_local(async move {
            if let Err(error) = worker(connection, stream, clock).await {
                eprintln!("a worker ended: {error:#}");
            }
        });
    }
    let mut producing = Vec::new();
    for (n, server) in servers.iter().enumerate() {
        let connection = Connection::open(server.address).await?;
        let mine = (n as u64..clock.count).step_by(nodes);
        producing.push(spawn_local(producer(connection, mine, clock.clone())));
    }
    for task in producing {
        task.await??;
    }
    clock.until_all().await;
    Ok(())
}

/// Sends each when it is due, whatever became of those before; the payload says from when it counts.
async fn producer(mut connection: Connection, mine: impl Iterator<Item = u64>, clock: Clock) -> Result<()> {
    let stream = connection.begin(ENQUEUE_STREAM);
    let mut arrived = Vec::new();
    let mut answered = 0;
    let mut sent = 0;
    for n in mine {
        let due = clock.until_due(n);
        tokio::pin!(due);
        let micros = loop {
            tokio::select! {
                biased;
                micros = &mut due => break micros,
                received = connection.receive(&mut arrived) => {
                    received?;
                    answered += answers(&mut arrived)?;
                }
            }
        };
        connection.send(stream, &Item { seq: n, task: task(micros.to_string().into()), more: Vec::new() });
        sent += 1;
    }
    while answered < sent {
        connection.receive(&mut arrived).await?;
        answered += answers(&mut arrived)?;
    }
    Ok(())
}

/// How many were answered; each of them well.
fn answers(arrived: &mut Vec<crate::http2::Arrived>) -> Result<usize> {
    let mut count = 0;
    for (_, message) in arrived.drain(..) {
        for result in Enqueued::decode(message)?.results {
            if let Some(error) = result.error {
                bail!("{}: {}", error.code, error.message);
            }
            count += 1;
        }
    }
    Ok(count)
}

/// Acks what it gets, at once.
async fn worker(mut connection: Connection, stream: usize, clock: Clock) -> Result<()> {
    let mut arrived = Vec::new();
    let mut seq = 0;
    loop {
        connection.receive(&mut arrived).await?;
        for (_, message) in arrived.drain(..) {
            let heard = Heard::decode(message)?;
            for claim in heard.tasks.into_iter().flat_map(|tasks| tasks.claims) {
                clock.received(std::str::from_utf8(&claim.payload)?.parse()?);
                seq += 1;
                let acks = vec![Ack { seq, token: claim.token, done: Some(Done {}) }];
                connection.send(stream, &Say { outcomes: Some(Outcomes { acks, credit: 1 }) });
            }
            let results = heard.results.into_iter().flat_map(|results| results.results);
            if let Some(error) = results.filter_map(|result| result.error).chain(heard.error).next() {
                bail!("{}: {}", error.code, error.message);
            }
        }
    }
}
