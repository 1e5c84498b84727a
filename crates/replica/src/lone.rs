//! A group of one member on a disk in memory, for the tests that are under the code.

use std::path::Path;
use std::sync::{Arc, mpsc};

use model::{GroupId, MemberId, NodeId};
use state_machine::Catalog;
use storage::{CheckpointStore, Disk, Log, LogOptions, MemDisk, ThreadExecutor, checkpoint_path};

use crate::{Peers, Replica, ReplicaConfig, SystemClock};

/// Its log, its one replica, and what would end its process.
pub(crate) async fn start(peers: Arc<dyn Peers>) -> (Log, Replica<Catalog>, mpsc::Receiver<String>) {
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
    let founders = vec![(member, String::new())];
    let config = ReplicaConfig { founders, ..ReplicaConfig::new(group, member) };
    let log_of_group = log.group(group);
    let started = Replica::start(config, make, log_of_group, store, disk, clock, executor, peers).await;
    let replica = started.unwrap();
    replica.elect().await.unwrap();
    replica.ready().await.unwrap();
    (log, replica, ended)
}
