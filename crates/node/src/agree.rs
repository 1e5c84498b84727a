//! Whether all copies of a group have the same state.
//!
//! Every copy remembers the hash of its state at certain indexes and tells the last of them (`status.rs`).
//! Where more than half of the voters have the same hash at an index, a copy with another one is wrong, voter
//! or not. The node of that copy stops it for good and leaves a mark on its disk, so that a restart does not
//! bring it back. Without such a majority nobody does anything: nobody knows who is right.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{GroupId, MemberId, ShardId};
use parking_lot::Mutex;
use replica::{HashPoint, Status};
use storage::{Disk, Executor, Open};

use crate::error::Error;
use crate::events::NodeEvent;
use crate::inner::Inner;

/// Hashes kept of each copy.
const POINTS_MAX: usize = 64;

/// A copy whose state is not the majority's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Odd {
    pub(crate) member: MemberId,
    /// Where it was seen first.
    pub(crate) index: u64,
    /// What the copy has there.
    pub(crate) hash: u128,
    /// What the majority has there.
    pub(crate) majority: u128,
}

impl Odd {
    fn text(&self) -> String {
        format!(
            "its state differs from the majority's: at index {} its hash is {:032x}, not {:032x}",
            self.index, self.hash, self.majority
        )
    }
}

/// The copies that differ from the majority of the voters, each with the first index where it does.
fn odd_ones(voters: &BTreeSet<MemberId>, said: &BTreeMap<MemberId, Vec<HashPoint>>) -> Vec<Odd> {
    let mut by_index: BTreeMap<u64, Vec<(MemberId, u128)>> = BTreeMap::new();
    for (member, points) in said {
        for point in points {
            by_index.entry(point.index).or_default().push((*member, point.hash));
        }
    }
    let mut odd: BTreeMap<MemberId, Odd> = BTreeMap::new();
    for (index, hashes) in by_index {
        let Some(majority) = majority(voters, &hashes) else { continue };
        for (member, hash) in hashes.into_iter().filter(|(_, hash)| *hash != majority) {
            odd.entry(member).or_insert(Odd { member, index, hash, majority });
        }
    }
    odd.into_values().collect()
}

/// The hash that more than half of all voters have, those included that were not heard.
fn majority(voters: &BTreeSet<MemberId>, hashes: &[(MemberId, u128)]) -> Option<u128> {
    let votes = |hash: u128| {
        hashes.iter().filter(|(member, other)| *other == hash && voters.contains(member)).count()
    };
    hashes.iter().map(|(_, hash)| *hash).find(|hash| 2 * votes(*hash) > voters.len())
}

/// What the copies of all groups said of their states.
#[derive(Default)]
pub(crate) struct Agreement {
    groups: Mutex<HashMap<GroupId, Said>>,
}

#[derive(Default)]
struct Said {
    points: BTreeMap<MemberId, Vec<HashPoint>>,
    /// The run of the process that said it: another run made its state anew.
    processes: BTreeMap<MemberId, u64>,
    /// Something was said since the last comparison.
    has_news: bool,
    /// The own copy's last point at the last comparison.
    own_last: Option<u64>,
    /// Those that were found odd, so that each is told once.
    odd: BTreeMap<MemberId, Odd>,
}

impl Agreement {
    /// A member of the group said this, in one run of its process.
    pub(crate) fn hear(&self, group: GroupId, member: MemberId, process: u64, points: &[HashPoint]) {
        let mut groups = self.groups.lock();
        let said = groups.entry(group).or_default();
        if said.processes.insert(member, process) != Some(process) {
            said.points.remove(&member);
            said.odd.remove(&member);
        }
        let known = said.points.entry(member).or_default();
        for point in points {
            if known.last().is_none_or(|last| last.index < point.index) {
                known.push(*point);
                said.has_news = true;
            }
        }
        let over = known.len().saturating_sub(POINTS_MAX);
        known.drain(..over);
    }

    /// Those that differ and were not told before. What was said by those who are no members any more is
    /// forgotten.
    fn compare(&self, own: &Status) -> Vec<Odd> {
        let voters: BTreeSet<MemberId> = own.voters.iter().copied().collect();
        let is_member = |member: &MemberId| {
            voters.contains(member) || own.learners.contains(member) || *member == own.member
        };
        let mut groups = self.groups.lock();
        let said = groups.entry(own.group).or_default();
        said.points.retain(|member, _| is_member(member));
        said.processes.retain(|member, _| is_member(member));
        said.odd.retain(|member, _| is_member(member));
        let own_last = own.hash_points.last().map(|point| point.index);
        if !std::mem::take(&mut said.has_news) && said.own_last == own_last {
            return Vec::new();
        }
        said.own_last = own_last;
        said.points.insert(own.member, own.hash_points.clone());
        let found = odd_ones(&voters, &said.points);
        let new = found.into_iter().filter(|odd| said.odd.insert(odd.member, *odd).is_none());
        new.collect()
    }

