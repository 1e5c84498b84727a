//! `windlass dead`: tasks whose attempts are used up.

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::client::{Client, escaped};
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::json::Json;
use crate::output::{Column, Show};
use crate::select::{Act, Select, act, pages};

/// Look through dead letters, bring them back or throw them away
#[derive(Args, Debug)]
pub(crate) struct Dead {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List dead letters
    List {
        /// Of this queue
        #[arg(long, value_name = "QUEUE")]
        queue: Option<String>,
        /// Of this kind
        #[arg(long, value_name = "KIND")]
        kind: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Bring dead letters back, with all their attempts
    Requeue {
        #[command(flatten)]
        select: Select,
    },
    /// Throw dead letters away
    Discard {
        #[command(flatten)]
        select: Select,
    },
}

const COLUMNS: &[Column] = &[
    ("id", "/id", Show::Plain),
    ("queue", "/queue", Show::Plain),
    ("kind", "/kind", Show::Plain),
    ("attempt", "/attempt", Show::Number),
    ("ended", "/ended_at", Show::Plain),
    ("error", "/error", Show::Brief),
];

pub(crate) async fn run(args: Dead) -> Result<()> {
    let client = args.connection.client()?;
    let output = args.connection.output();
    match args.verb {
        Verb::List { queue, kind, limit } => {
            let query = [("queue", queue), ("kind", kind), ("state", Some("dead".to_owned()))];
            let tasks = pages(&client, "/v1/tasks", "tasks", &query, limit).await?;
            let tasks = with_errors(&client, tasks).await?;
            output.list("tasks", &tasks, COLUMNS)
        }
        Verb::Requeue { select } => act(&client, output, Act::Requeue, &select, Some("dead"), None).await,
        Verb::Discard { select } => act(&client, output, Act::Discard, &select, Some("dead"), None).await,
    }
}

/// A list leaves out what went wrong, which for a dead letter is the point: each is asked for by its id.
async fn with_errors(client: &Client, tasks: Vec<Json>) -> Result<Vec<Json>> {
    let mut detailed = Vec::with_capacity(tasks.len());
    for task in tasks {
        let id = task.text("id").unwrap_or_default();
        match client.get(format!("/v1/tasks/{}", escaped(id))).await {
            Ok(task) => detailed.push(task),
            // It has been thrown away meanwhile.
            Err(e) if e.downcast_ref::<Failure>().is_some_and(|f| f.exit == Exit::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(detailed)
}
