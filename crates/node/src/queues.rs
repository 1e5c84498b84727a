//! Queues: their settings go to the catalog first, then to every shard, by version.
//!
//! A shard that could not be reached is told later; an older version never replaces a newer one. What a
//! queue holds is added up over the shards.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use model::catalog::{CatalogCommand, CatalogReply};
use model::{Command, QueueName, QueuePolicy, QueueSettings, Rejection, Reply, ShardId, StateKind, WallTime};
use state_machine::view::{Depth, QueueView};

use crate::call::QueueInfo;
use crate::error::Error;
use crate::events::NodeEvent;
use crate::inner::{Inner, Node};
use crate::rates;

/// Tries when others set the same queue at the same time; each round one of them is through.
const SET_TRIES: usize = 100;
/// Between two tries to tell a shard.
const BACKOFF: Duration = Duration::from_millis(200);

impl Node {
    /// All queues, by name.
    pub async fn queues(&self) -> Result<Vec<QueueInfo>, Error> {
        let inner = &self.inner;
        let mut views: BTreeMap<QueueName, Vec<QueueView>> =
            inner.policies.all().keys().map(|name| (name.clone(), Vec::new())).collect();
        for shard in inner.groups.all() {
            for view in inner.groups.read(shard, |state| state.queues()).await? {
                views.entry(view.name.clone()).or_default().push(view);
            }
        }
        Ok(views.into_iter().map(|(name, views)| inner.queue_info(name, &views)).collect())
    }

    /// One queue.
    pub async fn queue(&self, queue: &QueueName) -> Result<QueueInfo, Error> {
        let views = self.inner.views(queue).await?;
        if views.is_empty() && !self.inner.policies.all().contains_key(queue) {
            return Err(Rejection::UnknownQueue { queue: queue.clone() }.into());
        }
        Ok(self.inner.queue_info(queue.clone(), &views))
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
        self.inner.change(queue, change).await?;
        self.queue(queue).await
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
        self.queue(queue).await?;
        let change = |settings: &mut QueueSettings| {
            settings.paused = paused == Paused::Yes;
            Ok(())
        };
        self.inner.change(queue, change).await?;
        self.queue(queue).await
    }

    /// Deletes a queue that has no live and no dead tasks.
    pub async fn delete_queue(&self, queue: &QueueName) -> Result<(), Error> {
        let inner = &self.inner;
        let info = self.queue(queue).await?;
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
        inner.policies.remove(queue);
        inner.tell_shards(&Command::DropQueue { queue: queue.clone(), version }).await;
        inner.tell_queue("queue_deleted", queue);
        Ok(())
    }

    /// Cancels all that waits in a queue now. How many tasks that is.
    pub async fn purge(&self, queue: &QueueName) -> Result<u64, Error> {
        let inner = &self.inner;
        self.queue(queue).await?;
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
        counts.into_iter().sum()
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
    async fn views(&self, queue: &QueueName) -> Result<Vec<QueueView>, Error> {
        let mut views = Vec::new();
        for shard in self.groups.all() {
            views.extend(self.groups.read(shard, |state| state.queue(queue)).await?);
        }
        Ok(views)
    }

    /// The same queue over all shards.
    fn queue_info(&self, name: QueueName, views: &[QueueView]) -> QueueInfo {
        let wall = self.clock.wall();
        let set = self.policies.all().get(&name).cloned();
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
    async fn check_spread(&self, queue: &QueueName, policy: &QueuePolicy) -> Result<(), Error> {
        if self.policies.spread(queue) == policy.spread {
            return Ok(());
        }
        let views = self.views(queue).await?;
        let count = views.iter().flat_map(|view| view.depth.0).sum();
        if count > 0 {
            let hint = "shards changes only while a queue has no tasks, ended ones included";
            return Err(Rejection::NotEmpty { queue: queue.clone(), count, hint }.into());
        }
        Ok(())
    }

    /// Changes a queue's settings in the catalog, then in the shards.
    async fn change(
        self: &Arc<Inner>,
        queue: &QueueName,
        change: impl Fn(&mut QueueSettings) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut tries = 0;
        let settings = loop {
            let known = self.groups.read_catalog(|catalog| catalog.queue(queue).cloned()).await?;
            let mut settings = known.unwrap_or_default();
            change(&mut settings)?;
            self.check_spread(queue, &settings.policy).await?;
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
        self.policies.set(queue, &settings);
        self.tell_shards(&Command::SetQueue { queue: queue.clone(), settings }).await;
        self.tell_queue("queue_changed", queue);
        Ok(())
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

    /// Takes the catalog's settings, and tells the shards what they do not know yet: after a start, some
    /// may have missed it.
    pub(crate) async fn deliver_settings(self: &Arc<Inner>) -> Result<(), Error> {
        let (queues, deleted) = self
            .groups
            .read_catalog(|catalog| {
                let queues: HashMap<_, _> =
                    catalog.queues().map(|(name, settings)| (name.clone(), settings.clone())).collect();
                let deleted: Vec<_> =
                    catalog.deleted().map(|(name, version)| (name.clone(), version)).collect();
                (queues, deleted)
            })
            .await?;
        for shard in self.groups.all() {
            for (queue, settings) in &queues {
                let known = self.groups.look(shard, |state| state.queue(queue));
                if known.is_none_or(|known| known.settings.version < settings.version) {
                    let (queue, settings) = (queue.clone(), settings.clone());
                    self.tell_shard(shard, Command::SetQueue { queue, settings }).await;
                }
            }
            for (queue, version) in &deleted {
                let known = self.groups.look(shard, |state| state.queue(queue));
                // Version 0 was made by a task that came after the deletion.
                if known.is_some_and(|known| (1..*version).contains(&known.settings.version)) {
                    let (queue, version) = (queue.clone(), *version);
                    self.tell_shard(shard, Command::DropQueue { queue, version }).await;
                }
            }
        }
        self.policies.replace(queues);
        Ok(())
    }
}
