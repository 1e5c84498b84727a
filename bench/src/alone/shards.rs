//! The lifecycle with 1 to 16 shards: what more groups cost, and what they gain.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::load::Plan;
use crate::process::Server;
use crate::windlass::{Face, bench};

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[arg(long, num_args = 1.., default_values_t = [1, 2, 4, 8, 16])]
    shards: Vec<u16>,
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// How long each run takes
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

impl Options {
    pub(crate) fn new(nodes: usize, seconds: u64) -> Options {
        Options { shards: vec![1, 2, 4, 8, 16], nodes, seconds }
    }
}

pub(crate) async fn run(binary: &Path, data: &Path, options: &Options) -> Result<Value> {
    let mut figures = Vec::new();
    for &shards in &options.shards {
        let dir = tempfile::tempdir_in(data)?;
        let servers = Server::cluster(binary, dir.path(), options.nodes, shards)?;
        let mut figure = json!({"shards": shards, "nodes": options.nodes});
        for batch in [1, 100] {
            let duration = Some(Duration::from_secs(options.seconds));
            let plan = Plan { batch, duration, ..Plan::lifecycle() };
            let result = bench(binary, &servers[..1], Face::Streams, &plan).await?;
            figure[format!("per_s_at_{batch}")] = result["acked_per_s"].clone();
        }
        eprintln!("{figure}");
        figures.push(figure);
    }
    Ok(json!(figures))
}
