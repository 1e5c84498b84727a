//! Several nodes on this machine, each a `windlass serve` process of this same binary.
//!
//! Whoever holds a [`Fleet`] is its only master: it ends no process but its own, and its processes end when it
//! does, because each reads a pipe that closes with us. Used by `dev --nodes` and `demo-faults`.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep};

use crate::client::{Call, Client};
use crate::env;
use crate::exit::Failure;
use crate::output::note;

/// From one node's ports to the next one's.
const PORT_STEP: u16 = 10;
/// How often a node is asked whether it is ready.
const ASK: Duration = Duration::from_millis(50);
/// A node that has not stopped by then is killed.
const STOP_MAX: Duration = Duration::from_secs(20);

/// How the nodes' own log lines are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logs {
    /// As they come.
    Plain,
    /// With the node's number before each.
    Numbered,
    /// Not at all.
    Hidden,
}

/// Where one node lives.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) node: u64,
    pub(crate) http: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) data: PathBuf,
}

/// A running node.
struct Running {
    child: Child,
    /// Closed when we go: then the node stops.
    _life: Option<ChildStdin>,
}

/// The nodes of one cluster on this machine.
pub(crate) struct Fleet {
    pub(crate) places: Vec<Place>,
    running: Vec<Option<Running>>,
    flags: Vec<OsString>,
    logs: Logs,
}

impl Fleet {
    /// Places for `count` nodes: from `listen` on in steps of ten with the peer port beside it, or anywhere free if
    /// its port is 0; the data below `data`. `flags` are given to every node.
    pub(crate) fn new(
        count: u16,
        listen: SocketAddr,
        data: &Path,
        flags: Vec<OsString>,
        logs: Logs,
    ) -> Result<Fleet> {
        let ports = match listen.port() {
            0 => free_ports(usize::from(count) * 2)?,
            first => ports_from(first, count)?,
        };
        let place = |(n, ports): (usize, &[u16])| Place {
            node: n as u64 + 1,
            http: SocketAddr::new(listen.ip(), ports[0]),
            peer: SocketAddr::from((Ipv4Addr::LOCALHOST, ports[1])),
            data: data.join(format!("node-{}", n + 1)),
        };
        let places: Vec<Place> = ports.chunks(2).enumerate().map(place).collect();
        let running = places.iter().map(|_| None).collect();
        Ok(Fleet { places, running, flags, logs })
    }

    /// Starts the `n`th node; it must not run.
    pub(crate) fn start(&mut self, n: usize) -> Result<()> {
        debug_assert!(self.running[n].is_none(), "a node is started once at a time");
        let place = &self.places[n];
        let members: Vec<String> = self.places.iter().map(|p| format!("{}={}", p.node, p.peer)).collect();
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").args(["--node", &place.node.to_string()]).arg("--data").arg(&place.data);
        command.args(["--listen", &place.http.to_string(), "--peer-listen", &place.peer.to_string()]);
        command.args(["--cluster", &members.join(","), "--until-stdin-ends"]).args(&self.flags);
        // What we were told by the environment is in the flags; the rest is not meant for one of several nodes.
        for name in env::KNOWN {
            command.env_remove(name);
        }
        // A Ctrl-C at the terminal is for us; we tell the nodes.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
        command.stderr(match self.logs {
            Logs::Plain => Stdio::inherit(),
            Logs::Numbered => Stdio::piped(),
            Logs::Hidden => Stdio::null(),
        });
        let mut child = command.spawn().with_context(|| format!("cannot start node {}", place.node))?;
        if let Some(lines) = child.stderr.take() {
            tokio::spawn(numbered(place.node, lines));
        }
        self.running[n] = Some(Running { _life: child.stdin.take(), child });
        Ok(())
    }

    /// The process id of the `n`th node, while it runs.
    pub(crate) fn pid(&self, n: usize) -> Option<u32> {
        self.running[n].as_ref()?.child.id()
    }

    /// How many run.
    pub(crate) fn count(&self) -> usize {
        self.running.iter().flatten().count()
    }

