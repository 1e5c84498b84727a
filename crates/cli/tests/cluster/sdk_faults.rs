//! Workers on the Rust SDK that are killed, frozen, told to stop or blocked, and nodes that die under them.
//!
//! Times are printed; the promised limits are asserted in the long form, where nothing else runs beside.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::client::Client;
use crate::report;
use crate::rig::{PATIENCE, Rig, until};
use crate::sdk_worker::{Process, Shape, Stage, Work};
use crate::workers::text;

/// P6: how soon what a worker held runs elsewhere, when its connection closed and when it fell silent.
const KILLED_MAX: Duration = Duration::from_secs(1);
const FROZEN_MAX: Duration = Duration::from_secs(3);
/// In the short form the processor may be somebody else's for a while.
const BUSY_MAX: Duration = Duration::from_secs(30);
/// Tasks of one round: they lie in several shards.
const TASKS: usize = 4;
/// Silence after which claims are freed, and some more.
const SILENCE: Duration = Duration::from_secs(4);

/// A task of one round; its kind is its name.
struct Sent {
    kind: String,
    path: String,
}

impl Sent {
    /// What the cluster knows of it.
    fn look(&self, client: &mut Client) -> Value {
        client.safe("GET", &self.path, &Value::Null, Duration::ZERO, PATIENCE).unwrap().body
    }

    #[track_caller]
    fn await_done(&self, client: &mut Client) -> Value {
        let mut task = Value::Null;
        until("the task is done", || {
            task = self.look(client);
            task["state"] == "done"
        });
        task
    }

    /// That one worker did it, at this attempt, under the fence that its handler saw, and nobody else.
    #[track_caller]
    fn assert_done_by(&self, task: &Value, worker: &Process, attempt: u32) {
        let (_, begun, fence) = worker.begun(&self.kind).unwrap_or_else(|| panic!("not begun: {task}"));
        assert_eq!((&task["state"], begun), (&json!("done"), attempt), "{task}");
        assert_eq!(task["attempt"], attempt, "{task}");
        assert_eq!(task["output"], json!({"by": worker.name, "fence": fence}), "{task}");
        let acks: Vec<&Value> = lines(task, "acked");
        assert!(acks.len() == 1 && acks[0]["worker"] == worker.name.as_str(), "{task}");
        // A task that was freed may be offered to the same silent worker once more: that costs nobody an attempt.
        let claim = lines(task, "claimed").pop().unwrap_or_else(|| panic!("{task}"));
        let claimed = json!([claim["worker"], claim["attempt"], claim["fence"]]);
        assert_eq!(claimed, json!([worker.name, attempt, fence]), "{task}");
    }
}

/// The lines of a task's history with this event.
fn lines<'a>(task: &'a Value, event: &str) -> Vec<&'a Value> {
    task["history"].as_array().unwrap().iter().filter(|line| line["event"] == event).collect()
}

/// Sends `count` tasks that do this.
fn send(stage: &Stage, client: &mut Client, name: &str, count: usize, work: &Work) -> Vec<Sent> {
    let path = format!("/v1/queues/{}/tasks", stage.queue);
    let send = |n: usize| {
        let kind = format!("{name}-{n}");
        let task = json!({"kind": kind, "payload": work, "dedup_key": kind});
        let answer = client.post(&path, &task, PATIENCE).unwrap();
        let id = answer.body["id"].as_str().unwrap_or_else(|| panic!("{answer:?}"));
        Sent { path: format!("/v1/tasks/{id}"), kind }
    };
    (0..count).map(send).collect()
}

/// Prints what became of tasks that took too long; all the times.
fn told(
    client: &mut Client,
    round: &str,
    tasks: &[Sent],
    took: Vec<(String, Duration)>,
    promised: Duration,
) -> Vec<Duration> {
    for (kind, late) in took.iter().filter(|(_, took)| *took > promised) {
        let task = tasks.iter().find(|task| task.kind == *kind).map(|sent| sent.look(client));
        println!("{round}: {kind} took {late:?}: {}", task.unwrap_or_default()["history"]);
    }
    took.into_iter().map(|(_, took)| took).collect()
}

