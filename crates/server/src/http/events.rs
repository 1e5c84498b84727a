//! `GET /v1/events`, and how server-sent events are written.
//!
//! A stream costs its reader's pace and nobody else's: the node's ring drops what a slow reader missed.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use node::{EventStream, NodeEvent};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use wire::http::event::EventReply;
use wire::http::{Id, Ms, Problem, State as TaskState, Time};

use super::Reply;
use crate::app::App;
use crate::problem::Refusal;
use crate::reply::to_bytes;

/// A comment is sent when nothing else was, so that proxies and readers see that we live.
const EVENTS_PULSE: Duration = Duration::from_secs(15);
/// The same on a held session, where a dead connection should be noticed soon.
pub(super) const SESSION_PULSE: Duration = Duration::from_secs(1);

/// What happens, as it happens.
///
/// Goes on after the event named by `Last-Event-ID`, as far as it is remembered; an `events_missed` event
/// says that some are not.
#[utoipa::path(
    get, path = "/v1/events", tag = "cluster",
    params(("Last-Event-ID" = Option<String>, Header, description = "the last event that was seen")),
    responses(
        (status = 200, description = "server-sent events", body = EventReply, content_type = "text/event-stream"),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn events(State(app): State<App>, headers: HeaderMap) -> Reply {
    let after = match headers.get("last-event-id") {
        None => None,
        Some(value) => match value.to_str().ok().and_then(|text| text.trim().parse().ok()) {
            Some(id) => Some(id),
            None => return Err(Refusal::invalid("Last-Event-ID is not a number: send the id of an event")),
        },
    };
    Ok(sse(app.node.events(after), EVENTS_PULSE, app.stopping().clone()))
}

impl Source for EventStream {
    async fn next(&mut self) -> Option<Bytes> {
        let event = EventStream::next(self).await?;
        Some(sse_event(Some(event.id), event.kind, &reply(&event)))
    }

    fn stopped(self) {}
}

pub(crate) fn reply(event: &NodeEvent) -> EventReply {
    EventReply {
        at: Time(event.at),
        event: event.kind.to_owned(),
        index: event.index.map(|(shard, index)| format!("{shard}:{index}")),
        task: event.task.map(Id),
        queue: event.queue.as_ref().map(|queue| queue.as_str().to_owned()),
        worker: event.worker.as_ref().map(|worker| worker.as_str().to_owned()),
        state: event.state.map(TaskState),
        reason: event.reason.map(str::to_owned),
        freed: event.freed,
        since_last_beat_ms: event.since_last_beat.map(Ms::from),
    }
}

/// One event as text. JSON has no line breaks of its own, so it fits into one `data:` line.
pub(super) fn sse_event(id: Option<u64>, kind: &str, data: &impl Serialize) -> Bytes {
    let mut text = match id {
        Some(id) => format!("id: {id}\nevent: {kind}\ndata: "),
        None => format!("event: {kind}\ndata: "),
    }
    .into_bytes();
    text.extend_from_slice(&to_bytes(data));
    text.extend_from_slice(b"\n\n");
    text.into()
}

/// Where the events of a stream come from.
pub(super) trait Source: Send + 'static {
    /// The next event as text; nothing at the end. Losing the race against a timer loses no event.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;

    /// The server stops, though the reader has not gone.
    fn stopped(self);
}

/// A stream of events, with a comment whenever `pulse` passes without one. It ends with its source or
/// when the server stops; a reader that goes away drops the source.
pub(super) fn sse(source: impl Source, pulse: Duration, stopping: CancellationToken) -> Response {
    // The first bytes go out at once: the reader knows that it is heard.
    let hello = stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b": windlass\n\n")) });
    let events = stream::unfold((source, stopping), move |(mut source, stopping)| async move {
        let text = tokio::select! {
            biased;
            () = stopping.cancelled() => {
                source.stopped();
                return None;
            }
            event = source.next() => event?,
            () = tokio::time::sleep(pulse) => Bytes::from_static(b":\n\n"),
        };
        Some((Ok(text), (source, stopping)))
    });
    let mut response = Response::new(Body::from_stream(hello.chain(events)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
