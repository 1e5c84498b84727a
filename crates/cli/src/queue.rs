//! `windlass queue`: queues, their depth and their policy.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::client::{Call, Client, Repeat, escaped};
use crate::connection::Connection;
use crate::exit::Failure;
use crate::json::Json;
use crate::output::{Column, Output, Show, confirm};
use crate::span::{Span, parse_bytes};

/// See queues and change their policy
#[derive(Args, Debug)]
pub(crate) struct Queue {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List queues
    List,
    /// Show one queue with its policy
    Show {
        /// The queue
        queue: String,
    },
    /// Change a queue's policy; what no flag names stays as it is
    Set(Box<Set>),
    /// Hand out no more tasks of a queue
    Pause {
        /// The queue
        queue: String,
    },
    /// Hand out tasks again
    Resume {
        /// The queue
        queue: String,
    },
    /// End all tasks that wait in a queue
    Purge {
        /// The queue
        queue: String,
        /// Only say how many there are
        #[arg(long)]
        dry_run: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Delete an empty queue and its policy
    Delete {
        /// The queue
        queue: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args, Debug)]
struct Set {
    /// The queue; it is made if there is none
    queue: String,
    /// How long a claim holds, unless task or claim say otherwise
    #[arg(long, value_name = "TIME")]
    hold: Option<Span>,
    /// Attempts in all
    #[arg(long, value_name = "N")]
    attempts: Option<u32>,
    /// The first backoff; doubles each time
    #[arg(long, value_name = "TIME")]
    retry_base: Option<Span>,
    /// The longest backoff
    #[arg(long, value_name = "TIME")]
    retry_cap: Option<Span>,
    /// No retry of a task older than this
    #[arg(long, value_name = "TIME|none")]
    retry_age_max: Option<OrNone<Span>>,
    /// How long an ended task stays readable
    #[arg(long, value_name = "TIME")]
    retention: Option<Span>,
    /// How many ended tasks stay readable
    #[arg(long, value_name = "N")]
    retained_max: Option<u64>,
    /// How many dead letters are kept
    #[arg(long, value_name = "N")]
    dead_max: Option<u64>,
    /// How long a dead letter is kept
    #[arg(long, value_name = "TIME")]
    dead_retention: Option<Span>,
    /// How many dedup keys are remembered
    #[arg(long, value_name = "N")]
    dedup_keys_max: Option<u64>,
    /// How many live tasks it takes
    #[arg(long, value_name = "N|none")]
    tasks_max: Option<OrNone<u64>>,
    /// The largest payload
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    payload_bytes_max: Option<u64>,
    /// Who frees the claims of a lost worker
    #[arg(long, value_parser = ["auto", "manual"])]
    recovery: Option<String>,
    /// Where a freed task goes
    #[arg(long, value_parser = ["front", "back"])]
    freed_to: Option<String>,
    /// What becomes of a task whose attempts are used up
    #[arg(long, value_parser = ["dead", "discard"])]
    on_exhausted: Option<String>,
    /// How many shards it lives in; changes only while it is empty
    #[arg(long, value_parser = ["all", "1"])]
    shards: Option<String>,
    /// Claims lost in a row that make a task a poison pill
    #[arg(long, value_name = "N")]
    poison_after: Option<u32>,
    /// Only show what would be set
    #[arg(long)]
    dry_run: bool,
}

/// A number, or `none`.
#[derive(Clone, Copy, Debug)]
struct OrNone<T>(Option<T>);

impl<T: std::str::FromStr> std::str::FromStr for OrNone<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<OrNone<T>, T::Err> {
        if text == "none" { Ok(OrNone(None)) } else { text.parse().map(|value| OrNone(Some(value))) }
    }
}

const COLUMNS: &[Column] = &[
    ("queue", "/name", Show::Plain),
    ("paused", "/paused", Show::Plain),
    ("ready", "/depth/ready", Show::Number),
    ("claimed", "/depth/claimed", Show::Number),
    ("delayed", "/depth/delayed", Show::Number),
    ("retrying", "/depth/retrying", Show::Number),
    ("blocked", "/depth/blocked", Show::Number),
    ("dead", "/depth/dead", Show::Number),
    ("oldest ready", "/oldest_ready_ms", Show::Age),
    ("oldest claim", "/oldest_claimed_ms", Show::Age),
    ("enqueued", "/totals/enqueued", Show::Number),
    ("done", "/totals/done", Show::Number),
];

