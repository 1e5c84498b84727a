//! `windlass work`: runs a program for each task.
//!
//! The SDK claims, extends, beats and tells outcomes, over one stream (`sdks/rust`); this side finds the program
//! of a task (`work/handlers.rs`), runs it (`work/program.rs`) and says what its end means (`work/handle.rs`). With
//! `--autoscale` it runs other workers instead (`work/pool.rs`). Never acks what a program did not end well.

pub(crate) mod child;
mod handle;
mod handlers;
mod pool;
mod program;
mod scale;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::claim::default_worker;
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::log::LogFormat;
use crate::serve::Stop;
use crate::span::Span;
use crate::weighted::Weighted;
use handle::Crew;
use handlers::{Handlers, Program, Programs};
use scale::Limits;

/// How long programs that were asked to stop may take, with their own time to clean up.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// How long programs that were killed and claims that are released may take at the very end.
const GOODBYE: Duration = Duration::from_secs(10);
/// Workers of one pool.
const POOL_MAX: u16 = 256;
/// A pool that keeps its workers longer needs no pool.
const COOL_DOWN_MAX: Duration = Duration::from_secs(3600);

/// Run a program for each task of some queues
///
/// The program gets the payload on stdin and the task's facts in WINDLASS_* variables: TASK_ID, QUEUE, KIND,
/// ATTEMPT, FENCE, TOKEN, DEADLINE, ENQUEUED_AT, HEADERS (JSON), CONTENT_TYPE, WORKER, SERVER.
/// Exit code 0 acks with stdout as the output: as JSON if it is JSON, else as a string.
/// Any other code fails the attempt, with the tail of stderr as the error.
///
/// With --handlers, a task of kind `welcome` is done by the executable file `welcome` of that directory, or by
/// `welcome.sh`, `welcome.py` and the like. Files may come and go while it runs. A task without a handler is given
/// back and waits, 1 s at first and up to 1 min: it is not lost and uses up no attempt.
#[derive(Args, Debug)]
#[command(
    after_help = "SIGTERM drains: no new claims, programs finish, the rest is given back. A second one stops now."
)]
pub(crate) struct Work {
    /// Queues to claim from, the first one first; NAME=WEIGHT shares by weight
    #[arg(long = "queue", value_name = "QUEUE", required = true, value_delimiter = ',')]
    queues: Vec<Weighted>,
    /// The command for tasks of every kind, run by sh
    #[arg(long, value_name = "COMMAND", required_unless_present = "handlers")]
    exec: Option<String>,
    /// Do each task with the executable file of this directory that is called like its kind
    #[arg(long, value_name = "DIR", conflicts_with = "exec")]
    handlers: Option<PathBuf>,
    /// How many tasks run at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    slots: u32,
    /// The worker's name, which no other has; else host, process and a random number
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// What `windlass worker list` shall say of it
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// How long a claim holds without a word from us; it is extended while the program runs
    #[arg(long, value_name = "TIME", default_value = "30s")]
    hold: Span,
    /// How long programs may take to finish after SIGTERM
    #[arg(long, value_name = "TIME", default_value_t = Span::from(windlass::Worker::GRACE))]
    drain_timeout: Span,
    /// Serve the worker's own status on this address
    #[arg(long, value_name = "ADDR", conflicts_with = "autoscale")]
    status_listen: Option<SocketAddr>,
    /// The form of the log on stderr
    #[arg(long, value_enum, default_value_t)]
    log: LogFormat,
    /// Stop when stdin ends: whoever started us has gone
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
    /// Run a pool of such workers that grows and shrinks with what waits in the queues
    #[arg(long, help_heading = "Pool")]
    autoscale: bool,
    /// The fewest workers of the pool, 0 for none while nothing waits [default: 1]
    #[arg(long, value_name = "N", requires = "autoscale", help_heading = "Pool", value_parser = clap::value_parser!(u16).range(0..=POOL_MAX as i64))]
    min: Option<u16>,
    /// The most workers of the pool [default: one per processor]
    #[arg(long, value_name = "N", requires = "autoscale", help_heading = "Pool", value_parser = clap::value_parser!(u16).range(1..=POOL_MAX as i64))]
    max: Option<u16>,
    /// How long fewer workers must be enough before some are drained
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = "Pool")]
    cool_down: Span,
    #[command(flatten)]
    connection: Connection,
}

/// `NAME=VALUE`.
fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no label: write it like zone=a")),
    }
}

impl Work {
    fn worker_name(&self) -> String {
        // In two containers host and process may be the same, and a name belongs to one worker.
        self.name.clone().unwrap_or_else(|| format!("{}-{:04x}", default_worker(), rand::random::<u16>()))
    }

    /// Who does which tasks; a directory that cannot be used is said at once.
    fn programs(&self) -> Result<Programs> {
        let Some(dir) = &self.handlers else {
            return Ok(Programs::All(Program::shell(self.exec.as_deref().unwrap_or_default())));
        };
        let (handlers, kinds) = Handlers::open(dir).map_err(Failure::usage)?;
        match kinds.is_empty() {
            true => tracing::warn!("{} has no handlers yet: tasks wait until there are some", dir.display()),
            false => tracing::info!("{} has handlers for {}", dir.display(), kinds.join(", ")),
        }
        Ok(Programs::ByKind(handlers))
    }

