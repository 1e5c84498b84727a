//! The `EnqueueStream`: many in flight, each answered by its number, each refused for itself.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use support::{Harness, start};
use tokio::sync::mpsc;
use tonic::Streaming;
use wire::grpc;
use wire::grpc::enqueue_result::Outcome;

struct Producer {
    say: mpsc::Sender<grpc::EnqueueItem>,
    hear: Streaming<grpc::EnqueueResults>,
}

impl Producer {
    async fn begin(harness: &Harness) -> Producer {
        let (say, mut said) = mpsc::channel(100);
        let items = futures::stream::poll_fn(move |context| said.poll_recv(context));
        let hear = harness.grpc().await.enqueue_stream(items).await.unwrap().into_inner();
        Producer { say, hear }
    }

    async fn enqueue(&self, seq: u64, task: grpc::Task) {
        self.say.send(item(seq, Some(task))).await.unwrap();
    }

    /// What became of so many.
    async fn results(&mut self, count: usize) -> BTreeMap<u64, Outcome> {
        let mut results = BTreeMap::new();
        while results.len() < count {
            let told = tokio::time::timeout(Duration::from_secs(10), self.hear.message());
            let told = told.await.expect("results within 10 s").unwrap().expect("the stream goes on");
            for result in told.results {
                assert!(results.insert(result.seq, result.outcome.unwrap()).is_none(), "answered twice");
            }
        }
        results
    }
}

fn item(seq: u64, task: Option<grpc::Task>) -> grpc::EnqueueItem {
    grpc::EnqueueItem { seq, task, more: Vec::new() }
}

