//! One run: a cluster of whole nodes, its clients and its faults, in simulated time.
//!
//! Nodes, logs, checkpoints, links and consensus are the real ones. Simulated are the network and the time (turmoil),
//! the disks (`storage::MemDisk`), the clocks, chance, and where blocking work runs. One process makes one run: chance
//! is the process's. Must never look into a node: it sees what callers see, and what a `Witness` is told.
//!
//! Next: `plan.rs` for what a seed draws, `machine.rs` for a node's lives, `faults.rs` for what befalls them,
//! `clients` for who uses them.

mod clients;
mod clock;
mod dice;
mod disk_work;
mod door;
mod faults;
mod links;
mod machine;
mod network;
mod plan;
mod record;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use mad_turmoil::time::SimClocksGuard;
use node::Panicked;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use turmoil::{Builder, Sim};

use crate::check::{Checker, Report};
use crate::history::{Line, Run};
use clients::{Phase, Stage, person, producer, tasks, worker};
use clock::WALL_START_MS;
use door::Desk;
use faults::{Injector, Orders};
use machine::{Doing, Machine, host};
pub use plan::Wishes;
use plan::{Kind, Plan};
use record::Recorder;

/// How long a mended cluster may take to end all its tasks.
const CLOSING_MS_MAX: u64 = 120_000;
/// Segments and connections that wait at one socket.
const SOCKET_MAX: usize = 1 << 16;
/// Longer than any run.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);
/// Consensus and checkpoints go deep.
const STACK_BYTES: usize = 64 * 1024 * 1024;
/// Wrong clocks are so far apart at most, drift included, and wall time jumps no further: it never goes back.
const WRONG_MS_MAX: u64 = 2 * faults::AHEAD_MS_MAX + 10_000;

/// What came of a run.
pub struct Outcome {
    /// Its history.
    pub lines: Vec<Line>,
    /// What the checker says of it.
    pub report: Report,
    /// What went wrong that a history does not tell: a panic, a node that refused a good disk, no end.
    pub trouble: Vec<String>,
    /// How many faults were injected.
    pub faults: u64,
    /// How much time was simulated.
    pub simulated: Duration,
}

impl Outcome {
    /// Whether every promise held.
    pub fn held(&self) -> bool {
        self.report.held() && self.trouble.is_empty()
    }
}

/// What a run leaves, whether it came to its end or not.
#[derive(Default)]
struct Ran {
    lines: Vec<Line>,
    trouble: Vec<String>,
    simulated: Duration,
}

/// A panic, and whether storage made damage of a file of it.
struct Panic {
    is_guarded: bool,
    said: String,
}

/// Makes the run of a seed. Once in a process: all chance in it comes from the seed from now on.
pub fn run(wishes: &Wishes) -> Outcome {
    let panics: Arc<Mutex<Vec<Panic>>> = Arc::default();
    let heard = panics.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let is_guarded = match node::panicked() {
            Panicked::Unguarded => false,
            Panicked::Told => true,
            Panicked::Last { work } => begin_again(work),
        };
        heard.lock().push(Panic { is_guarded, said: panic.to_string() });
    }));
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(wishes.seed));
    let recorder = Recorder::default();
    let has_ended = wishes.ended.clone();
    let (wishes, recorded) = (wishes.clone(), recorder.clone());
    // Hash maps take their keys once for each thread: this one has taken some already.
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    let thread = thread.spawn(move || simulate(&wishes, &recorded));
    let joined = thread.expect("the system gives a process one thread").join();
    let _ = std::panic::take_hook();
    let mut ran = joined.unwrap_or_default();
    let (lines, trouble) = recorder.finish();
    ran.lines.extend(lines);
    ran.trouble.extend(trouble);
    // Pages that were damaged on purpose are told as damage, and judged by what the node does then.
    let damages = [Kind::BitFlip, Kind::Truncation].map(Kind::as_str);
    let is_damage =
        |line: &Line| matches!(line, Line::Fault(fault) if damages.contains(&fault.kind.as_str()));
    let is_damaged = ran.lines.iter().any(is_damage);
    // The first is the cause; the runtime's own follows.
    let panics = panics.lock();
    let cause = panics.iter().find(|panic| !(panic.is_guarded && is_damaged));
    ran.trouble.extend(cause.map(|panic| format!("a panic: {}", panic.said)));
    if !has_ended.is_empty() && !is_damaged {
        ran.trouble.push("panics ended a process over pages that nobody had damaged".to_owned());
    }
    let mut checker = Checker::new();
    for (number, line) in (1u32..).zip(&ran.lines) {
        if let Err(error) = checker.take(number, line.clone()) {
            ran.trouble.push(format!("line {number} of the history: {error}"));
        }
    }
    let Ran { lines, trouble, simulated } = ran;
    let is_fault = |line: &&Line| matches!(line, Line::Fault(fault) if !plan::is_by_clients(&fault.kind));
    let faults = lines.iter().filter(is_fault).count() as u64;
    Outcome { lines, report: checker.finish(), trouble, faults, simulated }
}

/// A node's process would end here, with nothing but its last words; this one is that of all nodes. So it begins anew, as the
/// same run in which that node meets damage in this work, which ends it in order.
fn begin_again(work: u64) -> ! {
    let program = std::env::current_exe().expect("a program knows where it is");
    let arguments = std::env::args_os().skip(1);
    let error = Command::new(program).args(arguments).args(["--ended", &work.to_string()]).exec();
    panic!("the run cannot begin again: {error}");
}

