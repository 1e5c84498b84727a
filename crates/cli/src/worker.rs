//! `windlass worker`: who works, and asking them to stop.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::client::{Call, Client, Repeat, escaped};
use crate::connection::Connection;
use crate::exit::Failure;
use crate::output::{Column, Output, Show, confirm};
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
    ("slots", "/slots", Show::Number),
    ("running", "/running", Show::Number),
    ("last beat", "/last_beat", Show::Plain),
    ("claims", "/claims", Show::Count),
];

pub(crate) async fn run(args: Worker) -> Result<()> {
    let client = args.connection.client()?;
    let output = args.connection.output();
    match args.verb {
        Verb::List => {
            let answer = client.get("/v1/workers").await?;
            if answer.text("cursor").is_none() {
                return output.list_in(&answer, "workers", COLUMNS);
            }
            let workers = pages(&client, "/v1/workers", "workers", &[], usize::MAX).await?;
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
    columns.pop();
    columns.push(("claims", "/claims", Show::Plain));
    output.one(&worker, &columns)
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
