//! A short trial with the real thing: three servers, a kill and a partition under load, every call judged.
//!
//! `make test-faults` has the long form. Needs root and the programs `windlass` and `sim` of the same build, which
//! `cargo test --workspace` makes; where something is missing it says so.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write as _;
use std::process::Command;

/// What the rig says by its exit code.
const HELD: i32 = 0;
const NOTHING_TRIED: i32 = 3;

fn rig(words: &str) -> (i32, String) {
    let dir = format!("{}/rig", env!("CARGO_TARGET_TMPDIR"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_rig"));
    let output = command.args(words.split(' ')).args(["--dir", &dir]).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_kill_and_a_partition_under_load_break_no_promise_and_leave_nothing_behind() {
    let (code, text) =
        rig("--fault kill,partition --rounds 2 --rate 200 --producers 6 --workers 4 --disk-mib 512");
    if code == NOTHING_TRIED {
        // Aloud, also when output is captured.
        let _ = writeln!(std::io::stderr(), "{text}");
        return;
    }
    assert_eq!(code, HELD, "{text}");
    let line =
        text.lines().find(|line| line.starts_with("kill+partition ")).unwrap_or_else(|| panic!("{text}"));
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers[0], 2, "rounds: {text}");
    assert!(numbers[1] > 100, "operations: {text}");
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let own = format!("{}/rig", env!("CARGO_TARGET_TMPDIR"));
    assert!(!mounts.contains(&own), "a disk is still mounted: {mounts}");
}

#[test]
fn what_is_not_understood_is_refused() {
    let (code, text) = rig("--fault fire");
    assert_eq!((code, text.contains("\"fire\" is no fault")), (2, true), "{text}");
}
