//! What every handler shares: the node, the limits, the counters, and whether we are stopping.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use node::Node;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::ServerConfig;
use crate::latency::Latencies;

/// A cheap handle to what every handler shares.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

/// What every handler shares.
pub(crate) struct Shared {
    pub(crate) node: Node,
    pub(crate) config: ServerConfig,
    pub(crate) latencies: Latencies,
    /// Kibibytes of large bodies that may still be read.
    pub(crate) bodies_kib: Arc<Semaphore>,
    /// Kibibytes of large answers that may still wait to be read.
    pub(crate) answers_kib: Arc<Semaphore>,
    /// Streams of workers that are open.
    pub(crate) work_streams: AtomicU32,
    /// When this began: times that all streams shall share are counted from here.
    pub(crate) began: Instant,
    stopping: CancellationToken,
}

impl App {
    /// A handle to `node` under these limits.
    pub(crate) fn new(config: ServerConfig, node: Node) -> App {
        let kib = |bytes: usize| Arc::new(Semaphore::new((bytes / 1024).min(Semaphore::MAX_PERMITS)));
        let (bodies_kib, answers_kib) = (kib(config.bodies_bytes_max), kib(config.answers_bytes_max));
        let (latencies, stopping) = (Latencies::default(), CancellationToken::new());
        App(Arc::new(Shared {
            node,
            config,
            latencies,
            bodies_kib,
            answers_kib,
            work_streams: AtomicU32::default(),
            began: Instant::now(),
            stopping,
        }))
    }

    /// Cancelled when the server stops: streams end and waiting claims are answered.
    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.0.stopping
    }
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
