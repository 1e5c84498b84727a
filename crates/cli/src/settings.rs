//! A server's settings: flags over `WINDLASS_*` over the TOML file over defaults.
//!
//! Each setting is one line in [`Settings::load`], so that its four sources can be seen side by side. An
//! unknown key is an error everywhere we can tell one. Never starts anything.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use model::limits;

use crate::config_file::{self, File, LogFormat, Size, Wrong};
use crate::env::Env;
use crate::exit::Failure;
use crate::peers::{Given, Peers, check_advertise};

/// What `serve` and `dev` may be told on the command line. What is not given is looked up elsewhere.
#[derive(Args, Debug, Default)]
pub(crate) struct Flags {
    /// The data directory [env: WINDLASS_DATA]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where to serve HTTP; port 0 takes a free one [env: WINDLASS_LISTEN]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Shards of a new cluster; fixed once it is made [env: WINDLASS_SHARDS]
    #[arg(long, value_name = "N")]
    shards: Option<u16>,
    /// The form of the log on stderr [env: WINDLASS_LOG]
    #[arg(long, value_enum)]
    log: Option<LogFormat>,
    /// Listen on an address that others can reach, without anything that keeps them out [env: WINDLASS_INSECURE]
    #[arg(long)]
    insecure: bool,
    /// Where to serve Faktory's protocol; this version has none, so: off
    #[arg(long, value_name = "off")]
    faktory: Option<String>,
    /// Refuse new tasks when tasks take more memory than this; half of the machine's unless said
    /// [env: WINDLASS_MEMORY_BYTES_MAX]
    #[arg(long, value_name = "SIZE")]
    memory_bytes_max: Option<Size>,
    /// Disk space kept back so that acks go on when the disk is full [env: WINDLASS_DISK_RESERVE_BYTES]
    #[arg(long, value_name = "SIZE")]
    disk_reserve_bytes: Option<Size>,
    /// Memory for the payloads of waiting tasks; the rest is read back from disk
    /// [env: WINDLASS_ENVELOPE_CACHE_BYTES]
    #[arg(long, value_name = "SIZE")]
    envelope_cache_bytes: Option<Size>,
    /// Refuse tasks for queues that nobody set, instead of making them on first use
    /// [env: WINDLASS_QUEUES_AUTO_CREATE=false]
    #[arg(long)]
    no_auto_create: bool,
    /// Read settings from this TOML file [env: WINDLASS_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Read WINDLASS_* variables from this file as well
    #[arg(long, value_name = "FILE")]
    env_file: Option<PathBuf>,
}

/// What `serve` takes besides.
#[derive(Args, Debug, Default)]
pub(crate) struct NodeFlags {
    /// This node's number [env: WINDLASS_NODE]
    #[arg(long, value_name = "N")]
    node: Option<u64>,
    /// All nodes of the cluster with their peer addresses, as 1=HOST:7421,2=HOST:7421,3=HOST:7421
    /// [env: WINDLASS_CLUSTER]
    #[arg(long, value_name = "MEMBERS")]
    cluster: Option<String>,
    /// Where to listen for the other nodes; else this node's own address in --cluster
    /// [env: WINDLASS_PEER_LISTEN]
    #[arg(long, value_name = "ADDR")]
    peer_listen: Option<SocketAddr>,
    /// The HTTP address that other nodes and redirected clients are told; else that of --listen
    /// [env: WINDLASS_ADVERTISE]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Found a new cluster now, without waiting for the other nodes; they join it [env: WINDLASS_BOOTSTRAP]
    #[arg(long)]
    bootstrap: bool,
    /// PEM file of the authority that signs the nodes' certificates [env: WINDLASS_PEER_CA]
    #[arg(long, value_name = "FILE")]
    peer_ca: Option<PathBuf>,
    /// PEM file of this node's certificate [env: WINDLASS_PEER_CERT]
    #[arg(long, value_name = "FILE")]
    peer_cert: Option<PathBuf>,
    /// PEM file of its key [env: WINDLASS_PEER_KEY]
    #[arg(long, value_name = "FILE")]
    peer_key: Option<PathBuf>,
}

