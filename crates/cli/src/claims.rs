//! `windlass claims`: what is in progress, and taking it out of a worker's hands.

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::connection::Connection;
use crate::output::Show;
use crate::select::{Act, Select, act, pages};
use crate::span::Span;

/// See what is in progress and recover it by hand
#[derive(Args, Debug)]
pub(crate) struct Claims {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List what is in progress
    List {
        /// Of this queue
        #[arg(long, value_name = "QUEUE")]
        queue: Option<String>,
        /// Held by this worker
        #[arg(long, value_name = "NAME")]
        worker: Option<String>,
        /// Held for at least this long
        #[arg(long, value_name = "TIME")]
        older_than: Option<Span>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Take claimed tasks from their worker, back into the queue, without using up an attempt
    PutBack {
        #[command(flatten)]
        select: Select,
    },
    /// Take claimed tasks from their worker and end them
    Discard {
        #[command(flatten)]
        select: Select,
    },
}

pub(crate) async fn run(args: Claims) -> Result<()> {
    let client = args.connection.client()?;
    let output = args.connection.output();
    match args.verb {
        Verb::List { queue, worker, older_than, limit } => {
            let older_than = older_than.map(|span| span.millis().to_string());
            let query = [("queue", queue), ("worker", worker), ("older_than_ms", older_than)];
            let claims = pages(&client, "/v1/claims", "claims", &query, limit).await?;
            output.list(
                "claims",
                &claims,
                &[
                    ("id", "/id", Show::Plain),
                    ("queue", "/queue", Show::Plain),
                    ("kind", "/kind", Show::Plain),
                    ("worker", "/worker", Show::Plain),
                    ("attempt", "/attempt", Show::Number),
                    ("deadline", "/deadline", Show::Plain),
                    ("progress", "/progress", Show::Brief),
                ],
            )
        }
        Verb::PutBack { select } => act(&client, output, Act::PutBack, &select, Some("claimed"), None).await,
        Verb::Discard { select } => act(&client, output, Act::Discard, &select, Some("claimed"), None).await,
    }
}
