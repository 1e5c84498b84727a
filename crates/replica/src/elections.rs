//! Elections that do not wait for the clock: when the leader's process is known to be gone, and when enough
//! members have met after a start.
//!
//! Those that are there take their turns: the first asks for votes at once, the next only when that brought no
//! leader. Whoever sees the leader gone too gives its vote although it heard from it a moment ago (`receive`):
//! what it promised the leader is courtesy, not safety.

use std::time::Duration;

use model::{GroupId, MemberId, NodeId};
use tokio::time::sleep;

use crate::codec::Codec;
use crate::members;
use crate::replica::Replica;

/// How long the next in turn waits for the one before.
const TURN: Duration = Duration::from_millis(200);
/// How often each asks: at first others may not have seen yet that the leader is gone.
const TRIES: u32 = 3;

/// Whether the others are asked before the term grows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Asked,
    NotAsked,
}

impl<M: Codec> Replica<M> {
    /// That node's process is gone: if it led this group, another member is elected at once.
    pub fn node_gone(&self, node: NodeId) {
        let Some(gone) = self.leader().filter(|(leader, _)| leader.node() == node) else { return };
        let peers = &self.inner.shared.peers;
        let is_left = |member: &MemberId| member.node() != node && !peers.is_gone(member.node());
        let voters = self.members().voters;
        let left: Vec<MemberId> =
            voters.into_iter().filter(|member| *member == self.member() || is_left(member)).collect();
        let Some(turn) = turn(&left, self.group(), self.member()) else { return };
        tracing::info!(group = %self.group(), leader = %gone.0, term = gone.1, turn, "the leader is gone");
        let raft = self.inner.raft.clone();
        // None while somebody asks for votes, or another when somebody has got them.
        let is_replaced = move || members::leader(&raft).is_some_and(|leader| leader != gone);
        self.ask_in_turn(turn, left.len(), Before::NotAsked, is_replaced);
    }

    /// After a start: this node can talk to the nodes that `is_up` names. When they and this one are enough,
    /// one of them is elected at once, unless somebody leads. Whether there is nothing left to wait for.
    pub fn meet(&self, is_up: &dyn Fn(NodeId) -> bool) -> bool {
        let replica = self.clone();
        let has_leader = move || replica.leads() || replica.inner.shared.heard().is_some();
        if has_leader() {
            return true;
        }
        let voters = self.members().voters;
        let count = voters.len();
        let here: Vec<MemberId> =
            voters.into_iter().filter(|member| *member == self.member() || is_up(member.node())).collect();
        let Some(turn) = turn(&here, self.group(), self.member()) else { return false };
        if 2 * here.len() <= count {
            return false;
        }
        tracing::debug!(group = %self.group(), turn, "enough members have met");
        // Somebody may lead whom we have not heard yet: it keeps its term.
        self.ask_in_turn(turn, here.len(), Before::Asked, has_leader);
        true
    }

    fn ask_in_turn(
        &self,
        turn: usize,
        members: usize,
        before: Before,
        is_over: impl Fn() -> bool + Send + 'static,
    ) {
        let round = TURN * members as u32;
        let (raft, stop) = (self.inner.raft.clone(), self.inner.stop.subscribe());
        tokio::spawn(async move {
            sleep(TURN * turn as u32).await;
            for _ in 0..TRIES {
                let is_asked = before == Before::Asked;
                if is_over() || *stop.borrow() || raft.trigger().elect(is_asked).await.is_err() {
                    return;
                }
                sleep(round).await;
            }
        });
    }
}

/// Whose turn it is: 0 is the first. Groups begin with different members, so that their leaders are spread.
fn turn(left: &[MemberId], group: GroupId, member: MemberId) -> Option<usize> {
    let at = left.iter().position(|other| *other == member)?;
    let first = usize::from(group.0) % left.len();
    Some((at + left.len() - first) % left.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_left_has_a_turn_of_its_own_and_groups_begin_with_different_ones() {
        let member = |node| MemberId::new(NodeId(node), 0);
        let left = [member(2), member(3), member(7)];
        let mut firsts = Vec::new();
        for group in 0..3 {
            let mut turns: Vec<_> =
                left.iter().map(|who| turn(&left, GroupId(group), *who).unwrap()).collect();
            firsts.push(left[turns.iter().position(|turn| *turn == 0).unwrap()]);
            turns.sort_unstable();
            assert_eq!(turns, [0, 1, 2]);
        }
        assert_eq!(firsts, left);
        assert_eq!(turn(&left, GroupId(0), member(1)), None, "a learner has none");
    }
}