    /// Copies of a group that differ, as far as this node knows.
    pub(crate) fn odd(&self, group: GroupId) -> Vec<Odd> {
        self.groups.lock().get(&group).map_or_else(Vec::new, |said| said.odd.values().copied().collect())
    }

    /// How many copies differ, over all groups.
    pub(crate) fn odd_count(&self) -> usize {
        self.groups.lock().values().map(|said| said.odd.len()).sum()
    }
}

impl Inner {
    /// Compares the copies of every group, stops those of this node that differ, and tells of the others.
    pub(crate) fn compare_copies(
        self: &Arc<Inner>,
        statuses: &[Status],
        disk: &Arc<dyn Disk>,
        executor: &dyn Executor,
    ) {
        for status in statuses {
            for odd in self.statuses.agreement.compare(status) {
                let (group, node, text) = (status.group, odd.member.node(), odd.text());
                if odd.member == status.member {
                    tracing::error!(%group, index = odd.index, "{text}: this copy is stopped");
                    self.stop_copy(group, &text);
                    keep_mark(disk.clone(), group, text, executor);
                } else {
                    tracing::warn!(%group, %node, index = odd.index, "a copy on another node differs: {text}");
                }
                let mut event = NodeEvent::new(self.clock.wall(), "replica_diverged");
                event.index = ShardId::new(group.0).map(|shard| (shard, odd.index));
                self.events.publish([event]);
            }
        }
    }

    fn stop_copy(&self, group: GroupId, what: &str) {
        match ShardId::new(group.0) {
            None => self.groups.catalog.diverged(what),
            Some(shard) => self.groups.shard(shard).diverged(what),
        }
    }
}

fn mark_path(group: GroupId) -> PathBuf {
    PathBuf::from(format!("diverged-{group}"))
}

/// Leaves the mark, away from async tasks. A mark that cannot be written is found again by the next comparison.
fn keep_mark(disk: Arc<dyn Disk>, group: GroupId, what: String, executor: &dyn Executor) {
    executor.spawn(
        "diverged",
        Box::new(move || {
            if let Err(error) = mark(&*disk, group, &what) {
                tracing::error!(%group, %error, "cannot keep the mark that this copy differs");
            }
        }),
    );
}

/// Marks a group's data as wrong, for good.
fn mark(disk: &dyn Disk, group: GroupId, what: &str) -> io::Result<()> {
    let file = disk.open(&mark_path(group), Open::Create)?;
    file.set_len(0)?;
    file.write_at(what.as_bytes(), 0)?;
    file.sync_all()?;
    disk.sync_dir(Path::new(""))
}

/// Refuses a group whose data is marked as wrong. Asked before the group is opened.
pub(crate) fn refuse_marked(disk: &dyn Disk, group: GroupId) -> Result<(), Error> {
    let path = mark_path(group);
    let unreadable =
        |error: io::Error| Error::Broken(format!("cannot read {}: {error}", disk.locate(&path).display()));
    if !disk.exists(&path).map_err(unreadable)? {
        return Ok(());
    }
    let what = read_mark(disk, &path).map_err(unreadable)?;
    let dir = disk.locate(Path::new(""));
    Err(Error::Broken(format!(
        "group {group} of this node is wrong and was stopped ({what}): move the data directory {} away and keep it \
         for inspection, then start this node again with an empty one; it gets its data from the others",
        dir.display()
    )))
}

