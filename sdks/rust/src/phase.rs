//! Where a worker is in its life, and what holds for one of its streams only.

use std::time::Duration;

use tokio::time::Instant;

/// A beat that is not answered within this, or within two beats, means that nobody is there.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a large task that was announced may be on its way.
const EXPECTED_FOR: Duration = Duration::from_secs(30);
/// Trouble of which nothing more was heard for so long is over.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(5);

/// Where the worker is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// Claims nothing more and waits for what runs, at most until then.
    Draining {
        cancel_at: Option<Instant>,
    },
    /// Has told the handlers to stop.
    Cancelling {
        release_at: Instant,
    },
    /// Nothing runs any more: what is left to say is said.
    Leaving {
        give_up_at: Instant,
    },
}

/// What holds for one stream only.
#[derive(Default)]
pub(crate) struct OnStream {
    /// Tasks that it brought.
    pub(crate) received: u64,
    /// Credit that is open.
    pub(crate) credit: u32,
    pub(crate) outcomes_max: usize,
    pub(crate) beat: Duration,
    pub(crate) idle_beat: Duration,
    pub(crate) beat_at: Option<Instant>,
    /// Since when a beat waits for its answer.
    pub(crate) unanswered_since: Option<Instant>,
    /// Until when a large task may be on its way, which is this worker's already.
    pub(crate) expects_until: Option<Instant>,
    pub(crate) said_goodbye: bool,
    /// Whether the server knows that nothing more is wanted.
    pub(crate) is_drain_known: bool,
    pub(crate) trouble: Option<Trouble>,
}

/// Since when the server says that something does not work, and when it said so last.
#[derive(Clone, Copy)]
pub(crate) struct Trouble {
    pub(crate) since: Instant,
    pub(crate) last: Instant,
}

impl OnStream {
    /// How long a beat may go unanswered: soon enough to be heard elsewhere before the claims are freed.
    pub(crate) fn answer_timeout(&self) -> Duration {
        ANSWER_TIMEOUT.max(self.beat * 2)
    }

    /// When nobody is there any more, if nothing is heard until then. What is large comes before the answer; whoever
    /// holds claims cannot wait for it, or they are freed.
    pub(crate) fn silent_at(&self, holds_nothing: bool) -> Option<Instant> {
        let at = self.unanswered_since.map(|since| since + self.answer_timeout())?;
        let until = self.expects_until.filter(|_| holds_nothing);
        Some(until.map_or(at, |until| at.max(until)))
    }

    /// Tasks came, or (none) the word that a large one follows. Whoever held nothing beats sooner from now on.
    pub(crate) fn tasks_came(&mut self, count: usize, now: Instant) {
        self.expects_until = (count == 0).then(|| now + EXPECTED_FOR);
        self.beat_at = self.beat_at.map(|at| at.min(now + self.beat));
    }

    /// A beat was answered. One that holds nothing beats when the server says, which is when others do: 0 says nothing.
    pub(crate) fn beat_answered(&mut self, idle_beat_ms: u64, holds_nothing: bool, now: Instant) {
        if idle_beat_ms == 0 {
            return;
        }
        self.idle_beat = Duration::from_millis(idle_beat_ms);
        if holds_nothing {
            self.beat_at = Some(now + self.beat_every(true, now));
        }
    }

    /// How long until the next beat.
    pub(crate) fn beat_every(&self, holds_nothing: bool, now: Instant) -> Duration {
        let is_idle = holds_nothing && self.expects_until.is_none_or(|until| until <= now);
        if is_idle { self.idle_beat } else { self.beat }
    }

    /// The server says that something does not work. Since when it does, without a longer break.
    pub(crate) fn troubled(&mut self, now: Instant) -> Instant {
        let known = self.trouble.filter(|trouble| now < trouble.last + FORGOTTEN_AFTER);
        let since = known.map_or(now, |trouble| trouble.since);
        self.trouble = Some(Trouble { since, last: now });
        since
    }
}

impl Phase {
    /// Its word, for people.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Phase::Running => "running",
            Phase::Draining { .. } => "draining",
            Phase::Cancelling { .. } | Phase::Leaving { .. } => "stopping",
        }
    }

    /// When it ends by itself.
    pub(crate) fn ends_at(self) -> Option<Instant> {
        match self {
            Phase::Running => None,
            Phase::Draining { cancel_at } => cancel_at,
            Phase::Cancelling { release_at } => Some(release_at),
            Phase::Leaving { give_up_at } => Some(give_up_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_is_answered_before_the_claims_are_freed() {
        for (beat_ms, expected_ms) in [(50, 1_000), (500, 1_000), (800, 1_600)] {
            let on = OnStream { beat: Duration::from_millis(beat_ms), ..OnStream::default() };
            assert_eq!(on.answer_timeout(), Duration::from_millis(expected_ms));
        }
    }

    #[test]
    fn while_a_large_task_is_on_its_way_a_worker_beats_and_waits_with_answers() {
        let start = Instant::now();
        let after = |secs| start + Duration::from_secs(secs);
        let (beat, idle_beat) = (Duration::from_millis(500), Duration::from_secs(20));
        let mut on = OnStream { beat, idle_beat, beat_at: Some(after(20)), ..OnStream::default() };
        assert_eq!(on.beat_every(true, start), idle_beat);
        on.tasks_came(0, start);
        assert_eq!((on.beat_at, on.beat_every(true, after(1))), (Some(start + beat), beat));
        on.unanswered_since = Some(after(1));
        assert_eq!(on.silent_at(true), Some(start + EXPECTED_FOR), "the answer is behind it");
        assert_ne!(on.silent_at(false), on.silent_at(true), "claims would be freed meanwhile");
        assert_eq!(on.beat_every(true, after(31)), idle_beat, "it never came");
        on.tasks_came(1, after(4));
        assert_eq!(on.silent_at(true), Some(after(2)), "as always");
        assert_eq!((on.beat_every(false, after(4)), on.beat_every(true, after(4))), (beat, idle_beat));
    }

    #[test]
    fn who_holds_nothing_beats_when_the_server_says() {
        let start = Instant::now();
        let (beat, idle_beat) = (Duration::from_millis(500), Duration::from_secs(30));
        let of = |idle_beat_ms, holds_nothing| {
            let mut on = OnStream { beat, idle_beat, beat_at: Some(start + beat), ..OnStream::default() };
            on.beat_answered(idle_beat_ms, holds_nothing, start);
            (on.beat_at.map(|at| at - start), on.idle_beat)
        };
        let told = Duration::from_millis(4_321);
        assert_eq!(of(4_321, true), (Some(told), told));
        assert_eq!(of(4_321, false), (Some(beat), told), "its tasks want a beat sooner");
        assert_eq!(of(0, true), (Some(beat), idle_beat), "an older server says nothing");
    }

    #[test]
    fn trouble_is_forgotten_when_nothing_more_is_heard_of_it() {
        let (mut on, start) = (OnStream::default(), Instant::now());
        let after = |secs| start + Duration::from_secs(secs);
        assert_eq!(on.troubled(start), start);
        assert_eq!(on.troubled(after(3)), start, "it lasts");
        assert_eq!(on.troubled(after(3_600)), after(3_600), "an hour later it is another");
    }
}
