//! Whether there is room for new tasks: in memory and on disk, here and on the other nodes.
//!
//! Looked at a few times a second, off the path of requests. New tasks are refused first; acks, fails
//! and extends never come here. It recovers by itself. One node without room refuses nothing while a quorum of
//! a shard's voters has some: it hands what it leads to one that has.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use model::{MemberId, Millis, NodeId, ShardId};
use parking_lot::Mutex;
use replica::{Codec, Replica};
use storage::{Executor, Log, Reserve, RoomState};

use crate::error::Error;
use crate::inner::Inner;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// New tasks are taken again below this share of the memory, so that it does not flutter.
const AGAIN_BELOW_PERCENT: u64 = 95;
/// A node without room hands leadership on at most this often.
const HAND_ON_EVERY: Millis = Millis::secs(2);
/// Leadership goes to nobody who is more entries behind.
const HAND_ON_LAG_MAX: u64 = 1_000;

/// The room that is left.
pub(crate) struct Room {
    memory_bytes: AtomicU64,
    memory_bytes_max: u64,
    memory_full: AtomicBool,
    disk_full: AtomicBool,
    reserve: Option<Arc<Reserve>>,
    /// Shards that take no new tasks, and why.
    closed: Mutex<HashMap<ShardId, Error>>,
    /// Whether there are any: what every enqueue looks at.
    any_closed: AtomicBool,
}

/// What is known of the room on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    /// It has room.
    Room,
    /// It has none.
    Full,
    /// It was not heard.
    Silent,
}

/// Whether a shard's new tasks must be refused for want of disk: those that have room are no quorum, though
/// those that were heard are one. Without a quorum it is for the missing leader to say no.
fn is_disk_full(voters: &[Voice]) -> bool {
    let count = |voice: Voice| voters.iter().filter(|other| **other == voice).count();
    let is_quorum = |count: usize| 2 * count > voters.len();
    !is_quorum(count(Voice::Room)) && is_quorum(count(Voice::Room) + count(Voice::Full))
}

impl Room {
    pub(crate) fn new(memory_bytes_max: u64, reserve: Option<Arc<Reserve>>) -> Room {
        Room {
            memory_bytes: AtomicU64::new(0),
            memory_bytes_max,
            memory_full: AtomicBool::new(false),
            disk_full: AtomicBool::new(false),
            reserve,
            closed: Mutex::default(),
            any_closed: AtomicBool::new(false),
        }
    }

    /// Whether new tasks may come into a shard.
    pub(crate) fn check(&self, shard: ShardId) -> Result<(), Error> {
        if !self.any_closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.closed.lock().get(&shard).cloned().map_or(Ok(()), Err)
    }

    /// What the tasks take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    pub(crate) fn is_memory_full(&self) -> bool {
        self.memory_full.load(Ordering::Relaxed)
    }

    pub(crate) fn is_disk_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    /// Whether this node's state changed, which the others should hear.
    fn set_memory(&self, bytes: u64) -> bool {
        self.memory_bytes.store(bytes, Ordering::Relaxed);
        let again_below = (u128::from(self.memory_bytes_max) * u128::from(AGAIN_BELOW_PERCENT) / 100) as u64;
        let was_full = self.is_memory_full();
        let full = if was_full { bytes >= again_below } else { bytes >= self.memory_bytes_max };
        if full != was_full {
            self.memory_full.store(full, Ordering::Relaxed);
            if full {
                tracing::warn!(bytes, bytes_max = self.memory_bytes_max, "memory full on this node");
            } else {
                tracing::info!(bytes, "there is memory again on this node");
            }
        }
        full != was_full
    }

    /// Whether this node's state changed, which the others should hear.
    fn set_disk(&self, full: bool) -> bool {
        let changed = self.disk_full.swap(full, Ordering::Relaxed) != full;
        if changed && full {
            tracing::warn!("disk full on this node");
        } else if changed {
            tracing::info!("there is disk again on this node");
        }
        changed
    }

    fn set_closed(&self, closed: HashMap<ShardId, Error>) {
        let any = !closed.is_empty();
        let before = std::mem::replace(&mut *self.closed.lock(), closed);
        self.any_closed.store(any, Ordering::Relaxed);
        match (before.is_empty(), any) {
            (true, true) => tracing::warn!("new tasks are refused for want of room, acks go on"),
            (false, false) => tracing::info!("there is room again: new tasks are taken"),
            _ => {}
        }
    }
}

/// Looks at memory and disk until the node stops.
pub(crate) async fn run(inner: Arc<Inner>, executor: Arc<dyn Executor>) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut handed_on = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = inner.stopping.cancelled() => return,
        }
        let memory = |shard| inner.groups.look(shard, |state| state.memory_bytes());
        let mut news = inner.room.set_memory(inner.groups.all().map(memory).sum());
        if let Some(full) = look_at_disk(&inner, &*executor).await {
            news |= inner.room.set_disk(full);
        }
        if news {
            inner.statuses.tell_soon();
        }
        inner.room.set_closed(inner.closed_shards());
        let is_time =
            handed_on.is_none_or(|at: Millis| inner.now().0.saturating_sub(at.0) >= HAND_ON_EVERY.0);
        if inner.room.is_disk_full() && is_time {
            handed_on = Some(inner.now());
            inner.hand_on().await;
        }
    }
}

