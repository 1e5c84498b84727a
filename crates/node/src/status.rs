//! What nodes tell each other of themselves, twice a second: clock, room, and their part in every group.
//!
//! From it come `/v1/cluster` and its health (`cluster.rs`, `health.rs`), the comparison of copies (`agree.rs`),
//! the clock that entries are stamped with (`held_clock.rs`) and whether a quorum has room (`room.rs`). It is
//! news: nothing here is kept longer than the process, and what is older than [`STALE`] says nothing of now.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{GroupId, MemberId, Millis, NodeId, WallTime, limits};
use parking_lot::Mutex;
use replica::{HashPoint, Role, Status};
use storage::{Disk, Executor};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{MissedTickBehavior, interval, sleep};
use wire::peer::PeerKind;
use wire::status::{GroupStatusMessage, HashPointMessage, RoleNumber, StatusMessage};

use crate::agree::Agreement;
use crate::cluster::VERSION;
use crate::held_clock::HeldClock;
use crate::inner::Inner;
use crate::link::{LinkEvent, LinkState, Links};

/// How often a node tells.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// News that come together are told together.
const GATHER: Duration = Duration::from_millis(10);
/// What is older says nothing of now.
pub(crate) const STALE: Millis = Millis::secs(3);
/// Hashes of each group in one message.
const POINTS_TOLD: usize = 8;
/// Ticks that a group's newest hashes are repeated: a message may be lost.
const POINTS_REPEATED: u32 = 6;
/// How far back it is remembered what was committed.
const TRAIL: Millis = Millis::secs(6);
/// The longest reason, version or address that is kept of another node.
const TEXT_BYTES_MAX: usize = 1024;

/// What a node said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeStatus {
    pub(crate) version: String,
    pub(crate) address: String,
    pub(crate) disk_full: bool,
    pub(crate) memory_full: bool,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_bytes_max: u64,
    pub(crate) is_stopping: bool,
    pub(crate) groups: BTreeMap<GroupId, GroupStatus>,
}

/// What a node said of its part in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupStatus {
    pub(crate) role: Option<Role>,
    pub(crate) term: u64,
    pub(crate) leader: Option<NodeId>,
    pub(crate) committed: u64,
    pub(crate) applied: u64,
    pub(crate) failure: Option<String>,
    pub(crate) is_diverged: bool,
}

/// What was heard of one node, and when.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) at: Millis,
    pub(crate) status: Arc<NodeStatus>,
}

/// What was heard of all nodes.
pub(crate) struct Statuses {
    /// Tells this run of the process from others.
    process: u64,
    heard: Mutex<BTreeMap<NodeId, Heard>>,
    /// Rings when the others should hear something at once.
    news: Notify,
    trails: Mutex<HashMap<GroupId, Trail>>,
    pub(crate) agreement: Agreement,
}

impl Statuses {
    pub(crate) fn new() -> Statuses {
        Statuses {
            process: rand::random(),
            heard: Mutex::default(),
            news: Notify::new(),
            trails: Mutex::default(),
            agreement: Agreement::default(),
        }
    }

    /// What a node last said, however old.
    pub(crate) fn last(&self, node: NodeId) -> Option<Heard> {
        self.heard.lock().get(&node).cloned()
    }

    /// What a node says, unless it fell silent.
    pub(crate) fn fresh(&self, node: NodeId, now: Millis) -> Option<Arc<NodeStatus>> {
        let heard = self.last(node)?;
        (now.0.saturating_sub(heard.at.0) <= STALE.0).then_some(heard.status)
    }

    /// Tells the others soon, not only at the next tick.
    pub(crate) fn tell_soon(&self) {
        self.news.notify_one();
    }

    /// What was committed in a group so long ago, as far as it was seen.
    pub(crate) fn committed_before(&self, group: GroupId, now: Millis, ago: Millis) -> Option<u64> {
        self.trails.lock().get(&group)?.before(now, ago)
    }

    fn keep(&self, node: NodeId, at: Millis, status: NodeStatus) {
        let mut heard = self.heard.lock();
        if heard.len() < limits::NODES_MAX || heard.contains_key(&node) {
            heard.insert(node, Heard { at, status: Arc::new(status) });
        }
    }

