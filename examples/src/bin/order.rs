//! Per-user order: what happens to one user happens in the order in which it was enqueued, also when a task fails and
//! is tried again. Other users do not wait for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{Client, Context, Error, Retry, Task, TaskError, Worker};

#[derive(Serialize, Deserialize)]
struct Change {
    user: String,
    what: String,
}

impl Task for Change {
    const KIND: &'static str = "change";
    const QUEUE: &'static str = "changes";
    type Output = ();
}

async fn change(task: Change, cx: Context) -> Result<(), TaskError> {
    let Change { user, what } = task;
    if user == "ada" && what == "create" && cx.attempt() == 1 {
        println!("{user}: {what} fails and is tried again");
        return Err("the database is busy".into());
    }
    println!("{user}: {what}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(examples::server()).await?;
    // Room for all of them at once: nothing but the order key keeps them apart.
    let worker = Worker::new(client.clone()).slots(8).handle(change).start()?;

    let mut handles = Vec::new();
    for what in ["create", "rename", "delete"] {
        for user in ["ada", "bob"] {
            let task = Change { user: user.into(), what: what.into() };
            let retry = Retry::attempts(5).base(Duration::from_millis(200));
            handles.push(client.enqueue(task).order_key(user).retry(retry).await?);
        }
    }
    for handle in &handles {
        handle.result().await?;
    }
    println!("all {} are done", handles.len());

    worker.stop();
    worker.join().await
}
