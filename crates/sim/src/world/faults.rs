//! Breaks things, one after the other, and mends them again.
//!
//! It acts between two steps of the simulation. What it does to a machine while its node is down, a start finds.
//! Next: `plan.rs` for what it draws from, `links.rs` for the network.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use model::NodeId;
use node::Disk;
use turmoil::Sim;

use super::dice::Dice;
use super::links::{Cut, Links};
use super::machine::{Doing, Machine, host};
use super::plan::{Kind, Plan};
use super::record::Recorder;

/// How long a node that refuses its damaged disk, or was removed, is left before somebody empties it.
const REFUSED_MS: u64 = 500;
/// Where a node keeps its log.
const LOG: &str = "log";
/// How far a wrong clock is ahead, or behind.
pub(crate) const AHEAD_MS_MAX: u64 = 30_000;
const BEHIND_MS_MAX: u64 = 3_600_000;

/// What a person is asked to do to the cluster. Done by `clients/person.rs`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Take a node out.
    Leave(NodeId),
    /// Hand a group's leadership over.
    Transfer { group: u16, to: NodeId },
}

/// Where orders wait. Clones are the same.
pub(crate) type Orders = Rc<RefCell<VecDeque<Order>>>;

enum Event {
    /// The next fault.
    Fault,
    /// The power of a machine comes back.
    PowerBack(u16),
    EndCut(u64),
    EndSlowNetwork,
    EndSlowDisk(u16),
    EndDiskFull(u16),
    ClockBack(u16),
    /// A node's process ends and its disk is emptied.
    Wipe(u16),
    ClientBack(String),
}

/// Breaks things.
pub(crate) struct Injector {
    plan: Rc<Plan>,
    machines: Vec<Rc<Machine>>,
    clients: Vec<String>,
    recorder: Recorder,
    orders: Orders,
    links: Links,
    agenda: BTreeMap<(u64, u64), Event>,
    events: u64,
    /// Faults that were drawn.
    drawn: u64,
    damage_left: u16,
    /// Nodes whose disks were damaged, or that were told to leave: they may refuse to start.
    damaged: BTreeSet<u16>,
    /// Those of them that still have wrong bytes on their disks.
    unsound: BTreeSet<u16>,
    /// Refusals that were seen to.
    refused: BTreeSet<u16>,
    /// Nodes whose disks were told to fail, or were damaged: their processes may end by themselves.
    may_end: BTreeSet<u16>,
    /// Nodes whose disks were full: a start is refused until there is room.
    may_lack_room: BTreeSet<u16>,
    /// Machines without power.
    dark: BTreeSet<u16>,
}

impl Injector {
    pub(crate) fn new(
        plan: Rc<Plan>,
        machines: Vec<Rc<Machine>>,
        clients: Vec<String>,
        recorder: Recorder,
        orders: Orders,
    ) -> Injector {
        let hosts = machines.iter().map(|machine| host(machine.number)).chain(clients.iter().cloned());
        let mut injector = Injector {
            links: Links::new(hosts.collect()),
            damage_left: plan.damage_max,
            plan,
            machines,
            clients,
            recorder,
            orders,
            agenda: BTreeMap::new(),
            events: 0,
            drawn: 0,
            damaged: BTreeSet::new(),
            unsound: BTreeSet::new(),
            refused: BTreeSet::new(),
            may_end: BTreeSet::new(),
            may_lack_room: BTreeSet::new(),
            dark: BTreeSet::new(),
        };
        injector.plan_at(injector.plan.first_fault_ms, Event::Fault);
        injector
    }

    /// Does what is due.
    pub(crate) fn step(&mut self, sim: &mut Sim<'_>, now_ms: u64) {
        self.see_to_ended(sim, now_ms);
        while let Some(entry) = self.agenda.first_entry() {
            if entry.key().0 > now_ms {
                break;
            }
            let event = entry.remove();
            self.happen(sim, now_ms, event);
        }
    }

