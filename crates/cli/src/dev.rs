//! `windlass dev`: a server on a laptop, with something to look at in the first minute.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::demo;
use crate::exit::Failure;
use crate::output::print;
use crate::serve::{Running, Stop};
use crate::settings::{Flags, NodeFlags, Settings};

/// Run a server on this machine, with a built-in worker on the queue `demo`
///
/// The data is kept in ./windlass-data unless --data says otherwise.
#[derive(Args, Debug)]
pub(crate) struct Dev {
    #[command(flatten)]
    flags: Flags,
    /// Keep nothing: the data goes to a directory that is removed at the end
    #[arg(long)]
    ephemeral: bool,
    /// How many server processes; this version runs one
    #[arg(long, value_name = "N", default_value_t = 1)]
    nodes: u16,
}

pub(crate) async fn run(args: Dev) -> Result<()> {
    if args.nodes != 1 {
        let message = format!(
            "{} nodes come with the cluster release, this one runs one: leave --nodes out",
            args.nodes
        );
        return Err(Failure::usage(message).into());
    }
    let mut settings = Settings::load(args.flags, NodeFlags::default())?;
    crate::log::init(settings.log);
    let mut stop = Stop::watch()?;
    let scratch = args.ephemeral.then(Scratch::new).transpose()?;
    if let Some(scratch) = &scratch {
        settings.data = scratch.0.clone();
    }
    let running = Running::start(&settings).await?;
    let worker = demo::start(running.node.clone()).await?;
    greet(&settings, &running);
    stop.asked().await;
    worker.stop().await;
    running.stop().await
}

fn greet(settings: &Settings, running: &Running) {
    let address = running.address;
    let data = std::path::absolute(&settings.data).unwrap_or_else(|_| settings.data.clone());
    let binary = std::env::args_os()
        .next()
        .map_or_else(|| "windlass".into(), |arg| arg.to_string_lossy().into_owned());
    let server = if settings.listen == server::ServerConfig::default().listen {
        String::new()
    } else {
        format!(" --server http://{address}")
    };
    let (version, shards, data) = (env!("CARGO_PKG_VERSION"), running.node.shards(), data.display());
    let greeting = format!(
        "windlass {version} is ready
  data     {data} ({shards} shards)
  address  http://{address}
  api      http://{address}/openapi.json

try in another terminal:
  {binary} enqueue demo hello '{{\"name\":\"Ada\"}}' --wait{server}
  curl -s http://{address}/v1/queues/demo/tasks -d '{{\"kind\":\"hello\",\"payload\":{{}}}}'

stop with Ctrl-C"
    );
    // Nobody has to read it: the server serves all the same.
    let _ = print(&greeting);
}

/// A directory of our own below the system's temporary one, removed when this goes.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        let name = format!("windlass-dev-{}-{:08x}", std::process::id(), rand::random::<u32>());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!("cannot remove {}: {e}", self.0.display());
        }
    }
}
