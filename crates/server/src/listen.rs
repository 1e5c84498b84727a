//! Sockets: binding, accepting, and closing in order.
//!
//! Every connection has a limit and every wait a timeout. What is said on a connection is `http`'s, or
//! `grpc`'s: both speak on one port, told apart by the content type.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use futures::FutureExt as _;
use http::{Request, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;
use wire::http::Code;

use crate::app::App;
use crate::config::ServerConfig;
use crate::error::Error;
use crate::latency::Operation;
use crate::patience::Patient;
use crate::problem::Refusal;
use crate::unread::Unread;

/// Connections that the system holds until we accept them.
const BACKLOG: u32 = 1024;
/// How long to wait when the system has no room for another connection.
pub(crate) const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Streams of one HTTP/2 connection at once.
const STREAMS_MAX: u32 = 1_000;
/// All headers of one request.
const HEADERS_BYTES_MAX: u32 = 32 * 1024;
/// Streams of one HTTP/2 connection that its other side gave up before we looked at them; with more it is closed.
const RESETS_WAITING_MAX: usize = 20;
/// Streams of one HTTP/2 connection that we gave up because they were wrong; with more it is closed.
const RESETS_BY_US_MAX: usize = 1_024;
/// When a silent HTTP/2 connection is asked whether it is there, and how long it may take to answer.
const PING_INTERVAL: Duration = Duration::from_secs(32);
const PING_TIMEOUT: Duration = Duration::from_secs(13);
/// What one HTTP/2 stream, and one connection, may send before we have read it.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// The largest frame of HTTP/2 that we take: the smallest that HTTP/2 allows. A connection keeps room for as much as it has
/// announced, whether it comes or not.
const FRAME_BYTES_MAX: u32 = 16 * 1024;
/// What HTTP/2 takes of one stream before it is sent; hyper would take 400 KiB. The last thing that it takes may
/// go beyond it: of an answer a piece (`unread.rs`), of a stream that lasts a message. Nothing of it is counted: of answers
/// at most 48 KiB for each stream, as long as the socket takes something (`patience.rs`).
const SEND_BUFFER_BYTES: usize = 32 * 1024;
/// What waits in a socket and is not on its way yet. By default it would be megabytes: a ping waits behind them, longer than
/// a slow reader has to answer it, and a socket that takes no more says so until a third of them is gone.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 64 * 1024;

/// What a connection over the limit is told.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n\
retry-after: 1\r\nconnection: close\r\ncontent-length: 210\r\n\r\n\
{\"type\":\"urn:windlass:error:unavailable\",\"code\":\"unavailable\",\"title\":\"not available now\",\
\"status\":503,\"detail\":\"this server has as many connections as it takes: retry, or raise connections_max on the server.\"}";

/// Takes the port, or says why not.
pub(crate) async fn bind(config: &ServerConfig) -> Result<TcpListener, Error> {
    let addr = config.listen;
    if !config.insecure && !addr.ip().is_loopback() {
        return Err(Error::Insecure { addr });
    }
    let listener = listen_on(addr).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => Error::PortInUse { addr },
        _ => Error::Bind { addr, source },
    })?;
    // Handed down to every connection. Without it slow readers fare worse, nothing else.
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(&listener).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
    Ok(listener)
}

/// A listening socket on this address.
pub(crate) fn listen_on(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A port whose last connections are still closing is free.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Accepts until the app stops, then waits for what runs, at most the grace.
pub(crate) async fn run(listener: TcpListener, app: App) {
    let face = Face {
        faces: Faces { http: crate::http::router(app.clone()), grpc: crate::grpc::router(app.clone()) },
        builder: Arc::new(builder(&app.config)),
        graceful: GracefulShutdown::new(),
        killed: CancellationToken::new(),
        places: Arc::new(Semaphore::new(app.config.connections_max)),
        app: app.clone(),
    };
    loop {
        tokio::select! {
            biased;
            () = app.stopping().cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => face.serve(stream),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            },
        }
    }
    drop(listener);
    let open = face.graceful.count();
    if tokio::time::timeout(app.config.grace, face.graceful.shutdown()).await.is_err() {
        tracing::warn!(connections = open, "connections were still busy after the grace: closed");
    }
    face.killed.cancel();
}

