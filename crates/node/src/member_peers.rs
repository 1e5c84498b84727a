//! The way from a replica to the other members of its group: a link, and whom exactly the message is for.
//!
//! A link leads to a node. A node that lost its disk is another member than the one it was, and what was meant
//! for its old self must not be answered by the new one: it would count for a promise that was forgotten. So
//! every message between members ends with the member it is for.

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use model::{GroupId, MemberId, NodeId};
use replica::{Pace, PeerAnswer, Peers, Unreached};
use wire::peer::PeerKind;
use wire::raft::TRAILER_BYTES;

use crate::link::Links;

/// The ways to other members.
pub(crate) struct MemberPeers(pub(crate) Links);

impl Peers for MemberPeers {
    fn send(
        &self,
        to: MemberId,
        group: GroupId,
        kind: PeerKind,
        body: Bytes,
        pace: Pace,
    ) -> BoxFuture<'static, Result<PeerAnswer, Unreached>> {
        Peers::send(&self.0, to, group, kind, seal(body, to), pace)
    }

    fn is_gone(&self, node: NodeId) -> bool {
        Peers::is_gone(&self.0, node)
    }
}

fn seal(body: Bytes, to: MemberId) -> Bytes {
    // Mostly nobody else holds the bytes, and they need not be copied.
    let mut body = body.try_into_mut().unwrap_or_else(|body| {
        let mut copy = BytesMut::with_capacity(body.len() + TRAILER_BYTES);
        copy.extend_from_slice(&body);
        copy
    });
    body.extend_from_slice(&to.bits().to_le_bytes());
    body.freeze()
}

/// What `me` is told, if it is for it.
pub(crate) fn open(mut body: Bytes, me: MemberId) -> Result<Bytes, String> {
    let Some(len) = body.len().checked_sub(TRAILER_BYTES) else {
        return Err("a message between members is too short".to_owned());
    };
    let trailer = body.split_off(len);
    let mut bits = [0; TRAILER_BYTES];
    bits.copy_from_slice(&trailer);
    let to = MemberId::from_bits(u64::from_le_bytes(bits));
    if to != me {
        return Err(format!("this is member {me}, not {to}"));
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_an_old_life_is_refused() {
        let (old, new) = (MemberId::new(NodeId(3), 0), MemberId::new(NodeId(3), 1));
        let body = Bytes::from_static(b"append");
        assert_eq!(open(seal(body.clone(), new), new), Ok(body.clone()));
        assert_eq!(open(seal(body, old), new), Err("this is member 3.1, not 3".to_owned()));
        assert!(open(Bytes::from_static(b"short"), new).is_err());
    }
}
