//! The calls of the gRPC face: what they do, and that they refuse what HTTP refuses, by the same code.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use serde_json::json;
use support::{Client, code_of, start};
use tonic::Code;
use wire::grpc::{self, outcome, outcome_result};

fn task(queue: &str, kind: &str) -> grpc::Task {
    grpc::Task { queue: queue.to_owned(), kind: kind.to_owned(), ..grpc::Task::default() }
}

async fn enqueue(client: &mut Client, task: grpc::Task) -> Result<grpc::EnqueueReply, tonic::Status> {
    let request = grpc::EnqueueRequest { task: Some(task) };
    client.enqueue(request).await.map(tonic::Response::into_inner)
}

async fn claim(client: &mut Client, queue: &str) -> grpc::Claim {
    let queues = vec![grpc::QueueChoice { name: queue.to_owned(), weight: None }];
    let request =
        grpc::ClaimRequest { queues, worker: "w".to_owned(), wait_ms: Some(5_000), ..Default::default() };
    let mut claims = client.claim(request).await.unwrap().into_inner().claims;
    assert_eq!(claims.len(), 1);
    claims.pop().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_lives_its_life_and_both_faces_see_the_same() {
    let harness = start().await;
    let mut client = harness.grpc().await;
    let full = grpc::Task {
        payload: r#" {"to": "ada"} "#.into(),
        headers: BTreeMap::from([("trace".to_owned(), "1".to_owned())]),
        dedup_key: Some("k".to_owned()),
        order_key: Some("o".to_owned()),
        priority: Some(3),
        ..task("mail", "welcome")
    };
    let response = client.enqueue(grpc::EnqueueRequest { task: Some(full.clone()) }).await.unwrap();
    assert!(response.metadata().get("windlass-index").unwrap().to_str().unwrap().contains(':'));
    let enqueued = response.into_inner();
    assert_eq!((&*enqueued.status, &*enqueued.state), ("enqueued", "ready"));
    let again = enqueue(&mut client, full).await.unwrap();
    assert_eq!((&*again.status, &again.id), ("duplicate", &enqueued.id));

    let seen = harness.get(&format!("/v1/tasks/{}", enqueued.id)).await.expect(200).json;
    assert_eq!((&seen["payload"], &seen["priority"]), (&json!({"to": "ada"}), &json!(3)));
    assert_eq!((&seen["headers"], &seen["order_key"]), (&json!({"trace": "1"}), &json!("o")));
    let found = grpc::FindTaskRequest {
        queue: "mail".to_owned(),
        dedup_key: "k".to_owned(),
        order_key: Some("o".to_owned()),
        ..Default::default()
    };
    let found = client.find_task(found).await.unwrap().into_inner();
    assert_eq!((&found.id, &*found.payload), (&enqueued.id, br#"{"to": "ada"}"#.as_slice()));

    let claimed = claim(&mut client, "mail").await;
    assert_eq!((&claimed.id, claimed.attempt, claimed.priority), (&enqueued.id, 1, 3));
    assert_eq!(&*claimed.payload, br#"{"to": "ada"}"#.as_slice());
    let token = claimed.token.clone();
    let note = grpc::ProgressRequest { token: token.clone(), percent: 40, note: "half".to_owned() };
    assert_eq!(client.progress(note).await.unwrap().into_inner().id, claimed.id);
    let extend = grpc::ExtendRequest { token: token.clone(), hold_ms: Some(60_000) };
    let held = client.extend(extend).await.unwrap().into_inner();
    assert!(held.deadline.unwrap().seconds > claimed.deadline.unwrap().seconds);
    let claims = client.list_claims(grpc::ListClaimsRequest::default()).await.unwrap().into_inner().claims;
    assert_eq!((&claims[0].id, claims[0].progress.as_ref().unwrap().percent), (&claimed.id, 40));

    let ack = grpc::AckRequest {
        token: token.clone(),
        output: r#"{"sent":true}"#.into(),
        then: vec![task("audit", "log")],
        claim: None,
    };
    let acked = client.ack(ack.clone()).await.unwrap().into_inner().settled.unwrap();
    assert_eq!((&acked.id, &*acked.state), (&claimed.id, "done"));
    let repeated = client.ack(ack).await.unwrap().into_inner().settled.unwrap();
    assert_eq!(repeated, acked, "the same ack again has the same answer");
    let done = client.get_task(grpc::GetTaskRequest { id: claimed.id.clone(), ..Default::default() }).await;
    let done = done.unwrap().into_inner();
    assert_eq!(done.output.as_deref(), Some(br#"{"sent":true}"#.as_slice()));
    assert_eq!(done.history.first().unwrap().event, "enqueued");
    assert_eq!(claim(&mut client, "audit").await.kind, "log");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_any_kind_come_back_as_they_were() {
    let harness = start().await;
    let mut client = harness.grpc().await;
    let bytes: Vec<u8> = (0..=255).collect();
    let binary = grpc::Task {
        payload: bytes.clone().into(),
        content_type: "image/png".to_owned(),
        ..task("pictures", "shrink")
    };
    enqueue(&mut client, binary).await.unwrap();
    let claimed = claim(&mut client, "pictures").await;
    assert_eq!((claimed.payload.as_ref(), &*claimed.content_type), (&bytes[..], "image/png"));
    harness.stop().await;
}

type Call = Box<dyn for<'a> FnOnce(&'a mut Client) -> BoxFuture<'a, tonic::Status>>;

/// A refusal over HTTP and over gRPC, which must have the same code.
struct Case {
    what: &'static str,
    code: &'static str,
    status: Code,
    http: (&'static str, &'static str, String),
    grpc: Call,
}

macro_rules! case {
    ($what:expr, $code:expr, $status:ident, $method:expr, $path:expr, $body:expr, $call:ident, $request:expr) => {
        Case {
            what: $what,
            code: $code,
            status: Code::$status,
            http: ($method, $path, $body.to_string()),
            grpc: Box::new(move |client| {
                Box::pin(async move { client.$call($request).await.err().expect("a refusal") })
            }),
        }
    };
}

fn of_task(task: grpc::Task) -> grpc::EnqueueRequest {
    grpc::EnqueueRequest { task: Some(task) }
}

fn of_queues(queues: &[&str]) -> grpc::ClaimRequest {
    let queues = queues.iter().map(|name| grpc::QueueChoice { name: (*name).to_owned(), weight: None });
    grpc::ClaimRequest { queues: queues.collect(), worker: "w".to_owned(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_http_refuses_is_refused_by_the_same_code() {
    let harness = start().await;
    let mut client = harness.grpc().await;
    let unknown = "01994c2e-8f00-7001-8000-000000000000".to_owned();
    harness.enqueue("mail", r#"{"kind":"k","unique":{"key":"u","until":"final"}}"#).await;
    harness.enqueue("mail", r#"{"kind":"k","dedup_key":"d"}"#).await;
    harness.put("/v1/queues/full", r#"{"tasks_max":1,"shards":1}"#).await.expect(200);
    harness.enqueue("full", r#"{"kind":"k"}"#).await;
    harness.enqueue("held", r#"{"kind":"k"}"#).await;
    let held = harness.claim("held").await;
    let token = held["token"].as_str().unwrap().to_owned();
    let put_back = format!("/v1/tasks/{}/put-back", held["id"].as_str().unwrap());
    harness.post(&put_back, "").await.expect(200);
    let ack = grpc::AckRequest { token: token.clone(), ..Default::default() };
    let unique = grpc::Unique { key: "u".to_owned(), until: "final".to_owned() };
    let until = grpc::Unique { key: "x".to_owned(), until: "never".to_owned() };
    let by_id = grpc::TaskIdRequest { id: unknown.clone() };
    let get = grpc::GetTaskRequest { id: unknown.clone(), ..Default::default() };
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let deep_body = format!(r#"{{"kind":"k","payload":{deep}}}"#);
    const TASKS: &str = "/v1/queues/mail/tasks";
    let mail = || task("mail", "k");
    let cases = vec![
        case!(
            "no kind",
            "invalid_request",
            InvalidArgument,
            "POST",
            TASKS,
            r#"{"kind":""}"#,
            enqueue,
            of_task(task("mail", ""))
        ),
        case!(
            "a bad queue",
            "invalid_request",
            InvalidArgument,
            "POST",
            "/v1/queues/a%20b/tasks",
            r#"{"kind":"k"}"#,
            enqueue,
            of_task(task("a b", "k"))
        ),
        case!(
            "JSON that is none",
            "invalid_request",
            InvalidArgument,
            "POST",
            TASKS,
            r#"{"kind":"k","payload":{]}"#,
            enqueue,
            of_task(grpc::Task { payload: "{]".into(), ..mail() })
        ),
        case!(
            "JSON too deep",
            "invalid_request",
            InvalidArgument,
            "POST",
            TASKS,
            deep_body,
            enqueue,
            of_task(grpc::Task { payload: deep.into(), ..mail() })
        ),
        case!(
            "a priority over the last",
            "invalid_request",
            InvalidArgument,
            "POST",
            TASKS,
            r#"{"kind":"k","priority":10}"#,
            enqueue,
            of_task(grpc::Task { priority: Some(10), ..mail() })
        ),
        case!(
            "a delay of a thousand years",
            "invalid_request",
            InvalidArgument,
            "POST",
            TASKS,
            r#"{"kind":"k","delay_ms":31536000000000}"#,
            enqueue,
            of_task(grpc::Task { delay_ms: Some(31_536_000_000_000), ..mail() })
        ),
        case!(
            "a hold too short",
            "invalid_request",
            InvalidArgument,
            "POST",
            TASKS,
            r#"{"kind":"k","hold_ms":1}"#,
            enqueue,
            of_task(grpc::Task { hold_ms: Some(1), ..mail() })
        ),
        case!(
            "no attempts",
            "invalid_request",
            InvalidArgument,
            "POST",
            TASKS,
            r#"{"kind":"k","retry":{"attempts":0}}"#,
            enqueue,
            of_task(grpc::Task {
                retry: Some(grpc::Retry { attempts: Some(0), ..Default::default() }),
                ..mail()
            })
        ),
        case!(
            "unique until never",
            "invalid_request",
            InvalidArgument,
            "POST",
            TASKS,
            r#"{"kind":"k","unique":{"key":"x","until":"never"}}"#,
            enqueue,
            of_task(grpc::Task { unique: Some(until), ..mail() })
        ),
        case!(
            "a unique key that is taken",
            "not_unique",
            AlreadyExists,
            "POST",
            TASKS,
            r#"{"kind":"k","unique":{"key":"u","until":"final"}}"#,
            enqueue,
            of_task(grpc::Task { unique: Some(unique), ..mail() })
        ),
        case!(
            "another kind of a dedup key",
            "dedup_mismatch",
            FailedPrecondition,
            "POST",
            TASKS,
            r#"{"kind":"other","dedup_key":"d"}"#,
            enqueue,
            of_task(grpc::Task { dedup_key: Some("d".to_owned()), ..task("mail", "other") })
        ),
        case!(
            "a full queue",
            "queue_full",
            ResourceExhausted,
            "POST",
            "/v1/queues/full/tasks",
            r#"{"kind":"k"}"#,
            enqueue,
            of_task(task("full", "k"))
        ),
        case!(
            "no tasks",
            "invalid_request",
            InvalidArgument,
            "POST",
            TASKS,
            r#"{"tasks":[]}"#,
            enqueue_many,
            grpc::EnqueueManyRequest::default()
        ),
        case!(
            "no queues",
            "invalid_request",
            InvalidArgument,
            "POST",
            "/v1/claims",
            r#"{"queues":[],"worker":"w"}"#,
            claim,
            of_queues(&[])
        ),
        case!(
            "a queue named twice",
            "invalid_request",
            InvalidArgument,
            "POST",
            "/v1/claims",
            r#"{"queues":["a","a"],"worker":"w"}"#,
            claim,
            of_queues(&["a", "a"])
        ),
        case!(
            "no worker",
            "invalid_request",
            InvalidArgument,
            "POST",
            "/v1/claims",
            r#"{"queues":["a"],"worker":""}"#,
            claim,
            grpc::ClaimRequest { worker: String::new(), ..of_queues(&["a"]) }
        ),
        case!(
            "a wait too long",
            "invalid_request",
            InvalidArgument,
            "POST",
            "/v1/claims",
            r#"{"queues":["a"],"worker":"w","wait_ms":60001}"#,
            claim,
            grpc::ClaimRequest { wait_ms: Some(60_001), ..of_queues(&["a"]) }
        ),
        case!(
            "a max too large",
            "invalid_request",
            InvalidArgument,
            "POST",
            "/v1/claims",
            r#"{"queues":["a"],"worker":"w","max":1001}"#,
            claim,
            grpc::ClaimRequest { max: Some(1_001), ..of_queues(&["a"]) }
        ),
        case!(
            "a session that there is not",
            "unknown_worker",
            NotFound,
            "POST",
            "/v1/claims",
            format!(r#"{{"queues":["a"],"worker":"w","session":"{}"}}"#, "0".repeat(32)),
            claim,
            grpc::ClaimRequest { session: "0".repeat(32), ..of_queues(&["a"]) }
        ),
        case!(
            "a token that we never made",
            "invalid_token",
            InvalidArgument,
            "POST",
            "/v1/claims/ack",
            r#"{"token":"x"}"#,
            ack,
            grpc::AckRequest { token: "x".to_owned(), ..Default::default() }
        ),
        case!(
            "a claim that was put back",
            "not_claimed",
            FailedPrecondition,
            "POST",
            "/v1/claims/ack",
            format!(r#"{{"token":"{token}"}}"#),
            ack,
            ack
        ),
        case!(
            "no such task",
            "not_found",
            NotFound,
            "GET",
            "/v1/tasks/01994c2e-8f00-7001-8000-000000000000",
            "",
            get_task,
            get
        ),
        case!(
            "a task that is no id",
            "invalid_request",
            InvalidArgument,
            "GET",
            "/v1/tasks/x",
            "",
            get_task,
            grpc::GetTaskRequest { id: "x".to_owned(), ..Default::default() }
        ),
        case!(
            "nothing to requeue",
            "not_found",
            NotFound,
            "POST",
            "/v1/tasks/01994c2e-8f00-7001-8000-000000000000/requeue",
            "",
            requeue_task,
            by_id
        ),
        case!(
            "a state that there is not",
            "invalid_request",
            InvalidArgument,
            "GET",
            "/v1/tasks?state=asleep",
            "",
            list_tasks,
            grpc::ListTasksRequest { state: Some("asleep".to_owned()), ..Default::default() }
        ),
        case!(
            "a page too long",
            "invalid_request",
            InvalidArgument,
            "GET",
            "/v1/tasks?limit=1001",
            "",
            list_tasks,
            grpc::ListTasksRequest { limit: Some(1_001), ..Default::default() }
        ),
        case!(
            "no such queue",
            "unknown_queue",
            NotFound,
            "GET",
            "/v1/queues/none",
            "",
            get_queue,
            grpc::GetQueueRequest { queue: "none".to_owned(), ..Default::default() }
        ),
        case!(
            "a policy out of range",
            "invalid_request",
            InvalidArgument,
            "PUT",
            "/v1/queues/mail",
            r#"{"hold_ms":1}"#,
            set_queue,
            grpc::SetQueueRequest { queue: "mail".to_owned(), hold_ms: Some(1), ..Default::default() }
        ),
        case!(
            "a word that there is not",
            "invalid_request",
            InvalidArgument,
            "PUT",
            "/v1/queues/mail",
            r#"{"freed_to":"side"}"#,
            set_queue,
            grpc::SetQueueRequest {
                queue: "mail".to_owned(),
                freed_to: Some("side".to_owned()),
                ..Default::default()
            }
        ),
        case!(
            "a queue that is not empty",
            "not_ready",
            FailedPrecondition,
            "DELETE",
            "/v1/queues/mail",
            "",
            delete_queue,
            grpc::QueueNameRequest { queue: "mail".to_owned() }
        ),
        case!(
            "no such worker",
            "unknown_worker",
            NotFound,
            "POST",
            "/v1/workers/none/drain",
            "",
            drain_worker,
            grpc::WorkerIdRequest { id: "none".to_owned() }
        ),
        case!(
            "slots over the limit",
            "invalid_request",
            InvalidArgument,
            "POST",
            "/v1/workers",
            r#"{"id":"w","slots":10001}"#,
            register,
            grpc::RegisterRequest { id: "w".to_owned(), slots: Some(10_001), ..Default::default() }
        ),
        case!(
            "a slow beat",
            "invalid_request",
            InvalidArgument,
            "POST",
            "/v1/workers",
            r#"{"id":"w","beat_ms":1001}"#,
            register,
            grpc::RegisterRequest { id: "w".to_owned(), beat_ms: Some(1_001), ..Default::default() }
        ),
        case!(
            "no such node",
            "not_found",
            NotFound,
            "POST",
            "/v1/cluster/promote",
            r#"{"node":9}"#,
            promote_node,
            grpc::PromoteNodeRequest { node: 9, shard: None }
        ),
    ];
    for Case { what, code, status, http: (method, path, body), grpc } in cases {
        let method = http::Method::from_bytes(method.as_bytes()).unwrap();
        let reply = harness.send(method, path, &[], body).await;
        assert_eq!(reply.code(), code, "{what} over HTTP: {:?}", reply.json);
        let refused = grpc(&mut client).await;
        assert_eq!((code_of(&refused), refused.code()), (code.to_owned(), status), "{what}: {refused:?}");
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_are_answered_in_order_each_for_itself() {
    let harness = start().await;
    let mut client = harness.grpc().await;
    let tasks = vec![task("mail", "a"), task("mail", "b"), task("mail", "c"), task("mail", "d")];
    let request = grpc::EnqueueManyRequest { tasks, atomic: true };
    let results = client.enqueue_many(request).await.unwrap().into_inner().results;
    assert_eq!(results.len(), 4);
    let request = grpc::ClaimRequest { max: Some(4), wait_ms: Some(5_000), ..of_queues(&["mail"]) };
    let claims = client.claim(request).await.unwrap().into_inner().claims;
    assert_eq!(claims.len(), 4);
    let say =
        |token: &str, outcome| grpc::Outcome { seq: 7, token: token.to_owned(), outcome: Some(outcome) };
    let outcomes = vec![
        say(&claims[0].token, outcome::Outcome::Ack(grpc::Done::default())),
        say("x", outcome::Outcome::Ack(grpc::Done::default())),
        say(&claims[1].token, outcome::Outcome::Extend(grpc::Extension::default())),
        say(
            &claims[2].token,
            outcome::Outcome::Fail(grpc::Failed { error: "no".to_owned(), ..Default::default() }),
        ),
        say(&claims[3].token, outcome::Outcome::Release(grpc::GivenBack::default())),
    ];
    let claim = Some(grpc::ClaimRequest { max: Some(1), ..of_queues(&["mail"]) });
    let reply = client.settle(grpc::SettleRequest { outcomes, claim }).await.unwrap().into_inner();
    let told: Vec<String> = reply
        .results
        .iter()
        .map(|result| match result.result.as_ref().unwrap() {
            outcome_result::Result::Settled(settled) => settled.state.clone(),
            outcome_result::Result::Held(held) => format!("held {}", held.id == claims[1].id),
            outcome_result::Result::Error(error) => error.code.clone(),
        })
        .collect();
    assert_eq!(told, ["done", "invalid_token", "held true", "retrying", "ready"]);
    assert!(reply.results.iter().all(|result| result.seq == 7), "the caller's number comes back");
    assert_eq!(reply.claims.len(), 1, "what was released is claimed in the same call");
    assert_eq!(reply.claims[0].id, claims[3].id);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_workers_and_the_cluster_are_shown_and_changed() {
    let harness = start().await;
    let mut client = harness.grpc().await;
    let set = grpc::SetQueueRequest {
        queue: "mail".to_owned(),
        hold_ms: Some(1_234),
        shards: Some("1".to_owned()),
        tasks_max: Some(9),
        ..Default::default()
    };
    let policy = client.set_queue(set).await.unwrap().into_inner().policy.unwrap();
    assert_eq!((policy.hold_ms, &*policy.shards, policy.tasks_max), (1_234, "1", Some(9)));
    let unlimited =
        grpc::SetQueueRequest { queue: "mail".to_owned(), no_tasks_max: true, ..Default::default() };
    let policy = client.set_queue(unlimited).await.unwrap().into_inner().policy.unwrap();
    assert_eq!((policy.hold_ms, policy.tasks_max), (1_234, None));
    let name = || grpc::QueueNameRequest { queue: "mail".to_owned() };
    assert!(client.pause_queue(name()).await.unwrap().into_inner().paused);
    assert!(!client.resume_queue(name()).await.unwrap().into_inner().paused);
    let id = enqueue(&mut client, task("mail", "k")).await.unwrap().id;
    let list = client.list_tasks(grpc::ListTasksRequest::default()).await.unwrap().into_inner();
    assert_eq!((list.tasks.len(), &list.tasks[0].id), (1, &id));
    let act = grpc::ActOnTasksRequest {
        action: "cancel".to_owned(),
        queue: Some("mail".to_owned()),
        ..Default::default()
    };
    assert_eq!(client.act_on_tasks(act).await.unwrap().into_inner().changed, 1);
    let why =
        client.why_task(grpc::WhyTaskRequest { id: id.clone(), stale: false }).await.unwrap().into_inner();
    assert_eq!(why.state, "cancelled");
    assert_eq!(client.requeue_task(grpc::TaskIdRequest { id }).await.unwrap().into_inner().state, "ready");
    assert_eq!(client.purge_queue(name()).await.unwrap().into_inner().purged, 1);
    let queues = client.list_queues(grpc::ListQueuesRequest::default()).await.unwrap().into_inner().queues;
    assert_eq!(queues[0].name, "mail");

    let register = grpc::RegisterRequest { id: "w".to_owned(), slots: Some(4), ..Default::default() };
    let session = client.register(register).await.unwrap().into_inner().session;
    let beat = grpc::BeatRequest { id: "w".to_owned(), session, running: Vec::new() };
    assert_eq!(client.beat(beat).await.unwrap().into_inner().state, "running");
    let worker = || grpc::WorkerIdRequest { id: "w".to_owned() };
    assert_eq!(client.drain_worker(worker()).await.unwrap().into_inner().state, "draining");
    assert_eq!(client.get_worker(worker()).await.unwrap().into_inner().state, "draining");
    let workers = client.list_workers(grpc::ListWorkersRequest::default()).await.unwrap().into_inner();
    assert_eq!((workers.workers.len(), workers.workers[0].slots), (1, 4));
    client.remove_worker(worker()).await.unwrap();

    let cluster = client.get_cluster(grpc::GetClusterRequest {}).await.unwrap().into_inner();
    let over_http = harness.get("/v1/cluster").await.expect(200).json;
    assert_eq!(
        (json!(cluster.cluster_id), json!(cluster.status)),
        (over_http["cluster_id"].clone(), json!("healthy"))
    );
    assert!(client.get_node(grpc::GetNodeRequest {}).await.unwrap().into_inner().ready);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_told_as_they_happen() {
    let harness = start().await;
    let mut client = harness.grpc().await;
    let mut events = client.events(grpc::EventsRequest::default()).await.unwrap().into_inner();
    let id = enqueue(&mut client, task("mail", "k")).await.unwrap().id;
    let event = loop {
        let event = events.message().await.unwrap().expect("the stream goes on");
        if event.event == "enqueued" {
            break event;
        }
    };
    assert_eq!((event.task.as_deref(), event.queue.as_deref()), (Some(&*id), Some("mail")));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_says_that_it_serves_and_what_there_is() {
    use tonic_health::pb::health_client::HealthClient;
    use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let harness = start().await;
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", harness.addr)).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let request = HealthCheckRequest { service: "windlass.v1.Windlass".to_owned() };
    // The status is set a moment after the start.
    let mut health = HealthClient::new(channel.clone());
    let serves = loop {
        match health.check(request.clone()).await {
            Ok(reply) => break reply.into_inner().status,
            Err(status) if status.code() == Code::NotFound => tokio::task::yield_now().await,
            Err(status) => panic!("{status:?}"),
        }
    };
    assert_eq!(serves, ServingStatus::Serving as i32);
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let asked =
        ServerReflectionClient::new(channel).server_reflection_info(futures::stream::iter([ask])).await;
    let told = asked.unwrap().into_inner().message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = told else { panic!("{told:?}") };
    let names: Vec<&str> = list.service.iter().map(|service| &*service.name).collect();
    assert!(names.contains(&"windlass.v1.Windlass") && names.contains(&"grpc.health.v1.Health"), "{names:?}");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_over_its_limit_and_an_unknown_call_are_refused() {
    let harness = support::start_with(|_| {}, |config| config.request_bytes_max = 64 * 1024).await;
    let mut client = harness.grpc().await;
    let large = grpc::Task { payload: vec![b'1'; 100 * 1024].into(), ..task("mail", "k") };
    let refused = enqueue(&mut client, large).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    assert_eq!(refused.metadata().get("windlass-code").unwrap(), "payload_too_large");
    let headers = [("content-type", "application/grpc")];
    let reply = harness.send(http::Method::POST, "/windlass.v1.Windlass/Nothing", &headers, "").await;
    assert_eq!(reply.headers["grpc-status"], (Code::Unimplemented as i32).to_string().as_str());
    enqueue(&mut client, task("mail", "k")).await.unwrap();
    harness.stop().await;
}
