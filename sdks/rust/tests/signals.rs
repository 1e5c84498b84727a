//! Signals, which are the whole process's: alone in this one.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::timeout;
use windlass::{Context, State, Task, TaskError, Worker, secs};
use windlass_testing::TestServer;

#[derive(Serialize, Deserialize)]
struct Long(u32);

impl Task for Long {
    const KIND: &'static str = "long";
    const QUEUE: &'static str = "long";
    type Output = u32;
}

#[derive(Clone, Default)]
struct Stage {
    running: Arc<AtomicU32>,
    go_on: Arc<Notify>,
}

async fn long(task: Long, cx: Context, State(stage): State<Stage>) -> Result<u32, TaskError> {
    stage.running.fetch_add(1, Ordering::SeqCst);
    stage.go_on.notified().await;
    Ok(task.0 + cx.attempt())
}

async fn all_run(stage: &Stage, count: u32) {
    let until = Instant::now() + secs(20);
    while stage.running.load(Ordering::SeqCst) < count {
        assert!(Instant::now() < until, "not all run");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_first_signal_lets_32_tasks_finish_and_the_second_gives_them_back() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    let stage = Stage::default();
    let work = || {
        let worker = Worker::new(client.clone()).slots(32).handle(long).state(stage.clone());
        tokio::spawn(worker.run_until_signal())
    };
    let mut handles = Vec::new();
    for n in 0..32 {
        handles.push(client.enqueue(Long(n)).await.unwrap());
    }

    let working = work();
    all_run(&stage, 32).await;
    let began = Instant::now();
    kill_process(getpid(), Signal::TERM).unwrap();
    tokio::time::sleep(secs(3)).await;
    assert!(!working.is_finished(), "it waits for what runs");
    kill_process(getpid(), Signal::INT).unwrap();
    timeout(secs(5), working).await.unwrap().unwrap().unwrap();
    assert!(began.elapsed() < secs(8));

    let working = work();
    all_run(&stage, 64).await;
    kill_process(getpid(), Signal::TERM).unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    stage.go_on.notify_waiters();
    timeout(secs(5), working).await.unwrap().unwrap().unwrap();
    for (n, handle) in handles.iter().enumerate() {
        let attempt = timeout(secs(5), handle.result()).await.unwrap().unwrap() - n as u32;
        assert_eq!(attempt, 1, "given back without an attempt");
    }
    server.stop().await.unwrap();
}
