//! Brings a replica up: the checkpoint into a fresh machine, then the engine, which replays the log after it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use model::GroupId;
use openraft::impls::BasicNode;
use openraft::{Config, SnapshotPolicy};
use state_machine::{Effects, Table};
use storage::{CheckpointStore, Disk, Executor, GroupLog};
use tokio::sync::oneshot;
use wire::entry::CheckpointHead;
use wire::seal;

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::hash_points::HashPoints;
use crate::keep::Keep;
use crate::log_store::{self, LogStore};
use crate::machine_store::MachineStore;
use crate::network::Ways;
use crate::propose::Raft;
use crate::replica::ReplicaConfig;
use crate::shared::{Core, Shared};
use crate::tables;
use crate::type_config::{Membership, StoredMembership, log_id_from_message, membership_from_message};

/// Beats between members; an election begins when they stay out for a few of them.
const HEARTBEAT_MS: u64 = 200;
const ELECTION_MS_MIN: u64 = 400;
pub(crate) const ELECTION_MS_MAX: u64 = 800;
/// More entries than there are: the engine never lets go of the log by itself, `checkpoint` tells it to.
const KEEP_ALL: u64 = u64::MAX / 2;

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

/// A machine as its checkpoint describes it.
fn load<M: Codec>(
    group: GroupId,
    machine: M,
    store: &CheckpointStore,
    envelope_cache_bytes: usize,
) -> Result<Core<M>> {
    let mut loading = Loading::new(machine);
    let row = store.get(tables::HEAD, tables::HEAD_KEY);
    let head =
        row.and_then(|row| row.map_or(Ok(()), |row| loading.row(tables::HEAD, tables::HEAD_KEY, &row)));
    let read = Table::ALL.into_iter().try_fold((), |(), table| {
        store.for_each(table as u8, &mut |key, value| loading.row(table as u8, key, value))
    });
    loading.end(group, head.and(read), envelope_cache_bytes)
}

/// The same, from a file that another member sent.
pub(crate) fn load_spooled<M: Codec>(
    group: GroupId,
    machine: M,
    disk: &dyn Disk,
    path: &Path,
    envelope_cache_bytes: usize,
) -> Result<Core<M>> {
    let mut loading = Loading::new(machine);
    let read = storage::read_spooled(disk, path, &mut |table, key, value| loading.row(table, key, value));
    loading.end(group, read.map(drop), envelope_cache_bytes)
}

/// A machine that is being filled: records in, tables in their order, then indexes built and the hash compared.
struct Loading<M> {
    machine: M,
    head: Option<CheckpointHead>,
    refused: Option<String>,
}

impl<M: Codec> Loading<M> {
    fn new(machine: M) -> Loading<M> {
        Loading { machine, head: None, refused: None }
    }

    fn row(&mut self, table: u8, key: &[u8], value: &[u8]) -> storage::Result<()> {
        let taken = match Table::ALL.into_iter().find(|known| *known as u8 == table) {
            Some(table) => self.machine.load(table, key, value).map_err(|error| damaged(&error)),
            None if table == tables::HEAD && key == tables::HEAD_KEY => {
                self.head = seal::opened(key, Bytes::copy_from_slice(value));
                if self.head.is_some() { Ok(()) } else { Err(damaged(&"its head is not what was written")) }
            }
            // What is kept of tasks stays on the disk.
            None => Ok(()),
        };
        taken.map_err(|what| {
            self.refused = Some(what);
            storage::Error::Closed
        })
    }

    fn end(self, group: GroupId, read: storage::Result<()>, envelope_cache_bytes: usize) -> Result<Core<M>> {
        let failed = |what: String| Error::Storage { group, what };
        let Loading { machine, head, refused } = self;
        if let Some(what) = refused {
            return Err(failed(what));
        }
        read.map_err(|error| failed(error.to_string()))?;
        core(group, machine, head, envelope_cache_bytes)
    }
}

fn core<M: Codec>(
    group: GroupId,
    mut machine: M,
    head: Option<CheckpointHead>,
    envelope_cache_bytes: usize,
) -> Result<Core<M>> {
    let failed = |what: String| Error::Storage { group, what };
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
    let membership = StoredMembership::new(head.membership_at.map(log_id_from_message), members);
    let next_due = machine.next_due();
    let mut hash_points = HashPoints::default();
    if let Some(applied) = head.applied {
        hash_points.push(applied.index, machine.hash());
    }
    Ok(Core {
        machine,
        keep: Keep::new(envelope_cache_bytes),
        applied: head.applied.map(log_id_from_message),
        membership,
        bytes_since_cut: 0,
        hash_points,
        next_due,
        effects: Effects::default(),
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

/// Writes the group's first entry, which says who votes at its beginning, where a founder has nothing yet.
///
/// All founders write the same, each for itself. Did only one of them, and the others got it from that one when it
/// leads, then a disk lost between their votes for it and the first entry they got would leave a group that knows of
/// no members, and that nobody may make again.
pub(crate) async fn found<M>(config: &ReplicaConfig, core: &Core<M>, log: &GroupLog) -> Result<()> {
    let state = log.state();
    if config.founders.is_empty() || core.applied.is_some() || state.last.is_some() || state.purged.is_some()
    {
        return Ok(());
    }
    let failed = |what: String| Error::Storage { group: config.group, what };
    let voters = config.founders.iter().map(|(member, _)| member.bits()).collect();
    let nodes: BTreeMap<u64, BasicNode> =
        config.founders.iter().map(|(member, address)| (member.bits(), BasicNode::new(address))).collect();
    let members = Membership::new(vec![voters], nodes).map_err(|error| failed(error.to_string()))?;
    log_store::begin(log, members).await.map_err(|error| failed(error.to_string()))
}

fn damaged(what: &dyn std::fmt::Display) -> String {
    format!("the checkpoint is damaged ({what}): restore it from a backup or from another member")
}

/// The engine: it reads its log, and waits for its leader.
pub(crate) async fn engine<M: Codec>(shared: Arc<Shared<M>>) -> Result<Raft<M>> {
    let group = shared.group;
    let failed = |what: String| Error::Storage { group, what };
    let config = config(group).validate().map_err(|error| failed(error.to_string()))?;
    let log = LogStore::new(shared.log.clone(), shared.teller.clone());
    let member = shared.member.bits();
    let raft =
        Raft::new(member, Arc::new(config), Ways::new(shared.clone()), log, MachineStore::new(shared)).await;
    let raft = raft.map_err(|error| failed(error.to_string()))?;
    // From here on it says who its members are: it does not before it runs.
    raft.with_raft_state(|_| ()).await.map_err(|error| failed(error.to_string()))?;
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
        max_in_snapshot_log_to_keep: KEEP_ALL,
        // What a leader had applied before a crash is not saved: it must win an election to know again.
        enable_leader_restore: Some(false),
        ..Config::default()
    }
}
