//! `windlass claim`: takes tasks by hand, or from a script that acks them itself.

use anyhow::Result;
use clap::Args;
use serde_json::Map;

use crate::client::{Call, Repeat};
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::output::{Show, note};
use crate::span::Span;
use crate::weighted::Weighted;

/// Claim ready tasks
///
/// Exits with 3 when there was nothing to claim. Ack or fail what you got with its token.
#[derive(Args, Debug)]
pub(crate) struct Claim {
    /// Queues to claim from, the first one first; NAME=WEIGHT shares by weight
    #[arg(required_unless_present = "id", conflicts_with = "id")]
    queues: Vec<Weighted>,
    /// Claim this one task
    #[arg(long, value_name = "TASK")]
    id: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    max: u32,
    /// How long the claim holds; else as task or queue say
    #[arg(long, value_name = "TIME")]
    hold: Option<Span>,
    /// Wait this long for the first task
    #[arg(long, value_name = "TIME", default_value = "0", conflicts_with = "id")]
    wait: Span,
    /// Who claims; else host and process
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(args: Claim) -> Result<()> {
    let client = args.connection.client()?;
    let output = args.connection.output();
    let mut body = Map::new();
    body.insert("worker".into(), args.worker.unwrap_or_else(default_worker).into());
    body.insert("request_id".into(), request_id().into());
    if let Some(hold) = args.hold {
        body.insert("hold_ms".into(), hold.millis().into());
    }
    if let Some(id) = &args.id {
        body.insert("id".into(), id.as_str().into());
    } else {
        body.insert("queues".into(), args.queues.iter().map(Weighted::json).collect());
        body.insert("max".into(), args.max.into());
        body.insert("wait_ms".into(), args.wait.millis().into());
    }
    let call = Call::post("/v1/claims", &body, Repeat::Safe).waiting(args.wait.duration());
    let answer = client.call(call).await?;
    let claims = answer.items("claims");
    let columns = [
        ("id", "/id", Show::Plain),
        ("queue", "/queue", Show::Plain),
        ("kind", "/kind", Show::Plain),
        ("attempt", "/attempt", Show::Number),
        ("deadline", "/deadline", Show::Plain),
        ("payload", "/payload", Show::Brief),
        ("token", "/token", Show::Plain),
    ];
    if claims.is_empty() {
        if !output.is_for_people() {
            output.list("claims", &claims, &columns)?;
        }
        let queues: Vec<String> = args.queues.into_iter().map(|queue| queue.name).collect();
        return Err(Failure::new(Exit::NotFound, format!("nothing is ready in {}", queues.join(", "))).into());
    }
    if !output.is_for_people() {
        return output.list("claims", &claims, &columns);
    }
    for (n, claim) in claims.iter().enumerate() {
        if n > 0 {
            note("")?;
        }
        output.one(claim, &columns)?;
    }
    Ok(())
}

/// Who we are when nobody says: host and process.
pub(crate) fn default_worker() -> String {
    format!("{}:{}", host(), std::process::id())
}

/// The host's name.
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A new request id: by it the server knows a repeat of the same call.
pub(crate) fn request_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}
