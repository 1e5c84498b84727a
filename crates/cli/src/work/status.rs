//! The worker's own small HTTP face: how it is, without asking a server.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::{Phase, Worker};

/// Connections at once; this is for people and probes.
const CONNECTIONS_MAX: usize = 64;
/// How long to wait when the system has no room for another connection.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// Serves `GET /` (JSON) and `GET /livez`; answers with the address that it got.
pub(super) async fn listen(address: SocketAddr, worker: Arc<Worker>) -> Result<SocketAddr> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let bound = listener.local_addr()?;
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    tokio::spawn(async move {
        loop {
            let Ok(permit) = room.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                sleep(ACCEPT_BACKOFF).await;
                continue;
            };
            let worker = worker.clone();
            tokio::spawn(async move {
                let _permit = permit;
                let service = service_fn(|request| answer(&worker, request));
                let _ = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(Duration::from_secs(10))
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    Ok(bound)
}

async fn answer(worker: &Worker, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, content_type, body) = match request.uri().path() {
        "/livez" => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
        "/" => (StatusCode::OK, "application/json", status(worker)),
        _ => (StatusCode::NOT_FOUND, "text/plain", "there is / and /livez\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let content_type = hyper::header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    Ok(response)
}

fn status(worker: &Worker) -> String {
    let mut status = worker.running.status();
    let state = match *worker.phase.borrow() {
        Phase::Running => "running",
        Phase::Draining => "draining",
        Phase::Stopping => "stopping",
    };
    status["worker"] = worker.name.as_str().into();
    status["state"] = state.into();
    status["slots"] = worker.slots.into();
    status["queues"] = worker.queues.clone().into();
    status.to_string()
}
