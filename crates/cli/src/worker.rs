//! `windlass worker`: who works, and asking them to stop.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::client::{Call, Client, Repeat, escaped};
use crate::connection::Connection;
use crate::exit::Failure;
use crate::json::Json;
use crate::output::{Column, Format, Output, Show, confirm};
use crate::select::pages;

/// See workers, drain, stop or remove them
#[derive(Args, Debug)]
pub(crate) struct Worker {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List workers
    List,
    /// Show one worker and what it holds
    Show {
        /// The worker's name
        name: String,
    },
    /// Ask a worker to finish what it runs and claim nothing more
    Drain {
        /// The worker's name
        name: String,
    },
    /// Ask a worker to stop now and give back what it runs
    Stop {
        /// The worker's name
        name: String,
    },
    /// Free a worker's claims at once and fence it
    Remove {
        /// The worker's name
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

const COLUMNS: &[Column] = &[
    ("worker", "/id", Show::Plain),
    ("state", "/state", Show::State),
    ("host", "/host", Show::Plain),
    ("open", "/open", Show::Number),
    ("slots", "/slots", Show::Number),
    ("running", "/running", Show::Number),
    ("last beat", "/last_beat", Show::Plain),
    ("queues", "/queues", Show::Plain),
    ("labels", "/labels", Show::Plain),
    ("version", "/version", Show::Plain),
];

pub(crate) async fn run(args: Worker) -> Result<()> {
    let client = args.connection.client()?;
    let output = args.connection.output();
    match args.verb {
        Verb::List => {
            if output.format() == Format::Json {
                let answer = client.get("/v1/workers").await?;
                // Programs get the slots of all workers, too.
                if answer.text("cursor").is_none() {
                    return output.list_in(&answer, "workers", COLUMNS);
                }
            }
            let mut workers = pages(&client, "/v1/workers", "workers", &[], usize::MAX).await?;
            if is_in_cells(output) {
                workers = workers.iter().map(in_cells).collect();
            }
            output.list("workers", &workers, COLUMNS)
        }
        Verb::Show { name } => show(&client, output, &name).await,
        Verb::Drain { name } => ask(&client, output, &name, "drain", "asked to drain").await,
        Verb::Stop { name } => ask(&client, output, &name, "stop", "asked to stop").await,
        Verb::Remove { name, yes } => {
            confirm(yes, &format!("remove worker {name} and free what it holds"))?;
            ask(&client, output, &name, "remove", "removed").await
        }
    }
}

async fn show(client: &Client, output: Output, name: &str) -> Result<()> {
    let worker = client.get(format!("/v1/workers/{}", escaped(name))).await;
    let worker = worker.map_err(|error| in_words(error, name))?;
    let mut columns = COLUMNS.to_vec();
    columns.extend([("process", "/pid", Show::Plain), ("claims", "/claims", Show::Plain)]);
    let worker = if is_in_cells(output) { in_cells(&worker) } else { worker };
    output.one(&worker, &columns)
}

/// Whether workers are shown in cells, not as the server said them.
fn is_in_cells(output: Output) -> bool {
    matches!(output.format(), Format::Table | Format::Csv)
}

/// A worker as a table shows it: with the slots that are open, and its lists as text.
fn in_cells(worker: &Json) -> Json {
    let mut cells = worker.value().clone();
    let open = match worker.text("state") {
        Some("running") => worker.number("slots").saturating_sub(worker.number("running")),
        _ => 0,
    };
    let labels = worker.value()["labels"].as_object();
    let labels = labels.into_iter().flatten();
    let labels = labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
    let labels = labels.collect::<Vec<_>>().join(" ");
    let queues = worker.value()["queues"].as_array();
    let queues: Vec<&str> = queues.into_iter().flatten().filter_map(|queue| queue.as_str()).collect();
    cells["open"] = open.into();
    cells["labels"] = labels.into();
    cells["queues"] = queues.join(" ").into();
    Json::from(cells)
}

async fn ask(client: &Client, output: Output, name: &str, verb: &str, past: &str) -> Result<()> {
    let path = format!("/v1/workers/{}/{verb}", escaped(name));
    let answer = client.call(Call::post(path, &json!({}), Repeat::Safe)).await;
    let answer = answer.map_err(|error| in_words(error, name))?;
    output.say(&answer, &format!("worker {name} {past}"))
}

/// What the server tells a worker that it does not know, for people.
fn in_words(error: anyhow::Error, name: &str) -> anyhow::Error {
    match error.downcast_ref::<Failure>() {
        Some(failure) if failure.is("unknown_worker") => {
            let message = format!("no worker {name:?}, or it is lost: see windlass worker list");
            Failure { exit: failure.exit, code: failure.code.clone(), message }.into()
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_open_slots_labels_and_queues() {
        let worker = |state: &str| {
            Json::from(json!({
                "id": "w1", "state": state, "slots": 8, "running": 3,
                "labels": {"sdk": "rust/1", "zone": "a"}, "queues": ["mail", "reports"],
            }))
        };
        let cells = in_cells(&worker("running"));
        assert_eq!((cells.number("open"), cells.text("labels")), (5, Some("sdk=rust/1 zone=a")));
        assert_eq!(cells.text("queues"), Some("mail reports"));
        for state in ["draining", "stopping", "lost"] {
            assert_eq!(in_cells(&worker(state)).number("open"), 0, "{state}");
        }
    }
}
