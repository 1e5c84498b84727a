//! How many tasks may be claimed for one worker, so that what waits for it stays within its bytes.
//!
//! How large tasks are shows only when they are claimed: what came last tells what comes next. Where that was wrong,
//! what does not fit is given back.

use model::limits;
use node::call::Claim;

use super::out::bytes;

/// What a task is taken for before the first was seen.
const FIRST_BYTES: usize = 64 * 1024;
/// How much of a smaller size is believed at once: most of it.
const SLOWLY: usize = 4;

/// How large tasks are, by those that came.
pub(super) struct Sizes {
    task_bytes: usize,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { task_bytes: FIRST_BYTES }
    }
}

impl Sizes {
    /// These came. Larger ones count at once, smaller ones bit by bit.
    pub(super) fn saw(&mut self, claims: &[Claim]) {
        if !claims.is_empty() {
            self.saw_bytes(claims.iter().map(bytes).sum::<usize>() / claims.len());
        }
    }

    fn saw_bytes(&mut self, mean: usize) {
        let excess = self.task_bytes.saturating_sub(mean);
        self.task_bytes = mean.max(1) + excess / SLOWLY;
    }

    /// How many more may be claimed while so many bytes wait and `asked` are on their way here: one at least when
    /// there is nothing of either.
    pub(super) fn room(&self, waiting_bytes: usize, asked: u32) -> u32 {
        let free = limits::PUSH_WAITING_BYTES_MAX.saturating_sub(waiting_bytes) / self.task_bytes;
        let free = u32::try_from(free).unwrap_or(u32::MAX);
        let least = u32::from(waiting_bytes == 0 && asked == 0);
        free.saturating_sub(asked).max(least)
    }
}

/// How many of these, from the first on, may wait beside so many bytes: one at least when nothing waits.
pub(super) fn fitting(waiting_bytes: usize, sizes: impl Iterator<Item = usize>) -> usize {
    let mut sum = waiting_bytes;
    let fits = |size: &usize| {
        let is_alone = sum == 0;
        sum += size;
        is_alone || sum <= limits::PUSH_WAITING_BYTES_MAX
    };
    sizes.take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = limits::PUSH_WAITING_BYTES_MAX;

    #[test]
    fn what_waits_stays_within_its_bytes() {
        let mut sizes = Sizes::default();
        for _ in 0..20 {
            sizes.saw_bytes(300);
        }
        for (what, mean, waiting, asked, least, most) in [
            ("small ones", 300, 0, 0, 10_000, u32::MAX),
            ("large ones", MAX / 8, 0, 0, 8, 8),
            ("some of them wait", MAX / 8, MAX / 2, 0, 4, 4),
            ("some were asked for", MAX / 8, 0, 5, 3, 3),
            ("all of it waits", MAX / 8, MAX, 0, 0, 0),
            ("huge ones, one by one", MAX * 2, 0, 0, 1, 1),
            ("huge ones, one waits", MAX * 2, MAX * 2, 0, 0, 0),
            ("huge ones, one was asked for", MAX * 2, 0, 1, 0, 0),
        ] {
            sizes.saw_bytes(mean);
            let room = sizes.room(waiting, asked);
            assert!((least..=most).contains(&room), "{what}: {room}");
        }
    }

    #[test]
    fn smaller_ones_are_believed_bit_by_bit() {
        let mut sizes = Sizes::default();
        sizes.saw_bytes(MAX / 8);
        let before = sizes.room(0, 0);
        sizes.saw_bytes(300);
        let soon = sizes.room(0, 0);
        (0..20).for_each(|_| sizes.saw_bytes(300));
        assert!(before < soon && soon < sizes.room(0, 0));
    }

    #[test]
    fn what_is_larger_than_expected_does_not_wait_beyond_the_bound() {
        for (what, waiting, sizes, expected) in [
            ("all fit", 0, vec![300; 1_000], 1_000),
            ("large ones after small ones", 0, vec![MAX / 8; 1_000], 8),
            ("beside what waits", MAX / 2, vec![MAX / 8; 9], 4),
            ("one that is too large by itself", 0, vec![MAX * 2, 1], 1),
            ("one that is too large beside another", 1, vec![MAX * 2, 1], 0),
            ("one huge among many small", 0, vec![300, 300, MAX, 300], 2),
            ("nothing", 0, vec![], 0),
        ] {
            assert_eq!(fitting(waiting, sizes.into_iter()), expected, "{what}");
        }
    }
}
