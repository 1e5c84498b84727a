//! How the peers are started: on ports and in directories of their own, as durable as each can be.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Server, free_address};

/// How long a broker of three nodes may take to become one.
const CLUSTER_PATIENCE: Duration = Duration::from_secs(120);

/// Redis; `fsync` is a value of `appendfsync`.
pub(crate) fn redis(dir: &Path, fsync: &str) -> Result<Server> {
    let address = free_address()?;
    let mut command = Command::new("redis-server");
    command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "yes", "--appendfsync", fsync, "--dir"]).arg(dir);
    Server::spawn(command, address)?.until_listening()
}

pub(super) fn beanstalkd(dir: &Path) -> Result<Server> {
    let address = free_address()?;
    let mut command = Command::new("beanstalkd");
    command.args(["-l", "127.0.0.1", "-p", &address.port().to_string(), "-f", "0", "-b"]).arg(dir);
    Server::spawn(command, address)?.until_listening()
}

pub(super) fn nats(dir: &Path, nodes: usize) -> Result<Vec<Server>> {
    let routes = (0..nodes).map(|_| free_address()).collect::<Result<Vec<_>>>()?;
    let all: Vec<String> = routes.iter().map(|route| format!("nats://{route}")).collect();
    let mut servers = Vec::new();
    for (n, route) in all.iter().enumerate() {
        let address = free_address()?;
        let mut command = Command::new("nats-server");
        command.args(["-a", "127.0.0.1", "-p", &address.port().to_string(), "--name", &format!("n{n}")]);
        command.args(["--cluster_name", "bench", "--cluster", route, "--routes", &all.join(",")]);
        command.args(["-js", "-sd"]).arg(dir.join(n.to_string())).stderr(Stdio::null());
        servers.push(Server::spawn(command, address)?);
    }
    servers.into_iter().map(Server::until_listening).collect()
}

/// PostgreSQL serves no root: as root it runs as the user that its package made.
pub(super) fn postgres(dir: &Path) -> Result<Server> {
    let address = free_address()?;
    let data = dir.join("data");
    std::fs::create_dir(&data)?;
    let owner = match rustix::process::getuid().is_root() {
        true => Some((id("-u")?, id("-g")?)),
        false => None,
    };
    if let Some((user, group)) = owner {
        for path in [dir, data.as_path()] {
            std::os::unix::fs::chown(path, Some(user), Some(group))?;
        }
    }
    let bin = postgres_bin()?;
    let as_owner = |program: &str| {
        let mut command = Command::new(bin.join(program));
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir(dir);
        if let Some((user, group)) = owner {
            command.uid(user).gid(group);
        }
        command
    };
    let mut init = as_owner("initdb");
    let init =
        init.args(["--auth=trust", "--username=bench", "--encoding=UTF8", "--no-sync", "-D"]).arg(&data);
    ensure!(init.status()?.success(), "initdb failed: may its user enter {}?", dir.display());
    let mut command = as_owner("postgres");
    command.arg("-D").arg(&data).args(["-h", "127.0.0.1", "-p", &address.port().to_string()]);
    for setting in ["max_connections=200", "synchronous_commit=on", "fsync=on", "unix_socket_directories="] {
        command.args(["-c", setting]);
    }
    let server = Server::spawn(command, address)?.until_listening()?;
    until("PostgreSQL is ready", || {
        let mut ready = as_owner("pg_isready");
        let ready = ready.args(["-q", "-h", "127.0.0.1", "-p", &address.port().to_string()]);
        Ok(ready.status()?.success())
    })?;
    Ok(server)
}

/// The newest one of Debian's.
fn postgres_bin() -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").context("postgresql is not installed")?;
    let mut bins: Vec<PathBuf> = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin"))).collect();
    bins.sort();
    bins.into_iter().rfind(|bin| bin.join("postgres").exists()).context("postgresql is not installed")
}

fn id(flag: &str) -> Result<u32> {
    let output = Command::new("id").args([flag, "postgres"]).output()?;
    String::from_utf8(output.stdout)?.trim().parse().context("there is no user postgres")
}

/// Three brokers with names, ports and a port mapper of their own.
pub(super) fn rabbitmq(dir: &Path, nodes: usize) -> Result<Vec<Server>> {
    let epmd = free_address()?.port();
    let mut servers = vec![port_mapper(epmd)?];
    let mut brokers = Vec::new();
    for n in 0..nodes {
        let address = free_address()?;
        let home = dir.join(n.to_string());
        std::fs::create_dir(&home)?;
        // All of them share a secret, each with a home of its own.
        let cookie = home.join(".erlang.cookie");
        std::fs::write(&cookie, "windlass-bench")?;
        std::fs::set_permissions(&cookie, std::os::unix::fs::PermissionsExt::from_mode(0o400))?;
        std::fs::write(home.join("enabled_plugins"), "[].\n")?;
        std::fs::write(home.join("rabbitmq.conf"), format!("listeners.tcp.1 = {address}\n"))?;
        let mut command = rabbit(&home, n, epmd, "rabbitmq-server");
        command.env("RABBITMQ_NODE_PORT", address.port().to_string());
        command.env("RABBITMQ_DIST_PORT", free_address()?.port().to_string()).stderr(Stdio::null());
        brokers.push((home, Server::spawn(command, address)?));
    }
    for (n, (home, _)) in brokers.iter().enumerate() {
        let control = |args: &[&str]| {
            let mut command = rabbit(home, n, epmd, "rabbitmqctl");
            command.args(["-n", &format!("bench{n}@localhost")]).args(args);
            anyhow::Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success())
        };
        until("RabbitMQ is up", || control(&["await_startup", "--timeout", "60"]))?;
        if n > 0 {
            for step in [&["stop_app"][..], &["join_cluster", "bench0@localhost"], &["start_app"]] {
                ensure!(control(step)?, "rabbitmqctl {step:?} failed");
            }
        }
    }
    let brokers = brokers.into_iter().map(|(_, server)| server.until_listening());
    let brokers = brokers.collect::<Result<Vec<_>>>()?;
    // The brokers first: the first one is who is spoken to. The mapper goes last.
    servers.splice(0..0, brokers);
    Ok(servers)
}

fn port_mapper(port: u16) -> Result<Server> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut command = Command::new("epmd");
    command.args(["-port", &port.to_string(), "-address", "127.0.0.1"]).stderr(Stdio::null());
    Server::spawn(command, address)?.until_listening()
}

/// A program of RabbitMQ, for the nth broker.
fn rabbit(home: &Path, n: usize, epmd: u16, program: &str) -> Command {
    // Not the wrappers in the path: those change the user and forget the environment.
    let mut command = Command::new(Path::new("/usr/lib/rabbitmq/bin").join(program));
    command.env("HOME", home).env("ERL_EPMD_PORT", epmd.to_string()).current_dir(home);
    command.env("RABBITMQ_NODENAME", format!("bench{n}@localhost"));
    command.env("RABBITMQ_MNESIA_BASE", home.join("mnesia")).env("RABBITMQ_LOG_BASE", home.join("log"));
    command.env("RABBITMQ_CONFIG_FILE", home.join("rabbitmq.conf"));
    command.env("RABBITMQ_ENABLED_PLUGINS_FILE", home.join("enabled_plugins"));
    command.env("RABBITMQ_PID_FILE", home.join("pid")).env("RABBITMQ_CONF_ENV_FILE", home.join("env"));
    command
}

fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        if start.elapsed() > CLUSTER_PATIENCE {
            bail!("waited in vain until {what}");
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}
