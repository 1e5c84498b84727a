//! The rules of the house that no compiler checks.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which crates of ours a crate may name. An arrow may skip a floor; none points up.
const ARROWS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("state-machine", &["model"]),
    ("wire", &["model"]),
    ("storage", &["model"]),
    ("replica", &["state-machine", "storage", "wire", "model"]),
    ("node", &["replica", "state-machine", "storage", "wire", "model"]),
    ("server", &["node", "wire", "storage", "model"]),
    ("cli", &["windlass", "server", "node", "state-machine", "wire", "storage", "model"]),
    // The history checker in it needs the model alone.
    ("sim", &["node", "wire", "model"]),
    ("windlass", &["wire"]),
    ("windlass-testing", &["windlass", "server", "node", "model"]),
    ("examples", &["windlass"]),
    ("conformance", &["windlass-testing", "windlass", "wire"]),
    // In the place of another's crate: no one of ours names it.
    ("base2histogram", &[]),
    // Not parts of the house: two attack it, one measures it. The rig knows windlass and the checker as programs alone.
    ("rig", &[]),
    ("fuzz", &["state-machine", "storage", "wire", "model"]),
    ("bench", &["windlass", "server", "node", "replica", "state-machine", "storage", "wire", "model"]),
];

/// The crates without clock, randomness, IO and async.
const PURE: &[&str] = &["model", "state-machine", "wire"];

/// What a pure crate has no use for.
const IMPURE: &[&str] = &[
    "tokio",
    "futures",
    "rand",
    "getrandom",
    "uuid",
    "hyper",
    "axum",
    "socket2",
    "rustix",
    "redb",
    "tracing",
    "parking_lot",
];

/// Crates that only one of ours may name, so that the others do not depend on how it is done.
const FENCED: &[(&str, &str)] =
    &[("openraft", "replica"), ("redb", "storage"), ("anyhow", "cli"), ("clap", "cli")];

const LINES_MAX: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// What cargo knows of our crates.
fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Each of our crates with the names of what it depends on, tests aside.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    packages()
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().unwrap();
            let dependencies = dependencies.iter().filter(|dependency| dependency["kind"] != "dev");
            (text(&package["name"]), dependencies.map(|dependency| text(&dependency["name"])).collect())
        })
        .collect()
}

