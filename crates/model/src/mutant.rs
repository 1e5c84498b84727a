//! Planted bugs, of the kind people really make: the proof that the simulator finds such.
//!
//! Each is a line or a few at the place where somebody would have made it, asked for by
//! [`planted`]. Without the feature `mutants`, which only the simulator's own feature turns on, that is `false` for
//! the compiler, and nothing of them is built. At most one is planted in a process, by its name. A test of the house
//! sees to it that no release has them. Next: `crates/sim`, whose `--mutant` plants them.

/// Declares the bugs: a sentence, a variant, a name. One list, so that no bug is without its words.
macro_rules! mutants {
    ($(#[doc = $sentence:literal] $mutant:ident = $name:literal,)+) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $(#[doc = $sentence] $mutant,)+
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$mutant,)+];

            /// What it is called on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Mutant::$mutant => $name,)+
                }
            }

            /// What is wrong with it.
            pub fn sentence(self) -> &'static str {
                match self {
                    $(Mutant::$mutant => $sentence.trim_ascii(),)+
                }
            }
        }
    };
}

mutants! {
    /// An ack counts with any fence of a claimed task.
    AckWithoutFence = "ack-without-fence",
    /// A fence is the number of the attempt, so a release gives the same one out again.
    FenceFromAttempts = "fence-from-attempts",
    /// An extend answers with a later deadline and leaves the old one in force.
    ExtendForgotten = "extend-forgotten",
    /// A deadline that passes uses up no attempt.
    DeadlineIsFree = "deadline-is-free",
    /// A release uses up an attempt.
    ReleaseCounts = "release-counts",
    /// A repeated ack is counted among the done tasks once more.
    AckCountedTwice = "ack-counted-twice",
    /// A delay is over at half its time.
    DelayedEarly = "delayed-early",
    /// A task that backs off lets the next one of its order key go ahead.
    OrderFreedOnRetry = "order-freed-on-retry",
    /// The jitter of a backoff comes from a generator that each replica has for itself.
    LocalJitter = "local-jitter",
    /// A message between shards that comes again is taken in again.
    OutboxTwice = "outbox-twice",
    /// The follow-ups of an ack are enqueued by commands of their own, beside it.
    ThenOutside = "then-outside",
    /// The end of a session frees its claims in one shard only.
    SessionInOneShard = "session-in-one-shard",
    /// A reload from a checkpoint forgets the dedup keys.
    DedupForgotten = "dedup-forgotten",
    /// A checkpoint says that it ends one entry before it does: that entry is applied twice after a restart.
    CheckpointLow = "checkpoint-low",
    /// A checkpoint says that it ends one entry after it does: that entry is never applied after a restart.
    CheckpointHigh = "checkpoint-high",
    /// A checkpoint is not synced before the log goes that it stands for.
    CheckpointNotSynced = "checkpoint-not-synced",
    /// A leader counts deadlines by the clock on its wall.
    LocalClock = "local-clock",
    /// Who believes to lead answers a read without asking a quorum.
    StaleRead = "stale-read",
    /// An append that got no answer counts as stored: claims are answered before a quorum has them.
    AnsweredBeforeCommit = "answered-before-commit",
    /// An entry counts as stored before it is synced.
    AnsweredBeforeSync = "answered-before-sync",
    /// A vote is given before it is synced.
    VoteNotSynced = "vote-not-synced",
    /// The log is written but never synced.
    SyncSkipped = "sync-skipped",
    /// A sync that fails is tried again, and the second one is believed.
    SyncRetried = "sync-retried",
    /// A record counts although its checksum is wrong.
    TornTailAccepted = "torn-tail-accepted",
    /// A new segment of the log does not say the votes anew that old ones hold.
    VotesLeftBehind = "votes-left-behind",
    /// A node without its data joins as the member that it was, and votes.
    WipedNodeVotes = "wiped-node-votes",
}

impl Mutant {
    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Mutant> {
        Mutant::ALL.iter().copied().find(|mutant| mutant.name() == name)
    }
}

pub use soil::{local_number, plant, planted};

/// A build that bugs can be planted in.
#[cfg(feature = "mutants")]
mod soil {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::Mutant;

    /// One more than the planted one's number.
    static PLANTED: AtomicUsize = AtomicUsize::new(0);
    static NUMBERS: AtomicUsize = AtomicUsize::new(0);

    /// Whether this bug is planted.
    pub fn planted(mutant: Mutant) -> bool {
        PLANTED.load(Ordering::Relaxed) == mutant as usize + 1
    }

    /// Plants a bug in this process, in place of the one before. Whether it could.
    pub fn plant(mutant: Mutant) -> bool {
        PLANTED.store(mutant as usize + 1, Ordering::Relaxed);
        true
    }

    /// A number that nobody else gets: what a planted bug takes where replicas should agree.
    pub fn local_number() -> u64 {
        NUMBERS.fetch_add(1, Ordering::Relaxed) as u64
    }
}

/// A build without bugs of ours.
#[cfg(not(feature = "mutants"))]
mod soil {
    use super::Mutant;

    /// Whether this bug is planted: never in this build.
    #[inline(always)]
    pub const fn planted(_: Mutant) -> bool {
        false
    }

    /// Plants a bug in this process. Whether it could: not in this build.
    pub const fn plant(_: Mutant) -> bool {
        false
    }

    /// A number that nobody else gets: nobody gets one in this build.
    pub const fn local_number() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_has_a_name_of_its_own_and_a_sentence() {
        for mutant in Mutant::ALL {
            assert_eq!(Mutant::from_name(mutant.name()), Some(*mutant));
            assert!(mutant.sentence().ends_with('.') && !mutant.sentence().starts_with(' '), "{mutant:?}");
        }
        assert_eq!(Mutant::from_name("none"), None);
    }

    #[test]
    fn a_bug_is_planted_by_its_name_where_bugs_can_be() {
        let mutant = Mutant::ALL[3];
        assert_eq!(plant(mutant), cfg!(feature = "mutants"));
        for other in Mutant::ALL {
            assert_eq!(planted(*other), cfg!(feature = "mutants") && *other == mutant);
        }
    }
}