fn read_mark(disk: &dyn Disk, path: &Path) -> io::Result<String> {
    let file = disk.open(path, Open::Read)?;
    let mut bytes = vec![0; file.len()?.min(1024) as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::BoxFuture;
    use model::NodeId;
    use replica::Role;
    use storage::{MemDisk, ThreadExecutor};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::NodeConfig;
    use crate::inner::Node;
    use crate::link::{Network, Stream};

    fn member(node: u64) -> MemberId {
        MemberId::new(NodeId(node), 0)
    }

    fn points(points: &[(u64, u128)]) -> Vec<HashPoint> {
        points.iter().map(|&(index, hash)| HashPoint { index, hash }).collect()
    }

    #[test]
    fn only_who_differs_from_a_majority_of_the_voters_is_odd() {
        /// What, how many vote, what nodes said (index and hash), who is odd from which index on.
        type Row<'a> = (&'a str, u64, &'a [(u64, &'a [(u64, u128)])], &'a [(u64, u64)]);
        let cases: &[Row<'_>] = &[
            ("nobody said anything", 3, &[], &[]),
            ("all agree", 3, &[(1, &[(8, 5)]), (2, &[(8, 5)]), (3, &[(8, 5)])], &[]),
            ("one of three differs", 3, &[(1, &[(8, 5)]), (2, &[(8, 6)]), (3, &[(8, 5)])], &[(2, 8)]),
            ("two known, they differ", 3, &[(1, &[(8, 5)]), (2, &[(8, 6)])], &[]),
            ("all three differ", 3, &[(1, &[(8, 5)]), (2, &[(8, 6)]), (3, &[(8, 7)])], &[]),
            ("another index is no disagreement", 3, &[(1, &[(8, 5)]), (2, &[(9, 6)]), (3, &[(8, 5)])], &[]),
            (
                "a learner differs from two voters",
                3,
                &[(1, &[(8, 5)]), (2, &[(8, 5)]), (4, &[(8, 6)])],
                &[(4, 8)],
            ),
            ("learners make no majority", 3, &[(1, &[(8, 6)]), (4, &[(8, 5)]), (5, &[(8, 5)])], &[]),
            ("one voter of three is none either", 3, &[(1, &[(8, 6)]), (4, &[(8, 5)])], &[]),
            ("two voters: both are needed", 2, &[(1, &[(8, 5)]), (2, &[(8, 6)])], &[]),
            ("two voters against a learner", 2, &[(1, &[(8, 5)]), (2, &[(8, 5)]), (3, &[(8, 6)])], &[(3, 8)]),
            ("alone", 1, &[(1, &[(8, 5)])], &[]),
            (
                "the first index counts",
                3,
                &[
                    (1, &[(8, 5), (9, 5), (10, 5)]),
                    (2, &[(8, 5), (9, 6), (10, 6)]),
                    (3, &[(8, 5), (9, 5), (10, 5)]),
                ],
                &[(2, 9)],
            ),
            (
                "two of five differ, each in its way",
                5,
                &[(1, &[(8, 5)]), (2, &[(8, 6)]), (3, &[(8, 5)]), (4, &[(8, 7)]), (5, &[(8, 5)])],
                &[(2, 8), (4, 8)],
            ),
        ];
        for (what, count, said, expected) in cases {
            let voters = (1..=*count).map(member).collect();
            let said = said.iter().map(|(node, said)| (member(*node), points(said))).collect();
            let found: Vec<_> =
                odd_ones(&voters, &said).iter().map(|odd| (odd.member.node().0, odd.index)).collect();
            assert_eq!(found, *expected, "{what}");
        }
    }

    fn own(hashes: &[(u64, u128)]) -> Status {
        Status {
            group: GroupId(1),
            member: member(1),
            role: Role::Follower,
            term: 1,
            leader: None,
            voted_for: None,
            heard: None,
            voters: (1..=3).map(member).collect(),
            learners: Vec::new(),
            last: None,
            committed: None,
            applied: None,
            checkpointed: None,
            purged: None,
            log_bytes: 0,
            envelope_cache_bytes: 0,
            stall_max: Duration::ZERO,
            hash_points: points(hashes),
            failure: None,
        }
    }

    #[test]
    fn a_copy_that_differs_is_told_once_and_forgotten_when_it_begins_anew() {
        let agreement = Agreement::default();
        let group = GroupId(1);
        agreement.hear(group, member(2), 7, &points(&[(8, 5)]));
        assert_eq!(agreement.compare(&own(&[(8, 5)])), []);
        agreement.hear(group, member(3), 7, &points(&[(8, 6)]));
        assert_eq!(agreement.compare(&own(&[(8, 5)]))[0].member, member(3));
        agreement.hear(group, member(3), 7, &points(&[(8, 6), (9, 6)]));
        assert_eq!(agreement.compare(&own(&[(8, 5), (9, 5)])), [], "once is enough");
        assert_eq!((agreement.odd(group).len(), agreement.odd_count()), (1, 1));
        // Wiped, it comes back as another member.
        let mut next = own(&[(8, 5)]);
        next.voters[2] = MemberId::new(NodeId(3), 1);
        agreement.compare(&next);
        assert_eq!(agreement.odd_count(), 0);
    }

    #[test]
    fn the_own_copy_is_odd_when_the_two_others_agree() {
        let agreement = Agreement::default();
        for node in [2, 3] {
            agreement.hear(GroupId(1), member(node), 7, &points(&[(8, 6)]));
        }
        let odd = agreement.compare(&own(&[(8, 5)]));
        assert_eq!((odd.len(), odd[0].member, odd[0].index), (1, member(1), 8));
        assert!(odd[0].text().contains("index 8"), "{}", odd[0].text());
    }

    #[test]
    fn what_a_process_said_before_it_started_anew_does_not_count() {
        let agreement = Agreement::default();
        for node in [2, 3] {
            agreement.hear(GroupId(1), member(node), 7, &points(&[(8, 6)]));
        }
        agreement.hear(GroupId(1), member(3), 8, &[]);
        assert_eq!(agreement.compare(&own(&[(8, 5)])), []);
    }

    #[test]
    fn a_marked_group_is_refused_after_a_crash_with_what_to_do() {
        let disk = MemDisk::new();
        refuse_marked(&disk, GroupId(3)).unwrap();
        mark(&disk, GroupId(3), "its state differs").unwrap();
        disk.crash(1);
        let error = refuse_marked(&disk, GroupId(3)).unwrap_err().to_string();
        for part in ["group 3", "its state differs", "keep it for inspection", "empty"] {
            assert!(error.contains(part), "{error}");
        }
        refuse_marked(&disk, GroupId(4)).unwrap();
    }

    /// Real sockets on this machine.
    struct Loopback(Arc<TcpListener>);

    impl Network for Loopback {
        fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
            Box::pin(async move { Ok(Box::new(TcpStream::connect(address).await?) as Box<dyn Stream>) })
        }

        fn accept(&self) -> BoxFuture<'static, io::Result<(Box<dyn Stream>, String)>> {
            let listener = self.0.clone();
            Box::pin(async move {
                let (stream, from) = listener.accept().await?;
                Ok((Box::new(stream) as Box<dyn Stream>, from.to_string()))
            })
        }
    }

    async fn three_nodes(disks: &[MemDisk; 3]) -> Vec<(NodeConfig, Node)> {
        let mut listeners = Vec::new();
        for _ in disks {
            listeners.push(Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap()));
        }
        let address = |listener: &Arc<TcpListener>| listener.local_addr().unwrap().to_string();
        let peers: BTreeMap<NodeId, String> = (1..).map(NodeId).zip(listeners.iter().map(address)).collect();
        let starts = peers.keys().zip(disks).zip(listeners).map(|((node, disk), listener)| async {
            let config = NodeConfig {
                node: *node,
                shards: Some(1),
                disk_reserve_bytes: 0,
                peers: peers.clone(),
                network: Some(Arc::new(Loopback(listener))),
                ..NodeConfig::new(Arc::new(disk.clone()))
            };
            let clock = Arc::new(replica::SystemClock::new());
            let node = Node::start(config.clone(), clock, Arc::new(ThreadExecutor)).await.unwrap();
            (config, node)
        });
        futures::future::join_all(starts).await
    }

    async fn until(what: &str, mut condition: impl FnMut() -> bool) {
        let since = std::time::Instant::now();
        while !condition() {
            assert!(since.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_copy_that_differs_stops_says_so_and_does_not_come_back() {
        let disks = [MemDisk::new(), MemDisk::new(), MemDisk::new()];
        let mut nodes = three_nodes(&disks).await;
        let (config, node) = nodes.remove(0);
        let inner = node.inner.clone();
        let shard = inner.groups.shard(ShardId::new(1).unwrap()).clone();
        until("all are ready", || node.ready().is_ok() && shard.status().voters.len() == 3).await;
        let queue = model::QueueName::new("mail").unwrap();
        let kind = model::KindName::new("k").unwrap();
        node.enqueue(vec![crate::call::TaskSpec::new(queue, kind)], false).await.unwrap();
        until("there is a hash", || !shard.status().hash_points.is_empty()).await;
        let mut events = node.events(None);
        let disk: Arc<dyn Disk> = Arc::new(disks[0].clone());
        until("the copy has stopped", || {
            // The two others are made to say something else; their next true word clears it away.
            let point = *shard.status().hash_points.last().unwrap();
            let other = HashPoint { hash: !point.hash, ..point };
            for node in [2, 3] {
                inner.statuses.agreement.hear(GroupId(1), member(node), 7, &[other]);
            }
            inner.compare_copies(&[shard.status()], &disk, &ThreadExecutor);
            shard.status().role == Role::Stopped
        })
        .await;
        assert_eq!(events.next().await.unwrap().kind, "replica_diverged");
        let why = node.ready().unwrap_err();
        assert!(why.contains("differs from the majority's"), "{why}");
        assert!(node.cluster().reasons.iter().any(|reason| reason.code == "diverged"));
        until("the others see it and serve on", || {
            nodes.iter().all(|(_, other)| {
                let told = other.cluster().reasons.iter().any(|reason| reason.code == "diverged");
                told && other.ready().is_ok()
            })
        })
        .await;
        let _ = node.stop().await;
        let clock = Arc::new(replica::SystemClock::new());
        let refused = Node::start(config, clock, Arc::new(ThreadExecutor)).await;
        let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("group 1 of this node is wrong"), "{refused}");
        for (_, other) in nodes {
            let _ = other.stop().await;
        }
    }
}
