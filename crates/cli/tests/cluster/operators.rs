//! What an operator and a careful client do: look, move leaders, add and remove nodes, follow redirects, read stale.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Client;
use crate::load::shard_of;
use crate::rig::{PATIENCE, Rig, ShellWorker, until};

/// Runs a command to its end: exit code, stdout, stderr.
fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_line_shows_the_cluster_and_moves_leaders() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let (code, table, error) = run(&mut rig.command(&["cluster", "status"]));
    assert_eq!(code, 0, "{table}{error}");
    assert!(table.contains("NODE") && table.contains("SHARD"), "{table}");

    let target = (rig.await_leaders(PATIENCE)[&1] + 1) % 3;
    let number = rig.nodes[target].number.to_string();
    let (code, said, error) = run(&mut rig.command(&["cluster", "transfer", "1", &number]));
    assert_eq!(code, 0, "{said}{error}");
    assert!(said.contains(&format!("node {number} leads shard 1")), "{said}");

    let (code, lines, error) = run(&mut rig.command(&["cluster", "watch", "-o", "csv", "--for", "1s"]));
    assert_eq!(code, 0, "{lines}{error}");
    let mut lines = lines.lines();
    assert_eq!(lines.next(), Some("ts,node,shard,role,leader,term"));
    let first: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    for node in ["1", "2", "3"] {
        for shard in ["0", "1", "2", "3", "4"] {
            assert!(
                first.iter().any(|line| line[1..3] == [node, shard]),
                "no line for {node} {shard}: {first:?}"
            );
        }
    }

    let (code, said, error) = run(&mut rig.command(&["cluster", "rebalance"]));
    assert_eq!(code, 0, "{said}{error}");
    let (code, _, error) = run(&mut rig.command(&["cluster", "transfer", "1", "9"]));
    assert_ne!(code, 0, "{error}");

    rig.kill(0);
    rig.kill(1);
    until("the last one says that it has no quorum", || {
        run(&mut rig.command(&["cluster", "status", "--timeout", "5s"])).0 == 6
    });
}

#[test]
fn a_caller_that_prefers_it_is_sent_to_the_leader() {
    let _alone = crate::alone();
    let rig = Rig::started(3, &[]);
    let mut client = rig.client();
    let task = json!({"kind": "k", "dedup_key": "a"});
    let enqueued = client.post("/v1/queues/q/tasks", &task, PATIENCE).unwrap();
    let id = enqueued.body["id"].as_str().unwrap().to_owned();
    let leader = rig.await_leaders(PATIENCE)[&shard_of(&id)];
    let path = format!("/v1/tasks/{id}");
    for (n, node) in rig.nodes.iter().enumerate() {
        let mut picky = Client::of(node.http);
        picky.header = Some("Prefer: redirect".to_owned());
        let answer = picky.get(&path).unwrap();
        let again = picky.once("POST", "/v1/queues/q/tasks", &task.to_string(), Duration::ZERO).unwrap();
        if n == leader {
            assert_eq!((answer.status, again.status), (200, 200), "{answer:?} {again:?}");
        } else {
            let there = format!("http://{}{path}", rig.nodes[leader].http);
            assert_eq!(
                (answer.status, answer.location.as_deref()),
                (307, Some(there.as_str())),
                "{answer:?}"
            );
            assert_eq!(again.status, 307, "{again:?}");
        }
        // Nobody else is sent anywhere.
        assert_eq!(Client::of(node.http).get(&path).unwrap().status, 200);
    }
}

