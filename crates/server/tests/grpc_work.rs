//! The `Work` stream: credit, outcomes, beats, and what becomes of a worker's claims when its stream ends.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use support::{Client, Harness, code_of, start, start_with};
use tokio::sync::mpsc;
use tonic::{Code, Streaming};
use wire::grpc::outcome::Outcome as Says;
use wire::grpc::outcome_result::Result as Told;
use wire::grpc::server_message::Message as FromServer;
use wire::grpc::worker_message::Message as FromWorker;
use wire::grpc::{self};

/// A worker that does what a test says.
struct Worker {
    say: mpsc::Sender<grpc::WorkerMessage>,
    hear: Streaming<grpc::ServerMessage>,
    welcome: grpc::Welcome,
}

fn hello(worker: &str) -> grpc::Hello {
    grpc::Hello {
        worker: worker.to_owned(),
        slots: Some(8),
        queues: vec![grpc::QueueChoice { name: "mail".to_owned(), weight: None }],
        version: "1".to_owned(),
        sdk: "test/1".to_owned(),
        ..Default::default()
    }
}

/// The messages of a channel, as a stream.
fn stream(mut said: mpsc::Receiver<grpc::WorkerMessage>) -> impl futures::Stream<Item = grpc::WorkerMessage> {
    futures::stream::poll_fn(move |context| said.poll_recv(context))
}

async fn open(client: &mut Client, hello: grpc::Hello) -> Result<Worker, tonic::Status> {
    let (say, said) = mpsc::channel(1_000);
    say.send(grpc::WorkerMessage { message: Some(FromWorker::Hello(hello)) }).await.unwrap();
    let mut hear = client.work(stream(said)).await?.into_inner();
    let first = hear.message().await?.unwrap().message.unwrap();
    let FromServer::Welcome(welcome) = first else { panic!("{first:?}") };
    Ok(Worker { say, hear, welcome })
}

impl Worker {
    async fn begin(harness: &Harness, name: &str) -> Worker {
        open(&mut harness.grpc().await, hello(name)).await.unwrap()
    }

    async fn say(&self, message: FromWorker) {
        self.say.send(grpc::WorkerMessage { message: Some(message) }).await.unwrap();
    }

    async fn credit(&self, more: u32) {
        self.say(FromWorker::Credit(grpc::Credit { more })).await;
    }

    async fn outcomes(&self, outcomes: Vec<grpc::Outcome>) {
        self.say(FromWorker::Outcomes(grpc::Outcomes { outcomes, credit: 0 })).await;
    }

    async fn beat(&self, held: &[&grpc::Claim], received: Option<u64>) {
        let held = held.iter().map(|claim| grpc::HeldTask { id: claim.id.clone(), fence: claim.fence });
        self.say(FromWorker::Beat(grpc::HeldTasks { held: held.collect(), received })).await;
    }

    /// The next message; nothing when the stream has ended well.
    async fn next(&mut self) -> Result<Option<FromServer>, tonic::Status> {
        let next = tokio::time::timeout(Duration::from_secs(10), self.hear.message());
        Ok(next.await.expect("a message within 10 s")?.map(|message| message.message.unwrap()))
    }

    async fn tasks(&mut self, count: usize) -> Vec<grpc::Claim> {
        let mut tasks = Vec::new();
        while tasks.len() < count {
            match self.next().await.unwrap().unwrap() {
                FromServer::Tasks(pushed) => tasks.extend(pushed.claims),
                FromServer::Beat(_) => {}
                other => panic!("{other:?}"),
            }
        }
        tasks
    }

    async fn results(&mut self, count: usize) -> Vec<grpc::OutcomeResult> {
        let mut results = Vec::new();
        while results.len() < count {
            match self.next().await.unwrap().unwrap() {
                FromServer::Results(told) => results.extend(told.results),
                other => panic!("{other:?}"),
            }
        }
        results
    }

    /// The status that the stream ends with.
    async fn end(&mut self) -> tonic::Status {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return tonic::Status::ok(""),
                Err(status) => return status,
            }
        }
    }
}

fn say(seq: u64, claim: &grpc::Claim, outcome: Says) -> grpc::Outcome {
    grpc::Outcome { seq, token: claim.token.clone(), outcome: Some(outcome) }
}

