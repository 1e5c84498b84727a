//! `windlass bench`: how much a server takes, and how long it takes.
//!
//! Producers and workers in one thread, over the streams of gRPC, over HTTP or with the Rust SDK. Without a rate the
//! next message goes out when one before is answered; with one, when it is due. What is counted is in `load.rs`, when
//! a task counts from in `pace.rs`; each face has its file. Starts no server: that is for `bench/` at the root.

mod http;
mod http1;
mod http2;
mod load;
mod messages;
mod pace;
mod report;
mod sdk;
mod streams;
mod unanswered;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use hyper::Uri;
use model::limits::{PAYLOAD_BYTES_MAX, REQUEST_BYTES_MAX};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};

use crate::client::{Call, Client, Repeat, escaped};
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::span::Span;
use load::{Load, PAYLOAD_BYTES_MIN, Plan, Summary};

/// How long a run takes when nobody says.
const DURATION_DEFAULT: Duration = Duration::from_secs(10);
/// Tasks per second that can be asked for.
const RATES: RangeInclusive<f64> = 0.001..=1e7;
/// Connections on each side.
const CONNECTIONS_MAX: u64 = 65_536;
/// Tasks that one worker may hold.
const SLOTS_MAX: u64 = 10_000;
/// How long the server's own totals may take to agree with ours, and a queue to become empty.
const AGREE_PATIENCE: Duration = Duration::from_secs(30);
/// How long workers may take to leave in order.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// How often that is looked at.
const AGREE_STEP: Duration = Duration::from_millis(100);
/// Files that are open beside connections.
const FILES_BESIDE: u64 = 100;
/// Where a server listens when its URL has no port.
const HTTP_PORT: u16 = 80;

/// Measure how many tasks a server takes, and how long each takes
///
/// Without --rate, --outstanding messages are in flight on each side: the next goes out when one is answered. With
/// --rate, tasks go out when they are due whatever the answers, and latency counts from when they were due.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  windlass bench
  windlass bench --batch 100 --duration 30s
  windlass bench --rate 200 --face http -o json
  windlass bench --workers 0 --tasks 1000000 --batch 1000      fill the queue
  windlass bench --producers 0 --tasks 1000000 --batch 100     work it off")]
pub(crate) struct Bench {
    /// How to speak with the server
    #[arg(long, value_enum, default_value_t)]
    face: Face,
    /// Stop after so many tasks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    tasks: Option<u64>,
    /// Stop after this time; 10s unless --tasks says otherwise
    #[arg(long, value_name = "TIME")]
    duration: Option<Span>,
    /// Tasks per second, whatever the answers; 0.001 to 10000000
    #[arg(long, value_name = "PER_S", value_parser = rate)]
    rate: Option<f64>,
    /// Tasks in one message
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    batch: u64,
    /// Messages in flight on each side
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    outstanding: u64,
    /// Producers, each with a stream of its own; 0 for workers alone
    #[arg(long, value_name = "N", default_value_t = 1)]
    producers: usize,
    /// Workers, each with a stream of its own; 0 for producers alone
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// Connections on each side, spread over the servers; one for each stream unless said. Over HTTP one carries one
    /// request at a time, so there are as many as --outstanding unless said. The SDK has its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=CONNECTIONS_MAX))]
    connections: Option<u64>,
    /// Size of a payload
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(PAYLOAD_BYTES_MIN as u64..=PAYLOAD_BYTES_MAX))]
    bytes: u64,
    /// The queue; it should have no other users
    #[arg(long, default_value = "bench")]
    queue: String,
    /// Cancel what waits in the queue before
    #[arg(long)]
    purge: bool,
    #[command(flatten)]
    connection: Connection,
}

/// How to speak with the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Face {
    /// Streams of gRPC
    #[default]
    Streams,
    /// HTTP and JSON
    Http,
    /// The Rust SDK
    Sdk,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if RATES.contains(&rate) => Ok(rate),
        _ => Err(format!("a rate is a number from {} to {}", RATES.start(), RATES.end())),
    }
}

/// Where the tasks go.
struct Target {
    queue: String,
    /// What the names of workers begin with.
    prefix: String,
    urls: Vec<String>,
    addresses: Vec<SocketAddr>,
    connections: Option<usize>,
}

