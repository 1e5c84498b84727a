//! Answers that nobody reads: how much of them may wait, and for how long.
//!
//! HTTP/2 lets a caller ask for much and take nothing, on a connection that is well otherwise: when its window opens is
//! up to the caller, and what was answered stays in memory until then. So what waits on a connection is counted; where
//! nothing of it is taken for as long as a socket is written to in vain, the connection ends (`patience.rs`), and what
//! waits on all of them has one bound. Streams that last are not counted here: each has bounds of its own. Nor are small
//! answers, and what HTTP/2 has taken of an answer and not sent: of each stream its buffer (`listen.rs`) and a piece.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::{Buf as _, Bytes};
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use wire::http::Code;

use crate::app::App;
use crate::problem::Refusal;

/// Answers up to this size are not counted: of those a connection has at most one for each of its streams.
const SMALL: usize = 4 * 1024;
/// What is handed on at a time.
const PIECE: usize = 4 * 1024;
/// What one connection may leave unread without room from the bound of all.
const FREE: usize = 256 * 1024;
/// One connection has at most this part of the bound of all, unless for a single answer.
const PARTS: usize = 8;

/// What waits to be read on one connection.
#[derive(Default)]
pub(crate) struct Unread(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    bytes: usize,
    /// How many counted pieces were taken, and answers given up.
    taken: u64,
    is_watched: bool,
    is_given_up: bool,
    /// The connection, told when it is given up.
    reader: Option<Waker>,
}

impl Unread {
    /// Ready when the connection is given up.
    pub(crate) fn poll_given_up(&self, context: &Context<'_>) -> Poll<()> {
        let mut waiting = self.0.lock();
        if waiting.is_given_up {
            return Poll::Ready(());
        }
        match &mut waiting.reader {
            Some(reader) => reader.clone_from(context.waker()),
            None => waiting.reader = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Lets an answer of HTTP go out, counted until it is read.
    pub(crate) fn watched(self: Arc<Unread>, response: Response, app: &App) -> Result<Response, Refusal> {
        match response.body().size_hint().exact() {
            Some(size) if size > SMALL as u64 => {
                let held = self.hold(usize::try_from(size).unwrap_or(usize::MAX), app)?;
                Ok(response.map(|body| Body::new(Pieces::new(None, body, held))))
            }
            _ => Ok(response),
        }
    }

    /// The same for an answer of gRPC that is one message: how large it is shows when it is written.
    pub(crate) fn watched_message(
        self: Arc<Unread>,
        response: Response,
        app: &App,
    ) -> Result<Response, Refusal> {
        let (head, mut body) = response.into_parts();
        let Some(Some(first)) = body.frame().now_or_never() else {
            return Ok(Response::from_parts(head, body));
        };
        let bytes = first.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
        let held = self.hold(bytes, app)?;
        Ok(Response::from_parts(head, Body::new(Pieces::new(Some(first), body, held))))
    }

    /// Counts so many bytes, if there is room.
    fn hold(self: Arc<Unread>, bytes: usize, app: &App) -> Result<Held, Refusal> {
        if bytes <= SMALL {
            return Ok(Held { unread: self, bytes: 0, _room: None });
        }
        let mut waiting = self.0.lock();
        let sum = waiting.bytes.saturating_add(bytes);
        if waiting.bytes > 0 && sum > FREE + app.config.answers_bytes_max / PARTS {
            return Err(no_room());
        }
        let room = if sum > FREE {
            let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
            Some(app.answers_kib.clone().try_acquire_many_owned(kib).map_err(|_| no_room())?)
        } else {
            None
        };
        waiting.bytes += bytes;
        if !std::mem::replace(&mut waiting.is_watched, true) {
            tokio::spawn(watch(self.clone(), app.config.write_timeout, waiting.taken));
        }
        drop(waiting);
        Ok(Held { unread: self, bytes, _room: room })
    }
}

/// Gives the connection up when nothing is taken for so long, though something waits.
async fn watch(unread: Arc<Unread>, limit: Duration, mut seen: u64) {
    loop {
        tokio::time::sleep(limit).await;
        let mut waiting = unread.0.lock();
        if waiting.bytes == 0 {
            waiting.is_watched = false;
            return;
        }
        if waiting.taken == seen {
            waiting.is_given_up = true;
            let reader = waiting.reader.take();
            drop(waiting);
            tracing::debug!("a connection that reads none of its answers is closed");
            if let Some(reader) = reader {
                reader.wake();
            }
            return;
        }
        seen = waiting.taken;
    }
}

/// What was asked may have been done: only its answer has no place.
fn no_room() -> Refusal {
    let detail = "too many large answers wait to be read: it may have been done or not, read the others and retry \
                  with the same dedup key, token or request id";
    Refusal::new(Code::Timeout, detail)
}

/// Bytes that are counted until they are taken, or nobody will.
struct Held {
    unread: Arc<Unread>,
    bytes: usize,
    _room: Option<OwnedSemaphorePermit>,
}

impl Held {
    fn took(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        if bytes == 0 {
            return;
        }
        self.bytes -= bytes;
        let mut waiting = self.unread.0.lock();
        waiting.bytes -= bytes;
        waiting.taken += 1;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.took(self.bytes);
    }
}

/// An answer, handed on in pieces.
struct Pieces {
    /// What was taken from the body to see how large it is.
    first: Option<Result<Frame<Bytes>, axum::Error>>,
    /// What was taken from the body and not handed on.
    cut: Bytes,
    /// It was more than a piece.
    is_large: bool,
    /// Bytes that were handed on and maybe wait for a window: HTTP/2 asks for the next when it has taken them.
    given: usize,
    body: Body,
    held: Held,
}

impl Pieces {
    fn new(first: Option<Result<Frame<Bytes>, axum::Error>>, body: Body, held: Held) -> Pieces {
        Pieces { first, cut: Bytes::new(), is_large: false, given: 0, body, held }
    }

    /// The next piece of what was taken from the body.
    fn piece(&mut self) -> Bytes {
        if !self.is_large {
            return std::mem::take(&mut self.cut);
        }
        // Copied, also the last: HTTP/2 takes a piece for a window of one byte, and a slice would keep all of it.
        let piece = Bytes::copy_from_slice(&self.cut[..self.cut.len().min(PIECE)]);
        self.cut.advance(piece.len());
        if self.cut.is_empty() {
            self.cut = Bytes::new();
        }
        piece
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        this.held.took(std::mem::take(&mut this.given));
        if this.cut.is_empty() {
            let frame = match this.first.take() {
                Some(first) => Some(first),
                None => ready!(Pin::new(&mut this.body).poll_frame(context)),
            };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(bytes))) => (this.is_large, this.cut) = (bytes.len() > PIECE, bytes),
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let piece = this.piece();
        this.given = piece.len();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.cut.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.first, self.body.size_hint().exact()) {
            (None, Some(rest)) => SizeHint::with_exact(self.cut.len() as u64 + rest),
            _ => SizeHint::default(),
        }
    }
}
