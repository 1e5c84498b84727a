//! Laws that hold on average or for every task, and that no single story shows: weights and backoffs.

use bytes::Bytes;
use model::command::{Claim, ClaimQueue};
use model::{
    Command, Digest, Elapsed, Millis, NewTask, Position, QueueName, Reply, RetryPolicy, ShardId, TaskId,
    WallTime, WorkerName,
};
use state_machine::{Effects, Shard, backoff};

fn shard() -> ShardId {
    ShardId::new(1).expect("a good shard")
}

fn id(n: u64) -> TaskId {
    TaskId::new(shard(), WallTime::from_millis(1), n)
}

/// How many tasks each queue gave to 1,000 claims of one, while all of them had some.
fn drawn(weights: &[u32]) -> Vec<usize> {
    let names: Vec<_> =
        (0..weights.len()).map(|n| QueueName::new(&format!("q{n}")).expect("a good name")).collect();
    let mut shard = Shard::new(shard(), 1);
    let mut index = 0;
    let mut apply = |command| {
        index += 1;
        let at = Position { index, n: 0, elapsed: Elapsed(0), wall: WallTime::from_millis(1) };
        shard.apply(at, command, &mut Effects::default()).expect("it is not rejected")
    };
    for (n, queue) in names.iter().enumerate() {
        let task = |m: u64| NewTask {
            id: id(n as u64 * 10_000 + m),
            queue: queue.clone(),
            kind_hash: 0,
            digest: Digest(0),
            priority: 5,
            wishes: None,
            envelope: Bytes::new(),
        };
        apply(Command::Enqueue { tasks: (0..1_000).map(task).collect(), atomic: false });
    }
    let queues =
        names.iter().zip(weights).map(|(name, weight)| ClaimQueue { name: name.clone(), weight: *weight });
    let worker = WorkerName::new("w1").expect("a good name");
    let claim = Claim { queues: queues.collect(), worker, session: None, max: 1, hold: None, request: None };
    let mut counts = vec![0; names.len()];
    for _ in 0..1_000 {
        let Reply::Claimed(claimed) = apply(Command::Claim(claim.clone())) else {
            panic!("a claim was answered")
        };
        let from = names.iter().position(|name| *name == claimed[0].queue).expect("a queue that was named");
        counts[from] += 1;
    }
    counts
}

#[test]
fn queues_are_drawn_as_often_as_their_weights_say() {
    for (what, weights, shares) in [
        ("three to one", vec![3, 1], vec![750, 250]),
        ("one to three", vec![1, 3], vec![250, 750]),
        ("all alike", vec![7, 7, 7], vec![333, 333, 333]),
        ("large ones", vec![1_000, 1], vec![999, 1]),
    ] {
        for (count, share) in drawn(&weights).into_iter().zip(shares) {
            let off = usize::abs_diff(count, share);
            // Four standard deviations of 1,000 draws are 63 at most.
            assert!(off <= 63, "{what}: drawn {count} times, its share is {share}");
        }
    }
}

#[test]
fn without_weights_the_first_queue_is_served_first() {
    assert_eq!(drawn(&[0, 0, 0]), [1_000, 0, 0]);
}

#[test]
fn a_queue_without_weight_waits_for_those_with_one() {
    assert_eq!(drawn(&[0, 5, 0]), [0, 1_000, 0]);
}

#[test]
fn a_backoff_doubles_up_to_its_cap_and_strays_by_a_fifth_at_most() {
    let policy = RetryPolicy { base: Millis(1_000), cap: Millis(60_000), ..RetryPolicy::default() };
    for attempt in 1..=100 {
        let doubled = 1_000u64.checked_shl(attempt - 1).filter(|_| attempt <= 20);
        let whole = doubled.unwrap_or(u64::MAX).min(60_000);
        let (mut least, mut most) = (u64::MAX, 0);
        for n in 0..500 {
            let Millis(wait) = backoff(&policy, id(n), attempt);
            assert_eq!(backoff(&policy, id(n), attempt), Millis(wait), "the same task and attempt");
            (least, most) = (least.min(wait), most.max(wait));
        }
        assert!(least >= whole * 8 / 10 && most <= whole * 12 / 10, "attempt {attempt}: {least} to {most}");
        // A herd spreads over nearly all of it.
        assert!(most - least > whole * 35 / 100, "attempt {attempt}: {least} to {most}");
    }
}

#[test]
fn an_absurd_backoff_does_not_overflow() {
    let endless = RetryPolicy { base: Millis(u64::MAX), cap: Millis(u64::MAX / 2), ..RetryPolicy::default() };
    assert!(backoff(&endless, id(1), u32::MAX).0 > u64::MAX / 3);
    let none = RetryPolicy { base: Millis(0), cap: Millis(0), ..RetryPolicy::default() };
    assert_eq!(backoff(&none, id(1), 5), Millis(0));
}
