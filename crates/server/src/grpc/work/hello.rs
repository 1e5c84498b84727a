//! How a worker comes in: its first message, checked, and its session.

use std::time::Duration;

use model::{Millis, SessionId, WorkerName};
use node::SessionStream;
use node::call::{BeatAnswer, ClaimCall, WorkerFacts};
use tonic::{Status, Streaming};
use wire::grpc;
use wire::grpc::worker_message::Message;
use wire::http::claim::ClaimRequest;
use wire::http::worker::RegisterRequest;
use wire::http::{Code, Session};

use super::super::{read, workers};
use super::idle;
use crate::app::App;
use crate::http::claim::Ask;
use crate::http::workers::facts;
use crate::problem::Refusal;

/// How long a stream may take to say who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a claim of a stream waits. It ends with the stream: there is no need to make it anew every minute.
const CLAIM_WAIT: Millis = Millis::mins(10);
/// The label that shows with which SDK a worker speaks.
const SDK_LABEL: &str = "sdk";

/// A worker that was taken in.
pub(super) struct Comer {
    pub(super) worker: WorkerName,
    pub(super) session: SessionId,
    /// The held session.
    pub(super) held: SessionStream,
    /// What it shall do now.
    pub(super) asked: BeatAnswer,
    /// How it claims; nothing for one that wants no tasks.
    pub(super) claim: Option<ClaimCall>,
    pub(super) welcome: grpc::Welcome,
}

/// Reads the first message and takes the worker in.
pub(super) async fn take_in(
    app: &App,
    incoming: &mut Streaming<grpc::WorkerMessage>,
) -> Result<Comer, Status> {
    let first = tokio::time::timeout(HELLO_TIMEOUT, incoming.message()).await.map_err(|_| {
        let secs = HELLO_TIMEOUT.as_secs();
        Refusal::new(Code::RequestTimeout, format!("no hello came within {secs} s: send it first"))
    })??;
    let Some(Message::Hello(hello)) = first.and_then(|first| first.message) else {
        return Err(Refusal::invalid("the first message is not a hello: say who you are first").into());
    };
    Ok(registered(app, hello).await?)
}

async fn registered(app: &App, hello: grpc::Hello) -> Result<Comer, Refusal> {
    let resumes = read::session(&hello.session)?;
    let mut labels = hello.labels.clone();
    if !hello.sdk.is_empty() {
        labels.insert(SDK_LABEL.to_owned(), hello.sdk.clone());
    }
    let request = RegisterRequest {
        id: hello.worker.as_str().into(),
        host: workers::given(&hello.host),
        pid: hello.pid,
        slots: hello.slots.map(u64::from),
        queues: hello.queues.iter().map(|queue| queue.name.as_str().into()).collect(),
        labels: read::pairs(&labels),
        version: workers::given(&hello.version),
        beat_ms: read::ms("beat_ms", hello.beat_ms)?,
        session: resumes.map(Session),
    };
    let facts = WorkerFacts { instance: hello.instance, ..facts(&request)? };
    let (worker, beat) = (facts.name.clone(), facts.beat);
    let claim = claim_call(&hello)?;
    let (session, _) = app.node.register_alone(facts).await?;
    let mut held = app.node.hold_session(&worker, session).await?;
    held.vouch();
    let Some(asked) = held.next().await else { return Err(over(&held)) };
    let welcome = grpc::Welcome {
        session: session.to_string(),
        resumed: resumes == Some(session),
        beat_ms: beat.0,
        // Whoever reads no more than this beats seldom enough, however many come after it.
        idle_beat_ms: idle::LONGEST.as_millis() as u64,
        state: asked.state.as_str().to_owned(),
        // Half of what is read at most: one who keeps to it is read from, beats and all.
        outcomes_max: super::OUTCOMES_MAX as u32 / 2,
        node: app.node.id().0,
        message_bytes_max: app.config.request_bytes_max as u64,
    };
    let claim = claim.map(|claim| ClaimCall { session: Some(session), ..claim });
    Ok(Comer { worker, session, held, asked, claim, welcome })
}

/// Why nothing more comes from a held session.
pub(super) fn over(held: &SessionStream) -> Refusal {
    if held.is_over() {
        let detail = "the session is over and what it held is lost: say hello without a session";
        return Refusal::new(Code::UnknownWorker, detail);
    }
    if held.is_replaced() {
        return Refusal::new(Code::StaleVersion, "another stream of this session took the place of this one");
    }
    Refusal::new(Code::Unavailable, "this node stops: go on with the session at another")
}

/// How it claims, checked. How many and in which session is filled in later.
fn claim_call(hello: &grpc::Hello) -> Result<Option<ClaimCall>, Refusal> {
    if hello.queues.is_empty() {
        return Ok(None);
    }
    let ask = Ask::new(&ClaimRequest {
        queues: Some(read::choices(&hello.queues)),
        worker: hello.worker.as_str().into(),
        hold_ms: read::ms("hold_ms", hello.hold_ms)?,
        ..ClaimRequest::default()
    })?;
    match ask {
        Ask::Queues(call) => Ok(Some(ClaimCall { wait: CLAIM_WAIT, ..call })),
        Ask::One(_) => unreachable!("a claim without an id is one over queues"),
    }
}
