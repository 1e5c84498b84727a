//! Runs short blocking reads away from async tasks, in order, on one thread.
//!
//! With an executor that has no threads (a simulation) the work runs at once, where it is asked for. Work
//! that panics ends the log, as a panic of an apply does, and not the thread: others wait for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Sender};

use parking_lot::Mutex;
use storage::{Executor, GroupLog};
use tokio::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

/// A queue of blocking work.
pub(crate) struct Offload {
    /// To the thread, if there is one. It ends when this goes.
    queue: Option<Mutex<Sender<Work>>>,
    log: GroupLog,
}

impl Offload {
    pub(crate) fn new(executor: &dyn Executor, log: GroupLog) -> Offload {
        if !executor.has_threads() {
            return Offload { queue: None, log };
        }
        let (queue, work) = mpsc::channel::<Work>();
        let name = format!("read-{}", log.group());
        executor.spawn(&name, Box::new(move || work.into_iter().for_each(|work| work())));
        Offload { queue: Some(Mutex::new(queue)), log }
    }

    /// Runs `work` without anybody waiting for it.
    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        let log = self.log.clone();
        let work = move || {
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                log.give_up(&panicked(&log));
            }
        };
        let Some(queue) = &self.queue else { return work() };
        let sent = queue.lock().send(Box::new(work));
        sent.expect("the thread takes work for as long as its queue lives");
    }

    /// Runs `work` and waits for its result.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> storage::Result<T> + Send + 'static,
    ) -> storage::Result<T> {
        let (done, result) = oneshot::channel();
        self.spawn(move || drop(done.send(work())));
        let panicked = |_| Err(storage::Error::Fatal { what: panicked(&self.log).into() });
        result.await.unwrap_or_else(panicked)
    }
}

fn panicked(log: &GroupLog) -> String {
    format!("a read of group {} panicked", log.group())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use model::GroupId;
    use storage::{Log, LogOptions, MemDisk, ThreadExecutor};

    use super::*;

    #[tokio::test]
    async fn work_that_panics_ends_the_log_and_not_the_thread() {
        let options = LogOptions { on_fatal: Arc::new(|_| ()), ..LogOptions::default() };
        let disk = Arc::new(MemDisk::new());
        let (log, _) = Log::open(disk, Path::new("log"), options, Arc::new(ThreadExecutor)).unwrap();
        let offload = Offload::new(&ThreadExecutor, log.group(GroupId(1)));
        let refused = offload.run::<()>(|| panic!("a bug")).await;
        assert!(matches!(refused, Err(storage::Error::Fatal { .. })), "{refused:?}");
        assert_eq!(offload.run(|| Ok(7)).await.unwrap(), 7);
        assert_eq!(log.fatal().unwrap().to_string(), refused.unwrap_err().to_string());
    }
}
