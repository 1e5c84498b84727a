//! A fence against a database: a worker stalls in the middle of a payment, loses its claim, wakes up and writes all the
//! same. The table keeps the highest fence that it has seen, and refuses the stale write.

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use windlass::{Client, Context, IntoHandler as _, State, Task, TaskError, Worker};

#[derive(Serialize, Deserialize)]
struct Pay {
    order: String,
    cents: i64,
}

impl Task for Pay {
    const KIND: &'static str = "pay";
    const QUEUE: &'static str = "payments";
    type Output = String;
}

/// Pays, with the fence of its claim in the same statement as the payment.
async fn pay(
    task: Pay,
    cx: Context,
    State(table): State<Payments>,
    State(stall): State<Arc<Stall>>,
) -> Result<String, TaskError> {
    let (worker, fence) = (table.worker, cx.fence());
    println!("{worker}: claimed {} with fence {fence}", task.order);
    if worker == "worker-1" {
        // A long pause of the machine: nothing tells the handler, and it goes on with what it was about to do.
        println!("{worker}: stalls");
        stall.begun.notify_one();
        stall.over.notified().await;
        println!("{worker}: wakes up");
    }
    match table.pay(&task, fence)? {
        Written::Yes => println!("{worker}: paid {} with fence {fence}", task.order),
        Written::Stale { newest } => {
            println!("{worker}: refused, fence {fence} is older than {newest}");
            return Err(TaskError::fatal("another worker has this task"));
        }
    }
    Ok(format!("paid by {worker}"))
}

/// One worker's connection to the table of payments.
#[derive(Clone)]
struct Payments {
    worker: &'static str,
    connection: Arc<Mutex<Connection>>,
}

enum Written {
    Yes,
    Stale { newest: i64 },
}

impl Payments {
    fn open(path: &Path, worker: &'static str) -> rusqlite::Result<Payments> {
        let connection = Connection::open(path)?;
        connection.execute(
            "CREATE TABLE IF NOT EXISTS payments
                (order_id TEXT PRIMARY KEY, cents INTEGER NOT NULL, worker TEXT NOT NULL, fence INTEGER NOT NULL)",
            [],
        )?;
        Ok(Payments { worker, connection: Arc::new(Mutex::new(connection)) })
    }

    /// Writes the payment, unless a later claim of the task has written. The same write again changes nothing.
    fn pay(&self, task: &Pay, fence: u64) -> Result<Written, Box<dyn Error + Send + Sync>> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let written = connection.execute(
            "INSERT INTO payments (order_id, cents, worker, fence) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (order_id) DO UPDATE
                SET cents = excluded.cents, worker = excluded.worker, fence = excluded.fence
                WHERE excluded.fence >= payments.fence",
            params![task.order, task.cents, self.worker, i64::try_from(fence)?],
        )?;
        if written == 1 {
            return Ok(Written::Yes);
        }
        let newest = "SELECT fence FROM payments WHERE order_id = ?1";
        Ok(Written::Stale { newest: connection.query_row(newest, [&task.order], |row| row.get(0))? })
    }

    fn row(&self, order: &str) -> rusqlite::Result<Option<(i64, String, i64)>> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let row = "SELECT cents, worker, fence FROM payments WHERE order_id = ?1";
        connection.query_row(row, [order], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()
    }
}

/// When the first worker's stall begins and ends.
#[derive(Default)]
struct Stall {
    begun: Notify,
    over: Notify,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::connect(examples::server()).await?;
    let file = tempfile::NamedTempFile::new()?;
    let stall = Arc::new(Stall::default());
    let worker = |name: &'static str| -> rusqlite::Result<Worker> {
        let table = Payments::open(file.path(), name)?;
        Ok(Worker::new(client.clone()).slots(1).state(table).state(stall.clone()))
    };

    // A machine that stalls extends nothing: its claims end after half a second.
    let stalling = pay.hold(Duration::from_millis(500)).no_extend();
    let first = worker("worker-1")?.handle(stalling).start()?;
    let handle = client.enqueue(Pay { order: "order-17".into(), cents: 4200 }).await?;
    stall.begun.notified().await;
    let second = worker("worker-2")?.handle(pay).start()?;
    println!("task: done, {}", handle.result().await?);

    stall.over.notify_one();
    for running in [first, second] {
        // Waits for handlers that still run.
        running.stop();
        running.join().await?;
    }
    if let Some((cents, worker, fence)) = Payments::open(file.path(), "nobody")?.row("order-17")? {
        println!("table: order-17, {cents} cents, by {worker}, fence {fence}");
    }
    Ok(())
}
