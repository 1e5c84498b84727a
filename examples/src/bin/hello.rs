//! The first task: a producer and a worker in one program.

use serde::{Deserialize, Serialize};
use windlass::{Client, Error, Task, TaskError, Worker};

#[derive(Serialize, Deserialize)]
struct Hello {
    name: String,
}

impl Task for Hello {
    const KIND: &'static str = "hello";
    const QUEUE: &'static str = "greetings";
    type Output = String;
}

async fn hello(task: Hello) -> Result<String, TaskError> {
    Ok(format!("hello, {}", task.name))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(examples::server()).await?;
    let worker = Worker::new(client.clone()).handle(hello).start()?;
    let handle = client.enqueue(Hello { name: "Ada".into() }).await?;
    println!("enqueued {}", handle.id());
    println!("{}", handle.result().await?);
    worker.stop();
    worker.join().await
}
