//! What of the log others still need: a member that is being sent a checkpoint goes on with the log after it.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Entries after which the log must stay, and for how many.
#[derive(Default)]
pub(crate) struct Holds(Mutex<BTreeMap<u64, usize>>);

/// Holds on to the log after an entry, for as long as it lives.
pub(crate) struct Hold<'a> {
    holds: &'a Holds,
    index: u64,
}

impl Holds {
    /// Holds on to the log after `index`.
    pub(crate) fn hold(&self, index: u64) -> Hold<'_> {
        *self.0.lock().entry(index).or_default() += 1;
        Hold { holds: self, index }
    }

    /// The first entry after which the log must stay.
    pub(crate) fn first(&self) -> Option<u64> {
        self.0.lock().first_key_value().map(|(index, _)| *index)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut holds = self.holds.0.lock();
        let count = holds.get_mut(&self.index).expect("it is there as long as it is held");
        *count -= 1;
        if *count == 0 {
            holds.remove(&self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_is_held_counts() {
        let holds = Holds::default();
        assert_eq!(holds.first(), None);
        let (late, early) = (holds.hold(9), holds.hold(5));
        let again = holds.hold(5);
        assert_eq!(holds.first(), Some(5));
        drop(early);
        assert_eq!(holds.first(), Some(5));
        drop(again);
        assert_eq!(holds.first(), Some(9));
        drop(late);
        assert_eq!(holds.first(), None);
    }
}
