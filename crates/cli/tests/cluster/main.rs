//! Clusters of real processes against their promises: cold starts, kill -9, SIGSTOP, rolling restarts, cut networks,
//! lost disks, wrong clocks.
//!
//! `rig.rs` has the processes, `netns.rs` networks that can be cut, `client.rs` a caller that knows all nodes, `load.rs`
//! producers and workers that write down what they saw, `check.rs` what must be true of it, `agreement.rs` what must be
//! true of the copies, `sdk_worker.rs` a worker process. Each test is short here and long with
//! `WINDLASS_FAULTS=long` (`make test-faults`); figures are printed, run with `--nocapture` to see them. Chance comes from
//! a seed that is printed; `WINDLASS_SEED` gives the same again.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "tests")]

mod agreement;
mod check;
mod client;
mod clocks;
mod dev;
mod freeze;
mod leaders;
mod load;
mod netns;
mod operators;
mod partitions;
mod restarts;
mod rig;
mod sdk_faults;
mod sdk_worker;
mod starts;
mod strangers;
mod tls;
mod wipe;
mod workers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// Sets a flag when it is dropped, so that threads of a scope end when their test fails too.
struct Ends<'a>(&'a AtomicBool, bool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(self.1, Ordering::SeqCst);
    }
}

/// Held by each test here: they measure times, and must not measure each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often something is tried: few times in `make test`, often in `make test-faults`.
fn rounds(short: usize, long: usize) -> usize {
    if std::env::var("WINDLASS_FAULTS").is_ok_and(|form| form == "long") { long } else { short }
}

/// The most that something may take: `make test` shares its processors with other tests and allows five times that.
fn most(limit: std::time::Duration) -> std::time::Duration {
    limit * rounds(5, 1) as u32
}

/// Says aloud, also when output is captured, that something was not tried here.
fn skip(test: &str, why: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
}

/// Chance from a seed that is printed.
fn chance(test: &str) -> StdRng {
    let given = std::env::var("WINDLASS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(rand::random);
    println!("{test}: WINDLASS_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Prints the median and the worst of some times; those two.
fn report(what: &str, times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{what}: {median:?} (median), {worst:?} (worst) of {}", times.len());
    (median, worst)
}
