//! The engine's state machine, on ours; a checkpoint is its snapshot.
//!
//! The engine never asks for a snapshot by itself: `checkpoint` writes one and tells it. Next: `apply`.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use model::TaskId;
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{OptionalSend, Snapshot, SnapshotMeta};

use crate::apply;
use crate::codec::Codec;
use crate::shared::{Core, Shared};
use crate::transfer;
use crate::type_config::{LogId, StoredMembership, Types};

/// A checkpoint on this node's disk: the state after `applied`.
#[derive(Clone, Debug)]
pub(crate) struct Checkpointed {
    pub(crate) applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
}

/// The engine's snapshot: not a copy of the checkpoint, only a word for it. Whoever sends it to another
/// member reads it from the disk.
pub(crate) struct CheckpointHandle<M> {
    /// One that came from another member; nothing for this node's own. Boxed: the engine's every command, and each of its
    /// queues, keeps room for a snapshot.
    pub(crate) received: Option<Box<Received<M>>>,
}

/// A checkpoint of another member, checked, as a file and as a machine.
pub(crate) struct Received<M> {
    pub(crate) path: PathBuf,
    pub(crate) core: Core<M>,
    /// Tasks of which something is missing in it.
    pub(crate) lacking: Vec<TaskId>,
}

/// The engine's state machine.
pub(crate) struct MachineStore<M: Codec> {
    shared: Arc<Shared<M>>,
}

impl<M: Codec> MachineStore<M> {
    pub(crate) fn new(shared: Arc<Shared<M>>) -> MachineStore<M> {
        MachineStore { shared }
    }

    fn snapshot(&self) -> Option<SnapshotOf<Types, CheckpointHandle<M>>> {
        let checkpointed = self.shared.checkpointed.lock().clone();
        checkpointed.applied?;
        Some(Snapshot {
            meta: SnapshotMeta {
                last_log_id: checkpointed.applied,
                last_membership: checkpointed.membership,
            },
            snapshot: CheckpointHandle { received: None },
        })
    }
}

impl<M: Codec> RaftStateMachine<Types> for MachineStore<M> {
    type SnapshotData = CheckpointHandle<M>;
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
        snapshot: CheckpointHandle<M>,
    ) -> io::Result<()> {
        match snapshot.received {
            Some(received) => transfer::install(&self.shared, *received).await,
            // The state is never older than this node's own checkpoint.
            None => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("cannot take in this node's own checkpoint ({meta}) again"),
            )),
        }
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, CheckpointHandle<M>>>> {
        // Asked for at the start, and before one is sent: what it says is what the receiver is then counted to have.
        let begun = transfer::begun(&self.shared);
        let begun = begun.map(|meta| Snapshot { meta, snapshot: CheckpointHandle { received: None } });
        Ok(begun.or_else(|| self.snapshot()))
    }
}

impl<M: Codec> RaftSnapshotBuilder<Types> for MachineStore<M> {
    type SnapshotData = CheckpointHandle<M>;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, CheckpointHandle<M>>> {
        // The checkpoint was written before the engine was told to ask.
        self.snapshot().ok_or_else(|| io::Error::other("there is no checkpoint yet"))
    }
}

#[cfg(test)]
mod tests {
    use state_machine::Shard;

    use super::*;

    #[test]
    fn a_handle_takes_hardly_any_room() {
        assert_eq!(size_of::<CheckpointHandle<Shard>>(), size_of::<usize>());
    }
}
