//! A worker that works: how it is asked to stop, and how its end is awaited.

use std::net::SocketAddr;

use tokio::sync::{oneshot, watch};

use crate::error::Error;

/// What its program wants of a worker; only ever grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    Run,
    /// Stop in order.
    Drain,
    /// Stop at once.
    Stop,
}

/// A worker that works. Dropping it stops it at once, and gives back what runs.
#[must_use = "dropping it stops the worker"]
pub struct RunningWorker {
    pub(crate) name: String,
    pub(crate) status_addr: Option<SocketAddr>,
    pub(crate) wish: watch::Sender<Wish>,
    pub(crate) ended: oneshot::Receiver<Result<(), Error>>,
}

impl RunningWorker {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it serves its status.
    pub fn status_addr(&self) -> Option<SocketAddr> {
        self.status_addr
    }

    /// Asks it to stop in order: claim nothing more, finish within the grace, give back the rest.
    pub fn stop(&self) {
        raise(&self.wish, Wish::Drain);
    }

    /// Asks it to stop at once: what runs is dropped and given back.
    pub fn stop_now(&self) {
        raise(&self.wish, Wish::Stop);
    }

    /// Lets it work until `stop` is ready, asks it to stop in order, and returns when it has stopped.
    pub async fn stop_when(mut self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        tokio::select! {
            () = stop => self.stop(),
            ended = &mut self.ended => return told(ended),
        }
        self.join().await
    }

    /// Returns when it has stopped: because it was asked to, here or at the server, or because the server refused it.
    /// [`Error::Unknown`] when no server took its last outcomes.
    pub async fn join(mut self) -> Result<(), Error> {
        told((&mut self.ended).await)
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.stop_now();
    }
}

fn told(ended: Result<Result<(), Error>, oneshot::error::RecvError>) -> Result<(), Error> {
    ended.unwrap_or_else(|_| Err(Error::Setup("the worker's own thread panicked: see its message".into())))
}

fn raise(wish: &watch::Sender<Wish>, to: Wish) {
    wish.send_if_modified(|wish| {
        let is_news = *wish < to;
        if is_news {
            *wish = to;
        }
        is_news
    });
}

/// The first signal stops the worker in order, the second at once.
pub(crate) async fn heed_signals(wish: watch::Sender<Wish>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("signals cannot be heard: the worker stops only when its process ends");
        return;
    };
    for to in [Wish::Drain, Wish::Stop] {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!(at_once = to == Wish::Stop, "signal: stopping");
        raise(&wish, to);
    }
}
