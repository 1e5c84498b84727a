//! Workers that live, fall silent, leave and are removed.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use model::{FreedReason, Millis, StateKind, WallTime};
use node::Error;
use node::call::{ClaimCall, WorkerFacts, WorkerState};

use crate::support::*;

/// What frees a claim sooner was not silence, which takes 2.5 s.
const BY_SILENCE: Duration = Duration::from_millis(2_300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_worker_is_lost_and_its_claims_are_free_within_three_seconds() {
    let node = node().await;
    let mut events = node.events(None);
    node.enqueue(vec![task("mail"); 3], false).await.unwrap();
    let session = register(&node, "w1").await;
    let held = claim_in_session(&node, "mail", "w1", session).await;
    assert_eq!(held.len(), 3);
    let since = Instant::now();
    eventually("its claims are free", || async { depth(&node, "mail", StateKind::Ready).await == 3 }).await;
    assert!(since.elapsed() >= Duration::from_millis(2_400), "{:?}", since.elapsed());
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    let lost = loop {
        let event = events.next().await.unwrap();
        if event.kind == "worker_lost" {
            break event;
        }
    };
    assert_eq!((lost.worker, lost.freed, lost.reason), (Some(worker("w1")), Some(3), Some("silent")));
    assert!(lost.since_last_beat >= Some(Millis(2_500)));
    assert_eq!(node.worker(&worker("w1")).unwrap().state, WorkerState::Lost);
    let beat = node.beat(&worker("w1"), session, Vec::new()).await.unwrap_err();
    assert_eq!(beat, Error::UnknownWorker { worker: worker("w1") });
    let claim = ClaimCall { session: Some(session), ..claim_call("mail", 1, Millis(0)) };
    assert_eq!(node.claim(claim).await.unwrap_err().code(), "unknown_worker");
    let stats = node.stats().await.unwrap();
    assert!(stats.freed.contains(&(FreedReason::Silent, 3)), "{:?}", stats.freed);
    assert_eq!(stats.workers_lost, 1);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beats_keep_a_worker_and_its_claims() {
    let node = node().await;
    enqueue(&node, task("mail")).await;
    let session = register(&node, "w1").await;
    let held = claim_in_session(&node, "mail", "w1", session).await;
    let running = vec![(held[0].id, held[0].fence)];
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(3_500) {
        let answer = node.beat(&worker("w1"), session, running.clone()).await.unwrap();
        assert_eq!((answer.state, answer.cancel.len()), (WorkerState::Running, 0));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(ack(&node, &held[0]).await.unwrap().state, StateKind::Done);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_stream_frees_at_once_and_counts_an_attempt() {
    let node = node().await;
    enqueue(&node, task("mail")).await;
    let session = register(&node, "w1").await;
    let mut stream = node.hold_session(&worker("w1"), session).await.unwrap();
    assert_eq!(stream.next().await.unwrap().state, WorkerState::Running);
    claim_in_session(&node, "mail", "w1", session).await;
    let since = Instant::now();
    drop(stream);
    eventually("its claim is free", || async { depth(&node, "mail", StateKind::Ready).await == 1 }).await;
    assert!(since.elapsed() < BY_SILENCE, "{:?}", since.elapsed());
    assert_eq!(claim_one(&node, "mail").await.attempt, 2);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_was_replaced_may_break() {
    let node = node().await;
    enqueue(&node, task("mail")).await;
    let session = register(&node, "w1").await;
    let mut first = node.hold_session(&worker("w1"), session).await.unwrap();
    assert!(first.next().await.is_some());
    let mut second = node.hold_session(&worker("w1"), session).await.unwrap();
    assert!(first.next().await.is_none(), "the first is told that it was replaced");
    drop(first);
    assert!(second.next().await.is_some());
    let held = claim_in_session(&node, "mail", "w1", session).await;
    ack(&node, &held[0]).await.unwrap();
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_leaves_in_order_costs_no_attempt() {
    let node = node().await;
    enqueue(&node, task("mail")).await;
    let session = register(&node, "w1").await;
    claim_in_session(&node, "mail", "w1", session).await;
    node.end_session(&worker("w1")).await.unwrap();
    assert_eq!(claim_one(&node, "mail").await.attempt, 1);
    assert!(node.workers().is_empty());
    assert_eq!(node.end_session(&worker("w1")).await.unwrap_err().code(), "unknown_worker");
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_worker_is_fenced_and_its_claims_are_free() {
    let node = node().await;
    enqueue(&node, task("mail")).await;
    let session = register(&node, "w1").await;
    let held = claim_in_session(&node, "mail", "w1", session).await;
    node.remove_worker(&worker("w1")).await.unwrap();
    assert_eq!(ack(&node, &held[0]).await.unwrap_err().code(), "not_claimed");
    assert!(node.beat(&worker("w1"), session, Vec::new()).await.is_err());
    assert!(node.workers().is_empty());
    assert_eq!(claim_one(&node, "mail").await.attempt, 1);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_asked_to_drain_and_gets_nothing_more() {
    let node = node().await;
    let session = register(&node, "w1").await;
    let mut stream = node.hold_session(&worker("w1"), session).await.unwrap();
    assert!(stream.next().await.is_some());
    let waiting = tokio::spawn({
        let node = node.clone();
        let call = ClaimCall { session: Some(session), ..claim_call("mail", 1, Millis::secs(60)) };
        async move { node.claim(call).await }
    });
    eventually("it waits", || async { node.waiting_claims() == 1 }).await;
    node.drain(&worker("w1")).await.unwrap();
    assert_eq!(stream.next().await.unwrap().state, WorkerState::Draining);
    assert!(waiting.await.unwrap().unwrap().value.is_empty());
    assert_eq!(node.beat(&worker("w1"), session, Vec::new()).await.unwrap().state, WorkerState::Draining);
    enqueue(&node, task("mail")).await;
    assert!(claim_in_session(&node, "mail", "w1", session).await.is_empty());
    node.stop_worker(&worker("w1")).await.unwrap();
    assert_eq!(stream.next().await.unwrap().state, WorkerState::Stopping);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_two_beats_do_not_list_is_given_back() {
    let node = node().await;
    node.enqueue(vec![task("mail"); 2], false).await.unwrap();
    let session = register(&node, "w1").await;
    let held = claim_in_session(&node, "mail", "w1", session).await;
    let running = vec![(held[0].id, held[0].fence)];
    eventually("the other is ready again", || async {
        node.beat(&worker("w1"), session, running.clone()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        depth(&node, "mail", StateKind::Ready).await == 1
    })
    .await;
    let again = claim_one(&node, "mail").await;
    assert_eq!((again.id, again.attempt), (held[1].id, 1));
    ack(&node, &held[0]).await.unwrap();
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_hears_which_tasks_to_stop() {
    let node = node().await;
    node.enqueue(vec![task("mail"); 3], false).await.unwrap();
    let session = register(&node, "w1").await;
    let mut stream = node.hold_session(&worker("w1"), session).await.unwrap();
    assert!(stream.next().await.is_some());
    let held = claim_in_session(&node, "mail", "w1", session).await;
    node.cancel(held[0].id, "not needed".to_owned()).await.unwrap();
    assert_eq!(stream.next().await.unwrap().cancel, [(held[0].id, held[0].fence)]);
    node.discard(held[1].id).await.unwrap();
    let running = held.iter().map(|claim| (claim.id, claim.fence)).collect();
    let answer = node.beat(&worker("w1"), session, running).await.unwrap();
    assert_eq!(answer.cancel, [(held[0].id, held[0].fence)], "it is still the worker's");
    assert_eq!(answer.lost, [(held[1].id, held[1].fence)], "it is the worker's no more");
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_registers_anew_ends_its_life_before() {
    let node = node().await;
    enqueue(&node, task("mail")).await;
    let first = register(&node, "w1").await;
    let held = claim_in_session(&node, "mail", "w1", first).await;
    let second = register(&node, "w1").await;
    assert_ne!(first, second);
    eventually("its claim is free", || async { depth(&node, "mail", StateKind::Ready).await == 1 }).await;
    assert_eq!(ack(&node, &held[0]).await.unwrap_err().code(), "not_claimed");
    let same = node.register(WorkerFacts { session: Some(second), ..facts("w1") }).await.unwrap();
    assert_eq!(same.0, second, "a session can be gone on with");
    assert_eq!(node.workers().len(), 1);
    assert_eq!(node.slots().total, 8);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_passed_deadline_is_one_event_with_its_worker() {
    let node = node().await;
    let mut events = node.events(None);
    node.enqueue(vec![task("mail"); 2], false).await.unwrap();
    let call = ClaimCall { hold: Some(Millis(100)), ..claim_call("mail", 2, Millis(0)) };
    assert_eq!(node.claim(call).await.unwrap().value.len(), 2);
    let passed = loop {
        let event = events.next().await.unwrap();
        if event.kind == "deadline_passed" {
            break event;
        }
    };
    assert_eq!(passed.worker, Some(worker("w1")));
    eventually("both are free", || async { depth(&node, "mail", StateKind::Ready).await == 2 }).await;
    node.stop().await.unwrap();
}

/// A clock that can be set forward, as after a process stood still.
struct Late {
    clock: node::SystemClock,
    late_ms: AtomicU64,
}

impl node::Clock for Late {
    fn elapsed(&self) -> Millis {
        Millis(self.clock.elapsed().0 + self.late_ms.load(Ordering::SeqCst))
    }

    fn wall(&self) -> WallTime {
        self.clock.wall().after(Millis(self.late_ms.load(Ordering::SeqCst)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stood_still_gives_its_workers_time_to_be_heard() {
    let clock = Arc::new(Late { clock: node::SystemClock::new(), late_ms: AtomicU64::new(0) });
    let node =
        node::Node::start(config(&node::MemDisk::new()), clock.clone(), Arc::new(node::ThreadExecutor));
    let node = node.await.unwrap();
    enqueue(&node, task("mail")).await;
    let session = register(&node, "w1").await;
    let call = ClaimCall {
        session: Some(session),
        hold: Some(Millis::hours(1)),
        ..claim_call("mail", 1, Millis(0))
    };
    let held = node.claim(call).await.unwrap().value;
    clock.late_ms.store(60_000, Ordering::SeqCst);
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(node.worker(&worker("w1")).unwrap().state, WorkerState::Running);
    }
    let running = vec![(held[0].id, held[0].fence)];
    node.beat(&worker("w1"), session, running).await.unwrap();
    assert_eq!(ack(&node, &held[0]).await.unwrap().state, StateKind::Done);
    node.stop().await.unwrap();
}

/// Polls a future a few times' worth, then drops it, as when a caller disconnects.
async fn give_up_after(call: impl Future, patience: Duration) {
    let _ = tokio::time::timeout(patience, call).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_under_way_when_its_session_ends_is_given_back_whoever_may_ask_again() {
    let node = node().await;
    enqueue(&node, task("mail")).await;
    for n in 0..40 {
        let session = register(&node, "w1").await;
        let call = ClaimCall {
            session: Some(session),
            hold: Some(Millis::hours(1)),
            request_id: Some(format!("request-{n}")),
            ..claim_call("mail", 1, Millis(0))
        };
        let claiming = tokio::spawn({
            let node = node.clone();
            async move { give_up_after(node.claim(call), Duration::from_micros(n * 50)).await }
        });
        tokio::time::sleep(Duration::from_micros(n * 40)).await;
        node.end_session(&worker("w1")).await.unwrap();
        claiming.await.unwrap();
        eventually("it is ready again", || async { depth(&node, "mail", StateKind::Ready).await == 1 }).await;
    }
    // The last claim may only now be on its way, and back.
    let last = node.claim(claim_call("mail", 1, Millis::secs(30))).await.unwrap().value;
    assert_eq!(last[0].attempt, 1, "no attempt was used up");
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_removed_although_its_remover_goes_away() {
    let node = node().await;
    enqueue(&node, task("mail")).await;
    let session = register(&node, "w1").await;
    claim_in_session(&node, "mail", "w1", session).await;
    give_up_after(node.remove_worker(&worker("w1")), Duration::ZERO).await;
    eventually("it is listed no more", || async { node.workers().is_empty() }).await;
    assert_eq!(claim_one(&node, "mail").await.attempt, 1);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_removes_a_worker_finds_its_claims_free_also_the_second() {
    let node = node().await;
    for n in 0..20 {
        let name = format!("queue-{n}");
        enqueue(&node, task(&name)).await;
        let session = register(&node, "w1").await;
        assert_eq!(claim_in_session(&node, &name, "w1", session).await.len(), 1);
        let remove = || async {
            let removed = node.remove_worker(&worker("w1")).await;
            (removed, depth(&node, &name, StateKind::Ready).await)
        };
        let ((first, after_first), (second, after_second)) = tokio::join!(remove(), remove());
        let freed =
            |removed: Result<node::call::Answer<u64>, Error>| removed.map_or(0, |answer| answer.value);
        assert_eq!((after_first, after_second, freed(first) + freed(second)), (1, 1, 1), "{n}");
    }
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_worker_that_asks_anyway_waits_its_wait() {
    let node = node().await;
    enqueue(&node, task("mail")).await;
    let session = register(&node, "w1").await;
    node.drain(&worker("w1")).await.unwrap();
    let call = |wait| ClaimCall { session: Some(session), ..claim_call("mail", 1, wait) };
    let since = Instant::now();
    assert!(node.claim(call(Millis(300))).await.unwrap().value.is_empty());
    assert!(since.elapsed() >= Duration::from_millis(300), "{:?}", since.elapsed());
    assert_eq!(node.waiting_claims(), 0);
    let waiting = tokio::spawn({
        let (node, call) = (node.clone(), call(Millis::secs(60)));
        async move { node.claim(call).await }
    });
    eventually("it waits", || async { node.waiting_claims() == 1 }).await;
    node.remove_worker(&worker("w1")).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), "unknown_worker");
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_slots_are_those_without_a_claim_in_whichever_shard() {
    let node = node().await;
    let (first, second) = (register(&node, "w1").await, register(&node, "w2").await);
    let total = node.slots().total;
    let each = total / 2;
    let mut shards = HashSet::new();
    for n in 0.. {
        shards.insert(enqueue(&node, task("mail")).await.shard());
        if n > each && shards.len() == usize::from(node.shards()) {
            break;
        }
    }
    let claim = async |name: &str, session, max| {
        let call = claim_call("mail", max, Millis(0));
        let call = ClaimCall { worker: worker(name), session: Some(session), ..call };
        node.claim(call).await.unwrap().value.len() as u64
    };
    assert_eq!(claim("w1", first, 2).await, 2);
    assert_eq!(node.slots().open, total - 2);
    let more = claim("w1", first, 1_000).await;
    assert!(2 + more > each, "{more}");
    assert_eq!(node.slots().open, each, "one that holds more than it has slots takes none from others");
    for _ in 0..3 {
        enqueue(&node, task("mail")).await;
    }
    assert_eq!(claim("w2", second, 3).await, 3);
    assert_eq!(node.slots().open, each - 3);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_are_listed_page_by_page() {
    let node = node().await;
    for name in ["c", "a", "e", "b", "d"] {
        register(&node, name).await;
    }
    let (mut names, mut cursor) = (Vec::new(), None);
    loop {
        let page = node.workers_page(cursor.as_deref(), 2).unwrap();
        assert_eq!(page.slots.total, 40, "the slots are those of all");
        names.extend(page.workers.into_iter().map(|worker| worker.facts.name.as_str().to_owned()));
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    assert_eq!(node.workers_page(Some("!"), 2).unwrap_err().code(), "invalid_request");
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_leaves_ends_its_own_session_and_no_other() {
    let node = node().await;
    enqueue(&node, task("mail")).await;
    let first = register(&node, "w1").await;
    let before = node.hold_session(&worker("w1"), first).await.unwrap();
    // The worker started anew, and took its old name.
    let second = register(&node, "w1").await;
    let held = claim_in_session(&node, "mail", "w1", second).await;
    before.drain();
    assert_eq!(before.leave().await.unwrap().value, 0);
    let shown = node.worker(&worker("w1")).unwrap();
    assert_eq!((shown.session, shown.state), (second, WorkerState::Running), "neither drained nor ended");
    let after = node.hold_session(&worker("w1"), second).await.unwrap();
    after.drain();
    assert_eq!(node.worker(&worker("w1")).unwrap().state, WorkerState::Draining);
    assert_eq!(after.leave().await.unwrap().value, held.len() as u64, "what it held waits again");
    assert!(node.workers().is_empty(), "its life before is not listed either");
    assert_eq!(claim_one(&node, "mail").await.attempt, 1);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_on_the_way_to_a_worker_counts_as_held_and_is_never_called_lost() {
    let node = node().await;
    enqueue(&node, task("mail")).await;
    let session = register(&node, "w1").await;
    let held = claim_in_session(&node, "mail", "w1", session).await;
    let on_the_way = vec![(held[0].id, held[0].fence)];
    let beat =
        async || node.beat_on_stream(&worker("w1"), session, Vec::new(), on_the_way.clone()).await.unwrap();
    for _ in 0..3 {
        assert!(beat().await.lost.is_empty());
        // Longer than a claim may go unlisted.
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    assert_eq!(depth(&node, "mail", StateKind::Claimed).await, 1);
    node.put_back(held[0].id).await.unwrap();
    assert!(beat().await.lost.is_empty(), "it does not have it yet, so it need not hear that it lost it");
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_taken_only_while_another_process_has_an_open_stream() {
    let node = node().await;
    let process = |pid| WorkerFacts { host: Some("here".to_owned()), pid: Some(pid), ..facts("w1") };
    let (first, _) = node.register_alone(process(1)).await.unwrap();
    let (second, _) = node.register_alone(process(2)).await.unwrap();
    assert_ne!(first, second, "it had no stream");
    let stream = node.hold_session(&worker("w1"), second).await.unwrap();
    let refused = node.register_alone(process(3)).await.unwrap_err();
    assert_eq!((refused.code(), refused.retry_after()), ("not_unique", Some(Millis::secs(1))));
    assert!(refused.to_string().contains("host here, process 2"), "{refused}");
    let same = WorkerFacts { session: Some(second), ..process(2) };
    assert_eq!(node.register_alone(same).await.unwrap().0, second, "it may go on");
    drop(stream);
    eventually("its name is free", || async { node.register_alone(process(3)).await.is_ok() }).await;
    node.stop().await.unwrap();
}
