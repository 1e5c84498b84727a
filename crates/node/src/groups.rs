//! The groups of a node: the catalog and the shards, led here or elsewhere.
//!
//! Every node has a copy of every group. Commands go to a group's leader, wherever it is; reads look at the
//! copy here, once it has all that was answered before, or as it is. The one place that turns what a replica
//! could not do into what a caller is told. Next: `route.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::catalog::{CatalogCommand, CatalogReply};
use model::{Command, GroupId, NodeId, Rejection, Reply, ShardId, TaskId};
use replica::{Applied, Replica};
use state_machine::{Catalog, Shard};

use crate::call::Freshness;
use crate::error::Error;
use crate::route::{Call, LEADER_WAIT, Proposed, Reads, Route, full};

/// All groups of a node.
pub(crate) struct Groups {
    pub(crate) catalog: Replica<Catalog>,
    shards: Vec<Replica<Shard>>,
    route: Route,
    catalog_reads: Arc<Reads>,
    /// One for each shard.
    reads: Vec<Arc<Reads>>,
    /// The last index that this node's own commands were answered by, for each group, the catalog first.
    written: Vec<AtomicU64>,
}

impl Groups {
    pub(crate) fn new(catalog: Replica<Catalog>, shards: Vec<Replica<Shard>>, route: Route) -> Groups {
        let reads = shards.iter().map(|_| Arc::default()).collect();
        let written = (0..=shards.len()).map(|_| AtomicU64::new(0)).collect();
        Groups { catalog, shards, route, catalog_reads: Arc::default(), reads, written }
    }

    /// How many shards there are.
    pub(crate) fn count(&self) -> u16 {
        self.shards.len() as u16
    }

