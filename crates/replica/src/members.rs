//! Who is in the group, who leads it, and how both change.
//!
//! Only the leader changes members, one change at a time; a caller whose change is refused because another
//! is under way asks again later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::MemberId;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::impls::BasicNode;
use openraft::{ChangeMembers, Instant, LogIdOptionExt, ServerState};
use tokio::time::timeout;

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::look::not_leader;
use crate::propose::Raft;
use crate::quiet;
use crate::replica::Replica;
use crate::type_config::Types;

/// How long a change of members may take before its outcome is unknown.
const CHANGE_WAIT: Duration = Duration::from_secs(10);

/// A member that did not answer for so long is not asked to lead.
const HANDOVER_SILENCE_MAX: Duration = Duration::from_secs(1);
/// Nor one that lacks more entries than this: the group would wait for it.
const HANDOVER_LAG_MAX: u64 = 1_000;

/// Who is in a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Who votes; while one set replaces another, all of both.
    pub voters: BTreeSet<MemberId>,
    /// Who follows without a vote.
    pub learners: BTreeSet<MemberId>,
    /// Where each of them listens.
    pub addresses: BTreeMap<MemberId, String>,
    /// One set of voters is replacing another.
    pub is_joint: bool,
    /// A quorum has it; if not, it may yet be undone.
    pub committed: bool,
}

/// Who leads, and in which term, as far as this engine knows.
pub(crate) fn leader<M: Codec>(raft: &Raft<M>) -> Option<(MemberId, u64)> {
    let metrics = raft.server_metrics();
    let metrics = metrics.borrow_watched();
    metrics.current_leader.map(|leader| (MemberId::from_bits(leader), metrics.vote.leader_id.term))
}

impl<M: Codec> Replica<M> {
    /// Asks for votes at once, whoever may lead. For a group of one, which has nobody to wait for.
    pub async fn elect(&self) -> Result<()> {
        self.inner.raft.trigger().elect(false).await.map_err(|_| Error::Stopped)
    }

    /// Who leads, and in which term, as far as this replica knows.
    pub fn leader(&self) -> Option<(MemberId, u64)> {
        leader(&self.inner.raft)
    }

    /// Whether this replica leads, as far as it knows.
    pub fn leads(&self) -> bool {
        let metrics = self.inner.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.state == ServerState::Leader
    }

    /// Waits until leader or term changed since the last look at `seen`, and returns what is now.
    pub async fn leader_changed(&self, seen: Option<(MemberId, u64)>) -> Option<(MemberId, u64)> {
        let mut metrics = self.inner.raft.server_metrics();
        loop {
            let now = {
                let metrics = metrics.borrow_and_update();
                metrics
                    .current_leader
                    .map(|leader| (MemberId::from_bits(leader), metrics.vote.leader_id.term))
            };
            if now != seen || metrics.changed().await.is_err() {
                return now;
            }
        }
    }

    /// Who is in the group, as far as this replica knows.
    pub fn members(&self) -> Members {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let stored = &metrics.membership_config;
        let membership = stored.membership();
        Members {
            voters: membership.voter_ids().map(MemberId::from_bits).collect(),
            learners: membership.learner_ids().map(MemberId::from_bits).collect(),
            addresses: membership
                .nodes()
                .map(|(id, node)| (MemberId::from_bits(*id), node.addr.clone()))
                .collect(),
            is_joint: membership.get_joint_config().len() > 1,
            committed: stored.log_id() == metrics.committed_membership_config.log_id(),
        }
    }

    /// As leader, the last entry that each member is known to have; nothing on others.
    pub fn progress(&self) -> BTreeMap<MemberId, u64> {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let replication = metrics.replication.iter().flatten();
        replication.map(|(id, matched)| (MemberId::from_bits(*id), matched.index().unwrap_or(0))).collect()
    }

    /// Asks `member` to lead instead of this replica, which takes no new entries meanwhile. A member that is
    /// silent or far behind is not asked ([`Error::Unavailable`]). Whoever asks watches [`Replica::leader_changed`]; if it fails, somebody is elected as after a crash.
    pub async fn transfer_to(&self, member: MemberId) -> Result<()> {
        let term = match self.inner.raft.as_leader() {
            Ok(leader) => leader.term(),
            Err(forward) => return Err(not_leader(&forward)),
        };
        if member == self.member() {
            return Ok(());
        }
        if !self.can_lead(member) {
            return Err(Error::Unavailable);
        }
        match self.stir().await {
            // Somebody was asked before, and does not lead yet.
            Err(Error::NotLeader { .. }) if self.leads() => {}
            stirred => stirred?,
        }
        self.inner.shared.quiet.hands_over(term);
        self.inner.raft.trigger().transfer_leader(member.bits()).await.map_err(|_| Error::Stopped)
    }

