//! Whole links, over a network in memory and over real TCP.

mod carrying;
mod losing;
mod making;

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use model::{GroupId, NodeId};
use parking_lot::Mutex;
use replica::SystemClock;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::peer::PeerKind;

use super::links::Membership;
use super::*;

const CLUSTER: u128 = 0xc1;
const OURS: Membership = Membership { cluster: CLUSTER, incarnation: Some(0) };
const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
const SOON: Duration = Duration::from_secs(5);

/// A connection that somebody opened, and where it comes from.
type Incoming = (Pipe, String);

/// A network in memory: who listens where.
#[derive(Clone, Default)]
struct Hub {
    ports: Arc<Mutex<BTreeMap<String, mpsc::Sender<Incoming>>>>,
    is_swallowing: Arc<AtomicBool>,
    /// How long a dial to this address takes.
    delays: Arc<Mutex<BTreeMap<String, Duration>>>,
}

impl Hub {
    fn listen(&self, address: &str) -> Arc<dyn Network> {
        let (port, incoming) = mpsc::channel(16);
        self.ports.lock().insert(address.to_owned(), port);
        Arc::new(HubNetwork { hub: self.clone(), incoming: Arc::new(tokio::sync::Mutex::new(incoming)) })
    }
}

struct HubNetwork {
    hub: Hub,
    incoming: Arc<tokio::sync::Mutex<mpsc::Receiver<Incoming>>>,
}

impl Network for HubNetwork {
    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        let hub = self.hub.clone();
        Box::pin(async move {
            let delay = hub.delays.lock().get(&address).copied();
            tokio::time::sleep(delay.unwrap_or_default()).await;
            if hub.is_swallowing.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            let port = hub.ports.lock().get(&address).cloned().ok_or(io::ErrorKind::ConnectionRefused)?;
            let (here, there) = tokio::io::duplex(64 * 1024);
            let pipe = |end| Pipe { end, is_swallowing: hub.is_swallowing.clone() };
            let sent = port.send((pipe(there), "memory:1".to_owned())).await;
            sent.map_err(|_| io::ErrorKind::ConnectionRefused)?;
            Ok(Box::new(pipe(here)) as Box<dyn Stream>)
        })
    }

    fn accept(&self) -> BoxFuture<'static, io::Result<(Box<dyn Stream>, String)>> {
        let incoming = self.incoming.clone();
        Box::pin(async move {
            let (pipe, from) = incoming.lock().await.recv().await.ok_or(io::ErrorKind::BrokenPipe)?;
            Ok((Box::new(pipe) as Box<dyn Stream>, from))
        })
    }
}

/// A stream that can begin to swallow what it carries, without being closed.
struct Pipe {
    end: DuplexStream,
    is_swallowing: Arc<AtomicBool>,
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_swallowing.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        Pin::new(&mut self.end).poll_read(context, buffer)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_swallowing.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.end).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_shutdown(context)
    }
}

/// Real TCP.
struct Tcp(Arc<TcpListener>);

impl Tcp {
    async fn listen(address: &str) -> (Arc<dyn Network>, String) {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (Arc::new(Tcp(Arc::new(listener))), address)
    }
}

impl Network for Tcp {
    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        Box::pin(async move { Ok(Box::new(TcpStream::connect(address).await?) as Box<dyn Stream>) })
    }

    fn accept(&self) -> BoxFuture<'static, io::Result<(Box<dyn Stream>, String)>> {
        let listener = self.0.clone();
        Box::pin(async move {
            let (stream, from) = listener.accept().await?;
            Ok((Box::new(stream) as Box<dyn Stream>, from.to_string()))
        })
    }
}

/// Keeps what comes. `Propose` and `Probe` are echoed, `Ask` is refused, `SessionAsk` dropped, `Found` panics,
/// and nobody answers `ReadIndex`.
#[derive(Default)]
struct Desk {
    got: Mutex<Vec<(NodeId, bool, PeerKind, Bytes)>>,
    open: Mutex<Vec<u64>>,
    unanswered: Mutex<Vec<ReplyTo>>,
}

