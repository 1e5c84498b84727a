//! Side by side with its peers, in one run on one machine: figures are ratios, never tests.
//!
//! `compare`: the same work on Windlass and on other queues, in one JSON file with a table and plots. The others
//! show what concerns Windlass alone. The load itself comes from `windlass bench`; only the peers have a client
//! here, in `peers/`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a report is what this program is for")]

mod alone;
mod compare;
#[path = "../../crates/cli/src/bench/load.rs"]
#[allow(dead_code, reason = "the command needs more of it")]
mod load;
#[path = "../../crates/cli/src/bench/pace.rs"]
mod pace;
mod peers;
mod process;
mod windlass;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Benchmarks of Windlass")]
struct Args {
    /// The binary under test
    #[arg(long, global = true, default_value = "target/release/windlass")]
    windlass: PathBuf,
    /// Where servers keep their data: a real disk, or fsync costs nothing
    #[arg(long, global = true, default_value = "target/bench-data")]
    data: PathBuf,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The same work on Windlass and on its peers
    Compare(compare::Options),
    /// Memory, disk, rates, recovery and stalls with many waiting tasks
    Depth(alone::depth::Options),
    /// The lifecycle with 1 to 16 shards
    Shards(alone::shards::Options),
    /// Processor time of nodes that have nothing to do
    Idle(alone::idle::Options),
    /// Memory and processor time of a server whose workers wait
    IdleWorkers(alone::idle_workers::Options),
    /// The longest stall of a shard by a checkpoint, at full load
    Stall(alone::stall::Options),
    /// Draws the table and the plots of a result again
    Draw {
        /// A file that `compare` wrote
        file: PathBuf,
    },
}

fn main() -> Result<()> {
    let args = Args::parse();
    std::fs::create_dir_all(&args.data)?;
    // Servers of other users must find the way whatever the current directory is.
    let data = args.data.canonicalize()?;
    // One thread: the servers need the other core more than the client does.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let show = |figures: serde_json::Value| {
        println!("{figures:#}");
        anyhow::Ok(())
    };
    let binary = args.windlass.as_path();
    runtime.block_on(async {
        match args.what {
            What::Compare(options) => compare::run(binary, &data, options).await,
            What::Depth(options) => show(alone::depth::run(binary, &data, &options).await?),
            What::Shards(options) => show(alone::shards::run(binary, &data, &options).await?),
            What::Idle(options) => show(alone::idle::run(binary, &data, &options).await?),
            What::IdleWorkers(options) => show(alone::idle_workers::run(binary, &data, &options).await?),
            What::Stall(options) => show(alone::stall::run(binary, &data, &options).await?),
            What::Draw { file } => compare::draw(&file),
        }
    })
}