impl Target {
    /// The server of the nth connection.
    fn address(&self, n: usize) -> SocketAddr {
        self.addresses[n % self.addresses.len()]
    }

    fn url(&self, n: usize) -> &str {
        &self.urls[n % self.urls.len()]
    }
}

/// Where the nth of so many equal parts begins.
fn part(total: usize, parts: usize, n: usize) -> usize {
    n * total / parts
}

pub(crate) async fn run(args: Bench) -> Result<()> {
    let plan = plan(&args)?;
    let client = args.connection.client()?;
    let target = target(&args).await?;
    let sides = match args.face {
        Face::Http => 2 * plan.outstanding,
        Face::Streams | Face::Sdk => (plan.producers + plan.workers) as u64,
    };
    raise_files(args.connections.map_or(sides, |connections| 2 * connections) + FILES_BESIDE)?;
    let before = before(&client, &args, &plan).await?;
    let (summary, cpu) = LocalSet::new().run_until(go(args.face, &target, plan.clone())).await?;
    let agreed = match is_whole(&summary) {
        true => agree(&client, &args.queue, before, &plan, &summary).await,
        false => Ok(()),
    };
    let face = args.face.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    report::show(args.connection.output(), &face, &target, &plan, &summary, cpu)?;
    agreed?;
    if let (0, None, Some(tasks)) = (plan.producers, plan.duration, plan.tasks)
        && summary.acked < tasks
    {
        let message = format!("only {} of {tasks} tasks were there and done: no more came", summary.acked);
        return Err(Failure::new(Exit::Failure, message).into());
    }
    if !summary.refused.is_empty() || summary.unfinished > 0 {
        let refused: u64 = summary.refused.values().sum();
        let message = format!("{refused} refusals, {} tasks unfinished", summary.unfinished);
        return Err(Failure::new(Exit::Failure, message).into());
    }
    Ok(())
}

fn plan(args: &Bench) -> Result<Plan> {
    let plan = Plan {
        tasks: args.tasks,
        duration: match (args.tasks, args.duration) {
            (_, Some(duration)) => Some(duration.duration()),
            (None, None) => Some(DURATION_DEFAULT),
            (Some(_), None) => None,
        },
        rate: args.rate,
        batch: args.batch,
        outstanding: args.outstanding,
        payload_bytes: args.bytes as usize,
        producers: args.producers,
        workers: args.workers,
    };
    if plan.producers == 0 && plan.workers == 0 {
        return Err(Failure::usage("neither producers nor workers: there is nothing to do").into());
    }
    let slots = plan.share(plan.workers, 0) * plan.batch;
    if args.face != Face::Http && plan.workers > 0 && slots > SLOTS_MAX {
        let message = format!("a worker would hold {slots} tasks, {SLOTS_MAX} are the most: raise --workers");
        return Err(Failure::usage(message).into());
    }
    let bytes = args.bytes * args.batch;
    if plan.producers > 0 && bytes > REQUEST_BYTES_MAX as u64 {
        let message = format!(
            "a message would have {bytes} bytes, {REQUEST_BYTES_MAX} are the most: lower --bytes or --batch"
        );
        return Err(Failure::usage(message).into());
    }
    if args.face == Face::Sdk && args.connections.is_some() {
        let message = "--connections is not for --face sdk: each of its producers and workers has its own";
        return Err(Failure::usage(message).into());
    }
    Ok(plan)
}

async fn target(args: &Bench) -> Result<Target> {
    let (mut urls, mut addresses) = (Vec::new(), Vec::new());
    for url in args.connection.servers()?.split(',') {
        let uri: Uri = url.trim().parse().with_context(|| format!("{url:?} is no URL"))?;
        let host = uri.host().with_context(|| format!("{url:?} names no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut found = tokio::net::lookup_host((host, uri.port_u16().unwrap_or(HTTP_PORT))).await?;
        addresses.push(found.next().with_context(|| format!("{host} has no address"))?);
        urls.push(url.trim().to_owned());
    }
    let prefix = format!("bench-{}", std::process::id());
    let connections = args.connections.map(|connections| connections as usize);
    Ok(Target { queue: args.queue.clone(), prefix, urls, addresses, connections })
}

/// Lets this process have so many files open.
fn raise_files(wanted: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        let message =
            format!("{wanted} files are more than this user may open: raise the limit (ulimit -Hn)");
        return Err(Failure::new(Exit::Failure, message).into());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum })?;
    Ok(())
}

