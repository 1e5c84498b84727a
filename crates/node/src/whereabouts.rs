//! Which shard a request belongs to, for callers that want to go there themselves.

use model::{QueueName, ShardId};

use crate::call::TaskSpec;
use crate::inner::Node;
use crate::place;

impl Node {
    /// The shard of a claim's token; nothing for one that this cluster never made.
    pub fn shard_of_token(&self, token: &str) -> Option<ShardId> {
        self.inner.mint.open(token).map(|(task, _)| task.shard())
    }

    /// The shard that a task's keys or its queue ask for; nothing when any will do.
    pub fn shard_of_spec(&self, task: &TaskSpec) -> Option<ShardId> {
        let inner = &self.inner;
        place::place(task.keys(), inner.policies.spread(&task.queue), inner.groups.count()).shard
    }

    /// The shard of the task with this dedup key, within the order key or unique key if it has one.
    pub fn shard_of_dedup(
        &self,
        queue: &QueueName,
        dedup_key: &str,
        order_key: Option<&str>,
        unique_key: Option<&str>,
    ) -> ShardId {
        let inner = &self.inner;
        let spread = inner.policies.spread(queue);
        place::dedup(queue, spread, inner.groups.count(), dedup_key, order_key, unique_key).0
    }
}