#[test]
fn without_a_quorum_writes_and_reads_are_refused_soon_and_stale_reads_are_not() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let enqueued =
        rig.client().post("/v1/queues/q/tasks", &json!({"kind": "k", "dedup_key": "a"}), PATIENCE).unwrap();
    let path = format!("/v1/tasks/{}", enqueued.body["id"].as_str().unwrap());
    let mut last = Client::of(rig.nodes[2].http);
    until("the copy has it", || {
        last.get(&format!("{path}?stale=ok")).is_ok_and(|answer| answer.status == 200)
    });
    rig.kill(0);
    rig.kill(1);
    let deadline = Duration::from_millis(2500);
    // What was on its way when the quorum went is told to be unknown after ten seconds.
    last.answer_max = Duration::from_secs(20);
    for (what, method, path, body) in [
        ("a write", "POST", "/v1/queues/q/tasks".to_owned(), r#"{"kind":"k","dedup_key":"b"}"#),
        ("a read", "GET", path.clone(), ""),
        ("a list", "GET", "/v1/tasks?queue=q".to_owned(), ""),
    ] {
        // After that nothing is taken in.
        until("it is refused", || {
            let sent = Instant::now();
            let answer = last.once(method, &path, body, Duration::ZERO).unwrap();
            assert!(answer.status >= 500, "{what}: {answer:?}");
            answer.code() == "unavailable" && sent.elapsed() <= deadline
        });
    }
    assert_eq!(last.get(&format!("{path}?stale=ok")).unwrap().status, 200);
    assert_eq!(last.get("/v1/queues?stale=ok").unwrap().status, 200);
    assert_eq!(last.get("/v1/node").unwrap().status, 200);
    assert_eq!(last.get("/livez").unwrap().status, 200);
    assert_eq!(last.get("/readyz").unwrap().status, 503);
    assert_eq!(last.get("/v1/cluster").unwrap().body["status"], "unavailable");
}

#[test]
fn a_worker_keeps_its_session_when_the_node_it_talks_to_dies() {
    let _alone = crate::alone();
    goes_on_elsewhere(&mut Rig::started(3, &[]), Rig::kill);
}

#[test]
fn a_worker_goes_on_elsewhere_when_the_node_it_talks_to_stands_still() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let frozen = goes_on_elsewhere(&mut rig, Rig::freeze);
    rig.thaw(frozen);
}

#[test]
fn an_idle_worker_goes_elsewhere_when_the_node_it_talks_to_stands_still() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let mut worker = ShellWorker::started(&rig, "idle", "true", 1, "patient");
    let its = worker.node(&rig);
    let mut client = others_than(&rig, its);
    rig.freeze(its);
    let lost = Instant::now();
    let enqueued = client.post("/v1/queues/idle/tasks", &json!({"kind": "k"}), PATIENCE).unwrap();
    let path = format!("/v1/tasks/{}", enqueued.body["id"].as_str().unwrap());
    until("its task is done", || look(&mut client, &path)["state"] == "done");
    println!("an idle worker that lost its node had done the next task after {:?}", lost.elapsed());
    // It beats at least every 5 s, and gives up on an answer after one.
    assert!(lost.elapsed() < Duration::from_secs(15));
    worker.leave();
    rig.thaw(its);
}

/// A worker with one slot taken and one free loses its node: it keeps the task that it has, and gets the next. Which node that was.
fn goes_on_elsewhere(rig: &mut Rig, lose: impl FnOnce(&mut Rig, usize)) -> usize {
    let enqueue = |client: &mut Client, key: &str| {
        let task = json!({"kind": "k", "dedup_key": key, "hold_ms": 60_000});
        let enqueued = client.post("/v1/queues/long/tasks", &task, PATIENCE).unwrap();
        format!("/v1/tasks/{}", enqueued.body["id"].as_str().unwrap())
    };
    let first = enqueue(&mut rig.client(), "first");
    let dir = tempfile::tempdir().unwrap();
    let begun = dir.path().join("begun");
    let exec = format!("touch {}; sleep 5", begun.display());
    let mut worker = ShellWorker::started(rig, "long", &exec, 2, "survivor");
    // Claimed is not enough: a task that is still on its way to the worker is lost with the node.
    until("it runs", || begun.exists());
    let its = worker.node(rig);
    let lost = Instant::now();
    lose(rig, its);
    let mut client = others_than(rig, its);
    let second = enqueue(&mut client, "second");
    until("the next is claimed", || look(&mut client, &second)["state"] == "claimed");
    println!("a worker that lost its node got the next task after {:?}", lost.elapsed());
    for path in [&first, &second] {
        until("it is done", || look(&mut client, path)["state"] == "done");
        let done = look(&mut client, path);
        assert_eq!(done["attempt"], 1, "its claim was never taken from it: {done}");
    }
    worker.leave();
    its
}

