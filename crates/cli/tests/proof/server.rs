//! A `windlass serve` process that a test can kill and start again on the same directory and port.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::client::Client;

/// How long a server may take to answer before a test gives up.
const START_MAX: Duration = Duration::from_secs(30);

/// A server process.
pub(crate) struct Server {
    child: Child,
    /// What it said, for a test that fails.
    said: NamedTempFile,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn start(data: &Path) -> Server {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Server::start_at(data, address)
    }

    pub(crate) fn start_at(data: &Path, address: SocketAddr) -> Server {
        let said = NamedTempFile::new().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_windlass"))
            .args(["serve", "--shards", "4", "--listen", &address.to_string(), "--data"])
            .arg(data)
            .stdout(Stdio::null())
            .stderr(said.reopen().unwrap())
            .spawn()
            .unwrap();
        let mut server = Server { child, said, address };
        let start = Instant::now();
        while !server.is_ready() {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended at its start, {ended:?}: {}", server.said());
            assert!(start.elapsed() < START_MAX, "the server did not become ready: {}", server.said());
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.said.path()).unwrap()
    }

    fn is_ready(&self) -> bool {
        Client::new(self.address).get("/readyz").is_ok_and(|answer| answer.status == 200)
    }

    /// SIGKILL, as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; gives the exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        terminate(self.child.id());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks a process that the test started to end.
pub(crate) fn terminate(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

/// Runs `windlass` to its end; its exit code and output.
pub(crate) fn windlass(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_windlass")).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}
