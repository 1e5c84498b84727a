//! The network between nodes, on the simulated one.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use futures::future::BoxFuture;
use node::{Network, Stream};
use turmoil::net::{TcpListener, TcpStream};

/// Where nodes listen for each other.
pub(crate) const PEER_PORT: u16 = 7_421;

/// One machine's way to the others. While its process is gone nobody listens, and whoever dials is refused.
pub(crate) struct SimNetwork {
    listener: Arc<TcpListener>,
}

impl SimNetwork {
    /// Begins to listen.
    pub(crate) async fn open() -> io::Result<SimNetwork> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PEER_PORT)).await?;
        Ok(SimNetwork { listener: Arc::new(listener) })
    }
}

impl Network for SimNetwork {
    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }

    fn accept(&self) -> BoxFuture<'static, io::Result<(Box<dyn Stream>, String)>> {
        let listener = self.listener.clone();
        Box::pin(async move {
            let (stream, from) = listener.accept().await?;
            Ok((Box::new(stream) as Box<dyn Stream>, from.to_string()))
        })
    }
}
