//! Three to five servers in namespaces of their own, each on its own disk, that can be started, killed and damaged.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::client::Client;
use crate::disk::Disk;
use crate::error::Error;
use crate::network::Network;
use crate::proxy::Proxies;
use crate::system::{faketime, pause, until};

pub(crate) const SHARDS: u16 = 4;
/// What each server keeps back of its disk, so that acks go on when it is full.
const RESERVE: &str = "48MiB";
/// A cluster that has all that it needs is whole again by then, on any machine.
pub(crate) const WHOLE_MAX: Duration = Duration::from_secs(120);
/// A node whose files were damaged has said by then whether it starts.
const START_MAX: Duration = Duration::from_secs(45);
/// Clocks that are so near to each other are right.
const OFF_MAX_MS: i64 = 1_000;
/// By then every node has heard several times what time it is at the others: they tell twice a second.
const CLOCK_NEWS: Duration = Duration::from_secs(5);
/// Lines of a log that are shown.
const LOG_LINES: usize = 12;

/// How a cluster is made.
pub(crate) struct Shape {
    pub(crate) windlass: PathBuf,
    pub(crate) nodes: usize,
    pub(crate) disk_bytes: u64,
    /// The ways between nodes can be slow.
    pub(crate) proxied: bool,
    /// The clocks of nodes can jump.
    pub(crate) clocked: bool,
}

/// A cluster. Fields end in this order: no process outlives its disk or its network.
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    proxies: Option<Proxies>,
    pub(crate) network: Network,
    shape: Shape,
    /// How often each node lost its disk: whoever watches must tell its lives apart.
    pub(crate) lives: Arc<Vec<AtomicU64>>,
}

/// One node, and its process if it runs.
struct Node {
    child: Option<Child>,
    is_frozen: bool,
    /// Its files were damaged: it may refuse to start, or to go on.
    is_damaged: bool,
    disk: Disk,
    log: PathBuf,
    clock: PathBuf,
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What `GET /v1/node` says.
#[derive(Deserialize)]
pub(crate) struct View {
    pub(crate) ready: bool,
    #[serde(default)]
    pub(crate) reason: Option<String>,
    pub(crate) groups: Vec<Group>,
    pub(crate) clock: Clock,
}

/// How a node's wall clock stands to the others'.
#[derive(Deserialize)]
pub(crate) struct Clock {
    held: bool,
    #[serde(default)]
    offset_ms: Option<i64>,
}

/// A node's part in one group.
#[derive(Deserialize)]
pub(crate) struct Group {
    pub(crate) id: u16,
    pub(crate) role: String,
    pub(crate) term: u64,
    pub(crate) voted_for: Option<u64>,
    pub(crate) leader: Option<u64>,
    pub(crate) applied: u64,
    pub(crate) peers: Vec<u64>,
    pub(crate) hash: Option<HashPoint>,
}

/// A hash of a copy's state.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct HashPoint {
    pub(crate) index: u64,
    pub(crate) hash: String,
}

impl Cluster {
    /// Makes networks and disks; nobody runs yet.
    pub(crate) fn new(shape: Shape, dir: &Path) -> Result<Cluster, Error> {
        let network = Network::new(shape.nodes)?;
        let proxies = shape.proxied.then(|| Proxies::start(&network, shape.nodes)).transpose()?;
        let mut nodes = Vec::new();
        for n in 0..shape.nodes {
            let name = format!("node-{}", n + 1);
            let disk = Disk::new(dir, &name, shape.disk_bytes)?;
            let (log, clock) = (dir.join(format!("{name}.log")), dir.join(format!("{name}.clock")));
            std::fs::write(&clock, "+0\n").map_err(Error::io("write a clock"))?;
            nodes.push(Node { child: None, is_frozen: false, is_damaged: false, disk, log, clock });
        }
        let lives = Arc::new((0..shape.nodes).map(|_| AtomicU64::new(0)).collect());
        Ok(Cluster { nodes, proxies, network, shape, lives })
    }

    pub(crate) fn size(&self) -> usize {
        self.nodes.len()
    }