fn task(queue: &str, payload: String) -> grpc::Task {
    grpc::Task {
        queue: queue.to_owned(),
        kind: "k".to_owned(),
        payload: payload.into(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_in_flight_are_each_answered_by_their_number() {
    const TASKS: u64 = 5_000;
    let harness = start().await;
    let mut producer = Producer::begin(&harness).await;
    let say = producer.say.clone();
    let sending = tokio::spawn(async move {
        for seq in 0..TASKS {
            let task = Some(task("mail", seq.to_string()));
            say.send(item(seq, task)).await.unwrap();
        }
    });
    let results = producer.results(TASKS as usize).await;
    sending.await.unwrap();
    assert_eq!(results.len() as u64, TASKS);
    for (seq, outcome) in results.iter().step_by(500) {
        let Outcome::Enqueued(enqueued) = outcome else { panic!("{outcome:?}") };
        let task = harness.get(&format!("/v1/tasks/{}", enqueued.id)).await.expect(200).json;
        assert_eq!(task["payload"], *seq, "the number belongs to the task that it was sent with");
    }
    let queue = harness.get("/v1/queues/mail").await.expect(200).json;
    assert_eq!(queue["depth"]["ready"], TASKS);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_one_does_not_touch_the_others() {
    let harness = start().await;
    harness.put("/v1/queues/full", r#"{"tasks_max":1,"shards":1}"#).await.expect(200);
    harness.enqueue("full", r#"{"kind":"k"}"#).await;
    let mut producer = Producer::begin(&harness).await;
    let good = || task("mail", "1".to_owned());
    let keyed = grpc::Task { dedup_key: Some("d".to_owned()), ..good() };
    producer.enqueue(1, good()).await;
    producer.enqueue(2, task("mail", "{".to_owned())).await;
    producer.enqueue(3, task("a b", "1".to_owned())).await;
    producer.enqueue(4, task("full", "1".to_owned())).await;
    producer.say.send(item(5, None)).await.unwrap();
    producer.enqueue(6, task("mail", format!("\"{}\"", "x".repeat(2 * 1024 * 1024)))).await;
    producer.enqueue(7, keyed.clone()).await;
    let mut results = producer.results(7).await;
    producer.enqueue(8, keyed).await;
    results.extend(producer.results(1).await);
    let told = results.into_iter().map(|(seq, outcome)| match outcome {
        Outcome::Enqueued(enqueued) => (seq, enqueued.status),
        Outcome::Error(error) => (seq, error.code),
    });
    let told: Vec<(u64, String)> = told.collect();
    let expected = [
        (1, "enqueued"),
        (2, "invalid_request"),
        (3, "invalid_request"),
        (4, "queue_full"),
        (5, "invalid_request"),
        (6, "payload_too_large"),
        (7, "enqueued"),
        (8, "duplicate"),
    ];
    assert_eq!(told, expected.map(|(seq, word)| (seq, word.to_owned())));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_one_message_are_numbered_on_from_the_first() {
    let harness = start().await;
    let mut producer = Producer::begin(&harness).await;
    let good = || task("mail", "1".to_owned());
    let more = vec![good(), task("mail", "{".to_owned()), good()];
    producer.say.send(grpc::EnqueueItem { seq: 10, task: Some(good()), more }).await.unwrap();
    producer.say.send(grpc::EnqueueItem { seq: 20, task: None, more: vec![good()] }).await.unwrap();
    let results = producer.results(6).await;
    let good = |seq: u64| matches!(results[&seq], Outcome::Enqueued(_));
    assert_eq!([10, 11, 12, 13, 20, 21].map(good), [true, true, false, true, false, true]);
    let more = vec![task("mail", "1".to_owned()); 10_001];
    producer.say.send(grpc::EnqueueItem { seq: 30, task: None, more }).await.unwrap();
    let refused = tokio::time::timeout(Duration::from_secs(30), producer.hear.message()).await.unwrap();
    assert_eq!(refused.unwrap_err().code(), tonic::Code::InvalidArgument);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_one_key_keep_the_order_in_which_they_were_sent() {
    let harness = start().await;
    let mut producer = Producer::begin(&harness).await;
    for seq in 0..200 {
        let ordered = grpc::Task { order_key: Some("user-7".to_owned()), ..task("mail", seq.to_string()) };
        producer.enqueue(seq, ordered).await;
    }
    producer.results(200).await;
    for seq in 0..200 {
        let claim = harness.claim("mail").await;
        assert_eq!(claim["payload"], seq);
        let ack = format!(r#"{{"token":{}}}"#, claim["token"]);
        harness.post("/v1/claims/ack", ack).await.expect(200);
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_when_all_is_answered_and_when_the_server_stops() {
    let mut harness = start().await;
    let mut producer = Producer::begin(&harness).await;
    producer.enqueue(1, task("mail", "1".to_owned())).await;
    let (closed, _) = mpsc::channel(1);
    drop(std::mem::replace(&mut producer.say, closed));
    assert_eq!(producer.results(1).await.len(), 1);
    assert!(producer.hear.message().await.unwrap().is_none(), "it ends well");
    let mut other = Producer::begin(&harness).await;
    other.enqueue(1, task("mail", "1".to_owned())).await;
    other.results(1).await;
    let (ended, ()) = tokio::join!(other.hear.message(), harness.stop_server());
    assert_eq!(support::code_of(&ended.unwrap_err()), "unavailable");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_that_is_too_large_ends_the_stream_after_all_before_it_were_answered() {
    let harness = start().await;
    let mut producer = Producer::begin(&harness).await;
    for seq in 1..=50 {
        producer.enqueue(seq, task("mail", seq.to_string())).await;
    }
    producer.enqueue(51, task("mail", " ".repeat(33 * 1024 * 1024))).await;
    let results = producer.results(50).await;
    assert!(results.values().all(|outcome| matches!(outcome, Outcome::Enqueued(_))), "{results:?}");
    let ended = tokio::time::timeout(Duration::from_secs(30), producer.hear.message()).await.unwrap();
    assert_eq!(support::code_of(&ended.unwrap_err()), "payload_too_large");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_may_bring_as_many_as_it_is_said_to_and_more_end_the_stream() {
    let harness = start().await;
    let mut producer = Producer::begin(&harness).await;
    let message = |seq: u64, more: usize| {
        let task = || task("mail", "1".to_owned());
        grpc::EnqueueItem { seq, task: Some(task()), more: vec![task(); more] }
    };
    producer.enqueue(1, task("mail", "1".to_owned())).await;
    producer.say.send(message(2, 10_000)).await.unwrap();
    producer.say.send(message(20_000, 10_001)).await.unwrap();
    let results = producer.results(10_002).await;
    assert!(results.keys().copied().eq(1..=10_002), "numbered on");
    assert!(results.values().all(|outcome| matches!(outcome, Outcome::Enqueued(_))));
    let ended = tokio::time::timeout(Duration::from_secs(30), producer.hear.message()).await.unwrap();
    assert_eq!(support::code_of(&ended.unwrap_err()), "invalid_request", "what it took was answered first");
    harness.stop().await;
}
