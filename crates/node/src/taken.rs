//! Claims on their way from a shard to their caller, and back when the caller has gone.
//!
//! A claim that is committed and not answered would keep its task from everybody until its deadline. So
//! what carries it, [`Taken`], gives it back when dropped; and [`Carried`] lets a proposal run to its end
//! when its caller goes away in the middle. Given back means released: no attempt is used up.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use model::{Claimed, Command, Fence, Millis, ShardId, TaskId};
use tokio::sync::mpsc;

use crate::inner::Inner;

/// How many claims are given back in one step.
const STEP: usize = 1_000;
/// Between two tries when a shard has no leader.
const BACKOFF: Duration = Duration::from_millis(200);
/// Tries; after these the claims wait for their deadline, or for their session's beats.
const TRIES: usize = 50;

/// A claim to be given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Return {
    pub(crate) task: TaskId,
    pub(crate) fence: Fence,
}

/// Where claims are given back. Unbounded because a drop cannot wait: there are never more in it than
/// claims that were under way.
pub(crate) type Returns = mpsc::UnboundedSender<Return>;

/// Claims of one shard that nobody was told of yet.
pub(crate) struct Taken {
    pub(crate) shard: ShardId,
    pub(crate) index: u64,
    claims: Vec<Claimed>,
    returns: Returns,
    /// A caller with a request id comes again for its claims.
    repeatable: bool,
}

impl Taken {
    pub(crate) fn new(
        shard: ShardId,
        index: u64,
        claims: Vec<Claimed>,
        returns: &Returns,
        repeatable: bool,
    ) -> Taken {
        Taken { shard, index, claims, returns: returns.clone(), repeatable }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.claims.len()
    }

    /// The claims, whose caller is told of them.
    pub(crate) fn told(mut self) -> Vec<Claimed> {
        std::mem::take(&mut self.claims)
    }

    /// Gives the claims back, whoever may come again.
    pub(crate) fn give_back(mut self) {
        self.repeatable = false;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.repeatable {
            return;
        }
        for claim in self.claims.drain(..) {
            // Fails only when the node has stopped: then the deadline frees the claim.
            let _ = self.returns.send(Return { task: claim.id, fence: claim.fence });
        }
    }
}

/// A future that goes on by itself when it is dropped before its end.
pub(crate) struct Carried<T: Send + 'static> {
    future: Option<BoxFuture<'static, T>>,
}

impl<T: Send + 'static> Carried<T> {
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static) -> Carried<T> {
        Carried { future: Some(Box::pin(future)) }
    }
}

impl<T: Send + 'static> Future for Carried<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let future = self.future.as_mut().expect("a future is not polled after its end");
        let output = std::task::ready!(future.as_mut().poll(context));
        self.future = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for Carried<T> {
    fn drop(&mut self) {
        let Some(future) = self.future.take() else { return };
        // Without a runtime the process is on its way out.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { drop(future.await) });
        }
    }
}

/// Gives claims back until the node stops.
pub(crate) async fn run(inner: Arc<Inner>, mut returns: mpsc::UnboundedReceiver<Return>) {
    let mut batch = Vec::with_capacity(STEP);
    loop {
        tokio::select! {
            biased;
            count = returns.recv_many(&mut batch, STEP) => if count == 0 { return },
            () = inner.stopping.cancelled() => return,
        }
        give_back(&inner, batch.drain(..)).await;
    }
}

async fn give_back(inner: &Arc<Inner>, claims: impl Iterator<Item = Return>) {
    let mut by_shard: Vec<(ShardId, Vec<Return>)> = Vec::new();
    for claim in claims {
        let shard = claim.task.shard();
        match by_shard.iter_mut().find(|(of, _)| *of == shard) {
            Some((_, list)) => list.push(claim),
            None => by_shard.push((shard, vec![claim])),
        }
    }
    for (shard, list) in by_shard {
        for _ in 0..TRIES {
            let release =
                |claim: &Return| Command::Release { task: claim.task, fence: claim.fence, delay: Millis(0) };
            match inner.groups.propose(shard, list.iter().map(release).collect()).await {
                // A rejection means that the claim is not there any more.
                Ok(_) => {
                    inner.counters.given_back.fetch_add(list.len() as u64, Ordering::Relaxed);
                    break;
                }
                Err(error) => {
                    tracing::debug!(%shard, %error, claims = list.len(), "claims not given back yet");
                    tokio::time::sleep(BACKOFF).await;
                }
            }
        }
    }
}
