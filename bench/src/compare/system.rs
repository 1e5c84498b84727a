//! The systems: what each is called, what its answer promises, how a plan is run on it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::start;
use crate::load::Plan;
use crate::peers;
use crate::process::Server;
use crate::windlass::{self, Face};

/// Shards of Windlass.
const SHARDS: u16 = 4;

/// One of those that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum System {
    Windlass3,
    Windlass1,
    WindlassHttp3,
    WindlassHttp3Spread,
    WindlassHttp1,
    Rabbitmq,
    Nats,
    Redis,
    Beanstalkd,
    Postgres,
    Bullmq,
    Celery,
    Faktory,
}

impl System {
    pub(crate) fn all() -> Vec<System> {
        <System as clap::ValueEnum>::value_variants().to_vec()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            System::Windlass3 => "Windlass, 3 nodes",
            System::Windlass1 => "Windlass, 1 node",
            System::WindlassHttp3 => "Windlass over HTTP, 3 nodes",
            System::WindlassHttp3Spread => "Windlass over HTTP, 3 nodes, clients at all",
            System::WindlassHttp1 => "Windlass over HTTP, 1 node",
            System::Rabbitmq => "RabbitMQ quorum queue, 3 nodes",
            System::Nats => "NATS JetStream R3, 3 nodes",
            System::Redis => "Redis lists, 1 node",
            System::Beanstalkd => "beanstalkd, 1 node",
            System::Postgres => "PostgreSQL SKIP LOCKED, 1 node",
            System::Bullmq => "BullMQ on Redis, 1 node",
            System::Celery => "Celery on Redis, 1 node",
            System::Faktory => "Faktory, 1 node",
        }
    }

    /// What is safe where when an enqueue is answered.
    pub(crate) fn durability(self) -> &'static str {
        match self {
            System::Windlass3 | System::WindlassHttp3 | System::WindlassHttp3Spread => {
                "fsync on a quorum (2 of 3); acks too"
            }
            System::Windlass1 | System::WindlassHttp1 => "fsync on 1; acks too",
            System::Rabbitmq => "fsync on a quorum (2 of 3), by publisher confirm; acks are not answered",
            System::Nats => "in memory of a quorum (2 of 3), no fsync before the reply; acks too",
            System::Redis => "fsync on 1 (appendfsync always); acks too",
            System::Beanstalkd => "fsync on 1 (-f0); deletes too",
            System::Postgres => "fsync on 1 (synchronous_commit on); acks too",
            System::Bullmq | System::Celery => "fsync on 1 (Redis, appendfsync always)",
            System::Faktory => "its own Redis: snapshots every few minutes, no fsync before the reply",
        }
    }

    /// Nodes that keep a copy.
    pub(crate) fn nodes(self) -> usize {
        match self {
            System::Windlass3 | System::WindlassHttp3 | System::WindlassHttp3Spread => 3,
            System::Rabbitmq | System::Nats => 3,
            _ => 1,
        }
    }

    /// The command that tells its version.
    pub(crate) fn version_command(self) -> &'static [&'static str] {
        match self {
            System::Rabbitmq => &["dpkg-query", "-W", "-f=${Version}", "rabbitmq-server"],
            System::Nats => &["nats-server", "--version"],
            System::Redis | System::Bullmq | System::Celery => &["redis-server", "--version"],
            System::Beanstalkd => &["beanstalkd", "-v"],
            System::Postgres => &["postgres", "--version"],
            System::Faktory => &["faktory", "-v"],
            _ => &[],
        }
    }

    /// Starts it in a directory of its own and waits until it serves.
    pub(crate) async fn start(self, binary: &Path, dir: &Path, programs: &Path) -> Result<Running> {
        let programs = programs.canonicalize().unwrap_or_else(|_| programs.to_owned());
        let servers = match self {
            System::Windlass3
            | System::Windlass1
            | System::WindlassHttp3
            | System::WindlassHttp3Spread
            | System::WindlassHttp1 => Server::cluster(binary, dir, self.nodes(), SHARDS)?,
            System::Redis | System::Bullmq | System::Celery => vec![start::redis(dir, "always")?],
            System::Beanstalkd => vec![start::beanstalkd(dir)?],
            System::Postgres => vec![start::postgres(dir)?],
            System::Nats => start::nats(dir, self.nodes())?,
            System::Rabbitmq => start::rabbitmq(dir, self.nodes())?,
            // Its module is not to be had from the registries that this was written with.
            System::Faktory => bail!("not installed: its Go module could not be fetched"),
        };
        Ok(Running { system: self, binary: binary.to_owned(), programs, servers })
    }
}

/// A system that serves. It ends with this value.
pub(crate) struct Running {
    system: System,
    binary: PathBuf,
    programs: PathBuf,
    servers: Vec<Server>,
}

impl Running {
    /// Runs a plan; a summary as `windlass bench` gives it.
    pub(crate) async fn run(&self, plan: &Plan) -> Result<Value> {
        let first = self.servers.first().context("no server")?.address;
        let here = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name);
        let result = match self.system {
            // Everything at one node, as with every peer.
            System::Windlass3 | System::Windlass1 => {
                windlass::bench(&self.binary, &self.servers[..1], Face::Streams, plan).await?
            }
            System::WindlassHttp3 | System::WindlassHttp1 => {
                windlass::bench(&self.binary, &self.servers[..1], Face::Http, plan).await?
            }
            System::WindlassHttp3Spread => {
                windlass::bench(&self.binary, &self.servers, Face::Http, plan).await?
            }
            System::Redis => serde_json::to_value(peers::redis::run(first, plan.clone()).await?)?,
            System::Beanstalkd => serde_json::to_value(peers::beanstalkd::run(first, plan.clone()).await?)?,
            System::Bullmq => {
                let script = self.programs.join("bullmq.mjs");
                // Beside its node_modules, or node does not find them.
                std::fs::copy(here("bullmq.mjs"), &script).context("is bench/compare done installing?")?;
                peers::script::run(Path::new("node"), &script, first.port(), plan).await?
            }
            System::Celery => {
                let python = self.programs.join("venv/bin/python");
                peers::script::run(&python, &here("celery_bench.py"), first.port(), plan).await?
            }
            #[cfg(feature = "peers")]
            System::Postgres => serde_json::to_value(peers::postgres::run(first, plan.clone()).await?)?,
            #[cfg(feature = "peers")]
            System::Nats => {
                let addresses: Vec<_> = self.servers.iter().map(|server| server.address).collect();
                serde_json::to_value(peers::nats::run(&addresses, plan.clone()).await?)?
            }
            #[cfg(feature = "peers")]
            System::Rabbitmq => serde_json::to_value(peers::rabbitmq::run(first, plan.clone()).await?)?,
            _ => bail!("built without its client: cargo build --features peers"),
        };
        if result["unfinished"].as_u64().is_some_and(|unfinished| unfinished > 0) {
            bail!("{} of {} tasks were not done", result["unfinished"], result["enqueued"]);
        }
        Ok(result)
    }
}
