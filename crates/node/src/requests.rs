//! Requests by their id, one at a time: a repeat waits until the first is through.
//!
//! Otherwise a caller that gave up and asked again could be given two sets of claims.

use std::collections::HashMap;
use std::sync::Arc;

use model::KeyHash;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The requests that are under way.
#[derive(Clone, Default)]
pub(crate) struct Requests {
    under_way: Arc<Mutex<HashMap<KeyHash, Arc<Notify>>>>,
}

/// The right to work on a request, until dropped.
pub(crate) struct Turn {
    requests: Requests,
    request: KeyHash,
    through: Arc<Notify>,
}

impl Requests {
    /// Waits for the turn of `request`.
    pub(crate) async fn turn(&self, request: KeyHash) -> Turn {
        loop {
            let first = {
                let mut under_way = self.under_way.lock();
                match under_way.get(&request) {
                    None => {
                        let through = Arc::new(Notify::new());
                        under_way.insert(request, through.clone());
                        return Turn { requests: self.clone(), request, through };
                    }
                    // Asked for while the lock is held: what is told after this is heard.
                    Some(first) => first.clone().notified_owned(),
                }
            };
            first.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.requests.under_way.lock().remove(&self.request);
        self.through.notify_waiters();
    }
}
