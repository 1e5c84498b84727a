//! Why a server cannot start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

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
    /// Another process has the port for other nodes.
    #[error("{addr} is in use by another process: stop it, or let nodes talk elsewhere with --peer-listen")]
    PeerPortInUse {
        /// Which address.
        addr: SocketAddr,
    },
    /// The address for other nodes cannot be listened on.
    #[error("cannot listen for other nodes on {addr}: {source}")]
    PeerBind {
        /// Which address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// An address for other nodes that others can reach as well, without TLS.
    #[error(
        "{addr} can be reached by others: let nodes prove who they are with --peer-ca, --peer-cert and \
         --peer-key, listen on 127.0.0.1, or say --insecure if the network is yours alone"
    )]
    PeerInsecure {
        /// Which address.
        addr: SocketAddr,
    },
    /// A file with a key or a certificate for links between nodes that cannot be used.
    #[error("{flag} {}: {why}", path.display())]
    PeerFile {
        /// The setting that names it.
        flag: &'static str,
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}