    /// Mends everything that is broken; nothing more breaks.
    pub(crate) fn heal(&mut self, sim: &mut Sim<'_>, now_ms: u64) {
        let events = std::mem::take(&mut self.agenda);
        self.links.clear(sim);
        sim.set_max_message_latency(Duration::from_millis(self.plan.latency_ms_max));
        for event in events.into_values() {
            match event {
                Event::Fault | Event::EndCut(_) | Event::EndSlowNetwork => {}
                other => self.happen(sim, now_ms, other),
            }
        }
        for machine in &self.machines {
            machine.disk().set_capacity(None);
            machine.pace.times.store(1, Ordering::Relaxed);
            machine.skew.offset_ms.store(0, Ordering::Relaxed);
        }
    }

    fn plan_at(&mut self, at_ms: u64, event: Event) {
        self.events += 1;
        self.agenda.insert((at_ms, self.events), event);
    }

    /// Starts what ended by itself, as a supervisor does.
    fn see_to_ended(&mut self, sim: &mut Sim<'_>, now_ms: u64) {
        for machine in self.machines.clone() {
            let number = machine.number;
            if self.dark.contains(&number) {
                continue;
            }
            let over = machine.over();
            let is_over = over.is_some();
            if over.is_some() || machine.disk().power_is_off() {
                if let Some(why) = over
                    && !machine.disk().power_is_off()
                    && !self.may_end.contains(&number)
                {
                    self.recorder.trouble(format!("the process of node {number} ended by itself: {why}"));
                }
                if is_over && self.unsound.contains(&number) && !machine.disk().power_is_off() {
                    // A damaged record is mended; where the file itself is broken, an operator sees the node end.
                    tracing::info!(number, "ended on a damaged disk: it is emptied");
                    self.happen(sim, now_ms, Event::Wipe(number));
                    continue;
                }
                let mut dice = Dice::new(self.plan.seed, &format!("restart {number} at {now_ms}"));
                machine.die(dice.number());
                self.restart(sim, &machine, Duration::from_millis(dice.between(10, 1_500)));
                continue;
            }
            let why = match machine.doing() {
                Doing::Refused(why) => why,
                Doing::Removed => "it was removed".to_owned(),
                Doing::Nothing | Doing::Starting | Doing::Serving => {
                    self.refused.remove(&number);
                    continue;
                }
            };
            if !self.refused.insert(number) {
                continue;
            }
            if self.damaged.contains(&number) {
                tracing::info!(number, why, "of no use any more: its disk is emptied");
                self.plan_at(now_ms + REFUSED_MS, Event::Wipe(number));
                continue;
            }
            if !self.may_end.contains(&number) && !self.may_lack_room.contains(&number) {
                self.recorder.trouble(format!("node {number} refuses to start: {why}"));
            }
            tracing::info!(number, why, "refused to start: tried again");
            let mut dice = Dice::new(self.plan.seed, &format!("second start {number} at {now_ms}"));
            machine.die(dice.number());
            self.restart(sim, &machine, Duration::from_millis(REFUSED_MS));
        }
    }

    fn restart(&self, sim: &mut Sim<'_>, machine: &Machine, after: Duration) {
        machine.start_after.set(after);
        sim.bounce(host(machine.number));
    }

    fn happen(&mut self, sim: &mut Sim<'_>, now_ms: u64, event: Event) {
        match event {
            Event::Fault => {
                self.drawn += 1;
                let mut dice = Dice::new(self.plan.seed, &format!("fault {}", self.drawn));
                let next = now_ms + dice.between(1, 2 * self.plan.fault_every_ms);
                self.fault(sim, now_ms, &mut dice);
                self.plan_at(next, Event::Fault);
            }
            Event::PowerBack(number) => {
                self.dark.remove(&number);
                self.links.light(sim, &host(number));
                let machine = self.machine(number);
                self.restart(sim, &machine, Duration::ZERO);
            }
            Event::EndCut(id) => self.links.mend(sim, id),
            Event::EndSlowNetwork => {
                sim.set_max_message_latency(Duration::from_millis(self.plan.latency_ms_max));
            }
            Event::EndSlowDisk(number) => self.machine(number).pace.times.store(1, Ordering::Relaxed),
            Event::EndDiskFull(number) => self.machine(number).disk().set_capacity(None),
            Event::ClockBack(number) => self.machine(number).skew.offset_ms.store(0, Ordering::Relaxed),
            Event::Wipe(number) => {
                let machine = self.machine(number);
                machine.die(0);
                machine.wipe();
                self.refused.remove(&number);
                self.unsound.remove(&number);
                if !self.dark.contains(&number) {
                    self.restart(sim, &machine, Duration::from_millis(50));
                }
            }
            Event::ClientBack(name) => sim.bounce(name),
        }
    }

