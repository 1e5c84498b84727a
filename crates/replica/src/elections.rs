//! Elections that do not wait for the clock: when the leader's process is known to be gone, and when enough
//! members have met after a start.
//!
//! Those that are there take their turns: the first asks for votes at once, the next only when that brought no
//! leader. Whoever sees the leader gone too gives its vote although it heard from it a moment ago (`receive`):
//! what it promised the leader is courtesy, not safety. One that sees it gone alone may be wrong, since a
//! firewall refuses as a dead process does: so it asks first who would vote for it, and the term stays as it is
//! unless a majority would.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use model::{GroupId, MemberId, NodeId};
use openraft::async_runtime::WatchReceiver;
use openraft::raft::VoteRequest;
use prost::Message;
use tokio::time::{sleep, timeout};
use wire::peer::PeerKind;
use wire::raft::{VoteAnswer, VoteAsk, encode};

use crate::codec::Codec;
use crate::members;
use crate::peers::Pace;
use crate::propose::Raft;
use crate::replica::Replica;
use crate::shared::Shared;
use crate::type_config::{Vote, log_id_to_message, vote_to_message};

/// How long the next in turn waits for the one before.
const TURN: Duration = Duration::from_millis(200);
/// How often each asks: at first others may not have seen yet that the leader is gone.
const TRIES: u32 = 3;

/// How long the others have to say whether they would vote: less than a turn, more than they wait for the word
/// that the leader is gone.
const ASK_WAIT: Duration = Duration::from_millis(150);

/// How the others are asked before the term grows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    /// By the engine, unless this member heard from a leader a moment ago.
    IfUnled,
    /// Here: the leader that was heard a moment ago is gone.
    AfterLoss,
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
        self.ask_in_turn(turn, left.len(), Ask::AfterLoss, is_replaced);
    }

    /// After a start: this node can talk to the nodes that `is_up` names. When they and this one are enough,
    /// one of them is elected at once, unless somebody leads. Whether there is nothing left to wait for.
    ///
    /// A new group waits for all, so that it is first led by who should; where one does not come, the engine's own
    /// patience ends that.
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
        let is_new = self.inner.shared.is_new();
        if 2 * here.len() <= count || is_new && here.len() < count {
            return false;
        }
        tracing::debug!(group = %self.group(), turn, "enough members have met");
        // Somebody may lead whom we have not heard yet: it keeps its term.
        self.ask_in_turn(turn, here.len(), Ask::IfUnled, has_leader);
        true
    }

    fn ask_in_turn(
        &self,
        turn: usize,
        members: usize,
        ask: Ask,
        is_over: impl Fn() -> bool + Send + 'static,
    ) {
        let round = TURN * members as u32;
        let (raft, stop) = (self.inner.raft.clone(), self.inner.stop.subscribe());
        let (shared, members_now) = (self.inner.shared.clone(), self.members());
        // Two sets of voters, each with a majority of its own, are for the engine to ask.
        let ask = if members_now.is_joint { Ask::IfUnled } else { ask };
        let voters = members_now.voters;
        tokio::spawn(async move {
            sleep(TURN * turn as u32).await;
            for _ in 0..TRIES {
                if is_over() || *stop.borrow() {
                    return;
                }
                let is_tried = match ask {
                    Ask::IfUnled => true,
                    Ask::AfterLoss => {
                        let asked = timeout(ASK_WAIT, would_win(&shared, &raft, &voters)).await;
                        // Somebody else may have been faster meanwhile.
                        asked.unwrap_or(false) && !is_over()
                    }
                };
                if is_tried && raft.trigger().elect(ask == Ask::IfUnled).await.is_err() {
                    return;
                }
                sleep(round).await;
            }
        });
    }
}

/// Whether a majority would vote for this member, itself included. Changes nothing anywhere.
async fn would_win<M: Codec>(shared: &Shared<M>, raft: &Raft<M>, voters: &BTreeSet<MemberId>) -> bool {
    let me = shared.member;
    let term = raft.server_metrics().borrow_watched().vote.leader_id.term + 1;
    let vote = Vote::new(term, me.bits());
    // Asked itself, it says what its last entry is.
    let own = raft.pre_vote(VoteRequest::new(vote, None)).await;
    let Ok(last) = own.map(|own| own.last_log_id.map(log_id_to_message)) else { return false };
    let body = encode(&VoteAsk { vote: Some(vote_to_message(&vote)), last, leadership_transfer: false });
    let ask = |to: &MemberId| {
        let sent = shared.peers.send(*to, shared.group, PeerKind::PreVote, body.clone(), Pace::Now);
        async move {
            let answer = sent.await.ok()?.await.ok()?;
            Some(VoteAnswer::decode(answer).ok()?.granted)
        }
    };
    let mut answers: FuturesUnordered<_> = voters.iter().filter(|to| **to != me).map(ask).collect();
    let mut grants = 1;
    while 2 * grants <= voters.len() {
        match answers.next().await {
            Some(granted) => grants += usize::from(granted == Some(true)),
            None => return false,
        }
    }
    true
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
