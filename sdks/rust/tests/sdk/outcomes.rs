//! What becomes of tasks that are not done at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass::{Context, Error, NewTask, Retry, State, TaskError, TaskState, Worker, hours, mins, secs};

use crate::support::{Audit, Double, end, history, soon, start, until, until_state};

/// How often a handler was called.
#[derive(Clone, Default)]
struct Calls(Arc<AtomicU32>);

impl Calls {
    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

async fn third_time_lucky(task: Double, cx: Context, State(calls): State<Calls>) -> Result<u64, TaskError> {
    calls.0.fetch_add(1, Ordering::SeqCst);
    if cx.attempt() < 3 {
        return Err(std::io::Error::other("not yet").into());
    }
    Ok(task.0)
}

#[tokio::test]
async fn an_error_is_retried_when_its_backoff_is_over_and_a_moved_clock_is_enough() {
    let (server, client) = start().await;
    let calls = Calls::default();
    let worker = Worker::new(client.clone()).handle(third_time_lucky).state(calls.clone()).start().unwrap();
    let retry = Retry::attempts(5).base(hours(1)).cap(hours(10));
    let handle = client.enqueue(Double(7)).retry(retry).await.unwrap();
    for attempt in 1..=2 {
        until_state(&client, handle.id(), TaskState::Retrying).await;
        assert_eq!(calls.count(), attempt);
        assert_eq!(handle.info().await.unwrap().error.as_deref(), Some("not yet"));
        server.advance(hours(3));
        until("the next attempt", || async { calls.count() > attempt }).await;
    }
    assert_eq!(soon(handle.result()).await.unwrap(), 7);
    assert_eq!((calls.count(), handle.info().await.unwrap().attempt), (3, 3));
    end(server, worker).await;
}

#[tokio::test]
async fn a_delayed_task_runs_when_the_clock_is_moved_and_not_before() {
    let (server, client) = start().await;
    let calls = Calls::default();
    let handler = async |task: Double, State(calls): State<Calls>| {
        calls.0.fetch_add(1, Ordering::SeqCst);
        Ok::<_, TaskError>(task.0)
    };
    let worker = Worker::new(client.clone()).handle(handler).state(calls.clone()).start().unwrap();
    let handle = client.enqueue(Double(1)).delay(hours(3)).await.unwrap();
    server.advance(hours(2));
    let other = client.enqueue(Double(2)).await.unwrap();
    soon(other.result()).await.unwrap();
    assert_eq!(handle.state().await.unwrap(), TaskState::Delayed);
    server.advance(hours(1));
    let before = std::time::Instant::now();
    assert_eq!(soon(handle.result()).await.unwrap(), 1);
    assert!(before.elapsed() < secs(1), "it fires at once, not at the next look: {:?}", before.elapsed());
    assert_eq!(calls.count(), 2);
    end(server, worker).await;
}

async fn verdicts(task: Double, cx: Context) -> Result<u64, TaskError> {
    match (task.0, cx.attempt(), cx.fence()) {
        (0, ..) => Err(TaskError::fatal("no way").with_detail("a\nb")),
        (1, 1, _) => Err(TaskError::retry_after(mins(30), "later")),
        (2, 1, _) => panic!("dropped the {}", "ball"),
        (3, ..) => {
            cx.then(Audit { of: "must not come".into() });
            Err(TaskError::fatal("after then"))
        }
        (n, ..) => Ok(n),
    }
}

#[tokio::test]
async fn fatal_means_dead_at_the_first_attempt() {
    let (server, client) = start().await;
    let worker = Worker::new(client.clone()).handle(verdicts).start().unwrap();
    let handle = client.enqueue(Double(0)).await.unwrap();
    let error = soon(handle.result()).await.unwrap_err();
    let Error::NotDone { state, error, .. } = error else { panic!("{error}") };
    assert_eq!((state, &*error), (TaskState::Dead, "no way"));
    let info = handle.info().await.unwrap();
    assert_eq!((info.attempt, info.detail.as_deref()), (1, Some("a\nb")));
    end(server, worker).await;
}

#[tokio::test]
async fn retry_after_waits_as_long_as_the_handler_said() {
    let (server, client) = start().await;
    let worker = Worker::new(client.clone()).handle(verdicts).start().unwrap();
    let handle = client.enqueue(Double(1)).await.unwrap();
    until_state(&client, handle.id(), TaskState::Retrying).await;
    server.advance(mins(29));
    let other = client.enqueue(Double(9)).await.unwrap();
    soon(other.result()).await.unwrap();
    assert_eq!(handle.state().await.unwrap(), TaskState::Retrying);
    server.advance(mins(1));
    assert_eq!(soon(handle.result()).await.unwrap(), 1);
    end(server, worker).await;
}

#[tokio::test]
async fn a_panic_is_a_failed_attempt_and_the_worker_goes_on() {
    let (server, client) = start().await;
    let worker = Worker::new(client.clone()).slots(1).handle(verdicts).start().unwrap();
    let handle = client.enqueue(Double(2)).await.unwrap();
    until_state(&client, handle.id(), TaskState::Retrying).await;
    assert_eq!(handle.info().await.unwrap().error.as_deref(), Some("panicked: dropped the ball"));
    server.advance(mins(1));
    assert_eq!(soon(handle.result()).await.unwrap(), 2);
    end(server, worker).await;
}

#[tokio::test]
async fn a_released_task_comes_back_without_an_attempt() {
    let (server, client) = start().await;
    let calls = Calls::default();
    let handler = async |task: Double, cx: Context, State(calls): State<Calls>| {
        assert_eq!(cx.attempt(), 1);
        if calls.0.fetch_add(1, Ordering::SeqCst) < 2 {
            return Err(TaskError::release("not now"));
        }
        Ok(task.0)
    };
    let worker = Worker::new(client.clone()).handle(handler).state(calls.clone()).start().unwrap();
    let handle = client.enqueue(Double(5)).retry(Retry::never()).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 5);
    assert_eq!((calls.count(), handle.info().await.unwrap().attempt), (3, 1));
    end(server, worker).await;
}