/// How long after `since` each of these runs at `rescuer`, as its second attempt.
#[track_caller]
fn rescued(held: &[&Sent], rescuer: &Process, since: SystemTime) -> Vec<(String, Duration)> {
    until("another worker runs all of them", || held.iter().all(|task| rescuer.begun(&task.kind).is_some()));
    let took = |task: &&Sent| {
        let (at, attempt, _) = rescuer.begun(&task.kind).unwrap();
        assert_eq!(attempt, 2, "{}: a lost worker uses up one attempt", task.kind);
        (task.kind.clone(), at.duration_since(since).unwrap_or_default())
    };
    held.iter().map(took).collect()
}

/// Of two workers, the one that runs the first task, and the other.
#[track_caller]
fn roles(workers: &[Process; 2], tasks: &[Sent]) -> (usize, usize) {
    let run = |worker: &Process, task: &Sent| worker.begun(&task.kind).is_some();
    until("all tasks run", || tasks.iter().all(|task| workers.iter().any(|worker| run(worker, task))));
    if run(&workers[0], &tasks[0]) { (0, 1) } else { (1, 0) }
}

fn limit(promised: Duration) -> Duration {
    if crate::rounds(0, 1) == 1 { promised } else { BUSY_MAX }
}

#[test]
fn the_tasks_of_a_killed_sdk_worker_run_on_another_within_a_second() {
    let _alone = crate::alone();
    let rig = Rig::started(3, &[]);
    let mut client = rig.client();
    let mut stage = Stage::new(&rig, "killed");
    let mut workers = [(); 2].map(|()| stage.start(Shape::default()));
    let mut times = Vec::new();
    for round in 0..crate::rounds(3, 50) {
        let gate = format!("kill-{round}");
        let tasks = send(&stage, &mut client, &gate, TASKS, &Work::Gate(gate.clone()));
        let (victim, rescuer) = roles(&workers, &tasks);
        let (held, others): (Vec<&Sent>, Vec<&Sent>) =
            tasks.iter().partition(|task| workers[victim].begun(&task.kind).is_some());
        let killed = workers[victim].kill();
        let took = rescued(&held, &workers[rescuer], killed);
        stage.open(&gate, &workers[rescuer]);
        for (tasks, attempt) in [(held, 2), (others, 1)] {
            for sent in tasks {
                sent.assert_done_by(&sent.await_done(&mut client), &workers[rescuer], attempt);
            }
        }
        times.extend(told(&mut client, &gate, &tasks, took, KILLED_MAX));
        workers[victim] = stage.start(Shape::default());
    }
    let (_, worst) = report("from the kill of a worker to its tasks running on another", &mut times);
    assert!(worst <= limit(KILLED_MAX), "P6: {worst:?}");
}

