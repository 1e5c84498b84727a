//! A progress bar: the handler says how far it is, whoever waits for it sees it in the terminal.

use std::error::Error;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use tokio::time::interval;
use windlass::{Client, Context, Progress, Task, TaskError, Worker};

#[derive(Serialize, Deserialize)]
struct CountPrimes {
    below: u64,
}

impl Task for CountPrimes {
    const KIND: &'static str = "count-primes";
    const QUEUE: &'static str = "numbers";
    type Output = u64;
}

async fn count_primes(task: CountPrimes, cx: Context) -> Result<u64, TaskError> {
    // What keeps a processor busy goes to a thread of its own, so that other handlers go on.
    tokio::task::spawn_blocking(move || {
        let mut primes = 0;
        for percent in 1..=100 {
            if cx.is_cancelled() {
                return Err(TaskError::release("told to stop"));
            }
            let part = |percent: u32| task.below * u64::from(percent) / 100;
            primes += (part(percent - 1)..part(percent)).filter(|&n| is_prime(n)).count() as u64;
            cx.progress((percent, format!("{primes} primes")));
        }
        Ok(primes)
    })
    .await?
}

fn is_prime(n: u64) -> bool {
    n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::connect(examples::server()).await?;
    let worker = Worker::new(client.clone()).handle(count_primes).start()?;
    let below = 1_000_000;
    let handle = client.enqueue(CountPrimes { below }).await?;
    println!("enqueued {}", handle.id());

    let bar = ProgressBar::new(100).with_style(ProgressStyle::with_template("{bar:40} {pos:>3} % {msg}")?);
    let mut look = interval(Duration::from_millis(100));
    let result = handle.result();
    tokio::pin!(result);
    let primes = loop {
        tokio::select! {
            primes = &mut result => break primes?,
            _ = look.tick() => show(&bar, handle.progress().await?.unwrap_or_default()),
        }
    };
    bar.finish_and_clear();
    println!("{primes} primes below {below}");

    worker.stop();
    worker.join().await?;
    Ok(())
}

/// Moves the bar; a line for whoever has no terminal.
fn show(bar: &ProgressBar, Progress { percent, note }: Progress) {
    if bar.is_hidden() && u64::from(percent) > bar.position() {
        println!("{percent} % {note}");
    }
    bar.set_position(percent.into());
    bar.set_message(note);
}
