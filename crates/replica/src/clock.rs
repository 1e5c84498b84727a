//! Which time an entry gets.
//!
//! Two times (DESIGN: Time): `elapsed` never jumps, and stands still while there is no leader; `wall` is
//! what people read, and never goes back. The leader stamps, `apply` only reads. Next: `propose`.
//!
//! A group may be idle for long while a claim is held. So the leader tells its count with every message, and the
//! next one goes on from what was told last: from the last entry alone, deadlines would be late by the idle time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use model::{Elapsed, Millis, Mutant, WallTime, mutant};
use parking_lot::Mutex;

/// A node's clock: the real one, or a simulation's.
pub trait Clock: Send + Sync + 'static {
    /// How long this process has run. Never goes back, whatever happens to the wall clock.
    fn elapsed(&self) -> Millis;

    /// What the clock on the wall says.
    fn wall(&self) -> WallTime;

    /// Ready when somebody moves this clock by hand after the call. The system's is moved by nobody: whoever sleeps
    /// looks at it now and then.
    fn moved(&self) -> Moved<'_> {
        Box::pin(std::future::pending())
    }
}

/// Ready when a clock was moved by hand.
pub type Moved<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The operating system's clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// Starts counting now.
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn elapsed(&self) -> Millis {
        Millis(self.start.elapsed().as_millis() as u64)
    }

    fn wall(&self) -> WallTime {
        // Before 1970 the clock is wrong anyway; stamps never go back, so 0 does no harm.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        WallTime::from_millis(since.as_millis() as u64)
    }
}

/// A moment in both times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamps {
    pub(crate) elapsed: Elapsed,
    pub(crate) wall: WallTime,
}

/// Stamps entries of one group.
pub(crate) struct Stamper {
    clock: Arc<dyn Clock>,
    base: Mutex<Base>,
    told: Mutex<Told>,
    /// What the last applied entry was stamped with.
    applied_elapsed: AtomicU64,
    applied_wall: AtomicU64,
}

/// Where this leader's count began.
struct Base {
    term: u64,
    /// The shard's time then.
    elapsed: u64,
    /// The process's time then.
    process: u64,
}

/// What the last leader said of its count. It has passed by the time that it is heard: going on from there is
/// never early.
#[derive(Default)]
struct Told {
    /// The last term that was heard of.
    term: u64,
    /// The count, and whose it is.
    elapsed: u64,
    elapsed_of: u64,
}

impl Told {
    /// A leader of `term` has counted so far; 0 until it has begun, and till then the count of the one before stands. What an
    /// older one says counts no more: it may have gone on counting while nobody followed it.
    fn hear(&mut self, term: u64, elapsed: u64) {
        if term < self.term {
            return;
        }
        self.term = term;
        if elapsed > 0 {
            self.elapsed = if term > self.elapsed_of { elapsed } else { self.elapsed.max(elapsed) };
            self.elapsed_of = term;
        }
    }
}

impl Stamper {
    pub(crate) fn new(clock: Arc<dyn Clock>, (elapsed, wall): (Elapsed, WallTime)) -> Stamper {
        Stamper {
            clock,
            base: Mutex::new(Base { term: 0, elapsed: 0, process: 0 }),
            told: Mutex::default(),
            applied_elapsed: AtomicU64::new(elapsed.0),
            applied_wall: AtomicU64::new(wall.millis()),
        }
    }

