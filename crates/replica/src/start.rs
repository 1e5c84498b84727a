//! Brings a replica up: the checkpoint into a fresh machine, then the engine, which replays the log after it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use model::{GroupId, NodeId};
use openraft::impls::BasicNode;
use openraft::{Config, SnapshotPolicy};
use prost::Message;
use state_machine::Table;
use storage::{CheckpointStore, Executor, GroupLog};
use tokio::sync::oneshot;
use wire::entry::{CheckpointHead, LogId as LogIdMessage};

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::keep::Keep;
use crate::log_store::LogStore;
use crate::machine_store::MachineStore;
use crate::network::Alone;
use crate::propose::Raft;
use crate::replica::ReplicaConfig;
use crate::shared::{Core, Shared};
use crate::tables;
use crate::type_config::{LogId, Membership, StoredMembership, log_id, membership_from_message};

/// Beats between members; an election begins when they stay out for a few of them.
const HEARTBEAT_MS: u64 = 500;
const ELECTION_MS_MIN: u64 = 1_500;
const ELECTION_MS_MAX: u64 = 3_000;

/// [`load`], on a thread that may block: replicas of one node load side by side.
pub(crate) async fn load_elsewhere<M: Codec>(
    config: &ReplicaConfig,
    machine: M,
    store: CheckpointStore,
    executor: &dyn Executor,
) -> Result<Core<M>> {
    let (done, loaded) = oneshot::channel();
    let (group, cache_bytes) = (config.group, config.envelope_cache_bytes);
    let work = move || {
        let loaded = catch_unwind(AssertUnwindSafe(|| load(group, machine, &store, cache_bytes)));
        let panicked = |_| Err(Error::Storage { group, what: damaged(&"loading it panicked") });
        drop(done.send(loaded.unwrap_or_else(panicked)));
    };
    executor.spawn(&format!("load-{group}"), Box::new(work));
    loaded.await.unwrap_or(Err(Error::Stopped))
}

/// A machine as its checkpoint describes it: records in, indexes built, hash compared.
fn load<M: Codec>(
    group: GroupId,
    mut machine: M,
    store: &CheckpointStore,
    envelope_cache_bytes: usize,
) -> Result<Core<M>> {
    let failed = |what: String| Error::Storage { group, what };
    let row = store.get(tables::HEAD, tables::HEAD_KEY).map_err(|error| failed(error.to_string()))?;
    let head = match row {
        Some(row) => Some(CheckpointHead::decode(row).map_err(|error| failed(damaged(&error)))?),
        None => None,
    };
    for table in Table::ALL {
        let mut refused = None;
        let read = store.for_each(table as u8, &mut |key, value| match machine.load(table, key, value) {
            Ok(()) => Ok(()),
            Err(error) => {
                refused = Some(damaged(&error));
                Err(storage::Error::Closed)
            }
        });
        if let Some(what) = refused {
            return Err(failed(what));
        }
        read.map_err(|error| failed(error.to_string()))?;
    }
    machine.loaded().map_err(|error| failed(damaged(&error)))?;
    if let Some(head) = &head
        && machine.hash() != head.hash()
    {
        return Err(failed(damaged(&"its hash is not the one that was written")));
    }
    let head = head.unwrap_or_default();
    let members = match &head.membership {
        Some(message) => membership_from_message(message).ok_or_else(|| failed(damaged(&"its members")))?,
        None => Membership::default(),
    };
    let membership = StoredMembership::new(head.membership_at.map(engine_id), members);
    let next_due = machine.next_due();
    Ok(Core {
        machine,
        keep: Keep::new(envelope_cache_bytes),
        applied: head.applied.map(engine_id),
        membership,
        bytes_since_cut: 0,
        hash_points: Default::default(),
        next_due,
    })
}

/// Refuses to start when the log does not go on where the checkpoint ends: the engine would go on without
/// the entries between, and nobody would hear that they are gone.
pub(crate) fn compare<M>(core: &Core<M>, log: &GroupLog) -> Result<()> {
    match log.state().gap_after(core.applied.map(|id| id.index)) {
        Some(what) => Err(Error::Storage { group: log.group(), what }),
        None => Ok(()),
    }
}

fn damaged(what: &dyn std::fmt::Display) -> String {
    format!("the checkpoint is damaged ({what}): restore it from a backup or from another member")
}

fn engine_id(id: LogIdMessage) -> LogId {
    log_id(id.term, id.index)
}

/// The engine of a group of one, leading as soon as it has read its log.
pub(crate) async fn engine<M: Codec>(shared: Arc<Shared<M>>, node: NodeId) -> Result<Raft<M>> {
    let group = shared.group;
    let failed = |what: String| Error::Storage { group, what };
    let config = config(group).validate().map_err(|error| failed(error.to_string()))?;
    let log = LogStore::new(shared.log.clone());
    let raft = Raft::new(node.0, Arc::new(config), Alone, log, MachineStore::new(shared)).await;
    let raft = raft.map_err(|error| failed(error.to_string()))?;
    let is_initialized = raft.is_initialized().await.map_err(|error| failed(error.to_string()))?;
    if is_initialized {
        // Alone, there is nobody to wait for.
        raft.trigger().elect(false).await.map_err(|error| failed(error.to_string()))?;
    } else {
        let members = BTreeMap::from([(node.0, BasicNode::default())]);
        raft.initialize(members).await.map_err(|error| failed(error.to_string()))?;
    }
    Ok(raft)
}

fn config(group: GroupId) -> Config {
    Config {
        cluster_name: format!("group {group}"),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MS_MIN,
        election_timeout_max: ELECTION_MS_MAX,
        enable_pre_vote: Some(true),
        // A checkpoint is the snapshot, and only `checkpoint` makes one.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        // What a leader had applied before a crash is not saved: it must win an election to know again.
        enable_leader_restore: Some(false),
        ..Config::default()
    }
}