#[test]
fn the_tasks_of_a_frozen_sdk_worker_run_on_another_within_three_seconds_and_its_late_acks_are_refused() {
    let _alone = crate::alone();
    let rig = Rig::started(3, &[]);
    let mut client = rig.client();
    let mut stage = Stage::new(&rig, "frozen");
    let workers = [(); 2].map(|()| stage.start(Shape::default()));
    let (mut times, mut zombies) = (Vec::new(), 0);
    let refused_before = refused_acks(&rig);
    for round in 0..crate::rounds(3, 50) {
        let gate = format!("freeze-{round}");
        let tasks = send(&stage, &mut client, &gate, TASKS, &Work::Gate(gate.clone()));
        let (victim, rescuer) = roles(&workers, &tasks);
        let (zombie, rescuer) = (&workers[victim], &workers[rescuer]);
        let (held, others): (Vec<&Sent>, Vec<&Sent>) =
            tasks.iter().partition(|task| zombie.begun(&task.kind).is_some());
        let frozen = zombie.freeze();
        let took = rescued(&held, rescuer, frozen);
        // It wakes while the other is at work, or when that has finished; either way it is done at once, and says so.
        let is_over = round % 2 == 1;
        if is_over {
            stage.open(&gate, rescuer);
            held.iter().for_each(|sent| drop(sent.await_done(&mut client)));
        }
        stage.open(&gate, zombie);
        zombie.thaw();
        until("the zombie's handlers have ended, and it knows that their claims are lost", || {
            held.iter().all(|task| zombie.has_ended(&task.kind) && zombie.has_lost(&task.kind))
        });
        zombies += held.len();
        // What its SDK held back, if it did, would not have counted either.
        for sent in &held {
            let ack = json!({"token": zombie.token(&sent.kind).unwrap(), "output": "by a zombie"});
            let refused = client.safe("POST", "/v1/claims/ack", &ack, Duration::ZERO, PATIENCE).unwrap();
            assert_eq!((refused.status, refused.code()), (409, "stale_token"), "{refused:?}");
        }
        for sent in held.iter().filter(|_| !is_over) {
            let (task, (_, _, fence)) = (sent.look(&mut client), rescuer.begun(&sent.kind).unwrap());
            assert_eq!((&task["state"], &task["fence"]), (&json!("claimed"), &json!(fence)), "{task}");
        }
        stage.open(&gate, rescuer);
        for (tasks, attempt) in [(held, 2), (others, 1)] {
            for sent in tasks {
                sent.assert_done_by(&sent.await_done(&mut client), rescuer, attempt);
            }
        }
        times.extend(told(&mut client, &gate, &tasks, took, FROZEN_MAX));
    }
    let refused = refused_acks(&rig) - refused_before;
    println!(
        "{zombies} tasks ended in a zombie; the servers refused {refused} acks, {zombies} of them sent by hand"
    );
    let (_, worst) = report("from the freeze of a worker to its tasks running on another", &mut times);
    assert!(worst <= limit(FROZEN_MAX), "P6: {worst:?}");
}

/// Acks that the nodes refused so far.
fn refused_acks(rig: &Rig) -> u64 {
    let of = |address: SocketAddr| -> u64 {
        let page = text(address, "/metrics");
        let name = r#"windlass_operation_refused_total{operation="ack"}"#;
        let line = page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{page}"));
        line.trim().parse::<f64>().unwrap() as u64
    };
    rig.addresses().into_iter().map(of).sum()
}

#[test]
fn an_sdk_worker_whose_node_dies_goes_on_at_another_and_keeps_its_claims() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let mut client = rig.client();
    let mut stage = Stage::new(&rig, "moved");
    let worker = stage.start(Shape { slots: 32, ..Shape::default() });
    let mut times = Vec::new();
    for round in 0..crate::rounds(3, 50) {
        let gate = format!("move-{round}");
        let tasks = send(&stage, &mut client, &gate, 2 * TASKS, &Work::Gate(gate.clone()));
        until("all tasks run", || tasks.iter().all(|task| worker.begun(&task.kind).is_some()));
        let home = worker.connected_to().unwrap();
        let node = rig.nodes.iter().position(|node| home.ends_with(&node.http.to_string())).unwrap();
        let before = worker.notes().len();
        rig.kill(node);
        let killed = SystemTime::now();
        until("it is connected to another node", || {
            worker.notes().len() > before && worker.connected_to().is_some_and(|now| now != home)
        });
        times.push(killed.elapsed().unwrap_or_default());
        // Longer than silence takes: nobody but the worker keeps the claims.
        std::thread::sleep(SILENCE);
        stage.open(&gate, &worker);
        for sent in &tasks {
            let task = sent.await_done(&mut client);
            sent.assert_done_by(&task, &worker, 1);
            assert_eq!(worker.begins(&sent.kind).len(), 1, "begun again: {task}");
            assert!(lines(&task, "freed").is_empty() && !worker.has_lost(&sent.kind), "{task}");
        }
        rig.start(node);
        rig.await_ready(node);
        rig.await_leaders(PATIENCE);
    }
    report("from a node's death to its worker connected to another", &mut times);
}

