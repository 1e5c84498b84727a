//! A Windlass server inside a test: a free port, a temporary directory, and a clock that the test moves.
//!
//! ```
//! # use serde::{Deserialize, Serialize};
//! use windlass::{hours, Context, Task, TaskError, Worker};
//! use windlass_testing::TestServer;
//!
//! # #[derive(Serialize, Deserialize)] struct Remind { whom: String }
//! # impl Task for Remind { const KIND: &'static str = "remind"; const QUEUE: &'static str = "mail"; type Output = String; }
//! async fn remind(task: Remind, _: Context) -> Result<String, TaskError> {
//!     Ok(format!("reminded {}", task.whom))
//! }
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = TestServer::start().await?;
//! let client = server.client().await?;
//! let worker = Worker::new(client.clone()).handle(remind).start()?;
//! let handle = client.enqueue(Remind { whom: "Ada".into() }).delay(hours(3)).await?;
//! server.advance(hours(3));
//! assert_eq!(handle.result().await?, "reminded Ada");
//! worker.stop();
//! worker.join().await?;
//! server.stop().await?;
//! # Ok(()) }
//! ```
//!
//! [`Inline`] runs one handler without any server. Next: `clock.rs`.

mod clock;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use node::{Node, NodeConfig, RealDisk, ThreadExecutor};
use server::{Server, ServerConfig};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use windlass::proto::TaskInfo;
use windlass::{Client, TaskId, TaskState};

pub use clock::MovableClock;
pub use windlass::{Inline, InlineRun};

/// Room that the log keeps back: a test needs little.
const DISK_RESERVE_BYTES: u64 = 1024 * 1024;

/// How long a task may take to become what a test waits for, and between two looks.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

/// Why a test's server does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no directory for it.
    #[error("no temporary directory: {0}")]
    Directory(#[from] std::io::Error),
    /// The node does not start or stop.
    #[error("the node: {0}")]
    Node(#[from] node::Error),
    /// The server does not start.
    #[error("the server: {0}")]
    Server(#[from] server::Error),
    /// It does not answer as expected.
    #[error("{0}")]
    Client(#[from] windlass::Error),
    /// A task did not become what was waited for.
    #[error("task {id} is {state} and not {wanted} within {} s", PATIENCE.as_secs())]
    Late {
        /// Which.
        id: TaskId,
        /// What it is.
        state: String,
        /// What it was to be.
        wanted: TaskState,
    },
}

/// A whole server in this process. Its data goes when it is dropped.
pub struct TestServer {
    addr: SocketAddr,
    clock: MovableClock,
    node: Node,
    server: Option<Server>,
    _dir: TempDir,
}

impl TestServer {
    /// Starts one on a free port of the loopback address.
    pub async fn start() -> Result<TestServer, Error> {
        let dir = TempDir::new()?;
        let disk =
            RealDisk::new(dir.path()).map_err(|error| Error::Directory(std::io::Error::other(error)))?;
        let config = NodeConfig { disk_reserve_bytes: DISK_RESERVE_BYTES, ..NodeConfig::new(Arc::new(disk)) };
        let clock = MovableClock::new();
        let node = Node::start(config, Arc::new(clock.clone()), Arc::new(ThreadExecutor)).await?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        // A test that ends does not wait for whoever is still connected.
        let grace = Duration::from_secs(1);
        let config = ServerConfig { listen, grace, ..ServerConfig::default() };
        let server = Server::start(config, node.clone()).await?;
        Ok(TestServer { addr: server.addr(), clock, node, server: Some(server), _dir: dir })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its address, for [`Client::connect`].
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// A client of it.
    pub async fn client(&self) -> Result<Client, windlass::Error> {
        Client::connect(self.url()).await
    }

    /// It is that much later from now on: what became due by it, such as a delay or a retry, happens at once. A claim
    /// whose deadline has passed by it is freed, too.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Waits until a task is in a state, 30 s at most; what it is then.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use windlass::{hours, Task, TaskState};
    /// # use windlass_testing::TestServer;
    /// # #[derive(Serialize, Deserialize)] struct Remind { whom: String }
    /// # impl Task for Remind { const KIND: &'static str = "remind"; const QUEUE: &'static str = "mail"; type Output = (); }
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = TestServer::start().await?;
    /// # let client = server.client().await?;
    /// let handle = client.enqueue(Remind { whom: "Ada".into() }).delay(hours(3)).await?;
    /// assert_eq!(server.wait_until(handle.id(), TaskState::Delayed).await?.attempt, 0);
    /// server.advance(hours(3));
    /// server.wait_until(handle.id(), TaskState::Ready).await?;
    /// # server.stop().await?;
    /// # Ok(()) }
    /// ```
    pub async fn wait_until(&self, id: &TaskId, wanted: TaskState) -> Result<TaskInfo, Error> {
        let (admin, deadline) = (self.client().await?.admin(), Instant::now() + PATIENCE);
        loop {
            let task = admin.task(id).await?;
            if task.state == wanted.to_string() {
                return Ok(task);
            }
            if Instant::now() >= deadline {
                return Err(Error::Late { id: id.clone(), state: task.state, wanted });
            }
            sleep(LOOK).await;
        }
    }

    /// Another face of the same node on another port, as a second address of one cluster.
    pub async fn second_address(&self) -> Result<SecondAddress, Error> {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = ServerConfig { listen, grace: Duration::from_secs(1), ..ServerConfig::default() };
        Ok(SecondAddress { server: Server::start(config, self.node.clone()).await? })
    }

    /// Stops listening; the node goes on. With [`TestServer::second_address`]: an address that goes down.
    pub async fn stop_listening(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
    }

    /// Stops it in order.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.stop_listening().await;
        self.node.stop().await?;
        Ok(())
    }
}

/// A second address of a [`TestServer`].
pub struct SecondAddress {
    server: Server,
}

impl SecondAddress {
    /// Its address, for [`Client::connect`].
    pub fn url(&self) -> String {
        format!("http://{}", self.server.addr())
    }

    /// Stops listening.
    pub async fn stop(self) {
        self.server.stop().await;
    }
}

/// The code of the README runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
