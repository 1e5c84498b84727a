//! `windlass dev --nodes 3`: a whole cluster on this machine, to try out what happens when a node dies.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::exit::{Exit, Failure};
use crate::fleet::{Fleet, Logs};
use crate::log::LogFormat;
use crate::output::print;
use crate::serve::Stop;
use crate::settings::Settings;

/// How long the nodes may take to find each other.
const READY_MAX: Duration = Duration::from_secs(60);
/// Between a node's end and its next start.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Whether a node that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    Always,
    Never,
}

pub(super) async fn run(settings: &Settings, count: u16, restart: Restart, stop: &mut Stop) -> Result<()> {
    let logs = if settings.log == LogFormat::Json { Logs::Plain } else { Logs::Numbered };
    let mut fleet = Fleet::new(count, settings.listen, &settings.data, flags(settings, count), logs)?;
    let served = serve(&mut fleet, restart, stop).await;
    fleet.stop().await;
    served
}

async fn serve(fleet: &mut Fleet, restart: Restart, stop: &mut Stop) -> Result<()> {
    let started = Instant::now();
    for n in 0..fleet.places.len() {
        fleet.start(n)?;
    }
    for n in 0..fleet.places.len() {
        tokio::select! {
            ready = fleet.ready(n, READY_MAX) => ready?,
            () = stop.asked() => return Ok(()),
        }
    }
    greet(fleet, started.elapsed());
    loop {
        tokio::select! {
            () = stop.asked() => return Ok(()),
            (n, status) = fleet.ended() => {
                let node = fleet.places[n].node;
                let how = status.map_or_else(|e| e.to_string(), |status| status.to_string());
                let left = fleet.count();
                if restart == Restart::Always {
                    let _ = print(&format!("node {node} has ended ({how}): starting it again"));
                    tokio::select! {
                        () = tokio::time::sleep(RESTART_PAUSE) => {}
                        () = stop.asked() => return Ok(()),
                    }
                    fleet.start(n)?;
                    if let Some(pid) = fleet.pid(n) {
                        let _ = print(&format!("node {node} is process {pid} now"));
                    }
                } else if left == 0 {
                    return Err(Failure::new(Exit::Failure, "all nodes have ended").into());
                } else {
                    let _ = print(&format!("node {node} has ended ({how}): {left} left; --restart would start it again"));
                }
            }
        }
    }
}

/// Our own settings, as one node of several on this machine gets them.
fn flags(settings: &Settings, count: u16) -> Vec<OsString> {
    // They share this machine's memory.
    let memory = settings.memory_bytes_max / u64::from(count);
    let mut flags: Vec<String> = vec!["--demo-worker".to_owned(), format!("--memory-bytes-max={memory}")];
    let sizes = [
        ("--disk-reserve-bytes", settings.disk_reserve_bytes),
        ("--envelope-cache-bytes", settings.envelope_cache_bytes),
        ("--shards", settings.shards.map(u64::from)),
    ];
    flags.extend(sizes.iter().filter_map(|(flag, value)| Some(format!("{flag}={}", (*value)?))));
    let switches = [
        (settings.insecure, "--insecure"),
        (!settings.auto_create, "--no-auto-create"),
        (settings.log == LogFormat::Json, "--log=json"),
    ];
    flags.extend(switches.iter().filter(|(on, _)| *on).map(|(_, flag)| (*flag).to_owned()));
    flags.into_iter().map(OsString::from).collect()
}

fn greet(fleet: &Fleet, took: Duration) {
    let (version, count) = (env!("CARGO_PKG_VERSION"), fleet.places.len());
    let mut text = format!("windlass {version}: {count} nodes are ready after {:.1} s\n", took.as_secs_f64());
    for (n, place) in fleet.places.iter().enumerate() {
        let (node, http, data) = (place.node, place.http, place.data.display());
        let pid = fleet.pid(n).map_or_else(|| "?".to_owned(), |pid| pid.to_string());
        text.push_str(&format!(
            "  node {node}  address  http://{http}  peers {}  process {pid}  data {data}\n",
            place.peer
        ));
    }
    let binary = super::own_name();
    let server = format!("--server {}", fleet.servers());
    let pid = fleet.pid(0).unwrap_or_default();
    text.push_str(&format!(
        "\ntry in another terminal:
  {binary} enqueue demo hello '{{\"name\":\"Ada\"}}' --wait {server}
  {binary} cluster watch {server}
  kill -9 {pid}          # and see the others take over what it led

stop with Ctrl-C"
    ));
    // Nobody has to read it: the nodes serve all the same.
    let _ = print(&text);
}
