//! Hands things from one task to another, a few at a time.
//!
//! A channel of the runtime's would do as well, with ten times the memory: a server has thousands of streams, and most
//! of them are idle.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Mutex, MutexGuard};

/// Nobody takes any more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

/// Both ends. At most `max` things wait between them.
pub(super) fn handover<T>(max: usize) -> (Giver<T>, Taker<T>) {
    let waiting = VecDeque::new();
    let shared = Shared { waiting, max, taker: None, giver: None, has_taker: true, has_giver: true };
    let shared = Arc::new(Mutex::new(shared));
    (Giver(shared.clone()), Taker(shared))
}

struct Shared<T> {
    waiting: VecDeque<T>,
    max: usize,
    /// Told when something is given, or nothing will be any more.
    taker: Option<Waker>,
    /// Told when there is room again, or nobody takes any more.
    giver: Option<Waker>,
    has_taker: bool,
    has_giver: bool,
}

/// The end where things are put in.
pub(super) struct Giver<T>(Arc<Mutex<Shared<T>>>);

impl<T> Giver<T> {
    /// Gives what `next` has, as far as there is room. Ready when something was given, or nobody takes any more.
    pub(super) fn poll_give(
        &self,
        context: &Context<'_>,
        mut next: impl FnMut() -> Option<T>,
    ) -> Poll<Result<(), Closed>> {
        let mut shared = self.0.lock();
        if !shared.has_taker {
            return Poll::Ready(Err(Closed));
        }
        let before = shared.waiting.len();
        while shared.waiting.len() < shared.max
            && let Some(thing) = next()
        {
            shared.waiting.push_back(thing);
        }
        if shared.waiting.len() == before {
            register(&mut shared.giver, context);
            return Poll::Pending;
        }
        wake(shared.taker.take(), shared);
        Poll::Ready(Ok(()))
    }
}

impl<T> Drop for Giver<T> {
    fn drop(&mut self) {
        let mut shared = self.0.lock();
        shared.has_giver = false;
        wake(shared.taker.take(), shared);
    }
}

/// The end where things are taken out.
pub(super) struct Taker<T>(Arc<Mutex<Shared<T>>>);

impl<T> Taker<T> {
    /// The next thing; nothing when all were taken and no more will come.
    pub(super) fn poll_take(&self, context: &Context<'_>) -> Poll<Option<T>> {
        let mut shared = self.0.lock();
        let was_full = shared.waiting.len() == shared.max;
        let Some(thing) = shared.waiting.pop_front() else {
            if !shared.has_giver {
                return Poll::Ready(None);
            }
            register(&mut shared.taker, context);
            return Poll::Pending;
        };
        // Who gives waits for room only while there is none.
        if was_full {
            wake(shared.giver.take(), shared);
        }
        Poll::Ready(Some(thing))
    }

    /// Takes no more. What was given and not taken.
    pub(super) fn close(&self) -> VecDeque<T> {
        let mut shared = self.0.lock();
        shared.has_taker = false;
        let rest = std::mem::take(&mut shared.waiting);
        wake(shared.giver.take(), shared);
        rest
    }
}

impl<T> Drop for Taker<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Remembers whom to wake.
fn register(waker: &mut Option<Waker>, context: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(context.waker()),
        None => *waker = Some(context.waker().clone()),
    }
}

/// Lets go first: whoever wakes looks at it at once.
fn wake<T>(waker: Option<Waker>, shared: MutexGuard<'_, Shared<T>>) {
    drop(shared);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::ops::RangeInclusive;

    use futures::FutureExt as _;

    use super::*;

    /// Gives these, until all are given or nobody takes.
    async fn give(giver: &Giver<u32>, things: RangeInclusive<u32>) -> Result<(), Closed> {
        let mut things = things.peekable();
        while things.peek().is_some() {
            poll_fn(|context| giver.poll_give(context, || things.next())).await?;
        }
        Ok(())
    }

    async fn take(taker: &Taker<u32>) -> Option<u32> {
        poll_fn(|context| taker.poll_take(context)).await
    }

    #[tokio::test]
    async fn things_arrive_in_order_and_who_gives_waits_for_room() {
        let (giver, taker) = handover(4);
        assert_eq!(give(&giver, 1..=5).now_or_never(), None, "there is room for four");
        let giving = tokio::spawn(async move { give(&giver, 5..=1_000).await });
        for expected in 1..=1_000 {
            assert_eq!(take(&taker).await, Some(expected));
        }
        assert_eq!(giving.await.unwrap(), Ok(()));
        assert_eq!(take(&taker).await, None, "nobody gives any more");
    }

    #[tokio::test]
    async fn who_waits_to_give_learns_that_nobody_takes_and_the_rest_is_not_lost() {
        for (what, waiting) in [("without anything to give", 0), ("without room", 4)] {
            let (giver, taker) = handover(4);
            give(&giver, 1..=waiting).await.unwrap();
            let giving = tokio::spawn(async move {
                poll_fn(|context| giver.poll_give(context, || (waiting > 0).then_some(9))).await
            });
            tokio::task::yield_now().await;
            assert_eq!(taker.close().into_iter().collect::<Vec<_>>(), (1..=waiting).collect::<Vec<_>>());
            assert_eq!(giving.await.unwrap(), Err(Closed), "{what}");
        }
    }
}
