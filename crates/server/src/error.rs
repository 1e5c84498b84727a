//! Why a server cannot start.

use std::io;
use std::net::SocketAddr;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has the port.
    #[error("{addr} is in use by another process: stop it, or listen elsewhere with --listen")]
    PortInUse {
        /// Which address.
        addr: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {source}")]
    Bind {
        /// Which address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// An address that others can reach, without anything that keeps them out.
    #[error(
        "{addr} can be reached by others and there is neither TLS nor a token yet: \
         listen on 127.0.0.1, or say --insecure if the network is yours alone"
    )]
    Insecure {
        /// Which address.
        addr: SocketAddr,
    },
}
