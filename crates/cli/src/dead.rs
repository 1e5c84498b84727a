//! `windlass dead`: tasks whose attempts are used up.

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::connection::Connection;
use crate::select::{Act, Select, act, pages};
use crate::task::TASK_COLUMNS;

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

pub(crate) async fn run(args: Dead) -> Result<()> {
    let client = args.connection.client()?;
    let output = args.connection.output();
    match args.verb {
        Verb::List { queue, kind, limit } => {
            let query = [("queue", queue), ("kind", kind), ("state", Some("dead".to_owned()))];
            let tasks = pages(&client, "/v1/tasks", "tasks", &query, limit).await?;
            output.list("tasks", &tasks, TASK_COLUMNS)
        }
        Verb::Requeue { select } => act(&client, output, Act::Requeue, &select, Some("dead"), None).await,
        Verb::Discard { select } => act(&client, output, Act::Discard, &select, Some("dead"), None).await,
    }
}
