//! Where blocking work runs: on threads in production, in the caller's thread in a simulation.
//!
//! Nothing here knows what the work is. The log asks for one long-lived thread if there are threads, and
//! for a short job per batch if there are none (`writer.rs`).

use std::thread;
use std::time::Duration;

/// How much nicer than others a thread is whose work is long: about a third of their share of a busy processor.
const NICE_BEHIND: i32 = 5;

/// Blocking work, to be run once.
pub type Work = Box<dyn FnOnce() + Send>;

/// Runs blocking work away from async tasks.
pub trait Executor: Send + Sync + 'static {
    /// Runs `work`, now or later, here or elsewhere. `name` is for people who look at threads.
    fn spawn(&self, name: &str, work: Work);

    /// The same, for long work: it gets less of a busy processor than others. Such work must not hold a lock that
    /// requests wait for, or they would get less too.
    fn spawn_behind(&self, name: &str, work: Work) {
        self.spawn(name, work);
    }

    /// Whether work may wait for other work. If not, every job must be short and must never block on
    /// another one.
    fn has_threads(&self) -> bool;

    /// Runs `work` after a while. Asked only of an executor without threads: a thread waits by itself.
    /// One that has no time either, as by default, never runs it; the work must be such that nothing waits
    /// for it.
    fn spawn_after(&self, _name: &str, _delay: Duration, _work: Work) {}
}

/// A thread for each piece of work.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadExecutor;

impl Executor for ThreadExecutor {
    fn spawn(&self, name: &str, work: Work) {
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
            .expect("the operating system gives a process its few threads at start");
    }

    fn spawn_behind(&self, name: &str, work: Work) {
        let work = move || {
            // On Linux it is the thread's own. Where it is refused, the work is only less polite.
            let _ = rustix::process::nice(NICE_BEHIND);
            work();
        };
        self.spawn(name, Box::new(work));
    }

    fn has_threads(&self) -> bool {
        true
    }
}

/// Runs the work at once, in the caller's thread: the order of events is the order of calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct InlineExecutor;

impl Executor for InlineExecutor {
    fn spawn(&self, _name: &str, work: Work) {
        work();
    }

    fn has_threads(&self) -> bool {
        false
    }
}
