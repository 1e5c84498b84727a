//! `windlass enqueue`: one task, many of the same, or one per line of stdin.

use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use windlass::TaskState;

use crate::client::{Call, Client, Repeat, escaped, problem_of, with_query};
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::json::Json;
use crate::output::{Output, Show, note, progress};
use crate::span::Span;

/// Tasks in one request; far below what the server takes, so that the bar moves.
const TASKS_PER_REQUEST: usize = 500;
/// Bytes in one request, but for a single larger task.
const BYTES_PER_REQUEST: usize = 4 * 1024 * 1024;
/// How long one request waits for a task's end.
const WAIT_STEP: Duration = Duration::from_secs(20);

/// Put tasks into a queue
///
/// With `-` in place of the payload, each line of stdin is the payload of one task.
/// With `-` in place of the kind, each line is a whole task: {"kind":"welcome","payload":{…},…}.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  windlass enqueue mail welcome '{\"to\":\"ada@example.com\"}'
  windlass enqueue mail welcome - < payloads.jsonl
  windlass enqueue mail - < tasks.jsonl
  windlass enqueue demo hello --wait")]
pub(crate) struct Enqueue {
    /// The queue; it is made on first use
    queue: String,
    /// Which handler the task is for, or - for whole tasks on stdin
    kind: String,
    /// JSON, or - for one payload per line of stdin
    #[arg(default_value = "{}")]
    payload: String,
    /// So many of the same
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Not claimed before this much time has passed
    #[arg(long, value_name = "TIME", conflicts_with = "run_at")]
    delay: Option<Span>,
    /// Not claimed before this time, like 2026-11-15T12:00:00Z
    #[arg(long, value_name = "RFC3339")]
    run_at: Option<String>,
    /// Tasks of one order key run one after the other
    #[arg(long, value_name = "KEY")]
    order_key: Option<String>,
    /// The same key again is the same task
    #[arg(long, value_name = "KEY", conflicts_with = "count")]
    dedup_key: Option<String>,
    /// 0 is served first, 9 last
    #[arg(long, value_name = "0-9", value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,
    /// Wait until the tasks have ended and show what came out
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(args: Enqueue) -> Result<()> {
    let client = args.connection.client()?;
    let output = args.connection.output();
    let mut sender = Sender::new(&args, &client);
    match (args.kind.as_str(), args.payload.as_str()) {
        ("-", "{}") => from_stdin(&mut sender, Line::Task).await?,
        ("-", _) => {
            return Err(Failure::usage(
                "with - in place of the kind, tasks come from stdin: leave the payload out",
            )
            .into());
        }
        (_, "-") => from_stdin(&mut sender, Line::Payload(&args.kind)).await?,
        (kind, payload) => {
            let task = sender
                .task(kind, payload)
                .map_err(|e| Failure::usage(format!("the payload is not JSON: {e}")))?;
            if args.count.is_none() {
                return one(&client, &args, &task, output).await;
            }
            sender.bar = progress(args.count);
            for _ in 0..args.count.unwrap_or(1) {
                sender.push(task.clone()).await?;
            }
        }
    }
    sender.flush().await?;
    sender.bar.finish_and_clear();
    sender.finish(output).await
}

async fn one(client: &Client, args: &Enqueue, task: &RawValue, output: Output) -> Result<()> {
    // With a dedup key a repeat after a lost answer is the same task; without one it would be another.
    let repeat = if args.dedup_key.is_some() { Repeat::Safe } else { Repeat::Unsafe };
    let answer = client.call(Call::post(path(&args.queue), &task, repeat)).await?;
    if !args.wait {
        let said = |field| answer.text(field).unwrap_or_default();
        return output.say(&answer, &format!("{} {} ({})", said("id"), said("status"), said("state")));
    }
    let id = answer.text("id").context("the answer has no id")?.to_owned();
    let ended = wait_for_end(client, &id, None).await?;
    show_ended(output, &ended)?;
    check_done(&ended)
}

fn show_ended(output: Output, task: &Json) -> Result<()> {
    output.one(
        task,
        &[
            ("id", "/id", Show::Plain),
            ("state", "/state", Show::State),
            ("attempt", "/attempt", Show::Plain),
            ("output", "/output", Show::Plain),
            ("error", "/error", Show::Plain),
        ],
    )
}

fn check_done(task: &Json) -> Result<()> {
    match task.text("state") {
        Some("done") => Ok(()),
        state => {
            let (id, state) = (task.text("id").unwrap_or_default(), state.unwrap_or("unknown"));
            Err(Failure::new(Exit::TaskFailed, format!("task {id} ended {state}")).into())
        }
    }
}

/// Asks again and again until the task has ended, or for as long as `patience` says. Answers with the task
/// as it was last seen.
pub(crate) async fn wait_for_end(client: &Client, id: &str, patience: Option<Duration>) -> Result<Json> {
    let started = Instant::now();
    loop {
        let left =
            patience.map_or(WAIT_STEP, |patience| patience.saturating_sub(started.elapsed()).min(WAIT_STEP));
        let path = format!("/v1/tasks/{}", escaped(id));
        let path = with_query(&path, &[("wait_ms", Some(left.as_millis().to_string()))]);
        let task = client.call(Call::get(path).waiting(left)).await?;
        if has_ended(&task) || patience.is_some_and(|patience| started.elapsed() >= patience) {
            return Ok(task);
        }
    }
}

/// Whether a task's state is one of the last ones.
pub(crate) fn has_ended(task: &Json) -> bool {
    task.text("state").and_then(|state| state.parse().ok()).is_some_and(TaskState::is_ended)
}

fn path(queue: &str) -> String {
    format!("/v1/queues/{}/tasks", escaped(queue))
}

/// What a line of stdin is.
enum Line<'a> {
    Payload(&'a str),
    Task,
}

async fn from_stdin(sender: &mut Sender<'_>, kind_of: Line<'_>) -> Result<()> {
    sender.bar = progress(None);
    // Reading blocks, but there is nothing else to do meanwhile: the last batch has been answered.
    for (n, line) in std::io::stdin().lock().lines().enumerate() {
        let line = line.context("cannot read stdin")?;
        if line.trim().is_empty() {
            continue;
        }
        let task = match kind_of {
            Line::Payload(kind) => sender.task(kind, &line),
            Line::Task => sender.whole_task(&line),
        };
        let task = task.map_err(|e| Failure::usage(format!("stdin, line {}: {e}", n + 1)))?;
        sender.push(task).await?;
    }
    Ok(())
}

/// Gathers tasks into requests.
struct Sender<'a> {
    client: &'a Client,
    args: &'a Enqueue,
    tasks: Vec<Box<RawValue>>,
    bytes: usize,
    results: Vec<Json>,
    bar: indicatif::ProgressBar,
    started: Instant,
}