/// A server's settings, complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) node: u64,
    pub(crate) data: PathBuf,
    pub(crate) listen: SocketAddr,
    /// The HTTP address that others are told, when that is not where we listen.
    pub(crate) advertise: Option<String>,
    /// The other nodes, if there are any.
    pub(crate) peers: Option<Peers>,
    pub(crate) shards: Option<u16>,
    pub(crate) log: LogFormat,
    pub(crate) insecure: bool,
    pub(crate) auto_create: bool,
    pub(crate) memory_bytes_max: u64,
    pub(crate) disk_reserve_bytes: Option<u64>,
    pub(crate) envelope_cache_bytes: Option<u64>,
}

impl Settings {
    /// Brings the four sources together.
    pub(crate) fn load(flags: Flags, node_flags: NodeFlags) -> Result<Settings> {
        let env = Env::load(flags.env_file.as_deref())?;
        let config = flags.config.or(env.read("WINDLASS_CONFIG")?);
        let file = config.as_deref().map(read_file).transpose()?.unwrap_or_default();

        let node = node_flags.node.or(env.read("WINDLASS_NODE")?).or(file.node).unwrap_or(1);
        let data = flags.data.or(env.read("WINDLASS_DATA")?).or(file.data);
        let listen = flags.listen.or(env.read("WINDLASS_LISTEN")?).or(file.listen);
        let cluster = node_flags.cluster.or(env.read("WINDLASS_CLUSTER")?).or(file.cluster);
        let advertise = node_flags.advertise.or(env.read("WINDLASS_ADVERTISE")?).or(file.advertise);
        let peer_listen = node_flags.peer_listen.or(env.read("WINDLASS_PEER_LISTEN")?).or(file.peer_listen);
        let peer_ca = node_flags.peer_ca.or(env.read("WINDLASS_PEER_CA")?).or(file.peer_ca);
        let peer_cert = node_flags.peer_cert.or(env.read("WINDLASS_PEER_CERT")?).or(file.peer_cert);
        let peer_key = node_flags.peer_key.or(env.read("WINDLASS_PEER_KEY")?).or(file.peer_key);
        let bootstrap = node_flags.bootstrap.then_some(true);
        let bootstrap = bootstrap.or(env.read("WINDLASS_BOOTSTRAP")?).or(file.bootstrap);
        let shards = flags.shards.or(env.read("WINDLASS_SHARDS")?).or(file.shards);
        let log = flags.log.or(env.read("WINDLASS_LOG")?).or(file.log).unwrap_or_default();
        let insecure = flags.insecure.then_some(true).or(env.read("WINDLASS_INSECURE")?).or(file.insecure);
        let auto_create = flags.no_auto_create.then_some(false);
        let auto_create =
            auto_create.or(env.read("WINDLASS_QUEUES_AUTO_CREATE")?).or(file.queues.auto_create);
        let memory =
            flags.memory_bytes_max.or(env.read("WINDLASS_MEMORY_BYTES_MAX")?).or(file.memory_bytes_max);
        let reserve =
            flags.disk_reserve_bytes.or(env.read("WINDLASS_DISK_RESERVE_BYTES")?).or(file.disk_reserve_bytes);
        let cache = flags
            .envelope_cache_bytes
            .or(env.read("WINDLASS_ENVELOPE_CACHE_BYTES")?)
            .or(file.envelope_cache_bytes);

        let insecure = insecure.unwrap_or(false);
        let listen = listen.unwrap_or(server::ServerConfig::default().listen);
        let given = Given {
            cluster,
            listen: peer_listen,
            ca: peer_ca,
            cert: peer_cert,
            key: peer_key,
            bootstrap: bootstrap.unwrap_or(false),
            insecure,
        };
        check_shards(shards)?;
        check_faktory(flags.faktory.as_deref())?;
        Ok(Settings {
            node,
            data: data.unwrap_or_else(|| PathBuf::from("windlass-data")),
            listen,
            advertise: advertise.as_deref().map(check_advertise).transpose()?,
            peers: Peers::check(node, given)?,
            shards,
            log,
            insecure,
            auto_create: auto_create.unwrap_or(true),
            memory_bytes_max: memory.map_or_else(half_of_memory, |size| size.0),
            disk_reserve_bytes: reserve.map(|size| size.0),
            envelope_cache_bytes: cache.map(|size| size.0),
        })
    }
}

fn read_file(path: &Path) -> Result<File> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the config file {}", path.display()))?;
    config_file::parse(&text).map_err(|Wrong { line, message }| {
        Failure::usage(format!("{}, line {line}: {message}", path.display())).into()
    })
}