    fn machine(&self, number: u16) -> Rc<Machine> {
        self.machines[usize::from(number) - 1].clone()
    }

    fn fault(&mut self, sim: &mut Sim<'_>, now_ms: u64, dice: &mut Dice) {
        let total: u64 = self.plan.faults.iter().map(|(_, weight)| weight).sum();
        let mut left = dice.between(1, total);
        let drawn = self.plan.faults.iter().find(|(_, weight)| {
            let is_it = left <= *weight;
            left = left.saturating_sub(*weight);
            is_it
        });
        let kind = drawn.map_or(Kind::Kill, |(kind, _)| *kind);
        // A copy that may not be lost is only restarted.
        let kind = if kind.is_damage() && self.damage_left == 0 { Kind::PowerLoss } else { kind };
        if self.plan.without.contains(kind.as_str()) {
            return;
        }
        let lasts_ms = dice.scale(20, 4_000);
        if self.apply(sim, now_ms, kind, lasts_ms, dice) {
            tracing::info!(kind = kind.as_str(), lasts_ms, "fault");
            match kind {
                Kind::ClockJump => self.recorder.wrong_clock(kind.as_str(), super::WRONG_MS_MAX),
                _ => self.recorder.fault(kind.as_str()),
            }
        }
    }

    /// Whether it happened. What somebody else is told to do is recorded by whoever does it.
    fn apply(&mut self, sim: &mut Sim<'_>, now_ms: u64, kind: Kind, lasts_ms: u64, dice: &mut Dice) -> bool {
        let lit: Vec<u16> =
            self.machines.iter().map(|machine| machine.number).filter(|n| !self.dark.contains(n)).collect();
        let Some(&number) = (!lit.is_empty()).then(|| dice.one_of(&lit)) else { return false };
        let blow = Blow { kind, now_ms, lasts_ms, number, lit };
        match kind {
            Kind::Kill | Kind::KillAll | Kind::PowerLoss | Kind::PowerLossAll | Kind::TornWrite => {
                self.end_processes(sim, &blow, dice)
            }
            Kind::Split | Kind::OneWay | Kind::Ring | Kind::Drop | Kind::Delay | Kind::CutClient => {
                return self.cut_links(sim, &blow, dice);
            }
            Kind::SlowNetwork => {
                sim.set_max_message_latency(Duration::from_millis(dice.scale(50, 800)));
                self.plan_at(blow.until(), Event::EndSlowNetwork);
            }
            Kind::DiskFull | Kind::SlowDisk | Kind::SyncError => self.hamper_disk(&blow, dice),
            Kind::BitFlip | Kind::Truncation | Kind::Wipe => return self.damage_disk(sim, &blow, dice),
            Kind::ClockJump => return self.set_clock(&blow, dice),
            Kind::Leave => {
                self.damage(number);
                self.orders.borrow_mut().push_back(Order::Leave(NodeId(u64::from(number))));
                return false;
            }
            Kind::Transfer => {
                let group = dice.between(0, u64::from(self.plan.shards)) as u16;
                let to = NodeId(u64::from(number));
                self.orders.borrow_mut().push_back(Order::Transfer { group, to });
                return false;
            }
            Kind::WorkerDeath => {
                let client = dice.one_of(&self.clients).clone();
                if !client.starts_with('w') || !sim.is_host_running(client.as_str()) {
                    return false;
                }
                sim.crash(client.as_str());
                self.plan_at(blow.until(), Event::ClientBack(client));
            }
        }
        true
    }

