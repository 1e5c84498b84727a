//! Handlers that take their time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use windlass::{Cancelled, Context, IntoHandler as _, Retry, State, TaskError, TaskState, Worker, secs};

use crate::support::{Double, end, history, soon, start, until, until_state};

/// What a handler tells its test, and what it waits for.
#[derive(Clone)]
struct Wire {
    said: mpsc::Sender<Cancelled>,
    go_on: Arc<Notify>,
}

fn wire() -> (Wire, mpsc::Receiver<Cancelled>) {
    let (said, heard) = mpsc::channel(8);
    (Wire { said, go_on: Arc::new(Notify::new()) }, heard)
}

async fn until_told(task: Double, cx: Context, State(wire): State<Wire>) -> Result<u64, TaskError> {
    tokio::select! {
        why = cx.cancelled() => {
            assert!(cx.is_cancelled());
            wire.said.send(why).await?;
            Err(TaskError::retry("told to stop"))
        }
        () = wire.go_on.notified() => Ok(task.0),
    }
}

#[tokio::test]
async fn a_cancelled_task_tells_its_handler() {
    let (server, client) = start().await;
    let (wire, mut heard) = wire();
    let worker = Worker::new(client.clone()).handle(until_told).state(wire).start().unwrap();
    let handle = client.enqueue(Double(1)).await.unwrap();
    until_state(&client, handle.id(), TaskState::Claimed).await;
    handle.cancel("changed my mind").await.unwrap();
    assert_eq!(soon(heard.recv()).await, Some(Cancelled::Asked));
    until_state(&client, handle.id(), TaskState::Cancelled).await;
    end(server, worker).await;
}

#[tokio::test]
async fn progress_is_seen_while_the_task_runs_and_the_newest_counts() {
    let (server, client) = start().await;
    let (wire, _heard) = wire();
    let handler = async |task: Double, cx: Context, State(wire): State<Wire>| {
        for percent in 0..=40 {
            cx.progress((percent, format!("page {percent}")));
        }
        wire.go_on.notified().await;
        Ok::<_, TaskError>(task.0)
    };
    let worker = Worker::new(client.clone()).handle(handler).state(wire.clone()).start().unwrap();
    let handle = client.enqueue(Double(1)).await.unwrap();
    until("40 %", || async {
        let progress = handle.progress().await.unwrap();
        progress.is_some_and(|progress| (progress.percent, &*progress.note) == (40, "page 40"))
    })
    .await;
    wire.go_on.notify_one();
    assert_eq!(soon(handle.result()).await.unwrap(), 1);
    end(server, worker).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_handler_that_blocks_its_only_thread_keeps_its_claim() {
    let (server, client) = on_another_runtime();
    let handler = async |task: Double, cx: Context| {
        // Four times the hold, twice the silence after which a worker is lost.
        std::thread::sleep(Duration::from_secs(5));
        assert!(!cx.is_cancelled());
        Ok::<_, TaskError>(task.0 + u64::from(cx.attempt()))
    };
    let worker = Worker::new(client.clone()).slots(1).handle(handler).hold(secs(1)).start().unwrap();
    let handle = client.enqueue(Double(10)).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 11);
    let history = history(&client, handle.id()).await;
    assert_eq!(history.iter().filter(|event| *event == "claimed").count(), 1, "{history:?}");
    worker.stop();
    soon(worker.join()).await.unwrap();
    server.shutdown_background();
}

/// A server on threads of its own, so that a handler that blocks this one does not block it.
fn on_another_runtime() -> (tokio::runtime::Runtime, windlass::Client) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.spawn(async move {
        let server = windlass_testing::TestServer::start().await.unwrap();
        sender.send(server.url()).unwrap();
        std::future::pending::<()>().await;
        drop(server);
    });
    let url = receiver.recv().unwrap();
    (runtime, windlass::Client::builder(url).connect_lazily().unwrap())
}

/// Is told, goes on all the same and ends well, but too late.
async fn deaf(task: Double, cx: Context, State(wire): State<Wire>) -> Result<u64, TaskError> {
    wire.said.send(cx.cancelled().await).await?;
    wire.go_on.notified().await;
    Ok(task.0)
}

