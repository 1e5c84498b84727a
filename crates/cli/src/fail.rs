//! `windlass fail`: an attempt at a claimed task failed.

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value};

use crate::client::{Call, Repeat};
use crate::connection::Connection;
use crate::span::Span;

/// Say that an attempt at a claimed task failed
#[derive(Args, Debug)]
pub(crate) struct Fail {
    /// The claim's token
    token: String,
    /// What went wrong, in one line
    error: String,
    /// The rest, such as a backtrace
    #[arg(long, value_name = "TEXT")]
    detail: Option<String>,
    /// Try again after this long; else as the queue's policy says
    #[arg(long, value_name = "TIME", conflicts_with = "fatal")]
    retry_in: Option<Span>,
    /// No retry: another attempt would fail as well
    #[arg(long)]
    fatal: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(args: Fail) -> Result<()> {
    let mut body: Map<String, Value> = Map::new();
    body.insert("token".into(), args.token.into());
    body.insert("error".into(), args.error.into());
    if let Some(detail) = args.detail {
        body.insert("detail".into(), detail.into());
    }
    if let Some(retry_in) = args.retry_in {
        body.insert("retry_in_ms".into(), retry_in.millis().into());
    }
    if args.fatal {
        body.insert("fatal".into(), true.into());
    }
    let answer = args.connection.client()?.call(Call::post("/v1/claims/fail", &body, Repeat::Safe)).await?;
    let said = |field| answer.text(field).unwrap_or_default();
    let due = answer.text("due").map(|due| format!(", again at {due}")).unwrap_or_default();
    let sentence =
        format!("{} {} after attempt {}{due}", said("id"), said("state"), answer.number("attempt"));
    args.connection.output().say(&answer, &sentence)
}
