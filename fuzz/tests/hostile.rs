//! Every target for a moment: bytes of chance, and seeds that were damaged.
#![allow(missing_docs, clippy::unwrap_used)]

use fuzz::Target;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Of each form, for each target.
const CASES: u32 = 300;
const BYTES_MAX: usize = 4 * 1024;

/// What happens to a seed.
#[derive(Clone, Debug)]
enum Damage {
    Set {
        at: prop::sample::Index,
        byte: u8,
    },
    Flip {
        at: prop::sample::Index,
        bit: u8,
    },
    Cut {
        at: prop::sample::Index,
    },
    Insert {
        at: prop::sample::Index,
        bytes: Vec<u8>,
    },
    Remove {
        at: prop::sample::Index,
        count: usize,
    },
    Repeat {
        at: prop::sample::Index,
        count: usize,
        times: usize,
    },
    /// From here on it is the end of another seed.
    Splice {
        at: prop::sample::Index,
        other: prop::sample::Index,
    },
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = || any::<prop::sample::Index>();
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Set { at, byte }),
        (at(), 0..8u8).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        at().prop_map(|at| Damage::Cut { at }),
        (at(), prop::collection::vec(any::<u8>(), 1..16))
            .prop_map(|(at, bytes)| Damage::Insert { at, bytes }),
        (at(), 1..16usize).prop_map(|(at, count)| Damage::Remove { at, count }),
        (at(), 1..32usize, 1..100usize).prop_map(|(at, count, times)| Damage::Repeat { at, count, times }),
        (at(), at()).prop_map(|(at, other)| Damage::Splice { at, other }),
    ]
}

fn damaged(mut bytes: Vec<u8>, damage: &Damage, seeds: &[Vec<u8>]) -> Vec<u8> {
    let place = |at: &prop::sample::Index, bytes: &[u8]| at.index(bytes.len() + 1);
    match damage {
        Damage::Set { at, byte } => {
            let at = place(at, &bytes);
            if let Some(there) = bytes.get_mut(at) {
                *there = *byte;
            }
        }
        Damage::Flip { at, bit } => {
            let at = place(at, &bytes);
            if let Some(there) = bytes.get_mut(at) {
                *there ^= 1 << bit;
            }
        }
        Damage::Cut { at } => bytes.truncate(place(at, &bytes)),
        Damage::Insert { at, bytes: more } => {
            let at = place(at, &bytes);
            bytes.splice(at..at, more.iter().copied());
        }
        Damage::Remove { at, count } => {
            let at = place(at, &bytes);
            let end = (at + count).min(bytes.len());
            bytes.drain(at..end);
        }
        Damage::Repeat { at, count, times } => {
            let at = place(at, &bytes);
            let piece = bytes[at..(at + count).min(bytes.len())].repeat(*times);
            bytes.splice(at..at, piece);
        }
        Damage::Splice { at, other } => {
            let other = &seeds[other.index(seeds.len())];
            let at = place(at, &bytes);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[at.min(other.len())..]);
        }
    }
    bytes
}

fn run(target: &Target) {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has no seeds", target.name);
    for seed in &seeds {
        (target.run)(seed);
    }
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    runner
        .run(&prop::collection::vec(any::<u8>(), 0..BYTES_MAX), |bytes| {
            (target.run)(&bytes);
            Ok(())
        })
        .unwrap();
    let damages = (any::<prop::sample::Index>(), prop::collection::vec(damage(), 1..6));
    runner
        .run(&damages, |(seed, damages)| {
            let seed = seeds[seed.index(seeds.len())].clone();
            let bytes = damages.iter().fold(seed, |bytes, damage| damaged(bytes, damage, &seeds));
            (target.run)(&bytes);
            Ok(())
        })
        .unwrap();
}

/// One test for each target, so that they run side by side and are named when they fail.
macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run(fuzz::target(stringify!($name)).unwrap());
        })*

        #[test]
        fn every_target_is_run_here() {
            let here = [$(stringify!($name)),*];
            assert!(fuzz::TARGETS.iter().map(|target| target.name).eq(here));
        }
    };
}

targets! { http_bodies tokens log checkpoint peer_frames snapshot config durations grpc }
