//! What was sent on a stream and has no answer yet.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context as _, Result};

/// By the numbers under which it was sent, which count from 0.
#[derive(Default)]
pub(super) struct Unanswered {
    /// The number of the oldest here.
    first: u64,
    sent: VecDeque<Option<Instant>>,
    count: u64,
}

impl Unanswered {
    /// So many are sent now, under numbers that follow each other; the first of them.
    pub(super) fn send(&mut self, at: Instant, count: u64) -> u64 {
        let seq = self.first + self.sent.len() as u64;
        self.sent.extend(std::iter::repeat_n(Some(at), count as usize));
        self.count += count;
        seq
    }

    /// An answer came; when that was sent. Each is answered once.
    pub(super) fn answer(&mut self, seq: u64) -> Result<Instant> {
        let place = seq.checked_sub(self.first).map(|place| place as usize);
        let sent = place.and_then(|place| self.sent.get_mut(place)).and_then(Option::take);
        let sent = sent.with_context(|| format!("{seq} was answered twice, or never asked"))?;
        self.count -= 1;
        while let Some(None) = self.sent.front() {
            self.sent.pop_front();
            self.first += 1;
        }
        Ok(sent)
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn each_is_answered_once_in_any_order() {
        let mut unanswered = Unanswered::default();
        assert_eq!(unanswered.send(Instant::now(), 2), 0);
        assert_eq!(unanswered.send(Instant::now(), 1), 2);
        for seq in [1, 2, 0] {
            unanswered.answer(seq).unwrap();
        }
        assert_eq!((unanswered.count(), unanswered.send(Instant::now(), 1)), (0, 3));
        for seq in [0, 2, 4] {
            assert!(unanswered.answer(seq).is_err(), "{seq}");
        }
        unanswered.answer(3).unwrap();
    }
}
