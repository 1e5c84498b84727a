//! The command: what it prints, and its exit codes.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const RUN: &str = r#"{"run":{"version":1,"name":"a run","calls":["enqueue","requeue"]}}"#;
const TASK: &str = "01994c2e-8f00-7001-8000-000000000001";

fn enqueued() -> String {
    format!(
        r#"{{"call":{{"client":"p1","start_us":1,"end_us":5,"outcome":"ok","index":"1:7","do":{{"enqueue":{{"queue":"q","payload":"a","task":"{TASK}"}}}}}}}}"#
    )
}

fn not_found() -> String {
    format!(
        r#"{{"call":{{"client":"c1","start_us":10,"end_us":20,"outcome":{{"rejected":"not_found"}},"do":{{"get":{{"task":"{TASK}"}}}}}}}}"#
    )
}

fn write(dir: &Path, name: &str, lines: &[&str]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, lines.join("\n")).unwrap();
    path
}

fn check(files: &[&Path]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_sim")).arg("check").args(files).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn a_history_that_keeps_every_promise_is_0() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "good", &[RUN, &enqueued()]);
    let (code, out, _) = check(&[&file]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("a run: held, 1 calls on 1 tasks"), "{out}");
    // One run is too few to insist on it.
    assert!(out.contains("coverage: no requeue succeeded"), "{out}");
}

#[test]
fn a_broken_promise_is_1_and_says_which() {
    let dir = tempfile::tempdir().unwrap();
    let good = write(dir.path(), "good", &[RUN, &enqueued()]);
    let bad = write(dir.path(), "bad", &[RUN, &enqueued(), &not_found()]);
    let (code, out, _) = check(&[&bad, &good]);
    assert_eq!(code, 1, "{out}");
    let told =
        format!("nothing is lost: task {TASK}: get by c1 (line 3, 0.000010 s to 0.000020 s) did not find it");
    assert!(out.contains("BROKEN") && out.contains(&told) && out.contains("held"), "{out}");
}

#[test]
fn what_cannot_be_read_is_2_and_names_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let bad = write(dir.path(), "bad", &[RUN, &enqueued(), &not_found()]);
    let torn = write(dir.path(), "torn", &[RUN, &enqueued()[..40]]);
    for files in [vec![torn.as_path()], vec![torn.as_path(), bad.as_path()]] {
        let (code, _, err) = check(&files);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains("torn: line 2:"), "{err}");
    }
    let (code, _, err) = check(&[&dir.path().join("nowhere")]);
    assert_eq!(code, 2, "{err}");
    assert_eq!(check(&[]).0, 2);
}

#[test]
fn a_hundred_runs_without_a_call_that_was_meant_are_invalid() {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> =
        (0..100).map(|n| write(dir.path(), &n.to_string(), &[RUN, &enqueued()])).collect();
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    assert_eq!(check(&files[1..]).0, 0);
    let (code, out, _) = check(&files);
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("these runs prove too little"), "{out}");
}
