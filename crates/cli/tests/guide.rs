//! The guide is true: on every page each block of commands is run against a server of its own, in order, and what a
//! page says it prints must be what it prints. Rust is compiled and run by the crate `examples`; JSON and TOML are read.
//!
//! In a block of `sh`, lines that begin with `# ` after a command are its output, where `…` stands for anything; three
//! digits at the beginning are the status of the last `curl`. Statuses from 400 on must be told that way.

#![allow(clippy::unwrap_used)]

mod process;

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use process::{Process, Server, windlass};

macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        const PAGES: &[&str] = &[$($page),*];

        $(
            #[test]
            fn $name() {
                check($page);
            }
        )*
    };
}

pages! {
    the_readme_is_true: "README.md",
    the_index_is_true: "docs/guide/README.md",
    first_task_is_true: "docs/guide/first-task.md",
    retries_is_true: "docs/guide/retries.md",
    ordering_is_true: "docs/guide/ordering.md",
    idempotency_is_true: "docs/guide/idempotency.md",
    long_tasks_is_true: "docs/guide/long-tasks.md",
    shutdown_is_true: "docs/guide/shutdown.md",
    testing_is_true: "docs/guide/testing.md",
    work_is_true: "docs/guide/work.md",
    from_a_redis_list_is_true: "docs/guide/from-a-redis-list.md",
    http_is_true: "docs/guide/http.md",
    grpc_is_true: "docs/guide/grpc.md",
}

#[test]
fn no_page_of_the_guide_is_left_out() {
    let index = std::fs::read_to_string(root().join("docs/guide/README.md")).unwrap();
    for entry in std::fs::read_dir(root().join("docs/guide")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let page = format!("docs/guide/{name}");
        assert!(PAGES.contains(&page.as_str()), "{page} is not tested: add it to `pages!`");
        let is_listed = name == "README.md" || index.contains(&format!("({name})"));
        assert!(is_listed, "{page} is not in the index, docs/guide/README.md");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn check(page: &str) {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    check_links(page, &text);
    let mut steps = Vec::new();
    for block in blocks(page, &text) {
        let wrong = |why: &str| -> ! { panic!("{page}, line {}: {why}\n{}", block.line, block.text) };
        match &*block.language {
            "sh" => steps.extend(steps_of(&block)),
            "text" => {}
            "json" => drop(
                serde_json::from_str::<serde_json::Value>(&block.text)
                    .unwrap_or_else(|error| wrong(&error.to_string())),
            ),
            "toml" => drop(
                toml::from_str::<toml::Table>(&block.text).unwrap_or_else(|error| wrong(&error.to_string())),
            ),
            "rust" | "rust,no_run" => {
                let examples = std::fs::read_to_string(root().join("examples/src/lib.rs")).unwrap();
                let included = format!("include_str!(\"../../{page}\")");
                assert!(examples.contains(&included), "{page} has Rust: add it to examples/src/lib.rs");
            }
            other => wrong(&format!("nobody tests {other:?}")),
        }
    }
    if !steps.is_empty() {
        run(page, &steps);
    }
}

/// Every file that a page links to is there.
fn check_links(page: &str, text: &str) {
    for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
        let is_file = !link.is_empty() && !link.contains("://");
        let path = root().join(page).parent().unwrap().join(link);
        assert!(!is_file || path.exists(), "{page} links to {link}, which is not there");
    }
}

struct Block {
    /// Of its first line.
    line: usize,
    language: String,
    text: String,
}

fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (n, line) in text.lines().enumerate() {
        let fence = line.strip_prefix("```");
        assert!(fence.is_some() || !line.trim_start().starts_with("```"), "{page}, line {}: indented", n + 1);
        open = match (open, fence) {
            (None, Some(language)) => {
                Some(Block { line: n + 2, language: language.to_owned(), text: String::new() })
            }
            (None, None) => None,
            (Some(block), Some(_)) => {
                blocks.push(block);
                None
            }
            (Some(mut block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
                Some(block)
            }
        };
    }
    assert!(open.is_none(), "{page}: the last block has no end");
    blocks
}

/// Commands, and what they print.
#[derive(Default)]
struct Step {
    line: usize,
    commands: String,
    expected: Vec<String>,
}

fn steps_of(block: &Block) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (n, line) in block.text.lines().enumerate() {
        match (line.strip_prefix("# "), steps.last_mut()) {
            (Some(expected), Some(step)) => step.expected.push(expected.to_owned()),
            (None, Some(step)) if step.expected.is_empty() => {
                step.commands.push('\n');
                step.commands.push_str(line);
            }
            _ => {
                steps.push(Step { line: block.line + n, commands: line.to_owned(), ..Step::default() });
            }
        }
    }
    steps
}

