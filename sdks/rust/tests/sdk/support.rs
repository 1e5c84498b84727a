//! Tasks, and what every test needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use windlass::{Client, RunningWorker, Task, TaskId, TaskState};
use windlass_testing::TestServer;

/// Gives back its number, doubled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Double(pub(crate) u64);

impl Task for Double {
    const KIND: &'static str = "double";
    const QUEUE: &'static str = "numbers";
    type Output = u64;
}

/// Comes after another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Audit {
    pub(crate) of: String,
}

impl Task for Audit {
    const KIND: &'static str = "audit";
    const QUEUE: &'static str = "audits";
    type Output = ();
}

pub(crate) async fn start() -> (TestServer, Client) {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    (server, client)
}

/// Stops all in order.
pub(crate) async fn end(server: TestServer, worker: RunningWorker) {
    worker.stop();
    soon(worker.join()).await.unwrap();
    server.stop().await.unwrap();
}

/// What must happen within half a minute.
pub(crate) async fn soon<T>(what: impl IntoFuture<Output = T>) -> T {
    timeout(Duration::from_secs(30), what).await.expect("within 30 s")
}

/// Waits until `is_so` is.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}: not within 20 s");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until a task is in a state.
pub(crate) async fn until_state(client: &Client, id: &TaskId, state: TaskState) {
    let is = |at: TaskState| at == state;
    until(&format!("{id} is {state}"), || async {
        is(client.admin().task(id).await.unwrap().state.parse().unwrap())
    })
    .await;
}

/// The words of a task's history.
pub(crate) async fn history(client: &Client, id: &TaskId) -> Vec<String> {
    client.admin().task(id).await.unwrap().history.into_iter().map(|line| line.event).collect()
}

/// A way to a server that a test can cut.
pub(crate) struct Proxy {
    pub(crate) url: String,
    pub(crate) accepted: Arc<AtomicU64>,
    is_open: Arc<AtomicBool>,
    is_deaf: Arc<AtomicBool>,
    is_slow: Arc<AtomicBool>,
    cut: tokio::sync::watch::Sender<u64>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn to(server: &TestServer) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (accepted, is_open) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)));
        let (is_deaf, is_slow) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let cut = tokio::sync::watch::Sender::new(0);
        let (to, counter, gate, cuts) = (server.addr(), accepted.clone(), is_open.clone(), cut.clone());
        let (deaf, slow) = (is_deaf.clone(), is_slow.clone());
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                if !gate.load(Ordering::Relaxed) {
                    continue;
                }
                counter.fetch_add(1, Ordering::Relaxed);
                let mut cut = cuts.subscribe();
                let (deaf, slow) = (deaf.clone(), slow.clone());
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(to).await.unwrap();
                    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) =
                        (near.split(), far.split());
                    tokio::select! {
                        () = carry(&mut near_in, &mut far_out, &deaf) => {}
                        () = trickle(&mut far_in, &mut near_out, &slow) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Proxy { url, accepted, is_open, is_deaf, is_slow, cut, _accepting: accepting }
    }

    /// Breaks all connections; new ones are taken.
    pub(crate) fn cut(&self) {
        self.cut.send_modify(|count| *count += 1);
    }

    /// Breaks all connections, and takes no new ones.
    pub(crate) fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        self.cut();
    }

    /// From now on nothing that a client says arrives, though the connections stand.
    pub(crate) fn deafen(&self) {
        self.is_deaf.store(true, Ordering::Relaxed);
    }

    /// From now on what a server says arrives slowly: some 200 KiB a second.
    pub(crate) fn slow_down(&self) {
        self.is_slow.store(true, Ordering::Relaxed);
    }

    /// Breaks all connections; what is said on new ones arrives.
    pub(crate) fn heal(&self) {
        self.is_deaf.store(false, Ordering::Relaxed);
        self.cut();
    }

    /// How many connections were taken.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

/// Carries bytes one way, while they are heard.
async fn carry(from: &mut ReadHalf<'_>, to: &mut WriteHalf<'_>, is_deaf: &AtomicBool) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let arrives = !is_deaf.load(Ordering::Relaxed);
        if arrives && to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Carries bytes the other way, as fast as they go.
async fn trickle(from: &mut ReadHalf<'_>, to: &mut WriteHalf<'_>, is_slow: &AtomicBool) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if is_slow.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(80)).await;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