fn simulate(wishes: &Wishes, recorder: &Recorder) -> Ran {
    let _clocks = SimClocksGuard::init();
    wishes.ended.iter().for_each(|work| node::refuse(*work));
    let plan = Rc::new(Plan::draw(wishes));
    tracing::info!(?plan, "plan");
    begin(&plan, recorder);
    let (desk, orders) = (Desk::default(), Orders::new(RefCell::new(VecDeque::new())));
    let mut sim = Builder::new()
        .rng_seed(plan.seed)
        .epoch(UNIX_EPOCH + Duration::from_millis(WALL_START_MS))
        .simulation_duration(FOR_EVER)
        .tick_duration(Duration::from_millis(plan.tick_ms))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(plan.latency_ms_max))
        .tcp_capacity(SOCKET_MAX)
        .enable_random_order()
        .build();
    let machines = add_machines(&mut sim, &plan, &desk, recorder);
    let stage = Rc::new(Stage::new(plan.clone(), desk, recorder.clone(), orders.clone()));
    let clients = add_clients(&mut sim, &stage);
    let mut injector = Injector::new(plan.clone(), machines.clone(), clients, recorder.clone(), orders);
    let mut awaited = machines.iter().skip(usize::from(plan.nodes)).peekable();
    let busy_ms = plan.busy.as_millis() as u64;
    loop {
        let now_ms = sim.elapsed().as_millis() as u64;
        recorder.step((now_ms + plan.tick_ms) * 1_000);
        if now_ms >= busy_ms && matches!(stage.phase(), Phase::Setup | Phase::Busy) {
            tracing::info!("all is mended");
            injector.heal(&mut sim, now_ms);
            stage.phase.set(Phase::Closing);
        }
        injector.step(&mut sim, now_ms);
        if awaited.next_if(|machine| machine.doing() == Doing::Serving).is_some() {
            recorder.fault("join");
        }
        if stage.phase() == Phase::Over {
            break;
        }
        if now_ms > busy_ms + CLOSING_MS_MAX {
            recorder.trouble(no_end(stage.phase(), &machines));
            break;
        }
        if let Err(error) = sim.step() {
            recorder.trouble(format!("the simulation ended: {error}"));
            break;
        }
    }
    let ran = Ran { simulated: sim.elapsed(), ..Ran::default() };
    // Nothing in it is of use any more, and all of it would be dropped one by one.
    std::mem::forget(sim);
    ran
}

fn begin(plan: &Plan, recorder: &Recorder) {
    let name = format!("seed {}", plan.seed);
    recorder.add(Line::Run(Run {
        shards: plan.shards,
        wall_start_ms: (!plan.has_wrong_clocks()).then_some(WALL_START_MS),
        wall_skew_ms: drift_ms(plan),
        drift_ppm: 2 * plan.drift_ppm,
        calls: Plan::calls(),
        faults: plan.fault_words(),
        ..Run::new(&name)
    }));
    for name in tasks::QUEUES {
        recorder.add(Line::Queue(tasks::rules(name)));
    }
}

/// How far apart drift alone brings two clocks in a run.
fn drift_ms(plan: &Plan) -> u64 {
    let run_ms = plan.busy.as_millis() as u64 + CLOSING_MS_MAX;
    (2 * plan.drift_ppm * run_ms).div_ceil(1_000_000)
}

fn add_machines(sim: &mut Sim<'_>, plan: &Rc<Plan>, desk: &Desk, recorder: &Recorder) -> Vec<Rc<Machine>> {
    let mut machines = Vec::new();
    for number in 1..=plan.machines() {
        let machine = Rc::new(Machine::new(number, plan.clone(), desk.clone(), recorder.clone()));
        if number > plan.nodes {
            machine.start_after.set(plan.joins_at.unwrap_or_default());
        }
        let living = machine.clone();
        sim.host(host(number), move || living.clone().live());
        machines.push(machine);
    }
    machines
}

/// The names of their machines.
fn add_clients(sim: &mut Sim<'_>, stage: &Rc<Stage>) -> Vec<String> {
    let mut names = Vec::new();
    for number in 1..=stage.plan.producers {
        let (name, stage) = (format!("p{number}"), stage.clone());
        names.push(name.clone());
        sim.host(name, move || {
            let stage = stage.clone();
            async move {
                producer::run(stage, number).await;
                stay().await
            }
        });
    }
    for number in 1..=stage.plan.workers {
        let (name, stage) = (format!("w{number}"), stage.clone());
        names.push(name.clone());
        sim.host(name, move || {
            let stage = stage.clone();
            async move {
                worker::run(stage, number).await;
                stay().await
            }
        });
    }
    names.push("person".to_owned());
    let stage = stage.clone();
    sim.host("person", move || {
        let stage = stage.clone();
        async move {
            person::run(stage).await;
            stay().await
        }
    });
    names
}

/// A machine whose work is done stays: one that ends is stepped no more, and what it still waits for never comes.
async fn stay() -> turmoil::Result {
    std::future::pending().await
}

fn no_end(phase: Phase, machines: &[Rc<Machine>]) -> String {
    let doing: Vec<String> =
        machines.iter().map(|machine| format!("node {} {:?}", machine.number, machine.doing())).collect();
    format!(
        "{} s after all was mended the run has not come to its end ({phase:?}): {}",
        CLOSING_MS_MAX / 1_000,
        doing.join(", ")
    )
}
