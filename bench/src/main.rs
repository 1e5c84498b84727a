//! Side by side with a peer, in one run on one machine: figures are ratios, never tests.
//!
//! `lifecycle`: enqueue, claim, ack over HTTP or over streams with fsync, beside Redis with its log synced at every
//! write. `depth`: what a million waiting tasks cost in memory, and how fast a restart is. `latency`: from an
//! enqueue to the waiting worker that gets it. `idle`: what nodes cost that have nothing to do. `idle-workers`: what
//! workers cost that wait.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a report is what this program is for")]

mod depth;
mod http;
mod http2;
mod idle;
mod idle_workers;
mod latency;
mod lifecycle;
mod messages;
mod process;
mod redis;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Benchmarks of Windlass")]
struct Args {
    /// The binary under test
    #[arg(long, default_value = "target/release/windlass")]
    windlass: PathBuf,
    /// Where servers keep their data: a real disk, or fsync costs nothing
    #[arg(long, default_value = "target/bench-data")]
    data: PathBuf,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Enqueue, claim and ack at once, beside Redis
    Lifecycle(lifecycle::Options),
    /// Memory, restart and stalls with many waiting tasks
    Depth(depth::Options),
    /// From an enqueue to the waiting worker that gets the task, at a fixed rate
    Latency(latency::Options),
    /// Processor time of nodes that have nothing to do
    Idle(idle::Options),
    /// Memory and processor time of a server whose workers wait
    IdleWorkers(idle_workers::Options),
}

fn main() -> Result<()> {
    let args = Args::parse();
    std::fs::create_dir_all(&args.data)?;
    // One thread: the servers need the other core more than the client does.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match args.what {
            What::Lifecycle(options) => lifecycle::run(&args.windlass, &args.data, options).await,
            What::Depth(options) => depth::run(&args.windlass, &args.data, options).await,
            What::Latency(options) => latency::run(&args.windlass, &args.data, options).await,
            What::Idle(options) => idle::run(&args.windlass, &args.data, options).await,
            What::IdleWorkers(options) => idle_workers::run(&args.windlass, &args.data, options).await,
        }
    })
}
