//! A cluster of `windlass serve` processes on this machine that a test can start, kill, freeze, wipe and look into.
//!
//! Nodes are counted from 0 here and numbered from 1 in the cluster. Ports lie below those that the system gives
//! to outgoing connections: a node that is down must find its port free when it comes back.

#![allow(dead_code, reason = "each test uses a part of this")]

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;

/// Nothing that a test awaits takes this long on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at something that is awaited.
const LOOK: Duration = Duration::from_millis(10);
/// Ports that are tried, below the system's own range (from 32768 on).
const PORTS: std::ops::Range<u16> = 12_000..32_000;
/// Lines of each node's log that are shown when a test fails.
const LOG_LINES_SHOWN: usize = 40;

/// A cluster of processes. What runs ends with it.
pub(crate) struct Rig {
    pub(crate) nodes: Vec<Node>,
    flags: Vec<String>,
    dir: TempDir,
}

/// One node: where it lives, and its process if it runs.
pub(crate) struct Node {
    pub(crate) number: u64,
    pub(crate) http: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) data: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    /// Flags of this node alone.
    flags: Vec<String>,
    /// Set before the process: such as `LD_PRELOAD`.
    env: Vec<(String, String)>,
    /// Words before the program's name: such as `ip netns exec`. They must end by becoming the program.
    before: Vec<String>,
    is_frozen: bool,
}

/// What `GET /v1/node` says.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct NodeView {
    pub(crate) id: u64,
    pub(crate) ready: bool,
    #[serde(default)]
    pub(crate) reason: Option<String>,
    pub(crate) groups: Vec<GroupView>,
}

/// A node's part in one group; 0 is the catalog.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct GroupView {
    pub(crate) id: u16,
    pub(crate) role: String,
    pub(crate) term: u64,
    pub(crate) leader: Option<u64>,
    pub(crate) applied: u64,
    pub(crate) commit: u64,
    /// The nodes of its other members: one that comes back with an empty disk is there twice, until its old life is out.
    pub(crate) peers: Vec<u64>,
    /// The newest hash of the state: index and hash.
    #[serde(default)]
    pub(crate) hash: Option<Value>,
}

