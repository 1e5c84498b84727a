//! What is said in the log about links, and how often.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The same thing about the same peer is said once in so long.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Different things that are remembered; strangers could make up any number.
const REMEMBERED_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Complaints {
    said: Mutex<BTreeMap<(String, &'static str), Instant>>,
}

impl Complaints {
    /// Warns, unless it warned of this cause and this peer within the last minute.
    pub(super) fn warn(&self, peer: &str, cause: &'static str, text: &str) {
        if self.is_new(peer, cause, Instant::now()) {
            tracing::warn!(peer, cause, "{text}");
        }
    }

    fn is_new(&self, peer: &str, cause: &'static str, now: Instant) -> bool {
        let mut said = self.said.lock();
        let key = (peer.to_owned(), cause);
        if said.get(&key).is_some_and(|at| now.duration_since(*at) < AGAIN_AFTER) {
            return false;
        }
        if said.len() >= REMEMBERED_MAX {
            said.retain(|_, at| now.duration_since(*at) < AGAIN_AFTER);
            if said.len() >= REMEMBERED_MAX {
                return false;
            }
        }
        said.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_a_minute() {
        let (complaints, now) = (Complaints::default(), Instant::now());
        assert!(complaints.is_new("2", "version", now));
        assert!(!complaints.is_new("2", "version", now));
        assert!(complaints.is_new("2", "cluster", now));
        assert!(complaints.is_new("3", "version", now));
        assert!(complaints.is_new("2", "version", now + AGAIN_AFTER));
    }

    #[test]
    fn strangers_cannot_fill_the_memory() {
        let (complaints, now) = (Complaints::default(), Instant::now());
        for n in 0..10 * REMEMBERED_MAX {
            complaints.is_new(&n.to_string(), "stranger", now);
        }
        assert!(complaints.said.lock().len() <= REMEMBERED_MAX);
    }
}
