//! Queues: their settings go to the catalog first, then to every shard, by version.
//!
//! A shard that could not be reached is told later, by whoever leads it then; an older version never replaces a
//! newer one. What a queue holds is added up over the shards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use model::catalog::{CatalogCommand, CatalogReply};
use model::{Command, QueueName, QueuePolicy, QueueSettings, Rejection, Reply, ShardId, StateKind, WallTime};
use state_machine::view::{Depth, QueueView};

use crate::call::{Freshness, QueueInfo};
use crate::error::Error;
use crate::events::NodeEvent;
use crate::inner::{Inner, Node};
use crate::rates;
use crate::route::sum_of;

/// Tries when others set the same queue at the same time; each round one of them is through.
const SET_TRIES: usize = 100;
/// Between two tries to tell a shard.
const BACKOFF: Duration = Duration::from_millis(200);
/// Whoever changed a queue tells the shards. So long after that, their leaders look whether they know.
const TOLD_BY_THEN: Duration = Duration::from_secs(1);
/// How long one look at the catalog waits for the next change.
const CHANGE_WAIT: Duration = Duration::from_secs(3_600);

impl Node {
    /// All queues, by name.
    pub async fn queues(&self, freshness: Freshness) -> Result<Vec<QueueInfo>, Error> {
        let groups = &self.inner.groups;
        futures::try_join!(groups.wait_for_catalog(freshness), groups.wait_for(groups.all(), freshness))?;
        let mut queues: BTreeMap<QueueName, (Option<QueueSettings>, Vec<QueueView>)> =
            groups.catalog.read_stale(|catalog| {
                let queues = catalog.queues();
                queues.map(|(name, set)| (name.clone(), (Some(set.clone()), Vec::new()))).collect()
            });
        for shard in groups.all() {
            for view in groups.look(shard, |state| state.queues()) {
                queues.entry(view.name.clone()).or_default().1.push(view);
            }
        }
        let info = |(name, (set, views)): (_, (_, Vec<_>))| self.inner.queue_info(name, set, &views);
        Ok(queues.into_iter().map(info).collect())
    }

    /// One queue.
    pub async fn queue(&self, queue: &QueueName, freshness: Freshness) -> Result<QueueInfo, Error> {
        let groups = &self.inner.groups;
        let (_, views) =
            futures::try_join!(groups.wait_for_catalog(freshness), self.inner.views(queue, freshness))?;
        let set = groups.catalog.read_stale(|catalog| catalog.queue(queue).cloned());
        if views.is_empty() && set.is_none() {
            return Err(Rejection::UnknownQueue { queue: queue.clone() }.into());
        }
        Ok(self.inner.queue_info(queue.clone(), set, &views))
    }

    /// Sets a queue's policy, and makes the queue if it is not there. `merge` makes the new policy of the
    /// current one; it is asked again when somebody else was faster, so that no change is lost.
    pub async fn set_queue(
        &self,
        queue: &QueueName,
        merge: impl Fn(&QueuePolicy) -> Result<QueuePolicy, Error>,
    ) -> Result<QueueInfo, Error> {
        let change = |settings: &mut QueueSettings| {
            settings.policy = merge(&settings.policy)?;
            Ok(())
        };
        let set = self.inner.change(queue, change).await?;
        self.inner.changed(queue, set).await
    }

    /// Lets claims pass a queue by.
    pub async fn pause(&self, queue: &QueueName) -> Result<QueueInfo, Error> {
        self.set_paused(queue, Paused::Yes).await
    }

    /// Lets claims have a queue's tasks again.
    pub async fn resume(&self, queue: &QueueName) -> Result<QueueInfo, Error> {
        self.set_paused(queue, Paused::No).await
    }

    async fn set_paused(&self, queue: &QueueName, paused: Paused) -> Result<QueueInfo, Error> {
        self.queue(queue, Freshness::Linearizable).await?;
        let change = |settings: &mut QueueSettings| {
            settings.paused = paused == Paused::Yes;
            Ok(())
        };
        let set = self.inner.change(queue, change).await?;
        self.inner.changed(queue, set).await
    }

    /// Deletes a queue that has no live and no dead tasks.
    pub async fn delete_queue(&self, queue: &QueueName) -> Result<(), Error> {
        let inner = &self.inner;
        let info = self.queue(queue, Freshness::Linearizable).await?;
        let count = in_the_way(&info.depth);
        if count > 0 {
            let hint = "purge it, discard its dead tasks, then delete it";
            return Err(Rejection::NotEmpty { queue: queue.clone(), count, hint }.into());
        }
        let deleted =
            inner.groups.propose_catalog(CatalogCommand::DeleteQueue { queue: queue.clone() }).await?;
        let CatalogReply::Version(version) = deleted else {
            unreachable!("a deletion is answered by its version")
        };
        inner.take_settings();
        inner.tell_shards(&Command::DropQueue { queue: queue.clone(), version }).await;
        inner.tell_queue("queue_deleted", queue);
        Ok(())
    }

