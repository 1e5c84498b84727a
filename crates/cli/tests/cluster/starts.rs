//! Cold starts: any order, empty directories or data, exactly one leader per group soon after.

use std::time::{Duration, Instant};

use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use crate::rig::{PATIENCE, Rig};

/// How long after the last start that the rules wait for every group has a leader.
const LEADERS_MAX: Duration = Duration::from_secs(3);

#[test]
fn three_nodes_start_in_any_order_and_agree_on_their_leaders() {
    let _alone = crate::alone();
    let mut chance = crate::chance("cold starts");
    let (mut empty, mut with_data) = (Vec::new(), Vec::new());
    for _ in 0..crate::rounds(3, 50) {
        let mut rig = Rig::new(3, &[]);
        empty.push(start_in_order(&mut rig, &mut chance, 3));
        for n in 0..3 {
            rig.kill(n);
        }
        // With data, two of three are a quorum; the third finds them.
        with_data.push(start_in_order(&mut rig, &mut chance, 2));
        let last = (0..3).find(|&n| !rig.is_up(n)).unwrap();
        rig.start(last);
        rig.await_ready(last);
        rig.await_leaders(PATIENCE);
    }
    let (_, worst) = crate::report("leaders after a cold start with empty directories", &mut empty);
    assert!(worst <= crate::most(LEADERS_MAX), "{worst:?}");
    let (_, worst) = crate::report("leaders after a cold start of two with data", &mut with_data);
    assert!(worst <= crate::most(LEADERS_MAX), "{worst:?}");
}

/// Starts `count` of three, in an order and with pauses left to chance; how long after the last start all groups had
/// their leaders.
fn start_in_order(rig: &mut Rig, chance: &mut StdRng, count: usize) -> Duration {
    let mut order = [0, 1, 2];
    order.shuffle(chance);
    for &n in &order[..count] {
        std::thread::sleep(Duration::from_millis(chance.random_range(0..300)));
        rig.start(n);
    }
    let last = Instant::now();
    let leaders = rig.await_leaders(PATIENCE);
    let took = last.elapsed();
    assert_eq!(leaders.len(), 5, "the catalog and four shards: {leaders:?}");
    took
}