/// What is connected before a run begins.
enum Ready {
    Streams(streams::Ready),
    Http,
    Sdk(sdk::Clients),
}

/// One run. The second figure is the processor time of this process in it.
async fn go(face: Face, target: &Target, plan: Plan) -> Result<(Summary, Duration)> {
    let ready = match face {
        Face::Streams => Ready::Streams(streams::begin(target, &plan).await?),
        Face::Http => Ready::Http,
        Face::Sdk => Ready::Sdk(sdk::connect(target, &plan).await?),
    };
    let producing = match face {
        Face::Streams => streams::producing(&plan, target),
        Face::Http => http::producing(&plan, target),
        Face::Sdk => sdk::producing(&plan),
    };
    let (before, mut running) = (own_cpu(), JoinSet::new());
    let load = Arc::new(Load::new(plan, producing));
    let (over, is_over) = watch::channel(false);
    let mut workers = Vec::new();
    match ready {
        Ready::Http => http::run(target, &load, &mut running),
        Ready::Sdk(clients) => workers = sdk::run(target, clients, &load, &mut running)?,
        Ready::Streams(ready) => streams::run(target, ready, &load, &is_over, &mut running),
    }
    let shown = tokio::task::spawn_local(report::progress(load.clone()));
    // Producers end, workers only when something is wrong.
    let wrong = async {
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        if workers.is_empty() && load.plan.workers > 0 {
            bail!("every worker has ended");
        }
        std::future::pending().await
    };
    let ended: Result<()> = tokio::select! {
        wrong = wrong => wrong,
        () = load.until_over() => Ok(()),
    };
    shown.abort();
    ended?;
    let (summary, cpu) = (load.summary(), own_cpu() - before);
    over.send_replace(true);
    match face {
        Face::Streams => {
            let leave = async { while running.join_next().await.is_some() {} };
            // One that does not come back is lost to the server a moment later.
            let _ = tokio::time::timeout(LEAVE_PATIENCE, leave).await;
        }
        // What is under way is answered to nobody; what was claimed is free at its deadline.
        Face::Http => running.abort_all(),
        Face::Sdk => {
            for worker in workers {
                worker.stop();
                worker.join().await?;
            }
        }
    }
    Ok((summary, cpu))
}

/// The processor time that this process has used.
fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What the server counts for a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    enqueued: u64,
    done: u64,
    waiting: u64,
}

async fn totals(client: &Client, queue: &str) -> Result<Totals> {
    let answer = match client.get(format!("/v1/queues/{}", escaped(queue))).await {
        Ok(answer) => answer,
        Err(error) => match error.downcast_ref::<Failure>() {
            Some(failure) if failure.exit == Exit::NotFound => return Ok(Totals::default()),
            _ => return Err(error),
        },
    };
    let number =
        |pointer: &str| answer.value().pointer(pointer).and_then(|value| value.as_u64()).unwrap_or(0);
    let waiting = number("/depth/ready") + number("/depth/claimed");
    Ok(Totals { enqueued: number("/totals/enqueued"), done: number("/totals/done"), waiting })
}

/// The queue as it is before the run: empty, if what comes in is to come out.
async fn before(client: &Client, args: &Bench, plan: &Plan) -> Result<Totals> {
    let start = tokio::time::Instant::now();
    loop {
        if args.purge {
            // Again until it is empty: what was claimed a moment ago may be back.
            purge(client, &args.queue).await?;
        }
        let totals = totals(client, &args.queue).await?;
        if totals.waiting == 0 || plan.producers == 0 || plan.workers == 0 {
            return Ok(totals);
        }
        if !args.purge || start.elapsed() > AGREE_PATIENCE {
            let message = format!(
                "queue {:?} has {} tasks already: --purge cancels them, --producers 0 works them off, \
                 --queue names another",
                args.queue, totals.waiting
            );
            return Err(Failure::new(Exit::Conflict, message).into());
        }
        tokio::time::sleep(AGREE_STEP).await;
    }
}

