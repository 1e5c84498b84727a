//! The clock that replicas stamp with: this node's own, as long as the others agree with it.
//!
//! Wall time enters the state by the leader's clock and never goes back there: one stamp of a clock that is an
//! hour ahead makes every delayed task of that hour early. So a node compares its clock with what the others
//! told of theirs (`status.rs`), and one that is more than [`HOLD`] off the median of all stamps with the
//! median. `elapsed`, which counts deadlines and backoffs, is nobody's wall clock and passes through.
//!
//! A clock is kept as its *base*: what it said when this process began to count. Two clocks that run alike have
//! bases that stand still, however old the message was, and a node that fell silent still has a voice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use model::{Millis, NodeId, WallTime};
use parking_lot::Mutex;
use replica::{Clock, Moved};

use crate::info::ClockInfo;

/// How far from the median a clock may be.
pub(crate) const HOLD: Millis = Millis::secs(5);
/// A clock that was off is said to be right again only this close, so that the words do not flutter.
const RIGHT_AGAIN: Millis = Millis::secs(4);
/// A step of the own clock that is worth a word.
const JUMP: Millis = Millis::secs(1);
/// A longer way says more of queues than of the way.
const HALF_ROUND_TRIP_MAX: Millis = Millis(50);
/// How long a process that begins waits for a third clock before it goes by its own.
const CAUTION: Millis = Millis::secs(5);
/// How many messages of a node are kept, to know its clock by.
const HEARD_KEPT: usize = 4;
/// Two messages in a row are seldom so equally late: who says the same twice means it.
const AGREE: Millis = Millis(100);

/// This node's clock, held to the others'.
pub(crate) struct HeldClock {
    own: Arc<dyn Clock>,
    heard: Mutex<Heard>,
    jumps: AtomicU64,
    /// Whether it was said that the clock is off; stamping does not go by it.
    is_told: AtomicBool,
}

#[derive(Default)]
struct Heard {
    /// The last few bases of each other node.
    bases: BTreeMap<NodeId, Vec<i64>>,
    others: Others,
    /// Nodes of the cluster, this one included.
    nodes: usize,
    /// The own base at the last look.
    last: Option<i64>,
}

/// What the own base is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Others {
    /// Nobody was heard.
    #[default]
    Nobody,
    /// One other clock: nobody knows which of the two is right.
    One(i64),
    /// The bases between which the own one is itself the median.
    Middle { low: i64, high: i64 },
}

impl Others {
    /// Bases of other nodes, in any order.
    fn of(mut bases: Vec<i64>) -> Others {
        bases.sort_unstable();
        // With the own one in it the list has one more. Of two in the middle the lower is the median: rather a
        // little late than early.
        let middle = bases.len() / 2;
        match bases[..] {
            [] => Others::Nobody,
            [one] => Others::One(one),
            _ => Others::Middle { low: bases[middle - 1], high: bases[middle] },
        }
    }

    /// The median of all, if there are enough to have one.
    fn median(self, own: i64) -> Option<i64> {
        match self {
            Others::Nobody | Others::One(_) => None,
            Others::Middle { low, high } => Some(own.clamp(low, high)),
        }
    }

    /// The base to stamp with.
    fn hold(self, own: i64, cautious: bool) -> i64 {
        match (self, self.median(own)) {
            (_, Some(median)) if own.abs_diff(median) > HOLD.0 => median,
            // A third clock is about to be heard: until then, rather late than early.
            (Others::One(other), _) if cautious && own.abs_diff(other) > HOLD.0 => own.min(other),
            _ => own,
        }
    }
}

impl HeldClock {
    /// Over the real clock; with nobody heard it is that one.
    pub(crate) fn new(own: Arc<dyn Clock>) -> HeldClock {
        HeldClock { own, heard: Mutex::default(), jumps: AtomicU64::new(0), is_told: AtomicBool::new(false) }
    }

    /// What the own clock says, held to nobody's: this is what others are told.
    pub(crate) fn own_wall(&self) -> WallTime {
        self.own.wall()
    }

    /// Another node's clock said `wall` when it sent what arrived now.
    pub(crate) fn hear(&self, node: NodeId, wall: WallTime, round_trip: Duration) {
        let half = (round_trip.as_millis() as u64 / 2).min(HALF_ROUND_TRIP_MAX.0);
        let base = signed(wall.millis()) + signed(half) - signed(self.own.elapsed().0);
        let mut heard = self.heard.lock();
        let bases = heard.bases.entry(node).or_default();
        if bases.len() == HEARD_KEPT {
            bases.remove(0);
        }
        bases.push(base);
        heard.sort();
    }

