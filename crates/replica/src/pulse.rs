//! Makes time pass for the machine: when something is due, the leader proposes a pulse.
//!
//! A timer never changes state, it only makes the leader propose; the log decides who came first. A group
//! in which nothing is due proposes nothing. Next: `state_machine::shard::pulse`.

use std::sync::Arc;
use std::time::Duration;

use model::Millis;
use model::limits::PULSE_MAX;
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use state_machine::NextDue;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::clock::Stamps;
use crate::codec::Codec;
use crate::propose::{Inbox, Raft, encode};
use crate::shared::Shared;

/// How long to wait before a pulse that failed, or that did nothing, is tried again.
const RETRY: Duration = Duration::from_millis(10);
/// The longest sleep: a wall clock may be set forward at any time.
const SLEEP_MAX: Millis = Millis(1_000);

/// Proposes pulses while this node leads, until told to stop.
pub(crate) async fn run<M: Codec>(
    raft: Raft<M>,
    shared: Arc<Shared<M>>,
    inbox: Arc<Inbox<M::Reply>>,
    mut stop: watch::Receiver<bool>,
) {
    let Some(pulse) = M::pulse(PULSE_MAX) else { return };
    let mut pulse = encode::<M>(&[pulse]);
    let pulse = pulse.pop().expect("one command makes one piece");
    loop {
        tokio::select! {
            () = wait_until_due(&raft, &shared) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let before = shared.lock().next_due;
        let done = match inbox.send(pulse.clone()) {
            Ok(answer) => tokio::select! {
                answer = answer => answer.is_ok_and(|answer| answer.is_ok()),
                // A full disk may never answer.
                _ = stop.wait_for(|stop| *stop) => return,
            },
            Err(_) => false,
        };
        // More may be due: at once. The same is due, or nothing was done: not in a hot loop.
        if !done || shared.lock().next_due == before {
            sleep(RETRY).await;
        }
    }
}

async fn wait_until_due<M: Codec>(raft: &Raft<M>, shared: &Shared<M>) {
    let mut metrics = raft.server_metrics();
    loop {
        let moved = shared.due_moved.notified();
        let clock_moved = shared.stamper.moved();
        let next_due = shared.lock().next_due;
        let term = {
            let metrics = metrics.borrow_and_update();
            (metrics.state == ServerState::Leader).then_some(metrics.vote.leader_id.term)
        };
        match term {
            _ if next_due == NextDue::default() => moved.await,
            Some(term) => match until(next_due, shared.stamper.now(term)) {
                Millis(0) => return,
                wait => tokio::select! {
                    _ = timeout(wait.min(SLEEP_MAX).into(), moved) => {}
                    () = clock_moved => {}
                },
            },
            // Somebody else's turn, until that changes.
            None => {
                if let Ok(Err(_)) = timeout(SLEEP_MAX.into(), metrics.changed()).await {
                    // The engine has stopped, and nothing here leads any more.
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

/// How long until the first of both times has come.
fn until(due: NextDue, now: Stamps) -> Millis {
    let elapsed = due.elapsed.map(|due| due.since(now.elapsed));
    let wall = due.wall.map(|due| due.since(now.wall));
    elapsed.into_iter().chain(wall).min().unwrap_or(SLEEP_MAX)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Context, Wake};

    use model::{Elapsed, WallTime};

    use super::*;
    use crate::{NoPeers, lone};

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicU64);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn nothing_is_looked_at_again_and_again_once_the_engine_has_ended() {
        let (log, replica, _) = lone::start(Arc::new(NoPeers)).await;
        let (raft, shared) = (replica.inner.raft.clone(), replica.inner.shared.clone());
        raft.shutdown().await.unwrap();
        // Something is due, and nobody leads who could see to it.
        shared.lock().next_due = NextDue { elapsed: Some(Elapsed(u64::MAX)), wall: None };
        let count = Arc::<Count>::default();
        let mut waiting = pin!(wait_until_due(&raft, &shared));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&count.clone().into())).is_pending());
        assert_eq!(count.0.load(Ordering::Relaxed), 0, "it would be polled again at once");
        drop(replica.stop().await);
        log.close().unwrap();
    }

    #[test]
    fn the_earlier_of_both_times_counts() {
        let now = Stamps { elapsed: Elapsed(1_000), wall: WallTime::from_millis(50_000) };
        let due = |elapsed: Option<u64>, wall: Option<u64>| NextDue {
            elapsed: elapsed.map(Elapsed),
            wall: wall.map(WallTime::from_millis),
        };
        for (what, due, wait) in [
            ("elapsed first", due(Some(1_200), Some(50_300)), 200),
            ("wall first", due(Some(1_200), Some(50_100)), 100),
            ("only elapsed", due(Some(1_700), None), 700),
            ("only wall", due(None, Some(50_001)), 1),
            ("past due", due(Some(900), Some(60_000)), 0),
        ] {
            assert_eq!(until(due, now), Millis(wait), "{what}");
        }
    }
}
