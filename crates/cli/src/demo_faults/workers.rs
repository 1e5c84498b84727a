//! The workers of the demo: `windlass work` processes of this same binary.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use super::ledger::Ledger;
use crate::env;

/// Tasks of one worker at once.
const SLOTS: &str = "4";
/// A worker that has not stopped by then is killed.
const STOP_MAX: Duration = Duration::from_secs(10);

/// What the `n`th worker is called.
pub(super) fn name(n: usize) -> String {
    format!("worker-{}", n + 1)
}

/// All workers; those that run end with this.
pub(super) struct Workers {
    queue: String,
    servers: String,
    dir: PathBuf,
    running: Vec<Option<(Child, Option<ChildStdin>)>>,
}

impl Workers {
    /// `count` of them, none started.
    pub(super) fn new(count: usize, queue: &str, servers: &str, dir: &Path) -> Result<Workers> {
        let running = (0..count).map(|_| None).collect();
        Ok(Workers { queue: queue.to_owned(), servers: servers.to_owned(), dir: dir.to_owned(), running })
    }

    /// Starts the `n`th one.
    pub(super) fn start(&mut self, n: usize) -> Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["work", "--queue", &self.queue, "--slots", SLOTS, "--name", &name(n)]);
        command.args([
            "--server",
            &self.servers,
            "--exec",
            &Ledger::program(&self.dir),
            "--until-stdin-ends",
        ]);
        for name in env::KNOWN {
            command.env_remove(name);
        }
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child =
            command.kill_on_drop(true).spawn().with_context(|| format!("cannot start {}", name(n)))?;
        let life = child.stdin.take();
        self.running[n] = Some((child, life));
        Ok(())
    }

    /// Kills the `n`th one without warning.
    pub(super) async fn kill(&mut self, n: usize) {
        if let Some((mut child, _life)) = self.running[n].take() {
            let _ = child.kill().await;
        }
    }

    /// Asks all to stop and waits; whoever takes too long is killed.
    pub(super) async fn stop(mut self) {
        for (child, _) in self.running.iter().flatten() {
            if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        for (mut child, _life) in self.running.drain(..).flatten() {
            if timeout(STOP_MAX, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        }
    }
}
