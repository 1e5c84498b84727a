//! The status port: how a worker is, without asking a server. Served by the worker's own thread, so that it answers
//! while handlers are busy.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::context::Running;
use crate::error::Error;
use crate::hub::Hub;
use crate::worker::{Report, Setup};

/// Connections at once; this is for people and probes.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may take to say what it wants.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait when the system has no room for another connection.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// Takes the port, or says why not.
pub(crate) fn bind(address: SocketAddr) -> Result<StdListener, Error> {
    let bound = StdListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|error| Error::Setup(format!("the status port cannot listen on {address}: {error}")))
}

/// Serves for as long as the worker lives.
pub(crate) async fn serve(
    listener: StdListener,
    setup: Arc<Setup>,
    hub: Arc<Hub>,
    report: watch::Receiver<Report>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the status port cannot be served"),
    };
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_BACKOFF).await;
            continue;
        };
        let (setup, hub, report) = (setup.clone(), hub.clone(), report.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let service = service_fn(|request| {
                let answer = answer(&request, || status(&setup, &hub, &report.borrow()));
                async move { Ok::<_, Infallible>(answer) }
            });
            // Whoever hangs up has no use for an error.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn answer(request: &Request<Incoming>, status: impl FnOnce() -> String) -> Response<Full<Bytes>> {
    let (code, content_type, body) = match request.uri().path() {
        "/livez" => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
        "/" => (StatusCode::OK, "application/json", status()),
        _ => (StatusCode::NOT_FOUND, "text/plain", "there is / and /livez\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn status(setup: &Setup, hub: &Hub, report: &Report) -> String {
    let running = hub.running();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let open = (setup.slots as usize).saturating_sub(running.len());
    json!({
        "worker": &*setup.name,
        "state": report.state,
        "server": report.connected_to,
        "session": report.session,
        "queues": setup.queues.iter().map(|queue| &queue.name).collect::<Vec<_>>(),
        "slots": { "open": open, "total": setup.slots },
        "running": running.iter().map(|running| told(running)).collect::<Vec<_>>(),
        "done": count(&hub.ends.done),
        "failed": count(&hub.ends.failed),
        "given_back": count(&hub.ends.given_back),
        "lost": count(&hub.ends.lost),
    })
    .to_string()
}

/// One running task.
fn told(running: &Running) -> serde_json::Value {
    let progress = running.progress.lock().last.clone();
    json!({
        "id": running.id.as_str(),
        "queue": running.queue,
        "kind": running.kind,
        "attempt": running.attempt,
        "fence": running.fence,
        "for_ms": running.since.elapsed().as_millis() as u64,
        "cancelled": running.told().is_some(),
        "progress": progress.map(|progress| json!({ "percent": progress.percent, "note": progress.note })),
    })
}