impl Rig {
    /// `count` nodes with empty directories; none runs yet. `flags` go to every node, each as `--name=value`.
    pub(crate) fn new(count: usize, flags: &[&str]) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut rig = Rig { nodes: Vec::new(), flags, dir };
        for _ in 0..count {
            rig.add();
        }
        rig
    }

    /// `count` nodes that run and agree on their leaders.
    pub(crate) fn started(count: usize, flags: &[&str]) -> Rig {
        let mut rig = Rig::new(count, flags);
        (0..count).for_each(|n| rig.start(n));
        rig.await_leaders(PATIENCE);
        rig
    }

    /// One more node, which does not run yet; its place. Nodes that are started from now on know of it.
    pub(crate) fn add(&mut self) -> usize {
        let number = self.nodes.len() as u64 + 1;
        let [http, peer] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let data = self.dir.path().join(format!("node-{number}"));
        let log = self.dir.path().join(format!("node-{number}.log"));
        let (flags, env, before) = (Vec::new(), Vec::new(), Vec::new());
        self.nodes.push(Node {
            number,
            http,
            peer,
            data,
            log,
            child: None,
            flags,
            env,
            before,
            is_frozen: false,
        });
        self.nodes.len() - 1
    }

    /// Flags of one node, from its next start on, each as `--name=value`.
    pub(crate) fn set_flags(&mut self, n: usize, flags: &[&str]) {
        self.nodes[n].flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// A variable for one node's process, from its next start on.
    pub(crate) fn set_env(&mut self, n: usize, name: &str, value: &str) {
        self.nodes[n].env.push((name.to_owned(), value.to_owned()));
    }

    /// Puts a node elsewhere: at this address, with the same ports, started by way of these words.
    pub(crate) fn place(&mut self, n: usize, ip: IpAddr, before: Vec<String>) {
        let node = &mut self.nodes[n];
        node.http.set_ip(ip);
        node.peer.set_ip(ip);
        node.before = before;
    }

    /// Starts a node and does not wait for anything.
    pub(crate) fn start(&mut self, n: usize) {
        assert!(self.nodes[n].child.is_none(), "node {n} runs already");
        let members: Vec<String> =
            self.nodes.iter().map(|node| format!("{}={}", node.number, node.peer)).collect();
        let node = &mut self.nodes[n];
        let mut command = windlass_by(&node.before);
        command.args(["serve", "--shards", "4", "--disk-reserve-bytes", "1MiB", "--until-stdin-ends"]);
        command.args(["--node", &node.number.to_string()]);
        command.args(["--listen", &node.http.to_string(), "--peer-listen", &node.peer.to_string()]);
        // A node's own flags stand in place of those of all.
        let name = |flag: &String| flag.split('=').next().unwrap_or_default().to_owned();
        let own: Vec<String> = node.flags.iter().map(name).collect();
        let members = format!("--cluster={}", members.join(","));
        let common = self.flags.iter().chain([&members]).filter(|flag| !own.contains(&name(flag)));
        command.arg("--data").arg(&node.data).args(common).args(&node.flags);
        command.envs(node.env.iter().map(|(name, value)| (name, value)));
        let log = File::options().create(true).append(true).open(&node.log).unwrap();
        // The pipe ends with the test, however that ends, and the node with the pipe.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        node.child = Some(command.spawn().unwrap());
        node.is_frozen = false;
    }

    /// Waits until a node is ready.
    #[track_caller]
    pub(crate) fn await_ready(&mut self, n: usize) {
        let until = Instant::now() + PATIENCE;
        loop {
            let node = &mut self.nodes[n];
            let ended = node.child.as_mut().and_then(|child| child.try_wait().unwrap());
            assert!(ended.is_none(), "node {n} ended at its start: {ended:?}");
            if Client::of(node.http).get("/readyz").is_ok_and(|answer| answer.status == 200) {
                return;
            }
            assert!(Instant::now() < until, "node {n} did not become ready");
            std::thread::sleep(LOOK);
        }
    }

    /// SIGKILL, as a power cut would; waits until the process is gone.
    pub(crate) fn kill(&mut self, n: usize) {
        let mut child = self.nodes[n].child.take().expect("only a node that runs can be killed");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM; waits until it has stopped, and gives the exit code.
    pub(crate) fn stop(&mut self, n: usize) -> Option<i32> {
        self.signal(n, Signal::TERM);
        let mut child = self.nodes[n].child.take().expect("only a node that runs can be stopped");
        child.wait().unwrap().code()
    }

    /// SIGSTOP: it does nothing any more and looks alive.
    pub(crate) fn freeze(&mut self, n: usize) {
        self.signal(n, Signal::STOP);
        self.nodes[n].is_frozen = true;
    }

    /// SIGCONT.
    pub(crate) fn thaw(&mut self, n: usize) {
        self.signal(n, Signal::CONT);
        self.nodes[n].is_frozen = false;
    }

    /// Removes a node's data; it must not run.
    pub(crate) fn wipe(&mut self, n: usize) {
        assert!(self.nodes[n].child.is_none(), "node {n} runs: its data is in use");
        std::fs::remove_dir_all(&self.nodes[n].data).unwrap();
    }

    fn signal(&self, n: usize, signal: Signal) {
        let child = self.nodes[n].child.as_ref().expect("only a node that runs gets signals");
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    /// The process id of a node that runs.
    pub(crate) fn pid(&self, n: usize) -> u32 {
        self.nodes[n].child.as_ref().expect("only a node that runs has one").id()
    }

    /// Whether it runs and is not frozen.
    pub(crate) fn is_up(&self, n: usize) -> bool {
        self.nodes[n].child.is_some() && !self.nodes[n].is_frozen
    }

    /// Those that run and are not frozen.
    pub(crate) fn up(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&n| self.is_up(n)).collect()
    }

    /// The HTTP addresses of all nodes, whether they run or not.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.http).collect()
    }

    /// The same as the command line takes them.
    pub(crate) fn servers(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(|node| format!("http://{}", node.http)).collect();
        urls.join(",")
    }

    /// A client that knows all nodes.
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.addresses())
    }

    /// What a node says of itself; nothing if it does not answer.
    pub(crate) fn view(&self, n: usize) -> Option<NodeView> {
        let mut client = Client::of(self.nodes[n].http);
        client.answer_max = Duration::from_millis(500);
        let answer = client.get("/v1/node").ok().filter(|answer| answer.status == 200)?;
        serde_json::from_value(answer.body).ok()
    }

    /// What `GET /v1/cluster` says at a node.
    pub(crate) fn cluster(&self, n: usize) -> Option<Value> {
        let answer = Client::of(self.nodes[n].http).get("/v1/cluster").ok()?;
        (answer.status == 200).then_some(answer.body)
    }

    /// Voters by shard, as a node sees them.
    pub(crate) fn voters(&self, n: usize) -> BTreeMap<u64, Vec<u64>> {
        let shards =
            self.cluster(n).map_or_else(Vec::new, |cluster| cluster["shards"].as_array().unwrap().clone());
        let voters_of = |shard: &Value| {
            let replicas = shard["replicas"].as_array().unwrap().iter();
            let voters = replicas.filter(|replica| replica["role"] == "voter");
            (shard["id"].as_u64().unwrap(), voters.map(|replica| replica["node"].as_u64().unwrap()).collect())
        };
        shards.iter().map(voters_of).collect()
    }

    /// The leader of every group as its place here, if all nodes that are up agree on it, are ready, and exactly one
    /// says of itself that it leads. What is missing otherwise.
    pub(crate) fn leaders(&self) -> Result<BTreeMap<u16, usize>, String> {
        let mut leaders: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
        let mut claims: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
        for n in self.up() {
            let number = self.nodes[n].number;
            let view = self.view(n).ok_or_else(|| format!("node {number} does not answer"))?;
            if !view.ready {
                return Err(format!("node {number} is not ready: {}", view.reason.unwrap_or_default()));
            }
            for group in view.groups {
                let Some(leader) = group.leader else {
                    return Err(format!("node {number} knows no leader of group {}", group.id));
                };
                let before = leaders.insert(group.id, (leader, group.term));
                if before.is_some_and(|before| before != (leader, group.term)) {
                    return Err(format!("group {}: {before:?} and {:?}", group.id, (leader, group.term)));
                }
                if group.role == "leader" {
                    claims.entry(group.id).or_default().push(number);
                }
            }
        }
        if leaders.is_empty() {
            return Err("nobody has any group".to_owned());
        }
        let place = |(group, (leader, _)): (&u16, &(u64, u64))| match claims.get(group).map(Vec::as_slice) {
            Some([one]) if one == leader => Ok((*group, (leader - 1) as usize)),
            other => Err(format!("group {group}: {leader} is named, {other:?} say that they lead")),
        };
        leaders.iter().map(place).collect()
    }

    /// Waits until every group has exactly one leader that all nodes up agree on; the leaders by group.
    #[track_caller]
    pub(crate) fn await_leaders(&self, within: Duration) -> BTreeMap<u16, usize> {
        let until = Instant::now() + within;
        loop {
            match self.leaders() {
                Ok(leaders) => return leaders,
                Err(why) => assert!(Instant::now() < until, "no leaders within {within:?}: {why}"),
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The node that leads most groups now.
    #[track_caller]
    pub(crate) fn busiest(&self) -> (usize, Vec<u16>) {
        let leaders = self.await_leaders(PATIENCE);
        let led = |n: usize| -> Vec<u16> {
            leaders.iter().filter(|(_, leader)| **leader == n).map(|(group, _)| *group).collect()
        };
        self.up().into_iter().map(|n| (n, led(n))).max_by_key(|(_, led)| led.len()).unwrap()
    }

    /// What a node has logged so far.
    pub(crate) fn log(&self, n: usize) -> String {
        std::fs::read_to_string(&self.nodes[n].log).unwrap_or_default()
    }

    /// A command of the one binary that talks to this cluster.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = windlass();
        command.args(args).args(["--server", &self.servers()]);
        command
    }
}

/// A worker of the command line that talks to the cluster. Ends with its test.
pub(crate) struct ShellWorker {
    child: Child,
    status: SocketAddr,
}

impl ShellWorker {
    /// Runs `exec` for each task of `queue`.
    pub(crate) fn started(rig: &Rig, queue: &str, exec: &str, slots: usize, name: &str) -> ShellWorker {
        let (slots, status) = (slots.to_string(), SocketAddr::from(([127, 0, 0, 1], free_port())));
        let args = ["work", "--queue", queue, "--exec", exec, "--slots", &slots, "--name", name];
        let mut command = rig.command(&args);
        let child =
            command.args(["--status-listen", &status.to_string()]).stdout(Stdio::null()).spawn().unwrap();
        ShellWorker { child, status }
    }

    /// Which node it talks to, once it does.
    pub(crate) fn node(&self, rig: &Rig) -> usize {
        let mut node = None;
        until("the worker is connected", || {
            let status = Client::of(self.status).get("/");
            let server = status.ok().and_then(|status| status.body["server"].as_str().map(str::to_owned));
            let is_its = |node: &Node| server.as_ref() == Some(&format!("http://{}", node.http));
            node = rig.nodes.iter().position(is_its);
            node.is_some()
        });
        node.unwrap()
    }

    /// Asks it to leave, and waits until it has left in order.
    #[track_caller]
    pub(crate) fn leave(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for ShellWorker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(mut child) = node.child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        if std::thread::panicking() {
            self.nodes.iter().for_each(Node::show_log);
        }
    }
}

impl Node {
    /// Panics of its own, and the end of its log.
    fn show_log(&self) {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        eprintln!("--- node {} at its end:", self.number);
        let panics = lines.iter().enumerate().filter(|(_, line)| line.starts_with("thread '")).take(3);
        for (at, _) in panics {
            lines[at..].iter().take(LOG_LINES_SHOWN / 4).for_each(|line| eprintln!("{line}"));
            eprintln!("…");
        }
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].iter().for_each(|line| eprintln!("{line}"));
    }
}

/// The binary under test, without anything from our own environment that it would read.
pub(crate) fn windlass() -> Command {
    windlass_by(&[])
}

/// The same, by way of another program that becomes it.
fn windlass_by(before: &[String]) -> Command {
    let program = env!("CARGO_BIN_EXE_windlass").to_owned();
    let mut words = before.iter().cloned().chain([program]);
    let mut command = Command::new(words.next().expect("there is always the program"));
    command.args(words);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WINDLASS_")) {
        command.env_remove(name);
    }
    command
}

/// A port that nobody has now and that this process gave to nobody before.
fn free_port() -> u16 {
    static NEXT: Mutex<Option<u16>> = Mutex::new(None);
    let mut next = NEXT.lock().unwrap();
    // Test processes that run side by side begin at different places.
    let mut port = next.unwrap_or_else(|| {
        let size = u32::from(PORTS.end - PORTS.start);
        PORTS.start + u16::try_from(std::process::id().wrapping_mul(97) % size).unwrap()
    });
    loop {
        port = if port + 1 < PORTS.end { port + 1 } else { PORTS.start };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            *next = Some(port);
            return port;
        }
    }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} until {what}");
        std::thread::sleep(LOOK);
    }
}