    /// These nodes make up the cluster, this one included; what was heard of others is forgotten.
    pub(crate) fn set_nodes(&self, nodes: &BTreeSet<NodeId>) {
        let mut heard = self.heard.lock();
        heard.nodes = nodes.len();
        let before = heard.bases.len();
        heard.bases.retain(|node, _| nodes.contains(node));
        if heard.bases.len() != before {
            heard.sort();
        }
    }

    /// Looks for jumps and for a clock that is off, and says so once.
    pub(crate) fn look(&self) {
        let own = self.base();
        let mut heard = self.heard.lock();
        if let Some(last) = heard.last.replace(own)
            && own.abs_diff(last) > JUMP.0
        {
            self.jumps.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(by_ms = own - last, "the clock of this machine jumped");
        }
        let off = heard.others.median(own).map_or(0, |median| own - median);
        drop(heard);
        let was_off = self.is_told.load(Ordering::Relaxed);
        let is_off = off.unsigned_abs() > if was_off { RIGHT_AGAIN.0 } else { HOLD.0 };
        if is_off != was_off {
            self.is_told.store(is_off, Ordering::Relaxed);
            if is_off {
                tracing::warn!(
                    off_ms = off,
                    "this node's clock is far from the other nodes' median, which is used in its place: set the clock"
                );
            } else {
                tracing::info!(off_ms = off, "this node's clock is near the other nodes' again");
            }
        }
    }

    /// How all clocks are.
    pub(crate) fn info(&self, me: NodeId) -> ClockInfo {
        let own = self.base();
        let heard = self.heard.lock();
        let median = heard.others.median(own);
        let newest = |bases: &Vec<i64>| bases.last().copied();
        let nodes = heard.bases.iter().filter_map(|(node, bases)| Some((*node, newest(bases)?)));
        let offsets = nodes.chain([(me, own)]).map(|(node, base)| (node, base - median.unwrap_or(own)));
        ClockInfo {
            is_median_known: median.is_some(),
            is_held: median.is_some_and(|median| own.abs_diff(median) > HOLD.0),
            jumps: self.jumps.load(Ordering::Relaxed),
            offsets_ms: offsets.collect(),
        }
    }

    fn base(&self) -> i64 {
        signed(self.own.wall().millis()) - signed(self.own.elapsed().0)
    }
}

impl Clock for HeldClock {
    fn elapsed(&self) -> Millis {
        self.own.elapsed()
    }

    fn wall(&self) -> WallTime {
        let elapsed = self.own.elapsed();
        let own = signed(self.own.wall().millis()) - signed(elapsed.0);
        let heard = self.heard.lock();
        let cautious = heard.nodes > 2 && elapsed < CAUTION;
        let base = heard.others.hold(own, cautious);
        WallTime::from_millis((base + signed(elapsed.0)).max(0) as u64)
    }

    fn moved(&self) -> Moved<'_> {
        self.own.moved()
    }
}

impl Heard {
    fn sort(&mut self) {
        self.others = Others::of(self.bases.values().filter_map(|bases| believed(bases)).collect());
    }
}

/// The base of a clock by the last few messages, oldest first. The one with the shortest way counts, for being late
/// makes a clock look slow. But when the last two agree, one before them that is far ahead of both was not more
/// punctual: the clock was set back since. Its node may fall silent now, and is believed for long.
fn believed(bases: &[i64]) -> Option<i64> {
    let newest = *bases.last()?;
    let agrees = |before: &[i64]| before.last().is_some_and(|base| base.abs_diff(newest) <= AGREE.0);
    let was_set_back = |base: i64| base > newest && base.abs_diff(newest) > JUMP.0;
    let is_sure = agrees(&bases[..bases.len() - 1]);
    bases.iter().copied().filter(|base| !(is_sure && was_set_back(*base))).max()
}

