//! `windlass bench` as a program: the one load generator for Windlass.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::load::Plan;
use crate::process::Server;

/// How to speak with Windlass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Face {
    Streams,
    Http,
}

/// Runs a plan against these servers; the `result` of its report.
pub(crate) async fn bench(binary: &Path, servers: &[Server], face: Face, plan: &Plan) -> Result<Value> {
    let output = command(binary, servers, face, plan).stderr(Stdio::piped()).output().await?;
    if !output.status.success() {
        bail!("windlass bench: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let report: Value = serde_json::from_slice(&output.stdout).context("windlass bench said no JSON")?;
    Ok(report["result"].clone())
}

/// Starts it and lets it run; it ends with the handle.
pub(crate) fn spawn(binary: &Path, servers: &[Server], face: Face, plan: &Plan) -> Result<Child> {
    Ok(command(binary, servers, face, plan).kill_on_drop(true).spawn()?)
}

fn command(binary: &Path, servers: &[Server], face: Face, plan: &Plan) -> Command {
    let urls: Vec<String> = servers.iter().map(|server| format!("http://{}", server.address)).collect();
    let mut command = Command::new(binary);
    command.args(["bench", "-o", "json", "--server", &urls.join(",")]).stdout(Stdio::piped());
    command.args(["--face", if face == Face::Http { "http" } else { "streams" }]);
    let mut flag = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            command.arg(name).arg(value);
        }
    };
    flag("--tasks", plan.tasks.map(|tasks| tasks.to_string()));
    flag("--duration", plan.duration.map(|duration| format!("{}ms", duration.as_millis())));
    flag("--rate", plan.rate.map(|rate| rate.to_string()));
    flag("--batch", Some(plan.batch.to_string()));
    flag("--outstanding", Some(plan.outstanding.to_string()));
    flag("--bytes", Some(plan.payload_bytes.to_string()));
    flag("--producers", Some(plan.producers.to_string()));
    flag("--workers", Some(plan.workers.to_string()));
    command
}

impl Plan {
    /// One producer and one worker, 32 messages of one task in flight on each side, 200 bytes each.
    pub(crate) fn lifecycle() -> Plan {
        let (tasks, duration, rate) = (None, None, None);
        let (batch, outstanding, payload_bytes) = (1, 32, 200);
        Plan { tasks, duration, rate, batch, outstanding, payload_bytes, producers: 1, workers: 1 }
    }
}
