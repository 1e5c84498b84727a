//! How a stream begins: a connection, a hello, a welcome. And how it may end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Streaming;
use wire::grpc;
use wire::grpc::ServerMessage;
use wire::grpc::server_message::Message as FromServer;
use wire::grpc::worker_message::Message as FromWorker;

use crate::client::Grpc;
use crate::error::Error;
use crate::task::millis;
use crate::worker::Setup;

/// Messages handed to the connection ahead of it: few, so that what waits is sent together.
const AHEAD_MAX: usize = 4;
/// How long one address may take to take a connection: the next one must be found before claims are freed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a server may take to say welcome.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(3);
/// The same when claims are at stake: the next one must be asked before they are freed.
const WELCOME_TIMEOUT_HURRIED: Duration = Duration::from_secs(1);
/// How many tries are made in a hurry. After them the claims are lost, and a slow server is better than none.
pub(crate) const HURRIED_TRIES: u32 = 3;

/// Why a stream ended.
pub(crate) enum End {
    /// All is said.
    Left,
    /// This worker is not wanted, or wrong.
    Refused(Error),
    /// The session is over: the next hello gets a new one.
    SessionOver(String),
    /// Another process has the worker's name.
    NameTaken(String),
    /// The connection is, and the session may live.
    Broken(String),
}

/// An open stream.
pub(crate) struct Open {
    pub(crate) grpc: Grpc,
    pub(crate) to_server: mpsc::Sender<grpc::WorkerMessage>,
    pub(crate) from_server: Streaming<ServerMessage>,
    pub(crate) address: String,
    pub(crate) welcome: grpc::Welcome,
    pub(crate) index: usize,
}

/// Whether a server that is slow to say welcome is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hurry {
    No,
    /// There is a session whose claims are freed soon.
    Resume,
}

/// What an error means for the stream.
pub(crate) fn of_error(error: &Error) -> End {
    match error.code() {
        Some("unknown_worker") => End::SessionOver(error.to_string()),
        Some("not_unique") => End::NameTaken(error.to_string()),
        Some("invalid_request" | "unauthenticated" | "denied" | "unimplemented" | "not_found") => {
            End::Refused(error.clone())
        }
        _ => End::Broken(error.to_string()),
    }
}

/// Connects and says hello.
pub(crate) async fn open(
    setup: Arc<Setup>,
    session: String,
    index: usize,
    hurry: Hurry,
) -> Result<Open, End> {
    let line = setup
        .client
        .lines
        .dial_from(index, CONNECT_TIMEOUT)
        .await
        .map_err(|error| End::Broken(error.to_string()))?;
    let (to_server, mut messages) = mpsc::channel(AHEAD_MAX);
    let hello = grpc::WorkerMessage { message: Some(FromWorker::Hello(hello(&setup, session))) };
    // There is room: nothing else was sent.
    let _ = to_server.try_send(hello);
    let messages = futures::stream::poll_fn(move |cx| messages.poll_recv(cx));
    let (address, index, mut grpc) = (line.address.clone(), line.index(), line.grpc);
    let welcomed = async {
        let mut from_server = grpc.work(messages).await?.into_inner();
        Ok::<_, tonic::Status>((from_server.message().await?, from_server))
    };
    let within = match hurry {
        Hurry::No => WELCOME_TIMEOUT,
        Hurry::Resume => WELCOME_TIMEOUT_HURRIED,
    };
    let welcomed = timeout(within, welcomed).await;
    let (first, from_server) = match welcomed {
        Ok(Ok(welcomed)) => welcomed,
        Ok(Err(status)) => return Err(of_error(&Error::of_status(&status, &address))),
        Err(_) => return Err(End::Broken(format!("{address} does not say welcome"))),
    };
    match first.and_then(|first| first.message) {
        Some(FromServer::Welcome(welcome)) => {
            Ok(Open { grpc, to_server, from_server, address, welcome, index })
        }
        Some(FromServer::Error(error)) => Err(of_error(&Error::refused(error))),
        _ => Err(End::Broken(format!("{address} does not say welcome"))),
    }
}

/// Who comes, and what for.
fn hello(setup: &Setup, session: String) -> grpc::Hello {
    grpc::Hello {
        worker: setup.name.to_string(),
        host: setup.host.clone(),
        pid: Some(std::process::id()),
        slots: Some(setup.slots),
        queues: setup.queues.clone(),
        labels: setup.labels.clone(),
        version: setup.version.clone(),
        sdk: concat!("rust/", env!("CARGO_PKG_VERSION")).to_owned(),
        session,
        hold_ms: setup.hold.map(millis),
        beat_ms: Some(millis(setup.beat)),
        instance: Some(setup.instance),
    }
}
