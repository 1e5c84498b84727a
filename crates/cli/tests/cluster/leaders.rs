//! A leader dies under load: nothing that was answered is lost, and writes go on soon.

use std::time::{Duration, Instant};

use rand::Rng as _;

use crate::load::{Load, Shape};
use crate::rig::{PATIENCE, Rig, until};
use crate::{check, report};

/// Time without successful writes to the shards that the dead node led.
const OUTAGE_MEDIAN_MAX: Duration = Duration::from_secs(1);
const OUTAGE_MAX: Duration = Duration::from_secs(3);

#[test]
fn a_leader_killed_under_load_loses_nothing_and_writes_go_on() {
    let _alone = crate::alone();
    let mut chance = crate::chance("leader kills");
    let mut rig = Rig::started(3, &[]);
    let load = Load::start(&rig.addresses(), Shape::default());
    let mut outages = Vec::new();
    for _ in 0..crate::rounds(3, 30) {
        load.flow(200);
        std::thread::sleep(Duration::from_millis(chance.random_range(0..300)));
        let (victim, led) = rig.busiest();
        let shards: Vec<u16> = led.into_iter().filter(|group| *group > 0).collect();
        assert!(!shards.is_empty(), "the busiest node leads something");
        rig.kill(victim);
        let killed = Instant::now();
        let mut first = Vec::new();
        until("writes go on", || {
            first = load.first_writes(killed, &shards).unwrap_or_default();
            !first.is_empty()
        });
        outages.push(first.iter().max().unwrap().duration_since(killed));
        rig.start(victim);
        rig.await_ready(victim);
        rig.await_leaders(PATIENCE);
    }
    let history = load.stop();
    check::all(&history);
    check::counted(&history, &mut rig.client());
    check::nothing_failed(&history);
    let (median, worst) = report("without successful writes after a leader's death", &mut outages);
    assert!(median <= crate::most(OUTAGE_MEDIAN_MAX), "{median:?}");
    assert!(worst <= crate::most(OUTAGE_MAX), "{worst:?}");
}