/// What every connection needs.
struct Face {
    app: App,
    faces: Faces,
    builder: Arc<Builder<TokioExecutor>>,
    graceful: GracefulShutdown,
    killed: CancellationToken,
    places: Arc<Semaphore>,
}

/// What is said on connections.
#[derive(Clone)]
struct Faces {
    http: Router,
    grpc: Router,
}

impl Face {
    fn serve(&self, stream: TcpStream) {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            // The socket's buffer is empty, so this does not wait; if it fails, closing says enough.
            let _ = stream.try_write(FULL);
            return;
        };
        // Small replies must not wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let (app, faces, builder) = (self.app.clone(), self.faces.clone(), self.builder.clone());
        let (watcher, killed) = (self.graceful.watcher(), self.killed.clone());
        let unread = Arc::<Unread>::default();
        let stream = Patient::new(stream, &self.app.config, unread.clone());
        // Boxed: as long as the connection lasts there would be room for what it was made of, beside it.
        let parts = Box::new((stream, app, faces, builder, watcher, killed, place, unread));
        tokio::spawn(async move {
            // Moved first, so that the box is freed here and not at the end.
            let (stream, app, faces, builder, watcher, killed, _place, unread) =
                *std::convert::identity(parts);
            // Boxed: a stream that lasts would keep room for how its first answer came about.
            let service = service_fn(move |request| {
                Box::pin(answer(app.clone(), faces.clone(), unread.clone(), request))
            });
            tokio::select! {
                // Made here, where it stays: it is large, and an idle connection would keep room for it twice.
                served = watcher.watch(builder.serve_connection(TokioIo::new(stream), service).into_owned()) => {
                    if let Err(error) = served {
                        tracing::debug!(%error, "a connection ended early");
                    }
                }
                () = killed.cancelled() => {}
            }
        });
    }
}

fn builder(config: &ServerConfig) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        // A head that does not end is kept up to this; hyper's own limit is twelve times as much.
        .max_buf_size(HEADERS_BYTES_MAX as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .max_pending_accept_reset_streams(RESETS_WAITING_MAX)
        .max_local_error_reset_streams(RESETS_BY_US_MAX);
    builder
}

/// Answers one request, whatever happens on the way.
async fn answer(
    app: App,
    faces: Faces,
    unread: Arc<Unread>,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    let started = Instant::now();
    let is_grpc = crate::grpc::is_grpc(&request);
    // HTTP/1 has one answer at a time, which is written or not: `patience.rs` sees to that.
    let is_http_2 = request.version() == Version::HTTP_2;
    let is_one_message = is_grpc && crate::grpc::is_one_message(request.uri().path());
    let operation = Operation::of(request.method(), request.uri().path());
    let router = if is_grpc { faces.grpc } else { faces.http };
    let answered = match crate::http::origin::check(&request) {
        Ok(()) => guarded(router, request.map(Body::new), app.config.request_timeout).await,
        Err(refusal) => Err(refusal),
    };
    let response = match (answered, is_grpc) {
        (Ok(response), false) if !is_http_2 => response,
        (Ok(response), false) => {
            unread.watched(response, &app).unwrap_or_else(|refusal| refusal.into_response())
        }
        (Ok(response), true) => crate::grpc::sent(response, is_one_message.then_some(unread), &app),
        (Err(refusal), false) => refusal.into_response(),
        (Err(refusal), true) => crate::grpc::refused(refusal),
    };
    app.latencies.of(operation).record(started.elapsed(), response.status().as_u16());
    Ok(response)
}

