//! Connections that break.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use windlass::{Cancelled, Client, Context, State, Task, TaskError, TaskState, Worker};
use windlass_testing::TestServer;

use crate::support::{Double, Proxy, end, history, soon, start, until, until_state};

/// A task that takes seconds on a slow line.
#[derive(Serialize, Deserialize)]
struct Large(String);

impl Task for Large {
    const KIND: &'static str = "large";
    const QUEUE: &'static str = "numbers";
    type Output = usize;
}

#[derive(Clone, Default)]
struct Stage {
    cancelled: Arc<AtomicU32>,
    go_on: Arc<Notify>,
}

/// Handlers that began and that ended.
type Counts = (Arc<AtomicU32>, Arc<AtomicU32>);

async fn patient(task: Double, cx: Context, State(stage): State<Stage>) -> Result<u64, TaskError> {
    tokio::select! {
        () = stage.go_on.notified() => Ok(task.0),
        why = cx.cancelled() => {
            assert_ne!(why, Cancelled::Asked);
            stage.cancelled.fetch_add(1, Ordering::SeqCst);
            Err("cancelled".into())
        }
    }
}

#[tokio::test]
async fn a_worker_whose_connection_is_cut_resumes_its_session_and_keeps_its_claims() {
    let (server, client) = start().await;
    let proxy = Proxy::to(&server).await;
    let stage = Stage::default();
    let through = Client::connect(&proxy.url).await.unwrap();
    let worker = Worker::new(through).slots(4).handle(patient).state(stage.clone()).start().unwrap();
    let mut handles = Vec::new();
    for n in 0..4 {
        let handle = client.enqueue(Double(n)).await.unwrap();
        until_state(&client, handle.id(), TaskState::Claimed).await;
        handles.push(handle);
    }
    for _ in 0..5 {
        let before = proxy.accepted();
        proxy.cut();
        until("it comes back", || async { proxy.accepted() > before }).await;
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    stage.go_on.notify_waiters();
    for (n, handle) in handles.iter().enumerate() {
        assert_eq!(soon(handle.result()).await.unwrap(), n as u64);
        let history = history(&client, handle.id()).await;
        assert_eq!(history.iter().filter(|event| *event == "claimed").count(), 1, "{history:?}");
    }
    assert_eq!(stage.cancelled.load(Ordering::SeqCst), 0);
    end(server, worker).await;
}

#[tokio::test]
async fn an_outcome_that_never_arrived_is_sent_again() {
    let (server, client) = start().await;
    let proxy = Proxy::to(&server).await;
    let through = Client::connect(&proxy.url).await.unwrap();
    let stage = Stage::default();
    let (begun, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let counts = (begun.clone(), ended.clone());
    let handler = async |task: Double, State(stage): State<Stage>, State((begun, ended)): State<Counts>| {
        begun.fetch_add(1, Ordering::SeqCst);
        stage.go_on.notified().await;
        ended.fetch_add(1, Ordering::SeqCst);
        Ok::<_, TaskError>(task.0)
    };
    let worker =
        Worker::new(through).slots(8).handle(handler).state(stage.clone()).state(counts).start().unwrap();
    let mut handles = Vec::new();
    for n in 0..8 {
        let handle = client.enqueue(Double(n)).await.unwrap();
        until_state(&client, handle.id(), TaskState::Claimed).await;
        handles.push(handle);
    }
    until("all handlers began", || async { begun.load(Ordering::SeqCst) == 8 }).await;
    proxy.deafen();
    stage.go_on.notify_waiters();
    until("all handlers ended", || async { ended.load(Ordering::SeqCst) == 8 }).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(handles[0].state().await.unwrap(), TaskState::Claimed, "the ack was swallowed");
    proxy.heal();
    for (n, handle) in handles.iter().enumerate() {
        assert_eq!(soon(handle.result()).await.unwrap(), n as u64);
        let history = history(&client, handle.id()).await;
        assert_eq!(history.iter().filter(|event| *event == "claimed").count(), 1, "{history:?}");
    }
    assert_eq!(ended.load(Ordering::SeqCst), 8);
    end(server, worker).await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_left_for_another_before_claims_are_freed() {
    let (server, client) = start().await;
    let proxy = Proxy::to(&server).await;
    let stage = Stage::default();
    let through = Client::connect(&proxy.url).await.unwrap();
    let worker = Worker::new(through).handle(patient).state(stage.clone()).start().unwrap();
    let handle = client.enqueue(Double(1)).await.unwrap();
    until_state(&client, handle.id(), TaskState::Claimed).await;
    let before = proxy.accepted();
    proxy.deafen();
    // It connects again by itself: nobody cut anything.
    until("it gives up", || async { proxy.accepted() > before }).await;
    proxy.heal();
    tokio::time::sleep(Duration::from_secs(3)).await;
    stage.go_on.notify_waiters();
    assert_eq!(soon(handle.result()).await.unwrap(), 1);
    let history = history(&client, handle.id()).await;
    assert_eq!(history.iter().filter(|event| *event == "claimed").count(), 1, "{history:?}");
    end(server, worker).await;
}

#[tokio::test]
async fn a_worker_that_cannot_come_back_in_time_is_told_that_its_tasks_are_lost() {
    let (server, client) = start().await;
    let proxy = Proxy::to(&server).await;
    let stage = Stage::default();
    let through = Client::connect(&proxy.url).await.unwrap();
    let worker = Worker::new(through)
        .handle(patient)
        .state(stage.clone())
        .hold(Duration::from_secs(2))
        .start()
        .unwrap();
    let handle = client.enqueue(Double(1)).await.unwrap();
    until_state(&client, handle.id(), TaskState::Claimed).await;
    proxy.close();
    until("it is told", || async { stage.cancelled.load(Ordering::SeqCst) == 1 }).await;
    let other = Worker::new(client.clone()).handle(patient).state(stage.clone()).start().unwrap();
    server.advance(Duration::from_secs(10));
    until_state(&client, handle.id(), TaskState::Claimed).await;
    until("the other one runs it", || async {
        stage.go_on.notify_waiters();
        handle.state().await.unwrap() == TaskState::Done
    })
    .await;
    drop(worker);
    end(server, other).await;
}

#[tokio::test]
async fn when_one_address_is_down_the_next_one_serves() {
    let mut server = TestServer::start().await.unwrap();
    let second = server.second_address().await.unwrap();
    let addresses = [server.url(), second.url(), "http://127.0.0.1:1".to_owned()];
    let client = Client::connect(&addresses[..]).await.unwrap();
    let stage = Stage::default();
    let workers: Vec<_> = (0..4)
        .map(|_| Worker::new(client.clone()).slots(2).handle(patient).state(stage.clone()).start().unwrap())
        .collect();
    let mut handles = Vec::new();
    for n in 0..8 {
        let handle = client.enqueue(Double(n)).await.unwrap();
        until_state(&client, handle.id(), TaskState::Claimed).await;
        handles.push(handle);
    }
    // A moment for the session to be taken over, as after a restart of one node.
    server.stop_listening().await;
    let after = soon(client.enqueue(Double(8)).dedup_key("eight")).await.unwrap();
    assert_eq!(client.admin().task(after.id()).await.unwrap().kind, "double");
    until("all are done", || async {
        stage.go_on.notify_waiters();
        after.state().await.unwrap() == TaskState::Done
    })
    .await;
    for (n, handle) in handles.iter().enumerate() {
        assert_eq!(soon(handle.result()).await.unwrap(), n as u64);
        assert_eq!(handle.info().await.unwrap().attempt, 1, "kept over the failover");
    }
    for worker in workers {
        worker.stop();
        soon(worker.join()).await.unwrap();
    }
    second.stop().await;
}

#[tokio::test]
async fn an_enqueue_finds_its_way_after_a_cut_and_is_never_doubled() {
    let (server, client) = start().await;
    let proxy = Proxy::to(&server).await;
    let through = Client::connect(&proxy.url).await.unwrap();
    let enqueues = (0..400).map(|n| {
        let through = through.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(n)).await;
            through.enqueue(Double(n)).dedup_key(format!("n{n}")).await
        }
    });
    let cutting = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(70)).await;
            proxy.cut();
        }
    };
    let (outcomes, ()) = soon(async { tokio::join!(futures::future::join_all(enqueues), cutting) }).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let depth = client.admin().queue("numbers").await.unwrap().depth.unwrap();
    assert_eq!(depth.ready, 400);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn who_waits_for_a_result_still_gets_it_after_a_cut() {
    let (server, client) = start().await;
    let proxy = Proxy::to(&server).await;
    let through = Client::builder(&proxy.url).patience(Duration::from_secs(2)).connect().await.unwrap();
    let handle = through.enqueue(Double(5)).await.unwrap();
    let waiting = tokio::spawn(async move { handle.result().await });
    for _ in 0..3 {
        let before = proxy.accepted();
        proxy.cut();
        until("it asks again", || async { proxy.accepted() > before }).await;
    }
    let handler = async |task: Double, _: Context| Ok::<_, TaskError>(task.0);
    let worker = Worker::new(client).handle(handler).start().unwrap();
    assert_eq!(soon(waiting).await.unwrap().unwrap(), 5);
    end(server, worker).await;
}

#[tokio::test]
async fn an_idle_worker_that_gets_a_large_task_over_a_slow_line_runs_it_once() {
    let (server, client) = start().await;
    let proxy = Proxy::to(&server).await;
    let through = Client::connect(&proxy.url).await.unwrap();
    let handler = async |task: Large| Ok::<_, TaskError>(task.0.len());
    let worker = Worker::new(through).slots(1).handle(handler).start().unwrap();
    until("it is there", || async { !client.admin().workers().await.unwrap().is_empty() }).await;
    proxy.slow_down();
    // Some 4 s: a worker that is not heard for 3 s is taken for lost.
    let handle = client.enqueue(Large("x".repeat(900_000))).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 900_000);
    let history = history(&client, handle.id()).await;
    assert_eq!(history, ["enqueued", "claimed", "acked"]);
    end(server, worker).await;
}
