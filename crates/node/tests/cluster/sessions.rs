//! Workers that speak to any node, and are lost to all of them.

use std::time::{Duration, Instant};

use model::command::ClaimQueue;
use model::{Fence, GroupId, Millis, NodeId, QueueName, SessionId, StateKind, TaskId, WorkerName};
use node::Node;
use node::call::{Claim, ClaimCall, Freshness, WorkerFacts, WorkerState};

use crate::support::{World, address, enqueue, eventually, is_voted_by};

const TRIO: [u64; 3] = [1, 2, 3];
/// What frees a claim sooner was not silence, which takes 2.5 s.
const BY_SILENCE: Duration = Duration::from_millis(2_300);

/// Three nodes, told apart by who leads the shard of a task.
struct Stage {
    world: World,
    task: TaskId,
    /// The number of the node that leads the task's shard, and of the two others.
    leader: u64,
    others: [u64; 2],
}

impl Stage {
    async fn set() -> Stage {
        let mut world = World::new();
        world.start(&TRIO, &TRIO).await;
        let first = world.node(1).await;
        eventually("all three vote everywhere", || is_voted_by(&first, "1 2 3", "")).await;
        let task = enqueue(&first, "mail").await;
        let group = task.shard().group();
        let leader = leader(&first, group).unwrap().0;
        let others: Vec<u64> = TRIO.into_iter().filter(|node| *node != leader).collect();
        Stage { world, task, leader, others: [others[0], others[1]] }
    }

    async fn node(&mut self, node: u64) -> Node {
        self.world.node(node).await
    }

    /// The leader's node and the two others.
    async fn nodes(&mut self) -> (Node, Node, Node) {
        let [a, b] = self.others;
        (self.node(self.leader).await, self.node(a).await, self.node(b).await)
    }
}

fn leader(node: &Node, group: GroupId) -> Option<NodeId> {
    node.info().groups.iter().find(|line| line.group == group)?.leader
}

fn worker() -> WorkerName {
    WorkerName::new("w1").unwrap()
}

async fn register(node: &Node) -> SessionId {
    let facts = WorkerFacts { slots: 8, ..WorkerFacts::named(worker()) };
    node.register(facts).await.unwrap().0
}

async fn claim(node: &Node, session: SessionId) -> Claim {
    let call = ClaimCall {
        queues: vec![ClaimQueue { name: QueueName::new("mail").unwrap(), weight: 0 }],
        worker: worker(),
        session: Some(session),
        max: 1,
        hold: Some(Millis::hours(1)),
        wait: Millis::secs(5),
        request_id: None,
    };
    node.claim(call).await.unwrap().value.pop().unwrap()
}

async fn beat(node: &Node, session: SessionId, claim: &Claim) -> Vec<(TaskId, Fence)> {
    let answer = node.beat(&worker(), session, vec![(claim.id, claim.fence)]).await.unwrap();
    assert_eq!(answer.state, WorkerState::Running);
    answer.cancel
}

async fn state(node: &Node, task: TaskId) -> StateKind {
    node.task(task, Millis(0), Freshness::Linearizable).await.unwrap().view.state
}