    /// Returns when one has ended: which, and how. Waits for ever when none runs.
    pub(crate) async fn ended(&mut self) -> (usize, std::io::Result<ExitStatus>) {
        let waits: Vec<_> = (self.running.iter_mut().enumerate())
            .filter_map(|(n, running)| {
                let running = running.as_mut()?;
                Some(Box::pin(async move { (n, running.child.wait().await) }))
            })
            .collect();
        if waits.is_empty() {
            return std::future::pending().await;
        }
        let ((n, status), ..) = futures::future::select_all(waits).await;
        self.running[n] = None;
        (n, status)
    }

    /// Sends a signal to the `n`th node, if it runs.
    pub(crate) fn signal(&self, n: usize, signal: Signal) {
        let pid = self.pid(n).and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            // It may have ended by itself: then `ended` says so.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills the `n`th node without warning, and waits until it is gone.
    pub(crate) async fn kill(&mut self, n: usize) {
        if let Some(mut running) = self.running[n].take() {
            let _ = running.child.kill().await;
        }
    }

    /// Waits until the `n`th node says that it is ready; fails when it ends, or not within `patience`.
    pub(crate) async fn ready(&mut self, n: usize, patience: Duration) -> Result<()> {
        let place = &self.places[n];
        let client = Client::new(&place.http.to_string(), Duration::from_secs(1))?;
        let deadline = Instant::now() + patience;
        loop {
            let answer = client.call(Call::get("/readyz").within(Duration::from_millis(500)).once()).await;
            let Err(error) = answer else { return Ok(()) };
            if let Some(running) = &mut self.running[n]
                && let Ok(Some(status)) = running.child.try_wait()
            {
                self.running[n] = None;
                let message = format!("node {} ended at its start ({status})", self.places[n].node);
                return Err(Failure::new(crate::exit::Exit::Failure, message).into());
            }
            if Instant::now() > deadline {
                let message =
                    format!("node {} is not ready after {patience:?}: {error:#}", self.places[n].node);
                return Err(Failure::new(crate::exit::Exit::Timeout, message).into());
            }
            sleep(ASK).await;
        }
    }

    /// Asks all to stop and waits; whoever takes too long is killed.
    pub(crate) async fn stop(mut self) {
        for n in 0..self.places.len() {
            self.signal(n, Signal::TERM);
        }
        let deadline = Instant::now() + STOP_MAX;
        while self.count() > 0 {
            if tokio::time::timeout_at(deadline, self.ended()).await.is_err() {
                for n in 0..self.places.len() {
                    self.kill(n).await;
                }
            }
        }
    }

    /// All HTTP addresses, as `--server` takes them.
    pub(crate) fn servers(&self) -> String {
        let urls: Vec<String> = self.places.iter().map(|place| format!("http://{}", place.http)).collect();
        urls.join(",")
    }
}

async fn numbered(node: u64, lines: impl AsyncRead + Unpin) {
    let mut lines = BufReader::new(lines).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let _ = note(&format!("node {node}  {line}"));
    }
}

fn ports_from(first: u16, count: u16) -> Result<Vec<u16>> {
    let of_node =
        |n: u16| Some([first.checked_add(n.checked_mul(PORT_STEP)?)?, first.checked_add(n * PORT_STEP + 1)?]);
    let ports: Option<Vec<[u16; 2]>> = (0..count).map(of_node).collect();
    let none = || {
        Failure::usage(format!(
            "there are no {count} times {PORT_STEP} ports after {first}: give a lower one"
        ))
    };
    Ok(ports.ok_or_else(none)?.concat())
}

/// Ports that nobody has now. Somebody may take one before we do; then the node says so and ends.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    let held: std::io::Result<Vec<TcpListener>> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect();
    let held = held.context("there are no free ports")?;
    let ports: std::io::Result<Vec<u16>> = held.iter().map(|port| Ok(port.local_addr()?.port())).collect();
    Ok(ports?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_ports_side_by_side_or_anywhere() {
        assert_eq!(ports_from(7420, 3).unwrap(), [7420, 7421, 7430, 7431, 7440, 7441]);
        assert!(ports_from(65_530, 3).is_err());
        let mut free = free_ports(6).unwrap();
        free.sort_unstable();
        free.dedup();
        assert_eq!(free.len(), 6);
    }
}