fn ack() -> Says {
    Says::Ack(grpc::Done::default())
}

async fn fill(harness: &Harness, count: usize) {
    let tasks = vec![r#"{"kind":"k","payload":1}"#; count].join(",");
    harness.post("/v1/queues/mail/tasks", format!(r#"{{"tasks":[{tasks}]}}"#)).await.expect(200);
}

async fn depth(harness: &Harness, state: &str) -> u64 {
    harness.get("/v1/queues/mail").await.expect(200).json["depth"][state].as_u64().unwrap()
}

async fn until_depth(harness: &Harness, state: &str, count: u64) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while depth(harness, state).await != count {
        assert!(Instant::now() < deadline, "{} are {state}, not {count}", depth(harness, state).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_pushed_up_to_the_credit_and_not_beyond() {
    let harness = start().await;
    fill(&harness, 10).await;
    let mut worker = Worker::begin(&harness, "w").await;
    assert_eq!((&*worker.welcome.state, worker.welcome.resumed), ("running", false));
    worker.beat(&[], None).await;
    assert!(matches!(worker.next().await.unwrap().unwrap(), FromServer::Beat(_)), "nothing before credit");
    worker.credit(3).await;
    let first = worker.tasks(3).await;
    assert_eq!(first.len(), 3, "no more than was granted");
    // An ack frees no credit by itself.
    worker.outcomes(first.iter().zip(1..).map(|(claim, seq)| say(seq, claim, ack())).collect()).await;
    let results = worker.results(3).await;
    let mut seqs: Vec<u64> = results.iter().map(|result| result.seq).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, [1, 2, 3]);
    assert!(results.iter().all(|one| matches!(&one.result, Some(Told::Settled(s)) if s.state == "done")));
    assert_eq!((depth(&harness, "ready").await, depth(&harness, "claimed").await), (7, 0));
    worker.credit(1).await;
    worker.credit(1).await;
    assert_eq!(worker.tasks(2).await.len(), 2);
    assert_eq!(depth(&harness, "claimed").await, 2);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_enqueued_later_reaches_a_waiting_worker() {
    let harness = start().await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.credit(4).await;
    let id = harness.enqueue("mail", r#"{"kind":"k","payload":{"a":1}}"#).await;
    let task = worker.tasks(1).await.remove(0);
    assert_eq!((&task.id, &*task.payload, &*task.queue), (&id, br#"{"a":1}"#.as_slice(), "mail"));
    let shown = harness.get("/v1/workers/w").await.expect(200).json;
    assert_eq!((&shown["labels"]["sdk"], &shown["running"]), (&"test/1".into(), &1.into()));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_outcome_is_answered_by_its_number() {
    let harness = start().await;
    fill(&harness, 4).await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.credit(4).await;
    let tasks = worker.tasks(4).await;
    let follow = grpc::Task { queue: "audit".to_owned(), kind: "log".to_owned(), ..Default::default() };
    let done = grpc::Done { output: "[1]".into(), then: vec![follow] };
    let failed = grpc::Failed { error: "no".to_owned(), fatal: true, ..Default::default() };
    worker
        .outcomes(vec![
            say(10, &tasks[0], Says::Ack(done)),
            say(11, &tasks[1], Says::Fail(failed)),
            say(12, &tasks[2], Says::Release(grpc::GivenBack { delay_ms: 60_000 })),
            say(13, &tasks[3], Says::Extend(grpc::Extension { hold_ms: Some(90_000) })),
            say(14, &tasks[3], Says::Progress(grpc::ProgressNote { percent: 50, note: "half".to_owned() })),
            say(15, &tasks[3], Says::Progress(grpc::ProgressNote { percent: 101, note: String::new() })),
            say(16, &grpc::Claim { token: "x".to_owned(), ..Default::default() }, ack()),
            grpc::Outcome { seq: 17, token: String::new(), outcome: None },
            say(18, &tasks[0], Says::Ack(grpc::Done { output: "no JSON".into(), then: Vec::new() })),
        ])
        .await;
    let mut results = worker.results(9).await;
    results.sort_unstable_by_key(|result| result.seq);
    let told: Vec<String> = results
        .iter()
        .map(|one| match one.result.as_ref().unwrap() {
            Told::Settled(settled) => settled.state.clone(),
            Told::Held(held) => format!("held {}", held.deadline.is_some()),
            Told::Error(error) => error.code.clone(),
        })
        .collect();
    let expected = [
        "done",
        "dead",
        "delayed",
        "held true",
        "held true",
        "invalid_request",
        "invalid_token",
        "invalid_request",
        "invalid_request",
    ];
    assert_eq!(told, expected);
    assert_eq!(harness.claim("audit").await["kind"], "log", "what follows was enqueued with the ack");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_stream_frees_its_claims_because_it_closed() {
    let harness = start().await;
    fill(&harness, 2).await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.credit(2).await;
    let tasks = worker.tasks(2).await;
    assert_eq!(depth(&harness, "claimed").await, 2);
    drop(worker);
    until_depth(&harness, "ready", 2).await;
    // Seen to close, which takes less than a second, and not waited for until it was silent.
    for task in tasks {
        let history =
            harness.get(&format!("/v1/tasks/{}", task.id)).await.expect(200).json["history"].clone();
        let freed = history.as_array().unwrap().iter().find(|line| line["event"] == "freed").unwrap();
        assert_eq!(freed["reason"], "closed", "{history}");
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_were_never_sent_are_given_back_without_an_attempt() {
    // All of them fit into what may wait for one worker.
    const TASKS: u64 = 60;
    let harness = start().await;
    let payload = "x".repeat(100 * 1024);
    for _ in 0..TASKS {
        harness.enqueue("mail", &format!(r#"{{"kind":"k","payload":"{payload}"}}"#)).await;
    }
    let worker = Worker::begin(&harness, "w").await;
    worker.credit(TASKS as u32).await;
    until_depth(&harness, "claimed", TASKS).await;
    // It reads nothing: what does not fit into the connection waits in the server.
    drop(worker);
    until_depth(&harness, "ready", TASKS).await;
    let tasks = harness.get("/v1/tasks?queue=mail&limit=200").await.expect(200).json;
    let tasks = tasks["tasks"].as_array().unwrap();
    let untouched = tasks.iter().filter(|task| task["attempt"] == 0).count();
    // The first messages may be on their way.
    assert!(untouched >= TASKS as usize / 2, "only {untouched} of {TASKS} were given back");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_comes_back_keeps_its_claims() {
    let harness = start().await;
    fill(&harness, 1).await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.credit(1).await;
    let task = worker.tasks(1).await.remove(0);
    let session = worker.welcome.session.clone();
    let mut again = open(&mut harness.grpc().await, grpc::Hello { session: session.clone(), ..hello("w") })
        .await
        .unwrap();
    assert_eq!((again.welcome.resumed, &again.welcome.session), (true, &session));
    let ended = worker.end().await;
    assert_eq!((ended.code(), code_of(&ended)), (Code::Aborted, "stale_version".to_owned()));
    drop(worker);
    // Longer than a broken stream is given: the claim must outlive it.
    let until = Instant::now() + Duration::from_millis(1_500);
    while Instant::now() < until {
        again.beat(&[&task], None).await;
        let FromServer::Beat(answer) = again.next().await.unwrap().unwrap() else { panic!("no answer") };
        assert_eq!((answer.lost.len(), answer.cancel.len()), (0, 0));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    again.outcomes(vec![say(1, &task, ack())]).await;
    assert!(
        matches!(&again.results(1).await[0].result, Some(Told::Settled(settled)) if settled.state == "done")
    );
    let stranger = grpc::Hello { session: "0".repeat(32), ..hello("other") };
    let stranger = open(&mut harness.grpc().await, stranger).await.unwrap();
    assert!(!stranger.welcome.resumed, "a session that is not known is begun anew, and that is told");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_leaves_the_claims_to_their_worker() {
    let mut harness = start().await;
    fill(&harness, 1).await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.credit(1).await;
    worker.tasks(1).await;
    let node = harness.node.clone();
    let (ended, ()) = tokio::join!(worker.end(), harness.stop_server());
    assert_eq!((ended.code(), code_of(&ended)), (Code::Unavailable, "unavailable".to_owned()));
    // Longer than a broken stream is given.
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    let held = node.worker(&model::WorkerName::new("w").unwrap()).unwrap();
    assert_eq!((held.state.as_str(), held.claims.len()), ("running", 1));
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_told_to_drain_to_stop_and_to_cancel() {
    let harness = start().await;
    fill(&harness, 2).await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.credit(1).await;
    let task = worker.tasks(1).await.remove(0);
    harness.delete(&format!("/v1/tasks/{}", task.id)).await.expect(200);
    let FromServer::Cancel(cancel) = worker.next().await.unwrap().unwrap() else { panic!("no cancel") };
    assert_eq!((&cancel.id, cancel.fence), (&task.id, task.fence));
    harness.post("/v1/workers/w/drain", "").await.expect(200);
    assert!(matches!(worker.next().await.unwrap().unwrap(), FromServer::Drain(_)));
    worker.credit(5).await;
    worker.beat(&[&task], None).await;
    let FromServer::Beat(answer) = worker.next().await.unwrap().unwrap() else {
        panic!("pushed while draining")
    };
    assert_eq!((&*answer.state, answer.cancel.len(), answer.lost.len()), ("draining", 1, 0));
    harness.post("/v1/workers/w/stop", "").await.expect(200);
    assert!(matches!(worker.next().await.unwrap().unwrap(), FromServer::Stop(_)));
    assert_eq!(depth(&harness, "ready").await, 1);
    harness.post("/v1/workers/w/remove", "").await.expect(200);
    let ended = worker.end().await;
    assert_eq!((ended.code(), code_of(&ended)), (Code::NotFound, "unknown_worker".to_owned()));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_says_goodbye_gives_its_tasks_back_without_an_attempt() {
    let harness = start().await;
    fill(&harness, 2).await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.credit(2).await;
    let tasks = worker.tasks(2).await;
    worker.outcomes(vec![say(1, &tasks[0], ack())]).await;
    worker.say(FromWorker::Goodbye(grpc::Goodbye {})).await;
    assert_eq!(worker.results(1).await.len(), 1, "what was said before is answered");
    assert_eq!(worker.next().await.unwrap(), None, "the stream ends well");
    let left = harness.until_state(&tasks[1].id, "ready").await;
    assert_eq!(left["attempt"], 0);
    harness.get("/v1/workers/w").await.expect(404);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_worker_loses_its_tasks_and_an_idle_one_only_needs_its_stream() {
    let harness = start().await;
    let mut idle = Worker::begin(&harness, "idle").await;
    fill(&harness, 1).await;
    let mut busy = Worker::begin(&harness, "busy").await;
    busy.credit(1).await;
    let task = busy.tasks(1).await.remove(0);
    let since = Instant::now();
    until_depth(&harness, "ready", 1).await;
    assert!(since.elapsed() > Duration::from_secs(1) && since.elapsed() < Duration::from_secs(4));
    let ended = busy.end().await;
    assert_eq!(code_of(&ended), "unknown_worker");
    // The other one said nothing either, and holds nothing.
    assert_eq!(harness.get("/v1/workers/idle").await.expect(200).json["state"], "running");
    idle.credit(1).await;
    assert_eq!(idle.tasks(1).await[0].id, task.id);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beat_frees_what_the_worker_does_not_know_unless_it_is_on_its_way() {
    let harness = start().await;
    fill(&harness, 1).await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.credit(1).await;
    let task = worker.tasks(1).await.remove(0);
    // It says that nothing has arrived yet: the task is on its way.
    for _ in 0..8 {
        worker.beat(&[], Some(0)).await;
        assert!(matches!(worker.next().await.unwrap().unwrap(), FromServer::Beat(_)));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(depth(&harness, "claimed").await, 1);
    // It says that one has arrived and that it holds none: it does not know of it any more.
    while depth(&harness, "claimed").await == 1 {
        worker.beat(&[], Some(1)).await;
        assert!(matches!(worker.next().await.unwrap().unwrap(), FromServer::Beat(_)));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    worker.beat(&[&task], Some(1)).await;
    let FromServer::Beat(answer) = worker.next().await.unwrap().unwrap() else { panic!("no answer") };
    assert_eq!(answer.lost.len(), 1, "it is told that the task is not its own");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_ack_in_each_message_many_in_flight_are_all_answered() {
    const TASKS: usize = 3_000;
    let harness = start().await;
    fill(&harness, TASKS).await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.credit(32).await;
    let (mut got, mut answered) = (0, 0);
    while answered < TASKS {
        match worker.next().await.unwrap().unwrap() {
            FromServer::Tasks(tasks) => {
                for claim in &tasks.claims {
                    got += 1;
                    worker.outcomes(vec![say(got, claim, ack())]).await;
                    worker.credit(1).await;
                }
            }
            FromServer::Results(told) => {
                assert!(told.results.iter().all(|one| matches!(one.result, Some(Told::Settled(_)))));
                answered += told.results.len();
            }
            other => panic!("{other:?}"),
        }
        assert!(got as usize - answered <= 64, "more is out than credit allows");
    }
    assert_eq!((depth(&harness, "ready").await, depth(&harness, "claimed").await), (0, 0));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_makes_no_sense_is_refused() {
    let harness = start().await;
    let mut client = harness.grpc().await;
    for (what, hello) in [
        ("no name", hello("")),
        ("too many slots", grpc::Hello { slots: Some(10_001), ..hello("w") }),
        ("a bad session", grpc::Hello { session: "x".to_owned(), ..hello("w") }),
        ("a slow beat", grpc::Hello { beat_ms: Some(5_000), ..hello("w") }),
        ("a hold too short", grpc::Hello { hold_ms: Some(1), ..hello("w") }),
    ] {
        let refused = open(&mut client, hello).await.err().unwrap_or_else(|| panic!("{what} was taken"));
        assert_eq!(
            (refused.code(), code_of(&refused)),
            (Code::InvalidArgument, "invalid_request".to_owned())
        );
    }
    let (say, said) = mpsc::channel(1);
    say.send(grpc::WorkerMessage { message: Some(FromWorker::Credit(grpc::Credit { more: 1 })) })
        .await
        .unwrap();
    assert_eq!(client.work(stream(said)).await.unwrap_err().code(), Code::InvalidArgument);
    for (what, message) in [
        ("too much credit", FromWorker::Credit(grpc::Credit { more: 10_001 })),
        ("a second hello", FromWorker::Hello(hello("w"))),
        (
            "a beat of no task",
            FromWorker::Beat(grpc::HeldTasks { held: vec![grpc::HeldTask::default()], received: None }),
        ),
    ] {
        let mut worker = open(&mut client, hello("w")).await.unwrap();
        worker.say(message).await;
        assert_eq!(worker.end().await.code(), Code::InvalidArgument, "{what}");
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_workers_write_nothing_to_the_log() {
    let harness = start_with(|_| {}, |_| {}).await;
    fill(&harness, 1).await;
    let mut client = harness.grpc().await;
    let mut workers = Vec::new();
    for n in 0..50 {
        let mut idle =
            open(&mut client, grpc::Hello { queues: Vec::new(), ..hello(&format!("w{n}")) }).await.unwrap();
        idle.credit(8).await;
        idle.beat(&[], Some(0)).await;
        assert!(matches!(idle.next().await.unwrap().unwrap(), FromServer::Beat(_)));
        workers.push(idle);
    }
    let before = harness.node.written();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let shown = harness.get("/v1/workers").await.expect(200).json;
    let states = shown["workers"].as_array().unwrap();
    assert_eq!(states.len(), 50);
    assert!(states.iter().all(|worker| worker["state"] == "running"), "{shown}");
    assert_eq!(harness.node.written(), before, "beats and open streams are not in the log");
    harness.stop().await;
}

fn process(host: &str, pid: u32) -> grpc::Hello {
    grpc::Hello { host: host.to_owned(), pid: Some(pid), ..hello("w") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_of_one_name_is_refused_while_the_first_is_there() {
    let harness = start().await;
    fill(&harness, 1).await;
    let mut first = open(&mut harness.grpc().await, process("a", 1)).await.unwrap();
    first.credit(1).await;
    let task = first.tasks(1).await.remove(0);
    for other in [process("b", 1), process("a", 2), hello("w")] {
        let refused = open(&mut harness.grpc().await, other).await.err().unwrap();
        assert_eq!((refused.code(), code_of(&refused)), (Code::AlreadyExists, "not_unique".to_owned()));
        assert!(refused.message().contains("host a, process 1"), "{}", refused.message());
    }
    let stale = grpc::Hello { session: "0".repeat(32), ..process("b", 1) };
    let refused = open(&mut harness.grpc().await, stale).await.err().unwrap();
    assert_eq!(code_of(&refused), "not_unique", "also one whose own session is over");
    first.beat(&[&task], None).await;
    let FromServer::Beat(answer) = first.next().await.unwrap().unwrap() else { panic!("no answer") };
    assert_eq!(answer.lost.len(), 0, "the first one lost nothing");
    let container = |instance| grpc::Hello { instance: Some(instance), ..process("a", 1) };
    // The same process that lost its session, or its memory of it.
    let second = open(&mut harness.grpc().await, container(7)).await.unwrap();
    assert!(!second.welcome.resumed);
    assert_eq!(code_of(&first.end().await), "unknown_worker");
    // Containers: the same host, the same process, another worker.
    let refused = open(&mut harness.grpc().await, container(8)).await.err().unwrap();
    assert_eq!(code_of(&refused), "not_unique");
    // The same worker comes back, with its session and without.
    let session = second.welcome.session.clone();
    let resumed = open(&mut harness.grpc().await, grpc::Hello { session, ..container(7) }).await.unwrap();
    assert!(resumed.welcome.resumed);
    let anew = open(&mut harness.grpc().await, container(7)).await.unwrap();
    assert!(!anew.welcome.resumed);
    drop((second, resumed, anew));
    let deadline = Instant::now() + Duration::from_secs(30);
    while open(&mut harness.grpc().await, process("b", 1)).await.is_err() {
        assert!(Instant::now() < deadline, "its name is never free again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credit_rides_with_outcomes() {
    let harness = start().await;
    fill(&harness, 5).await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.say(FromWorker::Outcomes(grpc::Outcomes { outcomes: Vec::new(), credit: 1 })).await;
    for seq in 1..5 {
        let task = worker.tasks(1).await.remove(0);
        let outcomes = vec![say(seq, &task, ack())];
        worker.say(FromWorker::Outcomes(grpc::Outcomes { outcomes, credit: 0 })).await;
        assert_eq!(worker.results(1).await.len(), 1);
        worker.say(FromWorker::Outcomes(grpc::Outcomes { outcomes: Vec::new(), credit: 1 })).await;
    }
    assert_eq!(worker.tasks(1).await.len(), 1);
    let over = grpc::Outcomes { outcomes: Vec::new(), credit: 10_001 };
    worker.say(FromWorker::Outcomes(over)).await;
    assert_eq!(worker.end().await.code(), Code::InvalidArgument, "the limit is that of credit");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_says_how_long_it_holds() {
    let harness = start().await;
    for (what, hold_ms, task, expected) in [
        ("as the queue says", None, r#"{"kind":"k"}"#, 30_000),
        ("as the task says", None, r#"{"kind":"k","hold_ms":7000}"#, 7_000),
        ("as the worker says", Some(5_000), r#"{"kind":"k","hold_ms":7000}"#, 5_000),
    ] {
        let hello = grpc::Hello { hold_ms, ..hello("w") };
        let mut worker = open(&mut harness.grpc().await, hello).await.unwrap();
        harness.enqueue("mail", task).await;
        worker.credit(1).await;
        let task = worker.tasks(1).await.remove(0);
        assert_eq!(task.hold_ms, expected, "{what}");
        worker.outcomes(vec![say(1, &task, ack())]).await;
        worker.results(1).await;
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_too_large_is_refused_in_words_and_the_session_lives_on() {
    let harness = start_with(|_| {}, |config| config.request_bytes_max = 256 * 1024).await;
    fill(&harness, 1).await;
    let mut worker = Worker::begin(&harness, "w").await;
    assert_eq!(worker.welcome.message_bytes_max, 256 * 1024);
    worker.credit(1).await;
    let task = worker.tasks(1).await.remove(0);
    let done = grpc::Done { output: vec![b'1'; 257 * 1024].into(), then: Vec::new() };
    for (outcomes, code, words) in [
        (vec![say(1, &task, Says::Ack(done))], "payload_too_large", "send less in one message"),
        (vec![grpc::Outcome::default(); 100_001], "payload_too_large", "more than 100000 items"),
        (vec![grpc::Outcome::default(); 10_001], "invalid_request", "more than 10000 items"),
    ] {
        worker.outcomes(outcomes).await;
        let ended = worker.end().await;
        assert_eq!((ended.code(), &*code_of(&ended)), (Code::InvalidArgument, code));
        assert!(ended.message().contains(words), "{ended}");
        let session = worker.welcome.session.clone();
        worker = open(&mut harness.grpc().await, grpc::Hello { session, ..hello("w") }).await.unwrap();
        assert!(worker.welcome.resumed);
    }
    worker.outcomes(vec![say(2, &task, ack())]).await;
    assert!(matches!(&worker.results(1).await[0].result, Some(Told::Settled(_))));
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_may_have_more_outcomes_than_one_call_takes() {
    const OUTCOMES: u64 = 10_000;
    let harness = start().await;
    fill(&harness, 1).await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.credit(1).await;
    let task = worker.tasks(1).await.remove(0);
    let wrong = grpc::Claim { token: "wrong".to_owned(), ..task.clone() };
    let claim = |seq: u64| if seq == OUTCOMES - 1 { &task } else { &wrong };
    worker.outcomes((0..OUTCOMES).map(|seq| say(seq, claim(seq), ack())).collect()).await;
    let results = worker.results(OUTCOMES as usize).await;
    let seqs: std::collections::BTreeSet<u64> = results.iter().map(|result| result.seq).collect();
    assert_eq!(seqs, (0..OUTCOMES).collect(), "each has its answer");
    let done = results.iter().filter(|result| matches!(result.result, Some(Told::Settled(_))));
    assert_eq!(done.map(|result| result.seq).collect::<Vec<_>>(), [OUTCOMES - 1]);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_drains_by_itself_gets_nothing_more() {
    let harness = start().await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.credit(8).await;
    worker.say(FromWorker::Draining(grpc::Draining {})).await;
    assert!(matches!(worker.next().await.unwrap().unwrap(), FromServer::Drain(_)), "it was heard");
    assert_eq!(harness.get("/v1/workers/w").await.expect(200).json["state"], "draining");
    fill(&harness, 3).await;
    worker.beat(&[], Some(0)).await;
    let FromServer::Beat(answer) = worker.next().await.unwrap().unwrap() else { panic!("pushed") };
    assert_eq!(answer.state, "draining");
    assert_eq!(depth(&harness, "ready").await, 3);
    worker.say(FromWorker::Goodbye(grpc::Goodbye {})).await;
    assert_eq!(worker.next().await.unwrap(), None);
    let mut next = Worker::begin(&harness, "w").await;
    assert_eq!(next.welcome.state, "running", "who comes after it is not drained by it");
    next.credit(3).await;
    assert_eq!(next.tasks(3).await.len(), 3);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_told_of_a_task_that_died_by_its_deadline() {
    let harness = start().await;
    harness.enqueue("mail", r#"{"kind":"k","retry":{"attempts":1}}"#).await;
    let hello = grpc::Hello { hold_ms: Some(500), ..hello("w") };
    let mut worker = open(&mut harness.grpc().await, hello).await.unwrap();
    worker.credit(1).await;
    let task = worker.tasks(1).await.remove(0);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        worker.beat(&[&task], Some(1)).await;
        let FromServer::Beat(answer) = worker.next().await.unwrap().unwrap() else { panic!("no answer") };
        if depth(&harness, "dead").await == 1 && !answer.lost.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "it is never told");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    harness.stop().await;
}

async fn fill_large(harness: &Harness, count: usize, bytes: usize) {
    let payload = "x".repeat(bytes);
    for _ in 0..count {
        harness.enqueue("mail", &format!(r#"{{"kind":"k","payload":"{payload}"}}"#)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beat_is_answered_before_the_tasks_that_wait() {
    const TASKS: usize = 80;
    let harness = start().await;
    fill_large(&harness, TASKS, 100 * 1024).await;
    let mut worker = Worker::begin(&harness, "w").await;
    worker.credit(TASKS as u32).await;
    until_depth(&harness, "claimed", TASKS as u64).await;
    worker.beat(&[], Some(0)).await;
    let mut tasks = 0;
    loop {
        // Slowly, so that the server has time to answer while most of it waits.
        tokio::time::sleep(Duration::from_millis(100)).await;
        match worker.next().await.unwrap().unwrap() {
            FromServer::Tasks(pushed) => tasks += pushed.claims.len(),
            FromServer::Beat(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(tasks < TASKS, "all {tasks} came first");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_worker_has_a_bound_in_bytes() {
    const TASKS: usize = 48;
    const BYTES: usize = 1_000_000;
    let harness = start().await;
    fill_large(&harness, TASKS + 1, BYTES).await;
    let mut worker = Worker::begin(&harness, "w").await;
    // By the first the server knows how large they are.
    worker.credit(1).await;
    let first = worker.tasks(1).await.remove(0);
    worker.outcomes(vec![say(1, &first, ack())]).await;
    worker.results(1).await;
    worker.credit(TASKS as u32).await;
    // It reads nothing: what the connection does not take waits in the server, and no more is claimed.
    let most = 3 * model::limits::PUSH_WAITING_BYTES_MAX / BYTES;
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        let claimed = depth(&harness, "claimed").await as usize;
        assert!(claimed <= most, "{claimed} of {TASKS} are claimed");
        worker.beat(&[], Some(1)).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // When it reads, the rest follows.
    let mut got = 0;
    while got < TASKS {
        got += worker.tasks(1).await.len();
    }
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_are_shared_by_their_weights() {
    let harness = start().await;
    for queue in ["mail", "reports"] {
        let tasks = vec![r#"{"kind":"k"}"#; 400].join(",");
        let path = format!("/v1/queues/{queue}/tasks");
        harness.post(&path, format!(r#"{{"tasks":[{tasks}]}}"#)).await.expect(200);
    }
    let choice = |name: &str, weight| grpc::QueueChoice { name: name.to_owned(), weight: Some(weight) };
    let queues = vec![choice("mail", 3), choice("reports", 1)];
    let mut worker = open(&mut harness.grpc().await, grpc::Hello { queues, ..hello("w") }).await.unwrap();
    let mut mails = 0;
    for _ in 0..400 {
        worker.credit(1).await;
        mails += u32::from(worker.tasks(1).await[0].queue == "mail");
    }
    // 300 on average, and by chance almost never further away than this; 200 without weights, 400 one after the other.
    assert!((250..=350).contains(&mails), "{mails} of 400");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_are_larger_than_those_before_do_not_pile_up_for_one_worker() {
    const LARGE: u64 = 40;
    let harness = start().await;
    let mut worker = Worker::begin(&harness, "w").await;
    for seq in 0..20 {
        fill(&harness, 10).await;
        worker.credit(10).await;
        let tasks = worker.tasks(10).await;
        worker.outcomes(tasks.iter().map(|task| say(seq, task, ack())).collect()).await;
        worker.results(10).await;
    }
    let payload = "x".repeat(1_000_000);
    for _ in 0..LARGE {
        let task = format!(r#"{{"kind":"k","payload":"{payload}"}}"#);
        harness.post("/v1/queues/mail/tasks", task).await.expect(201);
    }
    // Nobody reads what is sent, so most of them stay in the queue.
    worker.credit(LARGE as u32).await;
    let (deadline, mut looks_in_row) = (Instant::now() + Duration::from_secs(30), 0);
    while looks_in_row < 25 {
        assert!(Instant::now() < deadline, "{} wait for one worker", depth(&harness, "claimed").await);
        worker.beat(&[], Some(200)).await;
        let is_so = depth(&harness, "claimed").await >= 8 && depth(&harness, "ready").await >= LARGE / 2;
        looks_in_row = if is_so { looks_in_row + 1 } else { 0 };
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Now it reads, and gets all of them.
    let mut got: Vec<grpc::Claim> = Vec::new();
    while got.len() < LARGE as usize {
        if let FromServer::Tasks(pushed) = worker.next().await.unwrap().unwrap() {
            got.extend(pushed.claims);
            worker.beat(&got.iter().collect::<Vec<_>>(), Some(200 + got.len() as u64)).await;
        }
    }
    harness.stop().await;
}
