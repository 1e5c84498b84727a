//! The outside world: HTTP, gRPC, metrics and pages over a [`node::Node`].
//!
//! Bytes are checked here, once; a node gets typed values only. This crate decides nothing about tasks
//! and keeps no state of them. Start at `http/mod.rs`, which lists the routes, or at `grpc/work/mod.rs`,
//! where workers live; `listen.rs` has the sockets.

mod app;
mod body;
mod config;
mod error;
mod grpc;
mod http;
mod latency;
mod listen;
mod patience;
mod peer_network;
mod porch;
mod problem;
mod reply;
mod unread;

use std::net::SocketAddr;

use app::App;
use node::Node;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use config::{PORT_DEFAULT, ServerConfig};
pub use error::Error;
pub use peer_network::{PeerTls, TcpNetwork};
pub use porch::Porch;

/// A running server.
pub struct Server {
    addr: SocketAddr,
    app: App,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Binds and begins to serve `node`. The node stays the caller's to stop, after the server.
    pub async fn start(mut config: ServerConfig, node: Node) -> Result<Server, Error> {
        let listener = listen::bind(&config).await?;
        let addr = listener.local_addr().map_err(|source| Error::Bind { addr: config.listen, source })?;
        config.listen = addr;
        Ok(Server::on(listener, config, node))
    }

    /// Serves on a port that is already taken.
    fn on(listener: TcpListener, config: ServerConfig, node: Node) -> Server {
        let (addr, app) = (config.listen, App::new(config, node));
        let accepting = tokio::spawn(listen::run(listener, app.clone()));
        Server { addr, app, accepting }
    }

    /// Where it listens: with port 0 asked for, the port that it got.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops accepting, answers waiting claims with none, lets what runs finish within the grace, and
    /// returns when every connection is closed.
    pub async fn stop(self) {
        self.app.stopping().cancel();
        if let Err(error) = self.accepting.await {
            tracing::error!(%error, "the listener did not end in order");
        }
    }
}
