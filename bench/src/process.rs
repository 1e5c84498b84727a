//! Servers under test: started on free ports with a directory of their own, ended with the run.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, setrlimit};

/// How long a server may take until it answers.
const START_PATIENCE: Duration = Duration::from_secs(120);
/// How long a server may take to end when it is asked to.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// A server process and where it listens. It ends with this value, and so does every process that it started.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    start: Instant,
    /// From the start of the process to the first answer.
    pub(crate) started_in: Duration,
}

impl Server {
    /// Starts `windlass serve` on `data` and waits until it answers.
    pub(crate) fn windlass(binary: &Path, data: &Path, shards: u16) -> Result<Server> {
        let mut server = Server::windlass_node(binary, data, shards, &[])?;
        server.until_ready()?;
        Ok(server)
    }

    /// Starts a cluster of `nodes` below `data` and waits until each of them answers. One node is alone.
    pub(crate) fn cluster(binary: &Path, data: &Path, nodes: usize, shards: u16) -> Result<Vec<Server>> {
        if nodes == 1 {
            return Ok(vec![Server::windlass(binary, data, shards)?]);
        }
        let peers = (0..nodes).map(|_| free_address()).collect::<Result<Vec<_>>>()?;
        let members: Vec<String> =
            peers.iter().enumerate().map(|(n, peer)| format!("{}={peer}", n + 1)).collect();
        let members = members.join(",");
        let mut servers = Vec::new();
        for (n, peer) in peers.iter().enumerate() {
            let (number, peer) = ((n + 1).to_string(), peer.to_string());
            let args = ["--node", &number, "--peer-listen", &peer, "--cluster", &members];
            servers.push(Server::windlass_node(binary, &data.join(&number), shards, &args)?);
        }
        for server in &mut servers {
            server.until_ready()?;
        }
        Ok(servers)
    }

    fn windlass_node(binary: &Path, data: &Path, shards: u16, args: &[&str]) -> Result<Server> {
        let address = free_address()?;
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", &address.to_string(), "--shards", &shards.to_string()]);
        command.args(args).arg("--data").arg(data).stderr(Stdio::piped());
        Server::spawn(command, address)
    }

    /// Starts a process that will listen there.
    pub(crate) fn spawn(mut command: Command, address: SocketAddr) -> Result<Server> {
        let start = Instant::now();
        // A group of its own, so that what it starts ends with it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot start {program}: is it installed?"))?;
        Ok(Server { child, address, start, started_in: Duration::ZERO })
    }

    /// Waits until it takes connections.
    pub(crate) fn until_listening(mut self) -> Result<Server> {
        while std::net::TcpStream::connect(self.address).is_err() {
            self.check_start()?;
        }
        self.started_in = self.start.elapsed();
        Ok(self)
    }

    fn until_ready(&mut self) -> Result<()> {
        while !ready(self.address) {
            self.check_start()?;
        }
        self.started_in = self.start.elapsed();
        // Logs are read and dropped, so that a full pipe never stops the server.
        if let Some(stderr) = self.child.stderr.take() {
            std::thread::spawn(move || BufReader::new(stderr).lines().for_each(drop));
        }
        Ok(())
    }

    fn check_start(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let mut first = String::new();
            if let Some(stderr) = self.child.stderr.take() {
                BufReader::new(stderr).read_line(&mut first)?;
            }
            bail!("the server ended with {status}: {first}");
        }
        if self.start.elapsed() > START_PATIENCE {
            bail!("no server answers at {}", self.address);
        }
        std::thread::sleep(Duration::from_millis(5));
        Ok(())
    }

    /// What the process holds in memory, in bytes.
    pub(crate) fn rss(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
        Ok(kib * 1024)
    }

    /// The processor time that the process has used.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // After the name, which may hold anything: user time is the 12th field from there, system time the 13th.
        let rest = stat.rsplit(')').next().context("no name")?;
        let fields = rest.split_whitespace().skip(11).take(2);
        let ticks = fields.map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(Duration::from_millis(ticks * 10))
    }

    /// As a power cut would: SIGKILL.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends a signal to the process and all that it started. It may be gone already; there is nobody to tell.
    fn signal(&self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // In order first: some share memory or sockets that they remove only then.
        self.signal(Signal::TERM);
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < STOP_PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Lets this process, and every server that it starts, have so many files open.
pub(crate) fn raise_files(wanted: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        bail!("{wanted} connections are more files than this user may open: raise the limit (ulimit -Hn)");
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(())
}

pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// What a server answers to a GET: the status line and the head, an empty line, the body.
pub(crate) fn get(address: SocketAddr, path: &str) -> Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The JSON that a server answers to a GET.
pub(crate) fn get_json(address: SocketAddr, path: &str) -> Result<serde_json::Value> {
    let answer = get(address, path)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    Ok(serde_json::from_str(body)?)
}

fn ready(address: SocketAddr) -> bool {
    get(address, "/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// What a directory holds, in bytes.
pub(crate) fn disk(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            // A server may remove a file at any moment.
            let Ok(facts) = entry.metadata() else { continue };
            if facts.is_dir() {
                dirs.push(entry.path());
            } else {
                use std::os::unix::fs::MetadataExt as _;
                bytes += facts.blocks() * 512;
            }
        }
    }
    Ok(bytes)
}
