//! Laws of the checker: what a queue that keeps every promise leaves behind is never called broken, however many
//! answers are lost; and a lie in it is found.

#![allow(clippy::unwrap_used)]

mod queue;
mod random;
mod spoil;
mod world;

use random::Random;
use sim::check::{Checker, Report};
use sim::history::{Line, Outcome, read};

/// Seeds of each test; `SIM_SEEDS` asks for more.
fn seeds(default: u64) -> u64 {
    std::env::var("SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn check(lines: &[Line]) -> Report {
    let mut checker = Checker::new();
    for (number, line) in (1..).zip(lines) {
        checker.take(number, line.clone()).unwrap();
    }
    checker.finish()
}

#[test]
fn a_true_history_is_never_called_broken() {
    let (mut calls, mut unknown) = (0, 0);
    for seed in 0..seeds(60) {
        let lines = world::history(seed);
        let report = check(&lines);
        assert!(report.held(), "seed {seed}: {report}");
        calls += report.calls;
        unknown += lines
            .iter()
            .filter(|line| matches!(line, Line::Call(call) if call.outcome == Outcome::Unknown))
            .count();
    }
    println!("{calls} calls, {unknown} without an answer");
    assert!(unknown > 100, "a test without lost answers shows nothing");
}

#[test]
fn the_order_of_the_lines_does_not_matter() {
    for seed in 0..5 {
        let mut lines = world::history(seed);
        let mut random = Random::new(seed);
        // Votes have their order; everything else has its times.
        let (votes, mut rest): (Vec<Line>, Vec<Line>) =
            lines.drain(..).partition(|line| matches!(line, Line::Vote(_)));
        for n in (1..rest.len()).rev() {
            rest.swap(n, random.below(n as u64 + 1) as usize);
        }
        rest.extend(votes);
        let report = check(&rest);
        assert!(report.held(), "seed {seed}: {report}");
    }
}

#[test]
fn a_history_reads_as_it_was_written() {
    let lines = world::history(3);
    let text: Vec<String> = lines.iter().map(Line::to_json).collect();
    let mut found = Vec::new();
    read(text.join("\n").as_bytes(), |_, line| {
        found.push(line);
        Ok(())
    })
    .unwrap();
    assert_eq!(found, lines);
}

#[test]
fn a_lie_in_a_true_history_is_found() {
    let seeds = seeds(30);
    let histories: Vec<Vec<Line>> = (0..seeds).map(world::history).collect();
    for (what, promise, tell) in spoil::LIES {
        let (mut told, mut found, mut named) = (0u64, 0u64, 0u64);
        for (seed, lines) in (0..).zip(&histories) {
            let mut lines = lines.clone();
            if !tell(&mut lines, &mut Random::new(seed ^ 0xabcd)) {
                continue;
            }
            told += 1;
            let report = check(&lines);
            found += u64::from(!report.held());
            named += u64::from(report.count(*promise) > 0);
        }
        println!("{what}: told {told} times, found {found}, as \"{promise}\" {named}");
        assert!(told * 4 >= seeds, "{what}: the histories have no place for it ({told} of {seeds})");
        assert!(found * 10 >= told * 8, "{what}: found {found} of {told}");
        assert!(named * 10 >= told * 5, "{what}: found as \"{promise}\" only {named} of {told}");
    }
}
