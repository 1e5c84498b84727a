//! What a server says before its node is there: that it lives, and what it waits for.
//!
//! The port is taken before the data is opened, so that a port in use is told first, and a node that waits
//! for its peers can be asked why. Every reply closes its connection: the next one finds the whole server.
//! Next: `listen.rs`, which takes the port over.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::response::{IntoResponse as _, Response};
use http::header::CONNECTION;
use http::{HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use model::{NodeId, WallTime};
use node::Node;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use wire::http::cluster::HealthReply;
use wire::http::{Code, Time};

use crate::config::ServerConfig;
use crate::error::Error;
use crate::problem::Refusal;
use crate::reply;
use crate::{Server, listen};

/// Connections at once; this is for probes and for people who wonder.
const CONNECTIONS_MAX: usize = 64;
/// How long a request may take to come.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A port that is taken, before there is a node behind it.
pub struct Porch {
    addr: SocketAddr,
    config: ServerConfig,
    board: Arc<Board>,
    entered: CancellationToken,
    accepting: JoinHandle<TcpListener>,
}

/// What is known so far.
struct Board {
    node: NodeId,
    since: (Instant, WallTime),
    waits_for: watch::Sender<String>,
}

impl Porch {
    /// Takes the port for node `node` and answers there.
    pub async fn open(mut config: ServerConfig, node: NodeId) -> Result<Porch, Error> {
        let listener = listen::bind(&config).await?;
        let addr = listener.local_addr().map_err(|source| Error::Bind { addr: config.listen, source })?;
        config.listen = addr;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let board = Arc::new(Board {
            node,
            since: (Instant::now(), WallTime::from_millis(wall)),
            waits_for: watch::Sender::new("it opens its data".to_owned()),
        });
        let entered = CancellationToken::new();
        let accepting = tokio::spawn(run(listener, board.clone(), entered.clone()));
        Ok(Porch { addr, config, board, entered, accepting })
    }

    /// Where it listens: with port 0 asked for, the port that it got.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Says from now on that this is what the node waits for.
    pub fn waits_for(&self, what: impl Into<String>) {
        self.board.waits_for.send_replace(what.into());
    }

    /// The node is there: serves it on this port, without letting go of it.
    pub async fn enter(self, node: Node) -> Result<Server, Error> {
        self.entered.cancel();
        let listener = self
            .accepting
            .await
            .map_err(|error| Error::Bind { addr: self.addr, source: std::io::Error::other(error) })?;
        Ok(Server::on(listener, self.config, node))
    }
}

/// Answers until the node is there, then gives the port back.
async fn run(listener: TcpListener, board: Arc<Board>, entered: CancellationToken) -> TcpListener {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // One too many waits in the system's line until there is a place, or the whole server takes it.
        let next = async {
            let place = places.clone().acquire_owned().await.expect("nobody closes it");
            (place, listener.accept().await)
        };
        tokio::select! {
            biased;
            () = entered.cancelled() => return listener,
            (place, accepted) = next => {
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(listen::ACCEPT_BACKOFF).await;
                    continue;
                };
                let board = board.clone();
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(REQUEST_TIMEOUT, serve(stream, board)).await;
                    drop(place);
                });
            }
        }
    }
}

async fn serve(stream: TcpStream, board: Arc<Board>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request: Request<Incoming>| {
        let response = board.answer(request.uri().path());
        async move { Ok::<_, Infallible>(response) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}

impl Board {
    fn answer(&self, path: &str) -> Response {
        let waits_for = self.waits_for.borrow().clone();
        let mut response = match path {
            "/livez" => reply::json(StatusCode::OK, &HealthReply { status: "ok".to_owned() }),
            "/v1/node" => reply::json(StatusCode::OK, &self.node(waits_for)),
            _ => {
                let detail =
                    format!("node {} is not ready, {waits_for}: retry, or ask another node", self.node);
                Refusal::new(Code::Unavailable, detail).into_response()
            }
        };
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }

    /// What `GET /v1/node` says as far as it is known without the node's groups.
    fn node(&self, waits_for: String) -> Value {
        json!({
            "id": self.node.0,
            "version": node::VERSION,
            "started_at": Time(self.since.1),
            "uptime_ms": self.since.0.elapsed().as_millis() as u64,
            "ready": false,
            "reason": waits_for,
            "groups": [],
        })
    }
}
