//! When a message is sent, and from when it counts.
//!
//! With a rate, messages are due at fixed times whatever the answers. One that is held up by an earlier one counts from
//! when it was due, so that a stall counts for all that it held up. Only the lateness of the timer itself, which is
//! no fault of the server, is left out.

use std::time::Instant;

/// One producer's sense of time.
#[derive(Default)]
pub(crate) struct Pace {
    asleep: Option<Instant>,
    awake: Option<Instant>,
}

impl Pace {
    /// Waits until something is due, and tells from when it counts. May be dropped and called again.
    pub(crate) async fn until(&mut self, due: Option<Instant>) -> Instant {
        let now = Instant::now();
        let Some(due) = due else { return now };
        if now < due {
            self.asleep = Some(now);
            tokio::time::sleep_until(due.into()).await;
            self.awake = Some(Instant::now());
        }
        self.counts_from(due)
    }

    /// What fell due while the timer slept counts from when it woke, the rest from when it was due.
    fn counts_from(&self, due: Instant) -> Instant {
        match (self.asleep, self.awake) {
            (Some(asleep), Some(awake)) if asleep < due && due <= awake => awake,
            _ => due,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_held_up_counts_from_when_it_was_due() {
        let base = Instant::now();
        let at = |ms| base + Duration::from_millis(ms);
        let pace = Pace { asleep: Some(at(10)), awake: Some(at(20)) };
        for (what, due, from) in [
            ("due while it slept", 15, 20),
            ("due when it woke", 20, 20),
            ("due before it slept: something else held it up", 9, 9),
            ("due after it woke: something else holds it up", 25, 25),
        ] {
            assert_eq!(pace.counts_from(at(due)), at(from), "{what}");
        }
    }

    #[tokio::test]
    async fn without_a_rate_nothing_waits() {
        let before = Instant::now();
        let from = Pace::default().until(None).await;
        assert!(from >= before && from <= Instant::now());
    }
}
