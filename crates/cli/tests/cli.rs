//! Every verb of the command line against a real server: the happy path, and the exit codes.

#![allow(clippy::unwrap_used)]

mod process;

use process::{Ran, Server, until, windlass};

#[test]
fn a_task_goes_from_enqueue_to_ack_by_hand() {
    let server = Server::start();
    let id = server.enqueue(&["mail", "welcome", r#"{"to":"ada", "n":12345678901234567890123}"#]);

    let claims = server.run(&["claim", "mail", "--worker", "w1", "--hold", "1m", "-o", "json"]);
    // The payload's own bytes, with its space and all its digits.
    assert!(claims.stdout.contains(r#"{"to":"ada", "n":12345678901234567890123}"#), "{claims:?}");
    let claim = claims.json()["claims"][0].clone();
    assert_eq!((claim["id"].as_str(), claim["attempt"].as_u64()), (Some(id.as_str()), Some(1)));
    let token = claim["token"].as_str().unwrap();

    assert_eq!(server.json(&["claims", "list", "--queue", "mail"])["claims"][0]["worker"], "w1");
    assert!(server.run(&["task", "why", &id]).ok().starts_with("claimed"));
    server.run(&["task", "get", &id, "--wait", "1ms"]).refused_with(7);

    let then = r#"{"queue":"audit","kind":"log","payload":{}}"#;
    assert!(server.run(&["ack", token, r#"{"sent":true}"#, "--then", then]).ok().contains("done"));
    let task = server.json(&["task", "get", &id, "--wait", "10s"]);
    assert_eq!((task["state"].as_str(), &task["output"]["sent"]), (Some("done"), &true.into()));
    assert_eq!(task["history"][0]["event"], "enqueued");
    until("the follow-up is there", || server.run(&["claim", "audit"]).code == 0);

    // The same ack again gets the same answer; another verb with the same token does not count.
    server.run(&["ack", token, r#"{"sent":true}"#]).ok();
    server.run(&["fail", token, "too late"]).refused(5, "");
    server.run(&["ack", "nonsense"]).refused(2, "token");
    server.run(&["claim", "mail"]).refused(3, "nothing is ready in mail");
}

#[test]
fn tasks_come_one_by_one_by_count_and_by_line() {
    let server = Server::start();
    let depth =
        |queue: &str, state: &str| server.json(&["queue", "show", queue])["depth"][state].as_u64().unwrap();

    server.run(&["enqueue", "many", "k", "--count", "1200"]).ok();
    assert_eq!(depth("many", "ready"), 1200);
    let ran = Ran::fed(&mut server.command(&["enqueue", "lines", "k", "-"]), "{\"a\":1}\n\n[2]\n\"three\"\n");
    assert!(ran.stderr.contains("3 enqueued"), "{ran:?}");
    let tasks = "{\"kind\":\"k\",\"payload\":1,\"dedup_key\":\"d\"}\n{\"kind\":\"k\",\"payload\":1,\"dedup_key\":\"d\"}\n";
    let ran = Ran::fed(&mut server.command(&["enqueue", "lines", "-", "--priority", "2"]), tasks);
    assert!(ran.stderr.contains("1 enqueued") && ran.stderr.contains("1 duplicates"), "{ran:?}");
    assert_eq!(depth("lines", "ready"), 4);

    server.run(&["enqueue", "later", "k", "--delay", "1h"]).ok();
    server.run(&["enqueue", "later", "k", "--run-at", "9998-01-01T00:00:00Z"]).ok();
    assert_eq!(depth("later", "delayed"), 2);
    server.run(&["enqueue", "ordered", "k", "--order-key", "u1"]).ok();
    server.run(&["enqueue", "ordered", "k", "--order-key", "u1"]).ok();
    assert_eq!(depth("ordered", "blocked"), 1);

    let first = server.json(&["enqueue", "once", "k", "1", "--dedup-key", "x"]);
    let again = server.json(&["enqueue", "once", "k", "1", "--dedup-key", "x"]);
    assert_eq!((&first["id"], again["status"].as_str()), (&again["id"], Some("duplicate")));
    let by_key = server.json(&["task", "get", "--queue", "once", "--dedup-key", "x"]);
    assert_eq!(by_key["id"], first["id"]);
    server.run(&["enqueue", "once", "k", "2", "--dedup-key", "x"]).refused(5, "dedup_mismatch");

    server.run(&["enqueue", "q", "k", "{"]).refused(2, "not JSON");
    server.run(&["enqueue", "bad name", "k"]).refused(2, "queue name");
    let broken = Ran::fed(&mut server.command(&["enqueue", "lines", "k", "-"]), "{}\n{\n");
    broken.refused(2, "stdin, line 2");
}

#[test]
fn failed_tasks_retry_die_and_come_back() {
    let server = Server::start();
    let id = server.enqueue(&["mail", "k"]);
    let token = || {
        server.json(&["claim", "mail", "--wait", "20s"])["claims"][0]["token"].as_str().unwrap().to_owned()
    };

    let failed = server.json(&["fail", &token(), "SMTP 451", "--retry-in", "10ms"]);
    assert_eq!((failed["state"].as_str(), failed["attempt"].as_u64()), (Some("retrying"), Some(1)));
    assert!(server.run(&["fail", &token(), "SMTP 550", "--fatal", "--detail", "much"]).ok().contains("dead"));
    let dead = server.json(&["dead", "list", "--queue", "mail"]);
    assert_eq!(
        (dead["tasks"][0]["id"].as_str(), &dead["tasks"][0]["error"]),
        (Some(id.as_str()), &"SMTP 550".into())
    );

    assert!(
        server
            .run(&["dead", "requeue", "--queue", "mail", "--dry-run"])
            .ok()
            .contains("would requeue 1 tasks")
    );
    assert!(server.run(&["dead", "requeue", "--queue", "mail"]).ok().contains("requeue: 1 of 1"));
    assert_eq!(server.state(&id), "ready");
    server.run(&["fail", &token(), "again", "--fatal"]).ok();
    server.run(&["dead", "discard", "--queue", "mail"]).refused(2, "--yes");
    server.run(&["dead", "discard", "--queue", "mail", "--yes"]).ok();
    assert!(server.json(&["dead", "list"])["tasks"].as_array().unwrap().is_empty());
    server.run(&["dead", "requeue"]).refused(2, "which tasks?");
}

#[test]
fn claims_are_put_back_and_discarded_by_hand() {
    let server = Server::start();
    let id = server.enqueue(&["mail", "k"]);
    let claim = |args: &[&str]| server.json(&[&["claim"], args].concat())["claims"][0].clone();
    let token = claim(&["--id", &id])["token"].as_str().unwrap().to_owned();
    server.run(&["claim", "--id", &id]).refused(5, "not_ready");
    server.run(&["claims", "put-back", &id]).ok();
    assert_eq!(server.state(&id), "ready");
    server.run(&["ack", &token]).refused(5, "not_claimed");

    claim(&["mail", "--worker", "w9"]);
    server.run(&["ack", &token]).refused(5, "stale_token");
    server.run(&["claims", "discard", "--worker", "w9", "--yes"]).ok();
    assert_eq!(server.state(&id), "cancelled");
    server.run(&["task", "requeue", &id]).ok();
    server.run(&["task", "cancel", &id, "--reason", "not wanted"]).ok();
    server.run(&["task", "cancel", &id]).refused(5, "already_ended");
    assert_eq!(
        server.json(&["task", "list", "--queue", "mail", "--state", "cancelled"])["tasks"][0]["id"],
        id
    );
}

#[test]
fn queues_are_set_paused_purged_and_deleted() {
    let server = Server::start();
    server.run(&["queue", "set", "mail", "--hold", "90s", "--attempts", "3", "--tasks-max", "none"]).ok();
    server.run(&["queue", "set", "mail", "--recovery", "manual"]).ok();
    let policy = server.json(&["queue", "show", "mail"])["policy"].clone();
    assert_eq!((&policy["hold_ms"], &policy["retry"]["attempts"]), (&90_000.into(), &3.into()));
    assert_eq!(policy["recovery"], "manual");
    server.run(&["queue", "set", "mail"]).refused(2, "nothing to set");

    server.run(&["enqueue", "mail", "k", "--count", "3"]).ok();
    server.run(&["queue", "pause", "mail"]).ok();
    server.run(&["claim", "mail"]).refused(3, "nothing is ready");
    server.run(&["queue", "resume", "mail"]).ok();
    server.run(&["queue", "delete", "mail", "--yes"]).refused(5, "");
    assert!(server.run(&["queue", "purge", "mail", "--dry-run"]).ok().contains("3 tasks"));
    server.run(&["queue", "purge", "mail"]).refused(2, "--yes");
    server.run(&["queue", "purge", "mail", "--yes"]).ok();
    until("the purge is worked off", || server.json(&["queue", "show", "mail"])["depth"]["ready"] == 0);
    server.run(&["queue", "delete", "mail", "--yes"]).ok();
    server.run(&["queue", "show", "mail"]).refused(3, "mail");
}

#[test]
fn answers_are_tables_json_lines_or_csv() {
    let server = Server::start();
    server.run(&["enqueue", "a", "k", "--count", "2"]).ok();
    let table = server.run(&["queue", "list"]);
    assert!(table.ok().starts_with(" QUEUE") && !table.ok().contains('\u{1b}'), "{table:?}");
    let lines = server.run(&["task", "list", "-o", "jsonl"]);
    assert_eq!(lines.ok().lines().count(), 2);
    let csv = server.run(&["task", "list", "--limit", "1", "-o", "csv"]);
    assert!(csv.ok().starts_with("id,queue,kind,state") && csv.ok().lines().count() == 2, "{csv:?}");
    assert_eq!(server.run(&["queue", "list", "-o", "xml"]).code, 2);
}

#[test]
fn exit_codes_tell_what_went_wrong() {
    let server = Server::start();
    server.run(&["task", "get", "01994c2e-8f00-7001-8000-000000000000"]).refused(3, "");
    server.run(&["task", "get", "nonsense"]).refused(2, "task id");
    server.run(&["queue", "show", "nowhere"]).refused(3, "nowhere");
    server.run(&["worker", "drain", "nobody"]).refused(3, "see windlass worker list");
    server.run(&["worker", "show", "nobody"]).refused(3, "nobody");
    assert_eq!(server.run(&["enqueue", "q", "k", "--priority", "10"]).code, 2);
    assert_eq!(server.run(&["enqueue", "q", "k", "--delay", "5"]).code, 2);
    assert_eq!(server.run(&["frobnicate"]).code, 2);

    let alone = |args: &[&str]| Ran::of(windlass().args(args));
    alone(&["queue", "list", "--server", "http://127.0.0.1:1"]).refused(1, "is a server running there?");
    alone(&["queue", "list", "--server", "https://example.com"]).refused(2, "plain http");
    // The next server is tried when one is down.
    alone(&["queue", "list", "--server", &format!("http://127.0.0.1:1,{}", server.url)]).ok();
    let from_env = Ran::of(windlass().args(["queue", "list"]).env("WINDLASS_SERVER", &server.url));
    from_env.ok();
}

#[test]
fn workers_are_seen_and_told_to_go() {
    let server = Server::start();
    let mut command =
        server.command(&["work", "--queue", "mail", "--exec", "cat", "--name", "host-1:7", "--slots", "3"]);
    let mut worker = process::Process(command.spawn().unwrap());
    let shown = || server.json(&["worker", "list"])["workers"][0].clone();
    until("the worker is registered", || shown()["id"] == "host-1:7");
    assert_eq!((&shown()["slots"], &shown()["state"]), (&3.into(), &"running".into()));
    assert!(server.run(&["worker", "show", "host-1:7"]).ok().contains("host-1:7"));
    server.run(&["worker", "drain", "host-1:7"]).ok();
    assert_eq!(worker.ended(), 0);

    let mut command = server.command(&["work", "--queue", "mail", "--exec", "sleep 60", "--name", "w2"]);
    let mut worker = process::Process(command.spawn().unwrap());
    let id = server.enqueue(&["mail", "k"]);
    until("the task runs", || server.state(&id) == "claimed");
    server.run(&["worker", "stop", "w2"]).ok();
    assert_eq!(worker.ended(), 0);
    let task = server.json(&["task", "get", &id]);
    assert_eq!((task["state"].as_str(), task["attempt"].as_u64()), (Some("ready"), Some(0)));

    server.json(&["claim", "mail", "--worker", "w3"]);
    server.run(&["worker", "remove", "w3"]).refused(2, "--yes");
}

#[test]
fn completions_are_made_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = Ran::of(windlass().args(["completions", shell]));
        assert!(ran.ok().contains("put-back"), "{shell}");
    }
}

impl Ran {
    #[track_caller]
    fn refused_with(&self, code: i32) {
        assert_eq!(self.code, code, "{self:?}");
    }
}
