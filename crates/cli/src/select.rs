//! Which tasks an action is about, by id or by filter, and the action itself in bounded steps.
//!
//! Shared by `task`, `claims` and `dead`: they differ in the state they are about, not in how they act.

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::client::{Call, Client, Repeat, escaped};
use crate::exit::Failure;
use crate::json::Json;
use crate::output::{Output, confirm, note, progress};
use crate::span::Span;

/// Tasks by id, or all that fit a filter.
#[derive(Args, Debug)]
pub(crate) struct Select {
    /// Task ids; none: all that fit the flags
    ids: Vec<String>,
    /// All of this queue
    #[arg(long, value_name = "QUEUE", conflicts_with = "ids")]
    queue: Option<String>,
    /// All of this kind
    #[arg(long, value_name = "KIND", conflicts_with = "ids")]
    kind: Option<String>,
    /// All that this worker holds
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    worker: Option<String>,
    /// All that have been held for at least this long
    #[arg(long, value_name = "TIME", conflicts_with = "ids")]
    older_than: Option<Span>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

impl Select {
    /// Whether it would take everything there is.
    fn is_empty(&self) -> bool {
        self.queue.is_none() && self.kind.is_none() && self.worker.is_none() && self.older_than.is_none()
    }

    fn body(&self, state: Option<&str>) -> Map<String, Value> {
        let text = |text: &Option<String>| text.clone().map(Value::from);
        [
            ("queue", text(&self.queue)),
            ("kind", text(&self.kind)),
            ("worker", text(&self.worker)),
            ("older_than_ms", self.older_than.map(|span| span.millis().into())),
            ("state", state.map(Value::from)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
    }
}

/// What is done to tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Cancel,
    Requeue,
    PutBack,
    Discard,
}

impl Act {
    /// As it stands in a path.
    fn verb(self) -> &'static str {
        match self {
            Act::Cancel => "cancel",
            Act::Requeue => "requeue",
            Act::PutBack => "put-back",
            Act::Discard => "discard",
        }
    }

    /// Whether it ends tasks.
    fn ends(self) -> bool {
        matches!(self, Act::Cancel | Act::Discard)
    }

    /// A task that is cancelled stays so; what else was done may have been followed by an attempt of its own.
    fn repeat(self) -> Repeat {
        if self == Act::Cancel { Repeat::Safe } else { Repeat::Unsafe }
    }

    fn call(self, id: &str, reason: Option<&str>) -> Call {
        let id = escaped(id);
        match (self, reason) {
            (Act::Cancel, None) => Call::delete(format!("/v1/tasks/{id}")),
            (Act::Cancel, Some(reason)) => Call::delete(format!("/v1/tasks/{id}?reason={}", escaped(reason))),
            (act, _) => Call::post(format!("/v1/tasks/{id}/{}", act.verb()), &json!({}), act.repeat()),
        }
    }
}

/// Does it, to the ids or to all in `state` that fit.
pub(crate) async fn act(
    client: &Client,
    output: Output,
    act: Act,
    select: &Select,
    state: Option<&str>,
    reason: Option<&str>,
) -> Result<()> {
    if !select.ids.is_empty() {
        return by_id(client, output, act, select, reason).await;
    }
    if select.is_empty() {
        return Err(Failure::usage(format!(
            "which tasks? give ids, --queue, --kind or --worker to {}",
            act.verb()
        ))
        .into());
    }
    by_filter(client, output, act, select, state).await
}

async fn by_id(
    client: &Client,
    output: Output,
    act: Act,
    select: &Select,
    reason: Option<&str>,
) -> Result<()> {
    if act.ends() && !select.dry_run && select.ids.len() > 1 {
        confirm(select.yes, &format!("{} {} tasks", act.verb(), select.ids.len()))?;
    }
    let mut first_failure = None;
    for id in &select.ids {
        let call = if select.dry_run {
            Call::get(format!("/v1/tasks/{}", escaped(id)))
        } else {
            act.call(id, reason)
        };
        match client.call(call).await {
            Ok(answer) => {
                let state = answer.text("state").unwrap_or_default();
                let would = if select.dry_run { format!(": would {} it", act.verb()) } else { String::new() };
                output.say(&answer, &format!("{id} {state}{would}"))?;
            }
            Err(failure) if select.ids.len() == 1 => return Err(failure),
            // The others are still wanted; what went wrong first decides the exit code.
            Err(failure) => {
                note(&format!("{id}: {failure:#}"))?;
                first_failure.get_or_insert(failure);
            }
        }
    }
    first_failure.map_or(Ok(()), Err)
}

async fn by_filter(
    client: &Client,
    output: Output,
    act: Act,
    select: &Select,
    state: Option<&str>,
) -> Result<()> {
    let body = select.body(state);
    if act.ends() && !select.dry_run && !select.yes {
        let (matched, _) = steps(client, act, body.clone(), Mode::DryRun).await?;
        confirm(select.yes, &format!("{} {matched} tasks", act.verb()))?;
    }
    let mode = if select.dry_run { Mode::DryRun } else { Mode::Real };
    let (matched, changed) = steps(client, act, body, mode).await?;
    let answer = Json::from(json!({"matched": matched, "changed": changed}));
    let sentence = match mode {
        Mode::DryRun => format!("would {} {matched} tasks", act.verb()),
        Mode::Real => format!("{}: {changed} of {matched} tasks", act.verb()),
    };
    output.say(&answer, &sentence)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    DryRun,
    Real,
}

/// The server looks at so many tasks per request; this goes on until it has seen all.
async fn steps(client: &Client, act: Act, mut body: Map<String, Value>, mode: Mode) -> Result<(u64, u64)> {
    body.insert("dry_run".into(), (mode == Mode::DryRun).into());
    let repeat = if mode == Mode::DryRun { Repeat::Safe } else { act.repeat() };
    let bar = progress(None);
    let (mut matched, mut changed) = (0, 0);
    loop {
        let call = Call::post(format!("/v1/tasks:{}", act.verb()), &body, repeat);
        let answer = client.call(call).await?;
        matched += answer.number("matched");
        changed += answer.number("changed");
        bar.set_position(matched);
        match answer.text("cursor") {
            Some(cursor) => body.insert("cursor".into(), cursor.into()),
            None => break,
        };
    }
    bar.finish_and_clear();
    Ok((matched, changed))
}

/// A list in pages, followed until `limit` things are there or no more come.
pub(crate) async fn pages(
    client: &Client,
    path: &str,
    field: &str,
    query: Query<'_>,
    limit: usize,
) -> Result<Vec<Json>> {
    let mut items: Vec<Json> = Vec::new();
    let mut cursor: Option<String> = None;
    while items.len() < limit {
        let mut parts = query.to_vec();
        parts.push(("limit", Some((limit - items.len()).min(1000).to_string())));
        parts.push(("cursor", cursor));
        let answer = client.get(crate::client::with_query(path, &parts)).await?;
        items.extend(answer.items(field));
        match answer.text("cursor") {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    items.truncate(limit);
    Ok(items)
}

/// Parts of a query: names, and values where given.
pub(crate) type Query<'a> = &'a [(&'a str, Option<String>)];