    fn end_processes(&mut self, sim: &mut Sim<'_>, blow: &Blow, dice: &mut Dice) {
        let Blow { now_ms, lasts_ms, number, .. } = *blow;
        let log = Path::new(LOG);
        match blow.kind {
            Kind::KillAll => blow.lit.iter().for_each(|number| {
                let after = dice.between(0, lasts_ms);
                self.kill(sim, *number, after, dice);
            }),
            Kind::PowerLoss => self.cut_power(sim, now_ms, number, lasts_ms, dice),
            // Half of the time it finds all of them in the middle of what they write.
            Kind::PowerLossAll if dice.percent(50) => blow.lit.iter().for_each(|number| {
                self.machine(*number).disk().cut_power_in(log, dice.between(0, 4));
            }),
            Kind::PowerLossAll => blow.lit.iter().for_each(|number| {
                let lasts_ms = dice.between(1, lasts_ms);
                self.cut_power(sim, now_ms, *number, lasts_ms, dice);
            }),
            // It ends by itself when it has written so much more, in the middle of what it writes then.
            Kind::TornWrite if dice.percent(70) => {
                self.machine(number).disk().cut_power_in(log, dice.between(0, 9));
            }
            Kind::TornWrite => self.machine(number).disk().cut_power_after(dice.scale(1, 200)),
            _ => self.kill(sim, number, lasts_ms, dice),
        }
    }

    fn cut_links(&mut self, sim: &mut Sim<'_>, blow: &Blow, dice: &mut Dice) -> bool {
        let Blow { now_ms, lasts_ms, number, ref lit, .. } = *blow;
        let mut until = blow.until();
        let cut = match blow.kind {
            Kind::Split => {
                let side: Vec<u16> = lit.iter().copied().filter(|_| dice.percent(50)).collect();
                let other: Vec<u16> = lit.iter().copied().filter(|n| !side.contains(n)).collect();
                (!side.is_empty() && !other.is_empty()).then(|| Cut::between(&side, &other))
            }
            Kind::OneWay => {
                let others: Vec<u16> = lit.iter().copied().filter(|n| *n != number).collect();
                (!others.is_empty()).then(|| Cut::one_way(number, *dice.one_of(&others)))
            }
            Kind::Ring => Cut::ring(lit),
            Kind::Drop => {
                until = now_ms + dice.between(1, 40);
                Some(Cut::around(&host(number), self.links.hosts()))
            }
            Kind::Delay => {
                until = now_ms + lasts_ms.min(2_000);
                Some(Cut::hold(&host(number), self.links.hosts()))
            }
            _ => Some(Cut::pair(dice.one_of::<String>(&self.clients), &host(number))),
        };
        let Some(cut) = cut else { return false };
        let id = self.links.cut(sim, cut);
        self.plan_at(until, Event::EndCut(id));
        true
    }

    fn hamper_disk(&mut self, blow: &Blow, dice: &mut Dice) {
        let (number, machine) = (blow.number, self.machine(blow.number));
        match blow.kind {
            Kind::DiskFull => {
                let room = dice.scale(1, 200_000);
                machine.disk().set_capacity(Some(machine.disk().used_bytes() + room));
                self.may_lack_room.insert(number);
                self.plan_at(blow.until(), Event::EndDiskFull(number));
            }
            Kind::SlowDisk => {
                machine.pace.times.store(dice.scale(3, 200), Ordering::Relaxed);
                self.plan_at(blow.until(), Event::EndSlowDisk(number));
            }
            _ => {
                self.may_end.insert(number);
                machine.disk().fail_sync(dice.scale(1, 20));
            }
        }
    }

