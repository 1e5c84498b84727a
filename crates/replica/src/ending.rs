//! An engine that ends although nobody asked it to: the whole process ends with it.
//!
//! It has met a state that it does not know, or a disk that does not do what it was told: what it holds cannot be
//! trusted, and a restart reads the disk anew. A node that went on with one dead group would be asked for it
//! again and again, and the others would take it for one that is up. The exception is a replica that was stopped
//! for good ([`crate::Replica::diverged`]): its node goes on without it.

use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::Fatal;
use tokio::sync::watch;

use crate::codec::Codec;
use crate::propose::Raft;
use crate::shared::Shared;

/// Waits for the engine to end by itself, until told to stop.
pub(crate) async fn run<M: Codec>(raft: Raft<M>, shared: Arc<Shared<M>>, mut stop: watch::Receiver<bool>) {
    // Closed when the engine ends, by a panic too; until then this changes rarely.
    let mut metrics = raft.server_metrics();
    loop {
        tokio::select! {
            changed = metrics.changed() => if changed.is_err() { break },
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
    // A panic says nothing.
    let ended = raft.metrics().borrow_watched().running_state.clone().err().unwrap_or(Fatal::Panicked);
    if *stop.borrow() || matches!(ended, Fatal::Stopped) {
        return;
    }
    let what = match ended {
        Fatal::Panicked => format!("the engine of group {} panicked", shared.group),
        ended => format!("the engine of group {} ended: {ended}", shared.group),
    };
    shared.failure.lock().get_or_insert_with(|| what.clone());
    shared.log.give_up(&what);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{NoPeers, Role, lone};

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_engine_that_panics_ends_the_process() {
        let (log, replica, ended) = lone::start(Arc::new(NoPeers)).await;
        replica.inner.raft.external_request(|_| panic!("as a bug in it does")).await.unwrap();
        let ended = tokio::task::spawn_blocking(move || ended.recv_timeout(PATIENCE)).await.unwrap();
        let ended = ended.unwrap();
        assert!(ended.starts_with("the engine of group 0 panicked"), "{ended}");
        let status = replica.status();
        assert_eq!(status.role, Role::Stopped);
        assert_eq!(status.failure.as_deref(), Some("the engine of group 0 panicked"));
        drop((replica, log));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_replica_that_was_stopped_leaves_the_process_alone() {
        let (log, replica, ended) = lone::start(Arc::new(NoPeers)).await;
        replica.diverged("its hash is another");
        let deadline = Instant::now() + PATIENCE;
        while replica.inner.raft.metrics().borrow_watched().running_state.is_ok() {
            assert!(Instant::now() < deadline, "{:?}", replica.status());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(replica.stop().await);
        assert_eq!(replica.status().role, Role::Stopped);
        log.close().unwrap();
        drop(replica);
        assert_eq!(ended.try_iter().next(), None);
    }
}
