//! How a worker stops: nothing is lost, and nobody pays for it with an attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use windlass::{
    Cancelled, Client, Context, Handle, RunningWorker, State, TaskError, TaskState, Worker, secs,
};

use crate::support::{Double, Proxy, end, history, soon, start, until};

const TASKS: u32 = 32;
/// Slots that are free when the worker stops.
const FREE: u32 = 8;

#[derive(Clone, Default)]
struct Stage {
    running: Arc<AtomicU32>,
    told: Arc<AtomicU32>,
    go_on: Arc<Notify>,
}

/// Even ones listen, odd ones do not.
async fn long(task: Double, cx: Context, State(stage): State<Stage>) -> Result<u64, TaskError> {
    stage.running.fetch_add(1, Ordering::SeqCst);
    tokio::select! {
        () = stage.go_on.notified() => Ok(task.0),
        why = cx.cancelled(), if task.0.is_multiple_of(2) => {
            assert_eq!(why, Cancelled::Stopping);
            stage.told.fetch_add(1, Ordering::SeqCst);
            Err("interrupted".into())
        }
    }
}

/// A worker that runs all of them.
async fn busy(client: &Client, stage: &Stage, grace: Duration) -> (RunningWorker, Vec<Handle<Double>>) {
    let worker = Worker::new(client.clone())
        .slots(TASKS + FREE)
        .handle(long)
        .state(stage.clone())
        .grace(grace)
        .cancel_grace(Duration::from_millis(300))
        .start()
        .unwrap();
    let mut handles = Vec::new();
    for n in 0..u64::from(TASKS) {
        handles.push(client.enqueue(Double(n)).await.unwrap());
    }
    until("all run", || async { stage.running.load(Ordering::SeqCst) == TASKS }).await;
    (worker, handles)
}

/// All wait again as if nobody had claimed them.
async fn all_wait_as_before(client: &Client, handles: &[Handle<Double>]) {
    for handle in handles {
        let info = handle.info().await.unwrap();
        let history = history(client, handle.id()).await;
        assert_eq!((&*info.state, info.error.as_deref()), ("ready", None), "{history:?}");
        assert!(!history.contains(&"failed".to_owned()), "{history:?}");
    }
    // The next worker's attempt is the first one.
    let attempts = Arc::new(AtomicU32::new(0));
    let handler = async |task: Double, cx: Context, State(attempts): State<Arc<AtomicU32>>| {
        attempts.fetch_max(cx.attempt(), Ordering::SeqCst);
        Ok::<_, TaskError>(task.0)
    };
    let next = Worker::new(client.clone()).slots(8).handle(handler).state(attempts.clone()).start().unwrap();
    for (n, handle) in handles.iter().enumerate() {
        assert_eq!(soon(handle.result()).await.unwrap(), n as u64);
    }
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    next.stop();
    soon(next.join()).await.unwrap();
}

#[tokio::test]
async fn a_stop_lets_32_handlers_finish_within_the_grace() {
    let (server, client) = start().await;
    let stage = Stage::default();
    let (worker, handles) = busy(&client, &stage, secs(20)).await;
    worker.stop();
    let admin = client.admin();
    until("it drains", || async { admin.worker(worker.name()).await.unwrap().state == "draining" }).await;
    let waiting = client.enqueue(Double(99)).await.unwrap();
    // The worker goes on beating: three seconds of silence would cost it its claims.
    tokio::time::sleep(secs(3)).await;
    assert_eq!(waiting.state().await.unwrap(), TaskState::Ready, "a stopping worker claims nothing");
    stage.go_on.notify_waiters();
    soon(worker.join()).await.unwrap();
    for (n, handle) in handles.iter().enumerate() {
        assert_eq!(soon(handle.result()).await.unwrap(), n as u64);
        assert_eq!(handle.info().await.unwrap().attempt, 1);
    }
    assert_eq!(waiting.state().await.unwrap(), TaskState::Ready);
    assert_eq!((stage.running.load(Ordering::SeqCst), stage.told.load(Ordering::SeqCst)), (TASKS, 0));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn after_the_grace_handlers_are_told_and_the_rest_is_given_back_without_an_attempt() {
    let (server, client) = start().await;
    let stage = Stage::default();
    let (worker, handles) = busy(&client, &stage, Duration::from_millis(300)).await;
    worker.stop();
    soon(worker.join()).await.unwrap();
    assert_eq!(stage.told.load(Ordering::SeqCst), TASKS / 2);
    all_wait_as_before(&client, &handles).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_second_stop_gives_back_at_once() {
    let (server, client) = start().await;
    let stage = Stage::default();
    let (worker, handles) = busy(&client, &stage, secs(20)).await;
    let began = Instant::now();
    worker.stop();
    worker.stop_now();
    soon(worker.join()).await.unwrap();
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
    all_wait_as_before(&client, &handles).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_is_dropped_gives_back_what_it_ran() {
    let (server, client) = start().await;
    let stage = Stage::default();
    let (worker, handles) = busy(&client, &stage, secs(20)).await;
    drop(worker);
    until("all wait", || async {
        client.admin().queue("numbers").await.unwrap().depth.unwrap().ready == u64::from(TASKS)
    })
    .await;
    all_wait_as_before(&client, &handles).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_a_person_drains_finishes_and_leaves() {
    let (server, client) = start().await;
    let stage = Stage::default();
    let (worker, handles) = busy(&client, &stage, secs(20)).await;
    client.admin().drain_worker(worker.name()).await.unwrap();
    let waiting = client.enqueue(Double(99)).await.unwrap();
    until("it drains", || async { client.admin().worker(worker.name()).await.unwrap().state == "draining" })
        .await;
    stage.go_on.notify_waiters();
    soon(worker.join()).await.unwrap();
    for handle in &handles {
        soon(handle.result()).await.unwrap();
    }
    assert_eq!(waiting.state().await.unwrap(), TaskState::Ready);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_a_person_stops_gives_back_and_leaves() {
    let (server, client) = start().await;
    let stage = Stage::default();
    let (worker, handles) = busy(&client, &stage, secs(20)).await;
    client.admin().stop_worker(worker.name()).await.unwrap();
    soon(worker.join()).await.unwrap();
    all_wait_as_before(&client, &handles).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn run_until_works_until_then() {
    let (server, client) = start().await;
    let handle = client.enqueue(Double(4)).await.unwrap();
    let handler = async |task: Double, _: Context| Ok::<_, TaskError>(task.0);
    let done = async { assert_eq!(soon(handle.result()).await.unwrap(), 4) };
    soon(Worker::new(client.clone()).handle(handler).run_until(done)).await.unwrap();
    let worker = Worker::new(client.clone()).handle(handler).start().unwrap();
    end(server, worker).await;
}

#[tokio::test]
async fn a_worker_that_cannot_give_back_what_it_ran_says_so() {
    let (server, client) = start().await;
    let proxy = Proxy::to(&server).await;
    let through = Client::connect(&proxy.url).await.unwrap();
    let stage = Stage::default();
    let worker = Worker::new(through).slots(1).handle(long).state(stage.clone()).start().unwrap();
    client.enqueue(Double(1)).await.unwrap();
    until("it runs", || async { stage.running.load(Ordering::SeqCst) == 1 }).await;
    proxy.close();
    worker.stop_now();
    let error = soon(worker.join()).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    server.stop().await.unwrap();
}
