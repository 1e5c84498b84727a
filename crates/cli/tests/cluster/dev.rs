//! `windlass dev --nodes 3`: three processes under one.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::rig::{until, windlass};

/// A running `windlass dev --nodes 3` and what it says.
struct Dev {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    pids: Vec<Pid>,
    servers: String,
}

impl Dev {
    fn start(flags: &[&str]) -> Dev {
        let mut command = windlass();
        command.args(["dev", "--nodes", "3", "--ephemeral", "--listen", "127.0.0.1:0", "--shards", "2"]);
        command.args(["--disk-reserve-bytes", "1MiB"]).args(flags).env("RUST_LOG", "off");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut dev = Dev { child, lines, pids: Vec::new(), servers: String::new() };
        dev.read_greeting();
        dev
    }

    fn read_greeting(&mut self) {
        let mut servers = Vec::new();
        loop {
            let line = self.lines.next().expect("it ended before it was ready").unwrap();
            if line.contains("stop with Ctrl-C") {
                break;
            }
            let word_after = |mark: &str| {
                line.split_once(mark).map(|(_, rest)| rest.split_whitespace().next().unwrap().to_owned())
            };
            if let (Some(pid), Some(address)) = (word_after(" process "), word_after(" address ")) {
                self.pids.push(Pid::from_raw(pid.parse().unwrap()).unwrap());
                servers.push(address);
            }
        }
        self.servers = servers.join(",");
    }

    fn says(&mut self, part: &str) -> String {
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("it never said {part:?}")).unwrap();
            if line.contains(part) {
                return line;
            }
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn dev_runs_three_nodes_says_when_one_dies_and_takes_them_along() {
    let _alone = crate::alone();
    let mut dev = Dev::start(&[]);
    assert_eq!(dev.pids.len(), 3);
    let hello = |servers: &str| {
        let hello = ["enqueue", "demo", "hello", r#"{"name":"Ada"}"#, "--wait", "--server", servers];
        windlass().args(hello).output().unwrap()
    };
    assert!(hello(&dev.servers).status.success());
    kill_process(dev.pids[1], Signal::KILL).unwrap();
    assert!(dev.says("node 2 has ended").contains("2 left"));
    assert!(hello(&dev.servers).status.success());
    // A death without warning takes the nodes along: each notices that its pipe has ended.
    dev.child.kill().unwrap();
    dev.child.wait().unwrap();
    for pid in [dev.pids[0], dev.pids[2]] {
        until("the nodes have ended", || test_kill_process(pid).is_err());
    }
}

#[test]
fn dev_starts_a_dead_node_again_when_asked_and_stops_in_order() {
    let _alone = crate::alone();
    let mut dev = Dev::start(&["--restart"]);
    kill_process(dev.pids[0], Signal::KILL).unwrap();
    dev.says("node 1 has ended");
    let line = dev.says("node 1 is process");
    let again: i32 = line.split_whitespace().nth(4).unwrap().parse().unwrap();
    kill_process(Pid::from_child(&dev.child), Signal::TERM).unwrap();
    assert_eq!(dev.child.wait().unwrap().code(), Some(0));
    for pid in [Pid::from_raw(again).unwrap(), dev.pids[1], dev.pids[2]] {
        assert!(test_kill_process(pid).is_err(), "{pid:?} still runs");
    }
}
