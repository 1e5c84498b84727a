//! A table in PostgreSQL as a queue: INSERT, UPDATE of rows found with SKIP LOCKED, DELETE. A worker that finds nothing
//! looks again after two milliseconds.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use tokio_postgres::{Client, NoTls, Statement};

use super::{Producer, Worker, drive};
use crate::load::{Plan, Summary};

/// How long a worker that found nothing waits.
const POLL: Duration = Duration::from_millis(2);

const TABLE: &str = "CREATE TABLE IF NOT EXISTS tasks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, is_claimed boolean NOT NULL DEFAULT false, payload bytea NOT NULL
); CREATE INDEX IF NOT EXISTS ready ON tasks (id) WHERE NOT is_claimed";
const ENQUEUE: &str = "INSERT INTO tasks (payload) SELECT $1 FROM generate_series(1, $2)";
const CLAIM: &str = "UPDATE tasks SET is_claimed = true WHERE id = ANY(ARRAY(
    SELECT id FROM tasks WHERE NOT is_claimed ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
)) RETURNING id, payload";
const ACK: &str = "DELETE FROM tasks WHERE id = ANY($1)";

/// Connections, each with one message in flight.
pub(crate) async fn run(address: SocketAddr, plan: Plan) -> Result<Summary> {
    connect(address).await?.batch_execute(TABLE).await?;
    let (mut producers, mut workers) = (Vec::new(), Vec::new());
    for _ in 0..plan.outstanding {
        if plan.producers > 0 {
            let client = connect(address).await?;
            let enqueue = client.prepare(ENQUEUE).await?;
            producers.push(Inserter { client, enqueue });
        }
        if plan.workers > 0 {
            let client = connect(address).await?;
            let (claim, ack) = (client.prepare(CLAIM).await?, client.prepare(ACK).await?);
            workers.push(Taker { client, claim, ack });
        }
    }
    drive(plan, producers, workers).await
}

pub(crate) async fn connect(address: SocketAddr) -> Result<Client> {
    let config = format!("host={} port={} user=bench dbname=postgres", address.ip(), address.port());
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await?;
    // It ends with the client.
    tokio::spawn(connection);
    Ok(client)
}

struct Inserter {
    client: Client,
    enqueue: Statement,
}

impl Producer for Inserter {
    async fn enqueue(&mut self, payload: &[u8], count: u64) -> Result<()> {
        self.client.execute(&self.enqueue, &[&payload, &(count as i32)]).await?;
        Ok(())
    }
}

struct Taker {
    client: Client,
    claim: Statement,
    ack: Statement,
}

impl Worker for Taker {
    type Job = i64;

    async fn take(&mut self, max: u64) -> Result<Vec<(i64, Vec<u8>)>> {
        let rows = self.client.query(&self.claim, &[&(max as i64)]).await?;
        if rows.is_empty() {
            tokio::time::sleep(POLL).await;
        }
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn ack(&mut self, jobs: Vec<i64>) -> Result<()> {
        self.client.execute(&self.ack, &[&jobs]).await?;
        Ok(())
    }
}
