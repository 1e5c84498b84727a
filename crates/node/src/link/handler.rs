//! Who is asked when another node asks something, and where the answer goes.

use std::sync::Arc;

use bytes::Bytes;
use model::{GroupId, NodeId};
use wire::peer::{FrameRole, PeerKind};

use super::connection::Connection;
use super::frame::Frame;

/// Why a request is not even looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unheeded {
    /// Too much waits to be answered.
    TooMuch,
    /// The sender is not known to be of this cluster, or is not any more.
    Stranger,
}

/// Who is asked when another node asks something.
///
/// All calls for one connection come from its one reader, in the order of the bytes, so they must be quick:
/// what takes time is spawned or queued.
pub(crate) trait Handler: Send + Sync + 'static {
    /// A request, or something told (`reply` then goes nowhere). `knows_cluster` is false while `from` is
    /// not known to be of this cluster: only `Probe`, `Found` and `Join` come that way.
    #[allow(clippy::too_many_arguments)]
    fn handle(
        &self,
        from: NodeId,
        knows_cluster: bool,
        kind: PeerKind,
        group: GroupId,
        request: u64,
        body: Bytes,
        reply: ReplyTo,
    );

    /// The answer to a request that is not even looked at. Without one it is refused, which does not say that
    /// nothing happened.
    fn unheeded(&self, _kind: PeerKind, _why: Unheeded) -> Option<Bytes> {
        None
    }

    /// A connection to a node of this cluster is there. Comes before any `handle` with `knows_cluster` from
    /// it. The one before it may still be closing. Must not set peers or cluster.
    fn connected(&self, from: NodeId, connection: u64);

    /// That connection is closed; nothing comes from it any more.
    fn closed(&self, from: NodeId, connection: u64);
}

/// Where one answer goes. Dropped without an answer, it refuses.
pub(crate) struct ReplyTo {
    answers: Answers,
    kind: PeerKind,
    group: GroupId,
    /// Nothing when no answer is wanted, or when it was given.
    request: Option<u64>,
    body_bytes: usize,
}

impl ReplyTo {
    pub(super) fn new(
        connection: &Arc<Connection>,
        kind: PeerKind,
        group: GroupId,
        request: Option<u64>,
        body_bytes: usize,
    ) -> ReplyTo {
        connection.hold(body_bytes);
        ReplyTo { answers: Answers { connection: connection.clone() }, kind, group, request, body_bytes }
    }

    /// The connection that the request came by, as in [`Handler::connected`].
    pub(crate) fn connection(&self) -> u64 {
        self.answers.connection.number
    }

    /// Answers: the body, or why not.
    pub(crate) fn send(self, answer: Result<Bytes, String>) {
        self.deliver(answer);
    }

    /// The same. Whether somebody may hear it.
    pub(crate) fn deliver(mut self, answer: Result<Bytes, String>) -> bool {
        let request = self.request.take();
        request.is_some_and(|request| self.answers.deliver(self.kind, self.group, request, answer))
    }

    /// The answer will come by its number, through what is returned. The request's memory is not the link's
    /// to count any more.
    pub(crate) fn later(mut self) -> Answers {
        self.request = None;
        self.answers.clone()
    }
}

impl Drop for ReplyTo {
    fn drop(&mut self) {
        self.answers.connection.release(self.body_bytes);
        if let Some(request) = self.request.take() {
            self.answers.send(self.kind, self.group, request, Err("nobody took the request".to_owned()));
        }
    }
}

/// Answers requests of one connection by their number. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Answers {
    connection: Arc<Connection>,
}

impl Answers {
    /// Answers the request with this number, of this kind and group. Goes nowhere when the connection is
    /// closed: the other side knows that.
    pub(crate) fn send(&self, kind: PeerKind, group: GroupId, request: u64, answer: Result<Bytes, String>) {
        self.deliver(kind, group, request, answer);
    }

    /// The same. Whether the connection took it.
    fn deliver(&self, kind: PeerKind, group: GroupId, request: u64, answer: Result<Bytes, String>) -> bool {
        let (role, body) = match answer {
            Ok(body) => (FrameRole::Answer, body),
            Err(text) => (FrameRole::Refusal, Bytes::from(text)),
        };
        self.connection.answer(Frame { kind: kind as u8, role, group, request, body })
    }

    /// The other side does not keep to the protocol: closes the connection.
    pub(crate) fn close(&self, why: &str) {
        self.connection.close_broken(why.to_owned());
    }
}