    /// All shards.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = ShardId> + Clone + use<> {
        ShardId::all(self.count())
    }

    /// A shard's replica. Ids from outside go through [`Groups::known`] first.
    pub(crate) fn shard(&self, shard: ShardId) -> &Replica<Shard> {
        &self.shards[usize::from(shard.number()) - 1]
    }

    /// Whether this cluster can have made the id.
    pub(crate) fn known(&self, task: TaskId) -> Result<(), Error> {
        if task.shard().number() > self.count() {
            return Err(Rejection::NotFound { id: task }.into());
        }
        Ok(())
    }

    /// Whether this node leads a shard, as far as it knows.
    pub(crate) fn leads(&self, shard: ShardId) -> bool {
        self.shard(shard).leads()
    }

    /// Who leads a shard, as far as this node knows.
    pub(crate) fn leader_of(&self, shard: ShardId) -> Option<NodeId> {
        self.shard(shard).leader().map(|(leader, _)| leader.node())
    }

    /// Looks at a shard as it is here and now.
    pub(crate) fn look<T>(&self, shard: ShardId, look: impl FnOnce(&Shard) -> T) -> T {
        self.shard(shard).read_stale(look)
    }

    /// Looks at a shard that has all that was answered before.
    pub(crate) async fn read<T>(&self, shard: ShardId, look: impl FnOnce(&Shard) -> T) -> Result<T, Error> {
        self.refresh(shard).await?;
        Ok(self.look(shard, look))
    }

    /// Waits until the copies here of these shards are as fresh as asked for; all leaders are asked at once.
    pub(crate) async fn wait_for(
        &self,
        shards: impl IntoIterator<Item = ShardId>,
        freshness: Freshness,
    ) -> Result<(), Error> {
        if freshness == Freshness::Linearizable {
            futures::future::try_join_all(shards.into_iter().map(|shard| self.refresh(shard))).await?;
        }
        Ok(())
    }

    async fn refresh(&self, shard: ShardId) -> Result<(), Error> {
        let reads = &self.reads[usize::from(shard.number()) - 1];
        self.route.linearize(self.shard(shard), reads).await
    }

    /// Waits, not for long, until the copies here of what others lead have what those have applied by now.
    pub(crate) async fn catch_up(&self, patience: std::time::Duration) {
        let shards = self.shards.iter().filter(|shard| !shard.leads());
        futures::future::join_all(shards.map(|shard| self.route.catch_up(shard, patience))).await;
    }

    /// Proposes commands to a shard, as one message.
    pub(crate) async fn propose(
        &self,
        shard: ShardId,
        commands: Vec<Command>,
    ) -> Result<Vec<Applied<Reply>>, Error> {
        Ok(self.propose_surely(shard, commands).await?.applied)
    }

    /// The same, and tells which of the answers may be those of a second try.
    pub(crate) async fn propose_surely(
        &self,
        shard: ShardId,
        commands: Vec<Command>,
    ) -> Result<Proposed<Reply>, Error> {
        let call = Call::new::<Shard>(&commands);
        // The bytes are what counts from here on.
        drop(commands);
        self.carry_out(shard, &call).await
    }

    /// The same with a call that is made already.
    pub(crate) async fn propose_call(
        &self,
        shard: ShardId,
        call: &Call,
    ) -> Result<Vec<Applied<Reply>>, Error> {
        Ok(self.carry_out(shard, call).await?.applied)
    }

    async fn carry_out(&self, shard: ShardId, call: &Call) -> Result<Proposed<Reply>, Error> {
        let proposed = self.route.propose(self.shard(shard), call).await?;
        self.wrote(shard.group(), &proposed.applied);
        Ok(proposed)
    }

    fn wrote<R>(&self, group: GroupId, applied: &[Applied<R>]) {
        if let Some(last) = applied.last() {
            self.written[usize::from(group.0)].fetch_max(last.index, Ordering::Relaxed);
        }
    }

    /// An index at or behind all that commands of this node were answered by, in a group that there is. What
    /// another node leads may be known there as committed before it is here.
    pub(crate) fn written(&self, group: GroupId) -> u64 {
        self.written[usize::from(group.0)].load(Ordering::Relaxed)
    }

    /// Proposes one command to a shard. Its index and reply.
    pub(crate) async fn propose_one(&self, shard: ShardId, command: Command) -> Result<(u64, Reply), Error> {
        let mut applied = self.propose(shard, vec![command]).await?;
        let applied = applied.pop().expect("one command has one outcome");
        Ok((applied.index, applied.outcome?))
    }

    /// Proposes one command to the catalog. The copy here has it when this returns, unless it is far behind.
    pub(crate) async fn propose_catalog(&self, command: CatalogCommand) -> Result<CatalogReply, Error> {
        let call = Call::new::<Catalog>(&[command]);
        let mut applied = self.route.propose(&self.catalog, &call).await?.applied;
        self.wrote(GroupId::CATALOG, &applied);
        let applied = applied.pop().expect("one command has one outcome");
        let _ = self.catalog.wait_applied(applied.index, LEADER_WAIT).await;
        Ok(applied.outcome?)
    }

    /// Waits until the copy of the catalog here is as fresh as asked for.
    pub(crate) async fn wait_for_catalog(&self, freshness: Freshness) -> Result<(), Error> {
        match freshness {
            Freshness::Linearizable => self.route.linearize(&self.catalog, &self.catalog_reads).await,
            Freshness::Stale => Ok(()),
        }
    }

    /// Looks at the catalog that has all that was answered before.
    pub(crate) async fn read_catalog<T>(&self, look: impl FnOnce(&Catalog) -> T) -> Result<T, Error> {
        self.wait_for_catalog(Freshness::Linearizable).await?;
        Ok(self.catalog.read_stale(look))
    }
}

/// What a caller is told.
pub(crate) fn told(error: replica::Error) -> Error {
    match error {
        replica::Error::Timeout => Error::Timeout,
        replica::Error::Full => full(),
        replica::Error::TooLarge { bytes, bytes_max } => {
            Error::EntryTooLarge { bytes: bytes as u64, bytes_max: bytes_max as u64 }
        }
        replica::Error::Storage { .. }
        | replica::Error::Members { .. }
        | replica::Error::Malformed { .. } => Error::Broken(error.to_string()),
        replica::Error::NotLeader { .. } | replica::Error::Unavailable | replica::Error::Stopped => {
            Error::Unavailable
        }
    }
}
