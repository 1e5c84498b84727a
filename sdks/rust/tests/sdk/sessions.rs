//! Workers whose names, sessions and messages get in each other's way.

use std::time::Duration;

use tokio::sync::mpsc;
use windlass::proto::worker_message::Message as Says;
use windlass::proto::{Hello, QueueChoice, WorkerMessage};
use windlass::{Client, Context, Retry, TaskError, TaskState, Worker, hours, secs};

use crate::support::{Double, Proxy, end, history, soon, start, until, until_state};

async fn double(task: Double) -> Result<u64, TaskError> {
    Ok(task.0 * 2)
}

/// Another process that works under `name`, until it is dropped.
struct Other {
    _say: mpsc::Sender<WorkerMessage>,
    hear: tonic::Streaming<windlass::proto::ServerMessage>,
}

impl Other {
    async fn begin(url: &str, name: &str) -> Other {
        let channel =
            tonic::transport::Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap();
        let mut grpc = wire::grpc::windlass_client::WindlassClient::new(channel);
        let (say, mut said) = mpsc::channel(8);
        let queues = vec![QueueChoice { name: "elsewhere".into(), weight: None }];
        let hello =
            Hello { worker: name.into(), host: "another".into(), pid: Some(1), queues, ..Hello::default() };
        say.send(WorkerMessage { message: Some(Says::Hello(hello)) }).await.unwrap();
        let said = futures::stream::poll_fn(move |cx| said.poll_recv(cx));
        let mut hear = grpc.work(said).await.unwrap().into_inner();
        hear.message().await.unwrap();
        Other { _say: say, hear }
    }
}

#[tokio::test]
async fn a_worker_whose_name_is_taken_waits_until_the_other_has_ended() {
    let (server, client) = start().await;
    let mut other = Other::begin(&server.url(), "twin").await;
    let proxy = Proxy::to(&server).await;
    let through = Client::builder(&proxy.url).connect_lazily().unwrap();
    let worker = Worker::new(through).name("twin").handle(double).start().unwrap();
    let handle = client.enqueue(Double(4)).await.unwrap();
    until("it has tried more than once", || async { proxy.accepted() >= 3 }).await;
    assert_eq!(handle.state().await.unwrap(), TaskState::Ready);
    let shown = client.admin().worker("twin").await.unwrap();
    assert_eq!(shown.host.as_deref(), Some("another"), "the other one lives on");
    let heard = tokio::time::timeout(Duration::from_millis(10), other.hear.message()).await;
    assert!(heard.is_err(), "and hears nothing of it: {heard:?}");
    drop(other);
    assert_eq!(soon(handle.result()).await.unwrap(), 8);
    end(server, worker).await;
}

#[tokio::test]
async fn workers_without_a_name_have_different_ones() {
    let (server, client) = start().await;
    let workers = [(); 2].map(|()| Worker::new(client.clone()).handle(double).start().unwrap());
    assert_ne!(workers[0].name(), workers[1].name());
    let host_and_process = format!(":{}-", std::process::id());
    assert!(workers[0].name().contains(&host_and_process), "{}", workers[0].name());
    for worker in workers {
        worker.stop();
        soon(worker.join()).await.unwrap();
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_worker_whose_session_was_ended_begins_another() {
    let (server, client) = start().await;
    let worker = Worker::new(client.clone()).name("removed").handle(double).start().unwrap();
    for n in 0..3 {
        let handle = client.enqueue(Double(n)).await.unwrap();
        assert_eq!(soon(handle.result()).await.unwrap(), 2 * n);
        client.admin().remove_worker("removed").await.unwrap();
        until("it is back", || async { client.admin().worker("removed").await.is_ok() }).await;
    }
    end(server, worker).await;
}

#[tokio::test]
async fn an_output_that_no_server_takes_fails_its_attempt_and_nothing_else() {
    let (server, client) = start().await;
    let proxy = Proxy::to(&server).await;
    let through = Client::connect(&proxy.url).await.unwrap();
    let handler = |task: windlass::RawTask, _: Context| async move {
        let length = if &*task.payload == b"1" { 40 << 20 } else { 8 };
        Ok::<_, TaskError>(format!("\"{}\"", "x".repeat(length)))
    };
    let worker =
        Worker::new(through).slots(1).handle_raw("double", handler).queues(["numbers"]).start().unwrap();
    let large = client.enqueue(Double(1)).retry(Retry::never()).await.unwrap();
    until_state(&client, large.id(), TaskState::Dead).await;
    let error = large.info().await.unwrap().error.unwrap_or_default();
    assert!(error.contains("a server takes at most"), "{error}");
    let before = proxy.accepted();
    let small = client.enqueue(Double(2)).await.unwrap();
    until_state(&client, small.id(), TaskState::Done).await;
    assert_eq!(proxy.accepted(), before, "the stream did not break");
    end(server, worker).await;
}

#[tokio::test]
async fn a_refused_extension_does_not_cost_the_task() {
    let (server, client) = start().await;
    let handler = async |task: Double, cx: Context| {
        for hold in [hours(48), Duration::from_millis(1)] {
            let refused = cx.extend(hold).await.expect_err("no claim holds so long, or so short");
            assert_eq!(refused.code(), Some("invalid_request"));
        }
        // Three times the hold: without extensions the task is lost.
        tokio::time::sleep(secs(3)).await;
        assert!(!cx.is_cancelled());
        Ok::<_, TaskError>(task.0)
    };
    let worker = Worker::new(client.clone()).handle(handler).hold(secs(1)).start().unwrap();
    let handle = client.enqueue(Double(7)).retry(Retry::never()).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 7);
    let history = history(&client, handle.id()).await;
    assert_eq!(history.iter().filter(|event| *event == "claimed").count(), 1, "{history:?}");
    end(server, worker).await;
}

#[tokio::test]
async fn a_worker_that_stops_is_shown_as_draining() {
    let (server, client) = start().await;
    let go_on = std::sync::Arc::new(tokio::sync::Notify::new());
    let waits = go_on.clone();
    let handler = move |_: windlass::RawTask, _: Context| {
        let waits = waits.clone();
        async move {
            waits.notified().await;
            Ok::<_, TaskError>("1")
        }
    };
    let worker = Worker::new(client.clone())
        .name("leaver")
        .slots(8)
        .handle_raw("double", handler)
        .queues(["numbers"])
        .start()
        .unwrap();
    let handle = client.enqueue(Double(1)).await.unwrap();
    until_state(&client, handle.id(), TaskState::Claimed).await;
    worker.stop();
    until("it drains", || async { client.admin().worker("leaver").await.unwrap().state == "draining" }).await;
    let later = client.enqueue(Double(2)).await.unwrap();
    go_on.notify_one();
    assert_eq!(soon(handle.result()).await.unwrap(), 1);
    soon(worker.join()).await.unwrap();
    let history = history(&client, later.id()).await;
    assert!(!history.contains(&"claimed".to_owned()), "nothing more was pushed: {history:?}");
    assert!(client.admin().worker("leaver").await.is_err(), "it left in order");
    server.stop().await.unwrap();
}