/// How long it takes until the task is ready again.
async fn until_ready(node: &Node, task: TaskId) -> Duration {
    let since = Instant::now();
    while state(node, task).await != StateKind::Ready {
        assert!(since.elapsed() < Duration::from_secs(20), "not freed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    since.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_lives_on_whichever_node_hears_it_and_ends_in_silence() {
    let mut stage = Stage::set().await;
    let (led, a, b) = stage.nodes().await;
    let session = register(&a).await;
    let held = claim(&b, session).await;
    assert_eq!(held.id, stage.task);
    for node in [&led, &b] {
        let known = node.worker(&worker()).unwrap();
        assert_eq!((known.facts.slots, known.state), (8, WorkerState::Running));
        assert_eq!(node.slots().total, 8, "counted once");
    }
    // The node where it registered dies; it beats at the two others in turn.
    drop(a);
    stage.world.kill(stage.others[0]);
    let since = Instant::now();
    let mut turn = 0;
    while since.elapsed() < Duration::from_secs(4) {
        turn += 1;
        let cancel = beat(if turn % 2 == 0 { &led } else { &b }, session, &held).await;
        assert!(cancel.is_empty());
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    assert_eq!(state(&b, stage.task).await, StateKind::Claimed);
    // It beats at the one that does not lead, then no more.
    beat(&b, session, &held).await;
    let freed_after = until_ready(&led, stage.task).await;
    assert!(freed_after >= Duration::from_millis(2_300), "{freed_after:?}");
    assert!(freed_after < Duration::from_secs(10), "{freed_after:?}");
    eventually("both list it as lost", || {
        [&led, &b].iter().all(|node| node.worker(&worker()).is_ok_and(|info| info.state == WorkerState::Lost))
    })
    .await;
    assert_eq!(b.beat(&worker(), session, Vec::new()).await.unwrap_err().code(), "unknown_worker");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_restarts_as_a_whole_sends_no_worker_away_that_holds_a_claim() {
    let mut stage = Stage::set().await;
    let (led, a, b) = stage.nodes().await;
    let session = register(&a).await;
    let held = claim(&a, session).await;
    drop((led, a, b));
    for node in TRIO {
        stage.world.kill(node);
    }
    for node in TRIO {
        stage.world.launch(node, &TRIO);
    }
    let mut beating = Vec::new();
    for node in TRIO {
        let (node, running) = (stage.node(node).await, vec![(held.id, held.fence)]);
        beating.push(tokio::spawn(async move {
            let since = Instant::now();
            loop {
                match node.beat(&worker(), session, running.clone()).await {
                    Ok(answer) => return answer,
                    // It does not know yet, and says so.
                    Err(error) => assert_eq!(error.code(), "unavailable", "after {:?}", since.elapsed()),
                }
                assert!(since.elapsed() < Duration::from_secs(30), "no node knows");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }));
    }
    for answer in futures::future::join_all(beating).await {
        assert_eq!(answer.unwrap().state, WorkerState::Running);
    }
    let node = stage.node(1).await;
    assert_eq!(state(&node, stage.task).await, StateKind::Claimed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_workers_that_a_stream_speaks_for_live_on_at_all_nodes_without_a_beat() {
    let mut stage = Stage::set().await;
    let (led, a, b) = stage.nodes().await;
    let session = register(&a).await;
    let mut stream = a.hold_session(&worker(), session).await.unwrap();
    stream.vouch();
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(4) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!stream.is_over(), "lost after {:?}", since.elapsed());
    }
    for node in [&led, &b] {
        assert_eq!(node.worker(&worker()).unwrap().state, WorkerState::Running);
    }
    // Who holds a claim speaks for itself.
    let held = claim(&a, session).await;
    assert_eq!(held.id, stage.task);
    let freed_after = until_ready(&led, stage.task).await;
    assert!(freed_after >= Duration::from_millis(1_500), "{freed_after:?}");
    eventually("its node knows", || stream.is_over()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_at_one_node_frees_in_a_shard_that_another_leads() {
    let mut stage = Stage::set().await;
    let (led, a, b) = stage.nodes().await;
    let session = register(&a).await;
    let first = a.hold_session(&worker(), session).await.unwrap();
    let mut second = b.hold_session(&worker(), session).await.unwrap();
    let held = claim(&b, session).await;
    // The first was replaced by one elsewhere: its end ends nothing.
    drop(first);
    assert!(second.next().await.is_some());
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(1_200) {
        beat(&led, session, &held).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(state(&a, stage.task).await, StateKind::Claimed);
    drop(second);
    let freed_after = until_ready(&led, stage.task).await;
    assert!(freed_after < BY_SILENCE, "{freed_after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_person_asks_at_one_node_reaches_a_worker_at_another() {
    let mut stage = Stage::set().await;
    let (led, a, b) = stage.nodes().await;
    let session = register(&a).await;
    let held = claim(&a, session).await;
    let mut stream = a.hold_session(&worker(), session).await.unwrap();
    assert!(stream.next().await.is_some());
    eventually("all know it", || b.worker(&worker()).is_ok()).await;
    led.cancel(held.id, "not needed".to_owned()).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(5), stream.next()).await.unwrap().unwrap();
    assert_eq!(told.cancel, [(held.id, held.fence)]);
    b.drain(&worker()).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(5), stream.next()).await.unwrap().unwrap();
    assert_eq!(told.state, WorkerState::Draining);
    eventually("the leader's node knows", || {
        led.worker(&worker()).is_ok_and(|info| info.state == WorkerState::Draining)
    })
    .await;
    let removed = b.remove_worker(&worker()).await.unwrap();
    assert_eq!(removed.value, 1);
    assert!(tokio::time::timeout(Duration::from_secs(5), stream.next()).await.unwrap().is_none());
    eventually("nobody lists it", || [&led, &a, &b].iter().all(|node| node.workers().is_empty())).await;
    assert_eq!(a.beat(&worker(), session, Vec::new()).await.unwrap_err().code(), "unknown_worker");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_the_leader_cannot_hear_is_asked_for_before_it_is_called_silent() {
    let mut stage = Stage::set().await;
    let (led, a, b) = stage.nodes().await;
    let session = register(&a).await;
    let held = claim(&a, session).await;
    eventually("all know it", || led.worker(&worker()).is_ok()).await;
    // The node that hears it and the leader see only the third.
    stage.world.net.cut(&address(stage.leader), &address(stage.others[0]));
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(6) {
        beat(&a, session, &held).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(state(&b, stage.task).await, StateKind::Claimed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_ends_nobody_and_a_new_one_learns_all() {
    let mut stage = Stage::set().await;
    let (led, a, b) = stage.nodes().await;
    let session = register(&b).await;
    let held = claim(&b, session).await;
    eventually("all know it", || a.worker(&worker()).is_ok()).await;
    let [cut_off, other] = stage.others;
    for node in [stage.leader, other] {
        stage.world.net.cut(&address(cut_off), &address(node));
    }
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(4) {
        beat(&b, session, &held).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(a.worker(&worker()).unwrap().state, WorkerState::Running, "it does not know better");
    let strange = SessionId(7);
    assert_eq!(a.beat(&worker(), strange, Vec::new()).await.unwrap_err().code(), "unavailable");
    stage.world.net.heal();
    let since = Instant::now();
    let is_heard =
        || a.worker(&worker()).is_ok_and(|info| info.last_beat >= led.worker(&worker()).unwrap().last_beat);
    while since.elapsed() < Duration::from_secs(3) || !is_heard() {
        assert!(since.elapsed() < Duration::from_secs(20), "it never hears of the beats again");
        beat(&b, session, &held).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(state(&b, stage.task).await, StateKind::Claimed);
    // A restart: it knows nothing but what it is told.
    drop(a);
    stage.world.kill(cut_off);
    stage.world.launch(cut_off, &TRIO);
    let since = Instant::now();
    while !stage.world.has_started(cut_off) {
        assert!(since.elapsed() < Duration::from_secs(20), "it does not start");
        beat(&b, session, &held).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let a = stage.node(cut_off).await;
    let cancel = beat(&a, session, &held).await;
    assert!(cancel.is_empty());
    eventually("it knows all of it", || a.worker(&worker()).is_ok_and(|info| info.facts.slots == 8)).await;
    assert_eq!(state(&b, stage.task).await, StateKind::Claimed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stops_in_order_takes_no_session_with_it() {
    let mut stage = Stage::set().await;
    let (led, a, b) = stage.nodes().await;
    let session = register(&a).await;
    let held = claim(&a, session).await;
    let mut stream = a.hold_session(&worker(), session).await.unwrap();
    assert!(stream.next().await.is_some());
    drop(a);
    stage.world.stop(stage.others[0]).await;
    assert!(stream.next().await.is_none(), "it ends with its node");
    drop(stream);
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(3) {
        beat(&b, session, &held).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(state(&led, stage.task).await, StateKind::Claimed);
    let stream = led.hold_session(&worker(), session).await.unwrap();
    drop(stream);
    let freed_after = until_ready(&b, stage.task).await;
    assert!(freed_after < BY_SILENCE, "{freed_after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_tells_a_worker_from_another_of_the_same_name_host_and_process() {
    let mut stage = Stage::set().await;
    let (led, a, _) = stage.nodes().await;
    let facts = |instance, session, slots| WorkerFacts {
        host: Some("container".to_owned()),
        pid: Some(1),
        instance: Some(instance),
        session,
        slots,
        ..WorkerFacts::named(worker())
    };
    let (session, _) = a.register_alone(facts(7, None, 1)).await.unwrap();
    let mut stream = a.hold_session(&worker(), session).await.unwrap();
    stream.vouch();
    // Whoever knows this of it knows of its stream too.
    a.register_alone(facts(7, Some(session), 2)).await.unwrap();
    eventually("another node knows of it", || led.worker(&worker()).is_ok_and(|info| info.facts.slots == 2))
        .await;
    for node in [&a, &led] {
        assert_eq!(node.register_alone(facts(8, None, 1)).await.unwrap_err().code(), "not_unique");
    }
    let resumed = led.register_alone(facts(7, Some(session), 3)).await.unwrap();
    assert_eq!(resumed, (session, WorkerState::Running));
    let (anew, _) = led.register_alone(facts(7, None, 3)).await.unwrap();
    assert_ne!(anew, session, "it has lost its session, and takes its name again");
}
