//! Carries what one shard owes another: follow-ups of acks whose place is elsewhere.
//!
//! One carrier for each source, on the node that leads it. It takes the oldest messages, has the target take
//! them in, wherever that is led, then tells the source to forget them. A crash or another leader in between
//! sends them again, and the target passes over what it has: each counts once. It must never tell the source
//! before the target has answered.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use model::{Command, Reply, ShardId, limits};

use crate::error::Error;
use crate::inner::Inner;

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How often a node that does not lead looks whether it does, in case it missed the bell.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// So many failures in a row are no hiccup: people are told, once for each such stretch.
const FAILURES_TOLD: u32 = 3;

/// Carries the messages of `source` until the node stops.
pub(crate) async fn run(inner: Arc<Inner>, source: ShardId) {
    let bell = &inner.outboxes[usize::from(source.number()) - 1];
    let mut backoff = BACKOFF_MIN;
    // Failures in a row.
    let mut failures: u32 = 0;
    loop {
        let targets = inner.groups.look(source, |state| state.outbox_targets());
        if !targets.is_empty() && !inner.groups.leads(source) {
            tokio::select! {
                () = bell.notified() => continue,
                () = tokio::time::sleep(LOOK_EVERY) => continue,
                () = inner.stopping.cancelled() => return,
            }
        }
        if targets.is_empty() {
            tokio::select! {
                () = bell.notified() => continue,
                () = inner.stopping.cancelled() => return,
            }
        }
        let steps = targets.into_iter().map(|target| carry(&inner, source, target));
        let failed = futures::future::join_all(steps).await.into_iter().find_map(Result::err);
        let Some(error) = failed else {
            if failures >= FAILURES_TOLD {
                tracing::info!(%source, failures, "messages to other shards are delivered again");
            }
            (backoff, failures) = (BACKOFF_MIN, 0);
            continue;
        };
        failures = failures.saturating_add(1);
        if failures == FAILURES_TOLD {
            tracing::warn!(%source, %error, failures, "messages to another shard cannot be delivered: trying on");
        } else {
            tracing::debug!(%source, %error, "messages not delivered yet");
        }
        tokio::select! {
            () = tokio::time::sleep(backoff) => backoff = (backoff * 2).min(BACKOFF_MAX),
            () = inner.stopping.cancelled() => return,
        }
    }
}

/// Carries one batch from `source` to `target`.
async fn carry(inner: &Inner, source: ShardId, target: ShardId) -> Result<(), Error> {
    let messages = inner
        .groups
        .look(source, |state| state.outbox(target, limits::OUTBOX_BATCH_MAX, limits::ENTRY_BYTES_MAX));
    let Some(first) = messages.first().map(|message| message.seq) else { return Ok(()) };
    let deliver = Command::Deliver { source, messages };
    let (_, reply) = inner.groups.propose_one(target, deliver).await?;
    let Reply::Upto(upto) = reply else { unreachable!("a delivery is answered by how far it came") };
    if upto < first {
        return Err(Error::Broken(format!(
            "shard {target} has messages of shard {source} up to {upto}, the next is {first}: some are missing"
        )));
    }
    if !inner.groups.leads(source) {
        // The next leader sends them again, hears the same and tells the source.
        return Ok(());
    }
    inner.groups.propose_one(source, Command::Delivered { target, upto }).await?;
    inner.counters.outbox_delivered.fetch_add(upto + 1 - first, Ordering::Relaxed);
    Ok(())
}
