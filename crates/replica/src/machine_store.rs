//! The engine's state machine, on ours; a checkpoint is its snapshot.
//!
//! The engine never asks for a snapshot by itself: `checkpoint` writes one and tells it. Next: `apply`.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::{Stream, StreamExt};
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{OptionalSend, Snapshot, SnapshotMeta};

use crate::apply;
use crate::codec::Codec;
use crate::shared::Shared;
use crate::type_config::{LogId, StoredMembership, Types};

/// A checkpoint on this node's disk: the state after `applied`.
#[derive(Clone, Debug)]
pub(crate) struct Checkpointed {
    pub(crate) applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
}

/// The engine's snapshot: not a copy of the checkpoint, only a word for it. Whoever sends it to another
/// member reads it from the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckpointHandle;

/// The engine's state machine.
pub(crate) struct MachineStore<M: Codec> {
    shared: Arc<Shared<M>>,
}

impl<M: Codec> MachineStore<M> {
    pub(crate) fn new(shared: Arc<Shared<M>>) -> MachineStore<M> {
        MachineStore { shared }
    }

    fn snapshot(&self) -> Option<SnapshotOf<Types, CheckpointHandle>> {
        let checkpointed = self.shared.checkpointed.lock().clone();
        checkpointed.applied?;
        Some(Snapshot {
            meta: SnapshotMeta {
                last_log_id: checkpointed.applied,
                last_membership: checkpointed.membership,
            },
            snapshot: CheckpointHandle,
        })
    }
}

impl<M: Codec> RaftStateMachine<Types> for MachineStore<M> {
    type SnapshotData = CheckpointHandle;
    type SnapshotBuilder = MachineStore<M>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let core = self.shared.lock();
        Ok((core.applied, core.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.next().await {
            let (entry, responder) = entry?;
            let index = entry.log_id.index;
            let applied = catch_unwind(AssertUnwindSafe(|| apply::apply(&self.shared, entry, responder)));
            match applied {
                Ok(applied) => applied?,
                // Half of a command may have happened: nothing here can be trusted any more.
                Err(_) => {
                    let what = format!("applying entry {index} of group {} panicked", self.shared.group);
                    self.shared.log.give_up(&what);
                    return Err(io::Error::other(what));
                }
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, _force: bool) -> Option<MachineStore<M>> {
        self.snapshot().map(|_| MachineStore::new(self.shared.clone()))
    }

    async fn get_snapshot_builder(&mut self) -> MachineStore<M> {
        MachineStore::new(self.shared.clone())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Types>,
        _snapshot: CheckpointHandle,
    ) -> io::Result<()> {
        // Only another member could send one, and there is none.
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("cannot take in a checkpoint ({meta}) of another member: this group has one member"),
        ))
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, CheckpointHandle>>> {
        Ok(self.snapshot())
    }
}

impl<M: Codec> RaftSnapshotBuilder<Types> for MachineStore<M> {
    type SnapshotData = CheckpointHandle;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, CheckpointHandle>> {
        // The checkpoint was written before the engine was told to ask.
        self.snapshot().ok_or_else(|| io::Error::other("there is no checkpoint yet"))
    }
}