    fn forget_all_but(&self, nodes: &BTreeSet<NodeId>) {
        self.heard.lock().retain(|node, _| nodes.contains(node));
    }
}

/// What was committed when, oldest first.
#[derive(Debug, Default)]
struct Trail(VecDeque<(Millis, u64)>);

impl Trail {
    fn push(&mut self, now: Millis, committed: u64) {
        while self.0.front().is_some_and(|(at, _)| now.0.saturating_sub(at.0) > TRAIL.0) {
            self.0.pop_front();
        }
        self.0.push_back((now, committed));
    }

    /// The newest that is old enough.
    fn before(&self, now: Millis, ago: Millis) -> Option<u64> {
        let mut old = self.0.iter().rev().filter(|(at, _)| now.0.saturating_sub(at.0) >= ago.0);
        old.next().map(|(_, committed)| *committed)
    }
}

/// Tells and looks until the node stops.
pub(crate) async fn run(inner: Arc<Inner>, disk: Arc<dyn Disk>, executor: Arc<dyn Executor>) {
    let mut ticks = interval(TELL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut links = inner.links.events();
    let mut points = PointsTold::default();
    loop {
        let is_tick = tokio::select! {
            _ = ticks.tick() => true,
            () = inner.statuses.news.notified() => {
                sleep(GATHER).await;
                false
            }
            // Whoever comes hears at once how things are, and what time it is.
            event = links.recv() => match event {
                Ok(LinkEvent::Up(_)) | Err(RecvError::Lagged(_)) => false,
                Ok(_) => continue,
                Err(RecvError::Closed) => return,
            },
            () = inner.stopping.cancelled() => break,
        };
        let statuses = inner.statuses();
        inner.tell(&statuses, &mut points, is_tick);
        if is_tick {
            inner.held.look();
            inner.know_nodes();
            inner.keep_trails(&statuses);
            inner.compare_copies(&statuses, &disk, &*executor);
        }
    }
    // The last word: it is stopping.
    inner.tell(&inner.statuses(), &mut points, false);
}

/// Another node said this of itself.
pub(crate) fn on_status(inner: &Inner, from: NodeId, body: Bytes) {
    let message = match wire::status::decode(body) {
        Ok(message) => message,
        Err(error) => {
            tracing::debug!(node = %from, %error, "a status that is none");
            return;
        }
    };
    hear_wall(&inner.held, &inner.links, from, message.wall_ms);
    let member = MemberId::new(from, message.incarnation);
    let process = message.process;
    let known = usize::from(inner.groups.count());
    let mut status = NodeStatus {
        version: cut(message.version),
        address: cut(message.address),
        disk_full: message.disk_full,
        memory_full: message.memory_full,
        memory_bytes: message.memory_bytes,
        memory_bytes_max: message.memory_bytes_max,
        is_stopping: message.stopping,
        groups: BTreeMap::new(),
    };
    for group in message.groups {
        let Some(id) = u16::try_from(group.group).ok().filter(|id| usize::from(*id) <= known) else {
            continue;
        };
        let id = GroupId(id);
        let points: Vec<_> = group.points.iter().filter_map(point).collect();
        inner.statuses.agreement.hear(id, member, process, &points);
        status.groups.insert(id, heard_group(group));
    }
    inner.statuses.keep(from, inner.now(), status);
}

/// The clock of a node that said this, for a node that is still starting: it must know what time it is before
/// it stamps its first entry.
pub(crate) fn hear_clock(held: &HeldClock, links: &Links, from: NodeId, body: Bytes) {
    if let Ok(message) = wire::status::decode(body) {
        hear_wall(held, links, from, message.wall_ms);
    }
}

fn hear_wall(held: &HeldClock, links: &Links, from: NodeId, wall_ms: u64) {
    let round_trip = match links.state(from) {
        LinkState::Up { round_trip, .. } => round_trip,
        LinkState::Down { .. } => Duration::ZERO,
    };
    held.hear(from, WallTime::from_millis(wall_ms), round_trip);
}

impl Inner {
    /// Of all groups, the catalog first.
    pub(crate) fn statuses(&self) -> Vec<Status> {
        let shards = self.groups.all().map(|shard| self.groups.shard(shard).status());
        std::iter::once(self.groups.catalog.status()).chain(shards).collect()
    }

    /// What this node says of itself.
    pub(crate) fn own_status(&self, statuses: &[Status]) -> NodeStatus {
        let groups = statuses.iter().map(|status| (status.group, self.own_group(status)));
        NodeStatus {
            version: VERSION.to_owned(),
            address: self.life.addresses.http.clone(),
            disk_full: self.room.is_disk_full(),
            memory_full: self.room.is_memory_full(),
            memory_bytes: self.room.memory_bytes(),
            memory_bytes_max: self.room.memory_bytes_max(),
            is_stopping: self.is_stopping(),
            groups: groups.collect(),
        }
    }

    fn own_group(&self, status: &Status) -> GroupStatus {
        let odd = self.statuses.agreement.odd(status.group);
        GroupStatus {
            role: Some(status.role),
            term: status.term,
            leader: status.leader.map(MemberId::node),
            committed: status.committed.unwrap_or(0),
            applied: status.applied.unwrap_or(0),
            failure: status.failure.clone(),
            is_diverged: odd.iter().any(|odd| odd.member == status.member),
        }
    }

    /// Tells all that can be reached.
    fn tell(&self, statuses: &[Status], points: &mut PointsTold, is_tick: bool) {
        let up = self.links.up();
        if up.is_empty() {
            return;
        }
        if is_tick {
            points.tick(statuses);
        }
        let body = wire::status::encode(&self.message(statuses, points));
        for node in up {
            // No link or no room: the next tick tells anew.
            let _ = self.links.tell(node, PeerKind::Status, GroupId::CATALOG, body.clone());
        }
    }

    fn message(&self, statuses: &[Status], points: &PointsTold) -> StatusMessage {
        let own = self.own_status(statuses);
        let group = |status: &Status| {
            let group = &own.groups[&status.group];
            GroupStatusMessage {
                group: u32::from(status.group.0),
                role: role_number(status.role).into(),
                term: group.term,
                leader: group.leader.map_or(0, |node| node.0),
                last: status.last.unwrap_or(0),
                committed: group.committed,
                applied: group.applied,
                points: points.of(status).iter().map(told_point).collect(),
                failure: group.failure.clone(),
                diverged: group.is_diverged,
            }
        };
        StatusMessage {
            wall_ms: self.held.own_wall().millis(),
            incarnation: statuses.first().map_or(0, |catalog| catalog.member.incarnation()),
            process: self.statuses.process,
            groups: statuses.iter().map(group).collect(),
            version: own.version,
            address: own.address,
            disk_full: own.disk_full,
            memory_full: own.memory_full,
            memory_bytes: own.memory_bytes,
            memory_bytes_max: own.memory_bytes_max,
            stopping: own.is_stopping,
        }
    }

    /// Forgets what was heard of nodes that are not part of the cluster.
    fn know_nodes(&self) {
        let known = |catalog: &state_machine::Catalog| catalog.nodes().map(|(node, _)| node).collect();
        let mut nodes: BTreeSet<NodeId> = self.groups.catalog.read_stale(known);
        // A catalog that has yet to learn of its nodes says nothing about them.
        if nodes.is_empty() {
            return;
        }
        nodes.insert(self.node);
        self.held.set_nodes(&nodes);
        self.statuses.forget_all_but(&nodes);
    }

    /// What is committed in a group, by the best word that this node has.
    pub(crate) fn committed(&self, group: GroupId, own: u64, now: Millis) -> u64 {
        let heard = self.statuses.heard.lock();
        let fresh = heard.values().filter(|heard| now.0.saturating_sub(heard.at.0) <= STALE.0);
        let told = fresh.filter_map(|heard| Some(heard.status.groups.get(&group)?.committed));
        told.max().unwrap_or(0).max(own)
    }

    fn keep_trails(&self, statuses: &[Status]) {
        let now = self.now();
        for status in statuses {
            let committed = self.committed(status.group, status.committed.unwrap_or(0), now);
            self.statuses.trails.lock().entry(status.group).or_default().push(now, committed);
        }
    }
}

/// Which hashes are told: many while they are new, one when nothing changes any more.
#[derive(Default)]
struct PointsTold {
    /// The newest index of each group, and for how many ticks it has been that.
    newest: HashMap<GroupId, (Option<u64>, u32)>,
}

impl PointsTold {
    fn tick(&mut self, statuses: &[Status]) {
        for status in statuses {
            let newest = status.hash_points.last().map(|point| point.index);
            let told = self.newest.entry(status.group).or_default();
            *told = if told.0 == newest { (newest, told.1.saturating_add(1)) } else { (newest, 0) };
        }
    }

    fn of<'a>(&self, status: &'a Status) -> &'a [HashPoint] {
        let ticks = self.newest.get(&status.group).map_or(0, |(_, ticks)| *ticks);
        let count = if ticks > POINTS_REPEATED { 1 } else { POINTS_TOLD };
        &status.hash_points[status.hash_points.len().saturating_sub(count)..]
    }
}

