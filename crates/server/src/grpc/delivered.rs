//! Claims in the answer to one call: given back when nobody ever asked for its bytes, because the worker has gone.

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
}

/// Watches over the claims of an answer, if it carries some.
pub(super) fn watched(mut response: Response) -> Response {
    let Some(undelivered) = response.extensions_mut().remove::<Undelivered>() else { return response };
    response.map(|body| Body::new(Watched { body, undelivered: Some(undelivered) }))
}

/// A body with claims in it.
struct Watched {
    body: Body,
    /// Until the first bytes are asked for.
    undelivered: Option<Undelivered>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.undelivered = None;
        Pin::new(&mut self.body).poll_frame(context)
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
        if let Some(Undelivered(back)) = &self.undelivered {
            back.node.give_back(&back.claims);
        }
    }
}
