//! Everything that reads bytes from outside, called with bytes that nobody would send.
//!
//! Each file is one target: a function that takes any bytes, and seeds that look like what people and nodes really send.
//! `make fuzz` runs a target under libFuzzer, which looks for new paths; `tests/hostile.rs` runs all of them for a
//! moment with random and with damaged seeds. A target that panics has found a bug. Beyond that each one holds: memory
//! follows the bytes that came, not what they announce; what was read and written is read the same again; what was
//! refused says why, and changed nothing.

mod allocation;
mod checkpoint;
mod config;
mod durations;
mod grpc;
mod http_bodies;
mod log;
mod peer_frames;
mod pieces;
mod snapshot;
mod tokens;

// The binary has no library: these two files of it need nothing else of it.
#[allow(dead_code)]
#[path = "../../crates/cli/src/config_file.rs"]
mod config_file;
#[allow(dead_code)]
#[path = "../../crates/cli/src/span.rs"]
mod span;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// Something that reads bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, as `make fuzz TARGET=…` takes it.
    pub name: &'static str,
    /// Reads these bytes; a panic is a bug.
    pub run: fn(&[u8]),
    /// Bytes like those that are really sent.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "http_bodies", run: http_bodies::run, seeds: http_bodies::seeds },
    Target { name: "tokens", run: tokens::run, seeds: tokens::seeds },
    Target { name: "log", run: log::run, seeds: log::seeds },
    Target { name: "checkpoint", run: checkpoint::run, seeds: checkpoint::seeds },
    Target { name: "peer_frames", run: peer_frames::run, seeds: peer_frames::seeds },
    Target { name: "snapshot", run: snapshot::run, seeds: snapshot::seeds },
    Target { name: "config", run: config::run, seeds: config::seeds },
    Target { name: "durations", run: durations::run, seeds: durations::seeds },
    Target { name: "grpc", run: grpc::run, seeds: grpc::seeds },
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// A refusal says something, in a length that can be sent back and logged.
fn says_why(text: &str) {
    const REFUSAL_BYTES_MAX: usize = 8 * 1024;
    assert!(!text.trim().is_empty(), "a refusal that says nothing");
    assert!(text.len() <= REFUSAL_BYTES_MAX, "a refusal of {} bytes", text.len());
}
