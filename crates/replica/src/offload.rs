//! Runs short blocking reads away from async tasks, in order, on one thread.
//!
//! With an executor that has no threads (a simulation) the work runs at once, where it is asked for.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use parking_lot::Mutex;
use storage::Executor;
use tokio::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

/// A queue of blocking work.
pub(crate) struct Offload {
    /// To the thread, if there is one. It ends when this goes.
    queue: Option<Mutex<Sender<Work>>>,
}

impl Offload {
    pub(crate) fn new(executor: Arc<dyn Executor>, name: &str) -> Offload {
        if !executor.has_threads() {
            return Offload { queue: None };
        }
        let (queue, work) = mpsc::channel::<Work>();
        executor.spawn(name, Box::new(move || work.into_iter().for_each(|work| work())));
        Offload { queue: Some(Mutex::new(queue)) }
    }

    /// Runs `work` without anybody waiting for it.
    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        let Some(queue) = &self.queue else { return work() };
        let sent = queue.lock().send(Box::new(work));
        sent.expect("the thread takes work for as long as its queue lives");
    }

    /// Runs `work` and waits for its result.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = oneshot::channel();
        self.spawn(move || drop(done.send(work())));
        result.await.expect("work that was taken is done")
    }
}