fn check_shards(shards: Option<u16>) -> Result<()> {
    match shards {
        Some(shards) if !(1..=limits::SHARDS_MAX).contains(&shards) => {
            Err(Failure::usage(format!("{shards} shards: give a number from 1 to {}", limits::SHARDS_MAX))
                .into())
        }
        _ => Ok(()),
    }
}

/// Off is what it is; the protocol comes with the release that has it.
fn check_faktory(faktory: Option<&str>) -> Result<()> {
    match faktory {
        None | Some("off") => Ok(()),
        Some(address) => {
            let message = format!(
                "Faktory's protocol on {address:?} comes with a later release, this one has none: give --faktory off or leave it out"
            );
            Err(Failure::usage(message).into())
        }
    }
}

fn half_of_memory() -> u64 {
    let info = rustix::system::sysinfo();
    // The fields' types differ between platforms.
    #[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
    let bytes = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    bytes / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(toml: &str, env: &str, flags: Flags) -> Result<Settings> {
        let dir = tempfile::tempdir().unwrap();
        let (config, env_file) = (dir.path().join("c.toml"), dir.path().join("env"));
        std::fs::write(&config, toml).unwrap();
        std::fs::write(&env_file, env).unwrap();
        Settings::load(
            Flags { config: Some(config), env_file: Some(env_file), ..flags },
            NodeFlags::default(),
        )
    }

    #[test]
    fn flags_win_over_variables_over_the_file_over_defaults() {
        let toml = "shards = 2\nnode = 7\nmemory_bytes_max = \"1GiB\"\n[queues]\nauto_create = false\n";
        let settings = load(toml, "WINDLASS_SHARDS=3\n", Flags::default()).unwrap();
        assert_eq!((settings.shards, settings.node, settings.auto_create), (Some(3), 7, false));
        assert_eq!(settings.memory_bytes_max, 1 << 30);
        assert_eq!(settings.listen.port(), 7420);
        let flags = Flags { shards: Some(5), faktory: Some("off".to_owned()), ..Flags::default() };
        assert_eq!(load(toml, "WINDLASS_SHARDS=3\n", flags).unwrap().shards, Some(5));
    }

    #[test]
    fn the_nodes_of_a_cluster_are_told_by_any_source() {
        let toml = "node = 2\ncluster = \"1=127.0.0.1:1,2=127.0.0.1:2,3=127.0.0.1:3\"\nbootstrap = true\n";
        let env = "WINDLASS_PEER_LISTEN=127.0.0.1:9\nWINDLASS_ADVERTISE=two.example:7420\n";
        let settings = load(toml, env, Flags::default()).unwrap();
        let peers = settings.peers.unwrap();
        assert_eq!((peers.members.len(), peers.listen.port(), peers.bootstrap), (3, 9, true));
        assert_eq!(settings.advertise.as_deref(), Some("two.example:7420"));
    }

    #[test]
    fn bad_settings_are_told_in_one_line_with_their_place() {
        for (toml, env, part) in [
            ("shard = 2\n", "", "line 1: unknown field `shard`"),
            ("node = 1\n[queues]\nauto = true\n", "", "line 3: unknown field `auto`"),
            ("shards = \"x\"\n", "", "line 1"),
            ("shards = 0\n", "", "0 shards"),
            ("memory_bytes_max = \"2GB\"\n", "", "2GB"),
            ("", "WINDLASS_SHARDS=many\n", "WINDLASS_SHARDS=many"),
            ("", "WINDLASS_SHARD=1\n", "unknown key WINDLASS_SHARD"),
            ("cluster = \"1=a:1,2=b:1,3=c:1\"\n", "", "say where to listen with --peer-listen"),
            ("peer_listen = \"127.0.0.1:7421\"\n", "", "--peer-listen without --cluster"),
            ("", "WINDLASS_ADVERTISE=somewhere\n", "HOST:7420"),
            ("cluster = \"2=a:1\"\n", "", "node 1 is not in"),
            ("cluster = \"a\"\n", "", "write it like"),
        ] {
            let error = format!("{:#}", load(toml, env, Flags::default()).unwrap_err());
            assert!(error.contains(part), "{error:?} does not say {part:?}");
            assert!(!error.contains('\n'), "{error:?} is more than one line");
        }
    }
}
