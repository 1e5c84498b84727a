//! `windlass bench` against a real server: what it counts is what was done.

#![allow(clippy::unwrap_used)]

mod process;

use process::Server;
use serde_json::Value;

/// A run on this server, as JSON.
#[track_caller]
fn bench(server: &Server, flags: &[&str]) -> Value {
    let args: Vec<&str> = ["bench"].iter().chain(flags).copied().collect();
    server.json(&args)
}

fn totals(server: &Server, queue: &str) -> (u64, u64) {
    let queue = server.json(&["queue", "show", queue]);
    (queue["totals"]["enqueued"].as_u64().unwrap(), queue["totals"]["done"].as_u64().unwrap())
}

#[test]
fn every_face_does_all_tasks_and_counts_as_the_server_does() {
    let server = Server::start();
    let mut done = 0;
    for (face, more) in [
        ("streams", &["--batch", "7"][..]),
        ("streams", &["--producers", "3", "--workers", "5", "--connections", "2"]),
        ("http", &["--batch", "1"]),
        ("http", &["--batch", "10", "--connections", "3"]),
        ("sdk", &[]),
        ("sdk", &["--batch", "4", "--workers", "2"]),
    ] {
        let flags = [&["--face", face, "--tasks", "200", "--outstanding", "8"], more].concat();
        let report = bench(&server, &flags);
        let result = &report["result"];
        for count in ["enqueued", "received", "acked"] {
            assert_eq!(result[count], 200, "{count} {report}");
        }
        assert_eq!(report["plan"]["face"], face);
        assert!(result["acked_per_s"].as_f64().unwrap() > 0.0, "{report}");
        for latency in ["enqueue", "delivery"] {
            assert_eq!(result["latency_ms"][latency]["count"], 200, "{latency} {report}");
        }
        done += 200;
        assert_eq!(totals(&server, "bench"), (done, done), "{face} {more:?}");
    }
}

#[test]
fn a_rate_is_kept_whatever_the_server_could_do() {
    let server = Server::start();
    for face in ["streams", "http"] {
        let flags = ["--face", face, "--rate", "100", "--duration", "2s", "--queue", face];
        let report = bench(&server, &flags);
        let result = &report["result"];
        // All that was due in the time, and nothing else. The time itself can only be longer, on a busy machine.
        assert_eq!(result["acked"], 200, "{report}");
        assert!(result["seconds"].as_f64().unwrap() > 1.9, "{report}");
        assert_eq!(result["latency_ms"]["ack"]["count"], 200, "{report}");
    }
}

#[test]
fn a_queue_is_filled_and_worked_off_in_two_runs_and_not_taken_for_empty() {
    let server = Server::start();
    let report = bench(&server, &["--workers", "0", "--tasks", "500", "--batch", "50"]);
    assert_eq!((&report["result"]["enqueued"], &report["result"]["acked"]), (&500.into(), &0.into()));
    server.run(&["bench", "--tasks", "10"]).refused(5, "has 500 tasks already");
    let report =
        bench(&server, &["--producers", "0", "--tasks", "300", "--batch", "10", "--outstanding", "3"]);
    assert!(report["result"]["acked"].as_u64().unwrap() >= 300, "{report}");
    let report = bench(&server, &["--purge", "--tasks", "10"]);
    assert_eq!(report["result"]["acked"], 10, "{report}");
}

#[test]
fn workers_that_find_fewer_tasks_than_asked_for_end_and_say_so() {
    let server = Server::start();
    bench(&server, &["--workers", "0", "--tasks", "3"]);
    server.run(&["bench", "--producers", "0", "--tasks", "5"]).refused(1, "only 3 of 5 tasks");
    assert_eq!(totals(&server, "bench"), (3, 3));
}

#[test]
fn a_batch_that_is_refused_is_counted_and_does_not_end_the_run() {
    let server = Server::start();
    // More than a queue takes unless told otherwise.
    let flags = ["--tasks", "4", "--batch", "2", "--bytes", "1100000", "-o", "json"];
    for face in ["streams", "http", "sdk"] {
        let ran = server.run(&[&["bench", "--face", face], &flags[..]].concat());
        assert_eq!(ran.code, 1, "{face} {ran:?}");
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        let refused: u64 =
            report["result"]["refused"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!((refused, &report["result"]["enqueued"]), (4, &0.into()), "{face} {report}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_sent() {
    let server = Server::start();
    for (flags, code, part) in [
        (&["--producers", "0", "--workers", "0"][..], 2, "nothing to do"),
        (&["--batch", "1000", "--outstanding", "11"], 2, "raise --workers"),
        (&["--batch", "4", "--bytes", "9000000"], 2, "lower --bytes or --batch"),
        (&["--face", "sdk", "--connections", "2"], 2, "is not for --face sdk"),
    ] {
        let args: Vec<&str> = ["bench"].iter().chain(flags).copied().collect();
        server.run(&args).refused(code, part);
    }
    for (flag, value, part) in [
        ("--rate", "0", "0.001 to 10000000"),
        ("--rate", "1e8", "0.001 to 10000000"),
        ("--bytes", "17", "18..=16777216"),
        ("--bytes", "16777217", "18..=16777216"),
        ("--batch", "0", "1..=1000"),
        ("--connections", "65537", "1..=65536"),
    ] {
        let ran = server.run(&["bench", flag, value]);
        assert_eq!(ran.code, 2, "{flag} {value} {ran:?}");
        assert!(ran.stderr.contains(part), "{flag} {value} {ran:?}");
    }
    assert!(server.json(&["queue", "list"])["queues"].as_array().unwrap().is_empty());
}
