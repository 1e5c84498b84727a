//! The network, as a node sees it.

use std::io;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

/// The network, as a node sees it: real TCP, plain or with TLS, in `server`; a simulated one in tests.
pub trait Network: Send + Sync + 'static {
    /// Connects to the node at `address`, a host and a port. A process that is not there is
    /// [`io::ErrorKind::ConnectionRefused`]: links conclude from it that the process ended.
    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Stream>>>;

    /// The next connection that somebody opens, and where it comes from. Must not wait for what is said on
    /// it, and loses nothing when it is dropped before it is ready.
    fn accept(&self) -> BoxFuture<'static, io::Result<(Box<dyn Stream>, String)>>;
}

/// A connection's bytes, both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}
