//! Leaders spread over the nodes, and move gently.
//!
//! Each group has a node that should lead it. Whoever leads in its place hands over when that node has been
//! there for a while and has the log: one group a second, so that a node that comes back is not run over, and
//! never to one that comes and goes.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use model::{MemberId, Millis, NodeId};
use tokio::time::{Instant, timeout};

use super::voters;
use crate::any_replica::AnyReplica;
use crate::error::Error;
use crate::groups::told;
use crate::inner::Inner;
use crate::link::LinkState;

/// At most one group moves away from a node in this time.
const MOVE_EVERY: Duration = Duration::from_secs(1);
/// A node is there for good when its link has been up for so long.
const SETTLED: Millis = Millis::secs(15);
/// A member that is behind by more does not have the log yet.
const BEHIND_MAX: u64 = 64;
/// How long leadership may take to move.
pub(crate) const MOVE_WAIT: Duration = Duration::from_secs(3);
/// How long a stop takes to hand all leaderships over.
const HAND_OVER_WAIT: Duration = Duration::from_secs(2);
/// How long the one who shall lead may take before it is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(700);

/// Whether a node must have been there for a while.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hurry {
    Gently,
    Now,
}

/// Moves leaders until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(MOVE_EVERY) => {}
            () = inner.stopping.cancelled() => return,
        }
        if let Some((replica, to)) = inner.moves(Hurry::Gently).next() {
            let group = replica.group();
            tracing::info!(%group, %to, "leadership moves to where it belongs");
            if let Err(error) = replica.transfer_to(to).await {
                tracing::debug!(%group, %to, %error, "leadership did not move");
            }
        }
    }
}

impl Inner {
    /// Groups that are led here and belong elsewhere, and to whom.
    fn moves(&self, hurry: Hurry) -> impl Iterator<Item = (&Arc<dyn AnyReplica>, MemberId)> {
        let led = self.replicas.iter().filter(|replica| replica.leads());
        led.filter_map(move |replica| Some((replica, self.belongs_to(&**replica, hurry)?)))
    }

    /// Who should lead a group in place of this node.
    fn belongs_to(&self, replica: &dyn AnyReplica, hurry: Hurry) -> Option<MemberId> {
        let group = replica.group();
        let node = self
            .groups
            .catalog
            .read_stale(|catalog| catalog.voters(group).and_then(|nodes| voters::preferred(group, nodes)))?;
        if node == self.node || !self.is_settled(node, hurry) || self.is_disk_full_on(node) {
            return None;
        }
        let members = replica.members();
        let member = *members.voters.iter().find(|member| member.node() == node)?;
        let is_calm = members.committed && !members.is_joint;
        (is_calm && has_log(replica, member)).then_some(member)
    }

    fn is_settled(&self, node: NodeId, hurry: Hurry) -> bool {
        if self.says_it_stops(node) {
            return false;
        }
        match self.links.state(node) {
            LinkState::Up { since, .. } => {
                hurry == Hurry::Now || self.now().0.saturating_sub(since.0) >= SETTLED.0
            }
            LinkState::Down { .. } => false,
        }
    }

    /// Whether a node has said that it is about to stop.
    fn says_it_stops(&self, node: NodeId) -> bool {
        self.statuses.fresh(node, self.now()).is_some_and(|status| status.is_stopping)
    }

    /// Hands all groups that belong elsewhere over, one after the other. How many moved.
    pub(crate) async fn rebalance(&self) -> usize {
        let mut moved = 0;
        let moves: Vec<_> = self.moves(Hurry::Now).map(|(replica, to)| (replica.clone(), to)).collect();
        for (replica, to) in moves {
            moved += usize::from(hand_over(&*replica, to, MOVE_WAIT).await.is_ok());
        }
        moved
    }

    /// Hands a group that is led here over: to that node, or to whoever has most of the log.
    pub(crate) async fn transfer(&self, replica: &dyn AnyReplica, to: Option<NodeId>) -> Result<(), Error> {
        let heir = match to {
            Some(node) if node == self.node => return Ok(()),
            Some(node) => replica.members().voters.iter().copied().find(|member| member.node() == node),
            None => self.heir(replica),
        };
        let Some(heir) = heir else {
            let group = replica.group();
            return Err(Error::Invalid(match to {
                Some(node) => format!("node {node} has no vote in group {group}: give it one with promote"),
                None => format!("no other voter of group {group} can be reached"),
            }));
        };
        hand_over(replica, heir, MOVE_WAIT).await
    }

    /// Another voter that can be reached: of those that have the log the groups take turns, else the one that
    /// has most of it.
    fn heir(&self, replica: &dyn AnyReplica) -> Option<MemberId> {
        let can_lead = |member: &MemberId| {
            let node = member.node();
            *member != replica.member() && self.is_up(node) && !self.says_it_stops(node)
        };
        let others: Vec<MemberId> = replica.members().voters.into_iter().filter(can_lead).collect();
        let ready: Vec<MemberId> =
            others.iter().copied().filter(|member| has_log(replica, *member)).collect();
        let turn = usize::from(replica.group().0) % ready.len().max(1);
        let progress = replica.progress();
        let most = || others.into_iter().max_by_key(|member| progress.get(member).copied().unwrap_or(0));
        ready.get(turn).copied().or_else(most)
    }

    /// Before a stop: nobody should have to notice that this node led. All groups at once, and not for long.
    pub(crate) async fn hand_all_over(&self) {
        let hand = |replica: &Arc<dyn AnyReplica>| {
            let replica = replica.clone();
            async move {
                let heir = self.heir(&*replica)?;
                hand_over(&*replica, heir, HAND_OVER_WAIT).await.ok()
            }
        };
        let led: Vec<_> = self.replicas.iter().filter(|replica| replica.leads()).collect();
        if !led.is_empty() {
            let handed = timeout(HAND_OVER_WAIT, join_all(led.iter().map(|replica| hand(replica)))).await;
            let handed = handed.map_or(0, |handed| handed.iter().flatten().count());
            tracing::info!(led = led.len(), handed, "leaderships handed over");
        }
    }
}

fn has_log(replica: &dyn AnyReplica, member: MemberId) -> bool {
    let last = replica.status().last.unwrap_or(0);
    replica.progress().get(&member).is_some_and(|index| index.saturating_add(BEHIND_MAX) >= last)
}

/// Hands over, and waits until another leads. Asked again when the other does not take it: it may have been
/// a moment behind.
async fn hand_over(replica: &dyn AnyReplica, to: MemberId, patience: Duration) -> Result<(), Error> {
    let until = Instant::now() + patience;
    while Instant::now() < until {
        match replica.transfer_to(to).await {
            Ok(()) => {}
            // Somebody else leads already.
            Err(replica::Error::NotLeader { leader: Some(_) }) => return Ok(()),
            Err(error) => return Err(told(error)),
        }
        let again = until.min(Instant::now() + ASK_AGAIN);
        if tokio::time::timeout_at(again, another_leads(replica)).await.is_ok() {
            return Ok(());
        }
    }
    Err(Error::Unavailable)
}

async fn another_leads(replica: &dyn AnyReplica) {
    let me = replica.member();
    let mut seen = replica.leader();
    while seen.is_none_or(|(leader, _)| leader == me) {
        let before = seen;
        seen = replica.leader_changed(seen).await;
        if seen == before {
            // The engine has gone.
            return;
        }
    }
}
