//! Claims with a request id: a repeat is answered like the first, and does not get a second set of claims.
//!
//! On one node they go one at a time, so that a caller that gave up and asked again waits until its first try is
//! through. Then all shards are asked whether they know the request: one that does answers as it did. Only when none
//! does is it a claim like any other. Next: `waiting.rs`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use model::{KeyHash, ShardId, WorkerName};
use parking_lot::Mutex;
use state_machine::Shard;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::Error;
use crate::inner::Inner;
use crate::route::Call;
use crate::session::Session;
use crate::taken::Taken;
use crate::waiting::{Ask, is_passing};

/// Between two questions whether a request is known already.
const REPEAT_PAUSE: Duration = Duration::from_millis(50);

/// The requests that are under way.
#[derive(Clone, Default)]
pub(crate) struct Requests {
    under_way: Arc<Mutex<HashMap<KeyHash, Arc<Notify>>>>,
}

/// The right to work on a request, until dropped.
pub(crate) struct Turn {
    requests: Requests,
    request: KeyHash,
    through: Arc<Notify>,
}

impl Requests {
    /// Waits for the turn of `request`.
    pub(crate) async fn turn(&self, request: KeyHash) -> Turn {
        loop {
            let first = {
                let mut under_way = self.under_way.lock();
                match under_way.get(&request) {
                    None => {
                        let through = Arc::new(Notify::new());
                        under_way.insert(request, through.clone());
                        return Turn { requests: self.clone(), request, through };
                    }
                    // Asked for while the lock is held: what is told after this is heard.
                    Some(first) => first.clone().notified_owned(),
                }
            };
            first.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.requests.under_way.lock().remove(&self.request);
        self.through.notify_waiters();
    }
}

impl Inner {
    /// What the shards that know this request answer; nothing when none does. Asks again while a shard cannot say and
    /// the claim can wait.
    pub(crate) async fn repeat_until(
        self: &Arc<Inner>,
        ask: &Ask,
        request: KeyHash,
        until: Instant,
    ) -> Result<Option<Vec<Taken>>, Error> {
        let shards = self.shards_of(&ask.call.queues);
        loop {
            let error = match self.repeat(ask, request).await {
                Err(error) if is_passing(&error) => error,
                known => return known,
            };
            tokio::select! {
                () = tokio::time::sleep(REPEAT_PAUSE) => {}
                () = Session::until_no_claims(ask.session.as_deref()) => return Err(error),
                () = self.stopping.cancelled() => return Err(error),
            }
            // Who reaches nobody says so at once: the caller may ask another node.
            if Instant::now() >= until || self.is_cut_off(&shards) {
                return Err(error);
            }
        }
    }

    async fn repeat(self: &Arc<Inner>, ask: &Ask, request: KeyHash) -> Result<Option<Vec<Taken>>, Error> {
        let looks = self.groups.all().map(|shard| async move {
            let known = self.groups.read(shard, |state| state.knows_request(request)).await?;
            Ok::<_, Error>(known.then_some(shard))
        });
        let known: Vec<Option<ShardId>> = futures::future::try_join_all(looks).await?;
        let mut taken = Vec::new();
        for shard in known.into_iter().flatten() {
            let claim = Call::new::<Shard>(&[ask.command(ask.call.max)]);
            taken.push(self.claim_in(shard, claim, ask.keep()).await?);
        }
        Ok((!taken.is_empty()).then_some(taken))
    }

    /// Whether a claim that waits can get nothing any more, by what it was given just now: its request was answered
    /// before, at another node or by an answer that was lost, and what it got then has ended. It would be offered
    /// tasks and given none, again and again.
    pub(crate) fn is_used_up(&self, ask: &Ask, taken: &[Result<Taken, Error>]) -> bool {
        let Some(request) = ask.request else { return false };
        let mut empty = taken.iter().flatten().filter(|taken| taken.len() == 0);
        empty.any(|taken| self.groups.look(taken.shard, |state| state.knows_request(request)))
    }
}

/// A request id, told apart by its worker.
pub(crate) fn request_key(worker: &WorkerName, id: &str) -> KeyHash {
    let mut hasher = blake3::Hasher::new();
    // A worker's name holds no NUL.
    hasher.update(worker.as_str().as_bytes()).update(&[0]).update(id.as_bytes());
    let mut bytes = [0u8; 16];
    hasher.finalize_xof().fill(&mut bytes);
    KeyHash(u128::from_be_bytes(bytes))
}
