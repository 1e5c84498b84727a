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
use crate::session::Session;

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
    keep: Keep,
}

/// Whether claims that nobody was told of are kept for a caller that comes again.
#[derive(Clone)]
pub(crate) struct Keep {
    /// A caller with a request id comes again for its claims.
    pub(crate) repeatable: bool,
    /// The session that they were made in. When it is over nobody comes, and its end may have been in
    /// the log before these claims were.
    pub(crate) session: Option<Arc<Session>>,
}

impl Keep {
    fn is_expected(&self) -> bool {
        self.repeatable && !self.session.as_ref().is_some_and(|session| session.is_over())
    }
}

impl Taken {
    pub(crate) fn new(
        shard: ShardId,
        index: u64,
        claims: Vec<Claimed>,
        returns: &Returns,
        keep: Keep,
    ) -> Taken {
        Taken { shard, index, claims, returns: returns.clone(), keep }
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
        self.keep.repeatable = false;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.keep.is_expected() {
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
        give_back(&inner, batch.drain(..));
    }
}

/// Gives claims back, each shard's by itself: one without a leader holds up no other.
fn give_back(inner: &Arc<Inner>, claims: impl Iterator<Item = Return>) {
    let mut by_shard: Vec<(ShardId, Vec<Return>)> = Vec::new();
    for claim in claims {
        let shard = claim.task.shard();
        match by_shard.iter_mut().find(|(of, _)| *of == shard) {
            Some((_, list)) => list.push(claim),
            None => by_shard.push((shard, vec![claim])),
        }
    }
    for (shard, list) in by_shard {
        inner.tasks.spawn(give_back_in(inner.clone(), shard, list));
    }
}

async fn give_back_in(inner: Arc<Inner>, shard: ShardId, list: Vec<Return>) {
    let release =
        |claim: &Return| Command::Release { task: claim.task, fence: claim.fence, delay: Millis(0) };
    for _ in 0..TRIES {
        match inner.groups.propose(shard, list.iter().map(release).collect()).await {
            // A rejection means that the claim is not there any more.
            Ok(_) => {
                inner.counters.given_back.fetch_add(list.len() as u64, Ordering::Relaxed);
                return;
            }
            Err(error) if inner.stopping.is_cancelled() => {
                tracing::debug!(%shard, %error, claims = list.len(), "claims not given back");
                return;
            }
            Err(error) => {
                tracing::debug!(%shard, %error, claims = list.len(), "claims not given back yet");
                tokio::time::sleep(BACKOFF).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::WorkerFacts;
    use model::{FreedReason, QueueName, SessionId, WallTime, WorkerName};

    fn session() -> Arc<Session> {
        let facts = WorkerFacts::named(WorkerName::new("w1").unwrap());
        Arc::new(Session::new(SessionId(1), facts, Millis(0), WallTime::from_millis(0)))
    }

    fn claimed() -> Claimed {
        Claimed {
            id: TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1), 1),
            queue: QueueName::new("mail").unwrap(),
            envelope: bytes::Bytes::new(),
            priority: 5,
            attempt: 1,
            fence: Fence(1),
            deadline: model::Elapsed(2),
            deadline_wall: WallTime::from_millis(2),
            hold: Millis(1),
            enqueued_at: WallTime::from_millis(1),
            ready_since: WallTime::from_millis(1),
        }
    }

    #[test]
    fn claims_that_nobody_was_told_of_are_kept_only_for_one_who_can_come_again() {
        let over = session();
        over.end(FreedReason::Silent, 0, Millis(0));
        for (what, repeatable, session, given_back) in [
            ("nobody comes again", false, None, 1),
            ("one without a session may", true, None, 0),
            ("one with a live session may", true, Some(session()), 0),
            ("one whose session is over may not", true, Some(over), 1),
        ] {
            let (returns, mut returned) = mpsc::unbounded_channel();
            let shard = ShardId::new(1).unwrap();
            drop(Taken::new(shard, 7, vec![claimed()], &returns, Keep { repeatable, session }));
            drop(returns);
            let mut count = 0;
            while returned.try_recv().is_ok() {
                count += 1;
            }
            assert_eq!(count, given_back, "{what}");
        }
    }
}
