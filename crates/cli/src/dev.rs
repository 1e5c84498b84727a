//! `windlass dev`: a server on a laptop, with something to look at in the first minute. Several of them are in
//! `dev/nodes.rs`.

mod nodes;

use anyhow::Result;
use clap::Args;

use crate::demo;
use crate::exit::Failure;
use crate::output::print;
use crate::scratch::Scratch;
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
    /// How many server processes: with 3, on ports 7420, 7430 and 7440, or from that of --listen on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=7))]
    nodes: u16,
    /// With --nodes: start a node again when it has ended
    #[arg(long)]
    restart: bool,
}

pub(crate) async fn run(args: Dev) -> Result<()> {
    if args.restart && args.nodes == 1 {
        return Err(Failure::usage("--restart is for several nodes: add --nodes 3").into());
    }
    let mut settings = Settings::load(args.flags, NodeFlags::default())?;
    crate::log::init(settings.log);
    let mut stop = Stop::watch()?;
    let scratch = args.ephemeral.then(|| Scratch::new("dev")).transpose()?;
    if let Some(scratch) = &scratch {
        settings.data = scratch.path().to_owned();
    }
    if args.nodes > 1 {
        let restart = if args.restart { nodes::Restart::Always } else { nodes::Restart::Never };
        return nodes::run(&settings, args.nodes, restart, &mut stop).await;
    }
    let Some(running) = Running::start(&settings, &mut stop).await? else { return Ok(()) };
    let worker = demo::start(running.node.clone(), demo::WORKER).await?;
    greet(&settings, &running);
    stop.asked().await;
    worker.stop().await;
    running.stop().await
}

fn greet(settings: &Settings, running: &Running) {
    let address = running.address;
    let data = std::path::absolute(&settings.data).unwrap_or_else(|_| settings.data.clone());
    let binary = own_name();
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

/// What we were called by.
fn own_name() -> String {
    std::env::args_os().next().map_or_else(|| "windlass".into(), |arg| arg.to_string_lossy().into_owned())
}
