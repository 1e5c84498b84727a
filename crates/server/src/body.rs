//! What comes in: whole bodies within their limits, path parameters and queries, each refused in the
//! words of a problem.
//!
//! A body is never buffered beyond its limit: its announced length is looked at first, then every chunk.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::SemaphorePermit;
use wire::http::{Code, Invalid, parse};

use crate::app::App;
use crate::problem::Refusal;

/// Bodies up to this size are read without asking for room.
const SMALL: usize = 64 * 1024;
/// How much of a refused body is read and thrown away, so that the caller gets to read the answer.
const DRAIN_BYTES_MAX: usize = 64 * 1024 * 1024;
/// And for how long.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// A whole body.
pub(crate) struct Whole(pub(crate) Bytes);

impl Whole {
    /// As text that is safe to parse.
    pub(crate) fn text(&self) -> Result<&str, Invalid> {
        parse::text(&self.0)
    }

    /// As text; an empty body is an empty object.
    pub(crate) fn text_or_empty(&self) -> Result<&str, Invalid> {
        if self.0.is_empty() { Ok("{}") } else { self.text() }
    }
}

impl FromRequest<App> for Whole {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Whole, Refusal> {
        let announced =
            request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let mut body = request.into_body();
        match read(&mut body, announced.unwrap_or(0), app).await {
            Ok(bytes) => Ok(Whole(bytes)),
            Err(refusal) => {
                tokio::spawn(drain(body));
                Err(refusal)
            }
        }
    }
}

async fn read(body: &mut Body, announced: usize, app: &App) -> Result<Bytes, Refusal> {
    let max = app.config.request_bytes_max;
    if announced > max {
        return Err(too_large(max));
    }
    // A small body has mostly come with its head: no timer, no copy.
    if let Some(first) = body.frame().now_or_never() {
        let bytes = data(first)?;
        if bytes.len() > max {
            return Err(too_large(max));
        }
        if body.is_end_stream() {
            return Ok(bytes);
        }
        return in_time(read_rest(body, bytes, announced, app), app).await;
    }
    in_time(read_rest(body, Bytes::new(), announced, app), app).await
}

async fn in_time(work: impl Future<Output = Result<Bytes, Refusal>>, app: &App) -> Result<Bytes, Refusal> {
    let limit = app.config.body_timeout;
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let detail =
            format!("the body did not come within {} s: nothing was done, send it again", limit.as_secs());
        Err(Refusal::new(Code::RequestTimeout, detail))
    })
}

async fn read_rest(body: &mut Body, first: Bytes, announced: usize, app: &App) -> Result<Bytes, Refusal> {
    let max = app.config.request_bytes_max;
    let mut room = Room::default();
    let mut whole = BytesMut::with_capacity(announced.max(first.len()).min(SMALL));
    whole.extend_from_slice(&first);
    while !body.is_end_stream() {
        let chunk = data(body.frame().await)?;
        if whole.len() + chunk.len() > max {
            return Err(too_large(max));
        }
        room.make(whole.len() + chunk.len(), app)?;
        whole.extend_from_slice(&chunk);
        if chunk.is_empty() && body.is_end_stream() {
            break;
        }
    }
    Ok(whole.freeze())
}

/// The bytes of a frame; none for trailers and for the end.
fn data(frame: Option<Result<hyper::body::Frame<Bytes>, axum::Error>>) -> Result<Bytes, Refusal> {
    match frame {
        None => Ok(Bytes::new()),
        Some(Ok(frame)) => Ok(frame.into_data().unwrap_or_default()),
        Some(Err(error)) => Err(Refusal::invalid(format!("the body broke off: {error}"))),
    }
}

/// Room for a large body, given back when the body has been read.
#[derive(Default)]
struct Room<'a> {
    permit: Option<SemaphorePermit<'a>>,
}

impl<'a> Room<'a> {
    /// Makes room for `bytes` in all.
    fn make(&mut self, bytes: usize, app: &'a App) -> Result<(), Refusal> {
        let have = self.permit.as_ref().map_or(0, SemaphorePermit::num_permits);
        let need = if bytes <= SMALL { 0 } else { bytes.div_ceil(1024) };
        if need <= have {
            return Ok(());
        }
        // Doubling keeps the number of askings small.
        let more = need.max(have * 2) - have;
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        let Ok(permit) = app.bodies_kib.try_acquire_many(more) else {
            let detail = "too many large requests are being read at once: retry, or send smaller ones";
            return Err(Refusal::new(Code::TooManyRequests, detail));
        };
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
        Ok(())
    }
}

fn too_large(max: usize) -> Refusal {
    let detail =
        format!("the request is larger than {max} bytes: split it, or store what is large elsewhere");
    Refusal::new(Code::PayloadTooLarge, detail)
}

/// Reads on for a while and keeps nothing: a connection that is closed under a writing caller would take
/// the answer with it.
async fn drain(mut body: Body) {
    let reading = async {
        let mut left = DRAIN_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, reading).await;
}

/// What stands in the path.
pub(crate) struct At<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for At<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<At<T>, Refusal> {
        match Path::<T>::from_request_parts(parts, app).await {
            Ok(Path(value)) => Ok(At(value)),
            Err(error) => Err(Refusal::invalid(format!("the path cannot be read: {}", error.body_text()))),
        }
    }
}

/// What stands after the question mark.
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Asked<T>, Refusal> {
        match Query::<T>::from_request_parts(parts, app).await {
            Ok(Query(value)) => Ok(Asked(value)),
            Err(error) => {
                let text = error.body_text();
                Err(Refusal::invalid(format!(
                    "the query cannot be read: {text}; see /docs for its parameters"
                )))
            }
        }
    }
}

/// The header `Idempotency-Key`.
pub(crate) struct IdempotencyKey(pub(crate) Option<String>);

impl FromRequestParts<App> for IdempotencyKey {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<IdempotencyKey, Refusal> {
        let Some(value) = parts.headers.get("idempotency-key") else { return Ok(IdempotencyKey(None)) };
        match std::str::from_utf8(value.as_bytes()) {
            Ok(key) => Ok(IdempotencyKey(Some(key.to_owned()))),
            Err(_) => Err(Refusal::invalid("Idempotency-Key is not UTF-8: send text")),
        }
    }
}
