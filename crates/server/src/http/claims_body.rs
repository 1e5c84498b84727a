//! Claims on their way to a worker. What could not even be handed to the socket is given back.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use node::Node;
use node::call;
use serde_json::value::RawValue;
use wire::envelope::{Envelope, Header};
use wire::http::claim::Claim;
use wire::http::{Id, Pairs, Text, Time};

/// A claim in the words of the wire, borrowed from the node's.
pub(super) fn on_wire(claim: &call::Claim) -> Claim<'_> {
    let envelope = &claim.envelope;
    let Parts { payload, payload_base64, content_type, headers } = parts(envelope);
    Claim {
        id: Id(claim.id),
        queue: claim.queue.as_str().into(),
        kind: envelope.kind.as_str().into(),
        payload,
        payload_base64,
        content_type,
        headers,
        priority: claim.priority,
        attempt: claim.attempt,
        token: claim.token.as_str().into(),
        fence: claim.fence.0,
        deadline: Time(claim.deadline),
        enqueued_at: Time(claim.enqueued_at),
        order_key: envelope.order_key.as_deref().map(Text::from),
        dedup_key: envelope.dedup_key.as_deref().map(Text::from),
    }
}

/// About how many bytes these claims take on the wire.
pub(super) fn room(claims: &[call::Claim]) -> usize {
    const FACTS: usize = 448;
    claims.iter().map(|claim| FACTS + claim.envelope.payload.len()).sum()
}

/// What of an envelope stands in JSON.
pub(super) struct Parts<'a> {
    pub(super) payload: Option<&'a RawValue>,
    pub(super) payload_base64: Option<Text<'a>>,
    pub(super) content_type: Option<Text<'a>>,
    pub(super) headers: Pairs<'a>,
}

pub(super) fn parts<'a>(envelope: &'a Envelope) -> Parts<'a> {
    let pair = |header: &'a Header| (header.name.as_str().into(), header.value.as_str().into());
    let headers = Pairs(envelope.headers.iter().map(pair).collect());
    let content_type = envelope.content_type.as_deref();
    // JSON was checked when it came in; anything else goes as base64, so that a reply is always JSON.
    let payload = match content_type {
        None => json(&envelope.payload),
        Some(_) => None,
    };
    let payload_base64 = payload.is_none().then(|| Text(Cow::Owned(STANDARD.encode(&envelope.payload))));
    Parts { payload, payload_base64, content_type: content_type.map(Text::from), headers }
}

/// Stored bytes as JSON, if they are.
pub(super) fn json(bytes: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice(bytes).ok()
}

/// What becomes of claims whose reply was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undelivered {
    /// They are given back at once.
    GiveBack,
    /// They stay: the same request id will ask for them again.
    Keep,
}

/// The body of a reply that carries claims.
pub(super) fn body(bytes: Vec<u8>, claims: Vec<call::Claim>, undelivered: Undelivered, node: &Node) -> Body {
    if claims.is_empty() || undelivered == Undelivered::Keep {
        return Body::from(bytes);
    }
    Body::new(ClaimsBody { bytes: Some(bytes.into()), claims, node: node.clone() })
}

/// Claims are given back when their bytes were never asked for: the worker has gone. That they are asked for says less than
/// that they were written, but HTTP/1 drops a body of known length without another word, whether it was or not.
struct ClaimsBody {
    bytes: Option<Bytes>,
    claims: Vec<call::Claim>,
    node: Node,
}

impl HttpBody for ClaimsBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

impl Drop for ClaimsBody {
    fn drop(&mut self) {
        if self.bytes.is_some() {
            self.node.give_back(&self.claims);
        }
    }
}
