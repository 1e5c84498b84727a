//! The stories of `conformance/stories` against every face: HTTP, gRPC, the Rust SDK.
//!
//! Each story has a server of its own in this process, whose clock it moves. The format is told in
//! `conformance/README.md`; `story.rs` reads it, `run.rs` has the steps, `face.rs` what a face must be able to do.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

mod face;
mod grpc;
mod http;
mod proto;
mod run;
mod sdk;
mod story;
mod verbs;

use std::path::Path;

use face::Face;
use grpc::Grpc;
use http::Http;
use sdk::Sdk;
use story::Story;
use windlass_testing::TestServer;

/// The faces that a story may skip.
const FACES: [&str; 3] = [Http::NAME, Grpc::NAME, Sdk::NAME];
/// There are more, and none is lost without notice.
const STORIES_MIN: usize = 40;

fn stories() -> Vec<Story> {
    Story::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("stories"))
}

/// Tells all stories that this face can express, and says of all that were not so.
async fn tell_all<F: Face>(connect: impl AsyncFn(&TestServer) -> F) {
    let mut failures = Vec::new();
    let mut told = 0;
    for story in stories() {
        if let Some(reason) = story.skipped(F::NAME) {
            println!("{}: skipped by {}: {reason}", story.name, F::NAME);
            continue;
        }
        let server = TestServer::start().await.unwrap();
        let outcome = run::run(&story, connect(&server).await, &server).await;
        failures.extend(outcome.err());
        told += 1;
        server.stop().await.unwrap();
    }
    println!("{told} stories told over {}", F::NAME);
    assert!(failures.is_empty(), "{} of {told} stories failed:\n{}", failures.len(), failures.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_http_face_tells_every_story() {
    tell_all(async |server: &TestServer| Http::new(server.addr())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grpc_face_tells_every_story() {
    tell_all(async |server: &TestServer| Grpc::connect(server.url()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_sdk_tells_every_story() {
    tell_all(async |server: &TestServer| Sdk::new(server.client().await.unwrap())).await;
}

#[test]
fn every_story_can_be_told_by_some_face_and_skips_only_faces_that_are_there() {
    let stories = stories();
    assert!(stories.len() >= STORIES_MIN, "{} stories", stories.len());
    for story in stories {
        for (face, _) in &story.skips {
            assert!(FACES.contains(&face.as_str()), "{}: there is no face {face}", story.name);
        }
        assert!(FACES.iter().any(|face| story.skipped(face).is_none()), "{}: nobody tells it", story.name);
    }
}

#[tokio::test]
async fn a_story_that_is_not_so_fails_at_its_line() {
    let head = "# No such story.\nenqueue t {\"queue\":\"q\",\"kind\":\"k\"} => ready\nclaim w q => t\n";
    let wrong = [
        ("ack t@w => dead", "heard: done"),
        ("expect t {\"state\":\"claimed\"}\nack t@w => error stale_token", "heard: done"),
        ("enqueue u {\"queue\":\"q\",\"kind\":\"k\"} => ready\nclaim v q => none", "got [\"u\"]"),
        ("fail t@nobody => dead", "nobody made the claim"),
        ("newer t@w t@w", "after"),
        ("dance t", "no such verb"),
        ("expect t {\"wroker\":null}", "expect takes no field wroker"),
        ("expect-queue q {\"total\":null}", "expect-queue takes no field total"),
        ("extend t@w {\"hold\":1} => held", "extend takes no field hold"),
        ("progress t@w {\"percent\":1,\"text\":\"x\"} => held", "progress takes no field text"),
        ("release t@w {\"delay\":1} => ready", "release takes no field delay"),
        ("claim v q {\"wait_ms\":1} => none", "claim takes no field wait_ms"),
        ("cancel t {\"why\":\"x\"} => cancelled", "cancel takes no field why"),
        ("look t twice => claimed", "look takes 1 words, not 2"),
        ("ack t@w [1] => done", "ack takes an object"),
    ];
    for (end, why) in wrong {
        let story = Story::parse("wrong", &format!("{head}{end}")).unwrap();
        let server = TestServer::start().await.unwrap();
        let heard = run::run(&story, Http::new(server.addr()), &server).await.unwrap_err();
        let line = format!("line {}", head.lines().count() + end.lines().count());
        assert!(heard.contains(&line) && heard.contains(why), "{end}: {heard}");
        server.stop().await.unwrap();
    }
    for unreadable in ["enqueue t {\"queue\"", "skip http", "# nothing"] {
        assert!(Story::parse("unreadable", unreadable).is_err(), "{unreadable}");
    }
}