    fn damage_disk(&mut self, sim: &mut Sim<'_>, blow: &Blow, dice: &mut Dice) -> bool {
        let (number, machine) = (blow.number, self.machine(blow.number));
        if blow.kind == Kind::Wipe {
            self.damage(number);
            self.cut_power(sim, blow.now_ms, number, blow.lasts_ms, dice);
            machine.wipe();
            return true;
        }
        let Some(path) = file_to_damage(&machine, dice) else { return false };
        self.damage(number);
        self.unsound.insert(number);
        self.cut_power(sim, blow.now_ms, number, blow.lasts_ms, dice);
        damage_file(&machine, &path, blow.kind, dice);
        true
    }

    /// One clock at a time is wrong: of more nobody can say what is right.
    fn set_clock(&mut self, blow: &Blow, dice: &mut Dice) -> bool {
        let number = blow.number;
        // What was stamped too late is waited for, and a run has no hour for that.
        let offset = match dice.percent(50) {
            true => dice.scale(100, AHEAD_MS_MAX) as i64,
            false => -(dice.scale(100, BEHIND_MS_MAX) as i64),
        };
        let is_right = |other: &Rc<Machine>| other.skew.offset_ms.load(Ordering::Relaxed) == 0;
        if !self.machines.iter().all(|other| other.number == number || is_right(other)) {
            return false;
        }
        self.machine(number).skew.offset_ms.store(offset, Ordering::Relaxed);
        self.plan_at(blow.until() + 2_000, Event::ClockBack(number));
        true
    }

    fn damage(&mut self, number: u16) {
        self.damage_left -= 1;
        self.damaged.insert(number);
        self.may_end.insert(number);
    }

    /// The process ends; the machine stays, and refuses who dials.
    fn kill(&mut self, sim: &mut Sim<'_>, number: u16, lasts_ms: u64, dice: &mut Dice) {
        let machine = self.machine(number);
        machine.die(dice.number());
        self.restart(sim, &machine, Duration::from_millis(lasts_ms));
    }

    /// The machine is silent until its power comes back.
    fn cut_power(&mut self, sim: &mut Sim<'_>, now_ms: u64, number: u16, lasts_ms: u64, dice: &mut Dice) {
        self.machine(number).die(dice.number());
        self.links.darken(sim, &host(number));
        sim.crash(host(number));
        self.dark.insert(number);
        self.plan_at(now_ms + lasts_ms, Event::PowerBack(number));
    }
}

/// One fault.
struct Blow {
    kind: Kind,
    now_ms: u64,
    lasts_ms: u64,
    /// The node that it meets, if it meets one.
    number: u16,
    /// Those that it can meet.
    lit: Vec<u16>,
}

impl Blow {
    fn until(&self) -> u64 {
        self.now_ms + self.lasts_ms
    }
}

/// A file whose damage must be noticed. Not the newest segment: the end of a write that a crash tore looks like
/// one that a flipped bit broke, until a later write proves it.
fn file_to_damage(machine: &Machine, dice: &mut Dice) -> Option<PathBuf> {
    let disk = machine.disk();
    let list = |dir: &str, ext: &str| -> Vec<PathBuf> {
        let files = disk.list(Path::new(dir)).unwrap_or_default();
        files.into_iter().filter(|path| path.extension().is_some_and(|found| found == ext)).collect()
    };
    let mut files = list(LOG, "seg");
    files.pop();
    files.extend(list("shards", "redb"));
    (!files.is_empty()).then(|| dice.one_of(&files).clone())
}

fn damage_file(machine: &Machine, path: &Path, kind: Kind, dice: &mut Dice) {
    let disk = machine.disk();
    let Ok(bytes) = disk.read(path) else { return };
    let len = bytes.len() as u64;
    if len == 0 {
        return;
    }
    if kind == Kind::Truncation {
        disk.truncate(path, dice.between(0, len - 1));
        return;
    }
    for _ in 0..dice.scale(1, 20) {
        disk.flip(path, dice.between(0, len - 1), dice.between(0, 7) as u8);
    }
}
