//! `windlass work` as a process: what programs get, what becomes of them, and how a worker goes.

#![allow(clippy::unwrap_used)]

mod process;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use process::{Process, Ran, Server, until};

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
fn a_worker_that_can_give_nothing_back_does_not_say_that_all_is_well() {
    let server = Server::start();
    let mut worker = work(&server, "echo $$ > $DIR/pid; sleep 300", &[]);
    server.enqueue(&["mail", "k"]);
    pid_in(&server.dir.path().join("pid"));
    server.process.signal("KILL");
    worker.signal("TERM");
    worker.signal("INT");
    let code = worker.ended();
    assert!([1, 7].contains(&code), "{code}: nobody knows what became of its task");
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
    let _worker = work(&server, "sleep 7", &["--hold", "3s"]);
    let id = server.enqueue(&["mail", "k"]);
    let task = server.json(&["task", "get", &id, "--wait", "30s"]);
    assert_eq!((task["state"].as_str(), task["attempt"].as_u64()), (Some("done"), Some(1)));
}

#[test]
fn a_program_that_leaves_a_daemon_behind_is_done_all_the_same() {
    let server = Server::start();
    let daemon = "setsid sh -c 'echo $$ > $DIR/pid; exec sleep 60' &";
    let program = format!("{daemon} until [ -s $DIR/pid ]; do sleep 0.05; done; echo ok");
    let _worker = work(&server, &program, &[]);
    let id = server.enqueue(&["mail", "k"]);
    let task = server.json(&["task", "get", &id, "--wait", "30s"]);
    let pid = pid_in(&server.dir.path().join("pid"));
    let lives_on = lives(&pid);
    Command::new("kill").arg(&pid).status().unwrap();
    assert_eq!((task["state"].as_str(), task["output"].as_str()), (Some("done"), Some("ok")), "{task}");
    assert!(lives_on, "it holds the pipes no more, so this shows nothing");
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
    assert!(killed.elapsed() < Duration::from_secs(15), "free after {:?}", killed.elapsed());
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

/// Puts an executable file in place, whole at once. A shell writes it: if this process did, a program that another
/// test starts meanwhile could hold it open, and nobody can run what somebody writes to.
fn put(path: &Path, script: &str) {
    let write = r#"printf '%s\n' "$2" > "$1~" && chmod 755 "$1~" && mv "$1~" "$1""#;
    let status = Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(script).status();
    assert!(status.unwrap().success());
}

/// A worker with the handlers of the server's directory's `handlers`.
fn work_with_handlers(server: &Server, flags: &[&str]) -> (Process, PathBuf) {
    let dir = server.dir.path().join("handlers");
    std::fs::create_dir_all(&dir).unwrap();
    let mut command = server.command(&["work", "--queue", "mail"]);
    command.arg("--handlers").arg(&dir).args(flags).env("DIR", server.dir.path()).stdin(Stdio::null());
    (Process(command.spawn().unwrap()), dir)
}

#[test]
fn handlers_come_and_go_while_a_worker_runs() {
    let server = Server::start();
    let (mut worker, dir) = work_with_handlers(&server, &["--slots", "4"]);
    let waiting = server.enqueue(&["mail", "welcome", r#"{"n":1}"#]);
    until("it is given back for a while", || server.state(&waiting) == "delayed");
    // None of these is a handler.
    for name in [".welcome", "welcome.sh.bak", "#welcome#"] {
        put(&dir.join(name), "#!/bin/sh\necho wrong");
    }
    std::fs::write(dir.join("welcome.txt"), "welcome").unwrap();
    std::fs::create_dir(dir.join("welcome.d")).unwrap();
    put(&dir.join("welcome.sh"), "#!/bin/sh\ncat");
    let task = server.json(&["task", "get", &waiting, "--wait", "60s"]);
    assert_eq!((&task["state"], &task["output"]["n"]), (&"done".into(), &1.into()), "{task}");
    assert_eq!(task["attempt"], 1, "waiting for a handler uses up no attempt: {task}");

    // A dot that is no extension of scripts belongs to the kind, and a script need not say what runs it.
    put(&dir.join("user.created"), "echo $WINDLASS_KIND");
    let dotted = server.json(&["enqueue", "mail", "user.created", "--wait"]);
    assert_eq!(dotted["output"], "user.created");

    // Two files for one kind: neither is run until one is gone.
    put(&dir.join("welcome.py"), "#!/bin/sh\necho wrong");
    let torn = server.enqueue(&["mail", "welcome", "2"]);
    until("it is given back for a while", || server.state(&torn) == "delayed");
    std::fs::remove_file(dir.join("welcome.py")).unwrap();
    let task = server.json(&["task", "get", &torn, "--wait", "60s"]);
    assert_eq!((&task["output"], &task["attempt"]), (&2.into(), &1.into()), "{task}");

    // A kind is never a path.
    put(&server.dir.path().join("outside"), "#!/bin/sh\necho wrong");
    let outside = server.enqueue(&["mail", "../outside"]);
    until("it is given back for a while", || server.state(&outside) == "delayed");
    worker.signal("TERM");
    assert_eq!(worker.ended(), 0);
}

#[test]
fn what_cannot_work_is_said_at_once() {
    let server = Server::start();
    let dir = server.dir.path().join("handlers");
    std::fs::create_dir(&dir).unwrap();
    for name in ["welcome", "welcome.sh"] {
        put(&dir.join(name), "#!/bin/sh");
    }
    let dir = dir.to_str().unwrap();
    for (flags, said) in [
        (&["--queue", "mail=0", "--exec", "cat"][..], "the weight of queue mail is \"0\""),
        (&["--queue", "mail=many", "--exec", "cat"], "give a number from 1 to 1000, as in mail=3"),
        (&["--queue", "mail=1001", "--exec", "cat"], "give a number from 1 to 1000"),
        (&["--queue", "ma il", "--exec", "cat"], "not allowed"),
        (&["--queue", "mail"], "--exec"),
        (&["--queue", "mail", "--exec", "cat", "--handlers", dir], "cannot be used with"),
        (&["--queue", "mail", "--handlers", dir], "welcome and welcome.sh, all for kind \"welcome\""),
        (&["--queue", "mail", "--handlers", "/nowhere"], "cannot read /nowhere"),
        (&["--queue", "mail", "--exec", "cat", "--max", "2"], "--autoscale"),
        (
            &["--queue", "mail", "--exec", "cat", "--autoscale", "--min", "3", "--max", "2"],
            "--min 3 is more than --max 2",
        ),
        (&["--queue", "mail", "--exec", "cat", "--label", "zone"], "write it like zone=a"),
    ] {
        let args: Vec<&str> = ["work"].iter().chain(flags).copied().collect();
        let ran = server.run(&args);
        assert_eq!(ran.code, 2, "{flags:?}: {ran:?}");
        assert!(ran.stderr.contains(said), "{flags:?} does not say {said:?}: {ran:?}");
    }
    let alone = ["work", "--queue", "mail", "--exec", "cat", "--server", "http://127.0.0.1:1"];
    Ran::of(process::windlass().args(alone)).refused(1, "is a server running there?");
    assert_eq!(server.json(&["worker", "list"])["workers"].as_array().unwrap().len(), 0);
}

#[test]
fn a_worker_of_weighted_queues_is_seen_with_all_that_it_said() {
    let server = Server::start();
    let mut command = server.command(&["work", "--queue", "mail=3", "--queue", "reports:1", "--exec", "cat"]);
    command.args(["--name", "w1", "--slots", "3", "--label", "zone=a"]).stdin(Stdio::null());
    let _worker = Process(command.spawn().unwrap());
    for queue in ["mail", "reports"] {
        assert_eq!(server.json(&["enqueue", queue, "k", "7", "--wait"])["output"], 7);
    }
    let worker = server.json(&["worker", "show", "w1"]);
    assert_eq!(worker["queues"], serde_json::json!(["mail", "reports"]));
    assert_eq!(
        (&worker["labels"]["zone"], &worker["version"]),
        (&"a".into(), &env!("CARGO_PKG_VERSION").into())
    );
    let table = server.run(&["worker", "list"]);
    let table: Vec<Vec<&str>> = table.ok().lines().map(|line| line.split_whitespace().collect()).collect();
    let column = |title: &str| table[0].iter().position(|cell| *cell == title).unwrap();
    assert_eq!((table[1][column("WORKER")], table[1][column("STATE")]), ("w1", "running"));
    assert_eq!(
        (table[1][column("OPEN")], table[1][column("SLOTS")], table[1][column("RUNNING")]),
        ("3", "3", "0")
    );
    assert!(table[1].contains(&"zone=a") && table[1].contains(&env!("CARGO_PKG_VERSION")), "{table:?}");
    let shown = server.run(&["worker", "show", "w1"]);
    assert!(shown.ok().contains("mail reports") && shown.stdout.contains("process"), "{shown:?}");
}

/// A pool with this program.
fn pool(server: &Server, exec: &str, flags: &[&str]) -> Process {
    let pool = ["--autoscale", "--name", "pool", "--cool-down", "1s"];
    work(server, exec, &[&pool, flags].concat())
}

/// The workers that run, by name, each with its process.
fn running(server: &Server) -> Vec<(String, String)> {
    let workers = server.json(&["worker", "list"])["workers"].clone();
    let workers = workers.as_array().unwrap().iter().filter(|worker| worker["state"] == "running");
    workers.map(|worker| (worker["id"].as_str().unwrap().to_owned(), worker["pid"].to_string())).collect()
}

const UNTIL_GO: &str = "echo $$ > $DIR/$WINDLASS_KIND; until [ -e $DIR/go ]; do sleep 0.05; done";

#[test]
fn a_pool_grows_with_what_waits_shrinks_to_nothing_and_comes_back() {
    let server = Server::start();
    let mut pool = pool(&server, UNTIL_GO, &["--min", "0", "--max", "2"]);
    let tasks: Vec<String> = (0..4).map(|n| server.enqueue(&["mail", &format!("k{n}")])).collect();
    until("there are two workers", || {
        let count = running(&server).len();
        assert!(count <= 2, "{count} workers, and two at most were asked for");
        count == 2
    });
    std::fs::write(server.dir.path().join("go"), "").unwrap();
    for id in &tasks {
        let task = server.json(&["task", "get", id, "--wait", "60s"]);
        assert_eq!((&task["state"], &task["attempt"]), (&"done".into(), &1.into()), "{task}");
    }
    // One that did not leave in order would be listed as lost.
    until("there is no worker", || {
        server.json(&["worker", "list"])["workers"].as_array().unwrap().is_empty()
    });
    server.run(&["enqueue", "mail", "again", "--wait"]).ok();
    pool.signal("TERM");
    assert_eq!(pool.ended(), 0);
}

#[test]
fn a_pool_that_is_asked_to_go_lets_its_workers_finish() {
    let server = Server::start();
    let mut pool = pool(&server, UNTIL_GO, &["--min", "1", "--max", "1", "--slots", "2"]);
    let ids = ["a", "b"].map(|kind| server.enqueue(&["mail", kind]));
    let pids = ["a", "b"].map(|kind| pid_in(&server.dir.path().join(kind)));
    pool.signal("TERM");
    until("its worker drains", || server.json(&["worker", "list"])["workers"][0]["state"] == "draining");
    let waiting = server.enqueue(&["mail", "c"]);
    assert!(pids.iter().all(|pid| lives(pid)));
    std::fs::write(server.dir.path().join("go"), "").unwrap();
    assert_eq!(pool.ended(), 0);
    for id in &ids {
        let task = server.json(&["task", "get", id]);
        assert_eq!((&task["state"], &task["attempt"]), (&"done".into(), &1.into()), "{task}");
    }
    assert_eq!(server.state(&waiting), "ready");
}

#[test]
fn a_pool_that_is_killed_leaves_no_worker_and_no_program_behind() {
    let server = Server::start();
    let mut pool = pool(&server, UNTIL_GO, &["--min", "2", "--max", "2"]);
    let ids = ["a", "b"].map(|kind| server.enqueue(&["mail", kind]));
    let programs = ["a", "b"].map(|kind| pid_in(&server.dir.path().join(kind)));
    let workers = running(&server);
    assert_eq!(workers.len(), 2, "{workers:?}");
    pool.signal("KILL");
    pool.ended();
    until("nothing of it is left", || {
        !workers.iter().any(|(_, pid)| lives(pid)) && !programs.iter().any(|pid| lives(pid))
    });
    // They gave back what they ran.
    for id in &ids {
        let task = server.json(&["task", "get", id]);
        assert_eq!((&task["state"], &task["attempt"]), (&"ready".into(), &0.into()), "{task}");
    }
}

#[test]
fn a_worker_of_a_pool_that_dies_is_replaced() {
    let server = Server::start();
    let mut pool = pool(&server, "cat", &["--min", "1", "--max", "1"]);
    let mut first = Vec::new();
    until("there is a worker", || {
        first = running(&server);
        first.len() == 1
    });
    assert!(Command::new("kill").args(["-KILL", &first[0].1]).status().unwrap().success());
    until("there is another", || running(&server).first().is_some_and(|next| next.0 != first[0].0));
    server.run(&["enqueue", "mail", "k", "1", "--wait"]).ok();
    pool.signal("TERM");
    assert_eq!(pool.ended(), 0);
}

#[test]
fn a_removed_worker_loses_what_it_runs_and_its_program_is_killed() {
    let server = Server::start();
    let _worker =
        work(&server, "echo $$ > $DIR/$WINDLASS_FENCE; sleep 300", &["--name", "w1", "--hold", "60s"]);
    let id = server.enqueue(&["mail", "k"]);
    until("it runs", || server.state(&id) == "claimed");
    let fence = server.json(&["claims", "list"])["claims"][0]["fence"].to_string();
    let pid = pid_in(&server.dir.path().join(fence));
    server.run(&["worker", "remove", "w1", "--yes"]).ok();
    until("its program is killed", || !lives(&pid));
}