    /// The HTTP addresses of all nodes.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        (0..self.size()).map(|n| self.network.http(n)).collect()
    }

    pub(crate) fn proxies(&self) -> Option<&Proxies> {
        self.proxies.as_ref()
    }

    pub(crate) fn disk(&self, n: usize) -> &Disk {
        &self.nodes[n].disk
    }

    /// Starts a node and waits for nothing.
    pub(crate) fn start(&mut self, n: usize) -> Result<(), Error> {
        let place = |n: usize| match self.proxies {
            Some(_) => self.network.proxy(n),
            None => self.network.peer(n),
        };
        let members: Vec<String> = (0..self.size()).map(|n| format!("{}={}", n + 1, place(n))).collect();
        let enter = self.network.enter(n);
        let mut words = enter.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg(&self.shape.windlass).args(["serve", "--insecure", "--until-stdin-ends"]);
        command.args(["--shards", &SHARDS.to_string(), "--disk-reserve-bytes", RESERVE]);
        command.args(["--node", &(n + 1).to_string(), "--cluster", &members.join(",")]);
        command.args(["--listen", &self.network.http(n).to_string()]);
        command.args(["--peer-listen", &self.network.peer(n).to_string()]);
        let node = &mut self.nodes[n];
        command.arg("--data").arg(node.disk.data());
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WINDLASS_"))
        {
            command.env_remove(name);
        }
        if let (true, Some(library)) = (self.shape.clocked, faketime()) {
            command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &node.clock);
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_CACHE_DURATION", "1");
        }
        let log = File::options().create(true).append(true).open(&node.log);
        let log = log.map_err(Error::io(format!("open {}", node.log.display())))?;
        // The pipe ends with the rig, however that ends, and the node with the pipe.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        node.child = Some(command.spawn().map_err(Error::io("start a server"))?);
        node.is_frozen = false;
        Ok(())
    }

    /// Starts those that do not run.
    pub(crate) fn start_all(&mut self) -> Result<(), Error> {
        let down: Vec<usize> = (0..self.size()).filter(|&n| self.nodes[n].child.is_none()).collect();
        down.into_iter().try_for_each(|n| self.start(n))
    }

    /// SIGKILL; waits until the process is gone.
    pub(crate) fn kill(&mut self, n: usize) -> Result<(), Error> {
        let Some(mut child) = self.nodes[n].child.take() else { return Ok(()) };
        child.kill().and_then(|()| child.wait()).map(drop).map_err(Error::io("kill a server"))
    }

    /// SIGSTOP: it does nothing any more and looks alive.
    pub(crate) fn freeze(&mut self, n: usize) -> Result<(), Error> {
        self.signal(n, Signal::STOP)?;
        self.nodes[n].is_frozen = true;
        Ok(())
    }

    /// SIGCONT.
    pub(crate) fn thaw(&mut self, n: usize) -> Result<(), Error> {
        self.nodes[n].is_frozen = false;
        self.signal(n, Signal::CONT)
    }

    fn signal(&self, n: usize, signal: Signal) -> Result<(), Error> {
        let Some(child) = &self.nodes[n].child else { return Ok(()) };
        kill_process(Pid::from_child(child), signal)
            .map_err(|error| Error::Io { what: "signal a server".to_owned(), source: error.into() })
    }

    /// The process of a node, if it runs.
    pub(crate) fn pid(&self, n: usize) -> Option<u32> {
        self.nodes[n].child.as_ref().map(Child::id)
    }

    /// Where strace writes what it did to a node.
    pub(crate) fn strace_log(&self, n: usize) -> PathBuf {
        self.nodes[n].log.with_extension("strace")
    }

    /// Power is lost on all of these at one moment: disks first, then processes.
    pub(crate) fn cut_power(&mut self, nodes: &[usize]) -> Result<(), Error> {
        nodes.iter().try_for_each(|&n| self.nodes[n].disk.cut_power())?;
        nodes.iter().try_for_each(|&n| self.kill(n))
    }

    /// Disks come back as they are.
    pub(crate) fn power_on(&mut self, nodes: &[usize]) -> Result<(), Error> {
        nodes.iter().try_for_each(|&n| self.nodes[n].disk.power_on())
    }

    /// Sets a node's wall clock wrong by so many seconds; 0 sets it right.
    pub(crate) fn set_clock(&self, n: usize, off_s: i64) -> Result<(), Error> {
        std::fs::write(&self.nodes[n].clock, format!("{off_s:+}\n")).map_err(Error::io("set a clock"))
    }

    /// Waits until every node knows that all clocks are right. Before that the next wrong one would be the second of
    /// three, and nobody could tell which is right.
    pub(crate) fn await_clocks(&self) -> Result<(), Error> {
        until("all clocks are near each other", WHOLE_MAX, || {
            let is_near =
                |clock: &Clock| !clock.held && clock.offset_ms.is_some_and(|off| off.abs() < OFF_MAX_MS);
            Ok((0..self.size()).all(|n| self.view(n).is_some_and(|view| is_near(&view.clock))))
        })?;
        // What nodes know of each other's clocks is older than what they know of their own.
        pause(CLOCK_NEWS)
    }

    /// From now on this node may refuse to start or to go on.
    pub(crate) fn mark_damaged(&mut self, n: usize) {
        self.nodes[n].is_damaged = true;
    }

    /// Starts a node with damaged files. Where it refuses, its data is removed and it joins again; whether that was so.
    pub(crate) fn start_damaged(&mut self, n: usize) -> Result<bool, Error> {
        self.start(n)?;
        let until = Instant::now() + START_MAX;
        while Instant::now() < until {
            if self.ended(n).is_some() {
                break;
            }
            if self.view(n).is_some_and(|view| view.ready) {
                return Ok(false);
            }
            pause(Duration::from_millis(100))?;
        }
        self.replace(n)?;
        Ok(true)
    }

    /// A node comes back with nothing.
    pub(crate) fn replace(&mut self, n: usize) -> Result<(), Error> {
        self.kill(n)?;
        self.nodes[n].disk.wipe()?;
        self.lives[n].fetch_add(1, Ordering::SeqCst);
        self.nodes[n].is_damaged = false;
        self.start(n)
    }

    /// How a process ended that was not killed by us.
    pub(crate) fn ended(&mut self, n: usize) -> Option<ExitStatus> {
        let status = self.nodes[n].child.as_mut()?.try_wait().ok()??;
        self.nodes[n].child = None;
        Some(status)
    }

    /// Whether a node's files were damaged and not replaced since.
    pub(crate) fn is_damaged(&self, n: usize) -> bool {
        self.nodes[n].is_damaged
    }

    /// What a node says of itself; nothing if it does not answer.
    pub(crate) fn view(&self, n: usize) -> Option<View> {
        let mut client = Client::quick(self.network.http(n));
        if !client.connect() {
            return None;
        }
        let answer = client.call("GET", "/v1/node", "", Duration::ZERO)?;
        serde_json::from_value(answer.body).ok()
    }

    /// What keeps the cluster from being whole: every node ready and a full member of every group.
    pub(crate) fn missing(&self) -> Option<String> {
        let others = self.size() - 1;
        for n in 0..self.size() {
            let Some(view) = self.view(n) else { return Some(format!("node {} answers", n + 1)) };
            if !view.ready {
                let reason = view.reason.unwrap_or_default();
                return Some(format!("node {} is ready ({reason})", n + 1));
            }
            let odd = |group: &&Group| group.role == "learner" || group.peers.len() != others;
            let odd = view.groups.iter().find(odd);
            if let Some(Group { id, role, peers, .. }) = odd.filter(|_| self.size() == 3) {
                return Some(format!("node {} votes in group {id} ({role}, others {peers:?})", n + 1));
            }
            if view.groups.len() != usize::from(SHARDS) + 1 {
                return Some(format!("node {} has all groups", n + 1));
            }
        }
        None
    }

    /// Waits until the cluster is whole.
    pub(crate) fn await_whole(&mut self) -> Result<(), Error> {
        let mut missing = None;
        let whole = until("the cluster is whole", WHOLE_MAX, || {
            missing = self.missing();
            Ok(missing.is_none())
        });
        whole.map_err(|error| match (error, missing) {
            (Error::Never { within, .. }, Some(what)) => Error::Never { what, within },
            (error, _) => error,
        })
    }

    /// What keeps all copies from being the same. Nothing may write meanwhile.
    pub(crate) fn differing(&self) -> Option<String> {
        let mut first: Vec<(u16, u64, HashPoint)> = Vec::new();
        for n in 0..self.size() {
            let Some(view) = self.view(n) else { return Some(format!("node {} answers", n + 1)) };
            for Group { id, applied, hash, .. } in view.groups {
                let Some(hash) = hash.filter(|hash| hash.index == applied) else {
                    return Some(format!("node {} has a hash of group {id} at {applied}", n + 1));
                };
                match first.iter().find(|(known, ..)| *known == id) {
                    Some((_, index, known)) if (*index, known) != (applied, &hash) => {
                        return Some(format!(
                            "node {} has the same in group {id}: {applied} {} and {index} {}",
                            n + 1,
                            hash.hash,
                            known.hash
                        ));
                    }
                    Some(_) => {}
                    None => first.push((id, applied, hash)),
                }
            }
        }
        None
    }

    /// The end of a node's log.
    pub(crate) fn log_end(&self, n: usize) -> String {
        let log = std::fs::read_to_string(&self.nodes[n].log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n    ")
    }

    /// Panics in the logs of nodes.
    pub(crate) fn panics(&self) -> Vec<(usize, String)> {
        let of = |n: usize| {
            let log = std::fs::read_to_string(&self.nodes[n].log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let at = lines.iter().position(|line| line.contains("panicked at"))?;
            Some((n, lines[at..].iter().take(3).copied().collect::<Vec<_>>().join(" ")))
        };
        (0..self.size()).filter_map(of).collect()
    }
}
