//! A network in memory: pipes between addresses, which can be cut and healed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use node::{Network, Stream};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

const PIPE_BYTES: usize = 256 * 1024;

type Incoming = (Box<dyn Stream>, String);

/// All addresses and pipes.
#[derive(Clone, Default)]
pub(crate) struct Net(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    listeners: BTreeMap<String, mpsc::Sender<Incoming>>,
    cut: BTreeSet<(String, String)>,
    /// From where nothing arrives, and at whom.
    muted: BTreeSet<(String, String)>,
    pipes: Vec<(String, String, CancellationToken)>,
}

fn pair(a: &str, b: &str) -> (String, String) {
    if a < b { (a.to_owned(), b.to_owned()) } else { (b.to_owned(), a.to_owned()) }
}

impl Net {
    /// Whoever is at `address` from now on.
    pub(crate) fn at(&self, address: &str) -> Arc<dyn Network> {
        let (sender, receiver) = mpsc::channel(64);
        self.0.lock().unwrap().listeners.insert(address.to_owned(), sender);
        Arc::new(Host {
            net: self.clone(),
            address: address.to_owned(),
            incoming: Arc::new(AsyncMutex::new(receiver)),
        })
    }

    /// Nothing goes between two addresses any more.
    pub(crate) fn cut(&self, a: &str, b: &str) {
        let mut state = self.0.lock().unwrap();
        state.cut.insert(pair(a, b));
        state.pipes.retain(|(from, to, alive)| {
            let is_cut = pair(from, to) == pair(a, b);
            if is_cut {
                alive.cancel();
            }
            !is_cut
        });
    }

    /// Whoever was at `address` is gone: nobody listens there.
    pub(crate) fn forget(&self, address: &str) {
        let mut state = self.0.lock().unwrap();
        state.listeners.remove(address);
        state.pipes.retain(|(from, to, alive)| {
            let is_its = from == address || to == address;
            if is_its {
                alive.cancel();
            }
            !is_its
        });
    }

    /// What one address sends does not arrive at the other any more, without either being told.
    pub(crate) fn mute(&self, from: &str, to: &str) {
        self.0.lock().unwrap().muted.insert((from.to_owned(), to.to_owned()));
    }

    fn is_muted(&self, way: &(String, String)) -> bool {
        self.0.lock().unwrap().muted.contains(way)
    }

    /// All goes again.
    pub(crate) fn heal(&self) {
        let mut state = self.0.lock().unwrap();
        state.cut.clear();
        state.muted.clear();
    }
}

struct Host {
    net: Net,
    address: String,
    incoming: Arc<AsyncMutex<mpsc::Receiver<Incoming>>>,
}

impl Network for Host {
    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        let (net, from) = (self.net.clone(), self.address.clone());
        Box::pin(async move {
            let mut state = net.0.lock().unwrap();
            if state.cut.contains(&pair(&from, &address)) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let Some(listener) = state.listeners.get(&address) else {
                return Err(io::ErrorKind::ConnectionRefused.into());
            };
            let (here, there) = tokio::io::duplex(PIPE_BYTES);
            let alive = CancellationToken::new();
            let way = |from: &String, to: &String| (net.clone(), (from.clone(), to.clone()));
            let there: Box<dyn Stream> = Box::new(Pipe::new(there, alive.clone(), way(&from, &address)));
            if listener.try_send((there, from.clone())).is_err() {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let here: Box<dyn Stream> = Box::new(Pipe::new(here, alive.clone(), way(&address, &from)));
            state.pipes.push((from, address, alive));
            Ok(here)
        })
    }

    fn accept(&self) -> BoxFuture<'static, io::Result<Incoming>> {
        let incoming = self.incoming.clone();
        Box::pin(async move {
            let next = incoming.lock().await.recv().await;
            next.ok_or_else(|| io::ErrorKind::NotConnected.into())
        })
    }
}

/// One end of a pipe that can be cut, or made mute.
struct Pipe {
    inner: DuplexStream,
    /// From where it is read, and to where.
    way: (Net, (String, String)),
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    alive: CancellationToken,
}

impl Pipe {
    fn new(inner: DuplexStream, alive: CancellationToken, way: (Net, (String, String))) -> Pipe {
        Pipe { inner, way, cut: Box::pin(alive.clone().cancelled_owned()), alive }
    }

    fn reset<T>() -> Poll<io::Result<T>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Pipe::reset();
        }
        if self.way.0.is_muted(&self.way.1) {
            // Whoever waits for it gives it up by itself.
            return Poll::Pending;
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.alive.is_cancelled() {
            return Pipe::reset();
        }
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
