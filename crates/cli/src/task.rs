//! `windlass task`: looks at tasks and acts on them.

use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use windlass::TaskState;

use crate::client::{Client, escaped, with_query};
use crate::connection::Connection;
use crate::enqueue::{has_ended, wait_for_end};
use crate::exit::{Exit, Failure};
use crate::json::Json;
use crate::output::{Column, Output, Show, print};
use crate::select::{Act, Select, act, pages};
use crate::span::Span;

/// Look at tasks and act on them
#[derive(Args, Debug)]
pub(crate) struct Task {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Show one task with its history
    Get(Get),
    /// List tasks
    List(List),
    /// Say why a task is where it is
    Why {
        /// The task's id
        id: String,
    },
    /// Cancel tasks: at once when waiting, by request to the worker when claimed
    Cancel {
        #[command(flatten)]
        select: Select,
        /// Only those in this state
        #[arg(long, value_parser = state(), conflicts_with = "ids")]
        state: Option<TaskState>,
        /// Why, for the history
        #[arg(long, value_name = "TEXT", requires = "ids")]
        reason: Option<String>,
    },
    /// Bring dead, failed or cancelled tasks back
    Requeue {
        #[command(flatten)]
        select: Select,
        /// Only those in this state
        #[arg(long, value_parser = state(), conflicts_with = "ids")]
        state: Option<TaskState>,
    },
}

#[derive(Args, Debug)]
struct Get {
    /// The task's id
    #[arg(required_unless_present = "dedup_key")]
    id: Option<String>,
    /// Find it by queue and dedup key
    #[arg(long, value_name = "KEY", requires = "queue", conflicts_with = "id")]
    dedup_key: Option<String>,
    /// The queue of the dedup key
    #[arg(long, value_name = "QUEUE", requires = "dedup_key")]
    queue: Option<String>,
    /// The order key it was enqueued with: dedup keys hold within it
    #[arg(long, value_name = "KEY", requires = "dedup_key")]
    order_key: Option<String>,
    /// The unique key it was enqueued with, if it has no order key: dedup keys hold within it
    #[arg(long, value_name = "KEY", requires = "dedup_key", conflicts_with = "order_key")]
    unique_key: Option<String>,
    /// Wait this long for its end; exits with 8 if it ended, but not done
    #[arg(long, value_name = "TIME", conflicts_with = "dedup_key")]
    wait: Option<Span>,
}

#[derive(Args, Debug)]
struct List {
    /// Of this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// In this state
    #[arg(long, value_parser = state())]
    state: Option<TaskState>,
    /// Of this kind
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// With this order key; needs --queue
    #[arg(long, value_name = "KEY", requires = "queue")]
    order_key: Option<String>,
    /// With this text in id, kind, keys, headers or payload
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

/// Reads a task's state, and names them all to whoever asks for help.
fn state() -> impl TypedValueParser<Value = TaskState> {
    PossibleValuesParser::new(TaskState::ALL.map(TaskState::as_str)).try_map(|word| word.parse::<TaskState>())
}

/// What a list of tasks shows of each.
pub(crate) const TASK_COLUMNS: &[Column] = &[
    ("id", "/id", Show::Plain),
    ("queue", "/queue", Show::Plain),
    ("kind", "/kind", Show::Plain),
    ("state", "/state", Show::State),
    ("attempt", "/attempt", Show::Number),
    ("worker", "/worker", Show::Plain),
    ("enqueued", "/enqueued_at", Show::Plain),
];

pub(crate) async fn run(args: Task) -> Result<()> {
    let client = args.connection.client()?;
    let output = args.connection.output();
    match args.verb {
        Verb::Get(get) => show(&client, output, get).await,
        Verb::List(list) => {
            let query = [
                ("queue", list.queue),
                ("state", list.state.map(|state| state.to_string())),
                ("kind", list.kind),
                ("order_key", list.order_key),
                ("q", list.search),
            ];
            let tasks = pages(&client, "/v1/tasks", "tasks", &query, list.limit).await?;
            output.list("tasks", &tasks, TASK_COLUMNS)
        }
        Verb::Why { id } => why(&client, output, &id).await,
        Verb::Cancel { select, state, reason } => {
            act(&client, output, Act::Cancel, &select, state.map(TaskState::as_str), reason.as_deref()).await
        }
        Verb::Requeue { select, state } => {
            act(&client, output, Act::Requeue, &select, state.map(TaskState::as_str), None).await
        }
    }
}

async fn show(client: &Client, output: Output, get: Get) -> Result<()> {
    let task = match (&get.id, &get.queue, &get.dedup_key) {
        (Some(id), ..) => {
            wait_for_end(client, id, Some(get.wait.map(Span::duration).unwrap_or_default())).await?
        }
        (None, Some(queue), Some(key)) => {
            let path = format!("/v1/queues/{}/tasks/{}", escaped(queue), escaped(key));
            let keys = [("order_key", get.order_key), ("unique_key", get.unique_key)];
            client.get(with_query(&path, &keys)).await?
        }
        _ => return Err(Failure::usage("which task? give its id, or --queue and --dedup-key").into()),
    };
    print_task(output, &task)?;
    if get.wait.is_none() {
        return Ok(());
    }
    let state = task.text("state").unwrap_or_default();
    match state {
        "done" => Ok(()),
        _ if has_ended(&task) => {
            Err(Failure::new(Exit::TaskFailed, format!("the task ended {state}")).into())
        }
        _ => Err(Failure::new(Exit::Timeout, format!("the task is still {state}")).into()),
    }
}

fn print_task(output: Output, task: &Json) -> Result<()> {
    output.one(
        task,
        &[
            ("id", "/id", Show::Plain),
            ("queue", "/queue", Show::Plain),
            ("kind", "/kind", Show::Plain),
            ("state", "/state", Show::State),
            ("attempt", "/attempt", Show::Plain),
            ("attempts max", "/attempts_max", Show::Plain),
            ("priority", "/priority", Show::Plain),
            ("order key", "/order_key", Show::Plain),
            ("dedup key", "/dedup_key", Show::Plain),
            ("worker", "/worker", Show::Plain),
            ("progress", "/progress", Show::Plain),
            ("enqueued", "/enqueued_at", Show::Plain),
            ("due", "/due", Show::Plain),
            ("deadline", "/deadline", Show::Plain),
            ("payload", "/payload", Show::Plain),
            ("output", "/output", Show::Plain),
            ("error", "/error", Show::Plain),
        ],
    )?;
    let history = task.items("history");
    if !output.is_for_people() || history.is_empty() {
        return Ok(());
    }
    print("")?;
    output.list(
        "history",
        &history,
        &[
            ("at", "/at", Show::Plain),
            ("index", "/index", Show::Number),
            ("event", "/event", Show::Plain),
            ("worker", "/worker", Show::Plain),
            ("error", "/error", Show::Brief),
        ],
    )
}

async fn why(client: &Client, output: Output, id: &str) -> Result<()> {
    let answer = client.get(format!("/v1/tasks/{}/why", escaped(id))).await?;
    if !output.is_for_people() {
        return output.say(&answer, "");
    }
    print(answer.text("state").unwrap_or_default())?;
    for reason in answer.items("reasons") {
        output.say(&reason, &format!("  {}", reason.text("text").unwrap_or_default()))?;
    }
    Ok(())
}
