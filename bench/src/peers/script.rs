//! Peers whose client is a library of another language: a small program beside this file runs the plan and says what
//! came of it as one line of JSON.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::process::Command;

use crate::load::Plan;

/// Runs `program script` with the plan as its argument.
pub(crate) async fn run(program: &Path, script: &Path, port: u16, plan: &Plan) -> Result<Value> {
    let mut told = serde_json::to_value(plan)?;
    told["port"] = port.into();
    told["seconds"] = plan.duration.map(|duration| duration.as_secs_f64()).into();
    let mut command = Command::new(program);
    command.arg(script).arg(told.to_string()).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let last: Vec<&str> = said.trim().lines().rev().take(5).collect();
        bail!("{} ended with {}: {}", script.display(), output.status, last.join(" | "));
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = said.trim().lines().last().context("it said nothing")?;
    serde_json::from_str(last).with_context(|| format!("not JSON: {last}"))
}