/// Every file of the repository with one of these endings.
fn files(endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![root()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !matches!(name.as_str(), "target" | ".git" | "windlass-data" | "node_modules") {
                    dirs.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no file ends with {endings:?}: is the root right?");
    found
}

#[test]
fn the_crates_arrows_point_one_way() {
    let dependencies = dependencies();
    let ours: Vec<&String> = dependencies.keys().collect();
    for (name, uses) in &dependencies {
        let allowed = ARROWS.iter().find(|(krate, _)| krate == name).map(|(_, allowed)| *allowed);
        let allowed = allowed.unwrap_or_else(|| panic!("crate {name} has no arrows: add it to ARROWS"));
        for used in uses.iter().filter(|used| ours.contains(used)) {
            assert!(
                allowed.contains(&used.as_str()),
                "{name} must not depend on {used}: see ARCHITECTURE.md"
            );
        }
    }
}

#[test]
fn pure_crates_depend_on_nothing_impure() {
    for (name, uses) in dependencies().iter().filter(|(name, _)| PURE.contains(&name.as_str())) {
        for used in uses {
            assert!(!IMPURE.contains(&used.as_str()), "{name} is pure and must not depend on {used}");
        }
        let lints = root().join("crates").join(name).join("clippy.toml");
        let lints = std::fs::read_to_string(lints).unwrap();
        assert!(
            lints.contains("disallowed-methods") && lints.contains("disallowed-types"),
            "{name} has no purity lints"
        );
    }
}

#[test]
fn each_engine_is_known_to_one_crate_only() {
    for (name, uses) in &dependencies() {
        for (fenced, owner) in FENCED {
            let used = uses.iter().any(|used| used == fenced);
            assert!(
                !used || name == owner || name == "bench",
                "{name} must not depend on {fenced}: only {owner} may"
            );
        }
    }
}

#[test]
fn planted_bugs_are_built_by_the_simulators_own_feature_alone() {
    let mut has_been_seen = false;
    for package in &packages() {
        let name = package["name"].as_str().unwrap();
        for (feature, turns_on) in package["features"].as_object().unwrap() {
            let turns_on = turns_on.as_array().unwrap();
            let plants =
                feature == "mutants" || turns_on.iter().any(|on| on.as_str().unwrap().contains("mutants"));
            let expected: &[&str] = if name == "sim" { &["model/mutants"] } else { &[] };
            let is_ours = feature == "mutants" && matches!(name, "model" | "sim") && turns_on == expected;
            assert!(!plants || is_ours, "{name}: feature {feature} turns on {turns_on:?}");
            has_been_seen |= plants;
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let features = dependency["features"].as_array().unwrap();
            assert!(
                features.iter().all(|feature| feature != "mutants"),
                "{name} depends on {} with planted bugs",
                dependency["name"]
            );
        }
    }
    assert!(has_been_seen, "no crate has the feature: is its name still right?");
}

#[test]
fn no_rust_file_is_too_long_or_unfinished() {
    // Put together here, so that this file does not find itself.
    let unfinished = [["to", "do!("].concat(), ["unimple", "mented!("].concat(), ["#[ig", "nore"].concat()];
    for path in files(&[".rs"]) {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().count();
        assert!(
            lines <= LINES_MAX,
            "{} has {lines} lines: look for the second question in it",
            path.display()
        );
        for word in &unfinished {
            assert!(!text.contains(word.as_str()), "{} contains {word}", path.display());
        }
    }
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    let paths =
        [["/wo", "rk/"].concat(), ["/ro", "ot/"].concat(), ["/ho", "me/"].concat(), ["/Use", "rs/"].concat()];
    let endings = [
        ".rs", ".md", ".toml", ".yaml", ".yml", ".json", ".sh", ".py", ".proto", ".html", "Makefile", "run",
        ".example",
    ];
    for path in files(&endings) {
        let text = std::fs::read_to_string(&path).unwrap();
        for word in &paths {
            // Where a name stands before it, it is the middle of a path of ours.
            let mut found = text.match_indices(word.as_str());
            let of_machine = found.any(|(at, _)| !text[..at].ends_with(|c: char| c.is_alphanumeric()));
            assert!(!of_machine, "{} contains {word}", path.display());
        }
    }
}

#[test]
fn every_file_that_a_page_names_exists() {
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        // What stands between backticks is every second part.
        let names = text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| name.starts_with("crates/") || name.starts_with("docs/"));
        for name in names.filter(|name| !name.contains("NNNN")) {
            assert!(root().join(name).exists(), "{page} names {name}, which is not there");
        }
    }
}

#[test]
fn every_decision_says_what_was_given_up() {
    let decisions = std::fs::read_dir(root().join("docs/decisions")).unwrap();
    for path in decisions
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
    {
        let text = std::fs::read_to_string(&path).unwrap();
        for heading in ["## Context", "## Choice", "## What was given up"] {
            assert!(text.contains(heading), "{} has no {heading:?}", path.display());
        }
    }
}

#[test]
fn the_example_env_file_names_every_variable_and_no_other() {
    let source = std::fs::read_to_string(root().join("crates/cli/src/env.rs")).unwrap();
    let known = source.split("KNOWN: &[&str] = &[").nth(1).unwrap().split(']').next().unwrap();
    let known: Vec<&str> = known.split('"').filter(|part| part.starts_with("WINDLASS_")).collect();
    let example = std::fs::read_to_string(root().join(".env.example")).unwrap();
    let named: Vec<&str> = example
        .lines()
        .filter_map(|line| line.trim_start_matches('#').trim_start().split_once('='))
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("WINDLASS_"))
        .collect();
    assert_eq!(named, known);
}