/// Runs what a page says, in one shell and one directory, and compares.
fn run(page: &str, steps: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = windlass();
    command.args(["dev", "--listen", "127.0.0.1:0", "--shards", "2", "--disk-reserve-bytes", "1MiB"]);
    command.args(["--faktory", "off"]).current_dir(dir.path()).env("RUST_LOG", "error");
    let server = Server::spawn(command, dir, "address  ");
    let dir = server.dir.path();
    let address = server.url.trim_start_matches("http://");

    let mut script = "set -euo pipefail\n".to_owned();
    for (n, step) in steps.iter().enumerate() {
        let commands = step.commands.replace("127.0.0.1:7420", address).replace("localhost:7420", address);
        script.push_str(&format!("export STEP={n}\n{{\n{commands}\n}} > $SEEN/{n}.out 2> $SEEN/{n}.err\n"));
    }
    let (bin, seen, here) = (dir.join("bin"), dir.join("seen"), dir.join("here"));
    for path in [&bin, &seen, &here] {
        std::fs::create_dir(path).unwrap();
    }
    std::fs::write(dir.join("script"), script).unwrap();
    symlink(env!("CARGO_BIN_EXE_windlass"), bin.join("windlass")).unwrap();
    std::fs::write(bin.join("curl"), CURL).unwrap();
    std::fs::set_permissions(bin.join("curl"), std::fs::Permissions::from_mode(0o755)).unwrap();

    let mut command = Command::new("bash");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WINDLASS_")) {
        command.env_remove(name);
    }
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", bin.display())).env("REAL_PATH", path);
    command.env("SEEN", &seen).env("WINDLASS_SERVER", &server.url);
    command.arg(dir.join("script")).current_dir(&here);
    command.stdin(Stdio::null()).process_group(0);
    let mut shell = Group(Process(command.spawn().unwrap()));
    let code = shell.0.ended();

    for (n, step) in steps.iter().enumerate() {
        let read = |ending: &str| std::fs::read_to_string(seen.join(format!("{n}.{ending}")));
        let Ok(out) = read("out") else { panic!("{page}, line {}: not reached", step.line) };
        let told = format!(
            "{page}, line {}:\n{}\nprinted\n{out}{}",
            step.line,
            step.commands,
            read("err").unwrap_or_default()
        );
        let is_last = !seen.join(format!("{}.out", n + 1)).exists();
        assert!(code == 0 || !is_last, "exit code {code}: {told}");
        compare(step, &out, &read("status").unwrap_or_default(), &told);
    }
}

/// What a step printed, and how its calls were answered, against what the page says.
fn compare(step: &Step, out: &str, statuses: &str, told: &str) {
    let mut statuses: Vec<&str> = statuses.lines().collect();
    let mut lines = out.lines();
    for expected in &step.expected {
        let status = expected.split(' ').next().filter(|word| word.len() == 3 && word.parse::<u16>().is_ok());
        if let Some(status) = status {
            assert_eq!(statuses.pop(), Some(status), "the status: {told}");
        }
        let pattern = expected[status.map_or(0, str::len)..].trim();
        assert!(pattern.is_empty() || lines.any(|line| fits(line.trim(), pattern)), "no {pattern:?}: {told}");
    }
    let untold = statuses.iter().find(|status| ***status >= *"400");
    assert!(untold.is_none(), "a status that the page does not tell: {untold:?}, {told}");
}

/// Whether a line is so, where `…` stands for anything.
fn fits(line: &str, pattern: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('…') else { return line == pattern };
    let Some(line) = line.strip_prefix(before) else { return false };
    line.char_indices().map(|(at, _)| at).chain([line.len()]).any(|at| fits(&line[at..], rest))
}

/// A shell and all that it started in the background.
struct Group(Process);

impl Drop for Group {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    }
}

/// The real curl, with a line's end after each answer and its status written down.
const CURL: &str = r#"#!/usr/bin/env bash
PATH=$REAL_PATH
head=$(mktemp "$SEEN/head.XXXXXX")
curl --dump-header "$head" "$@"
code=$?
echo
sed -n 's|^HTTP/[0-9.]* \([0-9]*\).*|\1|p' "$head" | tail -n 1 >> "$SEEN/$STEP.status"
exit $code
"#;

#[test]
fn a_pattern_fits_whole_lines_and_its_dots_stand_for_anything() {
    for (line, pattern, expected) in [
        ("abc", "abc", true),
        ("abc", "ab", false),
        ("abc", "a…", true),
        ("abc", "…c", true),
        ("abc", "a…d", false),
        ("{\"id\":\"ä1\",\"state\":\"done\"}", "{\"id\":\"…\",\"state\":\"done\"}", true),
        ("", "…", true),
    ] {
        assert_eq!(fits(line, pattern), expected, "{line} {pattern}");
    }
}
