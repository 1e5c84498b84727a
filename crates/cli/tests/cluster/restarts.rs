//! A rolling restart under load: a client that knows all nodes notices nothing.

use std::time::Duration;

use crate::load::{Load, Shape};
use crate::rig::{PATIENCE, Rig};
use crate::{check, report};

#[test]
fn a_rolling_restart_under_load_fails_no_request() {
    let _alone = crate::alone();
    let mut rig = Rig::started(3, &[]);
    let load = Load::start(&rig.addresses(), Shape::default());
    for _ in 0..crate::rounds(1, 5) {
        for n in 0..3 {
            load.flow(200);
            assert_eq!(rig.stop(n), Some(0), "a graceful stop exits with 0");
            load.flow(100);
            rig.start(n);
            rig.await_ready(n);
            rig.await_leaders(PATIENCE);
        }
    }
    let history = load.stop();
    check::all(&history);
    check::counted(&history, &mut rig.client());
    check::nothing_failed(&history);
    let mut took: Vec<Duration> =
        history.enqueued.values().map(|write| write.answered.duration_since(write.sent)).collect();
    report("an enqueue during the rolling restart", &mut took);
}
