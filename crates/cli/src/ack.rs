//! `windlass ack`: a claimed task is done.

use anyhow::Result;
use clap::Args;
use serde_json::value::RawValue;

use crate::client::{Call, Repeat};
use crate::connection::Connection;
use crate::exit::Failure;

/// Say that a claimed task is done
#[derive(Args, Debug)]
pub(crate) struct Ack {
    /// The claim's token
    token: String,
    /// What came out, as JSON
    #[arg(value_name = "OUTPUT")]
    result: Option<String>,
    /// Enqueue this with it: {"queue":…,"kind":…,"payload":…}; may be given again
    #[arg(long, value_name = "TASK")]
    then: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(serde::Serialize)]
struct Body<'a> {
    token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    then: Vec<&'a RawValue>,
}

pub(crate) async fn run(args: Ack) -> Result<()> {
    let output = args.result.as_deref().map(|text| json(text, "the output")).transpose()?;
    let then = args.then.iter().map(|text| json(text, "--then")).collect::<Result<_>>()?;
    let body = Body { token: &args.token, output, then };
    let answer = args.connection.client()?.call(Call::post("/v1/claims/ack", &body, Repeat::Safe)).await?;
    let said = |field| answer.text(field).unwrap_or_default();
    args.connection.output().say(&answer, &format!("{} {}", said("id"), said("state")))
}

fn json<'a>(text: &'a str, what: &str) -> Result<&'a RawValue> {
    serde_json::from_str(text.trim()).map_err(|e| Failure::usage(format!("{what} is not JSON: {e}")).into())
}
