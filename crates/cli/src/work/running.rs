//! The tasks that run now, so that a beat can list them and anyone can stop them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::watch;

/// Why a program is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kill {
    /// The claim is no longer ours: somebody else may already run the task.
    Lost,
    /// Somebody asked for the task to be cancelled.
    Cancelled,
    /// We stop, and give it back.
    Stopping,
}

/// One running task.
struct Entry {
    fence: u64,
    queue: String,
    kind: String,
    attempt: u32,
    since: Instant,
    kill: watch::Sender<Option<Kill>>,
}

/// All of them, and what became of those before.
#[derive(Default)]
pub(super) struct Running {
    entries: Mutex<BTreeMap<String, Entry>>,
    pub(super) done: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) given_back: AtomicU64,
    pub(super) lost: AtomicU64,
}

impl Running {
    /// Takes a task in; what it returns tells when the program is to be killed.
    pub(super) fn insert(&self, claim: &super::handle::Claim) -> watch::Receiver<Option<Kill>> {
        let (kill, killed) = watch::channel(None);
        let entry = Entry {
            fence: claim.fence,
            queue: claim.queue.clone(),
            kind: claim.kind.clone(),
            attempt: claim.attempt,
            since: Instant::now(),
            kill,
        };
        self.lock().insert(claim.id.clone(), entry);
        killed
    }

    /// Forgets a task, if this claim of it is still the one that is known.
    pub(super) fn remove(&self, id: &str, fence: u64) {
        let mut entries = self.lock();
        if entries.get(id).is_some_and(|entry| entry.fence == fence) {
            entries.remove(id);
        }
    }

    /// Kills one, if it is the claim with this fence.
    pub(super) fn kill(&self, id: &str, fence: u64, why: Kill) {
        if let Some(entry) = self.lock().get(id).filter(|entry| entry.fence == fence) {
            entry.kill(why);
        }
    }

    /// Kills all.
    pub(super) fn kill_all(&self, why: Kill) {
        self.lock().values().for_each(|entry| entry.kill(why));
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// What a beat says.
    pub(super) fn beat(&self) -> Vec<Value> {
        self.lock().iter().map(|(id, entry)| json!({"id": id, "fence": entry.fence})).collect()
    }

    /// What the status page says.
    pub(super) fn status(&self) -> Value {
        let running: Vec<Value> = self
            .lock()
            .iter()
            .map(|(id, entry)| {
                json!({
                    "id": id, "fence": entry.fence, "queue": entry.queue, "kind": entry.kind,
                    "attempt": entry.attempt, "running_ms": entry.since.elapsed().as_millis() as u64,
                })
            })
            .collect();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({
            "running": running,
            "done": count(&self.done),
            "failed": count(&self.failed),
            "given_back": count(&self.given_back),
            "lost": count(&self.lost),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().expect("nobody panics while holding this lock")
    }
}

impl Entry {
    fn kill(&self, why: Kill) {
        // A lost claim cannot become less lost; anything else gives way to it.
        self.kill.send_if_modified(|current| {
            let changed = current.is_none() || (why == Kill::Lost && *current != Some(Kill::Lost));
            if changed {
                *current = Some(why);
            }
            changed
        });
    }
}
