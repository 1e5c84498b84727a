//! A server among people who mean it ill: malformed requests on every port, connections that take for ever, and one good
//! client that must not notice.
//!
//! Short here; with `WINDLASS_FAULTS=long` (`make test-faults`) 100,000 requests and 1,000 slow connections, and the good
//! client's times are compared with those of quiet rounds between. Figures are printed, run with `--nocapture` to see them.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "tests")]

mod attack;
mod good;
mod h2;
mod malformed;
#[path = "../process/mod.rs"]
mod process;
mod slow;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use attack::{Ports, Sent};
use good::{Client, Good};
use process::{Process, until, windlass};
use slow::Slow;
use tempfile::TempDir;

/// What all of it may cost the server, at its worst moment.
const MEMORY_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// And the good client, compared with quiet times.
const SLOWER_MAX: f64 = 2.0;

/// How much there is of it.
struct Form {
    rounds: usize,
    requests: usize,
    per_second: usize,
    slow: usize,
    /// How long the good client is alone before each round.
    quiet: Duration,
    is_timed: bool,
}

fn form() -> Form {
    match std::env::var("WINDLASS_FAULTS").is_ok_and(|form| form == "long") {
        true => Form {
            rounds: 5,
            requests: 20_000,
            per_second: 2_000,
            slow: 1_000,
            quiet: Duration::from_secs(8),
            is_timed: true,
        },
        false => Form {
            rounds: 1,
            requests: 5_000,
            per_second: 2_000,
            slow: 200,
            quiet: Duration::from_secs(1),
            is_timed: false,
        },
    }
}

/// A server with both ports open, and what it writes to its log.
struct Target {
    process: Process,
    ports: Ports,
    log: PathBuf,
    _dir: TempDir,
}

impl Target {
    fn start() -> Target {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let [http, peer] = free_addrs();
        let mut command = windlass();
        command
            .args(["serve", "--shards", "2", "--disk-reserve-bytes", "1MiB", "--listen"])
            .arg(http.to_string());
        command.arg(format!("--cluster=1={peer}")).arg(format!("--peer-listen={peer}"));
        command.arg("--data").arg(dir.path().join("data"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
        let mut target = Target {
            process: Process(command.spawn().unwrap()),
            ports: Ports { http, peer },
            log,
            _dir: dir,
        };
        until("the server is ready", || {
            assert!(target.process.0.try_wait().unwrap().is_none(), "it ended: {}", target.said());
            std::net::TcpStream::connect(http).is_ok() && Client::new(http).get("/readyz").0 == 200
        });
        target
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// A line of what the system knows of the process, in bytes.
    fn memory(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let kib: u64 = line.trim_matches([':', ' ', '\t']).split(' ').next().unwrap().parse().unwrap();
        kib * 1024
    }

    /// Forgets the worst moment so far.
    fn begin_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.process.0.id()), "5").unwrap();
    }
}

/// Two addresses that nobody has now.
fn free_addrs() -> [SocketAddr; 2] {
    let taken = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    taken.map(|listener| listener.local_addr().unwrap())
}

fn p99(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0 / 1024.0
}

#[test]
fn malformed_requests_and_slow_connections_cost_little_and_break_nothing() {
    let form = form();
    let seed = std::env::var("WINDLASS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(rand::random);
    println!("WINDLASS_SEED={seed}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut target = Target::start();
    let http = target.ports.http;
    // What the first tasks and connections take is not the attack's.
    let mut warm = Vec::new();
    let mut client = Client::new(http);
    (0..300).for_each(|_| client.one_task(&mut warm));
    drop(client);
    let before = target.memory("VmRSS");
    target.begin_peak();

    let (mut quiet, mut attacked) = (Vec::new(), Vec::new());
    let mut all = Sent::default();
    let started = Instant::now();
    for round in 0..form.rounds {
        let good = Good::start(http);
        std::thread::sleep(form.quiet);
        quiet.extend(good.times());
        let slow = runtime.block_on(Slow::open(http, form.slow));
        let good = Good::start(http);
        let round_seed = seed.wrapping_add(1_000 * round as u64);
        let sent = runtime.block_on(attack::send(target.ports, form.requests, form.per_second, round_seed));
        attacked.extend(good.times());
        runtime.block_on(async move { drop(slow) });
        all.all += sent.all;
        all.unreached += sent.unreached;
        for (what, count) in sent.answered {
            *all.answered.entry(what).or_default() += count;
        }
    }
    let (peak, after) = (target.memory("VmHWM"), target.memory("VmRSS"));
    let (quiet_p99, attacked_p99) = (p99(&mut quiet), p99(&mut attacked));
    println!(
        "{} malformed requests of {} kinds and {} slow connections at once in {:?}",
        all.all,
        malformed::kinds(),
        form.slow,
        started.elapsed()
    );
    println!("answered, by kind: {:#?}; not reached: {}", all.answered, all.unreached);
    println!(
        "memory: {:.1} MiB before, {:.1} at the worst moment, {:.1} after",
        mib(before),
        mib(peak),
        mib(after)
    );
    println!(
        "good client: p99 {quiet_p99:?} of {} in quiet, {attacked_p99:?} of {} under attack",
        quiet.len(),
        attacked.len()
    );

    let said = target.said();
    assert!(!said.contains("panic"), "{said}");
    assert!(target.process.0.try_wait().unwrap().is_none(), "the server ended: {said}");
    assert!(
        all.all == form.rounds * form.requests && all.unreached == 0,
        "{} of {} not reached",
        all.unreached,
        all.all
    );
    // These are wrong in ways that are told, every time.
    for told in ["broken JSON", "a wrong token", "deep JSON", "a path of escapes"] {
        let count = all.answered[told];
        assert!(count > 0, "nobody was told of {told}");
    }
    assert!(!attacked.is_empty(), "the good client did nothing");
    let taken = peak.saturating_sub(before);
    assert!(taken <= MEMORY_BYTES_MAX, "the attack took {:.1} MiB", mib(taken));
    if form.is_timed {
        let slower = attacked_p99.as_secs_f64() / quiet_p99.as_secs_f64();
        assert!(slower <= SLOWER_MAX, "the good client was {slower:.2} times as slow");
    }
    // All of it is there and works.
    let mut client = Client::new(http);
    client.one_task(&mut warm);
    assert_eq!(client.get("/livez").0, 200);
    assert_eq!(client.get("/v1/queues/q").0, 404, "a malformed request made a queue");
    drop(client);
    target.process.signal("TERM");
    assert_eq!(target.process.ended(), 0, "{}", target.said());
}
