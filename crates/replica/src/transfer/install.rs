//! Takes in a checkpoint that another member sent: the disk first, then the machine, then the log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use model::{Stand, TaskId};
use storage::{Batch, Next};
use tokio::time::sleep;
use wire::history::KeptMessage;
use wire::seal;

use super::purge;
use crate::codec::Codec;
use crate::machine_store::{Checkpointed, Received};
use crate::notice::Heard;
use crate::offload::Offload;
use crate::records::{self, Found};
use crate::shared::Shared;
use crate::tables;

/// How long to wait before a checkpoint that did not fit on the disk is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Bytes of this member's own records that are taken over at once.
const BATCH_BYTES: usize = 1024 * 1024;

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
    let Received { path, core, lacking } = received;
    let offload = Offload::new(&*shared.executor, shared.log.clone());
    let lacking = lacking.into_iter().filter_map(|task| Some((task, core.machine.stand(task)?)));
    let lacking: Arc<Vec<(TaskId, Stand)>> = Arc::new(lacking.collect());
    loop {
        let (path, own, lacking) = (path.clone(), shared.clone(), lacking.clone());
        let installing = move || own.store()?.install_with(&path, &mut |next| keep_own(&own, next, &lacking));
        match offload.run(installing).await {
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

/// Keeps what this member has of tasks of which the sender could not send all: it may be the only one that has it.
/// What is still missing is marked by a damaged record: without it, what comes next would hide that.
fn keep_own<M: Codec>(
    shared: &Shared<M>,
    next: Next<'_>,
    lacking: &[(TaskId, Stand)],
) -> storage::Result<()> {
    let mut batch = Batch::new();
    for (task, stand) in lacking {
        let own = match records::kept(shared, *task)? {
            Found::Whole(own) | Found::Damaged(own) => own,
            Found::Gone | Found::Nothing => KeptMessage::default(),
        };
        let key = tables::key(*task);
        let mut kept = own;
        for table in [tables::KEPT, tables::LATER] {
            let sent = next.get(table, &key)?.and_then(|row| seal::opened(&key, row));
            kept = sent.into_iter().fold(kept, records::merged);
        }
        if kept != KeptMessage::default() {
            batch.put(tables::KEPT, &key, &seal::sealed(&key, &kept));
        }
        match records::is_all(&kept, *stand) {
            true => batch.delete(tables::LATER, &key),
            false => batch.put(tables::LATER, &key, &seal::missing(&key)),
        }
        if batch.bytes() >= BATCH_BYTES {
            next.write(&batch)?;
            batch.clear();
        }
    }
    next.write(&batch)
}
