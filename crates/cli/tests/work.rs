//! `windlass work` as a process: what programs get, what becomes of them, and how a worker goes.

#![allow(clippy::unwrap_used)]

mod process;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use process::{Process, Server, until};

/// A worker with this program; `$DIR` in it is the server's directory.
fn work(server: &Server, exec: &str, flags: &[&str]) -> Process {
    let mut command = server.command(&["work", "--queue", "mail", "--exec", exec]);
    command.args(flags).env("DIR", server.dir.path()).stdin(Stdio::null());
    Process(command.spawn().unwrap())
}

/// The pid that a program wrote into a file.
fn pid_in(path: &Path) -> String {
    let mut pid = String::new();
    until("the program runs", || {
        pid = std::fs::read_to_string(path).unwrap_or_default();
        pid.ends_with('\n')
    });
    pid.trim().to_owned()
}

fn lives(pid: &str) -> bool {
    // A zombie has ended; only its parent has not looked yet.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn a_program_gets_the_payload_and_the_facts_and_its_outcome_counts() {
    let server = Server::start();
    server.run(&["queue", "set", "mail", "--attempts", "1"]).ok();
    let exec = r#"case $WINDLASS_KIND in
        json) cat ;;
        text) echo "$WINDLASS_QUEUE $WINDLASS_ATTEMPT $WINDLASS_WORKER" ;;
        quiet) ;;
        bad) echo one >&2; echo two >&2; exit 3 ;;
    esac"#;
    let ids = ["json", "text", "quiet", "bad"].map(|kind| server.enqueue(&["mail", kind, r#"{"a": [1]}"#]));
    let mut worker = work(&server, exec, &["--slots", "2", "--name", "w1"]);
    let ended = ids.map(|id| {
        until("the task has ended", || ["done", "dead"].contains(&server.state(&id).as_str()));
        server.json(&["task", "get", &id])
    });
    assert_eq!(ended[0]["output"]["a"][0], 1);
    assert_eq!(ended[1]["output"], "mail 1 w1");
    assert_eq!((&ended[2]["state"], &ended[2]["output"]), (&"done".into(), &serde_json::Value::Null));
    assert_eq!((&ended[3]["state"], &ended[3]["error"]), (&"dead".into(), &"exit code 3: two".into()));
    worker.signal("TERM");
    assert_eq!(worker.ended(), 0);
}

#[test]
fn a_worker_that_is_asked_to_go_finishes_what_runs_and_claims_nothing_more() {
    let server = Server::start();
    let mut worker =
        work(&server, "echo $$ > $DIR/pid; until [ -e $DIR/go ]; do sleep 0.01; done; echo 7", &[]);
    let running = server.enqueue(&["mail", "k"]);
    pid_in(&server.dir.path().join("pid"));
    worker.signal("TERM");
    until("it drains", || server.json(&["worker", "list"])["workers"][0]["state"] == "draining");
    let waiting = server.enqueue(&["mail", "k"]);
    std::fs::write(server.dir.path().join("go"), "").unwrap();
    assert_eq!(worker.ended(), 0);
    assert_eq!((server.state(&running), server.state(&waiting)), ("done".into(), "ready".into()));
}

#[test]
fn a_worker_that_is_asked_twice_gives_back_what_runs_without_an_attempt() {
    let server = Server::start();
    let mut worker = work(&server, "echo $$ > $DIR/pid; sleep 300", &[]);
    let id = server.enqueue(&["mail", "k"]);
    let pid = pid_in(&server.dir.path().join("pid"));
    worker.signal("TERM");
    worker.signal("INT");
    assert_eq!(worker.ended(), 0);
    assert!(!lives(&pid));
    let task = server.json(&["task", "get", &id]);
    assert_eq!((task["state"].as_str(), task["attempt"].as_u64()), (Some("ready"), Some(0)));
}

#[test]
fn a_cancelled_task_and_a_lost_claim_kill_the_program_with_all_it_started() {
    let server = Server::start();
    // The program's child holds on to the pipes, too.
    let _worker = work(
        &server,
        "sleep 300 & echo $! > $DIR/$WINDLASS_KIND; wait",
        &["--slots", "2", "--hold", "1500ms"],
    );
    let cancelled = server.enqueue(&["mail", "cancelled"]);
    let lost = server.enqueue(&["mail", "lost"]);
    let pids = ["cancelled", "lost"].map(|kind| pid_in(&server.dir.path().join(kind)));
    server.run(&["task", "cancel", &cancelled]).ok();
    server.run(&["claims", "discard", &lost]).ok();
    until("both programs are gone", || pids.iter().all(|pid| !lives(pid)));
    until("the cancelled task has ended", || server.state(&cancelled) == "cancelled");
    assert_eq!(server.state(&lost), "cancelled");
}

#[test]
fn a_program_that_runs_longer_than_the_hold_keeps_its_claim() {
    let server = Server::start();
    let _worker = work(&server, "sleep 2.5", &["--hold", "1s"]);
    let id = server.enqueue(&["mail", "k"]);
    let task = server.json(&["task", "get", &id, "--wait", "30s"]);
    assert_eq!((task["state"].as_str(), task["attempt"].as_u64()), (Some("done"), Some(1)));
}

#[test]
fn a_killed_workers_task_is_free_at_once_and_its_program_is_gone() {
    let server = Server::start();
    let mut worker = work(&server, "echo $$ > $DIR/pid; sleep 300", &[]);
    let id = server.enqueue(&["mail", "k"]);
    let pid = pid_in(&server.dir.path().join("pid"));
    worker.signal("KILL");
    worker.ended();
    let killed = Instant::now();
    let claimed = server.json(&["claim", "mail", "--wait", "30s"]);
    assert_eq!(claimed["claims"][0]["id"], id);
    assert!(killed.elapsed() < Duration::from_secs(3), "free after {:?}", killed.elapsed());
    until("the program is gone", || !lives(&pid));
}

#[test]
fn a_worker_goes_on_after_its_server_came_back() {
    let server = Server::start();
    let address = server.url.trim_start_matches("http://").to_owned();
    let _worker = work(&server, "cat", &["--slots", "2"]);
    server.run(&["enqueue", "mail", "k", "1", "--wait"]).ok();
    let dir = server.stop();
    let server = Server::on(dir, &["--listen", &address]);
    server.run(&["enqueue", "mail", "k", "2", "--wait"]).ok();
}

#[test]
fn a_worker_tells_its_own_status() {
    let server = Server::start();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _worker = work(&server, "cat", &["--status-listen", &port.to_string(), "--name", "w5"]);
    server.run(&["enqueue", "mail", "k", "1", "--wait"]).ok();
    let mut answer = String::new();
    until("the task is counted", || {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(port).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        answer.clear();
        stream.read_to_string(&mut answer).unwrap();
        answer.contains("\"done\":1")
    });
    assert!(answer.contains("\"worker\":\"w5\"") && answer.contains("\"state\":\"running\""), "{answer}");
}