async fn purge(client: &Client, queue: &str) -> Result<()> {
    let call = Call::post(format!("/v1/queues/{}/purge", escaped(queue)), &json!({}), Repeat::Safe);
    match client.call(call).await {
        Ok(_) => Ok(()),
        // A queue that is not there is empty.
        Err(error) => match error.downcast_ref::<Failure>() {
            Some(failure) if failure.exit == Exit::NotFound => Ok(()),
            _ => Err(error),
        },
    }
}

/// Whether the server must have counted as we did.
fn is_whole(summary: &Summary) -> bool {
    summary.refused.is_empty() && summary.unfinished == 0
}

/// Whether these, which the server counted, are what we did. A run of one side may have others beside it, and acks under
/// way at its end.
fn agrees(plan: &Plan, summary: &Summary, enqueued: Option<u64>, done: Option<u64>, waiting: u64) -> bool {
    match (plan.producers, plan.workers) {
        (_, 0) => enqueued.is_some_and(|enqueued| enqueued >= summary.enqueued),
        (0, _) => done.is_some_and(|done| done >= summary.acked),
        _ => (enqueued, done, waiting) == (Some(summary.enqueued), Some(summary.acked), 0),
    }
}

/// The server counted as we did. What the SDK acks, it acks a moment later.
async fn agree(client: &Client, queue: &str, before: Totals, plan: &Plan, summary: &Summary) -> Result<()> {
    let start = tokio::time::Instant::now();
    loop {
        let now = totals(client, queue).await?;
        // Nothing where it counts fewer than before: the queue was deleted meanwhile.
        let enqueued = now.enqueued.checked_sub(before.enqueued);
        let done = now.done.checked_sub(before.done);
        if agrees(plan, summary, enqueued, done, now.waiting) {
            return Ok(());
        }
        if start.elapsed() > AGREE_PATIENCE {
            let told =
                |count: Option<u64>| count.map_or("fewer than before".into(), |count| count.to_string());
            let message = format!(
                "the server counts {} enqueued and {} done, we {} and {}: does somebody else use this queue?",
                told(enqueued),
                told(done),
                summary.enqueued,
                summary.acked
            );
            return Err(Failure::new(Exit::Failure, message).into());
        }
        tokio::time::sleep(AGREE_STEP).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_servers_totals_must_agree_with_what_was_counted() {
        let both = Plan {
            tasks: Some(4),
            duration: None,
            rate: None,
            batch: 1,
            outstanding: 1,
            payload_bytes: 40,
            producers: 1,
            workers: 1,
        };
        let filling = Plan { workers: 0, ..both.clone() };
        let working_off = Plan { producers: 0, ..both.clone() };
        for (what, plan, enqueued, done, waiting, expected) in [
            ("the same", &both, Some(4), Some(3), 0, true),
            ("one more came in", &both, Some(5), Some(3), 0, false),
            ("one was done twice", &both, Some(4), Some(4), 0, false),
            ("one is left", &both, Some(4), Some(3), 1, false),
            ("fewer than before", &both, None, Some(3), 0, false),
            ("filled", &filling, Some(4), Some(0), 4, true),
            ("filled beside others", &filling, Some(9), Some(2), 7, true),
            ("one is missing", &filling, Some(3), Some(0), 3, false),
            ("fewer than before after filling", &filling, None, None, 4, false),
            ("worked off", &working_off, Some(0), Some(3), 1, true),
            ("acks under way at the end", &working_off, Some(0), Some(4), 0, true),
            ("one was not done", &working_off, Some(0), Some(2), 0, false),
            ("fewer than before after working", &working_off, Some(0), None, 0, false),
        ] {
            let load = Load::new(plan.clone(), 1);
            load.enqueued_many(std::time::Instant::now(), 4);
            load.acked_untimed(3);
            assert_eq!(agrees(plan, &load.summary(), enqueued, done, waiting), expected, "{what}");
        }
    }

    #[test]
    fn a_rate_is_a_number_that_can_be_kept() {
        for (text, is_one) in [
            ("0.001", true),
            ("200", true),
            ("1e7", true),
            ("0", false),
            ("-1", false),
            ("0.0009", false),
            ("10000001", false),
            ("inf", false),
            ("nan", false),
            ("fast", false),
        ] {
            assert_eq!(rate(text).is_ok(), is_one, "{text}");
        }
    }
}
