//! The groups of a node: the catalog and the shards.
//!
//! The one place that turns what a replica could not do into what a caller is told.

use model::catalog::{CatalogCommand, CatalogReply};
use model::{Command, Rejection, Reply, ShardId, TaskId};
use replica::{Applied, Replica};
use state_machine::{Catalog, Shard};

use crate::error::Error;

/// All groups of a node.
pub(crate) struct Groups {
    pub(crate) catalog: Replica<Catalog>,
    shards: Vec<Replica<Shard>>,
}

impl Groups {
    pub(crate) fn new(catalog: Replica<Catalog>, shards: Vec<Replica<Shard>>) -> Groups {
        Groups { catalog, shards }
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

    /// Looks at a shard as it is here and now.
    pub(crate) fn look<T>(&self, shard: ShardId, look: impl FnOnce(&Shard) -> T) -> T {
        self.shard(shard).read_stale(look)
    }

    /// Looks at a shard that has all that was answered before.
    pub(crate) async fn read<T>(&self, shard: ShardId, look: impl FnOnce(&Shard) -> T) -> Result<T, Error> {
        self.shard(shard).read(look).await.map_err(told)
    }

    /// Proposes commands to a shard, as one message.
    pub(crate) async fn propose(
        &self,
        shard: ShardId,
        commands: Vec<Command>,
    ) -> Result<Vec<Applied<Reply>>, Error> {
        self.shard(shard).propose(commands).await.map_err(told)
    }

    /// Proposes one command to a shard. Its index and reply.
    pub(crate) async fn propose_one(&self, shard: ShardId, command: Command) -> Result<(u64, Reply), Error> {
        let mut applied = self.propose(shard, vec![command]).await?;
        let applied = applied.pop().expect("one command has one outcome");
        Ok((applied.index, applied.outcome?))
    }

    /// Proposes one command to the catalog.
    pub(crate) async fn propose_catalog(&self, command: CatalogCommand) -> Result<CatalogReply, Error> {
        propose_catalog(&self.catalog, command).await
    }

    /// Looks at the catalog that has all that was answered before.
    pub(crate) async fn read_catalog<T>(&self, look: impl FnOnce(&Catalog) -> T) -> Result<T, Error> {
        self.catalog.read(look).await.map_err(told)
    }
}

/// Proposes one command to the catalog.
pub(crate) async fn propose_catalog(
    catalog: &Replica<Catalog>,
    command: CatalogCommand,
) -> Result<CatalogReply, Error> {
    let mut applied = catalog.propose(vec![command]).await.map_err(told)?;
    Ok(applied.pop().expect("one command has one outcome").outcome?)
}

/// What a caller is told.
pub(crate) fn told(error: replica::Error) -> Error {
    match error {
        replica::Error::Timeout => Error::Timeout,
        replica::Error::Full => Error::TooManyRequests { what: "writes that wait for the log", max: None },
        replica::Error::TooLarge { bytes, bytes_max } => {
            Error::EntryTooLarge { bytes: bytes as u64, bytes_max: bytes_max as u64 }
        }
        replica::Error::Storage { .. } => Error::Broken(error.to_string()),
        replica::Error::NotLeader { .. } | replica::Error::Unavailable | replica::Error::Stopped => {
            Error::Unavailable
        }
    }
}
