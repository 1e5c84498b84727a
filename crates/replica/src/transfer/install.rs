//! Takes in a checkpoint that another member sent: the disk first, then the machine, then the log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::purge;
use crate::codec::Codec;
use crate::machine_store::{Checkpointed, Received};
use crate::notice::Heard;
use crate::offload::Offload;
use crate::shared::Shared;

/// How long to wait before a checkpoint that did not fit on the disk is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Replaces this replica's state. Nothing is applied meanwhile, and no checkpoint is written: one that was under
/// way is waited for, and what it could not write is of the old state and forgotten.
pub(crate) async fn install<M: Codec>(shared: &Arc<Shared<M>>, received: Received<M>) -> io::Result<()> {
    let mut unwritten = shared.unwritten.lock().await;
    shared.installing.store(true, Ordering::Relaxed);
    let installed = install_whole(shared, received).await;
    shared.installing.store(false, Ordering::Relaxed);
    let dropped = unwritten.take();
    drop(unwritten);
    drop(dropped);
    if let Err(error) = &installed
        && error.is_fatal()
    {
        shared.log.give_up(&error.to_string());
    }
    Ok(installed?)
}

async fn install_whole<M: Codec>(shared: &Arc<Shared<M>>, received: Received<M>) -> storage::Result<()> {
    let Received { path, core } = received;
    let offload = Offload::new(&*shared.executor, shared.log.clone());
    loop {
        let (store, path) = (shared.store()?, path.clone());
        match offload.run(move || store.install(&path)).await {
            Ok(_) => break,
            Err(error) if error.is_full() => {
                tracing::error!(group = %shared.group, %error, "a checkpoint of the leader does not fit");
                sleep(RETRY).await;
            }
            Err(error) => return Err(error),
        }
    }
    let applied = core.applied;
    let checkpointed = Checkpointed { applied, membership: core.membership.clone() };
    let stamps = core.machine.stamps();
    core.hash_points.tell(&shared.teller);
    let before = {
        let mut current = shared.lock();
        let before = std::mem::replace(&mut *current, core);
        *shared.checkpointed.lock() = checkpointed;
        before
    };
    shared.stamper.applied(applied.map_or(0, |id| id.committed_leader_id().term), stamps);
    shared.due_moved.notify_one();
    let skipped = applied.map_or(0, |id| id.index).saturating_sub(before.applied.map_or(0, |id| id.index));
    // A large machine takes its time to go.
    offload.spawn(move || drop(before));
    tracing::info!(group = %shared.group, skipped, "took in a checkpoint of the leader");
    // Nobody listening is no error.
    let _ = shared.notices.send(Heard::Lagged(skipped));
    let Some(applied) = applied else { return Ok(()) };
    shared.has_applied(applied.index);
    purge(&shared.log, applied).await?;
    // From here on the log goes with the checkpoint: the file has nothing more to tell.
    let removed = shared.disk.remove(&path);
    removed.map_err(|error| storage::Error::io("remove", &path, error))
}
