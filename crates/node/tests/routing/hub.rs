//! A network in memory. A process that is not there refuses, as a real one does.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use node::{Network, Stream};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

/// Bytes under way on one connection.
const STREAM_BYTES: usize = 1024 * 1024;

type Incoming = (DuplexStream, String);

/// All who listen.
#[derive(Clone, Default)]
pub(crate) struct Hub(Arc<Mutex<HashMap<String, mpsc::UnboundedSender<Incoming>>>>);

impl Hub {
    /// The network as the process at `address` sees it.
    pub(crate) fn port(&self, address: &str) -> Port {
        let (sender, incoming) = mpsc::unbounded_channel();
        self.0.lock().unwrap().insert(address.to_owned(), sender);
        Port {
            hub: self.clone(),
            address: address.to_owned(),
            incoming: Arc::new(tokio::sync::Mutex::new(incoming)),
        }
    }
}

/// The network as one process sees it.
pub(crate) struct Port {
    hub: Hub,
    address: String,
    incoming: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Incoming>>>,
}

impl Network for Port {
    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        let (here, there) = tokio::io::duplex(STREAM_BYTES);
        let listener = self.hub.0.lock().unwrap().get(&address).cloned();
        let dialled = listener.and_then(|listener| listener.send((there, self.address.clone())).ok());
        let stream = match dialled {
            Some(()) => Ok(Box::new(here) as Box<dyn Stream>),
            None => Err(io::ErrorKind::ConnectionRefused.into()),
        };
        async { stream }.boxed()
    }

    fn accept(&self) -> BoxFuture<'static, io::Result<(Box<dyn Stream>, String)>> {
        let incoming = self.incoming.clone();
        let accepted = async move {
            let (stream, from) = incoming.lock().await.recv().await.ok_or(io::ErrorKind::NotConnected)?;
            Ok((Box::new(stream) as Box<dyn Stream>, from))
        };
        accepted.boxed()
    }
}