/// Milliseconds as a number that can be taken from another; both times end long before it does.
fn signed(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;
    const NOON: i64 = 1_763_208_000_000;

    /// A clock that is set by hand.
    struct HandClock {
        elapsed: AtomicU64,
        wall: AtomicU64,
    }

    impl HandClock {
        fn new(wall: i64) -> Arc<HandClock> {
            Arc::new(HandClock { elapsed: AtomicU64::new(60_000), wall: AtomicU64::new(wall as u64) })
        }

        fn pass(&self, millis: u64) {
            self.elapsed.fetch_add(millis, Ordering::Relaxed);
            self.wall.fetch_add(millis, Ordering::Relaxed);
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

    fn nodes(count: u64) -> BTreeSet<NodeId> {
        (1..=count).map(NodeId).collect()
    }

    fn hear(clock: &HeldClock, node: u64, wall: i64) {
        clock.hear(NodeId(node), WallTime::from_millis(wall as u64), Duration::ZERO);
    }

    fn off(clock: &HeldClock) -> i64 {
        clock.wall().millis() as i64 - NOON
    }

    #[test]
    fn a_clock_is_held_within_five_seconds_of_the_median() {
        for (what, own, others, expected) in [
            ("alone", HOUR, &[][..], HOUR),
            ("two clocks: nobody knows who is right", HOUR, &[0], HOUR),
            ("two clocks, the own one behind", -HOUR, &[0], -HOUR),
            ("all agree", 0, &[0, 0], 0),
            ("a little ahead", 4_900, &[0, 0], 4_900),
            ("a little behind", -4_900, &[0, 0], -4_900),
            ("exactly five seconds", 5_000, &[0, 0], 5_000),
            ("just over", 5_001, &[0, 0], 0),
            ("an hour ahead", HOUR, &[0, 10], 10),
            ("an hour behind", -HOUR, &[0, 10], 0),
            ("another is an hour ahead", 0, &[HOUR, 10], 0),
            ("another is an hour behind", 0, &[-HOUR, 10], 0),
            ("own behind all, another far ahead", -8_000, &[0, HOUR], 0),
            ("four, the own one wrong", HOUR, &[0, 10, 20], 10),
            ("four, two wrong: the lower middle", HOUR, &[HOUR, 10, 20], 20),
            ("five, two wrong", HOUR, &[HOUR, 0, 10, 20], 20),
            ("all far apart: the one in the middle is right by its place", 0, &[-HOUR, HOUR], 0),
        ] {
            let clock = HeldClock::new(HandClock::new(NOON + own));
            clock.set_nodes(&nodes(others.len() as u64 + 1));
            for (n, other) in others.iter().enumerate() {
                hear(&clock, n as u64 + 2, NOON + other);
            }
            assert_eq!(off(&clock), expected, "{what}");
        }
    }

    #[test]
    fn what_was_heard_runs_on_by_the_time_that_does_not_jump() {
        let hand = HandClock::new(NOON + HOUR);
        let clock = HeldClock::new(hand.clone());
        clock.set_nodes(&nodes(3));
        clock.hear(NodeId(2), WallTime::from_millis(NOON as u64), Duration::from_millis(20));
        clock.hear(NodeId(3), WallTime::from_millis(NOON as u64), Duration::from_secs(9));
        // Both fell silent long ago, one of them told it over a slow way.
        hand.pass(600_000);
        assert_eq!(off(&clock), 600_050);
        hand.wall.store((NOON + 600_010) as u64, Ordering::Relaxed);
        assert_eq!(off(&clock), 600_010, "a clock that is set right counts at once");
        clock.set_nodes(&nodes(1));
        hand.wall.store((NOON + 2 * HOUR) as u64, Ordering::Relaxed);
        assert_eq!(off(&clock), 2 * HOUR, "nodes that left have no voice");
    }

    #[test]
    fn a_message_that_was_late_does_not_make_a_clock_slow() {
        let hand = HandClock::new(NOON + HOUR);
        let clock = HeldClock::new(hand.clone());
        clock.set_nodes(&nodes(3));
        for late in [0, 700, 900] {
            hear(&clock, 2, NOON - late);
            hear(&clock, 3, NOON - late);
        }
        assert_eq!(off(&clock), 0);
        for _ in 0..HEARD_KEPT {
            hear(&clock, 2, NOON - 2 * HOUR);
        }
        assert_eq!(off(&clock), 0, "one node's clock was really set back, the others decide");
    }

    #[test]
    fn a_clock_that_was_set_back_before_its_node_fell_silent_counts_as_it_was_set() {
        for (what, told, expected) in [
            ("set back, and said so twice", &[HOUR, HOUR, 0, 0][..], 0),
            ("not quite the same twice", &[HOUR, HOUR, 0, 90], 90),
            ("said once, which may be a message that was late", &[HOUR, HOUR, HOUR, 0], HOUR),
            ("two late ones that waited for each other", &[HOUR, HOUR, 0, 500], HOUR),
            ("the shortest way counts still", &[HOUR, 0, -40, -60], 0),
            ("set ahead, which no way explains", &[0, 0, 0, HOUR], HOUR),
        ] {
            let clock = HeldClock::new(HandClock::new(NOON + HOUR));
            clock.set_nodes(&nodes(3));
            hear(&clock, 3, NOON);
            told.iter().for_each(|off| hear(&clock, 2, NOON + off));
            assert_eq!(off(&clock), expected, "{what}");
        }
    }

    #[test]
    fn a_process_that_begins_stamps_nothing_early_before_it_has_heard_a_third() {
        for (what, count, elapsed, own, expected) in [
            ("ahead of the one that was heard", 3, 100, HOUR, 0),
            ("behind it", 3, 100, -HOUR, -HOUR),
            ("near it", 3, 100, 3_000, 3_000),
            ("a cluster of two has no third", 2, 100, HOUR, HOUR),
            ("nobody else came", 3, 5_000, HOUR, HOUR),
        ] {
            let hand = HandClock::new(NOON + own);
            hand.elapsed.store(elapsed, Ordering::Relaxed);
            let clock = HeldClock::new(hand);
            clock.set_nodes(&nodes(count));
            hear(&clock, 2, NOON);
            assert_eq!(off(&clock), expected, "{what}");
        }
    }

    /// Three nodes that tell each other twice a second and lead in turn, five seconds each. What is stamped
    /// never goes back, so the furthest error is kept for good.
    #[test]
    fn with_one_clock_an_hour_wrong_no_leader_stamps_early_or_late() {
        for (what, wrong) in [
            ("one ahead", [HOUR, 0, 0]),
            ("one behind", [0, -HOUR, 0]),
            ("ahead and behind", [HOUR, -HOUR, 0]),
            ("one ahead, the others not quite alike", [300, HOUR, 0]),
        ] {
            let hands: Vec<_> = wrong.iter().map(|off| HandClock::new(NOON + off)).collect();
            let clocks: Vec<_> = hands.iter().map(|hand| HeldClock::new(hand.clone())).collect();
            clocks.iter().for_each(|clock| clock.set_nodes(&nodes(3)));
            let mut stamp = 0;
            for tick in 0..120usize {
                for (n, clock) in clocks.iter().enumerate() {
                    for (other, hand) in hands.iter().enumerate().filter(|(other, _)| *other != n) {
                        hear(clock, other as u64 + 1, hand.wall().millis() as i64);
                    }
                }
                let leader = &clocks[(tick / 10) % 3];
                let truth = NOON + 500 * tick as i64;
                stamp = stamp.max(leader.wall().millis() as i64);
                assert!((truth..=truth + 300).contains(&stamp), "{what}, tick {tick}: {}", stamp - truth);
                hands.iter().for_each(|hand| hand.pass(500));
            }
        }
    }

    #[test]
    fn jumps_are_counted_and_slow_corrections_are_not() {
        let hand = HandClock::new(NOON);
        let clock = HeldClock::new(hand.clone());
        clock.look();
        for (what, step, jumps) in [
            ("time passes", 500, 0),
            ("slewed", 500 + 900, 0),
            ("slewed again", 500 + 900, 0),
            ("a jump ahead", 500 + HOUR, 1),
            ("it goes on", 500, 1),
            ("a jump back", 500 - HOUR, 2),
        ] {
            hand.elapsed.fetch_add(500, Ordering::Relaxed);
            let wall = hand.wall.load(Ordering::Relaxed) as i64 + step;
            hand.wall.store(wall as u64, Ordering::Relaxed);
            clock.look();
            assert_eq!(clock.info(NodeId(1)).jumps, jumps, "{what}");
        }
    }

    #[test]
    fn all_clocks_are_told_by_their_distance_from_the_median() {
        let clock = HeldClock::new(HandClock::new(NOON + HOUR));
        clock.set_nodes(&nodes(3));
        hear(&clock, 2, NOON);
        let info = clock.info(NodeId(1));
        assert_eq!((info.is_median_known, info.offsets_ms[&NodeId(2)]), (false, -HOUR));
        hear(&clock, 3, NOON + 10);
        clock.look();
        let info = clock.info(NodeId(1));
        assert!(info.is_median_known && info.is_held);
        let offsets: Vec<i64> = info.offsets_ms.into_values().collect();
        assert_eq!(offsets, [HOUR - 10, -10, 0]);
    }
}
