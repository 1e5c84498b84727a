//! The state's hash at certain indexes, for comparing replicas.

use std::collections::VecDeque;

use crate::witness::Teller;

/// A hash is taken at every index that this divides.
pub const HASH_EVERY: u64 = 1_024;
/// So many are remembered.
const POINTS_MAX: usize = 64;

/// A state's hash at an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashPoint {
    /// After this entry.
    pub index: u64,
    /// The hash.
    pub hash: u128,
}

/// The last hashes, oldest first.
#[derive(Debug, Default)]
pub(crate) struct HashPoints(VecDeque<HashPoint>);

impl HashPoints {
    /// Adds one; an index that was seen already is not added again.
    pub(crate) fn push(&mut self, index: u64, hash: u128) {
        if self.0.back().is_some_and(|last| last.index >= index) {
            return;
        }
        if self.0.len() == POINTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(HashPoint { index, hash });
    }

    /// Tells all of them.
    pub(crate) fn tell(&self, teller: &Teller) {
        self.0.iter().for_each(|point| teller.hashed(point.index, point.hash));
    }

    /// All of them.
    pub(crate) fn to_vec(&self) -> Vec<HashPoint> {
        self.0.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_bounded_and_ascend() {
        let mut points = HashPoints::default();
        for index in [1, 5, 5, 3] {
            points.push(index, u128::from(index));
        }
        assert_eq!(points.to_vec().iter().map(|point| point.index).collect::<Vec<_>>(), [1, 5]);
        for index in 0..1_000 {
            points.push(index, 0);
        }
        assert_eq!(points.to_vec().len(), POINTS_MAX);
    }
}
