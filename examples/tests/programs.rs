//! Every program, run as a developer runs it: a process of its own, a server, and its words read.

#![allow(clippy::unwrap_used)]

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;
use windlass_testing::TestServer;

/// Slow machines may take this long; nothing should.
const LONG: Duration = Duration::from_secs(60);

/// The lines of a program that ended well.
async fn lines_of(command: &mut Command) -> Vec<String> {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(LONG, output).await.expect("the program ends within a minute").unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Runs a program against a server of its own.
async fn run(program: &str) -> Vec<String> {
    let server = TestServer::start().await.unwrap();
    let lines = lines_of(Command::new(program).args(["--server", &server.url()])).await;
    server.stop().await.unwrap();
    lines
}

/// What follows this word at the beginning of lines.
fn said_of<'a>(lines: &'a [String], who: &str) -> Vec<&'a str> {
    lines.iter().filter_map(|line| line.strip_prefix(who)?.strip_prefix(": ")).collect()
}

#[tokio::test]
async fn hello_gets_its_answer_from_the_server_that_the_environment_names() {
    let server = TestServer::start().await.unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hello"));
    let lines = lines_of(command.env("WINDLASS_SERVER", server.url())).await;
    assert!(lines[0].starts_with("enqueued "), "{lines:?}");
    assert_eq!(lines[1..], ["hello, Ada"]);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn email_is_retried_dies_and_is_requeued() {
    let lines = run(env!("CARGO_BIN_EXE_email")).await;
    assert_eq!(
        said_of(&lines, "ada@example.com"),
        ["attempt 1 fails: 451 greylisted", "attempt 2 fails: 451 greylisted", "attempt 3 is sent", "done"]
    );
    assert_eq!(
        said_of(&lines, "bob@example.com"),
        [
            "attempt 1 fails: 421 service not available",
            "attempt 2 fails: 421 service not available",
            "attempt 3 fails: 421 service not available",
            "dead of \"421 service not available\"",
            "requeued, now ready",
            "attempt 1 is sent",
            "done",
        ]
    );
    assert_eq!(
        said_of(&lines, "nobody@example.com"),
        [
            "attempt 1 fails: 550 no such mailbox",
            "dead of \"550 no such mailbox\"",
            "discarded, now cancelled"
        ]
    );
}

#[tokio::test]
async fn the_payment_of_a_stale_worker_is_refused_by_the_table() {
    let lines = run(env!("CARGO_BIN_EXE_payment")).await;
    let fence_of = |worker: &str| -> u64 {
        let claimed = said_of(&lines, worker)[0].strip_prefix("claimed order-17 with fence ");
        claimed.unwrap_or_else(|| panic!("{lines:?}")).parse().unwrap()
    };
    let (stale, fence) = (fence_of("worker-1"), fence_of("worker-2"));
    assert!(stale < fence, "{lines:?}");
    let refused = format!("refused, fence {stale} is older than {fence}");
    assert_eq!(said_of(&lines, "worker-1")[1..], ["stalls", "wakes up", &refused]);
    assert_eq!(said_of(&lines, "worker-2")[1..], [format!("paid order-17 with fence {fence}")]);
    assert_eq!(said_of(&lines, "task"), ["done, paid by worker-2"]);
    let row = format!("order-17, 4200 cents, by worker-2, fence {fence}");
    assert_eq!(said_of(&lines, "table"), [row]);
}

#[tokio::test]
async fn the_order_of_a_user_is_kept_over_a_retry() {
    let lines = run(env!("CARGO_BIN_EXE_order")).await;
    let ada = ["create fails and is tried again", "create", "rename", "delete"];
    assert_eq!(said_of(&lines, "ada"), ada, "{lines:?}");
    assert_eq!(said_of(&lines, "bob"), ["create", "rename", "delete"], "{lines:?}");
    assert_eq!(lines.last().map(String::as_str), Some("all 6 are done"));
}

#[tokio::test]
async fn progress_is_seen_while_it_is_made() {
    // How often a run is looked at depends on the machine: one that is looked at in time is enough.
    for _ in 0..5 {
        let lines = run(env!("CARGO_BIN_EXE_progress")).await;
        assert_eq!(lines.last().map(String::as_str), Some("78498 primes below 1000000"));
        let percent = |line: &String| line.split_once(" % ")?.0.parse::<u32>().ok();
        let seen: Vec<u32> = lines.iter().filter_map(percent).collect();
        assert!(seen.is_sorted() && seen.iter().all(|percent| (1..=100).contains(percent)), "{lines:?}");
        if !seen.is_empty() {
            return;
        }
    }
    panic!("five runs, and none of them showed how far it was");
}