    /// Whether a member votes, answers and has all but the last of the log: it could lead at once.
    fn can_lead(&self, member: MemberId) -> bool {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let id = member.bits();
        let votes = metrics.membership_config.membership().voter_ids().any(|voter| voter == id);
        let acked = metrics.heartbeat.as_ref().and_then(|heartbeat| *heartbeat.get(&id)?);
        let agreed = self.inner.shared.quiet.agreed_age(metrics.current_term);
        let silence = acked.map(|acked| acked.elapsed()).into_iter().chain(agreed).min();
        let answers = silence.is_some_and(|silence| silence < HANDOVER_SILENCE_MAX);
        let matched = metrics.replication.as_ref().and_then(|all| *all.get(&id)?);
        let lag = metrics.last_log_index.unwrap_or(0).saturating_sub(matched.index().unwrap_or(0));
        votes && answers && lag <= HANDOVER_LAG_MAX
    }

    /// Adds a member without a vote. As leader; does not wait until it has caught up.
    pub async fn add_learner(&self, member: MemberId, address: &str) -> Result<()> {
        self.stir().await?;
        let node = BasicNode::new(address);
        let added = self.inner.raft.add_learner(member.bits(), node, false);
        self.changed(timeout(CHANGE_WAIT, added).await.map(|added| added.map(drop)))
    }

    /// Makes these the group's members, whatever they are now: `voters`, and the others of `copies` as learners. A
    /// member whose address in `copies` is another than the group knows has moved there. As leader. New voters
    /// should have been learners that caught up, or the group waits for them.
    pub async fn set_members(
        &self,
        voters: &BTreeSet<MemberId>,
        copies: &BTreeMap<MemberId, String>,
    ) -> Result<()> {
        let now = self.members();
        let wanted: BTreeSet<MemberId> = voters.iter().chain(copies.keys()).copied().collect();
        let nodes = |is_wanted: &dyn Fn(Option<&String>, &String) -> bool| -> BTreeMap<u64, BasicNode> {
            copies
                .iter()
                .filter(|(member, address)| is_wanted(now.addresses.get(member), address))
                .map(|(member, address)| (member.bits(), BasicNode::new(address)))
                .collect()
        };
        let missing = nodes(&|known, _| known.is_none());
        if !missing.is_empty() {
            self.change(ChangeMembers::AddNodes(missing)).await?;
        }
        // A member is its number, and what is sent to it names that: a wrong address reaches nobody, and never
        // the wrong one. So this cannot split the group, which the engine warns of.
        let moved = nodes(&|known, address| known.is_some_and(|known| known != address));
        if !moved.is_empty() {
            self.change(ChangeMembers::SetNodes(moved)).await?;
        }
        if now.voters != *voters || now.is_joint {
            let voters = voters.iter().map(|member| member.bits()).collect();
            self.change(ChangeMembers::ReplaceAllVoters(voters)).await?;
        }
        let gone: BTreeSet<u64> = now
            .addresses
            .keys()
            .filter(|member| !wanted.contains(member))
            .map(|member| member.bits())
            .collect();
        if !gone.is_empty() {
            self.change(ChangeMembers::RemoveNodes(gone)).await?;
        }
        Ok(())
    }

    /// One change, through a joint set of voters if they change. Voters that lose their vote stay as learners.
    async fn change(&self, change: ChangeMembers<u64, BasicNode>) -> Result<()> {
        self.stir().await?;
        let changed = self.inner.raft.change_membership(change, true);
        self.changed(timeout(CHANGE_WAIT, changed).await.map(|changed| changed.map(drop)))
    }

    /// A quiet leader may write again.
    async fn stir(&self) -> Result<()> {
        quiet::stir(&self.inner.shared, &self.inner.raft).await
    }

    fn changed<E>(
        &self,
        changed: Result<Result<(), RaftError<Types, ClientWriteError<Types>>>, E>,
    ) -> Result<()> {
        let Ok(changed) = changed else { return Err(Error::Timeout) };
        let Err(error) = changed else { return Ok(()) };
        Err(match error {
            RaftError::Fatal(_) => Error::Stopped,
            RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => not_leader(&forward),
            RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => Error::Timeout,
            RaftError::APIError(ClientWriteError::ChangeMembershipError(
                ChangeMembershipError::EmptyMembership(_)
                | ChangeMembershipError::LearnerNotFound(_)
                | ChangeMembershipError::UnsupportedMembershipTransition(_)
                | ChangeMembershipError::NodeMetadataChanged(_),
            )) => Error::Members { group: self.group(), what: error.to_string() },
            // Another change is under way, or the leader is new: ask again.
            RaftError::APIError(_) => Error::Unavailable,
        })
    }
}