    /// Cancels all that waits in a queue now. How many tasks that is.
    pub async fn purge(&self, queue: &QueueName) -> Result<u64, Error> {
        let inner = &self.inner;
        self.queue(queue, Freshness::Linearizable).await?;
        let purge = |shard| {
            let purge = Command::Purge { queue: queue.clone() };
            async move {
                match inner.groups.propose_one(shard, purge).await {
                    Ok((_, Reply::Count(count))) => Ok(count),
                    Ok(_) => unreachable!("a purge is answered by a count"),
                    // It has no tasks in this shard.
                    Err(Error::Rejected(Rejection::UnknownQueue { .. })) => Ok(0),
                    Err(error) => Err(error),
                }
            }
        };
        let counts = futures::future::join_all(inner.groups.all().map(purge)).await;
        sum_of(counts)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Paused {
    Yes,
    No,
}

/// Live tasks and dead ones: what keeps a queue from being deleted.
fn in_the_way(depth: &Depth) -> u64 {
    let counts = |state: &StateKind| !state.is_ended() || *state == StateKind::Dead;
    StateKind::ALL.into_iter().filter(counts).map(|state| depth.of(state)).sum()
}

impl Inner {
    async fn views(&self, queue: &QueueName, freshness: Freshness) -> Result<Vec<QueueView>, Error> {
        self.groups.wait_for(self.groups.all(), freshness).await?;
        let view = |shard| self.groups.look(shard, |state| state.queue(queue));
        Ok(self.groups.all().filter_map(view).collect())
    }

    /// The same queue over all shards, as the catalog has `set` it.
    fn queue_info(&self, name: QueueName, set: Option<QueueSettings>, views: &[QueueView]) -> QueueInfo {
        let wall = self.clock.wall();
        let newest =
            || views.iter().map(|view| &view.settings).max_by_key(|settings| settings.version).cloned();
        let settings = set.or_else(newest).unwrap_or_default();
        let mut depth = Depth::default();
        let mut totals = state_machine::view::Totals::default();
        for view in views {
            depth.0.iter_mut().zip(view.depth.0).for_each(|(sum, more)| *sum += more);
            rates::add(&mut totals, &view.totals);
        }
        let oldest = |since: fn(&QueueView) -> Option<WallTime>| {
            views.iter().filter_map(since).min().map(|since| wall.since(since))
        };
        QueueInfo {
            paused: settings.paused,
            policy: settings.policy,
            version: settings.version,
            depth,
            oldest_ready: oldest(|view| view.oldest_ready),
            oldest_claimed: oldest(|view| view.oldest_claimed),
            rates: self.samples.rates(&name, self.now(), &totals),
            totals,
            name,
        }
    }

    /// A queue's spread changes only while the queue is empty, ended tasks included: their dedup keys
    /// would be looked for elsewhere.
    async fn check_empty(&self, queue: &QueueName) -> Result<(), Error> {
        let views = self.views(queue, Freshness::Linearizable).await?;
        let count = views.iter().flat_map(|view| view.depth.0).sum();
        if count > 0 {
            let hint = "shards changes only while a queue has no tasks, ended ones included";
            return Err(Rejection::NotEmpty { queue: queue.clone(), count, hint }.into());
        }
        Ok(())
    }

    /// A queue whose settings were changed. What was done must not be called not done because a shard cannot be
    /// asked: what it holds is as it is known here.
    async fn changed(&self, queue: &QueueName, set: QueueSettings) -> Result<QueueInfo, Error> {
        let views = self.views(queue, Freshness::Stale).await?;
        Ok(self.queue_info(queue.clone(), Some(set), &views))
    }

    /// Changes a queue's settings in the catalog, then in the shards.
    async fn change(
        self: &Arc<Inner>,
        queue: &QueueName,
        change: impl Fn(&mut QueueSettings) -> Result<(), Error>,
    ) -> Result<QueueSettings, Error> {
        let mut tries = 0;
        let settings = loop {
            let known = self.groups.read_catalog(|catalog| catalog.queue(queue).cloned()).await?;
            let mut settings = known.unwrap_or_default();
            let spread = settings.policy.spread;
            change(&mut settings)?;
            if settings.policy.spread != spread {
                self.check_empty(queue).await?;
            }
            let set = CatalogCommand::SetQueue { queue: queue.clone(), settings: settings.clone() };
            tries += 1;
            match self.groups.propose_catalog(set).await {
                Ok(CatalogReply::Version(version)) => {
                    settings.version = version;
                    break settings;
                }
                Ok(_) => unreachable!("settings are answered by their version"),
                Err(Error::Rejected(Rejection::StaleVersion { .. })) if tries < SET_TRIES => {}
                Err(error) => return Err(error),
            }
        };
        self.take_settings();
        self.tell_shards(&Command::SetQueue { queue: queue.clone(), settings: settings.clone() }).await;
        self.tell_queue("queue_changed", queue);
        Ok(settings)
    }

    /// Tells all shards; those that cannot be reached, later.
    async fn tell_shards(self: &Arc<Inner>, command: &Command) {
        let tell = |shard| self.tell_shard(shard, command.clone());
        futures::future::join_all(self.groups.all().map(tell)).await;
    }

    async fn tell_shard(self: &Arc<Inner>, shard: ShardId, command: Command) {
        // A rejection means that the shard has something newer.
        if let Err(error) = self.groups.propose_one(shard, command.clone()).await
            && !matches!(error, Error::Rejected(_))
        {
            tracing::warn!(%shard, %error, "a queue's settings did not reach a shard: trying on");
            let inner = self.clone();
            self.tasks.spawn(async move {
                loop {
                    match inner.groups.propose_one(shard, command.clone()).await {
                        Ok(_) | Err(Error::Rejected(_)) => return,
                        Err(_) if inner.stopping.is_cancelled() => return,
                        Err(_) => tokio::time::sleep(BACKOFF).await,
                    }
                }
            });
        }
    }

    fn tell_queue(&self, kind: &'static str, queue: &QueueName) {
        let mut event = NodeEvent::new(self.clock.wall(), kind);
        event.queue = Some(queue.clone());
        self.events.publish([event]);
    }

    /// Takes what the catalog says of queues by now: somebody knows more of one than this node does.
    pub(crate) async fn refresh_settings(&self) {
        // Without an answer the caller asks again.
        let _ = self.groups.wait_for_catalog(Freshness::Linearizable).await;
        self.take_settings();
    }

    /// Takes what the catalog here says of queues.
    pub(crate) fn take_settings(&self) {
        self.policies.replace(|| {
            self.groups.catalog.read_stale(|catalog| {
                catalog.queues().map(|(name, settings)| (name.clone(), settings.clone())).collect()
            })
        });
    }

    /// Waits, once after a start, until the catalog here has all that was answered before. Until then a pinned queue
    /// looks like any other, and a follow-up of an ack, which no shard refuses, would be put into the wrong one.
    pub(crate) async fn know_queues(&self) -> Result<(), Error> {
        if !self.knows_queues() {
            self.groups.wait_for_catalog(Freshness::Linearizable).await?;
            self.take_settings();
            self.knows_queues.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether nobody has to wait for that any more.
    pub(crate) fn knows_queues(&self) -> bool {
        self.knows_queues.load(Ordering::Relaxed)
    }

    /// Takes what the catalog here says of queues, and tells the shards that are led here what they do not
    /// know yet: whoever changed a queue may not have reached them. Whether all know now.
    pub(crate) async fn deliver_settings(&self) -> bool {
        self.take_settings();
        let led = self.groups.all().filter(|shard| self.groups.leads(*shard));
        let delivered = led.map(|shard| self.deliver_to(shard));
        futures::future::join_all(delivered).await.into_iter().all(|all| all)
    }

    async fn deliver_to(&self, shard: ShardId) -> bool {
        let unknown = self.groups.catalog.read_stale(|catalog| {
            self.groups.look(shard, |state| {
                let version = |queue| state.queue(queue).map(|known| known.settings.version);
                let set = catalog.queues().filter(|(queue, settings)| {
                    version(queue).is_none_or(|version| version < settings.version)
                });
                let set = set.map(|(queue, settings)| Command::SetQueue {
                    queue: queue.clone(),
                    settings: settings.clone(),
                });
                // Version 0 was made by a task that came after the deletion.
                let dropped = catalog.deleted().filter(|(queue, deleted)| {
                    version(queue).is_some_and(|version| (1..*deleted).contains(&version))
                });
                let dropped =
                    dropped.map(|(queue, version)| Command::DropQueue { queue: queue.clone(), version });
                set.chain(dropped).collect::<Vec<_>>()
            })
        });
        // A rejection means that the shard has something newer.
        unknown.is_empty() || self.groups.propose(shard, unknown).await.is_ok()
    }
}

/// Follows what the catalog says of queues, and sees to it that the shards led here know, until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    tokio::select! {
        () = follow(&inner) => {}
        () = deliver(&inner) => {}
        () = know(&inner) => {}
        () = inner.stopping.cancelled() => {}
    }
}

/// Learns the queues after a start, so that few have to wait for it.
async fn know(inner: &Inner) {
    while inner.know_queues().await.is_err() {
        tokio::time::sleep(BACKOFF).await;
    }
    std::future::pending().await
}

/// Places tasks by what the catalog here says, as soon as it says so.
async fn follow(inner: &Inner) {
    let catalog = &inner.groups.catalog;
    loop {
        let seen = catalog.applied();
        inner.take_settings();
        if catalog.wait_applied(seen + 1, CHANGE_WAIT).await.is_err() {
            // Nothing changes any more, or nothing did for long.
            tokio::time::sleep(BACKOFF).await;
            continue;
        }
        inner.settings_due.notify_one();
    }
}

async fn deliver(inner: &Inner) {
    loop {
        inner.settings_due.notified().await;
        tokio::time::sleep(TOLD_BY_THEN).await;
        if !inner.deliver_settings().await {
            inner.settings_due.notify_one();
        }
    }
}
