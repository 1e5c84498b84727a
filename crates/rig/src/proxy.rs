//! The way between nodes when it is to be slow: every connection of a node to another goes through a proxy of ours,
//! which holds what it carries for as long as it is told. Nothing is reordered or lost here.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::error::Error;
use crate::network::Network;

/// Between two looks for somebody who connects.
const LOOK: Duration = Duration::from_millis(5);
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Pieces under way in one direction; whoever sends more waits.
const PIECES_MAX: usize = 256;
const PIECE_BYTES: usize = 64 * 1024;

/// The proxies to all nodes, while the value lives.
pub(crate) struct Proxies {
    shared: Arc<Shared>,
    listening: Vec<JoinHandle<()>>,
}

struct Shared {
    is_over: AtomicBool,
    size: usize,
    /// Microseconds, by who sends and who receives.
    delays: Vec<AtomicU64>,
}

impl Shared {
    fn delay(&self, from: usize, to: usize) -> Duration {
        let most = self.delays[from * self.size + to].load(Ordering::Relaxed);
        // Half of it always, the rest by chance.
        Duration::from_micros(if most == 0 { 0 } else { most / 2 + rand::random_range(0..=most / 2) })
    }
}

impl Proxies {
    /// Listens for every node of a network.
    pub(crate) fn start(network: &Network, size: usize) -> Result<Proxies, Error> {
        let delays = (0..size * size).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared { is_over: AtomicBool::new(false), size, delays });
        let mut listening = Vec::new();
        for to in 0..size {
            let listener = TcpListener::bind(network.proxy(to))
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                .map_err(Error::io(format!("listen on {}", network.proxy(to))))?;
            let who =
                (0..size).map(|from| (network.http(from).ip(), from, network.speaks_for(from))).collect();
            let (shared, target) = (shared.clone(), network.peer(to));
            listening.push(std::thread::spawn(move || listen(&shared, &listener, who, to, target)));
        }
        Ok(Proxies { shared, listening })
    }

    /// From now on it takes up to so long from one node to another.
    pub(crate) fn delay(&self, from: usize, to: usize, most: Duration) {
        self.shared.delays[from * self.shared.size + to].store(most.as_micros() as u64, Ordering::Relaxed);
    }

    /// All ways are quick again.
    pub(crate) fn hurry(&self) {
        self.shared.delays.iter().for_each(|delay| delay.store(0, Ordering::Relaxed));
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.listening.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn listen(
    shared: &Arc<Shared>,
    listener: &TcpListener,
    who: Vec<(IpAddr, usize, IpAddr)>,
    to: usize,
    target: SocketAddr,
) {
    while !shared.is_over.load(Ordering::SeqCst) {
        let Ok((stream, address)) = listener.accept() else {
            std::thread::sleep(LOOK);
            continue;
        };
        let Some(&(_, from, speaks_as)) = who.iter().find(|(ip, ..)| *ip == address.ip()) else { continue };
        let shared = shared.clone();
        std::thread::spawn(move || {
            // Whoever cannot be reached is seen as a connection that ends.
            if let Ok(other) = connect(speaks_as, target) {
                carry(&shared, &stream, &other, (from, to));
            }
        });
    }
}

fn connect(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect_timeout(&to.into(), CONNECT_MAX)?;
    Ok(socket.into())
}

fn carry(shared: &Arc<Shared>, one: &TcpStream, other: &TcpStream, (from, to): (usize, usize)) {
    let _ = one.set_nonblocking(false);
    for (source, sink, way) in [(one, other, (from, to)), (other, one, (to, from))] {
        let (Ok(source), Ok(sink)) = (source.try_clone(), sink.try_clone()) else { return };
        let _ = sink.set_nodelay(true);
        let (pieces, arriving) = sync_channel(PIECES_MAX);
        let shared = shared.clone();
        std::thread::spawn(move || take(&shared, source, &pieces, way));
        std::thread::spawn(move || give(sink, &arriving));
    }
}

fn take(
    shared: &Shared,
    mut source: TcpStream,
    pieces: &SyncSender<(Instant, Vec<u8>)>,
    (from, to): (usize, usize),
) {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = source.read(&mut piece).unwrap_or(0);
        let due = Instant::now() + shared.delay(from, to);
        if pieces.send((due, piece[..read].to_vec())).is_err() || read == 0 {
            break;
        }
    }
    let _ = source.shutdown(Shutdown::Read);
}

fn give(mut sink: TcpStream, arriving: &Receiver<(Instant, Vec<u8>)>) {
    while let Ok((due, piece)) = arriving.recv() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if piece.is_empty() || sink.write_all(&piece).is_err() {
            break;
        }
    }
    // Both ways: a node never closes one half only.
    let _ = sink.shutdown(Shutdown::Both);
}