impl Handler for Desk {
    fn handle(
        &self,
        from: NodeId,
        knows_cluster: bool,
        kind: PeerKind,
        group: GroupId,
        request: u64,
        body: Bytes,
        reply: ReplyTo,
    ) {
        assert!(!knows_cluster || self.open.lock().contains(&reply.connection()));
        self.got.lock().push((from, knows_cluster, kind, body.clone()));
        match kind {
            PeerKind::Propose | PeerKind::Probe | PeerKind::Snapshot => reply.send(Ok(body)),
            PeerKind::Append => reply.later().send(kind, group, request, Ok(body)),
            PeerKind::Ask => reply.send(Err("no".to_owned())),
            PeerKind::Found => panic!("on purpose"),
            PeerKind::ReadIndex => self.unanswered.lock().push(reply),
            _ => drop(reply),
        }
    }

    fn unheeded(&self, kind: PeerKind, why: Unheeded) -> Option<Bytes> {
        (kind == PeerKind::ReadIndex && why == Unheeded::Stranger).then(|| Bytes::from_static(b"untouched"))
    }

    fn connected(&self, _: NodeId, connection: u64) {
        self.open.lock().push(connection);
    }

    fn closed(&self, _: NodeId, connection: u64) {
        let mut open = self.open.lock();
        let at = open.iter().position(|number| *number == connection).expect("it was connected");
        open.remove(at);
    }
}

/// A process with links and nothing else.
struct Process {
    links: Links,
    desk: Arc<Desk>,
    events: broadcast::Receiver<LinkEvent>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl Process {
    fn start(network: Arc<dyn Network>, node: u64, cluster: u128, peers: &[(NodeId, &str)]) -> Process {
        let (stopping, tasks, desk) = (CancellationToken::new(), TaskTracker::new(), Arc::<Desk>::default());
        let me = Identity { node: NodeId(node), process: rand::random(), address: format!("n{node}:1") };
        let clock = Arc::new(SystemClock::new());
        let links = Links::start(network, me, desk.clone(), clock, stopping.clone(), tasks.clone());
        let events = links.events();
        if cluster != 0 {
            links.set_cluster(cluster, 0);
        }
        let process = Process { links, desk, events, stopping, tasks };
        process.set_peers(peers);
        process
    }

    fn set_peers(&self, peers: &[(NodeId, &str)]) {
        self.set_peers_and_over(peers, &[]);
    }

    fn set_peers_and_over(&self, peers: &[(NodeId, &str)], over: &[(NodeId, u64)]) {
        let peers = peers.iter().map(|(node, address)| (*node, (*address).to_owned())).collect();
        self.links.set_peers(peers, over.iter().copied().collect());
    }

    /// Ends as a killed process does: without a word.
    async fn kill(self) {
        self.stopping.cancel();
        self.tasks.close();
        tokio::time::timeout(SOON, self.tasks.wait()).await.expect("the tasks end");
    }

    async fn call(&self, to: NodeId, kind: PeerKind, body: &'static [u8]) -> Result<Bytes, LinkError> {
        self.links.call(to, kind, GroupId(1), Bytes::from_static(body), SOON).await
    }

    async fn event(&mut self) -> LinkEvent {
        tokio::time::timeout(SOON, self.events.recv()).await.expect("something happens").unwrap()
    }

    async fn up(&self, node: NodeId) {
        until(|| self.links.up().contains(&node)).await;
    }
}

async fn until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(SOON, waiting).await.expect("it comes true");
}

/// Two nodes of one cluster that know each other, over memory.
async fn pair(hub: &Hub) -> (Process, Process) {
    let one = Process::start(hub.listen("one"), 1, CLUSTER, &[(N2, "two")]);
    let two = Process::start(hub.listen("two"), 2, CLUSTER, &[(N1, "one")]);
    one.up(N2).await;
    two.up(N1).await;
    (one, two)
}

/// The same over TCP, and where they listen.
async fn tcp_pair() -> ((Process, String), (Process, String)) {
    let (network_one, one) = Tcp::listen("127.0.0.1:0").await;
    let (network_two, two) = Tcp::listen("127.0.0.1:0").await;
    let first = Process::start(network_one, 1, CLUSTER, &[(N2, &two)]);
    let second = Process::start(network_two, 2, CLUSTER, &[(N1, &one)]);
    first.up(N2).await;
    second.up(N1).await;
    ((first, one), (second, two))
}
