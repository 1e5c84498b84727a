//! Servers under test: started on a free port with a directory of their own, ended with the run.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A server process and where it listens.
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
        let mut server = Server::spawn(binary, data, shards, &[])?;
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
            servers.push(Server::spawn(binary, &data.join(&number), shards, &args)?);
        }
        for server in &mut servers {
            server.until_ready()?;
        }
        Ok(servers)
    }

    fn spawn(binary: &Path, data: &Path, shards: u16, args: &[&str]) -> Result<Server> {
        let start = Instant::now();
        let address = free_address()?;
        let child = Command::new(binary)
            .args(["serve", "--listen", &address.to_string(), "--shards", &shards.to_string()])
            .args(args)
            .arg("--data")
            .arg(data)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!("cannot start {}: build it with cargo build --release", binary.display())
            })?;
        Ok(Server { child, address, start, started_in: Duration::ZERO })
    }

    fn until_ready(&mut self) -> Result<()> {
        while !ready(self.address) {
            if let Some(status) = self.child.try_wait()? {
                let mut first = String::new();
                if let Some(stderr) = self.child.stderr.take() {
                    BufReader::new(stderr).read_line(&mut first)?;
                }
                bail!("windlass ended with {status}: {first}");
            }
            if self.start.elapsed() > Duration::from_secs(120) {
                bail!("windlass does not answer at {}", self.address);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.started_in = self.start.elapsed();
        // Logs are read and dropped, so that a full pipe never stops the server.
        if let Some(stderr) = self.child.stderr.take() {
            std::thread::spawn(move || BufReader::new(stderr).lines().for_each(drop));
        }
        Ok(())
    }

    /// Starts Redis with its log synced at every write.
    pub(crate) fn redis(data: &Path) -> Result<Server> {
        let start = Instant::now();
        let address = free_address()?;
        let mut command = Command::new("redis-server");
        command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--dir"]).arg(data);
        let child = command
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start redis-server: apt-get install redis-server")?;
        while std::net::TcpStream::connect(address).is_err() {
            if start.elapsed() > Duration::from_secs(20) {
                bail!("redis does not answer at {address}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Server { child, address, start, started_in: start.elapsed() })
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
        cpu_of(&self.child.id().to_string())
    }

    /// As a power cut would: SIGKILL.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already; there is nobody to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processor time that this process has used.
pub(crate) fn own_cpu() -> Result<Duration> {
    cpu_of("self")
}

fn cpu_of(process: &str) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // After the name, which may hold anything: user time is the 12th field from there, system time the 13th.
    let rest = stat.rsplit(')').next().context("no name")?;
    let fields = rest.split_whitespace().skip(11).take(2);
    let ticks = fields.map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
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

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn ready(address: SocketAddr) -> bool {
    use std::io::{Read, Write};
    let Ok(mut stream) = std::net::TcpStream::connect(address) else { return false };
    let request = b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    stream.write_all(request).is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.starts_with("HTTP/1.1 200")
}
