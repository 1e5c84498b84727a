//! What is under way for one stream: futures that end in any order.
//!
//! Polls those that were woken, and no others. A plain [`FuturesUnordered`] wakes its task once more whenever all that
//! is in it was polled, to let others have their turn. With one or two in it that is every time, and a task that wakes
//! itself gets a second thread woken for it. So one that never ends is among them: all of them are never polled.

use std::task::{Context, Poll};

use futures::future::{BoxFuture, pending, poll_fn};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};

/// Futures that end in any order.
pub(super) struct UnderWay<T> {
    /// Empty, or with one more that never ends.
    futures: FuturesUnordered<BoxFuture<'static, T>>,
}

impl<T> Default for UnderWay<T> {
    fn default() -> UnderWay<T> {
        UnderWay { futures: FuturesUnordered::new() }
    }
}

impl<T: Send + 'static> UnderWay<T> {
    /// One more. It begins when this is polled next.
    pub(super) fn push(&mut self, future: impl Future<Output = T> + Send + 'static) {
        if self.futures.is_empty() {
            self.futures.push(pending().boxed());
        }
        self.futures.push(future.boxed());
    }

    /// How many have not ended.
    pub(super) fn len(&self) -> usize {
        self.futures.len().saturating_sub(1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops them all.
    pub(super) fn clear(&mut self) {
        self.futures.clear();
    }

    /// One that has ended. Pending while there is none at all.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<T> {
        match self.futures.poll_next_unpin(context) {
            Poll::Ready(Some(ended)) => Poll::Ready(ended),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// The next one that ends; never, while there is none.
    pub(super) async fn next(&mut self) -> T {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// One that has ended by now.
    pub(super) fn ended(&mut self) -> Option<T> {
        self.next().now_or_never()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use tokio::sync::oneshot;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Wakes>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_what_ends_wakes_and_nothing_else_is_polled_again() {
        let wakes = Arc::<Wakes>::default();
        let waker = Waker::from(wakes.clone());
        let mut context = Context::from_waker(&waker);
        let mut under_way = UnderWay::default();
        assert!(under_way.poll_next(&mut context).is_pending() && under_way.is_empty());
        // The first time all of them are new.
        under_way.push(std::future::ready(0));
        assert_eq!(under_way.poll_next(&mut context), Poll::Ready(0));
        assert!(under_way.poll_next(&mut context).is_pending());
        wakes.0.store(0, Ordering::Relaxed);
        for n in 1..4 {
            let (end, ended) = oneshot::channel();
            under_way.push(async move { ended.await.unwrap() });
            assert!(under_way.poll_next(&mut context).is_pending());
            assert_eq!((under_way.len(), wakes.0.load(Ordering::Relaxed)), (1, n - 1), "nothing to do");
            end.send(n).unwrap();
            assert_eq!(wakes.0.load(Ordering::Relaxed), n);
            assert_eq!(under_way.poll_next(&mut context), Poll::Ready(n));
            assert!(under_way.is_empty() && under_way.poll_next(&mut context).is_pending());
        }
    }

    #[test]
    fn those_that_have_ended_are_taken_one_by_one_and_the_rest_is_dropped() {
        let mut under_way = UnderWay::default();
        let (end, ended) = oneshot::channel::<()>();
        under_way.push(async move { drop(ended.await) });
        under_way.push(std::future::ready(()));
        assert_eq!((under_way.len(), under_way.ended(), under_way.ended()), (2, Some(()), None));
        under_way.clear();
        assert!(under_way.is_empty() && end.send(()).is_err(), "it was dropped");
    }
}
