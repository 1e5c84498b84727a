//! When each group's leader last changed, as seen here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{GroupId, WallTime};
use parking_lot::Mutex;
use replica::{Codec, Replica};

use crate::inner::Inner;

/// When each group's leader last changed.
#[derive(Default)]
pub(crate) struct Elections {
    last: Mutex<HashMap<GroupId, WallTime>>,
    changes: AtomicU64,
}

impl Elections {
    /// When this group's leader last changed.
    pub(crate) fn last(&self, group: GroupId) -> Option<WallTime> {
        self.last.lock().get(&group).copied()
    }

    /// How often a leader changed, over all groups.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }
}

/// Notes changes of a group's leader until the node stops.
pub(crate) async fn run<M: Codec>(inner: Arc<Inner>, replica: Replica<M>) {
    let mut seen = None;
    loop {
        let changed = tokio::select! {
            changed = replica.leader_changed(seen) => changed,
            () = inner.stopping.cancelled() => return,
        };
        if changed == seen {
            // The engine has gone.
            return;
        }
        if let Some((leader, term)) = changed {
            tracing::debug!(group = %replica.group(), %leader, term, "leader");
            inner.elections.last.lock().insert(replica.group(), inner.clock.wall());
            inner.elections.changes.fetch_add(1, Ordering::Relaxed);
        }
        // The others hear at once who leads here, and who does not any more.
        if [seen, changed].iter().flatten().any(|(leader, _)| leader.node() == inner.node) {
            inner.statuses.tell_soon();
        }
        seen = changed;
    }
}