/// What the router says; a panic or a wait without end are answered too.
async fn guarded(mut router: Router, request: Request<Body>, limit: Duration) -> Result<Response, Refusal> {
    let work = AssertUnwindSafe(router.call(request)).catch_unwind();
    match tokio::time::timeout(limit, work).await {
        Ok(Ok(Ok(response))) => Ok(response),
        Ok(Err(_)) => Err(panicked()),
        Err(_) => Err(timed_out()),
    }
}

/// The panic's own message went to the log by its hook.
fn panicked() -> Refusal {
    tracing::error!("a request ended in a panic: this is a bug, please report it");
    let detail =
        "the server made a mistake, its log says more: retry with the same dedup key, token or request id";
    Refusal::new(Code::Internal, detail)
}

fn timed_out() -> Refusal {
    let detail =
        "no answer in time, it may have been done or not: retry with the same dedup key, token or request id";
    Refusal::new(Code::Timeout, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::http::Problem;

    #[test]
    fn a_connection_too_many_is_told_so_in_a_whole_reply() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{} bytes", body.len());
        assert_eq!(serde_json::from_str::<Problem>(body).unwrap().code, "unavailable");
    }

    #[tokio::test]
    async fn a_panic_and_a_wait_without_end_are_problems_too() {
        async fn faulty() -> Response {
            panic!("on purpose")
        }
        let router = Router::new()
            .route("/panic", axum::routing::get(faulty))
            .route("/wait", axum::routing::get(std::future::pending::<Response>));
        for (path, status, code) in [("/panic", 500, "internal"), ("/wait", 504, "timeout")] {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let response = guarded(router.clone(), request, Duration::from_millis(20)).await;
            let response = response.unwrap_err().into_response();
            assert_eq!(response.status(), status);
            let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
            assert_eq!(serde_json::from_slice::<Problem>(&body).unwrap().code, code);
        }
    }

    #[tokio::test]
    async fn a_port_in_use_and_an_open_address_are_refused_in_clear_words() {
        let first = bind(&ServerConfig { listen: "127.0.0.1:0".parse().unwrap(), ..Default::default() })
            .await
            .unwrap();
        let taken = ServerConfig { listen: first.local_addr().unwrap(), ..Default::default() };
        let error = bind(&taken).await.unwrap_err().to_string();
        assert!(error.contains("is in use by another process"), "{error}");
        let open = ServerConfig { listen: "0.0.0.0:0".parse().unwrap(), ..Default::default() };
        let error = bind(&open).await.unwrap_err().to_string();
        assert!(error.contains("--insecure"), "{error}");
        assert!(bind(&ServerConfig { insecure: true, ..open }).await.is_ok());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn little_waits_in_the_socket_of_a_slow_reader() {
        use tokio::io::AsyncReadExt as _;

        let config = ServerConfig { listen: "127.0.0.1:0".parse().unwrap(), ..Default::default() };
        let listener = bind(&config).await.unwrap();
        let mut reader = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let lowat = socket2::SockRef::from(&stream).tcp_notsent_lowat().unwrap();
        assert_eq!(lowat, UNSENT_BYTES_MAX, "the listener hands it down");
        // What nobody reads fills the reader's side, and here no more than that bound and what is cut at once.
        let fill = async || {
            let (mut sum, bytes) = (0, [0; 16 * 1024]);
            loop {
                match stream.try_write(&bytes) {
                    Ok(written) => sum += written,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return sum,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        stream.writable().await.unwrap();
        let sum = fill().await;
        assert!(sum < 1024 * 1024, "{sum} bytes wait for a reader that reads nothing");
        // Whoever has read them is written to again: a third of megabytes need not be gone for that.
        reader.read_exact(&mut vec![0; sum]).await.unwrap();
        let writable = tokio::time::timeout(Duration::from_secs(30), stream.writable()).await;
        writable.expect("there is room again").unwrap();
        assert!(fill().await > 0);
    }
}