    /// What the pool keeps to, if it is one.
    fn limits(&self) -> Result<Option<Limits>> {
        if !self.autoscale {
            return Ok(None);
        }
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let min = usize::from(self.min.unwrap_or(1));
        let max = self.max.map_or(processors.max(min), usize::from);
        if min > max {
            return Err(Failure::usage(format!("--min {min} is more than --max {max}")).into());
        }
        let cool_down = self.cool_down.duration();
        if cool_down > COOL_DOWN_MAX {
            return Err(Failure::usage(format!("--cool-down {} is more than an hour", self.cool_down)).into());
        }
        Ok(Some(Limits { min, max, slots: self.slots, cool_down }))
    }

    /// The flags of one worker of the pool, all but its name.
    fn flags_of_one(&self) -> Result<Vec<OsString>> {
        let mut flags: Vec<OsString> = Vec::new();
        let mut flag = |name: &str, value: OsString| flags.extend([name.into(), value]);
        for queue in &self.queues {
            flag("--queue", queue.to_string().into());
        }
        for (name, value) in &self.labels {
            flag("--label", format!("{name}={value}").into());
        }
        if let Some(exec) = &self.exec {
            flag("--exec", exec.into());
        }
        if let Some(dir) = &self.handlers {
            flag("--handlers", dir.into());
        }
        let log = self.log.to_possible_value().map(|log| log.get_name().to_owned());
        flag("--log", log.unwrap_or_default().into());
        flag("--slots", self.slots.to_string().into());
        flag("--hold", self.hold.to_string().into());
        flag("--drain-timeout", self.drain_timeout.to_string().into());
        flags.extend(self.connection.flags()?.map(OsString::from));
        Ok(flags)
    }
}

pub(crate) async fn run(args: Work) -> Result<()> {
    if args.hold.millis() < 1000 {
        return Err(Failure::usage("--hold must be at least 1s: it is extended three times per hold").into());
    }
    let limits = args.limits()?;
    crate::log::init(args.log);
    let programs = args.programs()?;
    let stop = Stop::watch()?;
    if args.until_stdin_ends {
        stop.with_stdin();
    }
    match limits {
        Some(limits) => pool::run(&args, limits, stop).await,
        None => work(args, programs, stop).await,
    }
}

/// Works until it was asked to stop, and has.
async fn work(args: Work, programs: Programs, mut stop: Stop) -> Result<()> {
    let name = args.worker_name();
    let (drain, stopping) = (CancellationToken::new(), CancellationToken::new());
    let servers = args.connection.servers()?;
    let crew = Arc::new(Crew { name: name.clone(), servers, programs, stopping: stopping.clone() });
    let mut worker = windlass::Worker::new(args.connection.sdk().await?)
        .name(&name)
        .slots(args.slots)
        .queues(&args.queues)
        .version(env!("CARGO_PKG_VERSION"))
        .hold(args.hold.duration())
        .grace(args.drain_timeout.duration())
        .cancel_grace(CANCEL_GRACE)
        .handle_any(move |task, cx| handle::run(crew.clone(), task, cx));
    for (name, value) in args.labels {
        worker = worker.label(name, value);
    }
    if let Some(address) = args.status_listen {
        worker = worker.status_listen(address);
    }
    let running = worker.start().map_err(|error| Failure::new(Exit::Failure, error.to_string()))?;
    if let Some(address) = running.status_addr() {
        tracing::info!("status on http://{address}");
    }
    let signals = async {
        stop.asked().await;
        tracing::info!(worker = name, "draining");
        drain.cancel();
        stop.asked().await;
        tracing::info!(worker = name, "stopping");
        stopping.cancel();
        sleep(GOODBYE).await;
    };
    tokio::select! {
        ended = running.stop_when(drain.cancelled()) => ended.map_err(Failure::from)?,
        () = signals => {
            let text = "some tasks could not be given back: their session's end frees them";
            return Err(Failure::new(Exit::Failure, text).into());
        }
    }
    tracing::info!(worker = name, "stopped");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn parse(args: impl IntoIterator<Item = OsString>) -> Work {
        let line = ["windlass", "work"].map(OsString::from).into_iter().chain(args);
        match crate::Cli::try_parse_from(line).unwrap().verb {
            crate::Verb::Work(work) => work,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_worker_of_a_pool_gets_all_flags_of_the_pool_but_those_that_make_it_one() {
        for program in ["--exec=echo 'a b'", "--handlers=some dir"] {
            let given = "--queue=mail=3 --queue=a:b --slots=7 --label=zone=a --hold=9s --drain-timeout=2m --log=json \
                         --server=http://a:1,http://b:2 --timeout=5s";
            let given: Vec<OsString> =
                given.split_whitespace().chain([program]).map(OsString::from).collect();
            let pool = "--autoscale --min=0 --max=9 --cool-down=1m --name=pool";
            let pool = parse(given.iter().cloned().chain(pool.split_whitespace().map(OsString::from)));
            let one = parse(pool.flags_of_one().unwrap());
            assert_eq!(format!("{one:?}"), format!("{:?}", parse(given)));
        }
    }

    #[test]
    fn a_pools_limits_fit_together() {
        for (flags, expected) in [
            ("", None),
            ("--autoscale --min 0 --max 8", Some(Some((0, 8)))),
            ("--autoscale --max 8", Some(Some((1, 8)))),
            ("--autoscale --min 200", Some(Some((200, 200)))),
            ("--autoscale --min 3 --max 2", Some(None)),
            ("--autoscale --max 2 --cool-down 2h", Some(None)),
        ] {
            let flags = format!("--queue q --exec cat {flags}");
            let limits = parse(flags.split_whitespace().map(OsString::from)).limits();
            let limits = match limits {
                Ok(limits) => limits.map(|limits| Some((limits.min, limits.max))),
                Err(_) => Some(None),
            };
            assert_eq!(limits, expected, "{flags}");
        }
    }
}