#[test]
fn a_terminated_sdk_worker_with_32_tasks_loses_none_and_none_pays_an_attempt() {
    const RUNNING: usize = 32;
    let _alone = crate::alone();
    let rig = Rig::started(3, &[]);
    let mut client = rig.client();
    let mut stage = Stage::new(&rig, "terminated");
    for round in 0..crate::rounds(3, 50) {
        let (early, late) = (format!("early-{round}"), format!("late-{round}"));
        let grace = Duration::from_secs(2);
        let mut leaver = stage.start(Shape { slots: 32, grace, ..Shape::default() });
        let finishing = send(&stage, &mut client, &early, RUNNING / 2, &Work::Gate(early.clone()));
        let released = send(&stage, &mut client, &late, RUNNING / 2, &Work::Gate(late.clone()));
        let all: Vec<&Sent> = finishing.iter().chain(&released).collect();
        until("32 tasks run", || all.iter().all(|task| leaver.begun(&task.kind).is_some()));
        leaver.terminate();
        // Half of them come to their end within the grace. On a busy machine it may be over before they do: then they
        // are released, too.
        stage.open(&early, &leaver);
        assert_eq!(leaver.wait(), Some(0), "round {round}: it stops in order");
        for sent in &released {
            let task = sent.look(&mut client);
            let reasons: Vec<&Value> =
                lines(&task, "freed").into_iter().map(|line| &line["reason"]).collect();
            assert_eq!((&task["state"], reasons), (&json!("ready"), vec![&json!("released")]), "{task}");
        }
        let mut next = stage.start(Shape { slots: 32, ..Shape::default() });
        stage.open(&early, &next);
        stage.open(&late, &next);
        let mut by_leaver = 0;
        for sent in all {
            let task = sent.await_done(&mut client);
            assert_eq!((&task["attempt"], lines(&task, "acked").len()), (&json!(1), 1), "{task}");
            assert!(lines(&task, "failed").is_empty(), "{task}");
            by_leaver += usize::from(task["output"]["by"] == leaver.name.as_str());
        }
        println!(
            "round {round}: of {RUNNING} tasks the one that left did {by_leaver}, the next one the rest"
        );
        assert!((crate::rounds(0, RUNNING / 2)..=RUNNING / 2).contains(&by_leaver), "{by_leaver}");
        next.terminate();
        assert_eq!(next.wait(), Some(0));
    }
}

#[test]
fn a_handler_that_blocks_its_thread_keeps_its_claim() {
    let _alone = crate::alone();
    let rig = Rig::started(3, &[]);
    let mut client = rig.client();
    let mut stage = Stage::new(&rig, "blocked");
    let blocked = Duration::from_secs(crate::rounds(13, 60) as u64);
    // Holds that are over several times meanwhile, and the default of the queue.
    let holds =
        [Some(Duration::from_millis(crate::rounds(4_000, 1_500) as u64)), Some(Duration::from_secs(5)), None];
    let mut workers = Vec::new();
    for (n, hold) in holds.into_iter().enumerate() {
        let worker = stage.start(Shape { slots: 1, hold, ..Shape::default() });
        let sent = send(&stage, &mut client, &format!("block-{n}"), 1, &Work::Block(blocked)).remove(0);
        until("it runs", || worker.begun(&sent.kind).is_some());
        workers.push((worker, sent));
    }
    // Nobody else would run it: so somebody is there who could.
    let idle = stage.start(Shape::default());
    std::thread::sleep(blocked / 2);
    for (worker, sent) in &workers {
        until("its handler ended", || worker.has_ended(&sent.kind));
        let task = sent.await_done(&mut client);
        sent.assert_done_by(&task, worker, 1);
        assert!(lines(&task, "freed").is_empty() && !worker.has_lost(&sent.kind), "{task}");
        assert!(idle.begun(&sent.kind).is_none(), "{task}");
    }
    println!("{} handlers blocked their threads for {blocked:?} and kept their claims", workers.len());
}
