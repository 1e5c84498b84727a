//! Sends malformed requests, a few at a time and so many a second.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::malformed::{self, Malformed, Port};

/// At once.
const SENDERS: usize = 16;
/// How long the first bytes of an answer are waited for: a server that says nothing is no mistake.
const ANSWER_MAX: Duration = Duration::from_millis(100);
/// How long one request may take in all.
const REQUEST_MAX: Duration = Duration::from_secs(60);

/// Where they go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) http: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// What became of them, by kind.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) all: usize,
    /// Of these, how many were answered with something.
    pub(crate) answered: BTreeMap<&'static str, usize>,
    /// How many could not be sent at all.
    pub(crate) unreached: usize,
}

/// Sends so many, at most `per_second`.
pub(crate) async fn send(ports: Ports, count: usize, per_second: usize, seed: u64) -> Sent {
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..SENDERS {
        let next = next.clone();
        senders.spawn(async move {
            let mut rng = StdRng::seed_from_u64(seed.wrapping_add(sender as u64));
            let mut sent = Sent::default();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return sent;
                }
                let due = started + Duration::from_secs_f64(n as f64 / per_second as f64);
                tokio::time::sleep_until(due.into()).await;
                let request = malformed::make(n, &mut rng);
                let what = request.what;
                sent.all += 1;
                match tokio::time::timeout(REQUEST_MAX, one(ports, request, n)).await {
                    Ok(Ok(is_answered)) => {
                        *sent.answered.entry(what).or_default() += usize::from(is_answered)
                    }
                    Ok(Err(_)) => sent.unreached += 1,
                    Err(_) => panic!("{what} took longer than {REQUEST_MAX:?}"),
                }
            }
        });
    }
    let mut all = Sent::default();
    while let Some(sent) = senders.join_next().await {
        let sent = sent.unwrap();
        all.all += sent.all;
        all.unreached += sent.unreached;
        for (what, count) in sent.answered {
            *all.answered.entry(what).or_default() += count;
        }
    }
    all
}

/// Sends one; whether anything came back.
async fn one(ports: Ports, request: Malformed, n: usize) -> io::Result<bool> {
    let addr = if request.port == Port::Http { ports.http } else { ports.peer };
    let mut stream = connect(addr, n).await?;
    // A server that closes while we write has seen enough.
    if stream.write_all(&request.bytes).await.is_err() || !request.is_answered {
        return Ok(false);
    }
    let mut answer = [0; 4096];
    let read = tokio::time::timeout(ANSWER_MAX, stream.read(&mut answer)).await;
    Ok(matches!(read, Ok(Ok(bytes)) if bytes > 0))
}

/// A connection from one of many addresses of this machine, so that none runs out of ports.
pub(crate) async fn connect(addr: SocketAddr, n: usize) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let from = Ipv4Addr::new(127, 0, 1 + (n / 250 % 100) as u8, 1 + (n % 250) as u8);
    socket.bind((from, 0).into())?;
    socket.connect(addr).await
}
