//! The product against its promises: real processes, real disks, kill -9.
//!
//! Each test takes its own port and directory and ends only what it started. Figures that the tests
//! measure are printed; run with `--nocapture` to see them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod client;
mod delays;
mod kill;
mod server;
mod workers;

/// Held by each test here: they measure times, and must not measure each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
