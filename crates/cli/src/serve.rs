//! `windlass serve`: a server, until it is asked to stop.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use model::NodeId;
use node::{Node, NodeConfig};
use server::{PeerTls, Porch, Server, ServerConfig, TcpNetwork};
use storage::{RealDisk, ThreadExecutor};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::demo;
use crate::exit::Failure;
use crate::output::print;
use crate::peers::{Peers, is_loopback};
use crate::settings::{Flags, NodeFlags, Settings};
use crate::stdin_end;

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
    /// Stop when stdin ends: whoever started us has gone
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
    /// Run the worker of `windlass dev` too
    #[arg(long, hide = true)]
    demo_worker: bool,
}

impl Serve {
    /// What these flags, and what they leave to other sources, come to.
    pub(crate) fn settings(self) -> Result<Settings> {
        Settings::load(self.flags, self.node)
    }
}

pub(crate) async fn run(args: Serve) -> Result<()> {
    let Serve { until_stdin_ends, demo_worker, .. } = args;
    let settings = args.settings()?;
    crate::log::init(settings.log);
    let mut stop = Stop::watch()?;
    if until_stdin_ends {
        stop.with_stdin();
    }
    let Some(running) = Running::start(&settings, &mut stop).await? else {
        tracing::info!("stopped before it was ready");
        return Ok(());
    };
    // Scripts that asked for port 0 read the address here; nobody has to.
    let _ = print(&format!("listening on http://{}", running.address));
    tracing::info!(
        node = settings.node, address = %running.address, data = %settings.data.display(),
        shards = running.node.shards(), "ready"
    );
    let worker = match demo_worker {
        true => {
            Some(demo::start(running.node.clone(), &format!("{}-{}", demo::WORKER, settings.node)).await?)
        }
        false => None,
    };
    stop.asked().await;
    tracing::info!("stopping");
    if let Some(worker) = worker {
        worker.stop().await;
    }
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
    /// Takes the port, then opens the data and waits for what the node needs of its peers. Nothing when it was
    /// asked to stop meanwhile.
    pub(crate) async fn start(settings: &Settings, stop: &mut Stop) -> Result<Option<Running>> {
        let config =
            ServerConfig { listen: settings.listen, insecure: settings.insecure, ..ServerConfig::default() };
        if !config.insecure && !config.listen.ip().is_loopback() {
            let addr = config.listen;
            return Err(Failure::usage(server::Error::Insecure { addr }.to_string()).into());
        }
        if let Some(warning) = settings.peers.as_ref().and_then(Peers::warning) {
            tracing::warn!("{warning}");
        }
        let porch = Porch::open(config, NodeId(settings.node)).await?;
        let node = tokio::select! {
            node = start_node(settings, &porch) => node?,
            () = stop.asked() => return Ok(None),
        };
        match porch.enter(node.clone()).await {
            Ok(server) => Ok(Some(Running { node, address: server.addr(), server })),
            Err(e) => {
                // Why we cannot listen is what the caller needs to know, whatever comes of the stop.
                if let Err(e) = node.stop().await {
                    tracing::warn!("the node did not stop in order: {e}");
                }
                Err(e.into())
            }
        }
    }

    /// Hands leaderships over, so that nobody waits for this node any more; then stops accepting, finishes what
    /// runs, and writes what is left to the disk.
    pub(crate) async fn stop(self) -> Result<()> {
        self.node.hand_over().await;
        self.server.stop().await;
        self.node.stop().await.context("the node did not stop in order")
    }
}

