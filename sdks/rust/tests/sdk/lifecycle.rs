//! In, done, out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use windlass::{
    Context, EndedAs, Error, Metrics, Middleware, NewTask, Next, Outcome, RawTask, State, TaskError,
    TaskState, Until, Worker, mins,
};

use crate::support::{Double, Proxy, end, soon, start, until};

async fn double(task: Double, _: Context) -> Result<u64, TaskError> {
    Ok(task.0 * 2)
}

#[tokio::test]
async fn a_task_is_handled_and_its_result_comes_back() {
    let (server, client) = start().await;
    let handle = client.enqueue(Double(21)).header("trace", "t-1").priority(3).await.unwrap();
    assert_eq!(handle.state().await.unwrap(), TaskState::Ready);
    let worker = Worker::new(client.clone()).slots(4).handle(double).start().unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 42);
    assert_eq!(handle.state().await.unwrap(), TaskState::Done);
    let info = handle.info().await.unwrap();
    assert_eq!((info.priority, &*info.headers["trace"], &*info.payload), (3, "t-1", &b"21"[..]));
    assert_eq!(soon(client.task::<Double>(handle.id().clone()).result()).await.unwrap(), 42);
    end(server, worker).await;
}

#[tokio::test]
async fn a_handler_knows_which_worker_runs_it() {
    let (server, client) = start().await;
    let who = async |_: RawTask, cx: Context| Ok::<_, TaskError>(format!("{:?}", cx.worker()));
    let worker = Worker::new(client.clone()).name("w-7").queues(["numbers"]).handle_raw("double", who);
    let worker = worker.start().unwrap();
    let handle = client.enqueue(Double(1)).await.unwrap();
    let done = server.wait_until(handle.id(), TaskState::Done).await.unwrap();
    assert_eq!(done.output.as_deref(), Some(&b"\"w-7\""[..]));
    end(server, worker).await;
}

#[tokio::test]
async fn a_thousand_enqueues_at_once_share_a_stream_and_each_is_answered() {
    let (server, client) = start().await;
    let worker = Worker::new(client.clone()).slots(32).handle(double).start().unwrap();
    let all = (0..1_000).map(|n| {
        let client = client.clone();
        async move {
            let handle = client.enqueue(Double(n)).await.unwrap();
            assert_eq!(handle.result().await.unwrap(), 2 * n);
        }
    });
    soon(futures::future::join_all(all)).await;
    let queue = client.admin().queue("numbers").await.unwrap();
    assert_eq!(queue.totals.unwrap().done, 1_000);
    end(server, worker).await;
}

#[tokio::test]
async fn a_repeat_of_a_dedup_key_is_the_same_task() {
    let (server, client) = start().await;
    let first = client.enqueue(Double(1)).dedup_key("one").delay(mins(5)).await.unwrap();
    let again = client.enqueue(Double(1)).dedup_key("one").delay(mins(5)).await.unwrap();
    assert_eq!(again.id(), first.id());
    assert!(again.is_duplicate() && !first.is_duplicate());
    let other = client.enqueue(Double(2)).dedup_key("one").await.unwrap_err();
    assert_eq!(other.code(), Some("dedup_mismatch"), "{other}");
    client.enqueue(Double(3)).unique("u", Until::Final).await.unwrap();
    let error = client.enqueue(Double(4)).unique("u", Until::Final).await.unwrap_err();
    let Error::Refused(refusal) = error else { panic!("{error}") };
    assert_eq!(refusal.code, "not_unique");
    assert!(refusal.id.is_some());
    server.stop().await.unwrap();
}

#[tokio::test]
async fn many_are_enqueued_in_their_order_each_with_its_outcome() {
    let (server, client) = start().await;
    let tasks = (0..12_000).map(|n| NewTask::of(&Double(n)).dedup_key(format!("k{}", n % 11_999)));
    let outcomes = soon(client.enqueue_many(tasks)).await.unwrap();
    assert_eq!(outcomes.len(), 12_000);
    assert!(outcomes[..11_999].iter().all(|outcome| !outcome.as_ref().unwrap().is_duplicate));
    assert_eq!(outcomes[11_999].as_ref().unwrap_err().code(), Some("dedup_mismatch"));
    let pair = [1, 2].map(|n| NewTask::of(&Double(n)).order_key("one line"));
    let pair = client.enqueue_atomic(pair).await.unwrap();
    assert_eq!((pair[0].state, pair[1].state), (TaskState::Ready, TaskState::Blocked));
    let twice = [1, 2].map(|n| NewTask::of(&Double(n)).unique("one", Until::Final));
    assert_eq!(client.enqueue_atomic(twice).await.unwrap_err().code(), Some("not_unique"));
    let depth = client.admin().queue("numbers").await.unwrap().depth.unwrap();
    assert_eq!((depth.ready, depth.blocked), (12_000, 1), "none of the second pair");
    server.stop().await.unwrap();
}

#[derive(Clone)]
struct Offset(u64);

async fn shifted(task: Double, State(offset): State<Offset>, cx: Context) -> Result<u64, TaskError> {
    assert_eq!(cx.state::<Offset>().unwrap().0, offset.0);
    Ok(task.0 + offset.0)
}

