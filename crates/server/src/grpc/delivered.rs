//! Claims in the answer to one call: given back when nobody took its first bytes, because the worker has gone.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use node::Node;
use node::call::Claim;

/// Claims that an answer carries. Travels beside it until its body is made.
#[derive(Clone)]
pub(super) struct Undelivered(Arc<GiveBack>);

struct GiveBack {
    node: Node,
    claims: Vec<Claim>,
}

impl Undelivered {
    /// These claims of `node`.
    pub(super) fn new(node: &Node, claims: Vec<Claim>) -> Undelivered {
        Undelivered(Arc::new(GiveBack { node: node.clone(), claims }))
    }

    /// The claims that an answer carries, if it carries some.
    pub(super) fn of(response: &mut Response) -> Option<Undelivered> {
        response.extensions_mut().remove::<Undelivered>()
    }

    /// Lets the answer go out, watching over its claims.
    pub(super) fn watch(self, response: Response) -> Response {
        response.map(|body| Body::new(Watched { body, undelivered: Some(self), is_given: false }))
    }

    /// The answer does not go out.
    pub(super) fn give_back(self) {
        self.0.node.give_back(&self.0.claims);
    }
}

/// A body with claims in it.
struct Watched {
    body: Body,
    /// Until the first bytes are taken.
    undelivered: Option<Undelivered>,
    /// Some were handed on. HTTP/2 keeps them until there is a window, then asks for the next: at least for the trailers.
    is_given: bool,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.is_given {
            self.undelivered = None;
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.is_given |= polled.is_ready();
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(undelivered) = self.undelivered.take() {
            undelivered.give_back();
        }
    }
}