    /// Ready when the clock is moved by hand after the call.
    pub(crate) fn moved(&self) -> Moved<'_> {
        self.clock.moved()
    }

    /// The leader of `term` said how far it has counted.
    pub(crate) fn heard(&self, term: u64, elapsed: Elapsed) {
        self.told.lock().hear(term, elapsed.0);
    }

    /// What the count goes by.
    fn process(&self) -> u64 {
        if mutant::planted(Mutant::LocalClock) { self.clock.wall().millis() } else { self.clock.elapsed().0 }
    }

    /// How far this leader of `term` has counted; 0 before it began.
    pub(crate) fn counted(&self, term: u64) -> Elapsed {
        let process = self.process();
        let base = self.base.lock();
        if base.term != term {
            return Elapsed(0);
        }
        Elapsed(base.elapsed + process.saturating_sub(base.process))
    }

    /// An entry of `term` with these stamps was applied.
    pub(crate) fn applied(&self, term: u64, (elapsed, wall): (Elapsed, WallTime)) {
        self.told.lock().hear(term, elapsed.0);
        self.applied_elapsed.fetch_max(elapsed.0, Ordering::Relaxed);
        self.applied_wall.fetch_max(wall.millis(), Ordering::Relaxed);
    }

    /// Now, for the leader of `term`. In a new term the count goes on from what the last leader said, or from the
    /// last applied entry: the time without a leader does not count.
    pub(crate) fn now(&self, term: u64) -> Stamps {
        let process = self.process();
        let applied = self.applied_elapsed.load(Ordering::Relaxed);
        let mut base = self.base.lock();
        if base.term != term {
            let told = self.told.lock().elapsed;
            *base = Base { term, elapsed: applied.max(told), process };
        }
        let mut elapsed = base.elapsed + process.saturating_sub(base.process);
        if elapsed < applied {
            // Entries of the leader before us were applied after our term began.
            *base = Base { term, elapsed: applied, process };
            elapsed = applied;
        }
        drop(base);
        let wall = self.clock.wall().millis().max(self.applied_wall.load(Ordering::Relaxed));
        Stamps { elapsed: Elapsed(elapsed), wall: WallTime::from_millis(wall) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct HandClock {
        elapsed: AtomicU64,
        wall: AtomicU64,
    }

    impl HandClock {
        fn set(&self, elapsed: u64, wall: u64) {
            self.elapsed.store(elapsed, Ordering::Relaxed);
            self.wall.store(wall, Ordering::Relaxed);
        }
    }

    impl Clock for HandClock {
        fn elapsed(&self) -> Millis {
            Millis(self.elapsed.load(Ordering::Relaxed))
        }

        fn wall(&self) -> WallTime {
            WallTime::from_millis(self.wall.load(Ordering::Relaxed))
        }
    }

    fn stamps(elapsed: u64, wall: u64) -> Stamps {
        Stamps { elapsed: Elapsed(elapsed), wall: WallTime::from_millis(wall) }
    }

    #[test]
    fn a_new_leader_goes_on_from_the_last_entry_and_not_from_its_own_clock() {
        let clock = Arc::new(HandClock::default());
        let stamper = Stamper::new(clock.clone(), (Elapsed(5_000), WallTime::from_millis(100)));
        clock.set(70_000, 200);
        assert_eq!(stamper.now(1), stamps(5_000, 200));
        clock.set(70_250, 450);
        assert_eq!(stamper.now(1), stamps(5_250, 450));
        stamper.applied(1, (Elapsed(5_250), WallTime::from_millis(450)));
        // Ten seconds without a leader.
        clock.set(80_250, 10_450);
        assert_eq!(stamper.now(2), stamps(5_250, 10_450));
    }

    #[test]
    fn a_new_leader_goes_on_from_what_the_last_one_said_and_not_from_what_older_ones_say() {
        for (what, heard, applied, expected) in [
            ("nothing was said", &[][..], (1, 5_000), 5_000),
            ("idle since the last entry", &[(1, 9_000), (1, 35_000)], (1, 5_000), 35_000),
            ("the last leader began behind the one before", &[(1, 35_000), (2, 6_000)], (2, 5_500), 6_000),
            ("the next one has not begun to count", &[(1, 35_000), (2, 0)], (1, 5_000), 35_000),
            ("nor has the one after that", &[(1, 35_000), (2, 0), (3, 0), (1, 36_000)], (1, 5_000), 35_000),
            ("it began behind, later", &[(1, 35_000), (2, 0), (2, 6_000)], (2, 5_500), 6_000),
            ("one that was deposed goes on", &[(2, 6_000), (1, 36_000)], (2, 5_500), 6_000),
            ("its entries came with a checkpoint", &[(1, 35_000)], (2, 6_500), 6_500),
            ("a message came late", &[(2, 7_000), (2, 6_000)], (2, 5_500), 7_000),
        ] {
            let clock = Arc::new(HandClock::default());
            clock.set(70_000, 0);
            let stamper = Stamper::new(clock.clone(), (Elapsed(1_000), WallTime::default()));
            for (term, elapsed) in heard {
                stamper.heard(*term, Elapsed(*elapsed));
            }
            let (term, elapsed) = applied;
            stamper.applied(term, (Elapsed(elapsed), WallTime::default()));
            assert_eq!(stamper.counted(4), Elapsed(0), "{what}: it has not begun");
            assert_eq!(stamper.now(4).elapsed, Elapsed(expected), "{what}");
            clock.set(70_250, 0);
            assert_eq!(stamper.counted(4), Elapsed(expected + 250), "{what}");
            assert_eq!(stamper.counted(3), Elapsed(0), "{what}: not its term any more");
        }
    }

    #[test]
    fn the_wall_never_goes_back() {
        let clock = Arc::new(HandClock::default());
        let stamper = Stamper::new(clock.clone(), (Elapsed(0), WallTime::from_millis(9_000)));
        clock.set(0, 1_000);
        assert_eq!(stamper.now(1), stamps(0, 9_000));
        clock.set(10, 9_500);
        assert_eq!(stamper.now(1), stamps(10, 9_500));
    }

    #[test]
    fn entries_of_the_leader_before_us_move_our_count_forward() {
        let clock = Arc::new(HandClock::default());
        let stamper = Stamper::new(clock.clone(), (Elapsed(100), WallTime::default()));
        assert_eq!(stamper.now(3).elapsed, Elapsed(100));
        stamper.applied(2, (Elapsed(900), WallTime::default()));
        assert_eq!(stamper.now(3).elapsed, Elapsed(900));
        clock.set(50, 0);
        assert_eq!(stamper.now(3).elapsed, Elapsed(950));
    }
}
