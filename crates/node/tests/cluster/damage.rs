//! A record that is damaged on all copies that can be asked, while one is away.

use std::time::Instant;

use bytes::Bytes;
use model::{KindName, Millis, QueueName};
use node::call::{Freshness, TaskFilter, TaskSpec};
use node::{Disk, MemDisk, Node};

use crate::support::{PATIENCE, World};

const TRIO: [u64; 3] = [1, 2, 3];
const ROTS: &str = "the one that rots";

/// Flips a bit in the middle of every copy of `text` in the checkpoints.
fn flip(disk: &MemDisk, text: &str) {
    let mut flipped = 0;
    for path in disk.list("shards".as_ref()).unwrap() {
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

/// The kinds of all tasks, as a node lists them, once there are two.
async fn kinds(node: &Node) -> Vec<String> {
    let since = Instant::now();
    loop {
        let listed = node.list(TaskFilter::default(), None, 10, Freshness::Stale).await.unwrap().tasks;
        if listed.len() == 2 {
            let mut kinds: Vec<String> = listed.into_iter().map(|task| task.envelope.kind).collect();
            kinds.sort();
            return kinds;
        }
        assert!(since.elapsed() < PATIENCE, "{} tasks", listed.len());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_shows_a_task_that_cannot_be_read_now_and_all_others() {
    let mut world = World::new();
    world.start(&TRIO, &TRIO).await;
    let task = |kind: &str, payload: &str| TaskSpec {
        payload: Bytes::from(format!("{payload:?}")),
        ..TaskSpec::new(QueueName::new("mail").unwrap(), KindName::new(kind).unwrap())
    };
    let tasks = vec![task("rotten", ROTS), task("welcome", "another")];
    let first = world.node(1).await;
    let answer = first.enqueue(tasks, false).await.unwrap();
    let rotten = answer.value[0].as_ref().unwrap().id;
    drop(first);
    for node in TRIO {
        assert_eq!(kinds(&world.node(node).await).await, ["rotten", "welcome"]);
    }
    for node in [1, 2] {
        world.stop(node).await;
        flip(&world.disk(node), ROTS);
        world.launch(node, &TRIO);
        world.settled().await;
    }
    world.stop(3).await;
    let first = world.node(1).await;
    assert_eq!(kinds(&first).await, ["(cannot be read now)", "welcome"]);
    let error = first.task(rotten, Millis(0), Freshness::Stale).await.unwrap_err();
    assert_eq!(error.code(), "unavailable", "{error}");
    assert!(first.why(rotten, Freshness::Stale).await.is_ok());
    world.launch(3, &TRIO);
    world.settled().await;
    let since = Instant::now();
    while kinds(&first).await != ["rotten", "welcome"] {
        assert!(since.elapsed() < PATIENCE, "not mended");
    }
}
