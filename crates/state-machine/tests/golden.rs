//! Stories as scripts: commands, then `---`, then the exact trace, then an empty line.
//!
//! `WINDLASS_BLESS=1 cargo test -p state-machine --test golden` writes the traces anew: read the diff.
//! Every script also runs through the naive model and a twin, as in `against_naive.rs`. The words of a
//! script are in `script/command.rs`, the lines of a trace in `script/trace.rs`.

// Scripts are files, and a flag rewrites them.
#![allow(clippy::disallowed_methods)]

mod naive;
mod ops;
mod pair;
mod script;

use std::fs;
use std::path::{Path, PathBuf};

use script::Script;

/// Each of these directories holds at least one script.
const VERBS: [&str; 18] = [
    "ack",
    "cancel",
    "claim",
    "claim-by-id",
    "deliver",
    "discard",
    "drop-queue",
    "end-session",
    "enqueue",
    "extend",
    "fail",
    "progress",
    "pulse",
    "purge",
    "put-back",
    "release",
    "requeue",
    "set-queue",
];

/// Stories that must be told, by name.
const STORIES: [&str; 7] = [
    "worker-crashes-mid-task",
    "process-crashes-with-enqueues-in-flight",
    "duplicate-enqueue-after-a-lost-reply",
    "stale-worker-acks-after-reassignment",
    "in-progress-put-back-or-discarded-by-hand",
    "circular-queue",
    "retry-storm-with-backoff-and-dead-letters",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

fn scripts_under(dir: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("cannot list {}: {error}", dir.display()));
    for entry in entries {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            scripts_under(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "txt") {
            found.push(path);
        }
    }
    found.sort();
}

#[test]
fn every_script_leaves_the_trace_that_it_says() {
    let bless = std::env::var_os("WINDLASS_BLESS").is_some();
    let mut paths = Vec::new();
    scripts_under(&root(), &mut paths);
    let mut wrong = Vec::new();
    for path in &paths {
        let text = fs::read_to_string(path).expect("a script can be read");
        let name = path.strip_prefix(root()).expect("it lies there").display().to_string();
        let rewritten = match std::panic::catch_unwind(|| Script::new().run(&text)) {
            Ok(rewritten) => rewritten,
            Err(_) => {
                wrong.push(format!("{name}: stopped, see above"));
                continue;
            }
        };
        if rewritten == text {
            continue;
        }
        if bless {
            fs::write(path, rewritten).expect("a script can be written");
        } else {
            wrong.push(format!("{name}:\n{}", first_difference(&text, &rewritten)));
        }
    }
    assert!(!paths.is_empty(), "there are no scripts");
    assert!(wrong.is_empty(), "{} of {} scripts:\n{}", wrong.len(), paths.len(), wrong.join("\n\n"));
}

fn first_difference(written: &str, happened: &str) -> String {
    let (mut written, mut happened) = (written.lines(), happened.lines());
    let mut n = 0;
    loop {
        n += 1;
        match (written.next(), happened.next()) {
            (Some(said), Some(was)) if said == was => {}
            (None, None) => return "they differ in line ends".to_owned(),
            (said, was) => {
                let line = |line: Option<&str>| line.unwrap_or("(nothing)").to_owned();
                return format!(
                    "line {n}\n  the script says: {}\n  it happened:     {}",
                    line(said),
                    line(was)
                );
            }
        }
    }
}

#[test]
fn every_verb_has_a_script() {
    for verb in VERBS {
        let mut found = Vec::new();
        scripts_under(&root().join(verb), &mut found);
        assert!(!found.is_empty(), "scripts/{verb} is empty");
    }
}

#[test]
fn every_story_is_told() {
    for story in STORIES {
        let path = root().join("stories").join(story).with_extension("txt");
        assert!(path.exists(), "{} is missing", path.display());
    }
}