/// A client of all nodes but one.
fn others_than(rig: &Rig, node: usize) -> Client {
    let others = rig.nodes.iter().enumerate().filter(|(n, _)| *n != node);
    Client::new(&others.map(|(_, node)| node.http).collect::<Vec<_>>())
}

fn look(client: &mut Client, path: &str) -> Value {
    client.safe("GET", path, &Value::Null, Duration::ZERO, PATIENCE).unwrap().body
}

#[test]
fn a_fourth_node_joins_and_leaves_by_the_command_line() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let fourth = rig.add();
    let peer = rig.nodes[fourth].peer.to_string();
    let mut join = rig.command(&["cluster", "join", "4", &peer, "--wait", "60s"]);
    let join =
        join.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    rig.start(fourth);
    rig.await_ready(fourth);
    let joined = join.wait_with_output().unwrap();
    let told = String::from_utf8(joined.stderr).unwrap();
    assert!(joined.status.success(), "{told}");
    let http = std::net::SocketAddr::new(rig.nodes[fourth].peer.ip(), rig.nodes[fourth].peer.port() - 1);
    let command = format!("--node 4 --data DIR --listen {http} --peer-listen {peer} --cluster 1=");
    assert!(told.contains(&command), "{told}");
    let nodes = |rig: &Rig| rig.cluster(0).unwrap()["nodes"].as_array().unwrap().len();
    assert_eq!(nodes(&rig), 4);

    let (code, said, error) = run(&mut rig.command(&["cluster", "leave", "1", "--yes", "--wait", "60s"]));
    assert_eq!(code, 0, "{said}{error}");
    let members = rig.cluster(fourth).unwrap()["nodes"].clone();
    let ids: Vec<u64> = members.as_array().unwrap().iter().map(|node| node["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [2, 3, 4]);
    let (code, _, error) = run(&mut rig.command(&["cluster", "leave", "9", "--yes"]));
    assert_ne!(code, 0, "{error}");
}

#[test]
fn a_node_that_ran_alone_grows_to_three_with_its_data() {
    let _alone = crate::alone();
    let mut rig = Rig::new(3, &[]);
    let (http, data) = (rig.nodes[0].http, rig.nodes[0].data.clone());
    let mut lone = crate::rig::windlass();
    lone.args([
        "serve",
        "--shards",
        "4",
        "--disk-reserve-bytes",
        "1MiB",
        "--listen",
        &http.to_string(),
        "--data",
    ]);
    let mut lone = lone
        .arg(data)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut client = Client::of(http);
    let enqueued =
        client.post("/v1/queues/q/tasks", &json!({"kind": "k", "dedup_key": "a"}), PATIENCE).unwrap();
    let path = format!("/v1/tasks/{}", enqueued.body["id"].as_str().unwrap());
    rustix::process::kill_process(rustix::process::Pid::from_child(&lone), rustix::process::Signal::TERM)
        .unwrap();
    assert_eq!(lone.wait().unwrap().code(), Some(0));

    (0..3).for_each(|n| rig.start(n));
    (0..3).for_each(|n| rig.await_ready(n));
    let voters = |rig: &Rig| -> Option<bool> {
        let shards = rig.cluster(1)?["shards"].clone();
        let voters = |shard: &Value| {
            let replicas = shard["replicas"].as_array().unwrap();
            replicas.iter().filter(|replica| replica["role"] == "voter").count()
        };
        Some(shards.as_array().unwrap().iter().all(|shard| voters(shard) == 3))
    };
    until("all three vote", || voters(&rig) == Some(true));
    rig.await_leaders(PATIENCE);
    // Now the first one may go, with everything that it had.
    rig.kill(0);
    let task = rig.client().safe("GET", &path, &Value::Null, Duration::ZERO, PATIENCE).unwrap();
    assert_eq!((task.status, &task.body["state"]), (200, &json!("ready")), "{task:?}");
}
