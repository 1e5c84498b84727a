//! Histories of old runs open for ever: every line and every call of version 1.

#![allow(clippy::unwrap_used)]

use sim::check::Checker;
use sim::history::{Line, read};

const VERSION_1: &str = include_str!("fixtures/history-v1.jsonl");

#[test]
fn a_history_of_version_1_is_read_and_held() {
    let mut checker = Checker::new();
    let mut lines = Vec::new();
    read(VERSION_1.as_bytes(), |number, line| {
        lines.push(line.clone());
        checker.take(number, line)
    })
    .unwrap();
    let report = checker.finish();
    assert!(report.held(), "{report}");
    assert_eq!((lines.len(), report.calls, report.tasks), (VERSION_1.lines().count(), 25, 2));
    assert_eq!(report.coverage.missing(), Vec::<String>::new(), "the fixture has every call");
    // What is written anew means the same.
    let again: Vec<String> = lines.iter().map(Line::to_json).collect();
    let mut found = Vec::new();
    read(again.join("\n").as_bytes(), |_, line| {
        found.push(line);
        Ok(())
    })
    .unwrap();
    assert_eq!(found, lines);
}
