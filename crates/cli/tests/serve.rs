//! Servers as processes: how they start, refuse to start, stop and start again.

#![allow(clippy::unwrap_used)]

mod process;

use process::{Ran, Server, until, windlass};

#[test]
fn what_was_accepted_survives_a_restart_and_the_directory_is_clean() {
    let server = Server::start();
    let done = server.enqueue(&["mail", "k"]);
    let token = server.json(&["claim", "mail"])["claims"][0]["token"].as_str().unwrap().to_owned();
    server.run(&["ack", &token, "1"]).ok();
    let waiting = server.enqueue(&["mail", "k", "{\"x\": 1}"]);
    let dir = server.stop();

    let data = dir.path().join("data");
    let checked = Ran::of(windlass().arg("check").arg(&data));
    assert!(checked.ok().contains("clean:"), "{checked:?}");

    let mut server = Server::on(dir, &[]);
    assert_eq!((server.state(&done), server.state(&waiting)), ("done".into(), "ready".into()));
    let used = Ran::of(windlass().arg("check").arg(&data));
    used.refused(1, &format!("process {}", server.process.0.id()));

    // The same after a death without warning.
    let another = server.enqueue(&["mail", "k"]);
    server.process.signal("KILL");
    server.process.ended();
    let Server { dir, .. } = server;
    let server = Server::on(dir, &[]);
    assert_eq!((server.state(&another), server.state(&done)), ("ready".into(), "done".into()));
    let dir = server.stop();
    Ran::of(windlass().arg("check").arg(&data).args(["-o", "json"])).json()["clean"]
        .as_bool()
        .filter(|&clean| clean)
        .unwrap();
    drop(dir);
}

#[test]
fn a_server_that_cannot_start_says_why_in_one_line() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "nonsense = 1\n").unwrap();
    let serve = |args: &[&str]| {
        let mut command = windlass();
        command.args(["serve", "--disk-reserve-bytes", "1MiB"]).args(args).env("RUST_LOG", "off");
        Ran::of(&mut command)
    };
    let address = server.url.trim_start_matches("http://");
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let data = server.dir.path().join("data").to_string_lossy().into_owned();
    let pid = format!("process {}", server.process.0.id());

    serve(&["--data", &path("d"), "--listen", address]).refused(1, "in use");
    serve(&["--data", &data, "--listen", "127.0.0.1:0"]).refused(1, &pid);
    serve(&["--data", &path("file/below"), "--listen", "127.0.0.1:0"])
        .refused(1, "cannot use the data directory");
    serve(&["--config", &path("file")]).refused(2, "line 1: unknown field `nonsense`");
    serve(&["--config", &path("nothing")]).refused(1, "cannot read the config file");
    serve(&["--data", &path("d"), "--listen", "0.0.0.0:0"]).refused(2, "--insecure");
    let three = "1=127.0.0.1:1,2=127.0.0.1:2,3=127.0.0.1:3";
    for (flags, part) in [
        (&["--cluster", "1=a:1,2=b:1,3=c:1"][..], "say where to listen with --peer-listen"),
        (&["--cluster", three, "--node", "4"], "node 4 is not in --cluster"),
        (&["--cluster", "1=127.0.0.1:1,1=127.0.0.1:2"], "node 1 twice"),
        (&["--cluster", three, "--peer-listen", "0.0.0.0:1"], "--peer-ca"),
        (&["--cluster", three, "--peer-ca", "ca.pem"], "--peer-cert and --peer-key is missing"),
        (&["--peer-listen", "127.0.0.1:7421"], "--peer-listen without --cluster"),
        (&["--bootstrap"], "--bootstrap without --cluster"),
    ] {
        let data = path("d");
        let flags: Vec<&str> = ["--data", &data].into_iter().chain(flags.iter().copied()).collect();
        serve(&flags).refused(2, part);
    }
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("1={},2=127.0.0.1:2,3=127.0.0.1:3", holder.local_addr().unwrap());
    serve(&["--data", &path("d"), "--listen", "127.0.0.1:0", "--cluster", &taken])
        .refused(1, "--peer-listen");
    serve(&["--data", &path("d"), "--shards", "0"]).refused(2, "shards");
    serve(&["--data", &path("d"), "--faktory", "127.0.0.1:7419"]).refused(2, "comes with a later release");
    assert!(!dir.path().join("d").exists(), "a refused server left a data directory");
    Ran::of(windlass().args(["check", &path("d")])).refused(3, "not a directory");
}

#[test]
fn settings_come_from_the_env_file_and_the_config_file() {
    let dir = tempfile::tempdir().unwrap();
    let (env, config) = (dir.path().join("env"), dir.path().join("windlass.toml"));
    std::fs::write(&env, "WINDLASS_LOG=json\n").unwrap();
    std::fs::write(&config, "[queues]\nauto_create = false\n").unwrap();
    let files = [env.to_string_lossy().into_owned(), config.to_string_lossy().into_owned()];
    let server = Server::on(dir, &["--env-file", &files[0], "--config", &files[1]]);
    server.run(&["enqueue", "mail", "k"]).refused(3, "unknown_queue");
    server.run(&["queue", "set", "mail", "--attempts", "1"]).ok();
    server.enqueue(&["mail", "k"]);
}

#[test]
fn dev_shows_a_result_a_retry_and_a_dead_letter() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = windlass();
    command.args(["dev", "--listen", "127.0.0.1:0", "--shards", "2", "--disk-reserve-bytes", "1MiB"]);
    command.current_dir(dir.path());
    let server = Server::spawn(command, dir, "address  ");
    assert!(server.greeting.iter().any(|line| line.contains("windlass-data")), "{:?}", server.greeting);

    let ended = server.json(&["enqueue", "demo", "hello", r#"{"name":"Ada"}"#, "--wait"]);
    assert_eq!(ended["output"]["greeting"], "hello, Ada");
    server.run(&["enqueue", "demo", "sleep", r#"{"ms":1}"#, "--wait"]).ok();
    let failed = server.run(&["enqueue", "demo", "fail", "--wait", "-o", "json"]);
    failed.refused(8, "ended dead");
    let task: serde_json::Value = serde_json::from_str(&failed.stdout).unwrap();
    assert_eq!((task["state"].as_str(), task["attempt"].as_u64()), (Some("dead"), Some(3)));
    assert_eq!(server.json(&["worker", "list"])["workers"][0]["id"], "windlass-dev");
    let dir = server.stop();
    assert!(dir.path().join("windlass-data").is_dir());
}

#[test]
fn an_ephemeral_dev_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = windlass();
    command.args(["dev", "--ephemeral", "--listen", "127.0.0.1:0", "--disk-reserve-bytes", "1MiB"]);
    command.args(["--faktory", "off"]);
    command.current_dir(dir.path()).env("TMPDIR", dir.path());
    let server = Server::spawn(command, dir, "address  ");
    server.run(&["enqueue", "demo", "hello", "--wait"]).ok();
    // Its worker drains when it is asked to, and starts anew when it was removed.
    let state = || server.json(&["worker", "list"])["workers"][0]["state"].clone();
    server.run(&["worker", "drain", "windlass-dev"]).ok();
    assert_eq!(state(), "draining");
    let waiting = server.enqueue(&["demo", "hello"]);
    assert_eq!(server.state(&waiting), "ready");
    server.run(&["worker", "remove", "windlass-dev", "--yes"]).ok();
    until("it is done by the worker's next life", || server.state(&waiting) == "done");
    assert_eq!(state(), "running");
    let dir = server.stop();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
