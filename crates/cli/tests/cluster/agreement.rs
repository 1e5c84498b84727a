//! Whether all copies of a cluster are the same in the end, and how often leaders changed on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::rig::{GroupView, NodeView, PATIENCE, Rig};

/// Waits until all nodes are ready and every group has the same applied index and the same state hash there on all
/// of them. Nothing may write meanwhile.
#[track_caller]
pub(crate) fn await_same(rig: &Rig) {
    let until = Instant::now() + PATIENCE;
    loop {
        match same(rig) {
            Ok(()) => break,
            Err(why) => assert!(Instant::now() < until, "P9: not the same everywhere: {why}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for n in rig.up() {
        assert!(!rig.log(n).contains("differs from the majority"), "P9: a copy of node {n} diverged");
    }
}

fn same(rig: &Rig) -> Result<(), String> {
    rig.leaders()?;
    let mut first: BTreeMap<u16, GroupView> = BTreeMap::new();
    for n in rig.up() {
        let view = rig.view(n).ok_or_else(|| format!("node {n} does not answer"))?;
        for group in view.groups {
            let hash_at = group.hash.as_ref().and_then(|hash| hash["index"].as_u64());
            if hash_at != Some(group.applied) {
                return Err(format!("node {n} has applied {} and a hash at {hash_at:?}", group.applied));
            }
            let other = first.entry(group.id).or_insert_with(|| group.clone());
            if (other.applied, &other.hash) != (group.applied, &group.hash) {
                return Err(format!("{other:?} and, on node {n}, {group:?}"));
            }
        }
    }
    Ok(())
}

/// Terms and their leaders, by group.
type Led = BTreeMap<u16, BTreeSet<(u64, u64)>>;

/// Looks at some nodes again and again, and notes who led each group in which term.
pub(crate) struct Watch {
    is_over: Arc<AtomicBool>,
    looking: Option<JoinHandle<Led>>,
}

impl Watch {
    /// Begins to look at these nodes.
    pub(crate) fn start(addresses: &[SocketAddr]) -> Watch {
        let (is_over, addresses) = (Arc::new(AtomicBool::new(false)), addresses.to_vec());
        let stop = is_over.clone();
        let looking = std::thread::spawn(move || {
            let mut seen = Led::new();
            let mut clients: Vec<_> = addresses.iter().map(|&at| crate::client::Client::of(at)).collect();
            while !stop.load(Ordering::SeqCst) {
                for client in &mut clients {
                    client.answer_max = Duration::from_millis(500);
                    let Ok(answer) = client.get("/v1/node") else { continue };
                    let Ok(view) = serde_json::from_value::<NodeView>(answer.body) else { continue };
                    for group in view.groups {
                        let led = group.leader.map(|leader| (group.term, leader));
                        seen.entry(group.id).or_default().extend(led);
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            seen
        });
        Watch { is_over, looking: Some(looking) }
    }

    /// How often the leader of each group changed: pairs of term and leader seen after the first.
    pub(crate) fn stop(mut self) -> BTreeMap<u16, usize> {
        self.is_over.store(true, Ordering::SeqCst);
        let seen = self.looking.take().unwrap().join().unwrap();
        seen.into_iter().map(|(group, led)| (group, led.len().saturating_sub(1))).collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}
