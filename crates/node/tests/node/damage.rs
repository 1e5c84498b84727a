//! A lone node whose disk gives back a record changed: nobody else has it, so the task ends, visibly.

use std::path::PathBuf;

use bytes::Bytes;
use model::{Millis, StateKind};
use node::call::{Freshness, TaskFilter, TaskSpec};
use node::{Disk, MemDisk};

use crate::support::*;

/// Flips a bit in the middle of every copy of `text` in the checkpoints.
fn flip(disk: &MemDisk, text: &str) {
    let paths: Vec<PathBuf> = disk.list("shards".as_ref()).unwrap();
    let mut flipped = 0;
    for path in paths {
        let bytes = disk.read(&path).unwrap();
        for (at, window) in bytes.windows(text.len()).enumerate() {
            if window == text.as_bytes() {
                disk.flip(&path, (at + text.len() / 2) as u64, 1);
                flipped += 1;
            }
        }
    }
    assert!(flipped > 0, "{text} is not on the disk");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_record_is_damaged_is_shown_ends_dead_and_lets_the_next_go_on() {
    let disk = MemDisk::new();
    let node = start(&disk).await;
    let ordered = |payload: &'static str| TaskSpec {
        payload: Bytes::from_static(payload.as_bytes()),
        order_key: Some("user-1".to_owned()),
        ..task("mail")
    };
    let damaged = enqueue(&node, ordered(r#""the one that rots""#)).await;
    let next = enqueue(&node, ordered(r#""the one behind it""#)).await;
    node.stop().await.unwrap();
    drop(node);
    flip(&disk, "the one that rots");
    let node = start(&disk).await;
    let filter = || TaskFilter { queue: Some(queue("mail")), ..TaskFilter::default() };
    let listed = node.list(filter(), None, 10, Freshness::Linearizable).await.unwrap().tasks;
    let kinds: Vec<_> = listed.iter().map(|task| (task.view.id, task.envelope.kind.as_str())).collect();
    assert_eq!(kinds.len(), 2, "{kinds:?}");
    assert!(kinds.contains(&(damaged, "(damaged record)")), "{kinds:?}");
    assert!(kinds.contains(&(next, "welcome")), "{kinds:?}");
    let detail = node.task(damaged, Millis(0), Freshness::Linearizable).await.unwrap();
    assert!(detail.detail.unwrap().starts_with("damaged_record"));
    // The first claim meets it and gets nothing; the one behind it comes.
    let claimed = eventually_claim(&node, "mail").await;
    assert_eq!(claimed.id, next);
    assert_eq!(&claimed.envelope.payload[..], br#""the one behind it""#);
    let detail = node.task(damaged, Millis(0), Freshness::Linearizable).await.unwrap();
    assert_eq!(detail.view.state, StateKind::Dead);
    let why = detail.history.iter().find_map(|line| match &line.event {
        model::Event::Failed { failure, .. } => Some(failure.error.as_str()),
        _ => None,
    });
    assert!(why.unwrap().starts_with("damaged_record"), "{why:?}");
    node.discard(damaged).await.unwrap();
    assert_eq!(depth(&node, "mail", StateKind::Dead).await, 0);
    assert_eq!(ack(&node, &claimed).await.unwrap().state, StateKind::Done);
    node.stop().await.unwrap();
}

async fn eventually_claim(node: &node::Node, name: &str) -> node::call::Claim {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        if let Some(claim) = claim(node, name, 1).await.pop() {
            return claim;
        }
        assert!(std::time::Instant::now() < deadline, "nothing to claim");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
