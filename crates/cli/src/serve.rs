//! `windlass serve`: a server, until it is asked to stop.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use node::{Node, NodeConfig};
use server::{Server, ServerConfig};
use storage::{RealDisk, ThreadExecutor};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;
use crate::output::print;
use crate::settings::{Flags, NodeFlags, Settings};

/// Run a server
///
/// Settings come from flags, else from WINDLASS_* variables, else from the TOML file, else from defaults.
/// SIGTERM and SIGINT stop it in order, with exit code 0.
#[derive(Args, Debug)]
pub(crate) struct Serve {
    #[command(flatten)]
    node: NodeFlags,
    #[command(flatten)]
    flags: Flags,
}

pub(crate) async fn run(args: Serve) -> Result<()> {
    let settings = Settings::load(args.flags, args.node)?;
    crate::log::init(settings.log);
    let mut stop = Stop::watch()?;
    let running = Running::start(&settings).await?;
    // Scripts that asked for port 0 read the address here; nobody has to.
    let _ = print(&format!("listening on http://{}", running.address));
    tracing::info!(address = %running.address, data = %settings.data.display(), shards = running.node.shards(), "ready");
    stop.asked().await;
    tracing::info!("stopping");
    running.stop().await?;
    tracing::info!("stopped");
    Ok(())
}

/// A node and the server before it.
pub(crate) struct Running {
    pub(crate) node: Node,
    pub(crate) address: SocketAddr,
    server: Server,
}

impl Running {
    /// Opens the data, then the port.
    pub(crate) async fn start(settings: &Settings) -> Result<Running> {
        let config =
            ServerConfig { listen: settings.listen, insecure: settings.insecure, ..ServerConfig::default() };
        check_listen(&config)?;
        let node = start_node(settings).await?;
        match Server::start(config, node.clone()).await {
            Ok(server) => Ok(Running { node, address: server.addr(), server }),
            Err(e) => {
                // Why we cannot listen is what the caller needs to know, whatever comes of the stop.
                if let Err(e) = node.stop().await {
                    tracing::warn!("the node did not stop in order: {e}");
                }
                Err(e.into())
            }
        }
    }

    /// Stops accepting, finishes what runs, writes what is left to the disk.
    pub(crate) async fn stop(self) -> Result<()> {
        self.server.stop().await;
        self.node.stop().await.context("the node did not stop in order")
    }
}

/// Says no before a data directory is made or opened for nothing. The server asks again when it binds.
fn check_listen(config: &ServerConfig) -> Result<()> {
    let addr = config.listen;
    if !config.insecure && !addr.ip().is_loopback() {
        return Err(Failure::usage(server::Error::Insecure { addr }.to_string()).into());
    }
    match std::net::TcpListener::bind(addr) {
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => Err(server::Error::PortInUse { addr }.into()),
        Err(source) => Err(server::Error::Bind { addr, source }.into()),
        Ok(_) => Ok(()),
    }
}

async fn start_node(settings: &Settings) -> Result<Node> {
    let disk = open_data(&settings.data)?;
    let mut config = NodeConfig::new(Arc::new(disk));
    config.node = model::NodeId(settings.node);
    config.shards = settings.shards;
    config.auto_create = settings.auto_create;
    config.memory_bytes_max = settings.memory_bytes_max;
    if let Some(bytes) = settings.disk_reserve_bytes {
        config.disk_reserve_bytes = bytes;
    }
    if let Some(bytes) = settings.envelope_cache_bytes {
        config.envelope_cache_bytes = bytes;
    }
    let clock = Arc::new(node::SystemClock::new());
    let started = Node::start(config, clock, Arc::new(ThreadExecutor)).await;
    started.with_context(|| format!("cannot start on {}", settings.data.display()))
}

fn open_data(dir: &Path) -> Result<RealDisk> {
    RealDisk::new(dir).with_context(|| format!("cannot use the data directory {}", dir.display()))
}

/// The signals that ask a server to stop.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// From now on these signals no longer end the process by themselves.
    pub(crate) fn watch() -> Result<Stop> {
        let terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
        Ok(Stop { terminate, interrupt })
    }

    /// Returns when one of them came.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