/// Asks the disk, away from async tasks: it may take its time when it is full.
async fn look_at_disk(inner: &Arc<Inner>, executor: &dyn Executor) -> Option<bool> {
    let (told, answer) = tokio::sync::oneshot::channel();
    let (reserve, log): (Option<Arc<Reserve>>, Log) = (inner.room.reserve.clone(), inner.log.clone());
    executor.spawn(
        "room",
        Box::new(move || {
            let low = reserve.is_some_and(|reserve| reserve.look() == RoomState::Low);
            let _ = told.send(low || log.is_out_of_room());
        }),
    );
    answer.await.ok()
}

impl Inner {
    /// Whether a node said that its disk has no room: it should lead nothing.
    pub(crate) fn is_disk_full_on(&self, node: NodeId) -> bool {
        self.voice(node, self.now()) == Voice::Full
    }

    fn voice(&self, node: NodeId, now: Millis) -> Voice {
        let full = if node == self.node {
            Some(self.room.is_disk_full())
        } else {
            self.statuses.fresh(node, now).map(|status| status.disk_full)
        };
        match full {
            Some(true) => Voice::Full,
            Some(false) => Voice::Room,
            None => Voice::Silent,
        }
    }

    /// Shards that take no new tasks, and why.
    fn closed_shards(&self) -> HashMap<ShardId, Error> {
        let now = self.now();
        let why = |shard: ShardId| {
            let replica = self.groups.shard(shard);
            let voters: Vec<Voice> =
                replica.members().voters.iter().map(|member| self.voice(member.node(), now)).collect();
            let leader = replica.leader().map(|(member, _)| member.node());
            let error = leader.and_then(|leader| self.memory_full_on(leader, now));
            let error = error.or_else(|| is_disk_full(&voters).then_some(Error::DiskFull));
            error.map(|error| (shard, error))
        };
        self.groups.all().filter_map(why).collect()
    }

    fn memory_full_on(&self, node: NodeId, now: Millis) -> Option<Error> {
        if node == self.node {
            let (bytes, bytes_max) = (self.room.memory_bytes(), self.room.memory_bytes_max());
            return self.room.is_memory_full().then_some(Error::MemoryFull { bytes, bytes_max });
        }
        let status = self.statuses.fresh(node, now).filter(|status| status.memory_full)?;
        Some(Error::MemoryFull { bytes: status.memory_bytes, bytes_max: status.memory_bytes_max })
    }

    /// Hands what this node leads to voters that have room.
    async fn hand_on(&self) {
        self.hand_on_group(&self.groups.catalog).await;
        for shard in self.groups.all() {
            self.hand_on_group(self.groups.shard(shard)).await;
        }
    }

    async fn hand_on_group<M: Codec>(&self, replica: &Replica<M>) {
        if !replica.leads() {
            return;
        }
        let (now, progress) = (self.now(), replica.progress());
        let last = progress.values().copied().max().unwrap_or(0);
        let voters = replica.members().voters.into_iter().filter(|member| member.node() != self.node);
        let fits = |member: &MemberId| {
            self.voice(member.node(), now) == Voice::Room
                && progress.get(member).is_some_and(|has| has + HAND_ON_LAG_MAX >= last)
        };
        let best = voters.filter(fits).max_by_key(|member| progress.get(member).copied());
        if let Some(member) = best {
            let (group, node) = (replica.group(), member.node());
            tracing::info!(%group, to = %node, "this node's disk is full: leadership goes to a node with room");
            if let Err(error) = replica.transfer_to(member).await {
                tracing::debug!(%group, %error, "leadership stays here for now");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_full_is_room_again_only_well_below_the_limit() {
        let room = Room::new(1_000, None);
        for (bytes, full, changed) in [
            (999, false, false),
            (1_000, true, true),
            (960, true, false),
            (949, false, true),
            (960, false, false),
        ] {
            assert_eq!((room.set_memory(bytes), room.is_memory_full()), (changed, full), "{bytes}");
        }
    }

    #[test]
    fn a_closed_shard_refuses_until_there_is_room() {
        let room = Room::new(u64::MAX, None);
        let (one, two) = (ShardId::new(1).unwrap(), ShardId::new(2).unwrap());
        room.set_closed(HashMap::from([(one, Error::DiskFull)]));
        assert_eq!((room.check(one), room.check(two)), (Err(Error::DiskFull), Ok(())));
        room.set_closed(HashMap::new());
        assert_eq!(room.check(one), Ok(()));
    }

    #[test]
    fn new_tasks_are_refused_when_those_with_room_are_no_quorum() {
        use Voice::{Full, Room, Silent};
        for (what, voters, full) in [
            ("alone with room", &[Room][..], false),
            ("alone without", &[Full], true),
            ("nobody votes yet", &[], false),
            ("all have room", &[Room, Room, Room], false),
            ("one is full", &[Room, Full, Room], false),
            ("two are full", &[Full, Full, Room], true),
            ("all are full", &[Full, Full, Full], true),
            ("one is down", &[Room, Silent, Room], false),
            ("one is down, one is full", &[Room, Silent, Full], true),
            ("two are down: that is no question of room", &[Room, Silent, Silent], false),
            ("two are down, the third is full", &[Full, Silent, Silent], false),
            ("one of two is full", &[Full, Room], true),
        ] {
            assert_eq!(is_disk_full(voters), full, "{what}");
        }
    }
}