async fn start_node(settings: &Settings, porch: &Porch) -> Result<Node> {
    // What can be refused is, before a data directory is made or opened for nothing.
    let network = settings.peers.as_ref().map(|peers| peer_network(peers, settings.insecure)).transpose()?;
    let disk = open_data(&settings.data)?;
    let mut config = NodeConfig::new(Arc::new(disk));
    config.node = NodeId(settings.node);
    config.shards = settings.shards;
    config.auto_create = settings.auto_create;
    config.memory_bytes_max = settings.memory_bytes_max;
    if let Some(bytes) = settings.disk_reserve_bytes {
        config.disk_reserve_bytes = bytes;
    }
    if let Some(bytes) = settings.envelope_cache_bytes {
        config.envelope_cache_bytes = bytes;
    }
    config.http_address = told_address(settings, porch.addr());
    if let Some((peers, network)) = settings.peers.as_ref().zip(network) {
        config.peers = peers.members.iter().map(|(node, address)| (NodeId(*node), address.clone())).collect();
        config.peer_address = peers.members[&settings.node].clone();
        config.bootstrap = peers.bootstrap;
        config.network = Some(Arc::new(network));
    }
    let mut progress = config.progress.subscribe();
    let clock = Arc::new(node::SystemClock::new());
    let start = Node::start(config, clock, Arc::new(ThreadExecutor));
    let tell = async {
        loop {
            let waits_for = progress.borrow_and_update().clone();
            if !waits_for.is_empty() {
                porch.waits_for(waits_for);
            }
            if progress.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    };
    let started = tokio::select! {
        started = start => started,
        never = tell => never,
    };
    started.with_context(|| format!("cannot start on {}", settings.data.display()))
}

/// Takes the peer port. Whatever is wrong with its files is a wrong setting.
fn peer_network(peers: &Peers, insecure: bool) -> Result<TcpNetwork> {
    let unfit = |error: server::Error| Failure::usage(error.to_string());
    let tls = peers.tls.as_ref().map(|tls| PeerTls::load(&tls.ca, &tls.cert, &tls.key));
    let tls = tls.transpose().map_err(unfit)?;
    Ok(TcpNetwork::bind(peers.listen, tls, insecure)?)
}

/// The HTTP address that others are told: what was asked for, else where we listen, if that means something
/// elsewhere. Nothing is told otherwise: others still forward to us, they only cannot redirect.
fn told_address(settings: &Settings, bound: SocketAddr) -> String {
    let own = settings.peers.as_ref().map(|peers| peers.members[&settings.node].as_str());
    let is_elsewhere = own.is_some_and(|own| !is_loopback(own));
    let means_nothing = bound.ip().is_unspecified() || (is_elsewhere && bound.ip().is_loopback());
    match &settings.advertise {
        Some(address) => address.clone(),
        None if !means_nothing => bound.to_string(),
        None => {
            if settings.peers.is_some() {
                tracing::warn!(
                    "others cannot be told where this node serves HTTP: say it with --advertise HOST:PORT"
                );
            }
            String::new()
        }
    }
}

fn open_data(dir: &Path) -> Result<RealDisk> {
    RealDisk::new(dir).with_context(|| format!("cannot use the data directory {}", dir.display()))
}

/// What asks a server to stop.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
    stdin_ended: CancellationToken,
}

impl Stop {
    /// From now on these signals no longer end the process by themselves.
    pub(crate) fn watch() -> Result<Stop> {
        let terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
        Ok(Stop { terminate, interrupt, stdin_ended: CancellationToken::new() })
    }

    /// The end of stdin counts as well.
    pub(crate) fn with_stdin(&self) {
        let ended = self.stdin_ended.clone();
        stdin_end::then(move || ended.cancel());
    }

    /// Returns when one of them came.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = self.stdin_ended.cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn others_are_told_an_http_address_that_they_can_reach() {
        for (peer, listen, flags, told) in [
            ("127.0.0.1:7421", "127.0.0.1:7420", "", "127.0.0.1:7420"),
            ("10.0.0.1:7421", "10.0.0.1:7420", "", "10.0.0.1:7420"),
            ("10.0.0.1:7421", "127.0.0.1:7420", "", ""),
            ("node-1:7421", "127.0.0.1:7420", "--peer-listen 0.0.0.0:7421", ""),
            ("10.0.0.1:7421", "0.0.0.0:7420", "", ""),
            ("10.0.0.1:7421", "127.0.0.1:7420", "--advertise proxy:80", "proxy:80"),
        ] {
            let line = format!(
                "windlass serve --node 1 --insecure --listen {listen} --cluster 1={peer},2=10.0.0.2:7421 {flags}"
            );
            let crate::Verb::Serve(serve) = crate::Cli::try_parse_from(line.split_whitespace()).unwrap().verb
            else {
                panic!("{line}")
            };
            let settings = serve.settings().unwrap();
            assert_eq!(told_address(&settings, settings.listen), told, "{line}");
        }
    }
}
