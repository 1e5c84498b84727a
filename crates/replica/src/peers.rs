//! How a replica reaches the other members of its group.
//!
//! The node implements [`Peers`] on its links to other nodes; a test, on whatever it likes. Bodies are opaque
//! to it: they are made in `network` and understood in `receive`.

use std::fmt;

use bytes::Bytes;
use futures::future::BoxFuture;
use model::{GroupId, MemberId, NodeId};
use wire::peer::PeerKind;

/// How soon a message must leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Somebody waits for what it brings.
    Now,
    /// May wait up to 20 ms for company: a heartbeat that brings no news.
    Lazy,
}

/// The other side was not reached, or did not answer: whether it got the message is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreached(pub String);

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreached {}

/// Where the answer to a message comes from.
pub type PeerAnswer = BoxFuture<'static, Result<Bytes, Unreached>>;

/// The way to the other members of a group.
pub trait Peers: Send + Sync + 'static {
    /// Hands `body` to the link to the member's node. Ready when the link has taken it: until then nothing more
    /// is asked for in the same sequence, so that what one caller sends one after the other arrives in that
    /// order. The answer comes through what is returned.
    fn send(
        &self,
        to: MemberId,
        group: GroupId,
        kind: PeerKind,
        body: Bytes,
        pace: Pace,
    ) -> BoxFuture<'static, Result<PeerAnswer, Unreached>>;

    /// Whether this node saw that node's process end and no new one answered since.
    fn is_gone(&self, node: NodeId) -> bool;
}

/// The way to nobody: for groups of one.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

impl Peers for NoPeers {
    fn send(
        &self,
        to: MemberId,
        _group: GroupId,
        _kind: PeerKind,
        _body: Bytes,
        _pace: Pace,
    ) -> BoxFuture<'static, Result<PeerAnswer, Unreached>> {
        let unreached = Unreached(format!("there is no way to member {to} from here"));
        Box::pin(async move { Err(unreached) })
    }

    fn is_gone(&self, _node: NodeId) -> bool {
        false
    }
}
