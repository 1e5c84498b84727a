//! Retries and dead letters: one mail goes out at the third attempt, one can never go out, and one dies of an outage
//! and is requeued when that is over.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{Client, Context, Error, Handle, Retry, State, Task, TaskError, Worker};

#[derive(Serialize, Deserialize)]
struct Email {
    to: String,
}

impl Task for Email {
    const KIND: &'static str = "email";
    const QUEUE: &'static str = "email";
    type Output = ();
}

async fn email(task: Email, cx: Context, State(provider): State<Provider>) -> Result<(), TaskError> {
    let to = task.to;
    if let Err(refused) = provider.send(&to, cx.attempt()) {
        println!("{to}: attempt {} fails: {refused}", cx.attempt());
        return Err(match refused.code {
            // No other attempt will do better: a dead letter at once.
            500.. => TaskError::fatal(refused),
            // Tried again after a backoff, as any error is.
            _ => refused.into(),
        });
    }
    println!("{to}: attempt {} is sent", cx.attempt());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(examples::server()).await?;
    let provider = Provider::default();
    let worker = Worker::new(client.clone()).handle(email).state(provider.clone()).start()?;

    // Few and quick, for somebody who watches. Unless said: 20 attempts within about eight hours.
    let retry = Retry::attempts(3).base(Duration::from_millis(100));
    let enqueue = |to: &str| client.enqueue(Email { to: to.into() }).retry(retry);
    let ada = enqueue("ada@example.com").await?;
    let bob = enqueue("bob@example.com").await?;
    let nobody = enqueue("nobody@example.com").await?;
    tell("ada@example.com", &ada).await?;
    tell("bob@example.com", &bob).await?;
    tell("nobody@example.com", &nobody).await?;

    // What died waits for a person: `windlass dead list`, then requeue or discard.
    provider.is_up.store(true, Ordering::Relaxed);
    println!("bob@example.com: requeued, now {}", client.admin().requeue(bob.id()).await?);
    tell("bob@example.com", &bob).await?;
    println!("nobody@example.com: discarded, now {}", client.admin().discard(nobody.id()).await?);

    worker.stop();
    worker.join().await
}

/// Waits for a mail's end and tells it.
async fn tell(to: &str, handle: &Handle<Email>) -> Result<(), Error> {
    match handle.result().await {
        Ok(()) => println!("{to}: done"),
        Err(Error::NotDone { state, error, .. }) => println!("{to}: {state} of {error:?}"),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Stands for the mail provider.
#[derive(Clone, Default)]
struct Provider {
    is_up: Arc<AtomicBool>,
}

/// Why it does not take a mail: 4xx for now, 5xx for good.
#[derive(Debug)]
struct Refused {
    code: u16,
    text: &'static str,
}

impl Provider {
    fn send(&self, to: &str, attempt: u32) -> Result<(), Refused> {
        match to {
            "ada@example.com" if attempt < 3 => Err(Refused { code: 451, text: "greylisted" }),
            "bob@example.com" if !self.is_up.load(Ordering::Relaxed) => {
                Err(Refused { code: 421, text: "service not available" })
            }
            "nobody@example.com" => Err(Refused { code: 550, text: "no such mailbox" }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.text)
    }
}

impl std::error::Error for Refused {}
