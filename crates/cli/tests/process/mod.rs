//! The real binary, run as users run it: own port, own directory, own process.

// Each test file uses a part of this.
#![allow(dead_code, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The binary under test, without anything from our own environment that it would read.
pub(crate) fn windlass() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WINDLASS_") || name == "RUST_LOG")
    {
        command.env_remove(name);
    }
    command
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Runs it to its end.
    pub(crate) fn of(command: &mut Command) -> Ran {
        Ran::fed(command, "")
    }

    /// Runs it to its end, with this on stdin.
    pub(crate) fn fed(command: &mut Command, stdin: &str) -> Ran {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        // It may end without having read all of it.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        let output = child.wait_with_output().unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Its stdout, after exit code 0.
    #[track_caller]
    pub(crate) fn ok(&self) -> &str {
        assert_eq!(self.code, 0, "{self:?}");
        &self.stdout
    }

    /// Its stdout as JSON, after exit code 0.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.ok()).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Fails with this code and one line on stderr that says this.
    #[track_caller]
    pub(crate) fn refused(&self, code: i32, part: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.stderr.contains(part), "stderr does not say {part:?}: {self:?}");
        assert_eq!(self.stderr.trim_end().lines().count(), 1, "more than one line: {self:?}");
    }
}

/// A process that ends with the test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn signal(&self, signal: &str) {
        let status =
            Command::new("kill").arg(format!("-{signal}")).arg(self.0.id().to_string()).status().unwrap();
        assert!(status.success());
    }

    /// Its exit code, or -1 after a signal. Fails if it does not end by itself.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> i32 {
        let mut status = None;
        until("the process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) url: String,
    /// What it printed before it was ready.
    pub(crate) greeting: Vec<String>,
    pub(crate) dir: TempDir,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::on(tempfile::tempdir().unwrap(), &[])
    }

    /// A server on this directory's `data`.
    pub(crate) fn on(dir: TempDir, flags: &[&str]) -> Server {
        let mut command = windlass();
        command.arg("serve").args(["--shards", "2", "--disk-reserve-bytes", "1MiB"]);
        command.arg("--data").arg(dir.path().join("data")).args(flags);
        if !flags.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        Server::spawn(command, dir, "listening on ")
    }

    /// Runs a command that serves, up to the line with its address.
    pub(crate) fn spawn(mut command: Command, dir: TempDir, mark: &str) -> Server {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut greeting = Vec::new();
        let url = loop {
            let line = lines.next().expect("the server ended before it was ready").unwrap();
            greeting.push(line.clone());
            if let Some((_, url)) = line.split_once(mark) {
                break url.trim().to_owned();
            }
        };
        Server { process: Process(child), url, greeting, dir }
    }

    /// A command that talks to this server.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = windlass();
        command.args(args).args(["--server", &self.url]);
        command
    }

    /// Runs such a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::of(&mut self.command(args))
    }

    /// Runs it with `-o json` and reads the answer.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        Ran::of(self.command(args).args(["-o", "json"])).json()
    }

    /// Enqueues one task; its id.
    #[track_caller]
    pub(crate) fn enqueue(&self, args: &[&str]) -> String {
        let args: Vec<&str> = ["enqueue"].iter().chain(args).copied().collect();
        self.json(&args)["id"].as_str().unwrap().to_owned()
    }

    /// A task's state.
    #[track_caller]
    pub(crate) fn state(&self, id: &str) -> String {
        self.json(&["task", "get", id])["state"].as_str().unwrap().to_owned()
    }

    /// Stops it in order; its directory, for the next one.
    #[track_caller]
    pub(crate) fn stop(mut self) -> TempDir {
        self.process.signal("TERM");
        assert_eq!(self.process.ended(), 0);
        self.dir
    }
}

/// Waits until something is so; three minutes are for slow machines, nothing should take that long.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(180), "waited three minutes until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