impl<'a> Sender<'a> {
    fn new(args: &'a Enqueue, client: &'a Client) -> Sender<'a> {
        let bar = indicatif::ProgressBar::hidden();
        Sender {
            client,
            args,
            tasks: Vec::new(),
            bytes: 0,
            results: Vec::new(),
            bar,
            started: Instant::now(),
        }
    }

    /// A task with the payload's own bytes in it.
    fn task(&self, kind: &str, payload: &str) -> Result<Box<RawValue>, serde_json::Error> {
        let payload: &RawValue = serde_json::from_str(payload.trim())?;
        let mut fields = Map::new();
        fields.insert("kind".into(), kind.into());
        self.add_flags(&mut fields);
        let rest = Value::Object(fields).to_string();
        let rest = &rest[..rest.len() - 1];
        RawValue::from_string(format!("{rest},\"payload\":{}}}", payload.get()))
    }

    fn whole_task(&self, line: &str) -> Result<Box<RawValue>, serde_json::Error> {
        let task: &RawValue = serde_json::from_str(line.trim())?;
        let mut flags = Map::new();
        self.add_flags(&mut flags);
        if flags.is_empty() {
            return Ok(task.to_owned());
        }
        // Flags fill in what the line leaves out.
        let mut fields: Map<String, Value> = serde_json::from_str(line)?;
        for (name, value) in flags {
            fields.entry(name).or_insert(value);
        }
        RawValue::from_string(Value::Object(fields).to_string())
    }

    fn add_flags(&self, fields: &mut Map<String, Value>) {
        let args = self.args;
        let mut add = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.into(), value);
            }
        };
        add("delay_ms", args.delay.map(|d| d.millis().into()));
        add("run_at", args.run_at.clone().map(Value::from));
        add("order_key", args.order_key.clone().map(Value::from));
        add("dedup_key", args.dedup_key.clone().map(Value::from));
        add("priority", args.priority.map(Value::from));
    }

    async fn push(&mut self, task: Box<RawValue>) -> Result<()> {
        let bytes = task.get().len();
        let full = self.tasks.len() >= TASKS_PER_REQUEST || self.bytes + bytes > BYTES_PER_REQUEST;
        if full && !self.tasks.is_empty() {
            self.flush().await?;
        }
        self.bytes += bytes;
        self.tasks.push(task);
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        if self.tasks.is_empty() {
            return Ok(());
        }
        let tasks = std::mem::take(&mut self.tasks);
        self.bytes = 0;
        let body = ManyTasks { tasks: &tasks };
        let done = self.results.len();
        let answer = self.client.call(Call::post(path(&self.args.queue), &body, Repeat::Unsafe)).await;
        let answer = answer.with_context(|| format!("after {done} tasks"))?;
        self.bar.inc(tasks.len() as u64);
        self.results.extend(answer.items("results"));
        Ok(())
    }

    async fn finish(self, output: Output) -> Result<()> {
        let mut failures = Vec::new();
        let mut duplicates = 0;
        for (n, result) in self.results.iter().enumerate() {
            if let Some(error) = result.value().get("error") {
                let status = error.get("status").and_then(Value::as_u64).unwrap_or(0);
                failures.push((n, problem_of(status as u16, error)));
            } else if result.text("status") == Some("duplicate") {
                duplicates += 1;
            }
        }
        let (all, bad) = (self.results.len(), failures.len());
        if output.is_for_people() {
            let seconds = self.started.elapsed().as_secs_f64();
            let queue = &self.args.queue;
            let good = all - bad - duplicates;
            note(&format!(
                "{good} enqueued into {queue}, {duplicates} duplicates, {bad} refused, in {seconds:.1} s"
            ))?;
        } else {
            let columns = [
                ("id", "/id", Show::Plain),
                ("status", "/status", Show::Plain),
                ("state", "/state", Show::Plain),
            ];
            output.list("results", &self.results, &columns)?;
        }
        for (n, failure) in failures.iter().take(10) {
            note(&format!("task {}: {failure}", n + 1))?;
        }
        if let Some((_, first)) = failures.into_iter().next() {
            return Err(Failure::new(first.exit, format!("{bad} of {all} tasks were refused")).into());
        }
        if self.args.wait { self.wait_for_all().await } else { Ok(()) }
    }

    async fn wait_for_all(&self) -> Result<()> {
        let bar = progress(Some(self.results.len() as u64));
        let mut failed = 0;
        for id in self.results.iter().filter_map(|result| result.text("id")) {
            let task = wait_for_end(self.client, id, None).await?;
            failed += usize::from(task.text("state") != Some("done"));
            bar.inc(1);
        }
        bar.finish_and_clear();
        match failed {
            0 => Ok(()),
            _ => Err(Failure::new(
                Exit::TaskFailed,
                format!("{failed} of {} tasks did not end done", self.results.len()),
            )
            .into()),
        }
    }
}

/// Many tasks, each with its own bytes.
#[derive(serde::Serialize)]
struct ManyTasks<'a> {
    tasks: &'a [Box<RawValue>],
}
