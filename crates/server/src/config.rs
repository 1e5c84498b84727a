//! What a server is told at its start.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use model::limits;

/// The port of HTTP, gRPC and the dashboard.
pub const PORT_DEFAULT: u16 = 7420;

/// What a server is told at its start. Every limit has a default that suits a small machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Allows an address that is not loopback, though anybody who reaches it may do anything.
    pub insecure: bool,
    /// Connections at once; more are answered 503 and closed.
    pub connections_max: usize,
    /// How long a connection may take to send the head of its next request.
    pub header_timeout: Duration,
    /// How long the other side may take nothing of what is written to it, or would be if it had room for it.
    pub write_timeout: Duration,
    /// How long a body may take to come.
    pub body_timeout: Duration,
    /// How long a request may take in all, its wait for tasks included.
    pub request_timeout: Duration,
    /// The largest request.
    pub request_bytes_max: usize,
    /// Memory for large bodies that are being read, over all connections.
    pub bodies_bytes_max: usize,
    /// Memory for large answers that wait to be read, over all connections.
    pub answers_bytes_max: usize,
    /// How long a stop waits for what runs.
    pub grace: Duration,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, PORT_DEFAULT)),
            insecure: false,
            connections_max: 16_384,
            header_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(90),
            request_bytes_max: limits::REQUEST_BYTES_MAX,
            bodies_bytes_max: 256 * 1024 * 1024,
            answers_bytes_max: 256 * 1024 * 1024,
            grace: Duration::from_secs(10),
        }
    }
}
