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
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use model::{GroupId, MemberId, NodeId};
    use state_machine::Catalog;
    use storage::{CheckpointStore, Disk, Log, LogOptions, MemDisk, ThreadExecutor, checkpoint_path};

    use super::*;
    use crate::{NoPeers, Replica, ReplicaConfig, Role, SystemClock};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A group of one, and what ends its process.
    async fn start() -> (Log, Replica<Catalog>, mpsc::Receiver<String>) {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::default());
        let (ends, ended) = mpsc::channel();
        let on_fatal = Arc::new(move |error: &storage::Error| drop(ends.send(error.to_string())));
        let options = LogOptions { on_fatal, segment_bytes: 4 << 20, ..LogOptions::default() };
        let executor = Arc::new(ThreadExecutor);
        let (log, _) = Log::open(disk.clone(), Path::new("log"), options, executor.clone()).unwrap();
        disk.create_dir_all(Path::new("shards")).unwrap();
        let (group, member) = (GroupId::CATALOG, MemberId::new(NodeId(1), 0));
        let store = CheckpointStore::open(disk.clone(), &checkpoint_path(group), 1 << 20).unwrap();
        let (make, clock) = (Box::new(Catalog::default), Arc::new(SystemClock::new()));
        let (config, log_of_group) = (ReplicaConfig::new(group, member), log.group(group));
        let peers = Arc::new(NoPeers);
        let started = Replica::start(config, make, log_of_group, store, disk, clock, executor, peers).await;
        let replica = started.unwrap();
        replica.initialize(&[(member, String::new())]).await.unwrap();
        replica.ready().await.unwrap();
        (log, replica, ended)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_engine_that_panics_ends_the_process() {
        let (log, replica, ended) = start().await;
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
        let (log, replica, ended) = start().await;
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
