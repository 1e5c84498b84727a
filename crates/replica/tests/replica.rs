//! A replica on a disk: what it promises while it runs, after a stop and after a crash.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{GROUP, Node, Toy, ack, breaks_checkpoints, claim, config, discard, enqueue, task_id};
use model::limits::ENTRY_COMMANDS_MAX;
use model::{Event, Millis, Reply, Start, StateKind};
use replica::{Error, Heard, Replica, ReplicaConfig, Role};
use state_machine::Effect;
use storage::{Disk, MemDisk};

fn disk() -> MemDisk {
    MemDisk::new()
}

/// A pause so long that only the test checkpoints.
fn by_hand() -> ReplicaConfig {
    ReplicaConfig { checkpoint_interval: Millis::hours(1), ..config() }
}

async fn start(disk: &MemDisk, config: ReplicaConfig) -> Node {
    Node::start(Arc::new(disk.mount()), config).await
}

/// Waits until `condition` holds.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "not within 10 s: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_one_call_are_one_entry_and_are_answered_in_order() {
    let node = start(&disk(), config()).await;
    let applied = node.replica.propose((0..10).map(|n| enqueue(n, Start::Now)).collect()).await.unwrap();
    assert_eq!(applied.len(), 10);
    for (n, applied_one) in applied.iter().enumerate() {
        assert_eq!(applied_one.index, applied[0].index);
        let Ok(Reply::Enqueued(tasks)) = &applied_one.outcome else { panic!("{applied_one:?}") };
        assert_eq!(tasks[0].as_ref().unwrap().id, task_id(n as u64));
    }
    assert!(node.replica.propose(vec![]).await.unwrap().is_empty());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_an_answer_finds_its_entry_applied() {
    let node = start(&disk(), config()).await;
    for n in 0..500 {
        let applied = node.replica.propose(vec![enqueue(n, Start::Now)]).await.unwrap();
        assert!(node.replica.applied() >= applied[0].index, "{n}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_larger_than_an_entry_becomes_several_and_keeps_its_order() {
    let node = start(&disk(), config()).await;
    let count = ENTRY_COMMANDS_MAX as u64 + 10;
    let applied = node.replica.propose((0..count).map(|n| enqueue(n, Start::Now)).collect()).await.unwrap();
    assert_eq!(applied.len() as u64, count);
    assert!(applied.windows(2).all(|pair| pair[0].index <= pair[1].index));
    assert!(applied[0].index < applied[count as usize - 1].index);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_while_an_entry_is_written_shares_the_next_one() {
    let node = start(&disk(), config()).await;
    let calls = (0..500).map(|n| node.replica.propose(vec![enqueue(n, Start::Now)]));
    let applied = futures::future::join_all(calls).await;
    let mut indexes: Vec<_> = applied.into_iter().map(|applied| applied.unwrap()[0].index).collect();
    indexes.sort_unstable();
    indexes.dedup();
    assert!(indexes.len() < 100, "500 calls made {} entries", indexes.len());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejection_is_an_answer_and_not_an_error() {
    let node = start(&disk(), config()).await;
    node.one(enqueue(1, Start::Now)).await;
    let claims = node.claim(1).await;
    let twice = node.replica.propose(vec![ack(&claims[0]), ack(&claims[0])]).await.unwrap();
    assert!(twice[0].outcome.is_ok());
    assert_eq!(twice[1].outcome.as_ref().unwrap_err().code(), "not_found");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_sees_every_answer_given_before_it() {
    let node = start(&disk(), config()).await;
    for n in 0..50 {
        node.one(enqueue(n, Start::Now)).await;
        let seen = node.replica.read(|toy| toy.states().len() as u64).await.unwrap();
        assert_eq!(seen, n + 1);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_stop_the_state_comes_from_the_checkpoint_alone() {
    let disk = disk();
    let node = start(&disk, by_hand()).await;
    for n in 0..100 {
        node.one(enqueue(n, Start::Now)).await;
    }
    node.claim(3).await;
    let states = node.replica.read_stale(|toy| toy.states());
    node.stop().await;
    let node = start(&disk, by_hand()).await;
    assert_eq!(node.replica.read_stale(|toy| toy.states()), states);
    let status = node.replica.status();
    assert_eq!((status.role, status.group), (Role::Leader, GROUP));
    assert!(status.checkpointed >= Some(100));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_every_answered_command_is_there_again() {
    for seed in 0..8 {
        let disk = disk();
        let node = start(&disk, by_hand()).await;
        for n in 0..40 {
            node.one(enqueue(n, Start::Now)).await;
            if n == 10 {
                node.claim(2).await;
            }
            // A checkpoint in the middle, so that it and the log are both needed.
            if n == 20 && seed % 2 == 0 {
                node.replica.checkpoint_now().await.unwrap();
            }
        }
        let states = node.replica.read_stale(|toy| toy.states());
        disk.crash(seed);
        drop(node);
        let node = start(&disk, by_hand()).await;
        assert_eq!(node.replica.read_stale(|toy| toy.states()), states, "seed {seed}");
        assert_eq!(node.claim(1).await[0].envelope, "envelope 2");
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_brings_its_envelope_from_memory_or_from_disk() {
    for (what, cache, checkpoints) in [
        ("not on disk yet", 1 << 20, false),
        ("on disk and cached", 1 << 20, true),
        ("on disk alone", 0, true),
    ] {
        let node = start(&disk(), ReplicaConfig { envelope_cache_bytes: cache, ..by_hand() }).await;
        let commands = (0..2_500).map(|n| enqueue(n, Start::Now)).collect();
        node.replica.propose(commands).await.unwrap();
        if checkpoints {
            node.replica.checkpoint_now().await.unwrap();
        }
        assert_eq!(node.replica.status().envelope_cache_bytes > 0, cache > 0 && checkpoints, "{what}");
        let claims = node.claim(2_500).await;
        assert_eq!(claims.len(), 2_500, "{what}");
        for (n, claim) in claims.iter().enumerate() {
            assert_eq!(claim.envelope, format!("envelope {n}"), "{what}");
        }
        assert_eq!(node.replica.status().envelope_cache_bytes, 0, "{what}");
        let envelopes = node.replica.envelopes(&[task_id(7), task_id(9_999)]).await;
        let envelopes: Vec<_> = envelopes.into_iter().map(Result::unwrap).collect();
        assert_eq!(envelopes, [Some("envelope 7".into()), None], "{what}");
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_of_a_task_is_whole_wherever_its_checkpoints_fell() {
    for cuts in 0..8u32 {
        let node = start(&disk(), by_hand()).await;
        let checkpoint_if = |bit: u32| {
            let replica = node.replica.clone();
            async move {
                if cuts & bit != 0 {
                    replica.checkpoint_now().await.unwrap();
                }
            }
        };
        node.one(enqueue(1, Start::Now)).await;
        checkpoint_if(1).await;
        let claims = node.claim(1).await;
        checkpoint_if(2).await;
        node.one(ack(&claims[0])).await;
        checkpoint_if(4).await;
        let kept = node.replica.kept(task_id(1)).await.unwrap();
        assert_eq!(kept.envelope, Some("envelope 1".into()), "cuts {cuts:03b}");
        assert_eq!(kept.output, Some("out".into()), "cuts {cuts:03b}");
        let events: Vec<_> = kept.history.iter().map(|line| line.event.as_str()).collect();
        assert_eq!(events, ["enqueued", "claimed", "acked"], "cuts {cuts:03b}");
        node.one(discard(task_id(1))).await;
        checkpoint_if(1).await;
        assert_eq!(node.replica.kept(task_id(1)).await.unwrap(), Default::default(), "cuts {cuts:03b}");
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_lets_the_log_before_it_go() {
    let node = start(&disk(), by_hand()).await;
    for n in 0..20 {
        node.one(enqueue(n, Start::Now)).await;
    }
    let applied = node.replica.status().applied;
    assert!(node.replica.status().log_bytes > 0);
    node.replica.checkpoint_now().await.unwrap();
    assert_eq!(node.replica.status().checkpointed, applied);
    assert_eq!(node.replica.status().log_bytes, 0);
    eventually("the log is purged", || node.replica.status().purged == applied).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_checkpointed_without_anybody_asking() {
    let node = start(&disk(), ReplicaConfig { checkpoint_interval: Millis(5), ..config() }).await;
    node.one(enqueue(1, Start::Now)).await;
    let applied = node.replica.status().applied;
    eventually("a checkpoint", || node.replica.status().checkpointed >= applied).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_task_becomes_ready_at_its_time_and_an_idle_group_proposes_nothing() {
    let node = start(&disk(), config()).await;
    let asked = Instant::now();
    node.one(enqueue(1, Start::After(Millis(300)))).await;
    let ready = || node.replica.read_stale(|toy| toy.state(task_id(1))) == Some(StateKind::Ready);
    eventually("the task is ready", ready).await;
    let waited = asked.elapsed();
    assert!((Duration::from_millis(290)..Duration::from_millis(900)).contains(&waited), "{waited:?}");
    let applied = node.replica.status().applied;
    // Nothing is due: nothing can be awaited but time itself.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(node.replica.status().applied, applied);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_earlier_due_time_wakes_the_pulse() {
    let node = start(&disk(), config()).await;
    node.one(enqueue(1, Start::After(Millis::hours(1)))).await;
    node.one(enqueue(2, Start::After(Millis(50)))).await;
    let ready = || node.replica.read_stale(|toy| toy.state(task_id(2))) == Some(StateKind::Ready);
    let asked = Instant::now();
    eventually("the task is ready", ready).await;
    assert!(asked.elapsed() < Duration::from_millis(900), "{:?}", asked.elapsed());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_hears_of_what_happened_here_and_of_what_it_missed() {
    let node = start(&disk(), config()).await;
    let mut notices = node.replica.subscribe();
    node.one(enqueue(1, Start::Now)).await;
    let Some(Heard::Notice(heard)) = notices.next().await else { panic!("nothing heard") };
    let enqueued = |effect: &Effect| matches!(effect, Effect::Happened { event: Event::Enqueued { .. }, .. });
    assert!(heard.effects.iter().any(enqueued));
    assert!(heard.effects.iter().any(|effect| matches!(effect, Effect::Ready { .. })));
    for n in 2..6_000 {
        if node.replica.propose(vec![enqueue(n, Start::Now)]).await.unwrap()[0].index > 4_200 {
            break;
        }
    }
    assert!(matches!(notices.next().await, Some(Heard::Lagged(_))));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_replica_has_done_what_it_took_and_takes_nothing_more() {
    let disk = disk();
    let node = start(&disk, by_hand()).await;
    let replica = node.replica.clone();
    let calls: Vec<_> = (0..200)
        .map(|n| {
            let replica = replica.clone();
            tokio::spawn(async move { replica.propose(vec![enqueue(n, Start::Now)]).await })
        })
        .collect();
    node.stop().await;
    let mut done = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(_) => done += 1,
            Err(error) => assert!(matches!(error, Error::Stopped), "{error}"),
        }
    }
    assert!(matches!(replica.propose(vec![claim(1)]).await, Err(Error::Stopped)));
    assert_eq!(replica.status().role, Role::Stopped);
    drop(replica);
    let node = start(&disk, by_hand()).await;
    assert_eq!(node.replica.read_stale(|toy| toy.states().len()), done);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hashes_at_the_same_index_agree_after_a_replay() {
    let disk = disk();
    let node = start(&disk, by_hand()).await;
    for n in 0..1_100 {
        node.one(enqueue(n, Start::Now)).await;
    }
    let before = node.replica.status().hash_points;
    assert!(before.iter().any(|point| point.index == 1_024));
    disk.crash(3);
    drop(node);
    let node = start(&disk, by_hand()).await;
    let after = node.replica.status().hash_points;
    assert_eq!(before[0], after[0]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_does_not_fit_is_kept_and_written_when_there_is_room() {
    let disk = disk();
    let node = start(&disk, by_hand()).await;
    let commands = (0..30_000).map(|n| enqueue(n, Start::Now)).collect();
    node.replica.propose(commands).await.unwrap();
    disk.set_capacity(Some(disk.used_bytes()));
    let refused = node.replica.checkpoint_now().await;
    assert!(matches!(refused, Err(Error::Storage { .. })), "{refused:?}");
    assert_eq!(node.claim(1).await[0].envelope, "envelope 0");
    disk.set_capacity(None);
    node.replica.checkpoint_now().await.unwrap();
    let status = node.replica.status();
    assert_eq!(status.checkpointed, status.applied);
    disk.crash(1);
    drop(node);
    let node = start(&disk, by_hand()).await;
    assert_eq!(node.replica.read_stale(|toy| toy.states().len()), 30_000);
    assert_eq!(node.claim(1).await[0].envelope, "envelope 1");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_whose_hash_is_wrong_is_refused() {
    let disk = disk();
    let node = start(&disk, by_hand()).await;
    node.one(enqueue(1, Start::Now)).await;
    node.stop().await;
    {
        let path = storage::checkpoint_path(GROUP);
        let store = storage::CheckpointStore::open(Arc::new(disk.clone()), &path, 1 << 20).unwrap();
        let mut batch = storage::Batch::new();
        let (executions, key) = (state_machine::Table::Executions as u8, task_id(1).bits().to_be_bytes());
        let mut value = store.get(executions, &key).unwrap().unwrap().to_vec();
        value[0] = StateKind::Done as u8;
        batch.put(executions, &key, &value);
        store.write(&batch).unwrap();
    }
    let Err(error) = Node::try_start(Arc::new(disk), by_hand()).await else { panic!("it started") };
    assert!(error.to_string().contains("checkpoint is damaged"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_panics_ends_the_log() {
    let node = start(&disk(), by_hand()).await;
    node.one(discard(breaks_checkpoints())).await;
    let refused = node.replica.checkpoint_now().await;
    assert!(matches!(&refused, Err(Error::Storage { what, .. }) if what.contains("panicked")), "{refused:?}");
    assert!(node.log.fatal().unwrap().to_string().contains("panicked"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_went_and_came_again_begins_anew() {
    for cuts in 0..4u32 {
        let node = start(&disk(), ReplicaConfig { envelope_cache_bytes: 0, ..by_hand() }).await;
        node.one(enqueue(1, Start::Now)).await;
        node.replica.checkpoint_now().await.unwrap();
        node.claim(1).await;
        node.replica.checkpoint_now().await.unwrap();
        node.one(discard(task_id(1))).await;
        if cuts & 1 != 0 {
            node.replica.checkpoint_now().await.unwrap();
        }
        node.one(enqueue(1, Start::Now)).await;
        if cuts & 2 != 0 {
            node.replica.checkpoint_now().await.unwrap();
        }
        let kept = node.replica.kept(task_id(1)).await.unwrap();
        assert_eq!(kept.envelope, Some("envelope 1".into()), "cuts {cuts:02b}");
        assert_eq!(kept.history.len(), 1, "cuts {cuts:02b}");
        assert_eq!(node.claim(1).await[0].envelope, "envelope 1", "cuts {cuts:02b}");
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_and_a_checkpoint_that_do_not_follow_each_other_are_refused() {
    for (what, lost, text) in
        [("the checkpoint", "shards", "there is no checkpoint"), ("the log", "log", "the log is empty")]
    {
        let disk = disk();
        let node = start(&disk, by_hand()).await;
        for n in 0..20 {
            node.one(enqueue(n, Start::Now)).await;
        }
        node.replica.checkpoint_now().await.unwrap();
        eventually("the log is purged", || node.replica.status().purged >= Some(20)).await;
        node.stop().await;
        for path in disk.list(Path::new(lost)).unwrap() {
            disk.remove(&path).unwrap();
        }
        let Err(error) = Node::try_start(Arc::new(disk), by_hand()).await else {
            panic!("it started without {what}")
        };
        assert!(error.to_string().contains(text), "{what}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_piece_of_another_node_is_understood_before_it_is_proposed() {
    let node = start(&disk(), config()).await;
    let commands: Vec<_> = (0..3).map(|n| enqueue(n, Start::Now)).collect();
    let [piece] = &Replica::<Toy>::encode(&commands)[..] else { panic!("one piece") };
    let received = Replica::<Toy>::received(piece.bytes.clone()).unwrap();
    assert_eq!(&received, piece);
    let (done, refused) = node.replica.propose_pieces(&[received], Duration::from_secs(10)).await;
    assert_eq!((done.len(), refused.is_none()), (3, true));
    let cut = piece.bytes.slice(..piece.bytes.len() - 1);
    let unknown = Bytes::from_static(&[0x1a, 0x03, 0xfa, 0x06, 0x00]);
    for (what, bytes) in [("cut", cut), ("unknown", unknown), ("nothing", Bytes::new())] {
        let refused = Replica::<Toy>::received(bytes);
        assert!(matches!(refused, Err(Error::Malformed { .. })), "{what}: {refused:?}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_does_not_hold_up_a_stop_for_long() {
    let disk = disk();
    let config = ReplicaConfig { propose_timeout: Millis(200), ..by_hand() };
    let node = start(&disk, config).await;
    disk.set_capacity(Some(disk.used_bytes()));
    // A delayed task too: its pulse waits for the disk as well.
    node.one(enqueue(0, Start::After(Millis(50)))).await;
    let mut n = 1;
    while !node.log.is_out_of_room() {
        let commands = (n..n + 4_000).map(|n| enqueue(n, Start::Now)).collect();
        drop(node.replica.propose(commands).await);
        n += 4_000;
    }
    let asked = Instant::now();
    let Node { log, replica } = node;
    drop(replica.stop().await);
    let closed = tokio::task::spawn_blocking(move || log.close()).await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?} {closed:?}", asked.elapsed());
}
