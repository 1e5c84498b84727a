//! Two times: `Elapsed` for what must not jump, `WallTime` for what people read.

use std::fmt;

/// A length of time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// So many seconds.
    pub const fn secs(secs: u64) -> Millis {
        Millis(secs * 1000)
    }

    /// So many minutes.
    pub const fn mins(mins: u64) -> Millis {
        Millis(mins * 60_000)
    }

    /// So many hours.
    pub const fn hours(hours: u64) -> Millis {
        Millis(hours * 3_600_000)
    }
}

impl From<Millis> for std::time::Duration {
    fn from(millis: Millis) -> Self {
        std::time::Duration::from_millis(millis.0)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1000) {
            write!(f, "{} s", self.0 / 1000)
        } else {
            write!(f, "{} ms", self.0)
        }
    }
}

/// Milliseconds that a shard has had a leader. Counts deadlines, backoffs and silence; it stands still
/// without a leader and never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Elapsed(pub u64);

impl Elapsed {
    /// This much later, at most the end of time.
    pub fn after(self, millis: Millis) -> Elapsed {
        Elapsed(self.0.saturating_add(millis.0))
    }

    /// How long since `earlier`; zero if it lies ahead.
    pub fn since(self, earlier: Elapsed) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

/// Milliseconds since 1970 in UTC, as the leader's clock said. Serves run_at, retention and history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(u64);

impl WallTime {
    /// The last moment that can be said: the end of the year 9999.
    pub const MAX: WallTime = WallTime(253_402_300_799_999);

    /// From milliseconds since 1970, held at [`WallTime::MAX`].
    pub fn from_millis(millis: u64) -> WallTime {
        WallTime(millis.min(WallTime::MAX.0))
    }

    /// Milliseconds since 1970.
    pub fn millis(self) -> u64 {
        self.0
    }

    /// This much later, at most [`WallTime::MAX`].
    pub fn after(self, millis: Millis) -> WallTime {
        WallTime::from_millis(self.0.saturating_add(millis.0))
    }

    /// How long since `earlier`; zero if it lies ahead.
    pub fn since(self, earlier: WallTime) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}