#[tokio::test]
async fn what_follows_is_enqueued_with_the_ack_and_only_with_it() {
    let (server, client) = start().await;
    let handler = async |task: Double, cx: Context| {
        cx.then(Audit { of: format!("double {}", task.0) });
        cx.then(NewTask::of(&Audit { of: "later".into() }).delay(hours(1)).priority(1));
        Ok::<_, TaskError>(task.0)
    };
    let worker = Worker::new(client.clone()).handle(handler).start().unwrap();
    let handle = client.enqueue(Double(8)).await.unwrap();
    soon(handle.result()).await.unwrap();
    let admin = client.admin();
    let depth = || async { admin.queue("audits").await.ok().and_then(|queue| queue.depth) };
    until("both follow", || async {
        depth().await.is_some_and(|depth| (depth.ready, depth.delayed) == (1, 1))
    })
    .await;
    end(server, worker).await;

    let (server, client) = start().await;
    let worker = Worker::new(client.clone()).handle(verdicts).start().unwrap();
    let handle = client.enqueue(Double(3)).await.unwrap();
    soon(handle.result()).await.unwrap_err();
    assert!(client.admin().queues().await.unwrap().iter().all(|queue| queue.name != "audits"));
    end(server, worker).await;
}

#[tokio::test]
async fn a_payload_that_does_not_fit_and_a_kind_without_handler_are_failed_attempts() {
    let (server, client) = start().await;
    let worker = Worker::new(client.clone()).handle(verdicts).start().unwrap();
    for (new, word) in [
        (NewTask::raw("numbers", "double", r#"{"no":"number"}"#), "does not fit its type"),
        (NewTask::raw("numbers", "triple", "1"), "no handler for kind \"triple\""),
    ] {
        let id = client.enqueue_raw(new.retry(Retry::never())).await.unwrap().id;
        until_state(&client, &id, TaskState::Dead).await;
        let error = client.admin().task(&id).await.unwrap().error.unwrap();
        assert!(error.contains(word), "{error}");
        assert!(history(&client, &id).await.contains(&"failed".to_owned()));
    }
    end(server, worker).await;
}

#[tokio::test]
async fn an_output_that_is_too_large_is_a_failed_attempt() {
    let (server, client) = start().await;
    let worker = Worker::new(client.clone())
        .queues(["numbers"])
        .handle_raw("double", async |_, _| Ok::<_, TaskError>(format!("\"{}\"", "x".repeat(2 * 1024 * 1024))))
        .start()
        .unwrap();
    let handle = client.enqueue(Double(1)).retry(Retry::never()).await.unwrap();
    let error = soon(handle.result()).await.unwrap_err().to_string();
    assert!(error.contains("the ack was refused"), "{error}");
    end(server, worker).await;
}