pub(crate) async fn run(args: Queue) -> Result<()> {
    let client = args.connection.client()?;
    let output = args.connection.output();
    match args.verb {
        Verb::List => {
            let answer = client.get("/v1/queues").await?;
            output.list_in(&answer, "queues", COLUMNS)
        }
        Verb::Show { queue } => {
            let answer = client.get(path(&queue)).await?;
            let mut columns = COLUMNS.to_vec();
            columns.push(("totals", "/totals", Show::Plain));
            columns.push(("policy", "/policy", Show::Plain));
            output.one(&answer, &columns)
        }
        Verb::Set(set) => self::set(&client, output, *set).await,
        Verb::Pause { queue } => post(&client, output, &queue, "pause", "paused").await,
        Verb::Resume { queue } => post(&client, output, &queue, "resume", "resumed").await,
        Verb::Purge { queue, dry_run, yes } => purge(&client, output, &queue, dry_run, yes).await,
        Verb::Delete { queue, yes } => {
            confirm(yes, &format!("delete queue {queue}"))?;
            let answer = client.call(Call::delete(path(&queue))).await?;
            output.say(&answer, &format!("queue {queue} deleted"))
        }
    }
}

fn path(queue: &str) -> String {
    format!("/v1/queues/{}", escaped(queue))
}

async fn post(client: &Client, output: Output, queue: &str, verb: &str, past: &str) -> Result<()> {
    let call = Call::post(format!("{}/{verb}", path(queue)), &json!({}), Repeat::Safe);
    let answer = client.call(call).await?;
    output.say(&answer, &format!("queue {queue} {past}"))
}

async fn purge(client: &Client, output: Output, queue: &str, dry_run: bool, yes: bool) -> Result<()> {
    let before = client.get(path(queue)).await?;
    let waiting: u64 = ["ready", "delayed", "retrying", "blocked"]
        .iter()
        .filter_map(|state| before.value().pointer(&format!("/depth/{state}"))?.as_u64())
        .sum();
    if dry_run {
        return output
            .say(&Json::from(json!({"matched": waiting})), &format!("would purge about {waiting} tasks"));
    }
    confirm(yes, &format!("purge about {waiting} tasks of queue {queue}"))?;
    // A second one would take what came after the first.
    let call = Call::post(format!("{}/purge", path(queue)), &json!({}), Repeat::Unsafe);
    let answer = client.call(call).await?;
    output.say(&answer, &format!("queue {queue} purged of about {waiting} tasks"))
}

async fn set(client: &Client, output: Output, set: Set) -> Result<()> {
    let changes = changes(&set);
    if changes.is_empty() {
        return Err(Failure::usage("nothing to set: see windlass queue set --help").into());
    }
    let mut policy = Map::new();
    for (name, value) in changes {
        match name.split_once('.') {
            None => drop(policy.insert(name.into(), value)),
            Some((outer, inner)) => {
                let nested = policy.entry(outer).or_insert_with(|| json!({}));
                nested[inner] = value;
            }
        }
    }
    if set.dry_run {
        let policy = Json::from(Value::Object(policy));
        return output.say(&policy, &format!("would set {}", policy.raw()));
    }
    let answer = client.call(Call::put(path(&set.queue), &policy)).await?;
    output.say(&answer, &format!("queue {} set", set.queue))
}

/// What the flags say, by the policy's names; a dot goes one level down.
fn changes(set: &Set) -> Vec<(&'static str, Value)> {
    let span = |span: Option<Span>| span.map(|span| Value::from(span.millis()));
    let shards = set.shards.as_deref().map(|shards| if shards == "1" { json!(1) } else { json!("all") });
    [
        ("hold_ms", span(set.hold)),
        ("retry.attempts", set.attempts.map(Value::from)),
        ("retry.base_ms", span(set.retry_base)),
        ("retry.cap_ms", span(set.retry_cap)),
        ("retry.age_max_ms", set.retry_age_max.map(|max| max.0.map(Span::millis).into())),
        ("retention_ms", span(set.retention)),
        ("retained_max", set.retained_max.map(Value::from)),
        ("dead_max", set.dead_max.map(Value::from)),
        ("dead_retention_ms", span(set.dead_retention)),
        ("dedup_keys_max", set.dedup_keys_max.map(Value::from)),
        ("tasks_max", set.tasks_max.map(|max| max.0.into())),
        ("payload_bytes_max", set.payload_bytes_max.map(Value::from)),
        ("recovery", set.recovery.clone().map(Value::from)),
        ("freed_to", set.freed_to.clone().map(Value::from)),
        ("on_exhausted", set.on_exhausted.clone().map(Value::from)),
        ("shards", shards),
        ("poison_after", set.poison_after.map(Value::from)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}
