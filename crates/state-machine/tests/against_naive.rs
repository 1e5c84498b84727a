//! The law: whatever the commands, a shard does what the naive model does.
//!
//! Three run side by side: the naive model, a shard that is never interrupted, and one that is
//! checkpointed in small slices while commands go on, and that crashes and starts again from its last
//! checkpoint and the commands after it. All must agree after every command. At the end the numbers
//! prove that every rejection, every reply and every state was met.

// A test is told by its caller how long to run.
#![allow(clippy::disallowed_methods)]

mod naive;
mod ops;
mod pair;

use std::cell::RefCell;
use std::collections::BTreeMap;

use model::StateKind;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use crate::pair::{Pair, Seen};

/// Sequences that each of the two threads runs.
const SEQUENCES: u32 = 5_200;

#[test]
fn a_shard_does_what_the_naive_model_does() {
    // Panics are how a sequence fails while the smallest one is sought: only that one is told.
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcomes: Vec<Result<Seen, String>> = std::thread::scope(|scope| {
        // Nested strategies are deep in a build without optimisation.
        let roomy = || std::thread::Builder::new().stack_size(64 << 20);
        let start =
            |thread| roomy().spawn_scoped(scope, move || run(thread)).expect("a thread can be started");
        let runs: Vec<_> = (1..=2).map(start).collect();
        runs.into_iter().map(|run| run.join().expect("a run tells its failure")).collect()
    });
    std::panic::set_hook(loud);
    let mut all = Seen::default();
    for outcome in outcomes {
        match outcome {
            Ok(seen) => all.add(&seen),
            Err(failure) => panic!("{failure}"),
        }
    }
    check_coverage(&all);
}

/// Runs random sequences. What they met, or what went wrong in the smallest one that failed.
fn run(thread: u8) -> Result<Seen, String> {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u32>().ok());
    let cases = number("PROPTEST_CASES").unwrap_or(SEQUENCES);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 100_000, ..Config::default() };
    let mut seed = [thread; 32];
    seed[..4].copy_from_slice(&number("WINDLASS_SEED").unwrap_or(0).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    // Limits are split over the shards: one thread has one, the other two.
    let shards = u16::from(thread);
    let sequences = (ops::first_steps(), ops::steps(1..36));
    let all = RefCell::new(Seen::default());
    let outcome = runner.run(&sequences, |(first, steps)| {
        let mut pair = Pair::new(shards);
        for step in first.iter().chain(&steps) {
            pair.step(step);
        }
        pair.drain();
        all.borrow_mut().add(&pair.seen);
        Ok(())
    });
    match outcome {
        Ok(()) => Ok(all.into_inner()),
        Err(TestError::Abort(why)) => Err(format!("aborted: {why}")),
        Err(TestError::Fail(why, (first, steps))) => {
            let steps: Vec<String> = first.iter().chain(&steps).map(|step| format!("  {step:?}")).collect();
            Err(format!("{why}\nsmallest sequence ({shards} shards):\n{}", steps.join("\n")))
        }
    }
}

const REJECTIONS: [&str; 12] = [
    "not_found",
    "unknown_queue",
    "not_claimed",
    "stale_token",
    "not_ready",
    "already_ended",
    "not_ended",
    "not_unique",
    "dedup_mismatch",
    "queue_full",
    "not_atomic",
    "stale_version",
];

const REPLIES: [&str; 7] = ["enqueued", "claimed", "settled", "held", "count", "upto", "done"];

fn check_coverage(seen: &Seen) {
    let count = |map: &BTreeMap<&'static str, u64>, what: &str| map.get(what).copied().unwrap_or(0);
    for code in REJECTIONS {
        assert!(
            count(&seen.rejections, code) >= 10,
            "rejection {code} was hardly met: {:?}",
            seen.rejections
        );
    }
    for reply in REPLIES {
        assert!(count(&seen.replies, reply) >= 10, "reply {reply} was hardly met: {:?}", seen.replies);
    }
    for state in StateKind::ALL {
        let met = count(&seen.states, state.as_str());
        assert!(met >= 100, "state {state} was hardly met: {:?}", seen.states);
    }
    for what in pair::MILESTONES {
        assert!(count(&seen.milestones, what) >= 10, "{what} hardly happened: {:?}", seen.milestones);
    }
}
