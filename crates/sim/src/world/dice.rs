//! Chance, from the seed alone: each purpose has a stream of its own, so that one does not disturb another.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A stream of chance.
pub(crate) struct Dice(StdRng);

impl Dice {
    /// The stream of `seed` for one purpose.
    pub(crate) fn new(seed: u64, purpose: &str) -> Dice {
        Dice(StdRng::seed_from_u64(xxh3_64_with_seed(purpose.as_bytes(), seed)))
    }

    /// Any number.
    pub(crate) fn number(&mut self) -> u64 {
        self.0.random()
    }

    /// A number from `from` to `to`, both possible.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        self.0.random_range(from..=to.max(from))
    }

    /// True so many times in a hundred.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.0.random_range(0..100) < percent
    }

    /// One of them.
    pub(crate) fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.0.random_range(0..all.len())]
    }

    /// A weight, as often small as large.
    pub(crate) fn scale(&mut self, from: u64, to: u64) -> u64 {
        let (low, high) = ((from.max(1) as f64).ln(), (to.max(1) as f64).ln());
        (self.0.random_range(low..=high)).exp().round() as u64
    }
}