fn told_point(point: &HashPoint) -> HashPointMessage {
    HashPointMessage { index: point.index, hash: Some(point.hash.into()) }
}

fn point(message: &HashPointMessage) -> Option<HashPoint> {
    Some(HashPoint { index: message.index, hash: message.hash?.into() })
}

fn heard_group(message: GroupStatusMessage) -> GroupStatus {
    GroupStatus {
        role: role(message.role()),
        term: message.term,
        leader: (message.leader != 0).then_some(NodeId(message.leader)),
        committed: message.committed,
        applied: message.applied,
        failure: message.failure.map(cut),
        is_diverged: message.diverged,
    }
}

fn role_number(role: Role) -> RoleNumber {
    match role {
        Role::Leader => RoleNumber::Leader,
        Role::Follower => RoleNumber::Follower,
        Role::Candidate => RoleNumber::Candidate,
        Role::Learner => RoleNumber::Learner,
        Role::Stopped => RoleNumber::Stopped,
    }
}

fn role(number: RoleNumber) -> Option<Role> {
    match number {
        RoleNumber::Unknown => None,
        RoleNumber::Leader => Some(Role::Leader),
        RoleNumber::Follower => Some(Role::Follower),
        RoleNumber::Candidate => Some(Role::Candidate),
        RoleNumber::Learner => Some(Role::Learner),
        RoleNumber::Stopped => Some(Role::Stopped),
    }
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_old_says_nothing_of_now() {
        let statuses = Statuses::new();
        let node = NodeId(2);
        assert!(statuses.fresh(node, Millis(0)).is_none());
        statuses.keep(node, Millis(1_000), NodeStatus::default());
        assert!(statuses.fresh(node, Millis(4_000)).is_some());
        assert!(statuses.fresh(node, Millis(4_001)).is_none());
        assert!(statuses.last(node).is_some(), "it is remembered all the same");
        statuses.forget_all_but(&BTreeSet::from([NodeId(1)]));
        assert!(statuses.last(node).is_none());
    }

    #[test]
    fn what_is_heard_is_bounded() {
        let statuses = Statuses::new();
        for node in 0..1_000 {
            statuses.keep(NodeId(node), Millis(1), NodeStatus::default());
        }
        assert_eq!(statuses.heard.lock().len(), limits::NODES_MAX);
        statuses.keep(NodeId(0), Millis(9), NodeStatus::default());
        assert_eq!(statuses.last(NodeId(0)).unwrap().at, Millis(9), "those that are known go on");
    }

    #[test]
    fn a_trail_tells_what_was_committed_then() {
        let mut trail = Trail::default();
        for n in 0..100u64 {
            trail.push(Millis(n * 500), n);
        }
        let now = Millis(99 * 500);
        assert_eq!(trail.before(now, Millis::secs(5)), Some(89));
        assert_eq!(trail.before(now, Millis(0)), Some(99));
        assert!(trail.0.len() <= 13, "{}", trail.0.len());
        assert_eq!(Trail::default().before(now, Millis(0)), None);
    }

    #[test]
    fn roles_keep_their_meaning_on_the_way() {
        for each in [Role::Leader, Role::Follower, Role::Candidate, Role::Learner, Role::Stopped] {
            assert_eq!(role(role_number(each)), Some(each));
        }
        assert_eq!(role(RoleNumber::Unknown), None);
    }
}