#[tokio::test]
async fn handlers_share_state_and_a_worker_without_it_does_not_start() {
    let (server, client) = start().await;
    let error = Worker::new(client.clone()).handle(shifted).start().err().unwrap().to_string();
    assert!(error.contains("Offset"), "{error}");
    let worker = Worker::new(client.clone()).handle(shifted).state(Offset(100)).start().unwrap();
    let handle = client.enqueue(Double(1)).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 101);
    end(server, worker).await;
}

#[tokio::test]
async fn raw_handlers_take_any_payload_and_any_kind() {
    let (server, client) = start().await;
    let worker = Worker::new(client.clone())
        .queues([("things", 3), ("numbers", 1)])
        .handle_raw("bytes", async |task: RawTask, _: Context| {
            Ok::<_, TaskError>(format!("{{\"bytes\":{}}}", task.payload.len()))
        })
        .handle_any(async |task: RawTask, _: Context| Ok::<_, TaskError>(format!("\"any {}\"", task.kind)))
        .start()
        .unwrap();
    let bytes = NewTask::raw("things", "bytes", &[0u8, 1, 2][..]).content_type("application/x-thing");
    for (new, output) in [
        (bytes, r#"{"bytes":3}"#),
        (NewTask::raw("things", "strange", "{}"), r#""any strange""#),
        (NewTask::of(&Double(1)), r#""any double""#),
    ] {
        let id = client.enqueue_raw(new).await.unwrap().id;
        let task = soon(client.admin().task_within(&id, Duration::from_secs(20))).await.unwrap();
        assert_eq!(task.output, Some(Bytes::from(output)), "{task:?}");
    }
    end(server, worker).await;
}

struct Outer(Arc<Mutex<Vec<String>>>, &'static str);

impl Middleware for Outer {
    fn handle<'a>(&'a self, task: RawTask, cx: Context, next: Next<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            self.0.lock().push(format!("{} {}", self.1, task.kind));
            let outcome = next.run(task, cx).await;
            self.0.lock().push(format!("{} {}", self.1, outcome.is_ok()));
            outcome
        })
    }
}

#[derive(Clone, Default)]
struct Counts(Arc<(AtomicU64, AtomicU64, AtomicU64)>);

impl Metrics for Counts {
    fn started(&self, _: &str, _: &str) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }

    fn ended(&self, queue: &str, kind: &str, ended: EndedAs, _: Duration) {
        assert_eq!((queue, kind, ended), ("numbers", "double", EndedAs::Done));
        self.0.1.fetch_add(1, Ordering::Relaxed);
    }

    fn connected(&self, _: &str) {
        self.0.2.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn middleware_wraps_handlers_from_the_outside_in_and_metrics_count() {
    let (server, client) = start().await;
    let (seen, counts) = (Arc::new(Mutex::new(Vec::new())), Counts::default());
    let worker = Worker::new(client.clone())
        .handle(double)
        .middleware(Outer(seen.clone(), "outer"))
        .middleware(Outer(seen.clone(), "inner"))
        .metrics(counts.clone())
        .start()
        .unwrap();
    let handle = client.enqueue(Double(4)).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 8);
    assert_eq!(*seen.lock(), ["outer double", "inner double", "inner true", "outer true"]);
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    assert_eq!((count(&counts.0.0), count(&counts.0.1), count(&counts.0.2)), (1, 1, 1));
    end(server, worker).await;
}

#[tokio::test]
async fn the_registry_shows_a_worker_with_its_slots_labels_and_sdk() {
    let (server, client) = start().await;
    let worker = Worker::new(client.clone())
        .name("w-1")
        .slots(7)
        .label("zone", "a")
        .version("1.2.3")
        .handle(double)
        .start()
        .unwrap();
    let admin = client.admin();
    crate::support::until("w-1 is listed", || async { admin.worker("w-1").await.is_ok() }).await;
    let listed = admin.worker("w-1").await.unwrap();
    assert_eq!((listed.slots, &*listed.labels["zone"], listed.version.as_deref()), (7, "a", Some("1.2.3")));
    assert!(listed.labels["sdk"].starts_with("rust/"), "{listed:?}");
    assert_eq!(listed.queues, ["numbers"]);
    end(server, worker).await;
}

#[tokio::test]
async fn a_lost_worker_is_listed_for_ten_minutes() {
    let (server, client) = start().await;
    let admin = client.admin();
    let lose = async |name: &str| {
        let proxy = Proxy::to(&server).await;
        let through = windlass::Client::connect(&proxy.url).await.unwrap();
        let worker = Worker::new(through).name(name).handle(double).start().unwrap();
        until(&format!("{name} runs"), || async { admin.worker(name).await.is_ok() }).await;
        proxy.close();
        until(&format!("{name} is lost"), || async {
            admin.worker(name).await.is_ok_and(|worker| worker.state == "lost")
        })
        .await;
        (proxy, worker)
    };
    let listed = async || {
        let workers = admin.workers().await.unwrap();
        workers.into_iter().map(|worker| (worker.id, worker.state)).collect::<Vec<_>>()
    };
    let _first = lose("w-1").await;
    server.advance(mins(9));
    let _second = lose("w-2").await;
    server.advance(mins(2));
    // The one is forgotten after eleven minutes; the other was looked at just the same, after two.
    let second = [("w-2".to_owned(), "lost".to_owned())];
    until("w-1 is forgotten", || async { listed().await == second }).await;
    server.advance(mins(9));
    until("w-2 is forgotten", || async { listed().await.is_empty() }).await;
    server.stop().await.unwrap();
}