#[tokio::test]
async fn a_handler_that_is_not_extended_loses_its_task_at_the_deadline_and_is_told() {
    let (server, client) = start().await;
    let (wire, mut heard) = wire();
    let worker = Worker::new(client.clone())
        .slots(1)
        .handle(deaf.hold(secs(1)).no_extend())
        .state(wire.clone())
        .start()
        .unwrap();
    let handle = client.enqueue(Double(1)).retry(Retry::never()).await.unwrap();
    let why = soon(heard.recv()).await.unwrap();
    assert!(matches!(why, Cancelled::Deadline | Cancelled::Lost), "{why:?}");
    until_state(&client, handle.id(), TaskState::Dead).await;
    wire.go_on.notify_one();
    worker.stop();
    soon(worker.join()).await.unwrap();
    assert_eq!(handle.state().await.unwrap(), TaskState::Dead, "what came too late did not count");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_handler_can_hold_on_by_itself() {
    let (server, client) = start().await;
    let extended = Arc::new(AtomicU32::new(0));
    let handler = async |task: Double, cx: Context, State(extended): State<Arc<AtomicU32>>| {
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            cx.extend(secs(1)).await?;
            extended.fetch_add(1, Ordering::SeqCst);
        }
        Ok::<_, TaskError>(task.0)
    };
    let worker = Worker::new(client.clone())
        .handle(handler.hold(secs(1)).no_extend())
        .state(extended.clone())
        .start()
        .unwrap();
    let handle = client.enqueue(Double(3)).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 3);
    assert_eq!((extended.load(Ordering::SeqCst), handle.info().await.unwrap().attempt), (4, 1));
    end(server, worker).await;
}

#[tokio::test]
async fn a_worker_that_lost_its_task_is_told_and_its_outcome_is_dropped() {
    let (server, client) = start().await;
    let (wire, mut heard) = wire();
    let worker = Worker::new(client.clone()).slots(1).handle(until_told).state(wire.clone()).start().unwrap();
    let handle = client.enqueue(Double(6)).await.unwrap();
    until_state(&client, handle.id(), TaskState::Claimed).await;
    client.admin().pause_queue("numbers").await.unwrap();
    client.admin().put_back(handle.id()).await.unwrap();
    assert_eq!(soon(heard.recv()).await, Some(Cancelled::Lost));
    client.admin().resume_queue("numbers").await.unwrap();
    until_state(&client, handle.id(), TaskState::Claimed).await;
    wire.go_on.notify_one();
    assert_eq!(soon(handle.result()).await.unwrap(), 6);
    let history = history(&client, handle.id()).await;
    assert!(!history.contains(&"failed".to_owned()), "{history:?}");
    end(server, worker).await;
}

async fn get(worker: &windlass::RunningWorker, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(worker.status_addr().unwrap()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[tokio::test]
async fn the_status_port_shows_slots_and_running_tasks() {
    let (server, client) = start().await;
    let (wire, _heard) = wire();
    let worker = Worker::new(client.clone())
        .name("shown")
        .slots(3)
        .handle(until_told)
        .state(wire.clone())
        .status_port(0)
        .start()
        .unwrap();
    let handle = client.enqueue(Double(1)).await.unwrap();
    until_state(&client, handle.id(), TaskState::Claimed).await;
    assert_eq!(get(&worker, "/livez").await, ("HTTP/1.1 200 OK".into(), "ok\n".into()));
    let status = || async { get(&worker, "/").await.1 };
    until("it runs", || async { status().await.contains(handle.id().as_str()) }).await;
    let shown: serde_json::Value = serde_json::from_str(&status().await).unwrap();
    assert_eq!(shown["slots"], serde_json::json!({"open": 2, "total": 3}), "{shown}");
    assert_eq!((&shown["worker"], &shown["state"]), (&"shown".into(), &"running".into()));
    assert_eq!(shown["running"][0]["kind"], "double");
    assert_eq!(shown["server"], server.url());
    assert!(get(&worker, "/nothing").await.0.contains("404"));
    wire.go_on.notify_one();
    soon(handle.result()).await.unwrap();
    end(server, worker).await;
}

#[tokio::test]
async fn a_claim_that_holds_as_its_queue_says_is_extended_in_time() {
    let (server, client) = start().await;
    let change = windlass::proto::SetQueueRequest {
        queue: "numbers".into(),
        hold_ms: Some(1_000),
        ..Default::default()
    };
    client.admin().set_queue(change).await.unwrap();
    let handler = async |task: Double, cx: Context| {
        tokio::time::sleep(secs(3)).await;
        assert!(!cx.is_cancelled());
        Ok::<_, TaskError>(task.0)
    };
    let worker = Worker::new(client.clone()).handle(handler).start().unwrap();
    let handle = client.enqueue(Double(2)).retry(Retry::never()).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 2);
    end(server, worker).await;
}
